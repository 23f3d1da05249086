//! `/embed`, `/embed_all` and `/embed_sparse`.

use std::time::Instant;

use axum::response::Response;
use serde::Deserialize;
use trireme_operations::{OperationRequest, TextOptions};
use utoipa::ToSchema;

use super::super::answer;
use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, read};
use super::super::input::{Input, none_empty};
use super::super::refusal::Refusal;
use super::timing::timed;
use super::treatment::{Treatment, ask};

pub(super) const INPUTS: &[Field] = &[read("inputs", fields::INPUT)];

pub(super) const EMBED: &[Field] =
    &[read("inputs", fields::INPUT), read("normalize", fields::FLAG), read("dimensions", fields::NUMBER)];

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiInputs)]
pub(super) struct Inputs {
    inputs: Input,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiEmbed)]
pub(super) struct Embed {
    inputs: Input,
    normalize: Option<bool>,
    dimensions: Option<u64>,
}

pub(super) async fn embed(call: DialectCall) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Embed = call.read()?;
    let treatment: Treatment = call.read()?;
    let (texts, _, token_ids) = body.inputs.texts_or_ids("inputs")?;
    none_empty("inputs", &texts)?;
    let options = TextOptions {
        normalize: Some(body.normalize.unwrap_or(true)),
        dimensions: body.dimensions,
        token_ids,
        ..treatment.options()
    };
    let vectors = call.operations.embed(&texts, &ask(&call, treatment.model.as_deref(), options)).await?;
    let numbers = vectors.numbers();
    Ok(timed(&vectors.ledger, started, &texts, 64 + numbers.len() * 13, |out| {
        out.array(|out| numbers.chunks_exact(vectors.width.max(1)).for_each(|row| answer::floats(out, row)));
    }))
}

/// The texts of a body that has only inputs and their treatment, and the request for their vectors.
fn plain(call: &DialectCall) -> Result<(Vec<String>, OperationRequest), Refusal> {
    let body: Inputs = call.read()?;
    let treatment: Treatment = call.read()?;
    let (texts, _, token_ids) = body.inputs.texts_or_ids("inputs")?;
    none_empty("inputs", &texts)?;
    let options = TextOptions { token_ids, ..treatment.options() };
    Ok((texts, ask(call, treatment.model.as_deref(), options)))
}

pub(super) async fn embed_all(call: DialectCall) -> Result<Response, Refusal> {
    let started = Instant::now();
    let (texts, ask) = plain(&call)?;
    let vectors = call.operations.multi_vector(&texts, &ask).await?;
    let numbers: usize = vectors.rows.iter().map(Vec::len).sum();
    Ok(timed(&vectors.ledger, started, &texts, 64 + numbers * 13, |out| {
        out.array(|out| {
            for row in &vectors.rows {
                out.array(|out| {
                    row.chunks_exact(vectors.width.max(1)).for_each(|token| answer::floats(out, token));
                });
            }
        });
    }))
}

pub(super) async fn embed_sparse(call: DialectCall) -> Result<Response, Refusal> {
    let started = Instant::now();
    let (texts, ask) = plain(&call)?;
    let vectors = call.operations.sparse(&texts, &ask).await?;
    let entries: usize = vectors.rows.iter().map(Vec::len).sum();
    Ok(timed(&vectors.ledger, started, &texts, 64 + entries * 32, |out| {
        out.array(|out| {
            for row in &vectors.rows {
                out.array(|out| {
                    for &(index, value) in row {
                        out.object(|out| {
                            out.name("index").integer(index);
                            out.name("value").float(value);
                        });
                    }
                });
            }
        });
    }))
}
