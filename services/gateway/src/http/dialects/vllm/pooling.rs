//! `/pooling`: the vectors, token vectors or scores of a model, whatever it does.

use axum::response::Response;
use serde::Deserialize;
use trireme_inference::Ledger;
use utoipa::ToSchema;

use super::super::answer::{self, EncodingFormat};
use super::super::dialect::DialectCall;
use super::super::input::{self, Input};
use super::super::refusal::Refusal;
use super::answers::{head, usage};
use super::treatment::Treatment;
use crate::handlers::operations::{Ask, TextOptions};
use crate::registry::Task;

#[derive(Deserialize, ToSchema)]
#[schema(as = VllmPooling)]
pub(super) struct Pooling {
    input: Input,
    encoding_format: Option<String>,
    embed_dtype: Option<String>,
    endianness: Option<String>,
    dimensions: Option<u64>,
}

pub(super) async fn pooling(call: DialectCall) -> Result<Response, Refusal> {
    let body: Pooling = input::read(&call.body)?;
    let treatment: Treatment = input::read(&call.body)?;
    let format = match body.encoding_format.as_deref() {
        None | Some("float") => EncodingFormat::Float,
        Some("base64") => EncodingFormat::Base64,
        Some(other) => {
            return Err(Refusal::unsupported("encoding_format", format!("is '{other}', expected 'float' or 'base64'")));
        }
    };
    if let Some(other) = body.embed_dtype.as_deref().filter(|dtype| *dtype != "float32") {
        return Err(Refusal::unsupported("embed_dtype", format!("is '{other}', expected 'float32'")));
    }
    if let Some(other) = body.endianness.as_deref().filter(|order| !matches!(*order, "native" | "little")) {
        return Err(Refusal::unsupported("endianness", format!("is '{other}', expected 'little'")));
    }
    let texts = body.input.texts("input", "send texts")?.0;
    let options = TextOptions { dimensions: body.dimensions, ..treatment.options()? };
    let ask = call.ask(treatment.model.as_deref(), options);
    let pooled = Pooled::of(&call, &texts, &ask).await?;
    let numbers: usize = pooled.rows.iter().map(Vec::len).sum();
    Ok(answer::told(&pooled.ledger, answer::capacity(format, numbers), |out| {
        out.object(|out| {
            head(out, "pool", treatment.model.as_deref().unwrap_or(&pooled.model));
            out.name("data").array(|out| {
                for (index, row) in pooled.rows.iter().enumerate() {
                    out.object(|out| {
                        out.name("index").integer(index);
                        out.name("object").string("pooling");
                        let out = out.name("data");
                        match (pooled.width, format) {
                            (Some(width), EncodingFormat::Float) => out.array(|out| {
                                row.chunks_exact(width.max(1)).for_each(|token| answer::floats(out, token));
                            }),
                            _ => answer::vector(out, format, row),
                        }
                    });
                }
            });
            usage(out, &pooled.ledger);
        });
    }))
}

/// The vectors or scores of a model for texts.
struct Pooled {
    model: String,
    rows: Vec<Vec<f32>>,
    /// The width of the vectors that each row consists of; `None`: a row is one vector.
    width: Option<usize>,
    ledger: Ledger,
}

impl Pooled {
    async fn of(call: &DialectCall, texts: &[String], ask: &Ask) -> Result<Pooled, Refusal> {
        let task = match ask.model.as_deref() {
            Some(name) => call.handlers.text_model(Some(name))?.tasks.first().copied(),
            None => Some(Task::Embed),
        };
        match task {
            Some(Task::Classify) => {
                let classified = call.handlers.classify(texts, None, ask).await?;
                Ok(Pooled { model: classified.model, rows: classified.rows, width: None, ledger: classified.ledger })
            }
            Some(Task::MultiVector) => {
                let vectors = call.handlers.multi_vector(texts, ask).await?;
                let width = Some(vectors.width);
                Ok(Pooled { model: vectors.model, rows: vectors.rows, width, ledger: vectors.ledger })
            }
            _ => {
                let vectors = call.handlers.embed(texts, ask).await?;
                let rows = vectors.numbers().chunks_exact(vectors.width.max(1)).map(<[f32]>::to_vec).collect();
                Ok(Pooled { rows, model: vectors.model, width: None, ledger: vectors.ledger })
            }
        }
    }
}
