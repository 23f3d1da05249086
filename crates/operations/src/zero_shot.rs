//! Texts to a score for each label of the request, by a model that judges whether one text follows from another (NLI), or by one whose rows hold the
//! labels (GLiNER2).
//!
//! For NLI each text is paired with a hypothesis for each label. The scores are made of the logits of these pairs, as transformers'
//! `ZeroShotClassificationPipeline` makes them. A model of the other kind gets the labels as a task of its parameter `classifications`.

use trireme_inference::{InferError, ParameterValue, Parameters, shown};
use trireme_model_repository::Nli;

use crate::{Capabilities, Classified, Found, OperationRequest, Operations, Task, TextOptions};

/// The hypothesis without a template of the request.
const TEMPLATE: &str = "This example is {}.";

/// The name of the task of labels without one of the request.
const TASK: &str = "classification";

/// The place of the label in a template.
const BLANK: &str = "{}";

/// Most pairs of a text and a label in a request, and so most labels.
const MOST_PAIRS: usize = 16_384;

/// Longest template, in bytes: it is repeated for each label.
const LONGEST_TEMPLATE: usize = 1024;

/// The labels of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    labels: Vec<String>,
    template: Option<String>,
    multi_label: bool,
}

/// How a model scores labels of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroShot {
    /// By pairs of a text and a hypothesis, whose classes of these places say whether the one follows from the other.
    Nli(Nli),
    /// By rows that hold the labels: parameter `classifications` of its tokenizer.
    Schema,
}

// === impl Candidates ===

impl Candidates {
    /// The labels with a template of hypotheses, in which `{}` stands for the label. With `multi_label` the score of a label does not depend on
    /// the other labels.
    ///
    /// # Errors
    /// There is no label, or there are more than a request may have pairs; the template is longer than 1 024 bytes.
    pub fn new(labels: Vec<String>, template: Option<&str>, multi_label: bool) -> Result<Candidates, InferError> {
        if labels.is_empty() {
            return Err(InferError::invalid_arg("'candidate_labels' is empty, expected at least one label"));
        }
        if labels.len() > MOST_PAIRS {
            let found = labels.len();
            return Err(InferError::invalid_arg(format!(
                "'candidate_labels' has {found} labels, expected at most {MOST_PAIRS}: send fewer labels in a request"
            )));
        }
        if let Some(found) = template.map(str::len).filter(|&length| length > LONGEST_TEMPLATE) {
            return Err(InferError::invalid_arg(format!(
                "'hypothesis_template' has {found} bytes, expected at most {LONGEST_TEMPLATE}: it is repeated for each label"
            )));
        }
        Ok(Candidates { labels, template: template.map(str::to_owned), multi_label })
    }

    /// A hypothesis for each label.
    ///
    /// # Errors
    /// The template has not exactly one `{}`.
    pub fn hypotheses(&self) -> Result<Vec<String>, InferError> {
        let template = self.template.as_deref().unwrap_or(TEMPLATE);
        let Some((before, behind)) = template.split_once(BLANK).filter(|(_, behind)| !behind.contains(BLANK)) else {
            return Err(InferError::invalid_arg(format!(
                "'hypothesis_template' is '{}', expected one {BLANK}, the place of the label, as in '{TEMPLATE}'",
                shown(template)
            )));
        };
        Ok(self.labels.iter().map(|label| format!("{before}{label}{behind}")).collect())
    }

    /// The value of parameter `classifications` that asks for the labels: one task, whose name is the template. A single label has a probability of its
    /// own, as with `multi_label`.
    ///
    /// # Errors
    /// The template has a `{}`.
    pub fn schema(&self) -> Result<String, InferError> {
        let task = self.template.as_deref().unwrap_or(TASK);
        if task.contains(BLANK) {
            return Err(InferError::invalid_arg(format!(
                "'hypothesis_template' is '{}', but this model makes no sentences of labels: write the name of the task, as in 'prompt_safety'",
                shown(task)
            )));
        }
        let multi_label = self.multi_label || self.labels.len() == 1;
        Ok(serde_json::json!([{"task": task, "labels": self.labels, "multi_label": multi_label}]).to_string())
    }

    /// The labels in the parameters of a v2 request: `candidate_labels`, a JSON array or labels with commas between them,
    /// `hypothesis_template` and `multi_label`. `None`: the request has no `candidate_labels`.
    ///
    /// # Errors
    /// As for [`Candidates::new`], and where a parameter has another form.
    pub fn from_parameters(parameters: &Parameters) -> Result<Option<Candidates>, InferError> {
        let wrong = |name: &str, value: &ParameterValue, expected: &str| {
            InferError::invalid_arg(format!("parameter '{name}' is {value}, expected {expected}"))
        };
        let Some(given) = parameters.get("candidate_labels") else { return Ok(None) };
        let expected = "a JSON array of labels, or labels with commas between them";
        let text = given.as_str().ok_or_else(|| wrong("candidate_labels", given, expected))?;
        let labels = match text.trim_start().starts_with('[') {
            true => serde_json::from_str(text).map_err(|_| wrong("candidate_labels", given, expected))?,
            false => text.split(',').map(str::trim).filter(|label| !label.is_empty()).map(str::to_owned).collect(),
        };
        let template = parameters.get("hypothesis_template");
        let template =
            template.map(|value| value.as_str().ok_or_else(|| wrong("hypothesis_template", value, "a text")));
        let multi_label = match parameters.get("multi_label") {
            None => false,
            Some(ParameterValue::Bool(flag)) => *flag,
            Some(other) => return Err(wrong("multi_label", other, "true or false")),
        };
        Candidates::new(labels, template.transpose()?, multi_label).map(Some)
    }

    /// The labels, in the order of the scores.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The pairs of a request: each text as often as there are labels, and beside it the hypothesis of each label.
    ///
    /// # Errors
    /// There are more pairs than a request may have.
    pub fn pairs<'h, T: Clone>(
        &self,
        texts: &[T],
        hypotheses: &'h [String],
    ) -> Result<(Vec<T>, Vec<&'h str>), InferError> {
        let (rows, labels) = (texts.len(), self.labels.len());
        if rows.saturating_mul(labels) > MOST_PAIRS {
            return Err(InferError::invalid_arg(format!(
                "{rows} texts with {labels} labels are {} pairs, expected at most {MOST_PAIRS}: send fewer texts in a request",
                rows.saturating_mul(labels)
            )));
        }
        let firsts = texts.iter().flat_map(|text| std::iter::repeat_n(text.clone(), labels)).collect();
        let hypotheses = hypotheses.iter().map(String::as_str);
        Ok((firsts, std::iter::repeat_n(hypotheses, rows).flatten().collect()))
    }

    /// The scores of the labels, text by text, of the logits of all pairs, `width` for each. Without `multi_label` they are the softmax of the
    /// labels' entailment. With it, and with a single label, each is the softmax of entailment against contradiction.
    pub fn scores(&self, nli: Nli, logits: &[f32], width: usize) -> Vec<f32> {
        let pairs = logits.chunks_exact(width.max(1));
        if self.multi_label || self.labels.len() == 1 {
            return pairs.map(|pair| 1.0 / (1.0 + (pair[nli.contradiction] - pair[nli.entailment]).exp())).collect();
        }
        let mut scores: Vec<f32> = pairs.map(|pair| pair[nli.entailment]).collect();
        for text in scores.chunks_exact_mut(self.labels.len()) {
            let highest = text.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            text.iter_mut().for_each(|score| *score = (*score - highest).exp());
            let sum: f32 = text.iter().sum();
            text.iter_mut().for_each(|score| *score /= sum);
        }
        scores
    }
}

// === impl Capabilities ===

impl Capabilities {
    /// How labels of requests get their scores; `None`: the model does not do `zero_shot`.
    pub fn zero_shot(&self) -> Option<ZeroShot> {
        self.tasks.get(&Task::ZeroShot)?;
        if self.takes_schema { Some(ZeroShot::Schema) } else { Nli::of(&self.labels).map(ZeroShot::Nli) }
    }
}

// === impl Operations ===

impl Operations {
    /// The scores of the request's own labels for each text.
    pub async fn zero_shot(
        &self,
        texts: &[String],
        candidates: &Candidates,
        ask: &OperationRequest,
    ) -> Result<Classified, InferError> {
        let found = self.find_for(Task::ZeroShot, ask)?;
        let capabilities = &found.pipeline.capabilities;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let nli = match capabilities.zero_shot() {
            Some(ZeroShot::Nli(nli)) => nli,
            Some(ZeroShot::Schema) => return self.score_by_schema(found, &texts, candidates, ask).await,
            None => return Err(found.fault("has no label 'entailment'".to_owned())),
        };
        let hypotheses = candidates.hypotheses()?;
        let (firsts, hypotheses) = candidates.pairs(&texts, &hypotheses)?;
        let options = TextOptions { raw_scores: Some(true), ..ask.options.clone() };
        let ask = OperationRequest { options, ..ask.clone() };
        let (tensors, ledger) = self.run_texts(&found, &firsts, Some(&hypotheses), &ask).await?;
        let tensor = tensors.first().ok_or_else(|| found.fault("gave no scores".to_owned()))?;
        let (logits, width) = found.numbers(tensor)?;
        let expected = capabilities.labels.len();
        if width != expected {
            return Err(found.fault(format!("gave {width} scores for {expected} labels")));
        }
        let scores = candidates.scores(nli, &logits, width);
        let rows = scores.chunks_exact(candidates.labels.len()).map(<[f32]>::to_vec).collect();
        Ok(Classified { model: found.pipeline.name, labels: candidates.labels.clone(), rows, ledger })
    }

    /// The scores by a model whose rows hold the labels.
    async fn score_by_schema(
        &self,
        found: Found,
        texts: &[&str],
        candidates: &Candidates,
        ask: &OperationRequest,
    ) -> Result<Classified, InferError> {
        let mut ask = ask.clone();
        ask.parameters.insert("classifications".to_owned(), candidates.schema()?.as_str().into());
        let (tensors, ledger) = self.run_texts(&found, texts, None::<&[&str]>, &ask).await?;
        let tensor = tensors.first().ok_or_else(|| found.fault("gave no scores".to_owned()))?;
        let (scores, width) = found.numbers(tensor)?;
        let expected = candidates.labels.len();
        if width != expected {
            return Err(found.fault(format!("gave {width} scores for {expected} labels")));
        }
        let rows = scores.chunks_exact(width).map(<[f32]>::to_vec).collect();
        Ok(Classified { model: found.pipeline.name, labels: candidates.labels.clone(), rows, ledger })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn parameters(given: &[(&str, ParameterValue)]) -> Parameters {
        given.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }

    #[test]
    fn labels_are_a_json_array_or_a_list_with_commas() {
        let of = |text: &str| Candidates::from_parameters(&parameters(&[("candidate_labels", text.into())]));
        let read = |text: &str| of(text).unwrap().unwrap().labels;
        assert_eq!(read(r#"["a, b", "c"]"#), ["a, b", "c"]);
        assert_eq!(read("space , ship,"), ["space", "ship"]);
        assert_eq!(Candidates::from_parameters(&Parameters::new()).unwrap(), None);
        assert!(of(" ").unwrap_err().message.contains("'candidate_labels' is empty"));
        assert!(of("[1]").unwrap_err().message.contains("expected a JSON array of labels"));
        let given = [("candidate_labels", "a".into()), ("hypothesis_template", "It is {} or {}.".into())];
        let twice =
            Candidates::from_parameters(&parameters(&given)).unwrap().unwrap().hypotheses().unwrap_err().message;
        assert!(twice.contains("'It is {} or {}.', expected one {}"), "{twice}");
        let new = |labels: usize, template: &str| Candidates::new(vec!["a".to_owned(); labels], Some(template), false);
        let many = new(MOST_PAIRS + 1, "{}").unwrap_err().message;
        assert!(many.contains("has 16385 labels, expected at most 16384"), "{many}");
        let long = new(1, &format!("{{}}{}", "x".repeat(LONGEST_TEMPLATE))).unwrap_err().message;
        assert!(long.contains("has 1026 bytes, expected at most 1024"), "{long}");
        let given = [("candidate_labels", "a".into()), ("multi_label", "yes".into())];
        let flag = Candidates::from_parameters(&parameters(&given)).unwrap_err().message;
        assert!(flag.contains("'multi_label'") && flag.contains("expected true or false"), "{flag}");
    }

    #[test]
    fn each_text_meets_each_hypothesis_and_too_many_pairs_are_refused() {
        let two = Candidates::new(labels(&["calm", "storm"]), Some("Sea: {}!"), false).unwrap();
        let own = two.hypotheses().unwrap();
        let (firsts, hypotheses) = two.pairs(&["x", "y"], &own).unwrap();
        assert_eq!(firsts, ["x", "x", "y", "y"]);
        assert_eq!(hypotheses, ["Sea: calm!", "Sea: storm!", "Sea: calm!", "Sea: storm!"]);
        let refused = two.pairs(&vec![""; 8193], &own).unwrap_err().message;
        assert!(refused.contains("8193 texts with 2 labels are 16386 pairs, expected at most 16384"), "{refused}");
        assert!(two.pairs(&vec![""; 8192], &own).is_ok());
    }

    #[test]
    fn labels_are_a_task_of_a_model_whose_rows_hold_them() {
        let of = |names: &[&str], template, multi| Candidates::new(labels(names), template, multi).unwrap().schema();
        let two = of(&["safe", "unsafe"], Some("prompt_safety"), false).unwrap();
        assert_eq!(two, r#"[{"labels":["safe","unsafe"],"multi_label":false,"task":"prompt_safety"}]"#);
        let one = of(&["safe"], None, false).unwrap();
        assert_eq!(one, r#"[{"labels":["safe"],"multi_label":true,"task":"classification"}]"#);
        let sentence = of(&["safe"], Some("It is {}."), false).unwrap_err().message;
        assert!(sentence.contains("'It is {}.', but this model makes no sentences"), "{sentence}");
    }

    #[test]
    fn scores_are_of_all_labels_or_of_each_alone() {
        let nli = Nli { entailment: 2, contradiction: 0 };
        let logits = [0.0, 9.0, 3.0f32.ln(), 1.0, 9.0, 0.0];
        let of = |names: &[&str], multi: bool, logits: &[f32]| {
            Candidates::new(labels(names), None, multi).unwrap().scores(nli, logits, 3)
        };
        let near = |found: Vec<f32>, expected: &[f32]| {
            assert_eq!(found.len(), expected.len());
            found.iter().zip(expected).for_each(|(one, other)| assert!((one - other).abs() < 1e-6, "{found:?}"));
        };
        near(of(&["a", "b"], false, &logits), &[0.75, 0.25]);
        near(of(&["a", "b"], true, &logits), &[0.75, 0.268_941_4]);
        near(of(&["a"], false, &logits), &[0.75, 0.268_941_4]);
        // Large logits are no infinities.
        near(of(&["a", "b"], false, &[0.0, 0.0, 200.0, 0.0, 0.0, 200.0]), &[0.5, 0.5]);
    }
}
