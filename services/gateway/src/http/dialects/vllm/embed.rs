//! `/v1/embeddings`, and the fields of bodies that ask for vectors. Token ids are the model's own.

use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;

use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, read};
use super::super::input::Input;
use super::super::refusal::Refusal;
use super::encoding::{Dtype, Encoding, Endianness, Format, Rows};
use super::treatment::Treatment;
use crate::handlers::operations::TextOptions;

/// The fields besides those of the encoding, the input and all bodies.
pub(super) const FIELDS: &[Field] = &[
    read("normalize", fields::FLAG),
    // What newer versions call it.
    read("use_activation", fields::FLAG),
];

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmEmbeddings)]
pub(super) struct Embeddings {
    input: Input,
    normalize: Option<bool>,
    encoding_format: Option<Format>,
    embed_dtype: Option<Dtype>,
    endianness: Option<Endianness>,
    dimensions: Option<u64>,
}

pub(super) async fn embeddings(call: DialectCall) -> Result<Response, Refusal> {
    let body: Embeddings = call.read()?;
    let treatment: Treatment = call.read()?;
    let (texts, _, token_ids) = body.input.texts_or_ids("input")?;
    let options = TextOptions {
        dimensions: body.dimensions,
        normalize: body.normalize.or(treatment.use_activation),
        token_ids,
        ..treatment.options(&call)?
    };
    let vectors = call.handlers.embed(&texts, &call.ask(treatment.model.as_deref(), options)).await?;
    let numbers = vectors.numbers();
    let encoding = Encoding::of(body.encoding_format, body.embed_dtype, body.endianness);
    Ok(encoding.answer(Rows {
        id: treatment.id("embd"),
        object: "embedding",
        member: "embedding",
        model: treatment.model.as_deref().unwrap_or(&vectors.model),
        rows: numbers.chunks_exact(vectors.width.max(1)).collect(),
        width: None,
        ledger: &vectors.ledger,
    }))
}
