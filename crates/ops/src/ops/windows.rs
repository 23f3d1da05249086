//! The rows of texts that are longer than a row may be: the input `windows` `[rows, 5]` of a tokenizer.
//!
//! By row it has the number of the row's text, the first character of the row and the one after its last, and the first character that the row
//! owns and the one after the last. The rows of a text come one after the other, and the characters that they own are the whole text.

use std::ops::Range;

use trireme_inference::{InferError, Tensor};

use crate::Value;

/// A row, and the characters of its text whose tokens are taken from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) row: usize,
    pub(super) characters: Range<usize>,
}

/// By text, its rows. Without `windows` each text has one row.
pub(super) fn owned(windows: Option<&Tensor>, rows: usize, texts: usize) -> Result<Vec<Vec<Owned>>, InferError> {
    let Some(windows) = windows else {
        if texts != rows {
            return Err(InferError::invalid_arg(format!("got {texts} texts, expected one for each of {rows} rows")));
        }
        return Ok((0..rows).map(|row| vec![Owned { row, characters: 0..usize::MAX }]).collect());
    };
    let numbers = match Value::from_tensor(windows)? {
        Value::Ints(numbers) if numbers.shape() == [rows, 5] => numbers.iter().copied().collect::<Vec<i64>>(),
        _ => {
            return Err(InferError::invalid_arg(format!(
                "tensor '{}' is {} of shape {}, expected INT64 or INT32 of shape [{rows},5]",
                windows.name(),
                windows.datatype(),
                windows.shape()
            )));
        }
    };
    let mut by_text: Vec<Vec<Owned>> = vec![Vec::new(); texts];
    for (row, window) in numbers.chunks_exact(5).enumerate() {
        let fault = || {
            InferError::invalid_arg(format!(
                "tensor '{}' has {window:?} for row {row}, expected the number of one of {texts} texts, and characters of it, those that the row \
                 owns behind those of the rows before",
                windows.name()
            ))
        };
        let number = |at: usize| usize::try_from(window[at]).map_err(|_| fault());
        let (text, begin, end) = (number(0)?, number(3)?, number(4)?);
        let own = by_text.get_mut(text).ok_or_else(fault)?;
        let next = own.last().map_or(0, |before: &Owned| before.characters.end);
        if begin != next || end < begin {
            return Err(fault());
        }
        own.push(Owned { row, characters: begin..end });
    }
    for (text, own) in by_text.iter_mut().enumerate() {
        match own.last_mut() {
            // A token behind the last character is of the last row.
            Some(last) => last.characters.end = usize::MAX,
            None => {
                return Err(InferError::invalid_arg(format!("tensor '{}' has no row for text {text}", windows.name())));
            }
        }
    }
    Ok(by_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row, and the characters that it owns.
    type Told = (usize, usize, usize);

    fn read(numbers: &[i64], texts: usize) -> Result<Vec<Vec<Told>>, String> {
        let rows = numbers.len() / 5;
        let tensor = Tensor::from_values("windows", [rows as i64, 5], numbers.to_vec()).unwrap();
        let told =
            |rows: Vec<Owned>| rows.iter().map(|own| (own.row, own.characters.start, own.characters.end)).collect();
        let found = owned(Some(&tensor), rows, texts).map_err(|error| error.message)?;
        Ok(found.into_iter().map(told).collect())
    }

    #[test]
    fn each_text_has_its_rows() {
        let found = read(&[0, 0, 9, 0, 7, 0, 5, 12, 7, 12, 1, 0, 0, 0, 0], 2);
        assert_eq!(found, Ok(vec![vec![(0, 0, 7), (1, 7, usize::MAX)], vec![(2, 0, usize::MAX)]]));
        assert_eq!(owned(None, 2, 2).unwrap().len(), 2);
        assert!(owned(None, 2, 1).unwrap_err().message.contains("got 1 texts, expected one for each of 2 rows"));
    }

    #[test]
    fn rows_that_do_not_lie_side_by_side_are_refused() {
        let refused = |numbers: &[i64], texts| read(numbers, texts).unwrap_err();
        assert!(refused(&[1, 0, 9, 0, 7], 1).contains("for row 0, expected the number of one of 1 texts"));
        assert!(refused(&[0, 0, 9, -1, 7], 1).contains("for row 0"));
        assert!(refused(&[0, 0, 9, 0, 7, 0, 5, 12, 6, 12], 1).contains("for row 1"));
        assert_eq!(refused(&[0, 0, 9, 0, 9], 2), "tensor 'windows' has no row for text 1");
        let tensor = Tensor::from_values("windows", [1, 4], vec![0i64; 4]).unwrap();
        let wrong = owned(Some(&tensor), 1, 1).unwrap_err().message;
        assert_eq!(wrong, "tensor 'windows' is INT64 of shape [1,4], expected INT64 or INT32 of shape [1,5]");
    }
}
