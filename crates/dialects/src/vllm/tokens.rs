//! `/tokenize` of a prompt or a conversation, and `/detokenize`.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use trireme_operations::TextOptions;
use utoipa::ToSchema;

use super::super::answer;
use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, only, read};
use super::super::refusal::Refusal;
use super::treatment::{self, Conversations};

pub(super) const TOKENIZE: &[Field] = &[
    read("model", fields::TEXT),
    read("prompt", fields::TEXT),
    read("add_special_tokens", fields::FLAG),
    read("return_token_strs", fields::FLAG),
    only("tools", fields::OBJECTS, &["[]"], "templates get no tools here"),
];

pub(super) const DETOKENIZE: &[Field] = &[read("model", fields::TEXT), read("tokens", &["[1]"])];

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmTokenize)]
pub(super) struct Tokenize {
    model: Option<String>,
    prompt: Option<String>,
    #[schema(value_type = Option<Vec<Object>>)]
    messages: Option<Conversations>,
    add_special_tokens: Option<bool>,
    #[serde(default)]
    return_token_strs: bool,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmDetokenize)]
pub(super) struct Detokenize {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// The tokens of a text.
#[derive(Serialize, ToSchema)]
pub(super) struct Tokenized<'a> {
    count: usize,
    max_model_len: Option<u64>,
    tokens: Vec<u32>,
    token_strs: Option<Vec<&'a str>>,
}

/// The text of tokens.
#[derive(Serialize, ToSchema)]
pub(super) struct Detokenized<'a> {
    prompt: &'a str,
}

pub(super) async fn tokenize(call: DialectCall) -> Result<Response, Refusal> {
    let body: Tokenize = call.read()?;
    let add_special_tokens = body.add_special_tokens;
    let (texts, options) = match (body.prompt, body.messages) {
        (Some(prompt), None) => {
            let add_special_tokens = Some(add_special_tokens.unwrap_or(true));
            (vec![prompt], TextOptions { add_special_tokens, ..TextOptions::default() })
        }
        (None, Some(messages)) => {
            // As in the original, an answer is to follow unless the request says otherwise.
            let texts = treatment::conversations(&call, messages, true)?;
            (texts, TextOptions { messages: true, add_special_tokens, ..TextOptions::default() })
        }
        _ => return Err(Refusal::field("prompt", "or 'messages' is expected, one of them")),
    };
    let lists = call.operations.tokenize(&texts, &call.ask(body.model.as_deref(), options)).await?;
    let tokens = lists.tokens(0);
    let strs = || tokens.iter().map(|token| token.text.as_str()).collect();
    let tokenized = Tokenized {
        count: tokens.len(),
        max_model_len: lists.max_length,
        tokens: tokens.iter().map(|token| token.id).collect(),
        token_strs: body.return_token_strs.then(strs),
    };
    Ok(answer::told(&lists.ledger, &tokenized))
}

pub(super) async fn detokenize(call: DialectCall) -> Result<Response, Refusal> {
    let body: Detokenize = call.read()?;
    let options = TextOptions { skip_special_tokens: Some(false), ..TextOptions::default() };
    let (texts, ledger) = call.operations.decode(&[body.tokens], &call.ask(body.model.as_deref(), options)).await?;
    Ok(answer::told(&ledger, &Detokenized { prompt: texts.first().map_or("", String::as_str) }))
}
