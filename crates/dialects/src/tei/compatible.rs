//! `/v1/embeddings` and `/embeddings`: OpenAI's request, whose token ids are the model's own, and an error of another shape.

use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_operations::TextOptions;
use utoipa::ToSchema;

use super::super::answer::{self, EncodingFormat};
use super::super::dialect::DialectCall;
use super::super::extras::Extras;
use super::super::fields::{self, Field, idle, read};
use super::super::input::{Input, none_empty};
use super::super::openai::EmbeddingList;
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

/// The errors of these routes.
#[derive(Serialize, ToSchema)]
pub(super) struct Error<'a> {
    message: &'a str,
    code: u16,
    r#type: &'static str,
    // Its document calls it so.
    error_type: &'static str,
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
    EmbeddingList::answer(&vectors, body.model.as_deref(), form)
}

/// The table of errors.
pub(super) fn refuse(refusal: &Refusal) -> (u16, Bytes) {
    let (code, kind) = errors::of(refusal);
    (code, answer::body(&Error { message: &refusal.message, code, r#type: kind, error_type: kind }))
}
