//! `/v1/embeddings`, and the fields of bodies that ask for vectors. Token ids are the model's own.

use axum::response::Response;
use serde::Deserialize;
use utoipa::ToSchema;

use super::super::answer::{self, EncodingFormat};
use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, only, read};
use super::super::input::Input;
use super::super::refusal::Refusal;
use super::answers::{head, usage};
use super::treatment::Treatment;
use crate::handlers::operations::TextOptions;

/// The fields besides those of the input and of all bodies.
pub(super) const FIELDS: &[Field] = &[
    read("encoding_format", &[r#""float""#]),
    read("dimensions", fields::NUMBER),
    read("normalize", fields::FLAG),
    // What newer versions call it.
    read("use_activation", fields::FLAG),
    only("embed_dtype", &[r#""float32""#], &[r#""float32""#], "vectors are FP32 here, expected \"float32\""),
    only("endianness", &[r#""native""#], &[r#""native""#, r#""little""#], "expected \"native\" or \"little\""),
];

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmEmbeddings)]
pub(super) struct Embeddings {
    input: Input,
    encoding_format: Option<EncodingFormat>,
    dimensions: Option<u64>,
    normalize: Option<bool>,
}

pub(super) async fn embeddings(call: DialectCall) -> Result<Response, Refusal> {
    let body: Embeddings = call.read()?;
    let treatment: Treatment = call.read()?;
    let (texts, _, token_ids) = body.input.texts_or_ids("input")?;
    let options = TextOptions {
        dimensions: body.dimensions,
        normalize: body.normalize.or(treatment.use_activation),
        token_ids,
        ..treatment.options()?
    };
    let vectors = call.handlers.embed(&texts, &call.ask(treatment.model.as_deref(), options)).await?;
    let (numbers, format) = (vectors.numbers(), body.encoding_format.unwrap_or_default());
    Ok(answer::told(&vectors.ledger, answer::capacity(format, numbers.len()), |out| {
        out.object(|out| {
            head(out, treatment.id("embd"), treatment.model.as_deref().unwrap_or(&vectors.model));
            out.name("data").array(|out| {
                for (index, row) in numbers.chunks_exact(vectors.width.max(1)).enumerate() {
                    out.object(|out| {
                        out.name("index").integer(index);
                        out.name("object").string("embedding");
                        answer::vector(out.name("embedding"), format, row);
                    });
                }
            });
            usage(out, &vectors.ledger);
        });
    }))
}
