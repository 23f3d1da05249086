//! How vectors are written: as numbers, in base64, or as bytes, in several types of numbers and both orders of bytes.

use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use trireme_inference::Ledger;
use trireme_protocol::json::Writer;
use trireme_server::http::response;
use utoipa::ToSchema;

use super::super::answer;
use super::super::fields::{self, Field, read};
use super::answers::{head, usage};
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
    /// The beginning of the answer's id.
    pub id: String,
    /// The word for a row.
    pub object: &'static str,
    /// The member that holds a row's vector.
    pub member: &'static str,
    pub model: &'a str,
    /// By row, the numbers.
    pub rows: Vec<&'a [f32]>,
    /// The width of the vectors that each row consists of; `None`: a row is one vector.
    pub width: Option<usize>,
    /// By row, which parts of the text its vectors stand for, where they are chunks of it.
    pub chunks: Option<&'a [Ranges]>,
    pub ledger: &'a Ledger,
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
        let numbers: usize = rows.rows.iter().map(|row| row.len()).sum();
        answer::told_by(rows.ledger, 512 + numbers * 13, |out| {
            out.object(|out| {
                head(out, rows.id, rows.model);
                out.name("data").array(|out| {
                    for (index, row) in rows.rows.iter().enumerate() {
                        out.object(|out| {
                            out.name("index").integer(index);
                            out.name("object").string(rows.object);
                            self.write(out.name(rows.member), row, rows.width);
                            if let Some(ranges) = rows.chunks.and_then(|chunks| chunks.get(index)) {
                                ranges.write(out);
                            }
                        });
                    }
                });
                usage(out, rows.ledger);
            });
        })
    }

    fn write(&self, out: &mut Writer, row: &[f32], width: Option<usize>) {
        let is_plain = self.dtype == Dtype::Float32 && self.endianness != Endianness::Big;
        match (self.format, width) {
            (Format::Float, Some(width)) => {
                out.array(|out| row.chunks_exact(width.max(1)).for_each(|token| answer::floats(out, token)));
            }
            (Format::Float, None) => answer::floats(out, row),
            _ if is_plain => answer::base64(out, row),
            _ => out.string(STANDARD.encode(self.bytes(row))),
        }
    }

    fn bytes_answer(&self, rows: Rows<'_>) -> Response {
        let mut body = Vec::new();
        let mut metadata = Writer::default();
        metadata.object(|out| {
            head(out, rows.id, rows.model);
            out.name("data").array(|out| {
                for (index, row) in rows.rows.iter().enumerate() {
                    let start = body.len();
                    body.extend(self.bytes(row));
                    out.object(|out| {
                        out.name("index").integer(index);
                        out.name("embed_dtype").string(self.dtype.name());
                        out.name("endianness").string(self.endianness.name());
                        out.name("start").integer(start);
                        out.name("end").integer(body.len());
                        out.name("shape").array(|out| match rows.width {
                            Some(width) => {
                                out.integer(row.len() / width.max(1));
                                out.integer(width);
                            }
                            None => out.integer(row.len()),
                        });
                    });
                }
            });
            usage(out, rows.ledger);
        });
        let mut found = answer::json(body.into());
        let headers = found.headers_mut();
        response::tell(rows.ledger, headers);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
        if self.format == Format::Bytes
            && let Ok(metadata) = HeaderValue::from_bytes(&metadata.into_bytes())
        {
            headers.insert("metadata", metadata);
        }
        found
    }

    /// The numbers in this type and order of bytes.
    fn bytes(&self, numbers: &[f32]) -> Vec<u8> {
        let is_big = self.endianness == Endianness::Big;
        let of_16 = |bits: u16| if is_big { bits.to_be_bytes() } else { bits.to_le_bytes() };
        let numbers = numbers.iter().copied();
        match self.dtype {
            Dtype::Float32 => {
                numbers.flat_map(|number| if is_big { number.to_be_bytes() } else { number.to_le_bytes() }).collect()
            }
            Dtype::Float16 => numbers.flat_map(|number| of_16(half::f16::from_f32(number).to_bits())).collect(),
            Dtype::Bfloat16 => numbers.flat_map(|number| of_16(half::bf16::from_f32(number).to_bits())).collect(),
            Dtype::E4m3 | Dtype::E5m2 => {
                let is_e4m3 = self.dtype == Dtype::E4m3;
                let codes = if is_e4m3 { of_eight_bits(3, 7, 0x7e) } else { of_eight_bits(2, 15, 0x7b) };
                numbers.map(|number| nearest(&codes, number)).collect()
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
