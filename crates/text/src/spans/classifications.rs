//! The tasks of classes that a request itself names, in the form of GLiNER2's schemas.

use indexmap::IndexMap;
use serde::Deserialize;

use super::MOST_LABELS;
use crate::TextError;

/// The parameter that holds them.
pub(crate) const PARAMETER: &str = "classifications";

/// Most bytes of the parameter.
const LONGEST: usize = 64 << 10;

/// The form of the parameter, for messages.
const EXPECTED: &str = r#"a JSON array of tasks, as [{"task": "safety", "labels": ["safe", "unsafe"]}]"#;

/// The threshold that the library has by default.
const THRESHOLD: f32 = 0.5;

/// The tasks of a request, in its order: the value of parameter `classifications`.
///
/// ```
/// use trireme_text::Classifications;
///
/// let read = Classifications::parse(r#"[{"task": "safety", "labels": ["safe", "unsafe"]},
///     {"task": "harm", "labels": {"fraud": "about stolen money", "none": ""}, "multi_label": true}]"#)?;
/// let names: Vec<_> = read.tasks().iter().map(|task| (task.name(), task.labels().len())).collect();
/// assert_eq!((names, read.labels()), (vec![("safety", 2), ("harm", 2)], 4));
/// # Ok::<(), trireme_text::TextError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Classifications(Vec<Classification>);

/// A task: its name, its labels, and how their scores are made and chosen.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Classification {
    task: String,
    labels: ClassLabels,
    /// Whether a text may have several of the labels.
    #[serde(default)]
    multi_label: bool,
    /// The score from which a label of several counts.
    #[serde(default = "usual_threshold")]
    cls_threshold: f32,
    /// Most labels of a text that may have several.
    #[serde(default)]
    top_k: Option<usize>,
    #[serde(default)]
    class_act: Option<Activation>,
    /// A description of the task, in words.
    #[serde(default)]
    prompt: Option<String>,
    /// Texts with their labels.
    #[serde(default)]
    examples: Vec<(String, String)>,
}

/// The function that makes scores of the logits of a task's labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Activation {
    /// `sigmoid` where a text may have several labels, else `softmax`.
    Auto,
    /// Each label has a probability of its own.
    Sigmoid,
    /// The scores of a task's labels sum to 1.
    Softmax,
}

/// Labels with their descriptions.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "LabelsJson")]
struct ClassLabels {
    names: Vec<String>,
    descriptions: Vec<Option<String>>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a list of labels, or an object of labels with their descriptions")]
enum LabelsJson {
    Named(Vec<String>),
    Described(IndexMap<String, Option<String>>),
}

fn usual_threshold() -> f32 {
    THRESHOLD
}

// === impl Classifications ===

impl Classifications {
    /// Reads the parameter: a JSON array of objects with `task`, `labels` and, if wanted, `multi_label`, `cls_threshold`, `top_k`, `class_act`, `prompt` and
    /// `examples`, as `Schema.from_dict` of gliner2 reads them.
    ///
    /// # Errors
    /// It has another form, no task, two of one name, a task without a label or with one label twice, more than [`MOST_LABELS`] labels in all, or a
    /// threshold that is not from 0 to 1.
    pub fn parse(text: &str) -> Result<Classifications, TextError> {
        if text.len() > LONGEST {
            return Err(TextError::LongText { parameter: PARAMETER, bytes: text.len(), most: LONGEST });
        }
        let wrong = |what: String| TextError::Labels { parameter: PARAMETER, reason: what };
        let read: Vec<Classification> =
            serde_json::from_str(text).map_err(|error| wrong(format!("is not {EXPECTED}: {error}")))?;
        if read.is_empty() {
            return Err(wrong(format!("has no task, expected {EXPECTED}")));
        }
        for (at, task) in read.iter().enumerate() {
            if read[..at].iter().any(|before| before.task == task.task) {
                return Err(wrong(format!("has two tasks '{}': give each a name of its own", task.task)));
            }
            task.fault().map_or(Ok(()), |fault| Err(wrong(format!("task '{}' {fault}", task.task))))?;
        }
        let read = Classifications(read);
        match read.labels() > MOST_LABELS {
            true => Err(TextError::TooManyLabels { parameter: PARAMETER, most: MOST_LABELS }),
            false => Ok(read),
        }
    }

    /// The tasks.
    pub fn tasks(&self) -> &[Classification] {
        &self.0
    }

    /// The labels of all tasks: as many scores a text has.
    pub fn labels(&self) -> usize {
        self.0.iter().map(|task| task.labels.names.len()).sum()
    }
}

// === impl Classification ===

impl Classification {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.task
    }

    /// Its labels, in the order of their scores.
    pub fn labels(&self) -> &[String] {
        &self.labels.names
    }

    /// Whether a text may have several of them.
    pub fn is_multi_label(&self) -> bool {
        self.multi_label
    }

    /// The score from which a label of several counts.
    pub fn threshold(&self) -> f32 {
        self.cls_threshold
    }

    /// Most labels of a text that may have several.
    pub fn top_k(&self) -> Option<usize> {
        self.top_k
    }

    /// Whether its scores are the softmax of its logits; else each is the sigmoid of its own.
    pub fn is_softmax(&self) -> bool {
        match self.class_act {
            Some(Activation::Softmax) => true,
            Some(Activation::Sigmoid) => false,
            Some(Activation::Auto) | None => !self.multi_label,
        }
    }

    /// The text before its labels in a row: its name, with prompt, descriptions and examples.
    pub(super) fn heading(&self) -> String {
        let mut heading = self.task.clone();
        if let Some(prompt) = self.prompt.as_ref().filter(|prompt| !prompt.is_empty()) {
            heading += &format!(": {prompt}");
        }
        for (label, description) in self.labels.names.iter().zip(&self.labels.descriptions) {
            if let Some(description) = description {
                heading += &format!(" [DESCRIPTION] {label}: {description}");
            }
        }
        for (text, label) in self.examples.iter().filter(|(_, label)| self.labels.names.contains(label)) {
            heading += &format!(" [EXAMPLE] {text} [OUTPUT] {label}");
        }
        heading
    }

    /// Why nothing can be asked for by it.
    fn fault(&self) -> Option<String> {
        let names = &self.labels.names;
        if self.task.trim().is_empty() {
            return Some("has no name".to_owned());
        }
        if names.is_empty() {
            return Some("has no label".to_owned());
        }
        let is_twice = |(at, name): &(usize, &String)| name.trim().is_empty() || names[..*at].contains(name);
        if let Some((_, name)) = names.iter().enumerate().find(is_twice) {
            return Some(format!("has label '{name}', expected labels that are not empty, each once"));
        }
        if !(0.0..=1.0).contains(&self.cls_threshold) {
            return Some(format!("has cls_threshold {}, expected a number from 0 to 1", self.cls_threshold));
        }
        (self.top_k == Some(0)).then(|| "has top_k 0, expected a whole number from 1".to_owned())
    }
}

// === impl ClassLabels ===

impl From<LabelsJson> for ClassLabels {
    fn from(json: LabelsJson) -> ClassLabels {
        match json {
            LabelsJson::Named(names) => ClassLabels { descriptions: vec![None; names.len()], names },
            LabelsJson::Described(described) => {
                let (names, descriptions) = described.into_iter().unzip();
                ClassLabels { names, descriptions }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Classifications::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn tasks_keep_their_order_and_what_stands_before_labels_is_the_librarys() {
        let text = r#"[{"task": "b", "labels": {"z": "last", "a": "first"}, "prompt": "what is it", "examples": [["x", "a"], ["y", "other"]]},
            {"task": "a", "labels": ["1", "2"], "multi_label": true, "cls_threshold": 0.25, "top_k": 1}]"#;
        let read = Classifications::parse(text).unwrap();
        let [first, second] = read.tasks() else { panic!("two tasks") };
        assert_eq!((first.labels(), first.is_softmax()), (&["z".to_owned(), "a".to_owned()][..], true));
        assert_eq!(
            first.heading(),
            "b: what is it [DESCRIPTION] z: last [DESCRIPTION] a: first [EXAMPLE] x [OUTPUT] a"
        );
        assert_eq!((second.threshold(), second.top_k(), second.is_softmax()), (0.25, Some(1), false));
        assert_eq!(second.heading(), "a");
        let own = r#"[{"task": "t", "labels": ["a"], "class_act": "sigmoid"}]"#;
        assert!(!Classifications::parse(own).unwrap().tasks()[0].is_softmax());
    }

    #[test]
    fn other_forms_are_refused_by_name() {
        for (wrong, why) in [
            ("", "a JSON array of tasks"),
            ("[]", "has no task"),
            (r#"{"safety": ["safe"]}"#, "a JSON array of tasks"),
            (r#"[{"task": "t"}]"#, "missing field `labels`"),
            (r#"[{"task": "t", "labels": "a, b"}]"#, "expected a list of labels, or an object"),
            (r#"[{"task": "t", "labels": ["a"], "label": 1}]"#, "unknown field `label`"),
            (r#"[{"task": "t", "labels": []}]"#, "task 't' has no label"),
            (r#"[{"task": " ", "labels": ["a"]}]"#, "has no name"),
            (
                r#"[{"task": "t", "labels": ["a", "a"]}]"#,
                "has label 'a', expected labels that are not empty, each once",
            ),
            (
                r#"[{"task": "t", "labels": ["a"], "cls_threshold": 2}]"#,
                "cls_threshold 2, expected a number from 0 to 1",
            ),
            (r#"[{"task": "t", "labels": ["a"], "top_k": 0}]"#, "top_k 0"),
            (r#"[{"task": "t", "labels": ["a"], "class_act": "tanh"}]"#, "unknown variant `tanh`"),
            (r#"[{"task": "t", "labels": ["a"]}, {"task": "t", "labels": ["b"]}]"#, "two tasks 't'"),
        ] {
            let error = refused(wrong);
            assert!(error.starts_with("parameter 'classifications': ") && error.contains(why), "{wrong}: {error}");
        }
        let labels: Vec<String> = (0..257).map(|label| format!("l{label}")).collect();
        let of = |labels: &[String]| serde_json::json!([{"task": "t", "labels": labels}]).to_string();
        assert_eq!(
            refused(&of(&labels)),
            "parameter 'classifications' has more than 256 labels: send several requests"
        );
        assert!(Classifications::parse(&of(&labels[1..])).is_ok());
    }
}
