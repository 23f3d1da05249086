//! How vectors are written: as numbers, in base64, or as bytes, in several types of numbers and both orders of bytes.

use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use trireme_inference::Ledger;
use trireme_server::http::response;
use utoipa::ToSchema;

use super::super::answer;
use super::super::fields::{self, Field, read};
use super::answers::List;
use super::late_chunking::Ranges;

/// The fields.
pub const FIELDS: &[Field] = &[
    read("encoding_format", &[r#""float""#, r#""base64""#]),
    read("embed_dtype", &[r#""float16""#]),
    read("endianness", &[r#""little""#]),
    read("dimensions", fields::NUMBER),
];

/// The form of vectors that a request asks for.
#[derive(Clone, Copy)]
pub struct Encoding {
    format: Format,
    dtype: Dtype,
    endianness: Endianness,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = VllmEncodingFormat)]
pub enum Format {
    /// JSON numbers.
    #[default]
    Float,
    Base64,
    /// The bytes of all vectors, one after the other; the header `metadata` says where each is.
    Bytes,
    /// The same without that header.
    BytesOnly,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = VllmEmbedDtype)]
pub enum Dtype {
    #[default]
    Float32,
    Float16,
    Bfloat16,
    #[serde(rename = "fp8_e4m3")]
    E4m3,
    #[serde(rename = "fp8_e5m2")]
    E5m2,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = VllmEndianness)]
pub enum Endianness {
    /// Little, on the machines that this runs on.
    #[default]
    Native,
    Little,
    Big,
}

/// The vectors of an answer.
pub struct Rows<'a> {
    pub id: String,
    pub route: Route,
    pub model: &'a str,
    /// By row, the numbers.
    pub rows: Vec<&'a [f32]>,
    /// The width of the vectors that each row consists of; `None`: a row is one vector.
    pub width: Option<usize>,
    /// By row, which parts of the text its vectors stand for, where they are chunks of it.
    pub chunks: Option<&'a [Ranges]>,
    pub ledger: &'a Ledger,
}

/// A route with vectors. Its answers have rows of its own.
#[derive(Clone, Copy)]
pub enum Route {
    Embeddings,
    Pooling,
}

/// A row of `/v1/embeddings`.
#[derive(Serialize, ToSchema)]
pub struct Embedding<'a> {
    index: usize,
    object: &'static str,
    #[schema(inline)]
    embedding: Encoded<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    late_chunking: Option<&'a Ranges>,
}

/// A row of `/pooling`.
#[derive(Serialize, ToSchema)]
pub struct Pooling<'a> {
    index: usize,
    object: &'static str,
    #[schema(inline)]
    data: Encoded<'a>,
}

/// The numbers of a row: a vector, the vectors that the row consists of, or their bytes in base64.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Encoded<'a> {
    Vector(&'a [f32]),
    Vectors(Vec<&'a [f32]>),
    Base64(String),
}

/// Where a row's vectors are in an answer of bytes, for the header `metadata`.
#[derive(Serialize)]
struct Place {
    index: usize,
    embed_dtype: &'static str,
    endianness: &'static str,
    start: usize,
    end: usize,
    shape: Vec<usize>,
}

// === impl Encoding ===

impl Encoding {
    /// The form of these fields.
    pub fn of(format: Option<Format>, dtype: Option<Dtype>, endianness: Option<Endianness>) -> Encoding {
        let (format, dtype) = (format.unwrap_or_default(), dtype.unwrap_or_default());
        Encoding { format, dtype, endianness: endianness.unwrap_or_default() }
    }

    /// The answer with these vectors.
    pub fn answer(&self, rows: Rows<'_>) -> Response {
        if matches!(self.format, Format::Bytes | Format::BytesOnly) {
            return self.bytes_answer(rows);
        }
        let Rows { id, route, model, rows, width, chunks, ledger } = rows;
        let rows = rows.into_iter().map(|row| self.encoded(row, width)).enumerate();
        match route {
            Route::Embeddings => {
                let rows = rows.map(|(index, embedding)| {
                    let late_chunking = chunks.and_then(|chunks| chunks.get(index));
                    Embedding { index, object: "embedding", embedding, late_chunking }
                });
                answer::told(ledger, &List::of(id, model, rows, ledger))
            }
            Route::Pooling => {
                let rows = rows.map(|(index, data)| Pooling { index, object: "pooling", data });
                answer::told(ledger, &List::of(id, model, rows, ledger))
            }
        }
    }

    /// The numbers of a row for an answer in JSON.
    fn encoded<'a>(&self, row: &'a [f32], width: Option<usize>) -> Encoded<'a> {
        match (self.format, width) {
            (Format::Float, Some(width)) => Encoded::Vectors(row.chunks_exact(width.max(1)).collect()),
            (Format::Float, None) => Encoded::Vector(row),
            _ => Encoded::Base64(STANDARD.encode(self.bytes(row))),
        }
    }

    fn bytes_answer(&self, rows: Rows<'_>) -> Response {
        let Rows { id, model, rows, width, ledger, .. } = rows;
        let mut body = Vec::new();
        let place = |(index, row): (usize, &[f32])| {
            let start = body.len();
            body.extend(self.bytes(row));
            let shape = width.map_or_else(|| vec![row.len()], |width| vec![row.len() / width.max(1), width]);
            let (embed_dtype, endianness) = (self.dtype.name(), self.endianness.name());
            Place { index, embed_dtype, endianness, start, end: body.len(), shape }
        };
        let metadata = List::of(id, model, rows.into_iter().enumerate().map(place), ledger);
        let mut found = ([(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"))], body).into_response();
        let headers = found.headers_mut();
        response::tell(ledger, headers);
        if self.format == Format::Bytes
            && let Ok(metadata) = HeaderValue::from_bytes(&answer::body(&metadata))
        {
            headers.insert("metadata", metadata);
        }
        found
    }

    /// The numbers in this type and order of bytes.
    fn bytes(&self, numbers: &[f32]) -> Vec<u8> {
        let is_big = self.endianness == Endianness::Big;
        let of_16 = |bits: u16| if is_big { bits.to_be_bytes() } else { bits.to_le_bytes() };
        let each = numbers.iter().copied();
        match self.dtype {
            Dtype::Float32 if is_big => each.flat_map(f32::to_be_bytes).collect(),
            Dtype::Float32 => bytemuck::cast_slice::<_, u8>(numbers).to_vec(),
            Dtype::Float16 => each.flat_map(|number| of_16(half::f16::from_f32(number).to_bits())).collect(),
            Dtype::Bfloat16 => each.flat_map(|number| of_16(half::bf16::from_f32(number).to_bits())).collect(),
            Dtype::E4m3 | Dtype::E5m2 => {
                let is_e4m3 = self.dtype == Dtype::E4m3;
                let codes = if is_e4m3 { of_eight_bits(3, 7, 0x7e) } else { of_eight_bits(2, 15, 0x7b) };
                each.map(|number| nearest(&codes, number)).collect()
            }
        }
    }
}

/// The numbers of eight bits by their codes, without their signs: so many bits of the fraction, an exponent with this bias, up to the code of
/// the greatest number.
fn of_eight_bits(fraction: u32, bias: i32, greatest: u8) -> Vec<f32> {
    let number = |code: u8| {
        let part = f32::from(code & ((1 << fraction) - 1)) / f32::from(1u8 << fraction);
        match i32::from(code >> fraction) {
            0 => part * 2f32.powi(1 - bias),
            exponent => (1.0 + part) * 2f32.powi(exponent - bias),
        }
    };
    (0..=greatest).map(number).collect()
}

/// The code of the number that is nearest; of two that are as near, the even one. The greatest stands for all that are larger.
fn nearest(numbers: &[f32], number: f32) -> u8 {
    let magnitude = number.abs();
    let above = numbers.partition_point(|&other| other < magnitude).min(numbers.len() - 1);
    let below = above.saturating_sub(1);
    let (up, down) = ((numbers[above] - magnitude).abs(), (magnitude - numbers[below]).abs());
    let code = if up < down || (up == down && above.is_multiple_of(2)) { above } else { below };
    code as u8 | u8::from(number.is_sign_negative()) << 7
}

// === impl Dtype ===

impl Dtype {
    fn name(self) -> &'static str {
        match self {
            Dtype::Float32 => "float32",
            Dtype::Float16 => "float16",
            Dtype::Bfloat16 => "bfloat16",
            Dtype::E4m3 => "fp8_e4m3",
            Dtype::E5m2 => "fp8_e5m2",
        }
    }
}

// === impl Endianness ===

impl Endianness {
    fn name(self) -> &'static str {
        match self {
            Endianness::Native => "native",
            Endianness::Little => "little",
            Endianness::Big => "big",
        }
    }
}

// === impl Route ===

impl Route {
    /// The word that the ids of its answers begin with.
    pub fn word(self) -> &'static str {
        match self {
            Route::Embeddings => "embd",
            Route::Pooling => "pooling",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_bits_that_torch_gives_them() {
        #[derive(Deserialize)]
        struct Body {
            embed_dtype: Option<Dtype>,
            endianness: Option<Endianness>,
        }
        let encoded = |body: &str, numbers: &[f32]| {
            let body: Body = serde_json::from_str(body).unwrap();
            Encoding::of(None, body.embed_dtype, body.endianness).bytes(numbers)
        };
        assert_eq!(encoded("{}", &[1.0]), [0, 0, 0x80, 0x3f]);
        assert_eq!(encoded(r#"{"endianness": "big"}"#, &[1.0]), [0x3f, 0x80, 0, 0]);
        assert_eq!(encoded(r#"{"embed_dtype": "float16"}"#, &[-2.0]), [0, 0xc0]);
        assert_eq!(encoded(r#"{"embed_dtype": "bfloat16", "endianness": "big"}"#, &[-2.0]), [0xc0, 0]);
        // torch.tensor([...]).to(torch.float8_e4m3fn).view(torch.uint8), and float8_e5m2
        let numbers = [0.0, 1.0, -1.0, 0.3, 448.0, 0.001953125, -0.0625];
        assert_eq!(encoded(r#"{"embed_dtype": "fp8_e4m3"}"#, &numbers), [0, 0x38, 0xb8, 0x2a, 0x7e, 1, 0x98]);
        assert_eq!(encoded(r#"{"embed_dtype": "fp8_e5m2"}"#, &numbers[..4]), [0, 0x3c, 0xbc, 0x35]);
        // Halfway between two: the even one.
        assert_eq!(encoded(r#"{"embed_dtype": "fp8_e4m3"}"#, &[1.0625, 1.1875]), [0x38, 0x3a]);
    }
}
