//! The rows of texts that are longer than a row may be: the input `windows` `[rows, 6]` of a tokenizer.
//!
//! By row it has the number of the row's text, the first character of the row and the one after its last, the first character that the row
//! owns and the one after the last, and how many tokens the row has. The rows of a text come one after the other, and the characters that they own are the whole text.

use std::ops::Range;

use trireme_inference::{InferError, Tensor};

use crate::Value;

/// A row, the characters of its text whose tokens are taken from it, and how many tokens it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) row: usize,
    pub(super) characters: Range<usize>,
    pub(super) tokens: usize,
}

/// By text, its rows. Without `windows` each of so many texts has one row.
pub(super) fn owned_of(windows: Option<&Tensor>, rows: usize, texts: usize) -> Result<Vec<Vec<Owned>>, InferError> {
    let Some(windows) = windows else {
        if texts != rows {
            return Err(InferError::invalid_arg(format!("got {texts} texts, expected one for each of {rows} rows")));
        }
        return Ok((0..rows).map(|row| vec![Owned { row, characters: 0..usize::MAX, tokens: 0 }]).collect());
    };
    let by_text = owned(windows, rows)?;
    match by_text.len() == texts {
        true => Ok(by_text),
        false => Err(InferError::invalid_arg(format!(
            "tensor '{}' has rows of {} texts, expected those of {texts}",
            windows.name(),
            by_text.len()
        ))),
    }
}

/// By text, its rows.
pub(super) fn owned(windows: &Tensor, rows: usize) -> Result<Vec<Vec<Owned>>, InferError> {
    let numbers = match Value::from_tensor(windows)? {
        Value::Ints(numbers) if numbers.shape() == [rows, 6] => numbers.iter().copied().collect::<Vec<i64>>(),
        _ => {
            return Err(InferError::invalid_arg(format!(
                "tensor '{}' is {} of shape {}, expected INT64 or INT32 of shape [{rows},6]",
                windows.name(),
                windows.datatype(),
                windows.shape()
            )));
        }
    };
    let mut by_text = Vec::<Vec<Owned>>::new();
    for (row, window) in numbers.chunks_exact(6).enumerate() {
        let fault = || {
            InferError::invalid_arg(format!(
                "tensor '{}' has {window:?} for row {row}, expected the number of its text, that of the row before or the next one, and characters \
                 of it, those that the row owns behind those of the rows before",
                windows.name()
            ))
        };
        let number = |at: usize| usize::try_from(window[at]).map_err(|_| fault());
        let (text, begin, end) = (number(0)?, number(3)?, number(4)?);
        if text == by_text.len() {
            by_text.push(Vec::new());
        }
        let is_last = text + 1 == by_text.len();
        let own = by_text.last_mut().filter(|_| is_last).ok_or_else(fault)?;
        let next = own.last().map_or(0, |before: &Owned| before.characters.end);
        if begin != next || end < begin {
            return Err(fault());
        }
        own.push(Owned { row, characters: begin..end, tokens: number(5)? });
    }
    // A token behind the last character is of the last row.
    by_text.iter_mut().filter_map(|own| own.last_mut()).for_each(|last| last.characters.end = usize::MAX);
    Ok(by_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row, and the characters that it owns.
    type Told = (usize, usize, usize);

    fn read(numbers: &[i64], texts: usize) -> Result<Vec<Vec<Told>>, String> {
        let rows = numbers.len() / 6;
        let tensor = Tensor::from_values("windows", [rows as i64, 6], numbers.to_vec()).unwrap();
        let told =
            |rows: Vec<Owned>| rows.iter().map(|own| (own.row, own.characters.start, own.characters.end)).collect();
        let found = owned_of(Some(&tensor), rows, texts).map_err(|error| error.message)?;
        Ok(found.into_iter().map(told).collect())
    }

    #[test]
    fn each_text_has_its_rows() {
        let found = read(&[0, 0, 9, 0, 7, 3, 0, 5, 12, 7, 12, 4, 1, 0, 0, 0, 0, 2], 2);
        assert_eq!(found, Ok(vec![vec![(0, 0, 7), (1, 7, usize::MAX)], vec![(2, 0, usize::MAX)]]));
        assert_eq!(owned_of(None, 2, 2).unwrap().len(), 2);
        assert!(owned_of(None, 2, 1).unwrap_err().message.contains("got 1 texts, expected one for each of 2 rows"));
    }

    #[test]
    fn rows_that_do_not_lie_side_by_side_are_refused() {
        let refused = |numbers: &[i64], texts| read(numbers, texts).unwrap_err();
        assert!(refused(&[1, 0, 9, 0, 7, 3], 1).contains("for row 0, expected the number of its text"));
        assert!(refused(&[0, 0, 9, -1, 7, 3], 1).contains("for row 0"));
        assert!(refused(&[0, 0, 9, 0, 7, 3, 0, 5, 12, 6, 12, 3], 1).contains("for row 1"));
        assert_eq!(refused(&[0, 0, 9, 0, 9, 3], 2), "tensor 'windows' has rows of 1 texts, expected those of 2");
        let tensor = Tensor::from_values("windows", [1, 4], vec![0i64; 4]).unwrap();
        let wrong = owned(&tensor, 1).unwrap_err().message;
        assert_eq!(wrong, "tensor 'windows' is INT64 of shape [1,4], expected INT64 or INT32 of shape [1,6]");
    }
}
