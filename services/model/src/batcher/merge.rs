//! Many requests' tensors as one batch, and a batch's outputs as many requests' again.
//!
//! The batch dimension is the first one. Inputs are copied once, into one buffer; outputs are slices of the batch's
//! bytes, not copies. A BYTES tensor's elements carry their own lengths, so joining is the same for it, and splitting
//! walks the elements.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use trireme_inference::{BytesElements, InferError, Shape, Tensor};

/// Joins the inputs of requests along the batch dimension: one tensor per input, in the order of the first request. A
/// single request's inputs are passed through as they are. Errors when the requests' inputs differ in more than their
/// number of rows.
pub fn join<'a>(requests: &[&'a [Tensor]]) -> Result<Cow<'a, [Tensor]>, InferError> {
    let [first, rest @ ..] = requests else { return Ok(Cow::Borrowed(&[])) };
    if rest.is_empty() {
        return Ok(Cow::Borrowed(first));
    }
    if let Some(other) = rest.iter().find(|other| other.len() != first.len()) {
        let (want, have) = (first.len(), other.len());
        return Err(InferError::internal(format!("cannot batch a request of {have} inputs with one of {want}")));
    }
    first.iter().map(|tensor| join_one(tensor, rest)).collect::<Result<Vec<_>, _>>().map(Cow::Owned)
}

fn join_one(first: &Tensor, rest: &[&[Tensor]]) -> Result<Tensor, InferError> {
    let name = first.name();
    let mut parts = vec![first];
    for inputs in rest {
        let part = inputs.iter().find(|tensor| tensor.name() == name);
        let part = part.filter(|p| p.datatype() == first.datatype() && p.shape().get(1..) == first.shape().get(1..));
        parts.push(part.ok_or_else(|| {
            let (datatype, shape) = (first.datatype(), first.shape());
            InferError::internal(format!("cannot batch requests: not all have input '{name}' of {datatype} {shape}"))
        })?);
    }
    let mut rows = 0i64;
    let mut data = BytesMut::with_capacity(parts.iter().map(|part| part.data().len()).sum());
    for part in &parts {
        let part_rows = part.shape().first().copied().ok_or_else(|| no_batch_dimension(name))?;
        rows = rows.saturating_add(part_rows);
        data.extend_from_slice(part.data());
    }
    let mut shape = first.shape().to_vec();
    shape[0] = rows;
    Ok(Tensor::new(name, first.datatype(), shape, data.freeze())?)
}

/// Splits one output of a batch into the requests' parts, `rows[i]` rows each, sharing its bytes. An Internal error when
/// its first dimension is not the rows of the batch.
pub fn split(output: Tensor, rows: &[u32]) -> Result<Vec<Tensor>, InferError> {
    let total: u64 = rows.iter().map(|&r| u64::from(r)).sum();
    let shape = output.shape();
    let [first, inner @ ..] = &shape[..] else { return Err(no_batch_dimension(output.name())) };
    if *first as u64 != total {
        return Err(InferError::internal(format!(
            "output '{}' has shape {shape}, but its first dimension has to be the batch size {total}",
            output.name()
        )));
    }
    if rows.len() == 1 {
        return Ok(vec![output]);
    }
    let inner_count = Shape::from(inner).element_count().unwrap_or(0);
    let mut rest = output.data().clone();
    let mut parts = Vec::with_capacity(rows.len());
    for &part_rows in rows {
        let elements = u64::from(part_rows) * inner_count;
        let data = match output.datatype().element_size() {
            Some(size) => rest.split_to((elements as usize * size).min(rest.len())),
            None => split_elements(&mut rest, elements),
        };
        let mut shape = shape.to_vec();
        shape[0] = i64::from(part_rows);
        let part = Tensor::new(output.name(), output.datatype(), shape, data);
        parts.push(part.map_err(|error| InferError::internal(error.to_string()))?);
    }
    Ok(parts)
}

/// Cuts `count` length-prefixed elements off the front.
fn split_elements(rest: &mut Bytes, count: u64) -> Bytes {
    let size =
        BytesElements::new(rest).map_while(Result::ok).take(count as usize).map(|element| 4 + element.len()).sum();
    rest.split_to(size)
}

/// Rows that a request brings: the first dimension of its inputs, 1 when it has none. Inputs that disagree are refused:
/// joined with a neighbour's, they would mix up whose row is whose.
pub fn rows(model: &str, inputs: &[Tensor]) -> Result<u32, InferError> {
    let mut rows = None;
    for input in inputs {
        let (name, shape) = (input.name(), input.shape());
        let refused = |what: &str| InferError::invalid_arg(format!("input '{name}' {what} for '{model}'"));
        let first = *shape.first().ok_or_else(|| refused("has no shape but model requires batch dimension"))?;
        if *rows.get_or_insert(first) != first {
            return Err(refused("batch size does not match other inputs"));
        }
    }
    u32::try_from(rows.unwrap_or(1)).map_err(|_| InferError::invalid_arg(format!("too many rows for '{model}'")))
}

fn no_batch_dimension(name: &str) -> InferError {
    InferError::internal(format!("tensor '{name}' has no batch dimension"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trireme_inference::{DataType, ErrorCode};

    use super::*;

    fn ints(name: &str, shape: &[i64], values: Vec<i64>) -> Tensor {
        Tensor::from_values(name, shape, values).unwrap()
    }

    #[test]
    fn a_single_request_is_not_copied() {
        let inputs = [ints("x", &[1, 2], vec![1, 2])];
        let joined = join(&[&inputs]).unwrap();
        assert_eq!(joined[0].data().as_ptr(), inputs[0].data().as_ptr());
        assert!(join(&[]).unwrap().is_empty());
    }

    #[test]
    fn inputs_are_matched_by_name() {
        let a = [ints("x", &[1, 2], vec![1, 2]), ints("y", &[1], vec![3])];
        let b = [ints("y", &[2], vec![6, 7]), ints("x", &[2, 2], vec![4, 5, 6, 7])];
        let joined = join(&[&a, &b]).unwrap();
        assert_eq!(joined[0], ints("x", &[3, 2], vec![1, 2, 4, 5, 6, 7]));
        assert_eq!(joined[1], ints("y", &[3], vec![3, 6, 7]));
    }

    #[test]
    fn differing_requests_are_refused() {
        let a = [ints("x", &[1, 2], vec![1, 2])];
        for b in [ints("y", &[1, 2], vec![1, 2]), ints("x", &[1, 1], vec![1]), ints("x", &[], vec![1])] {
            let error = join(&[&a, &[b]]).unwrap_err();
            assert_eq!(error.message, "cannot batch requests: not all have input 'x' of INT64 [1,2]");
        }
        assert!(join(&[&a, &[]]).unwrap_err().message.contains("a request of 0 inputs with one of 1"));
        let scalar = [ints("x", &[], vec![1])];
        assert!(join(&[&scalar, &scalar]).unwrap_err().message.contains("no batch dimension"));
    }

    #[test]
    fn splitting_shares_the_bytes() {
        let parts = split(ints("y", &[3, 2], vec![1, 2, 3, 4, 5, 6]), &[1, 2]).unwrap();
        assert_eq!(parts, [ints("y", &[1, 2], vec![1, 2]), ints("y", &[2, 2], vec![3, 4, 5, 6])]);
        assert_eq!(parts[0].data().as_ptr().wrapping_add(16), parts[1].data().as_ptr());
    }

    #[test]
    fn an_output_without_the_batch_is_an_internal_error() {
        let error = split(ints("y", &[2, 2], vec![1, 2, 3, 4]), &[1, 2]).unwrap_err();
        assert_eq!(error.code, ErrorCode::Internal);
        assert_eq!(error.message, "output 'y' has shape [2,2], but its first dimension has to be the batch size 3");
        assert_eq!(split(ints("y", &[], vec![1]), &[1]).unwrap_err().message, "tensor 'y' has no batch dimension");
    }

    #[test]
    fn inputs_that_disagree_on_rows_are_refused() {
        let one_and_two = [ints("x", &[1], vec![1]), ints("y", &[2], vec![1, 2])];
        let message = |inputs: &[Tensor]| rows("m", inputs).unwrap_err().message;
        assert_eq!(message(&one_and_two), "input 'y' batch size does not match other inputs for 'm'");
        let scalar = [ints("x", &[], vec![1])];
        assert_eq!(message(&scalar), "input 'x' has no shape but model requires batch dimension for 'm'");
        assert_eq!(rows("m", &one_and_two[1..]).unwrap(), 2);
        assert_eq!(rows("m", &[]).unwrap(), 1);
    }

    #[test]
    fn zero_sizes_survive() {
        let empty = |rows: i64| Tensor::new("x", DataType::Fp32, [rows, 0], Bytes::new()).unwrap();
        let joined = join(&[&[empty(2)], &[empty(1)]]).unwrap().into_owned();
        assert_eq!(joined, [empty(3)]);
        assert_eq!(split(joined[0].clone(), &[2, 1]).unwrap(), [empty(2), empty(1)]);
        assert_eq!(split(empty(0), &[0, 0]).unwrap(), [empty(0), empty(0)]);
    }

    proptest! {
        #[test]
        fn strings_come_back_as_they_went(requests in proptest::collection::vec(
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..6), 0..5), 1..6)) {
            let tensors: Vec<_> = requests.iter()
                .map(|texts| [Tensor::from_bytes_elements("t", [texts.len() as i64, 1], texts).unwrap()]).collect();
            let joined = join(&tensors.iter().map(|t| &t[..]).collect::<Vec<_>>()).unwrap().into_owned();
            let rows: Vec<u32> = tensors.iter().map(|t| super::rows("m", t).unwrap()).collect();
            let parts = split(joined[0].clone(), &rows).unwrap();
            prop_assert_eq!(parts, tensors.into_iter().flatten().collect::<Vec<_>>());
        }
    }
}
