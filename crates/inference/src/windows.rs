//! Windows: rows of one text that is longer than a row may be. A tensor says for each row which text it is of, and which characters.

use crate::{InferError, Tensor};

/// The tensor that says for each row which window it is: INT64 or INT32 of shape `[rows, 6]`. By row it has the number of the text, the first
/// character of the row and the one after its last, the first character that the row owns and the one after the last, and the row's tokens.
/// Characters are Unicode code points. The rows of a text come one after the other, and the texts in their order.
pub const WINDOWS: &str = "windows";

/// The value of a request's parameter `fold` for an answer that keeps the row of each window, beside the tensor [`WINDOWS`].
pub const KEEP: &str = "keep";

/// The numbers of a row of the tensor.
const WIDTH: usize = 6;

/// A row of an answer, as a window of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The number of the text in the request.
    pub text: usize,
    /// The number of the window in the text.
    pub number: usize,
    /// The first character of the text that the window stands for.
    pub start: u64,
    /// The character after the last one.
    pub end: u64,
}

// === impl Window ===

impl Window {
    /// The windows that the tensor [`WINDOWS`] describes, by row.
    ///
    /// # Errors
    /// The tensor has another datatype or shape, or its texts are not in their order.
    ///
    /// ```
    /// use trireme_inference::{Tensor, WINDOWS, Window};
    ///
    /// let rows = vec![0i64, 0, 9, 0, 7, 3, 0, 5, 12, 7, 12, 4, 1, 0, 3, 0, 3, 2];
    /// let windows = Window::read(&Tensor::from_values(WINDOWS, [3, 6], rows)?)?;
    /// assert_eq!(windows[1], Window { text: 0, number: 1, start: 5, end: 12 });
    /// assert_eq!(windows[2], Window { text: 1, number: 0, start: 0, end: 3 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(tensor: &Tensor) -> Result<Vec<Window>, InferError> {
        let fault = |what: String| InferError::internal(format!("tensor '{}' {what}", tensor.name()));
        let found = || {
            format!("is {} of shape {}, expected INT64 or INT32 of shape [rows,6]", tensor.datatype(), tensor.shape())
        };
        let numbers =
            whole_numbers(tensor).filter(|_| matches!(**tensor.shape(), [_, 6])).ok_or_else(|| fault(found()))?;
        let mut windows = Vec::<Window>::with_capacity(numbers.len() / WIDTH);
        for (row, of) in numbers.chunks_exact(WIDTH).enumerate() {
            let number = |at: usize| u64::try_from(of[at]).ok();
            let (text, start, end) = (number(0), number(1), number(2));
            let before = windows.last().map(|before| (before.text, before.number));
            let place = match (text.and_then(|text| usize::try_from(text).ok()), before) {
                (Some(0), None) => Some((0, 0)),
                (Some(text), Some((same, number))) if text == same => Some((text, number + 1)),
                (Some(text), Some((last, _))) if text == last + 1 => Some((text, 0)),
                _ => None,
            };
            let window = place.zip(start.zip(end)).filter(|(_, (start, end))| start <= end);
            let ((text, number), (start, end)) = window.ok_or_else(|| {
                fault(format!(
                    "has {of:?} for row {row}, expected the text of the row before or the next one, and its characters"
                ))
            })?;
            windows.push(Window { text, number, start, end });
        }
        Ok(windows)
    }

    /// The tensor of [`Window::read`] with other numbers of texts, by row.
    ///
    /// # Errors
    /// As for [`Window::read`].
    pub fn renumbered(tensor: &Tensor, texts: &[usize]) -> Result<Tensor, InferError> {
        let numbers = whole_numbers(tensor).filter(|numbers| numbers.len() == WIDTH * texts.len());
        let mut numbers = numbers.ok_or_else(|| {
            InferError::internal(format!(
                "tensor '{}' is {} of shape {}, expected INT64 or INT32 of shape [{},{WIDTH}]",
                tensor.name(),
                tensor.datatype(),
                tensor.shape(),
                texts.len()
            ))
        })?;
        numbers.chunks_exact_mut(WIDTH).zip(texts).for_each(|(of, &text)| of[0] = text as i64);
        Ok(Tensor::from_values(tensor.name(), tensor.shape().clone(), numbers)?)
    }
}

/// The numbers of a tensor of whole numbers; `None` for another one.
fn whole_numbers(tensor: &Tensor) -> Option<Vec<i64>> {
    match tensor.values::<i64>() {
        Ok(numbers) => Some(numbers.into_owned()),
        Err(_) => Some(tensor.values::<i32>().ok()?.iter().map(|&number| i64::from(number)).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(numbers: &[i64]) -> Result<Vec<Window>, String> {
        let rows = numbers.len() as i64 / 6;
        Window::read(&Tensor::from_values(WINDOWS, [rows, 6], numbers.to_vec()).unwrap()).map_err(|error| error.message)
    }

    #[test]
    fn rows_that_are_no_windows_of_texts_in_their_order_are_refused() {
        assert_eq!(read(&[]), Ok(Vec::new()));
        for numbers in [[1, 0, 9, 0, 9, 3], [-1, 0, 9, 0, 9, 3], [0, 3, 2, 0, 9, 3], [0, -1, 2, 0, 9, 3]] {
            assert!(
                read(&numbers).unwrap_err().contains("for row 0, expected the text of the row before or the next one")
            );
        }
        assert!(read(&[0, 0, 9, 0, 9, 3, 2, 0, 9, 0, 9, 3]).unwrap_err().contains("for row 1"));
        let narrow = Tensor::from_values(WINDOWS, [1, 4], vec![0i64; 4]).unwrap();
        assert_eq!(
            Window::read(&narrow).unwrap_err().message,
            "tensor 'windows' is INT64 of shape [1,4], expected INT64 or INT32 of shape [rows,6]"
        );
    }

    #[test]
    fn texts_get_other_numbers() {
        let tensor = Tensor::from_values(WINDOWS, [2, 6], vec![0i32, 0, 9, 0, 9, 3, 1, 0, 4, 0, 4, 2]).unwrap();
        let moved = Window::renumbered(&tensor, &[7, 8]).unwrap();
        assert_eq!(*moved.values::<i64>().unwrap(), [7, 0, 9, 0, 9, 3, 8, 0, 4, 0, 4, 2]);
        assert!(
            Window::renumbered(&tensor, &[7]).unwrap_err().message.contains("expected INT64 or INT32 of shape [1,6]")
        );
    }
}
