//! Vectors in fewer bits. A vector of length 1 has numbers from -1 to 1: bytes are these numbers times 127, bits are their
//! signs, eight to a byte, the first the highest, as sentence-transformers packs them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize, Serializer};
use trireme_server::http::schema;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use super::answer::EncodingFormat;
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
        RefOr::T(schema::any_of([schema::list(schema::number()), schema::text()]))
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
            EmbeddingType::Float | EmbeddingType::Base64 => {
                return STANDARD.encode(bytemuck::cast_slice::<_, u8>(numbers));
            }
            EmbeddingType::Int8 => numbers.iter().map(|&n| byte(n) as u8).collect(),
            EmbeddingType::Uint8 => numbers.iter().map(|&n| (byte(n) + 128) as u8).collect(),
            EmbeddingType::Ubinary => packed(numbers).collect(),
            EmbeddingType::Binary => packed(numbers).map(|byte| byte.wrapping_sub(128)).collect(),
        };
        STANDARD.encode(bytes)
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

    fn written(elements: EmbeddingType, format: EncodingFormat, numbers: &[f32]) -> String {
        serde_json::to_string(&Vector { numbers, elements, format }).unwrap()
    }

    #[test]
    fn forms_are_those_of_sentence_transformers() {
        let written_as = |form, numbers: &[f32]| written(form, EncodingFormat::Float, numbers);
        let numbers = [1.0, -1.0, 0.5, 0.0, 0.1, -0.1, 0.2, 0.3, -0.5, 0.5];
        assert_eq!(written_as(EmbeddingType::Int8, &numbers), "[127,-127,64,0,13,-13,25,38,-64,64]");
        assert_eq!(written_as(EmbeddingType::Uint8, &numbers[..3]), "[255,1,192]");
        // 1 0 1 0 1 0 1 1, 0 1
        assert_eq!(written_as(EmbeddingType::Ubinary, &numbers), "[171,64]");
        assert_eq!(written_as(EmbeddingType::Binary, &numbers), "[43,-64]");
        assert_eq!(written_as(EmbeddingType::Float, &numbers[2..3]), "[0.5]");
        let in_base64 = |form| written(form, EncodingFormat::Base64, &numbers[..3]);
        // 127 -127 64 and 255 1 192 as bytes
        assert_eq!(in_base64(EmbeddingType::Int8), r#""f4FA""#);
        assert_eq!(in_base64(EmbeddingType::Uint8), r#""/wHA""#);
    }

    #[test]
    fn numbers_are_short_and_exact() {
        let numbers = [0.1, -1.0, 1e-7, 16_777_216.0];
        let text = written(EmbeddingType::Float, EncodingFormat::Float, &numbers);
        assert_eq!(text, "[0.1,-1.0,1e-7,16777216.0]");
        assert_eq!(serde_json::from_str::<Vec<f32>>(&text).unwrap(), numbers);
        for format in [EncodingFormat::Float, EncodingFormat::Base64] {
            assert_eq!(written(EmbeddingType::Base64, format, &[1.0, -2.0]), r#""AACAPwAAAMA=""#);
        }
    }

    #[test]
    fn bytes_need_vectors_of_length_1() {
        assert!(EmbeddingType::Int8.check("f", &[1.0004]).is_ok());
        assert!(EmbeddingType::Float.check("f", &[3.0]).is_ok() && EmbeddingType::Binary.check("f", &[3.0]).is_ok());
        let refusal = EmbeddingType::Uint8.check("f", &[0.1, 3.0]).unwrap_err();
        assert!(refusal.message.contains("'uint8', which needs vectors of length 1"), "{}", refusal.message);
    }
}
