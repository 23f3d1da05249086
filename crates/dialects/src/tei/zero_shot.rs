//! `POST /` with labels of the request, as huggingface_hub's `zero_shot_classification` asks.

use std::time::Instant;

use axum::response::Response;
use serde::Deserialize;
use trireme_operations::Candidates;

use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, Members, Others, read};
use super::super::input::Input;
use super::super::refusal::Refusal;
use super::classify::Predictions;
use super::timing::timed;
use super::treatment::{self, Treatment, ask};

const FIELDS: &[Field] = &[
    read("inputs", fields::TEXT_OR_TEXTS),
    read("parameters", fields::OBJECT).with(&[&[
        read("candidate_labels", fields::TEXTS),
        read("hypothesis_template", &[r#""It is {}.""#]),
        read("multi_label", fields::FLAG),
    ]]),
];

#[derive(Deserialize)]
struct ZeroShot {
    inputs: Input,
    #[serde(default)]
    parameters: Labels,
}

#[derive(Default, Deserialize)]
struct Labels {
    #[serde(default)]
    candidate_labels: Vec<String>,
    hypothesis_template: Option<String>,
    multi_label: Option<bool>,
}

pub(super) async fn zero_shot(mut call: DialectCall) -> Result<Response, Refusal> {
    let started = Instant::now();
    if let Some(body) = Members::of(&call.body).check(&[FIELDS, treatment::FIELDS], Others::ByWords)? {
        call.body = body.into();
    }
    let body: ZeroShot = call.read()?;
    let treatment: Treatment = call.read()?;
    let (texts, one) = body.inputs.texts("inputs", "send texts")?;
    let Labels { candidate_labels, hypothesis_template, multi_label } = body.parameters;
    let candidates = Candidates::new(candidate_labels, hypothesis_template.as_deref(), multi_label.unwrap_or(false))?;
    let ask = ask(&call, treatment.model.as_deref(), treatment.options());
    let scored = call.operations.zero_shot(&texts, &candidates, &ask).await?;
    Ok(timed(&scored.ledger, started, &texts, &Predictions::of(&scored, usize::MAX, one)))
}
