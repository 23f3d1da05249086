//! `classes`: the scores of the labels of a request's tasks, and the labels that count, from the logits of labels `[texts, labels]`, as the library
//! `gliner2` makes them.
//!
//! The last op of a chain. The tasks are those of the request's parameter `classifications`, and the labels are in its order. The outputs of the
//! model are `scores`, `[texts, labels]`, and `classes`, a JSON object for each text.
//!
//! The scores of a task are the softmax of its logits. Where a text may have several labels, each is the sigmoid of its own logit; `class_act` says
//! otherwise. With `raw_scores` they are the logits. The label with the highest score counts. Of several labels those count that reach
//! `cls_threshold`, or else the highest one; `top_k` keeps the best of these.

use ndarray::{Array1, Array2, ArrayView1, Axis, Ix2, s};
use serde::{Serialize, Serializer};
use trireme_inference::{InferError, ParameterValue};
use trireme_text::{Classification, Classifications};

use super::op::{Op, OpEntry, Resources, compare_scores, no_argument};
use crate::inputs::Side;
use crate::{Form, Signature, Value};

/// The op in the table.
pub const ENTRY: OpEntry = OpEntry {
    name: "classes",
    usage: "classes",
    doc: "scores of the labels of a request's tasks, and the labels that count, as JSON: [texts, labels]; last in a chain",
    inputs: &[],
    embeds: false,
    reduces: false,
    build,
};

struct Classes;

/// A label that counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Chosen<'a> {
    label: &'a str,
    score: f32,
}

/// The labels of a text, by one task.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
enum Said<'a> {
    One(Chosen<'a>),
    Several(Vec<Chosen<'a>>),
}

/// The labels of a text by all tasks, in their order.
struct Judgement<'a>(Vec<(&'a str, Said<'a>)>);

/// Builds the op.
fn build(argument: Option<&str>, _: &Resources<'_>) -> Result<Box<dyn Op>, String> {
    no_argument(argument)?;
    Ok(Box::new(Classes))
}

// === impl Classes ===

impl Op for Classes {
    fn signature(&self, input: &Signature) -> Result<Signature, String> {
        Ok(Signature::new(Form::Classes, input.expect(Form::Floats, 2..=2)?.dims.clone()))
    }

    fn apply<'a>(&self, value: Value<'a>, side: &Side<'_>) -> Result<Value<'a>, InferError> {
        let logits = value.into_floats()?.into_dimensionality::<Ix2>();
        let logits = logits.map_err(|_| InferError::internal("classes takes numbers of rank 2"))?;
        let asked = side.parameters.and_then(|parameters| parameters.get("classifications"));
        let asked = asked.and_then(ParameterValue::as_str).ok_or_else(|| {
            InferError::invalid_arg("parameter 'classifications' is missing, which names the labels of the scores")
        })?;
        let asked = Classifications::parse(asked)?;
        let (texts, found) = logits.dim();
        if found != asked.labels() {
            let labels = asked.labels();
            return Err(InferError::invalid_arg(format!(
                "classes has {labels} labels of the request, got {found} scores"
            )));
        }
        let mut scores = Array2::zeros((texts, found));
        let mut chosen = Vec::with_capacity(texts);
        for (logits, mut row) in logits.axis_iter(Axis(0)).zip(scores.axis_iter_mut(Axis(0))) {
            let mut said = Vec::with_capacity(asked.tasks().len());
            let mut begin = 0;
            for task in asked.tasks() {
                let own = s![begin..begin + task.labels().len()];
                let probabilities = probabilities(task, logits.slice(own));
                said.push((task.name(), counting(task, &probabilities)));
                match side.options.raw_scores {
                    true => row.slice_mut(own).assign(&logits.slice(own)),
                    false => row.slice_mut(own).assign(&Array1::from(probabilities)),
                }
                begin += task.labels().len();
            }
            let text = serde_json::to_string(&Judgement(said));
            chosen.push(text.map_err(|error| InferError::internal(error.to_string()))?);
        }
        Ok(Value::Classes { scores: scores.into_dyn(), chosen: Array1::from(chosen).into_dyn() })
    }
}

/// The scores of a task's labels.
fn probabilities(task: &Classification, logits: ArrayView1<'_, f32>) -> Vec<f32> {
    if !task.is_softmax() {
        return logits.iter().map(|logit| 1.0 / (1.0 + (-logit).exp())).collect();
    }
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| (logit - highest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// The labels of a task that count.
fn counting<'a>(task: &'a Classification, scores: &[f32]) -> Said<'a> {
    let all: Vec<Chosen<'_>> =
        task.labels().iter().zip(scores).map(|(label, &score)| Chosen { label, score }).collect();
    // Of equal ones the first.
    let best = all.iter().copied().reduce(|best, other| if other.score > best.score { other } else { best });
    let best = best.unwrap_or(Chosen { label: "", score: 0.0 });
    if !task.is_multi_label() {
        return Said::One(best);
    }
    let mut chosen: Vec<Chosen<'_>> = all.into_iter().filter(|label| label.score >= task.threshold()).collect();
    if chosen.is_empty() {
        chosen.push(best);
    }
    if let Some(most) = task.top_k() {
        chosen.sort_by(|one, other| compare_scores(other.score, one.score));
        chosen.truncate(most);
    }
    Said::Several(chosen)
}

// === impl Judgement ===

impl Serialize for Judgement<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(task, said)| (task, said)))
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, arr2};
    use trireme_inference::Parameters;

    use super::*;
    use crate::options::RequestOptions;

    const TASKS: &str = r#"[{"task": "safety", "labels": ["safe", "unsafe"]},
        {"task": "harm", "labels": ["fraud", "hate", "none"], "multi_label": true, "cls_threshold": 0.6}]"#;

    fn run(logits: &[[f32; 5]], tasks: &str, raw_scores: bool) -> Result<(ArrayD<f32>, Vec<String>), InferError> {
        let parameters = Parameters::from([("classifications".to_owned(), tasks.into())]);
        let options = RequestOptions { raw_scores, ..RequestOptions::default() };
        let side = Side { parameters: Some(&parameters), options, ..Side::default() };
        match Classes.apply(Value::Floats(arr2(logits).into_dyn().into()), &side)? {
            Value::Classes { scores, chosen } => Ok((scores, chosen.into_iter().collect())),
            other => panic!("{other:?}"),
        }
    }

    /// The labels that count, in the order of the text.
    fn named(chosen: &str) -> Vec<&str> {
        chosen.split(r#""label":""#).skip(1).filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn each_task_has_its_activation_and_its_choice() {
        let logits = [[0.0, 3.0f32.ln(), 0.0, 1.0, 2.0], [200.0, 0.0, -1.0, -2.0, -3.0]];
        let (scores, chosen) = run(&logits, TASKS, false).unwrap();
        let expected = [0.25, 0.75, 0.5, 0.731_058_6, 0.880_797];
        scores.iter().zip(expected).for_each(|(one, other)| assert!((one - other).abs() < 1e-6, "{scores}"));
        assert_eq!(named(&chosen[0]), ["unsafe", "hate", "none"]);
        // No label reaches the threshold: the highest one counts.
        assert_eq!(named(&chosen[1]), ["safe", "fraud"]);
        assert!(
            chosen[1].starts_with(r#"{"safety":{"label":"safe","score":1.0},"harm":[{"label":"fraud","score":0.26"#)
        );
        let best = TASKS.replace("0.6}", "0.6, \"top_k\": 1}");
        assert_eq!(named(&run(&logits, &best, false).unwrap().1[0]), ["unsafe", "none"]);
        let (raw, same) = run(&logits, TASKS, true).unwrap();
        assert_eq!((raw.as_slice().unwrap()[5], same), (200.0, chosen));
    }

    #[test]
    fn scores_of_other_labels_are_refused() {
        let few = r#"[{"task": "safety", "labels": ["safe", "unsafe"]}]"#;
        let error = run(&[[0.0; 5]], few, false).unwrap_err().message;
        assert_eq!(error, "classes has 2 labels of the request, got 5 scores");
        let missing = Classes.apply(Value::Floats(arr2(&[[0.0]]).into_dyn().into()), &Side::default()).unwrap_err();
        assert!(missing.message.contains("parameter 'classifications' is missing"), "{missing:?}");
    }
}
