//! `/v1/embeddings` and `/embeddings`: OpenAI's request, whose token ids are the model's own, and an error of another shape.

use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use trireme_operations::TextOptions;
use trireme_server::http::schema::{integer, object, text};
use utoipa::ToSchema;
use utoipa::openapi::schema::Schema;

use super::super::answer::{self, EncodingFormat};
use super::super::dialect::DialectCall;
use super::super::extras::Extras;
use super::super::fields::{self, Field, idle, read};
use super::super::input::{Input, none_empty};
use super::super::openai;
use super::super::refusal::Refusal;
use super::errors;
use super::treatment::ask;

pub(super) const EMBEDDINGS: &[Field] = &[
    read("input", fields::INPUT),
    read("model", fields::TEXT),
    read("encoding_format", &[r#""float""#]),
    read("dimensions", fields::NUMBER),
    idle("user", fields::TEXT, "names the author of the texts"),
];

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiCompatibleEmbeddings)]
pub(super) struct Embeddings {
    input: Input,
    model: Option<String>,
    encoding_format: Option<EncodingFormat>,
    dimensions: Option<u64>,
}

pub(super) async fn embeddings(call: DialectCall) -> Result<Response, Refusal> {
    let body: Embeddings = call.read()?;
    let extras: Extras = call.read()?;
    let (texts, _, token_ids) = body.input.texts_or_ids("input")?;
    none_empty("input", &texts)?;
    let form = extras.form(body.encoding_format);
    let options = extras.options(body.dimensions)?;
    let options = TextOptions { normalize: options.normalize.or(Some(true)), token_ids, ..options };
    let vectors = call.operations.embed_windows(&texts, &ask(&call, body.model.as_deref(), options)).await?;
    openai::vectors(&vectors, body.model.as_deref(), form)
}

/// The table of errors.
pub(super) fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let (status, kind) = errors::of(refusal);
    let body = answer::object(|out| {
        out.name("message").string(&refusal.message);
        out.name("code").integer(status);
        out.name("type").string(kind);
        // Its document calls it so.
        out.name("error_type").string(kind);
    });
    (status, body)
}

pub(super) fn refusals() -> Schema {
    object([("message", text()), ("code", integer()), ("type", text()), ("error_type", text())])
}
