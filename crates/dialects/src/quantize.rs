//! Vectors in fewer bits. A vector of length 1 has numbers from -1 to 1: bytes are these numbers times 127, bits are their
//! signs, eight to a byte, the first the highest, as sentence-transformers packs them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize, Serializer};
use trireme_protocol::json::Writer;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use super::answer::{self, EncodingFormat};
use super::refusal::Refusal;

/// A form of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EmbeddingType {
    /// FP32 numbers.
    Float,
    /// Numbers times 127, from -127 to 127.
    Int8,
    /// The same plus 128, from 1 to 255.
    Uint8,
    /// Signs, eight to a byte, less 128.
    Binary,
    /// Signs, eight to a byte.
    Ubinary,
    /// The FP32 numbers, little-endian, in base64.
    Base64,
}

/// A vector in an answer.
#[derive(Clone, Copy, Debug)]
pub struct Vector<'a> {
    pub numbers: &'a [f32],
    pub elements: EmbeddingType,
    /// Whether the elements are JSON numbers, or their bytes are written in base64. [`EmbeddingType::Base64`] is in base64 either way.
    pub format: EncodingFormat,
}

// === impl Vector ===

impl Serialize for Vector<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let numbers = self.numbers;
        if self.format == EncodingFormat::Base64 || self.elements == EmbeddingType::Base64 {
            return serializer.serialize_str(&self.elements.in_base64(numbers));
        }
        match self.elements {
            EmbeddingType::Float | EmbeddingType::Base64 => numbers.serialize(serializer),
            EmbeddingType::Int8 => serializer.collect_seq(numbers.iter().map(|&n| byte(n))),
            EmbeddingType::Uint8 => serializer.collect_seq(numbers.iter().map(|&n| byte(n) + 128)),
            EmbeddingType::Ubinary => serializer.collect_seq(packed(numbers)),
            EmbeddingType::Binary => serializer.collect_seq(packed(numbers).map(|byte| i16::from(byte) - 128)),
        }
    }
}

impl PartialSchema for Vector<'_> {
    fn schema() -> RefOr<Schema> {
        RefOr::T(answer::vector_schema())
    }
}

impl ToSchema for Vector<'_> {}

// === impl EmbeddingType ===

impl EmbeddingType {
    /// The name of it.
    pub fn name(self) -> &'static str {
        match self {
            EmbeddingType::Float => "float",
            EmbeddingType::Int8 => "int8",
            EmbeddingType::Uint8 => "uint8",
            EmbeddingType::Binary => "binary",
            EmbeddingType::Ubinary => "ubinary",
            EmbeddingType::Base64 => "base64",
        }
    }

    /// Whether all these numbers can be had in it; `field` asks for it.
    pub fn check(self, field: &str, numbers: &[f32]) -> Result<(), Refusal> {
        if !matches!(self, EmbeddingType::Int8 | EmbeddingType::Uint8) {
            return Ok(());
        }
        // A vector of length 1 may be a little longer by rounding.
        match numbers.iter().find(|number| number.abs() > 1.001) {
            None => Ok(()),
            Some(number) => Err(Refusal::unsupported(
                field,
                format!("asks for '{}', which needs vectors of length 1, found a vector with {number}", self.name()),
            )),
        }
    }

    /// The bytes of a vector in base64; FP32 numbers little-endian, as tensors have them.
    fn in_base64(self, numbers: &[f32]) -> String {
        let bytes: Vec<u8> = match self {
            EmbeddingType::Float | EmbeddingType::Base64 => return STANDARD.encode(bytemuck::cast_slice::<_, u8>(numbers)),
            EmbeddingType::Int8 => numbers.iter().map(|&n| byte(n) as u8).collect(),
            EmbeddingType::Uint8 => numbers.iter().map(|&n| (byte(n) + 128) as u8).collect(),
            EmbeddingType::Ubinary => packed(numbers).collect(),
            EmbeddingType::Binary => packed(numbers).map(|byte| byte.wrapping_sub(128)).collect(),
        };
        STANDARD.encode(bytes)
    }

    /// Writes a vector.
    pub fn write(self, out: &mut Writer, numbers: &[f32]) {
        match self {
            EmbeddingType::Float => answer::floats(out, numbers),
            EmbeddingType::Base64 => answer::base64(out, numbers),
            EmbeddingType::Int8 => out.array(|out| numbers.iter().for_each(|&n| out.integer(byte(n)))),
            EmbeddingType::Uint8 => out.array(|out| numbers.iter().for_each(|&n| out.integer(byte(n) + 128))),
            EmbeddingType::Ubinary => out.array(|out| packed(numbers).for_each(|byte| out.integer(byte))),
            EmbeddingType::Binary => {
                out.array(|out| packed(numbers).for_each(|byte| out.integer(i16::from(byte) - 128)));
            }
        }
    }

    /// Writes the bytes of a vector in base64.
    pub fn write_base64(self, out: &mut Writer, numbers: &[f32]) {
        let bytes: Vec<u8> = match self {
            EmbeddingType::Float | EmbeddingType::Base64 => return answer::base64(out, numbers),
            EmbeddingType::Int8 => numbers.iter().map(|&n| byte(n) as u8).collect(),
            EmbeddingType::Uint8 => numbers.iter().map(|&n| (byte(n) + 128) as u8).collect(),
            EmbeddingType::Ubinary => packed(numbers).collect(),
            EmbeddingType::Binary => packed(numbers).map(|byte| byte.wrapping_sub(128)).collect(),
        };
        out.string(STANDARD.encode(bytes));
    }
}

/// A number as a byte.
fn byte(number: f32) -> i16 {
    (number.clamp(-1.0, 1.0) * 127.0).round() as i16
}

/// The signs of numbers, eight to a byte; the last byte is filled up with 0.
fn packed(numbers: &[f32]) -> impl Iterator<Item = u8> {
    numbers.chunks(8).map(|eight| {
        eight.iter().enumerate().fold(0, |byte, (bit, &number)| byte | u8::from(number > 0.0) << (7 - bit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(form: EmbeddingType, numbers: &[f32]) -> String {
        let mut out = Writer::default();
        form.write(&mut out, numbers);
        String::from_utf8(out.into_bytes().to_vec()).unwrap()
    }

    #[test]
    fn forms_are_those_of_sentence_transformers() {
        let numbers = [1.0, -1.0, 0.5, 0.0, 0.1, -0.1, 0.2, 0.3, -0.5, 0.5];
        assert_eq!(written(EmbeddingType::Int8, &numbers), "[127,-127,64,0,13,-13,25,38,-64,64]");
        assert_eq!(written(EmbeddingType::Uint8, &numbers[..3]), "[255,1,192]");
        // 1 0 1 0 1 0 1 1, 0 1
        assert_eq!(written(EmbeddingType::Ubinary, &numbers), "[171,64]");
        assert_eq!(written(EmbeddingType::Binary, &numbers), "[43,-64]");
        assert_eq!(written(EmbeddingType::Float, &numbers[2..3]), "[0.5]");
        let in_base64 = |form: EmbeddingType| {
            let mut out = Writer::default();
            form.write_base64(&mut out, &numbers[..3]);
            out.into_bytes()
        };
        // 127 -127 64 and 255 1 192 as bytes
        assert_eq!(
            (in_base64(EmbeddingType::Int8), in_base64(EmbeddingType::Uint8)),
            ("\"f4FA\"".into(), "\"/wHA\"".into())
        );
    }

    #[test]
    fn bytes_need_vectors_of_length_1() {
        assert!(EmbeddingType::Int8.check("f", &[1.0004]).is_ok());
        assert!(EmbeddingType::Float.check("f", &[3.0]).is_ok() && EmbeddingType::Binary.check("f", &[3.0]).is_ok());
        let refusal = EmbeddingType::Uint8.check("f", &[0.1, 3.0]).unwrap_err();
        assert!(refusal.message.contains("'uint8', which needs vectors of length 1"), "{}", refusal.message);
    }
}
