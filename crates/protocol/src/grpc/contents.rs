//! Converts typed tensor contents, which clients send in place of raw bytes.

use bytes::{BufMut, Bytes, BytesMut};
use trireme_inference::{DataType, InferError};

use super::wire::InferTensorContents;

/// The elements of the input `name` as bytes, from the one field that has any; no bytes if there are none. Their number
/// is checked against the shape later.
pub(super) fn to_bytes(
    name: &str,
    model: &str,
    datatype: DataType,
    contents: InferTensorContents,
) -> Result<Bytes, InferError> {
    use DataType::{Bool, Fp32, Fp64, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64};
    let InferTensorContents {
        bool_contents,
        int_contents,
        int64_contents,
        uint_contents,
        uint64_contents,
        fp32_contents,
        fp64_contents,
        bytes_contents,
    } = contents;
    // The smaller integers share a field with the 32-bit ones; their upper bytes are dropped.
    let narrow = |smaller: [DataType; 2], field| if smaller.contains(&datatype) { datatype } else { field };
    let (signed, unsigned) = (narrow([Int8, Int16], Int32), narrow([Uint8, Uint16], Uint32));
    let width = datatype.element_size().unwrap_or(0);

    let mut data = None;
    let mut field = |holds: DataType, count: usize, bytes: &dyn Fn() -> Bytes| {
        let refusal = |reason: &str| {
            InferError::invalid_arg(format!(
                "unexpected explicit tensor data for input tensor '{name}' for model '{model}'{reason}"
            ))
        };
        if count == 0 {
            return Ok(());
        }
        if data.is_some() {
            return Err(refusal(", binary data was already supplied."));
        }
        if holds != datatype {
            return Err(refusal(&format!(" of type '{holds}', expected datatype '{datatype}'")));
        }
        data = Some(bytes());
        Ok(())
    };
    field(Bool, bool_contents.len(), &|| collect(&bool_contents, 1, |&value| [u8::from(value)]))?;
    field(signed, int_contents.len(), &|| collect(&int_contents, width, |value| value.to_le_bytes()))?;
    field(Int64, int64_contents.len(), &|| collect(&int64_contents, width, |value| value.to_le_bytes()))?;
    field(unsigned, uint_contents.len(), &|| collect(&uint_contents, width, |value| value.to_le_bytes()))?;
    field(Uint64, uint64_contents.len(), &|| collect(&uint64_contents, width, |value| value.to_le_bytes()))?;
    field(Fp32, fp32_contents.len(), &|| collect(&fp32_contents, width, |value| value.to_le_bytes()))?;
    field(Fp64, fp64_contents.len(), &|| collect(&fp64_contents, width, |value| value.to_le_bytes()))?;
    field(DataType::Bytes, bytes_contents.len(), &|| length_prefixed(&bytes_contents))?;
    Ok(data.unwrap_or_default())
}

/// The first `width` bytes of each value, one after the other.
fn collect<T, const N: usize>(values: &[T], width: usize, bytes: impl Fn(&T) -> [u8; N]) -> Bytes {
    let mut data = Vec::with_capacity(values.len() * width);
    values.iter().for_each(|value| data.extend_from_slice(&bytes(value)[..width]));
    data.into()
}

fn length_prefixed(elements: &[Bytes]) -> Bytes {
    let size = elements.iter().map(|element| 4 + element.len()).sum();
    let mut data = BytesMut::with_capacity(size);
    for element in elements {
        // No message reaches 4 GiB, so no element does.
        data.put_u32_le(element.len() as u32);
        data.put_slice(element);
    }
    data.freeze()
}
