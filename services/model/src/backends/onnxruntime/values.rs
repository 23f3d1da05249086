//! Converts tensors to ONNX Runtime's values and back.
//!
//! Numbers go in without a copy if their bytes are aligned, and come out with a copy: an output may be memory of the
//! session's arena, of the model's weights or even of an input, and none of these may leave with the answer. Strings
//! are arbitrary bytes, possibly invalid UTF-8 or with NULs, so they bypass the library's C-string functions.

use bytes::{BufMut, Bytes, BytesMut};
use half::{bf16, f16};
use ort::AsPointer;
use ort::memory::Allocator;
use ort::session::SessionInputValue;
use ort::value::{DynTensor, DynValue, PrimitiveTensorElementType, TensorElementType, TensorRef};
use trireme_inference::{DataType, Element, InferError, Shape, Tensor};

/// Calls a generic function for the Rust type of a fixed-size datatype.
macro_rules! for_number {
    ($datatype:expr, $function:ident($($argument:expr),*), BOOL => $bool:expr, BYTES => $bytes:expr) => {
        match $datatype {
            DataType::Bool => $bool,
            DataType::Bytes => $bytes,
            DataType::Uint8 => $function::<u8>($($argument),*),
            DataType::Uint16 => $function::<u16>($($argument),*),
            DataType::Uint32 => $function::<u32>($($argument),*),
            DataType::Uint64 => $function::<u64>($($argument),*),
            DataType::Int8 => $function::<i8>($($argument),*),
            DataType::Int16 => $function::<i16>($($argument),*),
            DataType::Int32 => $function::<i32>($($argument),*),
            DataType::Int64 => $function::<i64>($($argument),*),
            DataType::Fp16 => $function::<f16>($($argument),*),
            DataType::Fp32 => $function::<f32>($($argument),*),
            DataType::Fp64 => $function::<f64>($($argument),*),
            DataType::Bf16 => $function::<bf16>($($argument),*),
        }
    };
}

/// The datatype of ONNX Runtime's element type; `None` if the v2 protocol does not have it.
pub fn datatype(element: TensorElementType) -> Option<DataType> {
    Some(match element {
        TensorElementType::Bool => DataType::Bool,
        TensorElementType::Uint8 => DataType::Uint8,
        TensorElementType::Uint16 => DataType::Uint16,
        TensorElementType::Uint32 => DataType::Uint32,
        TensorElementType::Uint64 => DataType::Uint64,
        TensorElementType::Int8 => DataType::Int8,
        TensorElementType::Int16 => DataType::Int16,
        TensorElementType::Int32 => DataType::Int32,
        TensorElementType::Int64 => DataType::Int64,
        TensorElementType::Float16 => DataType::Fp16,
        TensorElementType::Float32 => DataType::Fp32,
        TensorElementType::Float64 => DataType::Fp64,
        TensorElementType::String => DataType::Bytes,
        TensorElementType::Bfloat16 => DataType::Bf16,
        _ => return None,
    })
}

/// `tensor` with the shape at the model; borrows its bytes if they are aligned.
pub fn input_value<'t>(tensor: &'t Tensor, shape: &Shape) -> ort::Result<SessionInputValue<'t>> {
    for_number!(tensor.datatype(), numbers(tensor, shape), BOOL => booleans(tensor, shape), BYTES => strings(tensor, shape))
}

/// `tensor` with the shape at the model, in memory of `allocator`, which has to be the host's. Strings have memory of their own and
/// cannot be there.
pub fn copied_value(tensor: &Tensor, shape: &Shape, allocator: &Allocator) -> ort::Result<DynValue> {
    let booleans = || {
        let mut value = ort::value::Tensor::<bool>::new(allocator, shape.to_vec())?;
        if !tensor.data().is_empty() {
            let (_, elements) = value.try_extract_tensor_mut::<bool>()?;
            elements.iter_mut().zip(&tensor.data()[..]).for_each(|(element, &byte)| *element = byte != 0);
        }
        Ok(value.into_dyn())
    };
    let strings = || Err(ort::Error::new(format!("input '{}' has strings, which cannot be staged", tensor.name())));
    for_number!(tensor.datatype(), copied_numbers(tensor, shape, allocator), BOOL => booleans(), BYTES => strings())
}

fn copied_numbers<T>(tensor: &Tensor, shape: &Shape, allocator: &Allocator) -> ort::Result<DynValue>
where
    T: Element + PrimitiveTensorElementType + std::fmt::Debug,
{
    let mut value = ort::value::Tensor::<T>::new(allocator, shape.to_vec())?;
    if !tensor.data().is_empty() {
        let (_, elements) = value.try_extract_tensor_mut::<T>()?;
        elements.copy_from_slice(&tensor.values::<T>().map_err(ort::Error::wrap)?);
    }
    Ok(value.into_dyn())
}

fn numbers<'t, T>(tensor: &'t Tensor, shape: &Shape) -> ort::Result<SessionInputValue<'t>>
where
    T: Element + PrimitiveTensorElementType + std::fmt::Debug,
{
    use std::borrow::Cow::{Borrowed, Owned};
    Ok(match tensor.values::<T>().map_err(ort::Error::wrap)? {
        Borrowed(values) => TensorRef::from_array_view((shape.to_vec(), values))?.into(),
        Owned(values) => ort::value::Tensor::from_array((shape.to_vec(), values))?.into(),
    })
}

/// Converts booleans: any byte but 0 is true on the wire, while a Rust `bool` is 0 or 1.
fn booleans<'t>(tensor: &'t Tensor, shape: &Shape) -> ort::Result<SessionInputValue<'t>> {
    Ok(match bytemuck::checked::try_cast_slice::<u8, bool>(tensor.data()) {
        Ok(values) => TensorRef::from_array_view((shape.to_vec(), values))?.into(),
        Err(_) => {
            let values: Vec<bool> = tensor.data().iter().map(|&byte| byte != 0).collect();
            ort::value::Tensor::from_array((shape.to_vec(), values))?.into()
        }
    })
}

#[allow(unsafe_code, reason = "the safe function takes only UTF-8 without NUL")]
fn strings<'t>(tensor: &'t Tensor, shape: &Shape) -> ort::Result<SessionInputValue<'t>> {
    let mut value = DynTensor::new(&Allocator::default(), TensorElementType::String, shape.to_vec())?;
    for (index, element) in tensor.bytes_elements().map_err(ort::Error::wrap)?.enumerate() {
        let mut buffer = std::ptr::null_mut();
        // SAFETY: `value` is a live string tensor with as many elements as `tensor` (both have the shape's element
        // count), so `index` is in range. On success `buffer` points at `element.len()` writable bytes of that element,
        // which stay in place until the element is resized again.
        unsafe {
            let api = ort::api();
            let status = (api.GetResizedStringTensorElementBuffer)(value.ptr_mut(), index, element.len(), &mut buffer);
            ort::Error::result_from_status(status)?;
            std::ptr::copy_nonoverlapping(element.as_ptr(), buffer.cast(), element.len());
        }
    }
    Ok(value.into())
}

/// Copies the output `name` to a tensor.
pub fn output_tensor(name: &str, value: &DynValue) -> Result<Tensor, InferError> {
    let element = value.dtype().tensor_type().ok_or_else(|| unexpected(name, &value.dtype().to_string()))?;
    let datatype = datatype(element).ok_or_else(|| unexpected(name, &element.to_string()))?;
    let shape = value.dtype().tensor_shape().map(|shape| Shape::from(&shape[..])).unwrap_or_default();
    let data = match shape.element_count() {
        Some(0) => Ok(Bytes::new()),
        _ => for_number!(datatype, copy_numbers(value), BOOL => copy_booleans(value), BYTES => copy_strings(value)),
    };
    let data = data.map_err(|error| InferError::internal(format!("cannot read output '{name}': {error}")))?;
    Tensor::new(name, datatype, shape, data).map_err(|error| InferError::internal(error.to_string()))
}

fn copy_numbers<T: Element + PrimitiveTensorElementType>(value: &DynValue) -> ort::Result<Bytes> {
    let (_, values) = value.try_extract_tensor::<T>()?;
    Ok(Bytes::copy_from_slice(bytemuck::cast_slice(values)))
}

fn copy_booleans(value: &DynValue) -> ort::Result<Bytes> {
    let (_, values) = value.try_extract_tensor::<bool>()?;
    Ok(Bytes::copy_from_slice(bytemuck::cast_slice(values)))
}

#[allow(unsafe_code, reason = "the safe function fails on elements that are not UTF-8")]
fn copy_strings(value: &DynValue) -> ort::Result<Bytes> {
    let count = value.dtype().tensor_shape().map_or(0, |shape| shape.num_elements());
    let api = ort::api();
    let mut size = 0usize;
    let mut offsets = vec![0usize; count];
    // SAFETY: `value` is a live string tensor of `count` elements: the caller checked its type and shape. Both calls
    // only read it; the second writes `size` bytes and `count` offsets into buffers of those lengths.
    let content = unsafe {
        ort::Error::result_from_status((api.GetStringTensorDataLength)(value.ptr(), &mut size))?;
        let mut content = vec![0u8; size];
        let buffer = content.as_mut_ptr().cast();
        let status = (api.GetStringTensorContent)(value.ptr(), buffer, size, offsets.as_mut_ptr(), count);
        ort::Error::result_from_status(status)?;
        content
    };
    let mut data = BytesMut::with_capacity(size + 4 * count);
    let ends = offsets.iter().skip(1).copied().chain([size]);
    for (&start, end) in offsets.iter().zip(ends) {
        let element = content.get(start..end).ok_or_else(|| ort::Error::new("string offsets are out of order"))?;
        data.put_u32_le(element.len() as u32);
        data.put_slice(element);
    }
    Ok(data.freeze())
}

fn unexpected(name: &str, found: &str) -> InferError {
    InferError::unsupported(format!("output '{name}' is a {found}, which the v2 protocol cannot carry"))
}
