//! `/embed`, `/embed_all` and `/embed_sparse`.

use std::time::Instant;

use axum::response::Response;
use serde::{Deserialize, Serialize};
use trireme_operations::{OperationRequest, TextOptions};
use utoipa::ToSchema;

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

/// The answer of `/embed`: a vector for each text.
pub(super) type Vectors<'a> = Vec<&'a [f32]>;

/// The answer of `/embed_all`: a vector for each token of each text.
pub(super) type TokenVectors<'a> = Vec<Vec<&'a [f32]>>;

/// The answer of `/embed_sparse`: the entries of a vector for each text.
pub(super) type SparseVectors = Vec<Vec<SparseEntry>>;

/// A number of a vector, and its place.
#[derive(Serialize, ToSchema)]
pub(super) struct SparseEntry {
    index: u64,
    value: f32,
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
    let rows: Vectors<'_> = numbers.chunks_exact(vectors.width.max(1)).collect();
    Ok(timed(&vectors.ledger, started, &texts, &rows))
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
    let width = vectors.width.max(1);
    let rows: TokenVectors<'_> = vectors.rows.iter().map(|row| row.chunks_exact(width).collect()).collect();
    Ok(timed(&vectors.ledger, started, &texts, &rows))
}

pub(super) async fn embed_sparse(call: DialectCall) -> Result<Response, Refusal> {
    let started = Instant::now();
    let (texts, ask) = plain(&call)?;
    let vectors = call.operations.sparse(&texts, &ask).await?;
    let entry = |&(index, value): &(u64, f32)| SparseEntry { index, value };
    let rows: SparseVectors = vectors.rows.iter().map(|row| row.iter().map(entry).collect()).collect();
    Ok(timed(&vectors.ledger, started, &texts, &rows))
}
