//! The labels of a request for entities that the request itself names.

use std::collections::BTreeMap;

use crate::TextError;

/// Most labels of a request: each is in every row, and has a score for each span.
pub const MOST_LABELS: usize = 256;

/// The parameter that holds them.
pub(super) const PARAMETER: &str = "labels";

/// Most bytes of the parameter.
const LONGEST: usize = 64 << 10;

/// The form of parameter `labels`, for messages.
const EXPECTED: &str = "a JSON array of labels, a JSON object of labels with their thresholds from 0 to 1, or labels with commas between them";

/// The labels of a request, each once, with the thresholds that it gives them.
///
/// ```
/// use trireme_text::SpanLabels;
///
/// let labels = SpanLabels::parse(r#"{"person": 0.7, "place": null}"#)?;
/// assert_eq!(labels.names(), ["person", "place"]);
/// assert_eq!((labels.threshold(0), labels.threshold(1)), (Some(0.7), None));
/// assert_eq!(SpanLabels::parse("place, person, place")?.names(), ["place", "person"]);
/// # Ok::<(), trireme_text::TextError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpanLabels {
    names: Vec<String>,
    thresholds: Vec<Option<f32>>,
}

// === impl SpanLabels ===

impl SpanLabels {
    /// Reads parameter `labels`: a JSON array of labels, labels with commas between them, or a JSON object of labels with a threshold or null, which come
    /// in alphabetical order. A label that comes twice counts once.
    ///
    /// # Errors
    /// It has another form, no label, an empty one, more than [`MOST_LABELS`], or a threshold that is not from 0 to 1.
    pub fn parse(text: &str) -> Result<SpanLabels, TextError> {
        if text.len() > LONGEST {
            return Err(TextError::LongText { parameter: PARAMETER, bytes: text.len(), most: LONGEST });
        }
        let wrong = || TextError::Parameter { parameter: PARAMETER, found: format!("'{text}'"), expected: EXPECTED };
        let alone = |name: String| (name, None);
        let given: Vec<(String, Option<f32>)> = match text.trim_start().as_bytes().first() {
            Some(b'[') => {
                serde_json::from_str::<Vec<String>>(text).map_err(|_| wrong())?.into_iter().map(alone).collect()
            }
            Some(b'{') => serde_json::from_str::<BTreeMap<_, _>>(text).map_err(|_| wrong())?.into_iter().collect(),
            _ => {
                let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
                names.map(str::to_owned).map(alone).collect()
            }
        };
        let mut labels = SpanLabels::default();
        for (name, threshold) in given {
            if name.trim().is_empty() || threshold.is_some_and(|number| !(0.0..=1.0).contains(&number)) {
                return Err(wrong());
            }
            if labels.names.contains(&name) {
                continue;
            }
            if labels.names.len() == MOST_LABELS {
                return Err(TextError::TooManyLabels { parameter: PARAMETER, most: MOST_LABELS });
            }
            labels.names.push(name);
            labels.thresholds.push(threshold);
        }
        if labels.names.is_empty() { Err(wrong()) } else { Ok(labels) }
    }

    /// The labels, in the order of their scores.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The threshold that the request gives the label at this place.
    pub fn threshold(&self, label: usize) -> Option<f32> {
        self.thresholds.get(label).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_forms_are_refused_by_name() {
        for wrong in ["", " , ", "[]", "{}", "[1]", r#"[" "]"#, r#"{"a": 2}"#, r#"{"a": "0.5"}"#, "[\"a\""] {
            let error = SpanLabels::parse(wrong).unwrap_err().to_string();
            assert!(
                error.starts_with("parameter 'labels' is '") && error.contains("a JSON array of labels"),
                "{error}"
            );
        }
        let many: Vec<String> = (0..257).map(|label| format!("l{label}")).collect();
        let error = SpanLabels::parse(&many.join(",")).unwrap_err().to_string();
        assert_eq!(error, "parameter 'labels' has more than 256 labels: send several requests");
        assert_eq!(SpanLabels::parse(&many[..256].join(",")).unwrap().names().len(), 256);
    }

    #[test]
    fn labels_keep_their_order_and_those_of_an_object_are_sorted() {
        assert_eq!(SpanLabels::parse(r#"["ship", "crew, able", "ship"]"#).unwrap().names(), ["ship", "crew, able"]);
        let labels = SpanLabels::parse(r#"{"ship": 0.25, "crew": null, "anchor": 1}"#).unwrap();
        assert_eq!(labels.names(), ["anchor", "crew", "ship"]);
        assert_eq!([0, 1, 2, 3].map(|label| labels.threshold(label)), [Some(1.0), None, Some(0.25), None]);
    }
}
