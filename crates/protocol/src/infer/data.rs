//! Converts tensor elements between JSON text and tensor bytes.

use bytes::Bytes;
use trireme_inference::{Buffer, DataType, InferError, MAX_ELEMENTS, Shape, Tensor};

use super::Room;
use crate::json::{JsonError, Value, Writer};
use crate::refusal::unable_to_parse;

/// Bytes of the length before each element of BYTES.
const LENGTH_PREFIX: usize = 4;

// --- from JSON ---

/// The bytes of the input `name` from its `data`, nested or flat. Integers wrap to their datatype, as in Triton. The
/// number of elements has to match `shape`, except for BYTES, whose elements are counted when the tensor is checked.
pub(super) fn from_json(
    name: &str,
    datatype: DataType,
    shape: &Shape,
    data: Option<Value<'_>>,
    room: Room<'_>,
) -> Result<Bytes, InferError> {
    let count = count_elements(name, datatype, shape)?;
    if count == 0 {
        return Ok(Bytes::new());
    }
    let data = data.ok_or(JsonError::MissingMember("data")).and_then(|data| data.as_array());
    let data = data.map_err(unable_to_parse("data"))?;
    from_elements(name, datatype, count, data.flatten(), data.text_len(), room)
}

/// The bytes of the input `name` from its elements. There must be `count` of them, unless they are strings. `text_len`
/// is the length of their JSON text.
pub(crate) fn from_elements<'a>(
    name: &str,
    datatype: DataType,
    count: u64,
    data: impl Iterator<Item = Result<Value<'a>, JsonError>>,
    text_len: usize,
    room: Room<'_>,
) -> Result<Bytes, InferError> {
    // The count is only a claim. The length of the text limits it: each element has at least one byte and a comma.
    let limit = (text_len as u64).div_ceil(2).min(count) as usize;
    room(match datatype.element_size() {
        Some(size) => limit * size,
        None => text_len + limit * LENGTH_PREFIX,
    } as u64)?;
    let numbers = Numbers { data, count, limit };
    match datatype {
        DataType::Bool => numbers.read(|v| v.as_bool().map(|b| [u8::from(b)])),
        DataType::Uint8 => numbers.read(|v| v.as_u64().map(|n| (n as u8).to_le_bytes())),
        DataType::Uint16 => numbers.read(|v| v.as_u64().map(|n| (n as u16).to_le_bytes())),
        DataType::Uint32 => numbers.read(|v| v.as_u64().map(|n| (n as u32).to_le_bytes())),
        DataType::Uint64 => numbers.read(|v| v.as_u64().map(|n| n.to_le_bytes())),
        DataType::Int8 => numbers.read(|v| v.as_i64().map(|n| (n as i8).to_le_bytes())),
        DataType::Int16 => numbers.read(|v| v.as_i64().map(|n| (n as i16).to_le_bytes())),
        DataType::Int32 => numbers.read(|v| v.as_i64().map(|n| (n as i32).to_le_bytes())),
        DataType::Int64 => numbers.read(|v| v.as_i64().map(|n| n.to_le_bytes())),
        DataType::Fp32 => numbers.read(|v| v.as_f64().map(|n| (n as f32).to_le_bytes())),
        DataType::Fp64 => numbers.read(|v| v.as_f64().map(|n| n.to_le_bytes())),
        DataType::Bytes => strings(numbers.data, text_len),
        DataType::Fp16 | DataType::Bf16 => Err(InferError::invalid_arg(format!(
            "receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}"
        ))),
    }
}

/// The error for bytes that the system has no memory for.
fn no_memory(error: std::io::Error) -> InferError {
    InferError::unavailable(format!("no memory for the tensors of the request: {error}"))
}

fn count_elements(name: &str, datatype: DataType, shape: &Shape) -> Result<u64, InferError> {
    let Some(count) = shape.element_count() else {
        let fault = match shape.iter().any(|&d| d < 0) {
            true => "contains one or more invalid dimensions".to_owned(),
            false => format!("causes total element count to exceed maximum size of {MAX_ELEMENTS}"),
        };
        return Err(InferError::invalid_arg(format!("invalid shape for input '{name}': shape {shape} {fault}")));
    };
    let size = datatype.element_size().unwrap_or(1) as u64;
    if count > MAX_ELEMENTS / size {
        return Err(InferError::invalid_arg(format!(
            "byte size overflow for input '{name}': element count ({count}) * data type size ({size}) exceeds maximum \
             allowed size ({MAX_ELEMENTS})"
        )));
    }
    Ok(count)
}

/// Elements of a numeric tensor.
struct Numbers<I> {
    data: I,
    count: u64,
    /// The number of elements to allocate for.
    limit: usize,
}

impl<'a, I: Iterator<Item = Result<Value<'a>, JsonError>>> Numbers<I> {
    fn read<const SIZE: usize>(
        self,
        convert: impl Fn(&Value<'_>) -> Result<[u8; SIZE], JsonError>,
    ) -> Result<Bytes, InferError> {
        let mut bytes = Buffer::with_capacity(self.limit * SIZE).map_err(no_memory)?;
        let mut left = self.count;
        for element in self.data {
            let element = element.map_err(unable_to_parse("data"))?;
            if left == 0 {
                return Err(InferError::internal(
                    "Unable to parse 'data': Shape does not match true shape of 'data' field",
                ));
            }
            bytes.put(&convert(&element).map_err(unable_to_parse("data"))?).map_err(no_memory)?;
            left -= 1;
        }
        match left {
            0 => bytes.freeze().map_err(no_memory),
            _ => Err(InferError::internal("Failed to parse 'data' field: shape does not match true shape")),
        }
    }
}

fn strings<'a>(data: impl Iterator<Item = Result<Value<'a>, JsonError>>, text_len: usize) -> Result<Bytes, InferError> {
    let mut bytes = Buffer::with_capacity(text_len).map_err(no_memory)?;
    for element in data {
        let element = element?;
        let text = element.as_bytes().map_err(|error| error.context("Unable to parse JSON bytes array"))?;
        let length =
            u32::try_from(text.len()).map_err(|_| InferError::internal("Tensor size is too large to be processed"))?;
        bytes.put(&length.to_le_bytes()).map_err(no_memory)?;
        bytes.put(text).map_err(no_memory)?;
    }
    bytes.freeze().map_err(no_memory)
}

// --- to JSON ---

/// Whether elements of this datatype can be written in JSON. The error says why the output `name` cannot be sent.
pub(crate) fn check_writable(name: &str, datatype: DataType) -> Result<(), InferError> {
    match datatype {
        DataType::Fp16 | DataType::Bf16 => Err(InferError::invalid_arg(format!(
            "sending {datatype} data via JSON is not supported. Please use the binary data format for output {name}"
        ))),
        _ => Ok(()),
    }
}

/// Approximate bytes that [`write()`] writes.
pub(super) fn estimate(tensor: &Tensor) -> usize {
    match tensor.datatype() {
        DataType::Fp32 | DataType::Fp64 => tensor.element_count() as usize * 22,
        DataType::Bytes => tensor.data().len(),
        _ => tensor.element_count() as usize * 7,
    }
}

/// Writes `tensor`'s elements as a flat array. FP32 is written as the equal double.
pub(super) fn write(tensor: &Tensor, w: &mut Writer) {
    w.array(|w| write_elements(tensor, w));
}

/// Writes `tensor`'s elements, one value after the other.
pub(crate) fn write_elements(tensor: &Tensor, w: &mut Writer) {
    let data = tensor.data();
    match tensor.datatype() {
        DataType::Bool => data.iter().for_each(|&b| w.bool(b != 0)),
        DataType::Uint8 => each(data, |b| w.integer(u8::from_le_bytes(b))),
        DataType::Uint16 => each(data, |b| w.integer(u16::from_le_bytes(b))),
        DataType::Uint32 => each(data, |b| w.integer(u32::from_le_bytes(b))),
        DataType::Uint64 => each(data, |b| w.integer(u64::from_le_bytes(b))),
        DataType::Int8 => each(data, |b| w.integer(i8::from_le_bytes(b))),
        DataType::Int16 => each(data, |b| w.integer(i16::from_le_bytes(b))),
        DataType::Int32 => each(data, |b| w.integer(i32::from_le_bytes(b))),
        DataType::Int64 => each(data, |b| w.integer(i64::from_le_bytes(b))),
        DataType::Fp32 => each(data, |b| w.double(f64::from(f32::from_le_bytes(b)))),
        DataType::Fp64 => each(data, |b| w.double(f64::from_le_bytes(b))),
        DataType::Bytes => tensor.bytes_elements().expect("the datatype is BYTES").for_each(|e| w.string(e)),
        DataType::Fp16 | DataType::Bf16 => unreachable!("refused by `check_writable` before anything is written"),
    }
}

fn each<const SIZE: usize>(data: &[u8], mut write: impl FnMut([u8; SIZE])) {
    let (elements, _) = data.as_chunks::<SIZE>();
    elements.iter().for_each(|&element| write(element));
}
