//! Common parts of dialects' answers. An answer is a struct that `serde` writes and whose shape `utoipa` describes for `/openapi.json`; numbers
//! have the fewest digits that read back as the same FP32 number.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use trireme_inference::Ledger;
use trireme_operations::{Classified, Origin, Scores, TextModel};
use trireme_server::http::response;
use utoipa::ToSchema;

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

// === impl Labelled ===

impl<'a> Labelled<'a> {
    /// The labels of a row of scores, the best first.
    pub fn best_first(classified: &'a Classified, row: &'a [f32]) -> Vec<Labelled<'a>> {
        let scored = classified.best_first(row).into_iter();
        scored.map(|scored| Labelled { score: scored.score, label: scored.label }).collect()
    }
}

// === impl Nested ===

impl<'a, C: ToSchema> Nested<'a, C> {
    /// The error of a refusal.
    pub fn of(refusal: &'a Refusal, kind: &'a str, code: C) -> Nested<'a, C> {
        Nested { error: NestedError::of(refusal, kind, code) }
    }
}

// === impl NestedError ===

impl<'a, C: ToSchema> NestedError<'a, C> {
    /// The error of a refusal.
    pub fn of(refusal: &'a Refusal, kind: &'a str, code: C) -> NestedError<'a, C> {
        NestedError { message: &refusal.message, r#type: kind, param: refusal.field.as_deref(), code }
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

/// The tokens of a request's texts; 0 where no tokenizer counted them.
pub fn tokens(ledger: &Ledger) -> u64 {
    ledger.texts().map_or(0, |texts| texts.tokens)
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
    fn ids_are_uuids() {
        let id = id();
        let parts: Vec<_> = id.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(&id[14..15], "4");
        assert!("89ab".contains(&id[19..20]));
    }
}
