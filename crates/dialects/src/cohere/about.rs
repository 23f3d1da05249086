//! Cohere's routes besides its operations: tokens of a text, the list of models, and whether a key is valid.

use axum::response::Response;
use serde::Deserialize;
use trireme_operations::{Task, TextModel, TextOptions};
use trireme_protocol::json::Writer;
use trireme_server::http::schema::{flag, integer, list, nullable, number, object, object_with, text};
use utoipa::openapi::schema::Schema;
use utoipa::{IntoParams, ToSchema};

use super::super::answer;
use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, read};
use super::super::refusal::{Kind, Refusal};

pub(super) const TOKENIZE: &[Field] = &[read("text", fields::TEXT), read("model", fields::TEXT)];
pub(super) const DETOKENIZE: &[Field] = &[read("tokens", &["[1]"]), read("model", fields::TEXT)];

#[derive(Deserialize, ToSchema)]
#[schema(as = CohereTokenize)]
pub(super) struct Tokenize {
    text: String,
    model: String,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = CohereDetokenize)]
pub(super) struct Detokenize {
    tokens: Vec<u32>,
    model: String,
}

/// The query of the list of models.
#[derive(Default, Deserialize, IntoParams)]
#[serde(default)]
#[into_params(parameter_in = Query)]
pub(super) struct ModelsQuery {
    /// Only models that do this, in the original's words: `embed`, `rerank` or `classify`.
    endpoint: Option<String>,
}

/// The tokens of a text, without special ones, as the original gives them.
pub(super) async fn tokenize(call: DialectCall) -> Result<Response, Refusal> {
    let body: Tokenize = call.read()?;
    if body.text.is_empty() {
        return Err(Refusal::empty("text"));
    }
    let options = TextOptions { add_special_tokens: Some(false), ..TextOptions::default() };
    let lists = call.operations.tokenize(&[body.text], &call.ask(Some(&body.model), options)).await?;
    let tokens = lists.tokens(0);
    Ok(answer::told_by(&lists.ledger, 128 + 16 * tokens.len(), |out| {
        out.object(|out| {
            out.name("tokens").array(|out| tokens.iter().for_each(|token| out.integer(token.id)));
            out.name("token_strings").array(|out| tokens.iter().for_each(|token| out.string(&token.text)));
            version(out);
        });
    }))
}

pub(super) async fn detokenize(call: DialectCall) -> Result<Response, Refusal> {
    let body: Detokenize = call.read()?;
    let options = TextOptions { skip_special_tokens: Some(false), ..TextOptions::default() };
    let (texts, ledger) = call.operations.decode(&[body.tokens], &call.ask(Some(&body.model), options)).await?;
    Ok(answer::told_by(&ledger, 128, |out| {
        out.object(|out| {
            out.name("text").string(texts.first().map_or("", String::as_str));
            version(out);
        });
    }))
}

fn version(out: &mut Writer) {
    out.name("meta").object(|out| out.name("api_version").object(|out| out.name("version").string("1")));
}

pub(super) async fn models(call: DialectCall) -> Result<Response, Refusal> {
    let mut models = call.operations.text_models();
    if let Some(endpoint) = call.query::<ModelsQuery>()?.endpoint {
        models.retain(|model| endpoints(model).any(|own| own == endpoint));
    }
    Ok(answer::json(answer::object(|out| {
        out.name("models").array(|out| models.iter().for_each(|model| entry(out, model)));
        out.name("next_page_token").string("");
    })))
}

pub(super) async fn model(call: DialectCall) -> Result<Response, Refusal> {
    let found = call.operations.text_models().into_iter().find(|model| model.name == call.rest);
    let missing = || Refusal::new(Kind::NoModel, format!("model '{}' does not exist", call.rest));
    let found = found.ok_or_else(missing)?;
    let mut out = Writer::default();
    entry(&mut out, &found);
    Ok(answer::json(out.into_bytes()))
}

/// The original's words for what a model does.
fn endpoints(model: &TextModel) -> impl Iterator<Item = &'static str> {
    model.tasks.iter().filter_map(|task| match task {
        Task::Embed => Some("embed"),
        Task::Rerank => Some("rerank"),
        Task::Classify => Some("classify"),
        _ => None,
    })
}

fn entry(out: &mut Writer, model: &TextModel) {
    out.object(|out| {
        out.name("name").string(&model.name);
        out.name("endpoints").array(|out| endpoints(model).for_each(|endpoint| out.string(endpoint)));
        out.name("finetuned").bool(false);
        match model.max_length {
            Some(length) => out.name("context_length").integer(length),
            None => out.name("context_length").null(),
        }
        // The original's clients tokenize by themselves with the file there.
        out.name("tokenizer_url").null();
        out.name("default_endpoints").array(|_| {});
        answer::spaces(out, model);
    });
}

/// The request has passed the check of its key.
pub(super) async fn check_key(_: DialectCall) -> Result<Response, Refusal> {
    Ok(answer::json(answer::object(|out| out.name("valid").bool(true))))
}

fn version_schema() -> Schema {
    object([("api_version", object([("version", text())]))])
}

pub(super) fn tokenize_answer() -> Schema {
    object([("tokens", list(integer())), ("token_strings", list(text())), ("meta", version_schema())])
}

pub(super) fn detokenize_answer() -> Schema {
    object([("text", text()), ("meta", version_schema())])
}

pub(super) fn model_answer() -> Schema {
    let always = [
        ("name", text()),
        ("endpoints", list(text())),
        ("finetuned", flag()),
        ("context_length", nullable(number())),
        ("tokenizer_url", nullable(text())),
        ("default_endpoints", list(text())),
    ];
    object_with(always, answer::spaces_schema())
}

pub(super) fn models_answer() -> Schema {
    object([("models", list(model_answer())), ("next_page_token", text())])
}
