//! `/tokenize` of a prompt or a conversation, and `/detokenize`.

use axum::response::Response;
use serde::Deserialize;
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
    Ok(answer::told_by(&lists.ledger, 128 + 16 * tokens.len(), |out| {
        out.object(|out| {
            out.name("count").integer(tokens.len());
            match lists.max_length {
                Some(length) => out.name("max_model_len").integer(length),
                None => out.name("max_model_len").null(),
            }
            out.name("tokens").array(|out| tokens.iter().for_each(|token| out.integer(token.id)));
            match body.return_token_strs {
                true => out.name("token_strs").array(|out| tokens.iter().for_each(|token| out.string(&token.text))),
                false => out.name("token_strs").null(),
            }
        });
    }))
}

pub(super) async fn detokenize(call: DialectCall) -> Result<Response, Refusal> {
    let body: Detokenize = call.read()?;
    let options = TextOptions { skip_special_tokens: Some(false), ..TextOptions::default() };
    let (texts, ledger) = call.operations.decode(&[body.tokens], &call.ask(body.model.as_deref(), options)).await?;
    Ok(answer::told_by(&ledger, 64, |out| {
        out.object(|out| out.name("prompt").string(texts.first().map_or("", String::as_str)));
    }))
}
