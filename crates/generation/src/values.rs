//! Builds tensors from rows of other tensors. One operation lets rows join, leave, move and change their padding.

use half::{bf16, f16};
use ort::value::{DynValue, PrimitiveTensorElementType, Tensor, TensorElementType};

/// Rows of a tensor.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// The tensor.
    pub of: &'a DynValue,
    /// Indices along its first dimension; an index may occur several times.
    pub rows: &'a [usize],
}

/// The rows of all `parts`, one after the other, as a new tensor. With `length`, dimension `axis` gets that size: it is
/// cut at its end, or padded with zeros. The parts have the same type and, except for the first, the same dimensions.
pub fn assemble(parts: &[Rows<'_>], length: Option<(usize, usize)>) -> ort::Result<DynValue> {
    let element = parts.first().and_then(|part| part.of.dtype().tensor_type());
    match element {
        Some(TensorElementType::Float32) => assemble_typed::<f32>(parts, length),
        Some(TensorElementType::Float16) => assemble_typed::<f16>(parts, length),
        Some(TensorElementType::Bfloat16) => assemble_typed::<bf16>(parts, length),
        Some(TensorElementType::Int64) => assemble_typed::<i64>(parts, length),
        other => Err(ort::Error::new(format!("cannot keep a tensor of type {other:?} between steps"))),
    }
}

fn assemble_typed<T>(parts: &[Rows<'_>], length: Option<(usize, usize)>) -> ort::Result<DynValue>
where
    T: PrimitiveTensorElementType + Copy + Default + std::fmt::Debug + 'static,
{
    let mut shape: Vec<i64> = Vec::new();
    let mut data: Vec<T> = Vec::new();
    let mut count = 0;
    for part in parts {
        let (dims, values) = part.of.try_extract_tensor::<T>()?;
        let row = Row::new(dims, length)?;
        if shape.is_empty() {
            shape = dims.to_vec();
            data.reserve(parts.iter().map(|part| part.rows.len()).sum::<usize>() * row.outer * row.target * row.inner);
        } else if !row.fits(&shape, dims) {
            return Err(ort::Error::new(format!("rows of shapes {shape:?} and {dims:?} cannot be joined")));
        }
        count += part.rows.len();
        let from = row.outer * row.length * row.inner;
        for &index in part.rows {
            let values = values
                .get(index * from..(index + 1) * from)
                .ok_or_else(|| ort::Error::new(format!("row {index} of a tensor of shape {dims:?} does not exist")))?;
            row.copy(values, &mut data);
        }
    }
    if let Some(rows) = shape.first_mut() {
        *rows = count as i64;
    }
    if let Some((axis, length)) = length {
        shape[axis] = length as i64;
    }
    Ok(Tensor::from_array((shape, data))?.into_dyn())
}

/// The layout of one row in memory: `outer` blocks of `length` times `inner` elements, of which `target` stay.
struct Row {
    axis: usize,
    outer: usize,
    length: usize,
    inner: usize,
    target: usize,
}

// === impl Row ===

impl Row {
    fn new(dims: &[i64], length: Option<(usize, usize)>) -> ort::Result<Row> {
        let product = |dims: &[i64]| dims.iter().map(|&dim| dim as usize).product::<usize>();
        let (axis, target) = match length {
            Some((axis, target)) => (axis, target),
            None => (1, *dims.get(1).unwrap_or(&1) as usize),
        };
        if axis == 0 || axis >= dims.len() {
            return Err(ort::Error::new(format!("a tensor of shape {dims:?} has no dimension {axis} to change")));
        }
        let (outer, length, inner) = (product(&dims[1..axis]), dims[axis] as usize, product(&dims[axis + 1..]));
        Ok(Row { axis, outer, length, inner, target })
    }

    fn fits(&self, first: &[i64], other: &[i64]) -> bool {
        let same =
            |axis: usize| axis == 0 || axis == self.axis && self.target != self.length || first[axis] == other[axis];
        first.len() == other.len() && (0..first.len()).all(|axis| same(axis) || axis == self.axis)
    }

    fn copy<T: Copy + Default>(&self, values: &[T], to: &mut Vec<T>) {
        if self.target == self.length {
            return to.extend_from_slice(values);
        }
        for block in values.chunks_exact((self.length * self.inner).max(1)) {
            let kept = self.length.min(self.target) * self.inner;
            to.extend_from_slice(&block[..kept]);
            to.resize(to.len() + self.target * self.inner - kept, T::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[i64], first: f32) -> DynValue {
        let count = shape.iter().product::<i64>();
        let data: Vec<f32> = (0..count).map(|i| first + i as f32).collect();
        Tensor::from_array((shape.to_vec(), data)).unwrap().into_dyn()
    }

    fn values(value: &DynValue) -> (Vec<i64>, Vec<f32>) {
        let (shape, values) = value.try_extract_tensor::<f32>().unwrap();
        (shape.to_vec(), values.to_vec())
    }

    #[test]
    fn rows_are_gathered_joined_padded_and_cut() {
        let (a, b) = (tensor(&[2, 1, 2, 2], 0.0), tensor(&[1, 1, 3, 2], 100.0));
        let of = |of, rows| Rows { of, rows };
        let twice = assemble(&[of(&a, &[1, 1, 0])], None).unwrap();
        assert_eq!(values(&twice), (vec![3, 1, 2, 2], vec![4., 5., 6., 7., 4., 5., 6., 7., 0., 1., 2., 3.]));
        let padded = assemble(&[of(&a, &[1]), of(&b, &[0])], Some((2, 3))).unwrap();
        let expected = vec![4., 5., 6., 7., 0., 0., 100., 101., 102., 103., 104., 105.];
        assert_eq!(values(&padded), (vec![2, 1, 3, 2], expected));
        let cut = assemble(&[of(&b, &[0])], Some((2, 1))).unwrap();
        assert_eq!(values(&cut), (vec![1, 1, 1, 2], vec![100., 101.]));
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let (a, b) = (tensor(&[2, 2], 0.0), tensor(&[1, 3], 0.0));
        assert!(assemble(&[Rows { of: &a, rows: &[0] }, Rows { of: &b, rows: &[0] }], None).is_err());
        assert!(assemble(&[Rows { of: &a, rows: &[2] }], None).is_err());
        assert!(assemble(&[], None).is_err());
    }
}
