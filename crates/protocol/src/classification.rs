//! The classification extension: replaces an output's tensor by the labels of its highest scores.

use std::fmt::Display;

use trireme_inference::{DataType, InferError, Shape, Tensor};

/// The most scores of one row.
const MAX_SCORES: usize = 1_000_000;

/// The comparison and text form of a score.
trait Score: Copy + PartialOrd {
    fn show(self) -> String;
}

/// The `classes` highest scores of `tensor`, as BYTES `score:index` or `score:index:label`. The highest is first; of
/// equal scores the lowest index is first. With `batched`, each row (outermost dimension) is classified on its own.
/// `labels` are by index; an index with a missing or empty label is written without one. Shape `[rows,k]`, or `[k]`
/// without batching; k is the number of scores at most.
///
/// Errors if the datatype is one that Triton does not rank (BOOL, FP16, BF16, BYTES), or if there are too many scores.
pub fn classify(tensor: &Tensor, classes: u32, batched: bool, labels: &[String]) -> Result<Tensor, InferError> {
    match tensor.datatype() {
        DataType::Uint8 => rank(tensor, &tensor.values::<u8>()?, classes, batched, labels),
        DataType::Uint16 => rank(tensor, &tensor.values::<u16>()?, classes, batched, labels),
        DataType::Uint32 => rank(tensor, &tensor.values::<u32>()?, classes, batched, labels),
        DataType::Uint64 => rank(tensor, &tensor.values::<u64>()?, classes, batched, labels),
        DataType::Int8 => rank(tensor, &tensor.values::<i8>()?, classes, batched, labels),
        DataType::Int16 => rank(tensor, &tensor.values::<i16>()?, classes, batched, labels),
        DataType::Int32 => rank(tensor, &tensor.values::<i32>()?, classes, batched, labels),
        DataType::Int64 => rank(tensor, &tensor.values::<i64>()?, classes, batched, labels),
        DataType::Fp32 => rank(tensor, &tensor.values::<f32>()?, classes, batched, labels),
        DataType::Fp64 => rank(tensor, &tensor.values::<f64>()?, classes, batched, labels),
        unsupported @ (DataType::Bool | DataType::Fp16 | DataType::Bf16 | DataType::Bytes) => {
            Err(InferError::invalid_arg(format!(
                "class result not available for output due to unsupported type '{unsupported}'"
            )))
        }
    }
}

fn rank<T: Score>(
    tensor: &Tensor,
    scores: &[T],
    classes: u32,
    batched: bool,
    labels: &[String],
) -> Result<Tensor, InferError> {
    let rows = match batched {
        true => tensor.shape().first().map_or(1, |&rows| rows as usize),
        false => 1,
    };
    let width = scores.len().checked_div(rows).unwrap_or(0);
    if width > MAX_SCORES {
        return Err(InferError::invalid_arg("classification output tensor too large"));
    }
    let count = width.min(classes as usize);
    let mut found = Vec::with_capacity(rows * count);
    for row in scores.chunks_exact(width.max(1)) {
        let mut order: Vec<usize> = (0..width).collect();
        // NaN, which cannot be compared, comes last.
        let by_score = |&a: &usize, &b: &usize| {
            let comparable = |x: T| x.partial_cmp(&x).is_some();
            let descending = row[b].partial_cmp(&row[a]);
            descending.unwrap_or_else(|| comparable(row[b]).cmp(&comparable(row[a]))).then(a.cmp(&b))
        };
        if count < width {
            order.select_nth_unstable_by(count, by_score);
            order.truncate(count);
        }
        order.sort_unstable_by(by_score);
        found.extend(order.into_iter().map(|index| match labels.get(index) {
            Some(label) if !label.is_empty() => format!("{}:{index}:{label}", row[index].show()),
            _ => format!("{}:{index}", row[index].show()),
        }));
    }
    let shape = match batched {
        true => Shape::from([rows as i64, count as i64]),
        false => Shape::from([count as i64]),
    };
    Ok(Tensor::from_bytes_elements(tensor.name(), shape, &found)?)
}

// === impl Score ===

macro_rules! integer_scores {
    ($($type:ty),*) => {$(
        impl Score for $type {
            fn show(self) -> String {
                self.to_string()
            }
        }
    )*};
}

integer_scores!(u8, u16, u32, u64, i8, i16, i32, i64);

impl Score for f32 {
    fn show(self) -> String {
        show_float(self, self.is_nan())
    }
}

impl Score for f64 {
    fn show(self) -> String {
        show_float(self, self.is_nan())
    }
}

/// Formats a float as C's `%f` does.
fn show_float(score: impl Display, is_nan: bool) -> String {
    match is_nan {
        true => "nan".to_owned(),
        false => format!("{score:.6}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trireme_inference::Element;

    fn classified<T: Element>(shape: &[i64], scores: Vec<T>, classes: u32, batched: bool) -> (Vec<i64>, Vec<String>) {
        let labels = ["zero".to_owned(), String::new(), "two".to_owned()];
        let tensor = Tensor::from_values("scores", Shape::from(shape), scores).unwrap();
        let found = classify(&tensor, classes, batched, &labels).unwrap();
        let texts = found.bytes_elements().unwrap().map(|text| String::from_utf8(text.to_vec()).unwrap()).collect();
        (found.shape().to_vec(), texts)
    }

    #[test]
    fn the_highest_scores_of_each_row_are_named() {
        let scores = vec![0.5f32, 3.3, -1.0, 2.0, 2.0, 7.25, f32::NAN, 0.1];
        let (shape, texts) = classified(&[2, 4], scores, 3, true);
        assert_eq!(shape, [2, 3]);
        assert_eq!(
            texts,
            ["3.300000:1", "2.000000:3", "0.500000:0:zero", "7.250000:1", "2.000000:0:zero", "0.100000:3"]
        );
    }

    #[test]
    fn there_are_no_more_classes_than_scores() {
        assert_eq!(classified(&[2], vec![-3i64, 5], 10, false), (vec![2], vec!["5:1".into(), "-3:0:zero".into()]));
        assert_eq!(classified::<u8>(&[2, 0], vec![], 1, true), (vec![2, 0], vec![]));
        assert_eq!(classified::<u8>(&[0, 3], vec![], 1, true), (vec![0, 0], vec![]));
    }

    #[test]
    fn odd_floats_are_shown_as_c_shows_them() {
        let scores = vec![f64::NAN, f64::NEG_INFINITY, f64::INFINITY, 1e20];
        let texts = classified(&[4], scores, 4, false).1;
        assert_eq!(texts, ["inf:2:two", "100000000000000000000.000000:3", "-inf:1", "nan:0:zero"]);
    }

    #[test]
    fn what_cannot_be_ranked_is_refused() {
        for (datatype, size) in [("BOOL", 1), ("FP16", 2), ("BF16", 2), ("BYTES", 4)] {
            let tensor = Tensor::new("t", datatype.parse().unwrap(), [1], vec![0u8; size].into()).unwrap();
            let message = format!("class result not available for output due to unsupported type '{datatype}'");
            assert_eq!(classify(&tensor, 1, false, &[]).unwrap_err().message, message);
        }
        let large = Tensor::from_values("t", [1_000_001], vec![0u8; 1_000_001]).unwrap();
        assert_eq!(classify(&large, 1, false, &[]).unwrap_err().message, "classification output tensor too large");
    }
}
