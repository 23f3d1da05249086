//! Texts to vectors: dense, sparse, and one for each token.

use std::borrow::Cow;

use trireme_inference::{InferError, Ledger, Tensor};

use crate::{Answered, Found, OperationRequest, Operations, Task, Window};

/// A vector for each text, or for each window of a text.
#[derive(Clone, Debug)]
pub struct Vectors {
    /// The model's own name.
    pub model: String,
    /// Numbers of each vector.
    pub width: usize,
    tensor: Tensor,
    /// By vector, the window that it stands for; `None` where each vector stands for a text.
    pub windows: Option<Vec<Window>>,
    /// The steps of the request and their times.
    pub ledger: Ledger,
}

/// The entries that are not zero of a vector for each text: index and value, indices ascending.
#[derive(Clone, Debug)]
pub struct SparseVectors {
    /// By text.
    pub rows: Vec<Vec<(u64, f32)>>,
    /// The steps of the request and their times.
    pub ledger: Ledger,
}

/// Vectors of the tokens of each text.
#[derive(Clone, Debug)]
pub struct TokenVectors {
    /// The model's own name.
    pub model: String,
    /// Numbers of each vector.
    pub width: usize,
    /// By text, the numbers of all its tokens' vectors, one after the other.
    pub rows: Vec<Vec<f32>>,
    /// The steps of the request and their times.
    pub ledger: Ledger,
}

impl Operations {
    /// A vector for each text.
    pub async fn embed(&self, texts: &[String], ask: &OperationRequest) -> Result<Vectors, InferError> {
        let found = self.find_for(Task::Embed, ask)?;
        let (tensors, ledger) = self.run_texts(&found, texts, None::<&[String]>, ask).await?;
        found.vectors(Answered { tensors, windows: None, ledger }, ask)
    }

    /// A vector for each text, or for each window where the request or the model keeps those of the windows (`fold` is `keep`). The windows of a
    /// text follow one another.
    pub async fn embed_windows(&self, texts: &[String], ask: &OperationRequest) -> Result<Vectors, InferError> {
        let found = self.find_for(Task::Embed, ask)?;
        let answered = self.run_windows(&found, texts, None::<&[String]>, ask).await?;
        found.vectors(answered, ask)
    }

    /// A sparse vector for each text.
    pub async fn sparse(&self, texts: &[String], ask: &OperationRequest) -> Result<SparseVectors, InferError> {
        let found = self.find_for(Task::Sparse, ask)?;
        let (tensors, ledger) = self.run_texts(&found, texts, None::<&[String]>, ask).await?;
        let [indices, values] = tensors.as_slice() else { return Err(found.fault("gave no vectors".to_owned())) };
        let (numbers, width) = found.numbers(values)?;
        let places = indices.values::<i64>().map_err(|error| found.fault(format!("gave a result that {error}")))?;
        if places.len() != numbers.len() {
            return Err(found.fault(format!("gave {} indices for {} values", places.len(), numbers.len())));
        }
        let row = |row: usize| {
            let range = row * width..(row + 1) * width;
            let entries = places[range.clone()].iter().zip(&numbers[range]);
            // Index -1 fills up a row.
            entries.filter_map(|(&index, &value)| Some((u64::try_from(index).ok()?, value))).collect()
        };
        let rows = (0..texts.len()).map(row).collect();
        Ok(SparseVectors { rows, ledger })
    }

    /// Vectors of the tokens of each text.
    pub async fn multi_vector(&self, texts: &[String], ask: &OperationRequest) -> Result<TokenVectors, InferError> {
        let found = self.find_for(Task::MultiVector, ask)?;
        let (tensors, ledger) = self.run_texts(&found, texts, None::<&[String]>, ask).await?;
        let [vectors, mask] = tensors.as_slice() else { return Err(found.fault("gave no vectors".to_owned())) };
        let (numbers, per_row) = found.numbers(vectors)?;
        let mask = mask.values::<i64>().map_err(|error| found.fault(format!("gave a result that {error}")))?;
        let length = mask.len().checked_div(texts.len()).unwrap_or_default();
        let width = per_row.checked_div(length).unwrap_or_default();
        if width * length != per_row {
            return Err(found.fault(format!("gave a mask of {length} tokens for {per_row} numbers a text")));
        }
        found.check_width(width, ask)?;
        let numbers = match ask.options.normalize {
            Some(true) => Cow::Owned(scaled(&numbers, width)),
            Some(false) | None => numbers,
        };
        let row = |row: usize| {
            let kept = (0..length).filter(|token| mask[row * length + token] != 0);
            kept.flat_map(|token| {
                let start = row * per_row + token * width;
                numbers[start..start + width].iter().copied()
            })
            .collect()
        };
        Ok(TokenVectors { rows: (0..texts.len()).map(row).collect(), model: found.pipeline.name, width, ledger })
    }
}

/// Vectors of length 1 where a model gives others: its postprocessing need not have a step for that.
fn normalized(tensor: Tensor, width: usize) -> Result<Tensor, InferError> {
    let numbers = tensor.values::<f32>()?;
    if numbers.chunks_exact(width.max(1)).all(|row| (length(row) - 1.0).abs() < 1e-3) {
        return Ok(tensor);
    }
    Ok(Tensor::from_values(tensor.name(), tensor.shape().clone(), scaled(&numbers, width))?)
}

/// Vectors of this width, which come one after the other, with length 1; those without length stay as they are.
fn scaled(numbers: &[f32], width: usize) -> Vec<f32> {
    let mut scaled = numbers.to_vec();
    for row in scaled.chunks_exact_mut(width.max(1)) {
        let length = length(row);
        if length > 0.0 {
            row.iter_mut().for_each(|n| *n = (f64::from(*n) / length) as f32);
        }
    }
    scaled
}

fn length(row: &[f32]) -> f64 {
    row.iter().map(|&n| f64::from(n) * f64::from(n)).sum::<f64>().sqrt()
}

// === impl Found ===

impl Found {
    /// The vectors of an answer.
    fn vectors(self, answered: Answered, ask: &OperationRequest) -> Result<Vectors, InferError> {
        let Answered { tensors, windows, ledger } = answered;
        let tensor = tensors.into_iter().next().ok_or_else(|| self.fault("gave no vectors".to_owned()))?;
        let (_, width) = self.numbers(&tensor)?;
        self.check_width(width, ask)?;
        let tensor = match ask.options.normalize {
            Some(true) => normalized(tensor, width)?,
            Some(false) | None => tensor,
        };
        Ok(Vectors { model: self.pipeline.name, width, tensor, windows, ledger })
    }

    /// An error if the request asks for vectors of another width.
    fn check_width(&self, width: usize, ask: &OperationRequest) -> Result<(), InferError> {
        match ask.options.dimensions {
            Some(dimensions) if dimensions != width as u64 => Err(InferError::invalid_arg(format!(
                "'dimensions' is {dimensions}, but model '{}' gives vectors of {width} numbers and does not shorten them",
                self.pipeline.name
            ))),
            _ => Ok(()),
        }
    }
}

// === impl Vectors ===

impl Vectors {
    /// The numbers of all vectors, one after the other.
    pub fn numbers(&self) -> Cow<'_, [f32]> {
        self.tensor.values().expect("checked when it was made")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_get_length_1_unless_they_have_it() {
        let tensor = |values: Vec<f32>| Tensor::from_values("e", [values.len() as i64 / 2, 2], values).unwrap();
        let scaled = normalized(tensor(vec![3.0, 4.0, 0.0, 0.0, 0.0, 1.0]), 2).unwrap();
        assert_eq!(*scaled.values::<f32>().unwrap(), [0.6, 0.8, 0.0, 0.0, 0.0, 1.0]);
        let unit = tensor(vec![0.6, 0.8]);
        assert_eq!(normalized(unit.clone(), 2).unwrap(), unit);
    }
}
