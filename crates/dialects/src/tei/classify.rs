//! `/predict`, and the entities that `POST /` gives for a model that finds them.

use std::time::Instant;

use axum::response::Response;
use serde::{Deserialize, Serialize};
use trireme_operations::{Classified, TextOptions};
use utoipa::ToSchema;

use super::super::answer::Labelled;
use super::super::dialect::DialectCall;
use super::super::fields::{self, Field, Members, Others, ours, read};
use super::super::input::Input;
use super::super::refusal::Refusal;
use super::inputs::{Pair, PredictInput};
use super::timing::{timed, timed_json};
use super::treatment::{self, Treatment, ask};

pub(super) const PREDICT: &[Field] = &[
    read("inputs", &[r#""a""#, r#"["a"]"#, r#"[["a"]]"#]),
    read("raw_scores", fields::FLAG),
    ours("parameters", fields::OBJECT)
        .with(&[&[read("top_k", fields::NUMBER), read("function_to_apply", &[r#""none""#])]]),
];

/// The fields of `POST /` for a model that finds entities.
const TOKEN_CLASSIFY: &[Field] = &[
    read("inputs", fields::TEXT_OR_TEXTS),
    read("parameters", fields::OBJECT).with(&[&[
        read("aggregation_strategy", &[r#""first""#]),
        read("ignore_labels", fields::TEXTS),
        read("stride", fields::NUMBER),
        ours("labels", &[r#"["a"]"#, r#"{"a": 0.5}"#]),
        ours("threshold", &["0.5"]),
        ours("flat_ner", fields::FLAG),
        ours("multi_label", fields::FLAG),
    ]]),
];

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiPredict)]
pub(super) struct Predict {
    inputs: PredictInput,
    raw_scores: Option<bool>,
    /// Of huggingface_hub's clients.
    parameters: Option<PredictParameters>,
}

#[derive(Default, Deserialize, ToSchema)]
#[schema(as = TeiPredictParameters)]
struct PredictParameters {
    top_k: Option<usize>,
    function_to_apply: Option<Function>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = TeiPredictFunction)]
enum Function {
    Softmax,
    Sigmoid,
    None,
}

#[derive(Deserialize, ToSchema)]
#[schema(as = TeiTokenClassify)]
pub(super) struct TokenClassify {
    inputs: Input,
    parameters: Option<TokenClassifyParameters>,
}

#[derive(Default, Deserialize, ToSchema)]
#[schema(as = TeiTokenClassifyParameters)]
struct TokenClassifyParameters {
    aggregation_strategy: Option<String>,
    ignore_labels: Option<Vec<String>>,
    stride: Option<u64>,
    /// For models that find entities of any labels: an array of labels, or an object of labels with their thresholds.
    #[schema(value_type = Option<Object>)]
    labels: Option<Labels>,
    threshold: Option<f64>,
    flat_ner: Option<bool>,
    multi_label: Option<bool>,
}

#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Labels {
    Names(Vec<String>),
    Thresholds(std::collections::BTreeMap<String, Option<f64>>),
}

/// The labels of each text, or of the only one; the best first.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Predictions<'a> {
    One(#[schema(inline)] Vec<Labelled<'a>>),
    Many(#[schema(inline)] Vec<Vec<Labelled<'a>>>),
}

// === impl Predictions ===

impl<'a> Predictions<'a> {
    /// The best `most` labels of each text; without a list around them if `flat` and there is one text.
    pub(super) fn of(classified: &'a Classified, most: usize, flat: bool) -> Predictions<'a> {
        let best = |row: &'a Vec<f32>| {
            let mut best = Labelled::best_first(classified, row);
            best.truncate(most);
            best
        };
        match classified.rows.as_slice() {
            [row] if flat => Predictions::One(best(row)),
            rows => Predictions::Many(rows.iter().map(best).collect()),
        }
    }
}

pub(super) async fn predict(call: DialectCall) -> Result<Response, Refusal> {
    let started = Instant::now();
    let body: Predict = call.read()?;
    let treatment: Treatment = call.read()?;
    let (inputs, one) = match body.inputs {
        PredictInput::One(pair) => (vec![pair], true),
        PredictInput::Many(pairs) if pairs.is_empty() => return Err(Refusal::empty("inputs")),
        PredictInput::Many(pairs) => (pairs, false),
    };
    let has_pairs = inputs.iter().filter(|pair| pair.second.is_some()).count();
    if has_pairs != 0 && has_pairs != inputs.len() {
        return Err(Refusal::field("inputs", "holds both texts and pairs of texts, expected one kind"));
    }
    let (texts, seconds): (Vec<String>, Vec<Option<String>>) =
        inputs.into_iter().map(|Pair { first, second }| (first, second)).unzip();
    let pairs: Option<Vec<String>> = seconds.into_iter().collect();
    // huggingface_hub, which sends it always, reads a list of lists.
    let flat = one && body.parameters.is_none();
    let parameters = body.parameters.unwrap_or_default();
    let raw = match parameters.function_to_apply {
        None => body.raw_scores,
        Some(Function::None) => body.raw_scores.or(Some(true)),
        Some(Function::Softmax | Function::Sigmoid) => {
            return Err(Refusal::unsupported(
                "parameters.function_to_apply",
                "is a function, expected \"none\", or no such field for the model's own",
            ));
        }
    };
    let options = TextOptions { raw_scores: raw, ..treatment.options() };
    let ask = ask(&call, treatment.model.as_deref(), options);
    let classified = call.operations.classify(&texts, pairs.as_deref(), &ask).await?;
    let most = parameters.top_k.unwrap_or(usize::MAX);
    Ok(timed(&classified.ledger, started, &texts, &Predictions::of(&classified, most, flat)))
}

pub(super) async fn token_classify(mut call: DialectCall) -> Result<Response, Refusal> {
    let started = Instant::now();
    if let Some(body) = Members::of(&call.body).check(&[TOKEN_CLASSIFY, treatment::FIELDS], Others::ByWords)? {
        call.body = body.into();
    }
    let body: TokenClassify = call.read()?;
    let treatment: Treatment = call.read()?;
    let (texts, one) = body.inputs.texts("inputs", "send texts")?;
    let TokenClassifyParameters {
        aggregation_strategy,
        ignore_labels,
        stride,
        labels,
        threshold,
        flat_ner,
        multi_label,
    } = body.parameters.unwrap_or_default();
    // Labels that are left out unless a request says otherwise: those of tokens that are in no entity.
    if ignore_labels.is_some_and(|labels| labels != ["O"]) {
        return Err(Refusal::unsupported("parameters.ignore_labels", "is not [\"O\"]: leave entities out yourself"));
    }
    let options = TextOptions {
        aggregation_strategy,
        overlap: stride.filter(|&stride| stride > 0),
        labels: labels.map(|labels| serde_json::json!(labels).to_string()),
        threshold,
        flat_ner,
        multi_label,
        ..treatment.options()
    };
    let ask = ask(&call, treatment.model.as_deref(), options);
    let entities = call.operations.token_classify(&texts, &ask).await?;
    let json = match entities.rows.as_slice() {
        [row] if one => row.clone(),
        rows => format!("[{}]", rows.join(",")),
    };
    Ok(timed_json(&entities.ledger, started, &texts, json))
}
