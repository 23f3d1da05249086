//! A request of many rows as several of few, and their answers as one. Pure.
//!
//! Who may do that is the model's configuration's decision (`max_rows_per_message`): rows are the first dimension of every
//! tensor, and no row's result depends on another row.

use trireme_inference::{InferError, Shape, Tensor};

/// Tensors cut into parts of at most `max_rows` rows, and of at most `max_bytes` bytes where more than one row is in a part.
/// `None` when one part holds everything, or the tensors do not agree on the number of rows. Bytes are shared.
pub fn split(tensors: &[Tensor], max_rows: usize, max_bytes: usize) -> Option<Vec<Vec<Tensor>>> {
    let rows = tensors.first().and_then(row_count)?;
    if tensors.iter().any(|tensor| row_count(tensor) != Some(rows)) {
        return None;
    }
    let starts: Vec<Vec<usize>> = tensors.iter().map(|tensor| row_starts(tensor, rows)).collect::<Option<_>>()?;
    let bytes = |from: usize, to: usize| starts.iter().map(|starts| starts[to] - starts[from]).sum::<usize>();
    let (mut parts, mut from) = (Vec::new(), 0);
    while from < rows {
        let mut to = from + 1;
        while to < rows && to - from < max_rows && bytes(from, to + 1) <= max_bytes {
            to += 1;
        }
        parts.push((from, to));
        from = to;
    }
    if parts.len() < 2 {
        return None;
    }
    let cut = |tensor: &Tensor, starts: &[usize], (from, to): (usize, usize)| {
        let data = tensor.data().slice(starts[from]..starts[to]);
        Tensor::new(tensor.name(), tensor.datatype(), with_rows(tensor.shape(), to - from), data).ok()
    };
    let part = |range| tensors.iter().zip(&starts).map(|(tensor, starts)| cut(tensor, starts, range)).collect();
    parts.into_iter().map(part).collect()
}

/// The outputs of all parts, in their order, as those of one request.
pub fn join(parts: Vec<Vec<Tensor>>) -> Result<Vec<Tensor>, InferError> {
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    first.iter().map(|tensor| join_output(tensor, &parts)).collect()
}

fn join_output(first: &Tensor, parts: &[Vec<Tensor>]) -> Result<Tensor, InferError> {
    let name = first.name();
    let (mut rows, mut data) = (0, Vec::with_capacity(first.data().len() * parts.len()));
    for (number, part) in parts.iter().enumerate() {
        let tensor = part.iter().find(|tensor| tensor.name() == name).ok_or_else(|| {
            InferError::internal(format!("output '{name}' is missing in part {number} of a request sent in parts"))
        })?;
        let alike = tensor.datatype() == first.datatype() && tensor.shape().get(1..) == first.shape().get(1..);
        let Some(count) = row_count(tensor).filter(|_| alike) else {
            return Err(InferError::internal(format!(
                "output '{name}' of a request sent in parts is {} of shape {} in part 0 and {} of shape {} in part \
                 {number}: parameter 'max_rows_per_message' needs outputs whose shape does not depend on other rows",
                first.datatype(),
                first.shape(),
                tensor.datatype(),
                tensor.shape()
            )));
        };
        rows += count;
        data.extend_from_slice(tensor.data());
    }
    let joined = Tensor::new(name, first.datatype(), with_rows(first.shape(), rows), data.into());
    joined.map_err(|error| InferError::internal(format!("parts of a request do not join: {error}")))
}

fn row_count(tensor: &Tensor) -> Option<usize> {
    tensor.shape().first().and_then(|&rows| usize::try_from(rows).ok())
}

/// Where each row's bytes begin, and where the last one's end.
fn row_starts(tensor: &Tensor, rows: usize) -> Option<Vec<usize>> {
    let end = tensor.data().len();
    if rows == 0 {
        return None;
    }
    let Ok(elements) = tensor.bytes_elements() else {
        return Some((0..=rows).map(|row| row * (end / rows)).collect());
    };
    let per_row = usize::try_from(tensor.element_count()).ok()? / rows;
    if per_row == 0 {
        return Some(vec![0; rows + 1]);
    }
    let mut starts = Vec::with_capacity(rows + 1);
    let mut offset = 0;
    for (index, element) in elements.enumerate() {
        if index % per_row == 0 {
            starts.push(offset);
        }
        offset += element.len() + 4;
    }
    starts.push(end);
    Some(starts)
}

fn with_rows(shape: &Shape, rows: usize) -> Shape {
    let rest: Shape = shape[1..].into();
    rest.prepend(rows as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_LIMIT: usize = usize::MAX;

    fn tensors(rows: i64) -> Vec<Tensor> {
        let numbers: Vec<f32> = (0..rows * 2).map(|n| n as f32).collect();
        let texts: Vec<String> = (0..rows).map(|n| "x".repeat(n as usize)).collect();
        vec![
            Tensor::from_values("numbers", [rows, 2], numbers).unwrap(),
            Tensor::from_bytes_elements("texts", [rows], &texts).unwrap(),
        ]
    }

    #[test]
    fn what_was_split_is_joined_to_the_same() {
        for rows in 1..20 {
            let whole = tensors(rows);
            for max_rows in 1..=rows as usize + 1 {
                let Some(parts) = split(&whole, max_rows, NO_LIMIT) else {
                    assert!(max_rows >= rows as usize, "{rows} rows in parts of {max_rows}");
                    continue;
                };
                assert_eq!(parts.len(), (rows as usize).div_ceil(max_rows));
                assert!(parts.iter().all(|part| part.iter().all(|t| row_count(t).unwrap() <= max_rows)));
                assert_eq!(join(parts).unwrap(), whole);
            }
        }
    }

    #[test]
    fn parts_are_no_larger_than_allowed_where_rows_are_not() {
        let whole = tensors(10);
        // A row is 8 bytes of numbers, 4 of length prefix, and as many letters as its number.
        let parts = split(&whole, 100, 30).unwrap();
        let sizes: Vec<usize> = parts.iter().map(|part| part.iter().map(|t| t.data().len()).sum()).collect();
        assert_eq!(sizes, [25, 29, 16, 17, 18, 19, 20, 21], "0+1, 2+3, then one by one");
        assert_eq!(join(parts).unwrap(), whole);
        assert_eq!(split(&whole, 100, 1).unwrap().len(), 10, "a row is never cut");
    }

    #[test]
    fn rows_that_do_not_agree_are_not_split() {
        let mut tensors = tensors(4);
        tensors.push(Tensor::from_values("scalar", [], vec![1f32]).unwrap());
        assert!(split(&tensors, 1, NO_LIMIT).is_none());
        assert!(split(&[], 1, NO_LIMIT).is_none());
        let nothing = Tensor::from_values::<f32>("none", [0, 4], vec![]).unwrap();
        assert!(split(&[nothing], 1, NO_LIMIT).is_none());
        let empty_rows = Tensor::from_bytes_elements::<&str>("empty", [3, 0], &[]).unwrap();
        let parts = split(std::slice::from_ref(&empty_rows), 1, NO_LIMIT).unwrap();
        assert_eq!(join(parts).unwrap(), [empty_rows]);
    }

    #[test]
    fn outputs_that_do_not_fit_together_are_named() {
        let part = |shape: [i64; 2]| {
            vec![Tensor::from_values("y", shape, vec![0f32; (shape[0] * shape[1]) as usize]).unwrap()]
        };
        let error = join(vec![part([2, 3]), part([2, 4])]).unwrap_err().message;
        assert!(
            error.starts_with(
                "output 'y' of a request sent in parts is FP32 of shape [2,3] in part 0 and FP32 of shape [2,4]"
            ),
            "{error}"
        );
        let error = join(vec![part([2, 3]), vec![]]).unwrap_err().message;
        assert_eq!(error, "output 'y' is missing in part 1 of a request sent in parts");
    }
}
