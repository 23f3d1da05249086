//! Joins many requests' tensors to one batch, and splits a batch's outputs into the requests' outputs.
//!
//! The batch dimension is the first one. Inputs are copied once, into one buffer, and padded on the way. Outputs are
//! slices of the batch's bytes, copied only if removing the padding leaves gaps. The elements of a BYTES tensor have
//! their own lengths, so they are joined in the same way, but splitting has to go through the elements.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use trireme_inference::{BytesElements, InferError, Shape, Tensor};

use super::padding::PaddedInput;

/// How to cut a padded output back to the lengths of its requests.
#[derive(Clone, Copy, Debug)]
pub struct Cut<'a> {
    /// The dimension to cut, the batch dimension included; at least 1.
    pub axis: usize,
    /// Each request's length.
    pub lengths: &'a [u32],
    /// The length to which all were padded.
    pub padded: u32,
    /// Whether the padding is before the rows.
    pub left: bool,
}

/// Joins the inputs of requests along the batch dimension: one tensor per input, in the order of the first request. A
/// single request's inputs are passed through unchanged where they are as long as that. Inputs in `padded` are padded to the length `to`, or
/// else to the longest. Errors if the requests' inputs differ in more than the padded lengths and their numbers of rows.
pub fn join<'a>(
    requests: &[&'a [Tensor]],
    padded: &[PaddedInput],
    to: Option<u32>,
) -> Result<Cow<'a, [Tensor]>, InferError> {
    let [first, rest @ ..] = requests else { return Ok(Cow::Borrowed(&[])) };
    if rest.is_empty() && to.is_none() {
        return Ok(Cow::Borrowed(first));
    }
    if let Some(other) = rest.iter().find(|other| other.len() != first.len()) {
        let (want, have) = (first.len(), other.len());
        return Err(InferError::internal(format!("cannot batch a request of {have} inputs with one of {want}")));
    }
    let padded_as = |tensor: &Tensor| padded.iter().find(|padded| padded.name == tensor.name());
    let join = |tensor: &'a Tensor| join_one(tensor, rest, padded_as(tensor), to);
    first.iter().map(join).collect::<Result<Vec<_>, _>>().map(Cow::Owned)
}

fn join_one(
    first: &Tensor,
    rest: &[&[Tensor]],
    padded: Option<&PaddedInput>,
    to: Option<u32>,
) -> Result<Tensor, InferError> {
    let name = first.name();
    if first.shape().is_empty() {
        return Err(no_batch_dimension(name));
    }
    let alike = |part: &Tensor| {
        let (own, others) = (part.shape(), first.shape());
        let free = |axis: usize| axis == 0 || padded.is_some_and(|padded| padded.axis == axis);
        part.datatype() == first.datatype()
            && own.len() == others.len()
            && own.iter().zip(others.iter()).enumerate().all(|(axis, (a, b))| a == b || free(axis))
    };
    let mut parts = vec![first];
    for inputs in rest {
        let part = inputs.iter().find(|tensor| tensor.name() == name).filter(|part| alike(part));
        parts.push(part.ok_or_else(|| {
            let (datatype, shape) = (first.datatype(), first.shape());
            InferError::internal(format!("cannot batch requests: not all have input '{name}' of {datatype} {shape}"))
        })?);
    }
    let mut shape = first.shape().to_vec();
    shape[0] = parts.iter().fold(0i64, |rows, part| rows.saturating_add(part.shape()[0]));
    let data = match padded.filter(|padded| padded.axis < shape.len()) {
        Some(padded) => {
            let longest = parts.iter().map(|part| part.shape()[padded.axis]).max().unwrap_or(0);
            shape[padded.axis] = to.map_or(longest, |to| longest.max(to.into()));
            pad(&parts, padded, &shape)
        }
        None => {
            let mut data = BytesMut::with_capacity(parts.iter().map(|part| part.data().len()).sum());
            parts.iter().for_each(|part| data.extend_from_slice(part.data()));
            data
        }
    };
    Ok(Tensor::new(name, first.datatype(), shape, data.freeze())?)
}

/// The bytes of `parts` one after the other, each padded to `shape` along the padded dimension.
fn pad(parts: &[&Tensor], padded: &PaddedInput, shape: &[i64]) -> BytesMut {
    let Some(count @ 1..) = Shape::from(shape).element_count() else { return BytesMut::new() };
    let target = shape[padded.axis] as usize;
    // Elements of one step along the padded dimension. This cannot overflow, because they are a part of `count`.
    let inner = shape[padded.axis + 1..].iter().product::<i64>() as usize;
    let step = inner * padded.value.len();
    let mut data = BytesMut::with_capacity(count as usize * padded.value.len());
    for part in parts {
        let own = part.shape()[padded.axis] as usize;
        if own == target {
            data.extend_from_slice(part.data());
            continue;
        }
        let fill = |data: &mut BytesMut| match padded.value.iter().all(|byte| *byte == 0) {
            true => data.resize(data.len() + (target - own) * step, 0),
            false => (0..(target - own) * inner).for_each(|_| data.extend_from_slice(&padded.value)),
        };
        for row in part.data().chunks_exact((own * step).max(1)) {
            if padded.left {
                fill(&mut data);
            }
            data.extend_from_slice(row);
            if !padded.left {
                fill(&mut data);
            }
        }
    }
    data
}

/// Splits one output of a batch into the requests' parts, `rows[i]` rows each, which share its bytes. With `cut`, each
/// part is cut to its own length. An Internal error if the first dimension is not the rows of the batch, or the
/// dimension to cut is not the padded length.
pub fn split(output: Tensor, rows: &[u32], cut: Option<Cut<'_>>) -> Result<Vec<Tensor>, InferError> {
    let total: u64 = rows.iter().map(|&r| u64::from(r)).sum();
    let shape = output.shape();
    let [first, inner @ ..] = &shape[..] else { return Err(no_batch_dimension(output.name())) };
    if *first as u64 != total {
        return Err(InferError::internal(format!(
            "output '{}' has shape {shape}, but its first dimension has to be the batch size {total}",
            output.name()
        )));
    }
    if let Some(Cut { axis, padded, .. }) = cut
        && shape.get(axis) != Some(&i64::from(padded))
    {
        return Err(InferError::internal(format!(
            "output '{}' has shape {shape}, but as unpad_outputs has it, dimension {axis} has to be the padded \
             length {padded}",
            output.name()
        )));
    }
    if rows.len() == 1 && cut.is_none_or(|cut| cut.lengths.first() == Some(&cut.padded)) {
        return Ok(vec![output]);
    }
    let inner_count = Shape::from(inner).element_count().unwrap_or(0);
    let mut rest = output.data().clone();
    let mut parts = Vec::with_capacity(rows.len());
    for (index, &part_rows) in rows.iter().enumerate() {
        let elements = u64::from(part_rows) * inner_count;
        let mut data = match output.datatype().element_size() {
            Some(size) => rest.split_to((elements as usize * size).min(rest.len())),
            None => split_elements(&mut rest, elements),
        };
        let mut part_shape = shape.to_vec();
        part_shape[0] = i64::from(part_rows);
        if let Some(Cut { axis, lengths, left, .. }) = cut {
            data = shorten(&data, &part_shape, axis, lengths[index], left);
            part_shape[axis] = i64::from(lengths[index]);
        }
        let part = Tensor::new(output.name(), output.datatype(), part_shape, data);
        parts.push(part.map_err(|error| InferError::internal(error.to_string()))?);
    }
    Ok(parts)
}

/// The first `length` steps along dimension `axis` of a tensor of `shape`, or the last ones. A slice if the result is contiguous, as for
/// the usual request of a single row; otherwise a copy.
fn shorten(data: &Bytes, shape: &[i64], axis: usize, length: u32, last: bool) -> Bytes {
    if data.is_empty() || shape[axis] == i64::from(length) {
        return data.clone();
    }
    let (pieces, steps) = (shape[..axis].iter().product::<i64>() as usize, shape[axis] as usize);
    let piece = data.len() / pieces;
    let kept = piece / steps * length as usize;
    let of = if last { piece - kept..piece } else { 0..kept };
    if pieces == 1 {
        return data.slice(of);
    }
    let mut short = BytesMut::with_capacity(pieces * kept);
    data.chunks_exact(piece).for_each(|piece| short.extend_from_slice(&piece[of.clone()]));
    short.freeze()
}

/// Splits `count` length-prefixed elements off the front.
fn split_elements(rest: &mut Bytes, count: u64) -> Bytes {
    let size =
        BytesElements::new(rest).map_while(Result::ok).take(count as usize).map(|element| 4 + element.len()).sum();
    rest.split_to(size)
}

/// The number of rows of a request: the first dimension of its inputs, 1 without inputs. Inputs with different numbers
/// of rows are refused, because in a batch their rows would be mixed up with those of other requests.
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
        let joined = join(&[&inputs], &[], None).unwrap();
        assert_eq!(joined[0].data().as_ptr(), inputs[0].data().as_ptr());
        assert!(join(&[], &[], None).unwrap().is_empty());
    }

    #[test]
    fn inputs_are_matched_by_name() {
        let a = [ints("x", &[1, 2], vec![1, 2]), ints("y", &[1], vec![3])];
        let b = [ints("y", &[2], vec![6, 7]), ints("x", &[2, 2], vec![4, 5, 6, 7])];
        let joined = join(&[&a, &b], &[], None).unwrap();
        assert_eq!(joined[0], ints("x", &[3, 2], vec![1, 2, 4, 5, 6, 7]));
        assert_eq!(joined[1], ints("y", &[3], vec![3, 6, 7]));
    }

    #[test]
    fn differing_requests_are_refused() {
        let a = [ints("x", &[1, 2], vec![1, 2])];
        for b in [ints("y", &[1, 2], vec![1, 2]), ints("x", &[1, 1], vec![1]), ints("x", &[], vec![1])] {
            let error = join(&[&a, &[b]], &[], None).unwrap_err();
            assert_eq!(error.message, "cannot batch requests: not all have input 'x' of INT64 [1,2]");
        }
        assert!(join(&[&a, &[]], &[], None).unwrap_err().message.contains("a request of 0 inputs with one of 1"));
        let scalar = [ints("x", &[], vec![1])];
        assert!(join(&[&scalar, &scalar], &[], None).unwrap_err().message.contains("no batch dimension"));
    }

    #[test]
    fn splitting_shares_the_bytes() {
        let parts = split(ints("y", &[3, 2], vec![1, 2, 3, 4, 5, 6]), &[1, 2], None).unwrap();
        assert_eq!(parts, [ints("y", &[1, 2], vec![1, 2]), ints("y", &[2, 2], vec![3, 4, 5, 6])]);
        assert_eq!(parts[0].data().as_ptr().wrapping_add(16), parts[1].data().as_ptr());
    }

    #[test]
    fn an_output_without_the_batch_is_an_internal_error() {
        let error = split(ints("y", &[2, 2], vec![1, 2, 3, 4]), &[1, 2], None).unwrap_err();
        assert_eq!(error.code, ErrorCode::Internal);
        assert_eq!(error.message, "output 'y' has shape [2,2], but its first dimension has to be the batch size 3");
        assert_eq!(
            split(ints("y", &[], vec![1]), &[1], None).unwrap_err().message,
            "tensor 'y' has no batch dimension"
        );
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
        let joined = join(&[&[empty(2)], &[empty(1)]], &[], None).unwrap().into_owned();
        assert_eq!(joined, [empty(3)]);
        assert_eq!(split(joined[0].clone(), &[2, 1], None).unwrap(), [empty(2), empty(1)]);
        assert_eq!(split(empty(0), &[0, 0], None).unwrap(), [empty(0), empty(0)]);
    }

    fn padded(axis: usize, value: i64) -> PaddedInput {
        PaddedInput { name: "x".into(), axis, value: value.to_le_bytes().to_vec(), left: false }
    }

    #[test]
    fn short_rows_are_filled_up() {
        let short = [ints("x", &[2, 1], vec![1, 2]), ints("y", &[2], vec![8, 8])];
        let long = [ints("x", &[1, 3], vec![3, 4, 5]), ints("y", &[1], vec![9])];
        for fill in [0, -1] {
            let joined = join(&[&short, &long], &[padded(1, fill)], None).unwrap();
            assert_eq!(joined[0], ints("x", &[3, 3], vec![1, fill, fill, 2, fill, fill, 3, 4, 5]));
            assert_eq!(joined[1], ints("y", &[3], vec![8, 8, 9]));
        }
        let (flat, deep) = ([ints("x", &[1, 2, 1], vec![1, 2])], [ints("x", &[1, 2, 2], vec![3, 4, 5, 6])]);
        let joined = join(&[&flat, &deep], &[padded(2, 7)], None).unwrap();
        assert_eq!(joined[0], ints("x", &[2, 2, 2], vec![1, 7, 2, 7, 3, 4, 5, 6]));
        let other = [ints("x", &[1, 3, 1], vec![1, 2, 3])];
        assert!(join(&[&flat, &other], &[padded(2, 7)], None).unwrap_err().message.contains("of INT64 [1,2,1]"));
        assert!(join(&[&short, &long], &[], None).is_err(), "what is not declared is not padded");
    }

    #[test]
    fn rows_are_cut_back_and_copied_only_where_they_have_gaps() {
        let output = ints("y", &[3, 2, 1], vec![1, 0, 2, 0, 3, 4]);
        let parts =
            split(output.clone(), &[2, 1], Some(Cut { axis: 1, lengths: &[1, 2], padded: 2, left: false })).unwrap();
        assert_eq!(parts, [ints("y", &[2, 1, 1], vec![1, 2]), ints("y", &[1, 2, 1], vec![3, 4])]);
        let parts =
            split(output.clone(), &[1, 2], Some(Cut { axis: 1, lengths: &[1, 2], padded: 2, left: false })).unwrap();
        assert_eq!(parts, [ints("y", &[1, 1, 1], vec![1]), ints("y", &[2, 2, 1], vec![2, 0, 3, 4])]);
        assert_eq!(parts[0].data().as_ptr().wrapping_add(16), parts[1].data().as_ptr(), "slices of one buffer");
        let wrong =
            split(output, &[2, 1], Some(Cut { axis: 1, lengths: &[1, 3], padded: 3, left: false })).unwrap_err();
        assert_eq!(
            wrong.message,
            "output 'y' has shape [3,2,1], but as unpad_outputs has it, dimension 1 has to be the padded length 3"
        );
    }

    #[test]
    fn a_lone_request_is_padded_to_the_length_of_the_run() {
        let alone = [ints("x", &[1, 2], vec![1, 2])];
        let joined = join(&[&alone], &[padded(1, 0)], Some(4)).unwrap().into_owned();
        assert_eq!(joined, [ints("x", &[1, 4], vec![1, 2, 0, 0])]);
        let cut = Some(Cut { axis: 1, lengths: &[2], padded: 4, left: false });
        assert_eq!(split(joined[0].clone(), &[1], cut).unwrap(), alone);
    }

    #[test]
    fn rows_that_are_filled_up_on_the_left_are_cut_there() {
        let padded = PaddedInput { left: true, ..padded(1, 9) };
        let (short, long) = ([ints("x", &[2, 1], vec![1, 2])], [ints("x", &[1, 3], vec![3, 4, 5])]);
        let joined = join(&[&short, &long], &[padded], None).unwrap().into_owned();
        assert_eq!(joined[0], ints("x", &[3, 3], vec![9, 9, 1, 9, 9, 2, 3, 4, 5]));
        let parts =
            split(joined[0].clone(), &[2, 1], Some(Cut { axis: 1, lengths: &[1, 3], padded: 3, left: true })).unwrap();
        assert_eq!(parts, [short, long].concat());
    }

    proptest! {
        #[test]
        fn padding_leaves_no_trace(
            requests in proptest::collection::vec((1usize..4, 1usize..6), 2..6), outer in 1usize..3, inner in 0usize..3,
        ) {
            let tensor = |index: usize, (rows, length): (usize, usize)| {
                let count = rows * outer * length * inner;
                let shape = [rows, outer, length, inner].map(|d| d as i64);
                ints("x", &shape, (0..count).map(|i| (100 * index + i) as i64).collect())
            };
            let inputs: Vec<_> = requests.iter().enumerate().map(|(index, &size)| [tensor(index, size)]).collect();
            let joined = join(&inputs.iter().map(|i| &i[..]).collect::<Vec<_>>(), &[padded(2, -1)], None).unwrap().into_owned();
            let rows: Vec<_> = requests.iter().map(|(rows, _)| *rows as u32).collect();
            let lengths: Vec<_> = requests.iter().map(|(_, length)| *length as u32).collect();
            let parts = split(joined[0].clone(), &rows, Some(Cut { axis: 2, lengths: &lengths, padded: *lengths.iter().max().unwrap(), left: false })).unwrap();
            prop_assert_eq!(parts, inputs.into_iter().flatten().collect::<Vec<_>>());
        }

        #[test]
        fn strings_come_back_as_they_went(requests in proptest::collection::vec(
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..6), 0..5), 1..6)) {
            let tensors: Vec<_> = requests.iter()
                .map(|texts| [Tensor::from_bytes_elements("t", [texts.len() as i64, 1], texts).unwrap()]).collect();
            let joined = join(&tensors.iter().map(|t| &t[..]).collect::<Vec<_>>(), &[], None).unwrap().into_owned();
            let rows: Vec<u32> = tensors.iter().map(|t| super::rows("m", t).unwrap()).collect();
            let parts = split(joined[0].clone(), &rows, None).unwrap();
            prop_assert_eq!(parts, tensors.into_iter().flatten().collect::<Vec<_>>());
        }
    }
}
