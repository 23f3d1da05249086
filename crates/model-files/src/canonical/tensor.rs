//! Weights: a TensorProto as a digest of its datatype, shape and elements, in whichever of its fields or files these are.

use std::io::{self, Read, Seek};

use ring::digest::{Context, SHA256};

use super::{Hash, Parts, Reader, finished, hash_up_to, read_up_to};
use crate::onnx::{Field, Wire, damaged};

/// The fields of a TensorProto.
struct Tensor {
    name: String,
    dims: Vec<i64>,
    datatype: u64,
    /// The elements that are stored as numbers of variable length.
    numbers: Vec<u64>,
    /// The elements that are stored as bytes, and the count of these.
    data: Context,
    bytes: u64,
    location: String,
    offset: u64,
}

// === impl Reader ===

impl Reader<'_> {
    /// TensorProto: its name and its digest.
    pub(super) fn tensor<R: Read + Seek>(&mut self, wire: &mut Wire<R>, end: u64) -> io::Result<(String, Hash)> {
        let mut tensor = Tensor::read(wire, end)?;
        let expected = tensor.expected_bytes()?;
        let (width, numbers) = (tensor.width(), std::mem::take(&mut tensor.numbers));
        for number in numbers {
            let bytes = number.to_le_bytes();
            // Smaller elements are stored as numbers of 32 or 64 bits; packed ones of 4 bits a byte each.
            tensor.add(&bytes[..width.unwrap_or(1).min(8) as usize]);
        }
        if !tensor.location.is_empty() {
            let length = expected.ok_or_else(|| damaged(&format!("the size of '{}' is not known", tensor.name)))?;
            let (location, offset) = (tensor.location.clone(), tensor.offset);
            self.beside(&location, offset, length, |bytes| tensor.add(bytes))?;
        }
        match expected {
            Some(expected) if tensor.bytes != expected => Err(damaged(&format!(
                "the weight '{}' has {} bytes, expected {expected} by its shape",
                tensor.name, tensor.bytes
            ))),
            _ => Ok(tensor.finish()),
        }
    }
}

// === impl Tensor ===

impl Tensor {
    fn read<R: Read + Seek>(wire: &mut Wire<R>, end: u64) -> io::Result<Tensor> {
        let mut tensor = Tensor {
            name: String::new(),
            dims: Vec::new(),
            datatype: 0,
            numbers: Vec::new(),
            data: Context::new(&SHA256),
            bytes: 0,
            location: String::new(),
            offset: 0,
        };
        wire.fields(end, |wire, field, value| {
            match (field, value) {
                (1, Field::Number(dim)) => tensor.dims.push(dim as i64),
                (1, Field::Bytes(end)) => {
                    while wire.position < end {
                        tensor.dims.push(wire.varint()? as i64);
                    }
                }
                (2, Field::Number(datatype)) => tensor.datatype = datatype,
                (8, Field::Bytes(end)) => tensor.name = wire.text(end)?,
                // float_data, double_data and raw_data have the elements as they are in memory.
                (4 | 9 | 10, Field::Bytes(end)) => read_up_to(wire, end, |bytes| tensor.add(bytes))?,
                (4, Field::Fixed32(bytes)) => tensor.add(&bytes),
                (10, Field::Fixed64(bytes)) => tensor.add(&bytes),
                (5 | 7 | 11, Field::Number(number)) => tensor.numbers.push(number),
                (5 | 7 | 11, Field::Bytes(end)) => {
                    while wire.position < end {
                        tensor.numbers.push(wire.varint()?);
                    }
                }
                (6, Field::Bytes(end)) => {
                    let text = hash_up_to(wire, end)?;
                    tensor.add(&text);
                }
                (13, Field::Bytes(end)) => match wire.entry(end)? {
                    (key, value) if key == "location" => tensor.location = value,
                    (key, value) if key == "offset" => {
                        tensor.offset = value
                            .parse()
                            .map_err(|_| damaged(&format!("a weight has the offset '{value}', expected a number")))?;
                    }
                    _ => {}
                },
                _ => {}
            }
            Ok(())
        })?;
        Ok(tensor)
    }

    fn add(&mut self, bytes: &[u8]) {
        self.data.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// Bytes of an element; `None` for texts, and for datatypes that are newer than this code.
    fn width(&self) -> Option<u64> {
        Some(match self.datatype {
            2 | 3 | 9 | 17..=20 => 1,
            4 | 5 | 10 | 16 => 2,
            1 | 6 | 12 => 4,
            7 | 11 | 13 | 14 => 8,
            15 => 16,
            _ => return None,
        })
    }

    /// The bytes that its elements take; `None` where the datatype does not say it.
    fn expected_bytes(&self) -> io::Result<Option<u64>> {
        let size = |dim: &i64| u64::try_from(*dim).ok();
        let mut sizes = self.dims.iter().map(size);
        let elements = sizes.try_fold(1_u64, |product, dim| product.checked_mul(dim?));
        let elements = elements.ok_or_else(|| damaged(&format!("the weight '{}' has no shape", self.name)))?;
        // Two elements of 4 bits are a byte.
        let bytes = if matches!(self.datatype, 21..=23) {
            Some(elements.div_ceil(2))
        } else {
            self.width().and_then(|width| elements.checked_mul(width))
        };
        Ok(bytes)
    }

    fn finish(self) -> (String, Hash) {
        let mut weight = Parts::new("weight");
        weight.add(&self.datatype.to_le_bytes());
        for dim in self.dims {
            weight.add(&dim.to_le_bytes());
        }
        weight.add(&finished(self.data));
        (self.name, weight.finish())
    }
}
