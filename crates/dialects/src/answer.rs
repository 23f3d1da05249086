//! Common parts of dialects' answers. An answer is a struct that `serde` writes and whose shape `utoipa` describes for `/openapi.json`; numbers
//! have the fewest digits that read back as the same FP32 number.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use trireme_inference::Ledger;
use trireme_operations::{Origin, Scores, TextModel};
use trireme_protocol::json::Writer;
use trireme_server::http::response;
use trireme_server::http::schema;
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::refusal::Refusal;

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    /// JSON numbers.
    #[default]
    Float,
    /// The FP32 numbers, little-endian, in base64.
    Base64,
}

/// An answer with status 200, which says in headers where the request's time went and what became of its texts.
pub fn told(ledger: &Ledger, answer: &impl Serialize) -> Response {
    let mut response = response::written(answer);
    response::tell(ledger, response.headers_mut());
    response
}

/// An answer with status 200 of a route that runs no model.
pub fn plain(answer: &impl Serialize) -> Response {
    response::written(answer)
}

/// The body of an answer, or of an error.
pub fn body(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("names and plain values are JSON").into()
}

/// OpenAI's `usage`.
#[derive(Serialize, ToSchema)]
pub struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    prompt_tokens_details: Option<CachedTokens>,
}

/// The part of a request's tokens that is of texts which the text cache had.
#[derive(Serialize, ToSchema)]
pub struct CachedTokens {
    cached_tokens: u64,
}

/// A document's place and score, as Cohere and Jina have them.
#[derive(Serialize, ToSchema)]
pub struct Ranked<'a> {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    document: Option<Text<'a>>,
}

/// A text in an object of its own.
#[derive(Serialize, ToSchema)]
pub struct Text<'a> {
    pub text: &'a str,
}

/// A label with its score.
#[derive(Serialize, ToSchema)]
pub struct Labelled<'a> {
    pub score: f32,
    pub label: &'a str,
}

/// An error about a body, as FastAPI has it.
#[derive(Serialize, ToSchema)]
pub struct FaultyBody<'a> {
    #[schema(inline)]
    detail: [FaultyField<'a>; 1],
}

#[derive(Serialize, ToSchema)]
struct FaultyField<'a> {
    r#type: &'static str,
    loc: Vec<&'a str>,
    msg: &'a str,
}

/// OpenAI's errors; `C` is the kind of their codes.
#[derive(Serialize, ToSchema)]
pub struct Nested<'a, C: ToSchema> {
    #[schema(inline)]
    pub error: NestedError<'a, C>,
}

#[derive(Serialize, ToSchema)]
pub struct NestedError<'a, C: ToSchema> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: C,
}

/// An object without members.
#[derive(Serialize, ToSchema)]
pub struct NoMembers {}

/// The spaces of a model's results in the entry of the model, where workers tell them.
#[derive(Serialize, ToSchema)]
pub struct Spaces<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    space: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    equivalent_spaces: Vec<&'a str>,
}

// === impl Usage ===

impl Usage {
    /// The tokens of a request.
    pub fn of(ledger: &Ledger) -> Usage {
        let tokens = tokens(ledger);
        Usage { prompt_tokens: tokens, total_tokens: tokens, prompt_tokens_details: CachedTokens::of(ledger) }
    }
}

// === impl CachedTokens ===

impl CachedTokens {
    /// Of a request; `None` where there are none.
    pub fn of(ledger: &Ledger) -> Option<CachedTokens> {
        let cached_tokens = ledger.cached().tokens;
        (cached_tokens > 0).then_some(CachedTokens { cached_tokens })
    }
}

// === impl Ranked ===

impl<'a> Ranked<'a> {
    /// The best `top_n` documents, with their texts if `texts` are given.
    pub fn of(scores: &Scores, top_n: Option<u64>, texts: Option<&'a [String]>) -> Vec<Ranked<'a>> {
        let most = top_n.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
        let document = |index: usize| texts.map(|texts| Text { text: &texts[index] });
        let ranked = scores.ranked(most).into_iter();
        ranked.map(|(index, score)| Ranked { index, relevance_score: score, document: document(index) }).collect()
    }
}

// === impl FaultyBody ===

impl<'a> FaultyBody<'a> {
    /// The error of a refusal.
    pub fn of(refusal: &'a Refusal) -> FaultyBody<'a> {
        let loc = std::iter::once("body").chain(refusal.field.as_deref()).collect();
        FaultyBody { detail: [FaultyField { r#type: "value_error", loc, msg: &refusal.message }] }
    }
}

// === impl Nested ===

impl<'a, C: ToSchema> Nested<'a, C> {
    /// The error of a refusal.
    pub fn of(refusal: &'a Refusal, kind: &'a str, code: C) -> Nested<'a, C> {
        Nested {
            error: NestedError { message: &refusal.message, r#type: kind, param: refusal.field.as_deref(), code },
        }
    }
}

// === impl Spaces ===

impl<'a> Spaces<'a> {
    /// The spaces of a model.
    pub fn of(model: &'a TextModel) -> Spaces<'a> {
        let Origin { space, equivalent, .. } = &model.origin;
        Spaces { space: space.as_deref(), equivalent_spaces: equivalent.iter().map(|space| space.as_str()).collect() }
    }
}

/// A JSON body with status 200.
pub fn json(body: Bytes) -> Response {
    response::json(body)
}

/// A JSON body that `fill` writes, with headers that say where the time went and what became of the texts.
pub fn told_by(ledger: &Ledger, capacity: usize, fill: impl FnOnce(&mut Writer)) -> Response {
    let mut out = Writer::with_capacity(capacity);
    fill(&mut out);
    let mut answer = json(out.into_bytes());
    response::tell(ledger, answer.headers_mut());
    answer
}

/// A JSON object.
pub fn object(fill: impl FnOnce(&mut Writer)) -> Bytes {
    let mut out = Writer::default();
    out.object(fill);
    out.into_bytes()
}

/// Numbers as a JSON array, each in the fewest digits that read back as the same FP32 number.
pub fn floats(out: &mut Writer, numbers: &[f32]) {
    out.array(|out| numbers.iter().for_each(|&number| out.float(number)));
}

/// The FP32 numbers, little-endian as tensors have them, in base64. Their bytes are encoded where the answer is written.
pub fn base64(out: &mut Writer, numbers: &[f32]) {
    let bytes: &[u8] = bytemuck::cast_slice(numbers);
    out.unescaped(|out| {
        let (start, length) = (out.len(), base64::encoded_len(bytes.len(), true).unwrap_or_default());
        out.resize(start + length, 0);
        let written = STANDARD.encode_slice(bytes, &mut out[start..]).unwrap_or_default();
        out.truncate(start + written);
    });
}

/// Bytes that vectors of so many numbers take in JSON, about.
pub fn capacity(format: EncodingFormat, numbers: usize) -> usize {
    512 + match format {
        EncodingFormat::Float => numbers * 13,
        EncodingFormat::Base64 => numbers * 6,
    }
}

/// The tokens of a request's texts; 0 where no tokenizer counted them.
pub fn tokens(ledger: &Ledger) -> u64 {
    ledger.texts().map_or(0, |texts| texts.tokens)
}

/// A member `usage` as OpenAI has it.
pub fn usage(out: &mut Writer, ledger: &Ledger) {
    let tokens = tokens(ledger);
    out.name("usage").object(|out| {
        out.name("prompt_tokens").integer(tokens);
        out.name("total_tokens").integer(tokens);
        cached_tokens(out, ledger);
    });
}

/// The part of a request's tokens that is of texts which the text cache had, as OpenAI has it; nothing where there are none.
pub fn cached_tokens(out: &mut Writer, ledger: &Ledger) {
    let cached = ledger.cached().tokens;
    if cached > 0 {
        out.name("prompt_tokens_details").object(|out| out.name("cached_tokens").integer(cached));
    }
}

/// The body of an error about a body, as FastAPI has it.
pub fn faulty_body(field: Option<&str>, message: &str) -> Bytes {
    object(|out| {
        out.name("detail").array(|out| {
            out.object(|out| {
                out.name("type").string("value_error");
                out.name("loc").array(|out| {
                    out.string("body");
                    field.iter().for_each(|field| out.string(field));
                });
                out.name("msg").string(message);
            });
        });
    })
}

/// The schema of such an error.
pub fn faulty_body_schema() -> Schema {
    let fault = [("type", schema::text()), ("loc", schema::list(schema::text())), ("msg", schema::text())];
    schema::object([("detail", schema::list(schema::object(fault)))])
}

/// The members `space` and `equivalent_spaces` of the entry of a model, where workers tell them.
pub fn spaces(out: &mut Writer, model: &TextModel) {
    let Origin { space, equivalent, .. } = &model.origin;
    if let Some(space) = space {
        out.name("space").string(space);
    }
    if !equivalent.is_empty() {
        out.name("equivalent_spaces").array(|out| equivalent.iter().for_each(|space| out.string(space.as_str())));
    }
}

/// The schemas of these members.
pub fn spaces_schema() -> [(&'static str, Schema); 2] {
    [("space", schema::text()), ("equivalent_spaces", schema::list(schema::text()))]
}

/// A member `results` as Cohere and Jina have it: the best `top_n` documents, with their texts if `texts` are given.
pub fn results(out: &mut Writer, scores: &Scores, top_n: Option<u64>, texts: Option<&[String]>) {
    let most = top_n.map(|most| usize::try_from(most).unwrap_or(usize::MAX));
    out.name("results").array(|out| {
        for (index, score) in scores.ranked(most) {
            out.object(|out| {
                out.name("index").integer(index);
                out.name("relevance_score").float(score);
                if let Some(texts) = texts {
                    out.name("document").object(|out| out.name("text").string(&texts[index]));
                }
            });
        }
    });
}

/// The schema of these results.
pub fn results_schema() -> Schema {
    let document = ("document", schema::object([("text", schema::text())]));
    let result = [("index", schema::integer()), ("relevance_score", schema::number())];
    schema::list(schema::object_with(result, [document]))
}

/// The schema of a vector: numbers, or a text in base64.
pub fn vector_schema() -> Schema {
    schema::any_of([schema::list(schema::number()), schema::text()])
}

/// The schema of the usage that OpenAI has.
pub fn usage_schema() -> Schema {
    let tokens = [("prompt_tokens", schema::integer()), ("total_tokens", schema::integer())];
    let details = schema::object([("cached_tokens", schema::integer())]);
    schema::object_with(tokens, [("prompt_tokens_details", details)])
}

/// The schema of OpenAI's list of vectors.
pub fn embeddings_schema() -> Schema {
    let vector = [("object", schema::text()), ("index", schema::integer()), ("embedding", vector_schema())];
    let window = ["window", "start", "end"].map(|name| (name, schema::integer()));
    schema::object([
        ("object", schema::text()),
        ("data", schema::list(schema::object_with(vector, window))),
        ("model", schema::text()),
        ("usage", usage_schema()),
        ("id", schema::text()),
    ])
}

/// The schema of OpenAI's errors.
pub fn nested_schema() -> Schema {
    let code = schema::any_of([schema::text(), schema::integer()]);
    schema::object([(
        "error",
        schema::object([
            ("message", schema::text()),
            ("type", schema::text()),
            ("param", schema::nullable(schema::text())),
            ("code", schema::nullable(code)),
        ]),
    )])
}

/// A random id in the form of a UUID.
pub fn id() -> String {
    let (high, low) = (fastrand::u64(..), fastrand::u64(..));
    // Version 4, variant 1: random.
    let (high, low) = (high & !0xf000 | 0x4000, low & !(3 << 62) | 1 << 63);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// Now, in seconds since the Unix epoch.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_exact() {
        let mut out = Writer::default();
        floats(&mut out, &[0.1, -1.0, 1e-7, 16_777_216.0]);
        let text = out.into_bytes();
        assert_eq!(str::from_utf8(&text).unwrap(), "[0.1,-1.0,1e-7,16777216.0]");
        let read: Vec<f32> = serde_json::from_slice(&text).unwrap();
        assert_eq!(read, [0.1, -1.0, 1e-7, 16_777_216.0]);
        let mut out = Writer::default();
        base64(&mut out, &[1.0, -2.0]);
        assert_eq!(out.into_bytes(), "\"AACAPwAAAMA=\"");
    }

    #[test]
    fn ids_are_uuids() {
        let id = id();
        let parts: Vec<_> = id.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(&id[14..15], "4");
        assert!("89ab".contains(&id[19..20]));
    }
}
