//! `/tokenize` and `/decode`.

use std::time::Instant;

use axum::response::Response;
use serde::Deserialize;
use trireme_operations::{Prompt, TextOptions};
use utoipa::ToSchema;

use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, ours, read};
use super::super::input::{self, Input, OneOrMany};
use super::super::refusal::Refusal;
use super::timing::{timed, timed_json};
use super::treatment::ask;

pub(super) const TOKENIZE: &[Field] = &[
    read("inputs", fields::TEXT_OR_TEXTS),
    read("add_special_tokens", fields::FLAG),
    read("prompt_name", &[r#""query""#]),
    ours("model", fields::TEXT),
];

pub(super) const DECODE: &[Field] =
    &[read("ids", &["[1]", "[[1]]"]), read("skip_special_tokens", fields::FLAG), ours("model", fields::TEXT)];

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiTokenize)]
pub(super) struct Tokenize {
    #[schema(schema_with = input::one_or_many::<String>)]
    inputs: OneOrMany<String>,
    #[serde(default = "yes")]
    add_special_tokens: bool,
    prompt_name: Option<String>,
    model: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiDecode)]
pub(super) struct Decode {
    ids: Input,
    #[serde(default = "yes")]
    skip_special_tokens: bool,
    model: Option<String>,
}

/// A token of a text.
#[derive(ToSchema)]
#[allow(dead_code, reason = "for the document: answers have the lists of tokenizers as they are")]
pub(super) struct Token {
    id: u32,
    text: String,
    special: bool,
    #[schema(required = true)]
    start: Option<u64>,
    #[schema(required = true)]
    stop: Option<u64>,
}

fn yes() -> bool {
    true
}

pub(super) async fn tokenize(call: DialectCall) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Tokenize = call.read()?;
    let texts = body.inputs.into_list();
    if texts.is_empty() {
        return Err(Refusal::empty("inputs"));
    }
    let options = TextOptions {
        prompt: body.prompt_name.map_or(Prompt::Default, Prompt::Named),
        add_special_tokens: Some(body.add_special_tokens),
        ..TextOptions::default()
    };
    let lists = call.operations.tokenize(&texts, &ask(&call, body.model.as_deref(), options)).await?;
    Ok(timed_json(&lists.ledger, started, &texts, format!("[{}]", lists.rows.join(","))))
}

pub(super) async fn decode(call: DialectCall) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Decode = call.read()?;
    let rows = body.ids.ids("ids")?;
    let options = TextOptions { skip_special_tokens: Some(body.skip_special_tokens), ..TextOptions::default() };
    let (texts, ledger) = call.operations.decode(&rows, &ask(&call, body.model.as_deref(), options)).await?;
    Ok(timed(&ledger, started, &texts, &texts))
}
