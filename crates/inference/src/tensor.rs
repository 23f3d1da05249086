//! A tensor as it travels: name, datatype, shape and raw bytes in the v2 binary form.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::{DataType, MAX_MESSAGE_BYTES, Name, Shape};

/// A named tensor. `data` is little-endian and row-major; a BYTES element is its length as `u32` followed by its bytes.
/// This is the v2 binary extension, so no stage transcodes. Cloning shares the bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    name: Name,
    datatype: DataType,
    shape: Shape,
    data: Bytes,
}

/// A tensor as a client sent it. Its fields have not been checked against its bytes; [`UncheckedTensor::check`] does
/// that.
#[derive(Clone, Debug, PartialEq)]
pub struct UncheckedTensor {
    /// The claimed name.
    pub name: Name,
    /// The claimed datatype.
    pub datatype: DataType,
    /// The claimed shape.
    pub shape: Shape,
    /// The bytes, in the v2 binary form.
    pub data: Bytes,
}

/// A model's declaration of one of its tensors. `shape` has -1 for any size and includes the batch dimension.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// The tensor's name at the model.
    pub name: Name,
    /// Datatype of its elements.
    pub datatype: DataType,
    /// Full shape, batch dimension included, -1 for any size.
    pub shape: Shape,
    /// For inputs: whether a request may leave it out.
    #[serde(default)]
    pub optional: bool,
}

/// Why bytes are not a tensor of the given datatype and shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum TensorError {
    /// A dimension is negative.
    #[error("tensor '{name}' has shape {shape} which contains one or more invalid dimensions")]
    NegativeDimension { name: Name, shape: Shape },
    /// The product of the dimensions exceeds [`crate::MAX_ELEMENTS`].
    #[error(
        "tensor '{name}' has shape {shape} which causes total element count to exceed maximum size of {}",
        crate::MAX_ELEMENTS
    )]
    TooManyElements { name: Name, shape: Shape },
    /// No elements, but the product of the other dimensions exceeds [`crate::MAX_EMPTY_SIZE`].
    #[error(
        "tensor '{name}' has shape {shape} without elements, whose other dimensions exceed the maximum size of {}",
        crate::MAX_EMPTY_SIZE
    )]
    VastAndEmpty { name: Name, shape: Shape },
    /// The number of bytes does not match datatype and shape.
    #[error("tensor '{name}' of datatype {datatype} and shape {shape} takes {expected} bytes, got {actual}")]
    ByteSize { name: Name, datatype: DataType, shape: Shape, expected: u64, actual: u64 },
    /// A request asks for more bytes than [`room_for`] gives.
    #[error(
        "tensor '{name}' of shape {shape} takes {bytes} bytes, and a request may ask for {limit} at most: send fewer rows"
    )]
    NoRoom { name: Name, shape: Shape, bytes: u64, limit: u64 },
    /// A BYTES tensor holds more or fewer elements than its shape says.
    #[error("tensor '{name}' of shape {shape} takes {expected} string elements, got {actual}")]
    ElementCount { name: Name, shape: Shape, expected: u64, actual: u64 },
    /// A BYTES element's length prefix is truncated, or larger than the rest of the bytes.
    #[error("tensor '{name}' has an incomplete string element at byte {offset}")]
    IncompleteElement { name: Name, offset: usize },
    /// The tensor holds another datatype than the reader asked for.
    #[error("tensor '{name}' holds {actual}, expected {expected}")]
    Datatype { name: Name, expected: DataType, actual: DataType },
}

/// The number of elements of a tensor that is to be made for a request. Has to be asked before memory is allocated for it: a shape of few
/// bytes may claim many rows. An element takes `size` bytes; `given` are the bytes of the tensor's sources. An error if it takes more
/// than [`MAX_MESSAGE_BYTES`], and more than twice `given`.
pub fn room_for(name: &str, shape: impl Into<Shape>, size: usize, given: usize) -> Result<usize, TensorError> {
    let shape = shape.into();
    let count = shape.element_count();
    let limit = (MAX_MESSAGE_BYTES as u64).max(given.saturating_mul(2) as u64);
    let bytes = count.map_or(u64::MAX, |count| count.saturating_mul(size as u64));
    match count.and_then(|count| usize::try_from(count).ok()) {
        Some(count) if bytes <= limit => Ok(count),
        _ => Err(TensorError::NoRoom { name: name.into(), shape, bytes, limit }),
    }
}

/// A Rust type whose values are tensor elements. Sealed: implemented for the fixed-size numbers here.
pub trait Element: bytemuck::Pod + Send + Sync + sealed::Sealed {
    /// The wire datatype of this type.
    const DATATYPE: DataType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($($type:ty => $datatype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DATATYPE: DataType = DataType::$datatype;
        }
    )*};
}

element! {
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    half::f16 => Fp16, half::bf16 => Bf16, f32 => Fp32, f64 => Fp64,
}

// Element bytes are reinterpreted, not swapped: the wire is little-endian, so the machine has to be.
const _: () = assert!(cfg!(target_endian = "little"), "Trireme supports little-endian machines only");

// === impl Tensor ===

impl Tensor {
    /// A tensor from outside bytes, checked: dimensions, byte size, and for BYTES every element's length prefix.
    /// The bytes are kept as they are, not copied.
    pub fn new(
        name: impl Into<Name>,
        datatype: DataType,
        shape: impl Into<Shape>,
        data: Bytes,
    ) -> Result<Tensor, TensorError> {
        let (name, shape) = (name.into(), shape.into());
        let Some(count) = shape.element_count() else {
            return Err(match shape.iter().any(|&d| d < 0) {
                true => TensorError::NegativeDimension { name, shape },
                false => TensorError::TooManyElements { name, shape },
            });
        };
        if shape.is_vast_and_empty() {
            return Err(TensorError::VastAndEmpty { name, shape });
        }
        match datatype.element_size() {
            Some(size) => {
                let expected = count.saturating_mul(size as u64);
                if data.len() as u64 != expected {
                    let actual = data.len() as u64;
                    return Err(TensorError::ByteSize { name, datatype, shape, expected, actual });
                }
            }
            None => {
                let mut elements = BytesElements { rest: &data, offset: 0 };
                let mut actual = 0u64;
                for element in &mut elements {
                    if let Err(offset) = element {
                        return Err(TensorError::IncompleteElement { name, offset });
                    }
                    actual += 1;
                }
                if actual != count {
                    return Err(TensorError::ElementCount { name, shape, expected: count, actual });
                }
            }
        }
        Ok(Tensor { name, datatype, shape, data })
    }

    /// A tensor of numbers. It takes over the vector's memory, without a copy. Errors if the number of `values` does
    /// not match `shape`.
    pub fn from_values<T: Element>(
        name: impl Into<Name>,
        shape: impl Into<Shape>,
        values: Vec<T>,
    ) -> Result<Tensor, TensorError> {
        struct Owner<T>(Vec<T>);
        impl<T: Element> AsRef<[u8]> for Owner<T> {
            fn as_ref(&self) -> &[u8] {
                bytemuck::cast_slice(&self.0)
            }
        }
        Tensor::new(name, T::DATATYPE, shape, Bytes::from_owner(Owner(values)))
    }

    /// A BYTES tensor of `elements`. Errors if their number does not match `shape`.
    pub fn from_bytes_elements<B: AsRef<[u8]>>(
        name: impl Into<Name>,
        shape: impl Into<Shape>,
        elements: &[B],
    ) -> Result<Tensor, TensorError> {
        let size = elements.iter().map(|e| e.as_ref().len() + 4).sum();
        let mut data = BytesMut::with_capacity(size);
        for element in elements {
            let element = element.as_ref();
            data.put_u32_le(element.len() as u32);
            data.put_slice(element);
        }
        Tensor::new(name, DataType::Bytes, shape, data.freeze())
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Datatype of its elements.
    pub fn datatype(&self) -> DataType {
        self.datatype
    }

    /// Its dimensions; none is negative.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Its bytes, little-endian, row-major.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// Number of elements.
    pub fn element_count(&self) -> u64 {
        self.shape.element_count().expect("checked when the tensor was made")
    }

    /// The same tensor under another name; the bytes are shared.
    pub fn renamed(mut self, name: impl Into<Name>) -> Tensor {
        self.name = name.into();
        self
    }

    /// The same bytes under another shape with the same number of elements.
    pub fn reshaped(self, shape: impl Into<Shape>) -> Result<Tensor, TensorError> {
        Tensor::new(self.name, self.datatype, shape, self.data)
    }

    /// The elements as numbers: borrowed if the bytes are aligned for `T`, otherwise copied.
    pub fn values<T: Element>(&self) -> Result<Cow<'_, [T]>, TensorError> {
        if self.datatype != T::DATATYPE {
            return Err(TensorError::Datatype {
                name: self.name.clone(),
                expected: T::DATATYPE,
                actual: self.datatype,
            });
        }
        Ok(match bytemuck::try_cast_slice(&self.data) {
            Ok(values) => Cow::Borrowed(values),
            Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(&self.data)),
        })
    }

    /// The elements of a BYTES tensor, in row-major order.
    pub fn bytes_elements(&self) -> Result<impl Iterator<Item = &[u8]>, TensorError> {
        if self.datatype != DataType::Bytes {
            return Err(TensorError::Datatype {
                name: self.name.clone(),
                expected: DataType::Bytes,
                actual: self.datatype,
            });
        }
        let elements = BytesElements { rest: &self.data, offset: 0 };
        Ok(elements.map(|e| e.expect("length prefixes were checked when the tensor was made")))
    }
}

// === impl UncheckedTensor ===

impl UncheckedTensor {
    /// The tensor, if its fields match its bytes; see [`Tensor::new`].
    pub fn check(self) -> Result<Tensor, TensorError> {
        Tensor::new(self.name, self.datatype, self.shape, self.data)
    }
}

impl From<Tensor> for UncheckedTensor {
    fn from(tensor: Tensor) -> Self {
        UncheckedTensor { name: tensor.name, datatype: tensor.datatype, shape: tensor.shape, data: tensor.data }
    }
}

/// Iterates over length-prefixed elements. An item is an element, or the offset at which the bytes are malformed.
#[derive(Debug)]
pub struct BytesElements<'a> {
    rest: &'a [u8],
    offset: usize,
}

impl<'a> BytesElements<'a> {
    /// Iterates over raw, unchecked bytes in the BYTES binary form.
    pub fn new(data: &'a [u8]) -> Self {
        BytesElements { rest: data, offset: 0 }
    }
}

impl<'a> Iterator for BytesElements<'a> {
    type Item = Result<&'a [u8], usize>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let offset = self.offset;
        let element = self.rest.split_first_chunk::<4>().and_then(|(prefix, rest)| {
            let length = u32::from_le_bytes(*prefix) as usize;
            rest.split_at_checked(length)
        });
        let Some((element, rest)) = element else {
            self.rest = &[];
            return Some(Err(offset));
        };
        self.offset += 4 + element.len();
        self.rest = rest;
        Some(Ok(element))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_without_copy() {
        let tensor = Tensor::from_values("x", [2, 2], vec![1.0f32, 2.0, 3.0, 4.0]).unwrap();
        assert!(matches!(tensor.values::<f32>().unwrap(), Cow::Borrowed(&[1.0, 2.0, 3.0, 4.0])));
        assert!(matches!(tensor.values::<i64>(), Err(TensorError::Datatype { .. })));
    }

    #[test]
    fn misaligned_bytes_are_copied_not_refused() {
        let bytes = Bytes::from(vec![0u8, 1, 0, 0, 0, 0, 0, 0, 0]).slice(1..);
        let tensor = Tensor::new("x", DataType::Int64, [1], bytes).unwrap();
        assert_eq!(*tensor.values::<i64>().unwrap(), [1]);
    }

    #[test]
    fn bytes_elements_round_trip_with_empty_and_nul() {
        let tensor = Tensor::from_bytes_elements("t", [3], &[&b"a\0b"[..], b"", "é".as_bytes()]).unwrap();
        let back: Vec<_> = tensor.bytes_elements().unwrap().collect();
        assert_eq!(back, [&b"a\0b"[..], b"", "é".as_bytes()]);
    }

    #[test]
    fn inconsistent_bytes_are_refused() {
        let new = |shape: &[i64], data: &'static [u8], datatype| {
            Tensor::new("t", datatype, Shape::from(shape), Bytes::from_static(data))
        };
        assert!(matches!(
            new(&[2], &[0; 4], DataType::Fp32),
            Err(TensorError::ByteSize { expected: 8, actual: 4, .. })
        ));
        assert!(matches!(new(&[-1], &[], DataType::Fp32), Err(TensorError::NegativeDimension { .. })));
        assert!(matches!(new(&[i64::MAX, 9], &[], DataType::Int8), Err(TensorError::TooManyElements { .. })));
        assert!(matches!(new(&[i64::MAX], &[], DataType::Int64), Err(TensorError::ByteSize { .. })));
        let incomplete = |d| matches!(new(&[1], d, DataType::Bytes), Err(TensorError::IncompleteElement { .. }));
        assert!(incomplete(&[5, 0, 0, 0, 1]));
        assert!(incomplete(&[255, 255, 255, 255]));
        assert!(incomplete(&[0, 0]));
        assert!(matches!(
            new(&[2], &[0, 0, 0, 0], DataType::Bytes),
            Err(TensorError::ElementCount { expected: 2, actual: 1, .. })
        ));
    }

    #[test]
    fn zero_size_tensors_are_tensors() {
        assert_eq!(Tensor::new("t", DataType::Fp32, [2, 0], Bytes::new()).unwrap().element_count(), 0);
        assert_eq!(Tensor::new("t", DataType::Bytes, [0], Bytes::new()).unwrap().element_count(), 0);
        assert_eq!(Tensor::new("t", DataType::Int64, [0, 1 << 24], Bytes::new()).unwrap().element_count(), 0);
    }

    #[test]
    fn what_a_request_asks_for_has_room_within_a_message_or_in_proportion_to_the_request() {
        let room = |rows: i64, given: usize| room_for("y", [rows, 256], 4, given);
        assert_eq!(room(1 << 17, 0).unwrap(), 1 << 25);
        let error = room((1 << 17) + 1, 1000).unwrap_err().to_string();
        assert_eq!(
            error,
            "tensor 'y' of shape [131073,256] takes 134218752 bytes, and a request may ask for 134217728 at most: send fewer rows"
        );
        assert!(room(1 << 18, 128 << 20).is_ok() && room((1 << 18) + 1, 128 << 20).is_err());
        for shape in [vec![i64::MAX], vec![i64::MAX, i64::MAX], vec![-1]] {
            assert!(room_for("y", shape, 4, usize::MAX / 4).is_err());
        }
    }

    #[test]
    fn shapes_that_cost_nothing_and_promise_much_are_refused() {
        for shape in [vec![1 << 45, 0], vec![0, (1 << 24) + 1], vec![0, i64::MAX, i64::MAX], vec![1 << 20, 0, 1 << 20]]
        {
            for datatype in [DataType::Fp32, DataType::Bytes] {
                let tensor = Tensor::new("t", datatype, shape.clone(), Bytes::new());
                assert!(matches!(tensor, Err(TensorError::VastAndEmpty { .. })), "{shape:?}: {tensor:?}");
            }
        }
    }
}
