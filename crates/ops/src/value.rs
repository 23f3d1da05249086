//! The values between ops, and their signatures, which are known before any request.

use std::borrow::Cow;
use std::fmt;

use half::{bf16, f16};
use ndarray::{ArrayD, CowArray, IxDyn};
use trireme_inference::{DataType, Element, InferError, Shape, Tensor};
use trireme_text::texts_of;

/// A value between two ops. All arrays are `[rows, ...]`; borrowed where they still are the request's bytes.
///
/// ```
/// # use half::f16;
/// # use trireme_inference::Tensor;
/// use trireme_ops::{Form, Value};
///
/// let tensor = Tensor::from_values("logits", [1, 2], vec![f16::from_f32(0.5), f16::from_f32(-2.0)])?;
/// let value = Value::from_tensor(&tensor)?;
/// assert_eq!((value.form(), value.dims()), (Form::Floats, &[1, 2][..]));
/// assert_eq!(value.into_floats()?.as_slice(), Some(&[0.5, -2.0][..]));
/// # Ok::<(), trireme_inference::InferError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Numbers, computed in f32.
    Floats(CowArray<'a, f32, IxDyn>),
    /// Token ids or class indices.
    Ints(CowArray<'a, i64, IxDyn>),
    /// Texts.
    Texts(ArrayD<String>),
    /// The best classes of each row, best first: scores and class indices, both `[rows, k]`.
    Ranked {
        /// The scores.
        scores: ArrayD<f32>,
        /// The index of each score on the last axis of the ranked value.
        indices: ArrayD<i64>,
    },
    /// The components of each row that are not 0, both `[rows, n]`; rows with fewer than n are filled up.
    Sparse {
        /// The places of the components, ascending; -1 fills up.
        indices: ArrayD<i64>,
        /// The components; 0 fills up.
        values: ArrayD<f32>,
    },
    /// The labels that a request named, for each text.
    Classes {
        /// The scores of all labels, `[texts, labels]`.
        scores: ArrayD<f32>,
        /// The labels that count, as JSON, `[texts]`.
        chosen: ArrayD<String>,
    },
}

/// The kind of a [`Value`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "named like the values")]
pub enum Form {
    Floats,
    Ints,
    Texts,
    Ranked,
    Sparse,
    Classes,
}

/// The form and dimensions of a value as they are known when the model is loaded; -1 for any size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The kind of value.
    pub form: Form,
    /// Its dimensions, rows first.
    pub dims: Shape,
}

// === impl Value ===

impl<'a> Value<'a> {
    /// The numbers of `tensor`: FP32 without copying, FP16, BF16 and FP64 converted, INT64 and INT32 as [`Value::Ints`],
    /// BYTES as [`Value::Texts`].
    /// Errors for other datatypes.
    pub fn from_tensor(tensor: &'a Tensor) -> Result<Value<'a>, InferError> {
        Ok(match tensor.datatype() {
            DataType::Fp32 => Value::Floats(array(tensor, tensor.values()?)?),
            DataType::Fp16 => Value::Floats(array(tensor, converted(tensor, f16::to_f32)?)?),
            DataType::Bf16 => Value::Floats(array(tensor, converted(tensor, bf16::to_f32)?)?),
            DataType::Fp64 => Value::Floats(array(tensor, converted(tensor, |v: f64| v as f32)?)?),
            DataType::Int64 => Value::Ints(array(tensor, tensor.values()?)?),
            DataType::Int32 => Value::Ints(array(tensor, converted(tensor, |v: i32| i64::from(v))?)?),
            DataType::Bytes => {
                let texts: Vec<String> = texts_of(tensor)?.into_iter().map(str::to_owned).collect();
                let dims: Vec<usize> = tensor.shape().iter().map(|&dim| dim as usize).collect();
                let array = ArrayD::from_shape_vec(IxDyn(&dims), texts);
                Value::Texts(array.map_err(|error| InferError::internal(error.to_string()))?)
            }
            other => {
                let message = format!(
                    "tensor '{}' holds {other}, expected a floating point or integer type, or texts",
                    tensor.name()
                );
                return Err(InferError::invalid_arg(message));
            }
        })
    }

    /// The numbers of the value. Checking the chain has shown that it holds numbers.
    pub fn into_floats(self) -> Result<CowArray<'a, f32, IxDyn>, InferError> {
        match self {
            Value::Floats(array) => Ok(array),
            other => Err(InferError::internal(format!("an op takes numbers and got {}", other.form()))),
        }
    }

    /// The integers, where the value is integers.
    pub fn into_ints(self) -> Result<CowArray<'a, i64, IxDyn>, InferError> {
        match self {
            Value::Ints(array) => Ok(array),
            other => Err(InferError::internal(format!("an op takes integers and got {}", other.form()))),
        }
    }

    /// The kind of value.
    pub fn form(&self) -> Form {
        match self {
            Value::Floats(_) => Form::Floats,
            Value::Ints(_) => Form::Ints,
            Value::Texts(_) => Form::Texts,
            Value::Ranked { .. } => Form::Ranked,
            Value::Sparse { .. } => Form::Sparse,
            Value::Classes { .. } => Form::Classes,
        }
    }

    /// The form and dimensions.
    pub(crate) fn signature(&self) -> Signature {
        Signature::new(self.form(), self.dims().iter().map(|&dim| dim as i64).collect::<Vec<_>>())
    }

    /// The bytes of its elements.
    pub(crate) fn size(&self) -> usize {
        self.dims().iter().product::<usize>().saturating_mul(self.form().element_size())
    }

    /// The dimensions, rows first.
    pub fn dims(&self) -> &[usize] {
        match self {
            Value::Floats(array) => array.shape(),
            Value::Ints(array) => array.shape(),
            Value::Texts(array) => array.shape(),
            Value::Ranked { scores, .. } => scores.shape(),
            Value::Sparse { values, .. } => values.shape(),
            Value::Classes { scores, .. } => scores.shape(),
        }
    }
}

/// The elements of `tensor`, each converted.
fn converted<T: Element, U: Clone>(tensor: &Tensor, convert: impl Fn(T) -> U) -> Result<Cow<'_, [U]>, InferError> {
    Ok(Cow::Owned(tensor.values::<T>()?.iter().map(|&v| convert(v)).collect()))
}

/// `values` in the shape of `tensor`.
fn array<'a, T: Clone>(tensor: &Tensor, values: Cow<'a, [T]>) -> Result<CowArray<'a, T, IxDyn>, InferError> {
    let shape = tensor.shape();
    let too_large =
        || InferError::invalid_arg(format!("tensor '{}' has shape {shape} which is too large", tensor.name()));
    let dims: Vec<usize> = shape.iter().map(|&d| d as usize).collect();
    let array = match values {
        Cow::Borrowed(values) => ndarray::ArrayView::from_shape(dims, values).map(CowArray::from),
        Cow::Owned(values) => ndarray::Array::from_shape_vec(dims, values).map(CowArray::from),
    };
    array.map_err(|_| too_large())
}

// === impl Signature ===

impl Signature {
    /// A signature of a form and dimensions.
    pub fn new(form: Form, dims: impl Into<Shape>) -> Signature {
        Signature { form, dims: dims.into() }
    }

    /// This signature, if it is of `form` and its rank is in `ranks`; otherwise the error names the expected ones.
    ///
    /// ```
    /// use trireme_ops::{Form, Signature};
    ///
    /// let hidden = Signature::new(Form::Floats, [-1, -1, 384]);
    /// assert!(hidden.expect(Form::Floats, 3..=3).is_ok());
    /// assert_eq!(
    ///     hidden.expect(Form::Ints, 2..=2).unwrap_err(),
    ///     "takes integers of rank 2, got floating point numbers of shape [-1,-1,384]"
    /// );
    /// ```
    pub fn expect(&self, form: Form, ranks: std::ops::RangeInclusive<usize>) -> Result<&Signature, String> {
        if self.form == form && ranks.contains(&self.dims.len()) {
            return Ok(self);
        }
        let rank = match (ranks.start(), ranks.end()) {
            (low, high) if low == high => format!("rank {low}"),
            (low, _) => format!("rank {low} or more"),
        };
        Err(format!("takes {form} of {rank}, got {self}"))
    }
}

// === impl Form ===

impl Form {
    /// Bytes of an element in memory, without the bytes of a text.
    pub(crate) fn element_size(self) -> usize {
        match self {
            Form::Floats | Form::Classes => size_of::<f32>(),
            Form::Ints => size_of::<i64>(),
            Form::Texts => size_of::<String>(),
            Form::Ranked | Form::Sparse => size_of::<f32>() + size_of::<i64>(),
        }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of shape {}", self.form, self.dims)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Form::Floats => "floating point numbers",
            Form::Ints => "integers",
            Form::Texts => "texts",
            Form::Ranked => "the ranked classes of top_k",
            Form::Sparse => "the components of sparse",
            Form::Classes => "the labels of classes",
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn floating_point_types_become_f32_and_integers_i64() {
        let floats = |tensor: Tensor| {
            Value::from_tensor(&tensor).unwrap().into_floats().unwrap().iter().copied().collect::<Vec<_>>()
        };
        let halves = vec![f16::from_f32(0.5), f16::from_f32(-2.0)];
        assert_eq!(floats(Tensor::from_values("x", [2], halves).unwrap()), [0.5, -2.0]);
        assert_eq!(floats(Tensor::from_values("x", [1], vec![bf16::from_f32(3.0)]).unwrap()), [3.0]);
        assert_eq!(floats(Tensor::from_values("x", [1], vec![1.5f64]).unwrap()), [1.5]);
        let tensor = Tensor::from_values("x", [1, 2], vec![7i32, -1]).unwrap();
        assert_eq!(Value::from_tensor(&tensor).unwrap().into_ints().unwrap(), ndarray::arr2(&[[7i64, -1]]).into_dyn());
    }

    #[test]
    fn fp32_is_not_copied() {
        let tensor = Tensor::from_values("x", [2, 1], vec![1.0f32, 2.0]).unwrap();
        assert!(Value::from_tensor(&tensor).unwrap().into_floats().unwrap().is_view());
    }

    #[test]
    fn other_types_are_refused_and_empty_tensors_are_not() {
        let tensor = Tensor::from_bytes_elements("x", [1], &["a"]).unwrap();
        assert_eq!(Value::from_tensor(&tensor).unwrap().form(), Form::Texts);
        let tensor = Tensor::new("x", DataType::Bool, [1], vec![1u8].into()).unwrap();
        let error = Value::from_tensor(&tensor).unwrap_err();
        assert_eq!(error.message, "tensor 'x' holds BOOL, expected a floating point or integer type, or texts");
        for shape in [[0, 512, 1024], [2, 0, 8]] {
            let tensor = Tensor::new("x", DataType::Fp32, shape, Bytes::new()).unwrap();
            assert!(Value::from_tensor(&tensor).is_ok(), "{shape:?}");
        }
    }
}
