//! The labels of classifiers and rerankers, and the op that makes probabilities of their scores.

use serde_json::Value;

use super::files::{Json, Reader};
use super::origin::{Derived, TRANSFORMERS};

/// The op that turns a classifier's logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Softmax,
    Sigmoid,
    Tanh,
    None,
}

/// Values of `problem_type`.
const PROBLEM_TYPES: [(&str, Activation); 3] = [
    ("single_label_classification", Activation::Softmax),
    ("multi_label_classification", Activation::Sigmoid),
    ("regression", Activation::None),
];

// === impl Activation ===

impl Activation {
    pub(crate) fn op(self) -> Option<&'static str> {
        match self {
            Activation::Softmax => Some("softmax"),
            Activation::Sigmoid => Some("sigmoid"),
            Activation::Tanh => Some("tanh"),
            Activation::None => None,
        }
    }
}

/// The class names, in the order of the logits: `id2label`. `label2id` and `num_labels` have to agree with it.
pub(crate) fn labels(reader: &Reader<'_>, config: &Json) -> Derived<Vec<String>> {
    let file = &config.file;
    let counted = config.number(reader, "num_labels");
    let Some(named) = config.object(reader, "id2label") else {
        // transformers' own default is two.
        let count = counted.as_ref().map_or(2, |count| count.value);
        let names = (0..count.min(1 << 20)).map(|id| format!("LABEL_{id}")).collect();
        return match counted {
            Some(counted) => Derived::from(names, counted.origin),
            None => Derived::default_of(names, TRANSFORMERS, &format!("{file} has no id2label")),
        };
    };
    let mut labels = vec![None; named.len()];
    for (id, label) in &named {
        match (id.parse::<usize>().ok().and_then(|id| labels.get_mut(id)), label.as_str()) {
            (Some(place), Some(label)) => *place = Some(label.to_owned()),
            // Labels that are numbers, which the library takes as they are.
            (Some(place), None) if label.is_number() || label.is_boolean() => *place = Some(label.to_string()),
            _ => reader.fault(format_args!(
                "{file}: id2label has '{id}', expected the numbers from 0 to {}, each with a name",
                named.len().saturating_sub(1)
            )),
        }
    }
    if let Some(counted) = counted
        && counted.value != labels.len() as u64
    {
        let (named, origin) = (labels.len(), counted.origin);
        reader.fault(format_args!("{origin} is {}, but {file}: id2label has {named} labels", counted.value));
    }
    let labels: Vec<String> = labels.into_iter().map(Option::unwrap_or_default).collect();
    for (label, id) in config.object(reader, "label2id").into_iter().flatten() {
        let Some(id) = id.as_u64() else { continue };
        match labels.get(id as usize) {
            Some(other) if *other == label => {}
            // An id may have several names as long as `label2id` also holds the one in `id2label`.
            Some(other) if config.get("label2id").and_then(|ids| ids.get(other)?.as_u64()) == Some(id) => {}
            other => {
                let other = other.map_or("nothing".to_owned(), |other| format!("'{other}'"));
                // The library names classes by id2label alone.
                reader.warn(format_args!(
                    "{file}: label2id has '{label}' as {id}, but {file}: id2label has {other} there, which counts"
                ));
            }
        }
    }
    Derived::field(labels, file, "id2label")
}

/// `problem_type`, and the activation that follows from it, as transformers' pipelines choose them.
pub(crate) fn problem(reader: &Reader<'_>, config: &Json, labels: usize) -> Derived<(&'static str, Activation)> {
    match config.text(reader, "problem_type") {
        Some(told) => match PROBLEM_TYPES.iter().find(|(name, _)| *name == told.value) {
            Some(known) => Derived::from(*known, told.origin),
            None => {
                let known = PROBLEM_TYPES.map(|(name, _)| name).join(", ");
                reader.fault(format_args!("{} is '{}', expected one of {known}", told.origin, told.value));
                Derived::from(PROBLEM_TYPES[0], told.origin)
            }
        },
        None if labels == 1 => {
            Derived::default_of(PROBLEM_TYPES[1], TRANSFORMERS, "there is one label, and no problem_type")
        }
        None => Derived::default_of(PROBLEM_TYPES[0], TRANSFORMERS, "there are several labels, and no problem_type"),
    }
}

/// The activation of a cross-encoder, where its folder names one: config.json has it under one of two names, and
/// config_sentence_transformers.json may have it as well.
pub(crate) fn cross_encoder_activation(
    reader: &Reader<'_>,
    config: &Json,
    own: Option<&Json>,
) -> Option<Derived<Activation>> {
    let within = config.get("sentence_transformers").and_then(|value| value.get("activation_fn"));
    let places = [
        (within, config.file.clone(), "sentence_transformers.activation_fn"),
        (
            config.get("sbert_ce_default_activation_function"),
            config.file.clone(),
            "sbert_ce_default_activation_function",
        ),
        (
            own.and_then(|own| own.get("activation_fn")),
            own.map(|own| own.file.clone()).unwrap_or_default(),
            "activation_fn",
        ),
    ];
    let mut found: Option<Derived<Activation>> = None;
    for (value, file, field) in places {
        let Some(name) = value.and_then(Value::as_str) else { continue };
        let activation = match name.rsplit('.').next().unwrap_or_default() {
            "Sigmoid" => Activation::Sigmoid,
            "Identity" => Activation::None,
            "Softmax" => Activation::Softmax,
            "Tanh" => Activation::Tanh,
            _ => {
                reader.fault(format_args!(
                    "{file}: {field} is '{name}', supported are Sigmoid, Identity, Softmax and Tanh"
                ));
                continue;
            }
        };
        match &found {
            Some(first) if first.value != activation => {
                reader
                    .fault(format_args!("{file}: {field} is '{name}', but {} names another activation", first.origin));
            }
            Some(_) => {}
            None => found = Some(Derived::field(activation, &file, field)),
        }
    }
    found
}
