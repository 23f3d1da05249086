//! The options of a request for an operation on texts, and the request parameters by which stages read them.

use trireme_inference::{InferError, ParameterValue, Parameters};

use crate::Capabilities;

/// Options of the treatment of texts. The model's configuration decides where an option is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextOptions {
    /// The prompt that is put before each text.
    pub prompt: Prompt,
    /// The task for the model in words; it goes into the prompt, or before the messages of a chat template.
    pub instruction: Option<String>,
    /// Whether texts that are too long are cut; otherwise they are an error.
    pub truncate: Option<bool>,
    /// Whether they are an error where `truncate` says nothing and a step of the model could cut them.
    pub wants_whole: bool,
    /// Where they are cut.
    pub truncation_side: Option<Side>,
    /// Most tokens of a row, where that is less than the model's own limit.
    pub max_tokens: Option<u64>,
    /// Most tokens of a text, or of the first text of a pair: it is cut before the special tokens are added.
    pub max_text_tokens: Option<u64>,
    /// The same of the second text of a pair.
    pub max_pair_tokens: Option<u64>,
    /// Whether a text that is too long has several rows.
    pub windows: Option<bool>,
    /// Most tokens that two neighbouring rows of one text share.
    pub overlap: Option<u64>,
    /// Most rows of a text, for a model that joins a text's rows into one; the rest of the text is cut. It asks such a model for several rows.
    pub max_windows: Option<u64>,
    /// How the rows of a text become one: mean, first or max; or that they are kept: keep.
    pub fold: Option<String>,
    /// Whether vectors get length 1.
    pub normalize: Option<bool>,
    /// Whether scores stay as the model gives them.
    pub raw_scores: Option<bool>,
    /// Numbers that are kept of each vector.
    pub dimensions: Option<u64>,
    /// How tokens of one entity become one: none, simple, first, average or max.
    pub aggregation_strategy: Option<String>,
    /// The labels of entities to find, for models that find those of any labels: a JSON array, or a JSON object of labels with their thresholds.
    pub labels: Option<String>,
    /// The score above which such an entity counts, from 0 to 1.
    pub threshold: Option<f64>,
    /// Whether such entities may not overlap.
    pub flat_ner: Option<bool>,
    /// Whether such an entity may have several labels.
    pub multi_label: Option<bool>,
    /// Whether each token gets the scores of all classes, in place of entities.
    pub token_scores: bool,
    /// Whether the tokens around a text are added.
    pub add_special_tokens: Option<bool>,
    /// Whether decoded texts are without them.
    pub skip_special_tokens: Option<bool>,
    /// Whether token ids of the model, as JSON arrays, come in place of texts.
    pub token_ids: bool,
    /// Whether conversations, as JSON, come in place of texts.
    pub messages: bool,
}

/// A request parameter that steps of one backend read: its name, the backend, and whether a value asks for more than models do by
/// themselves.
type Reader = (&'static str, &'static str, fn(&ParameterValue) -> bool);

/// The request parameters that have to be read. Others are the gateway's own business, too (`normalize`, `dimensions`), or true of
/// scores that no step changes (`raw_scores`).
const READERS: [Reader; 19] = [
    ("prompt_name", "tokenizer", |_| true),
    ("instruction", "tokenizer", |_| true),
    ("truncate", "tokenizer", |value| *value == ParameterValue::Bool(false)),
    ("truncation_side", "tokenizer", |value| value.as_str() == Some("left")),
    ("max_tokens", "tokenizer", |_| true),
    ("max_text_tokens", "tokenizer", |_| true),
    ("max_pair_tokens", "tokenizer", |_| true),
    ("windows", "tokenizer", |value| *value == ParameterValue::Bool(true)),
    ("overlap", "tokenizer", |_| true),
    ("labels", "tokenizer", |_| true),
    ("classifications", "tokenizer", |_| true),
    ("structures", "tokenizer", |_| true),
    ("relations", "tokenizer", |_| true),
    ("add_special_tokens", "tokenizer", |value| *value == ParameterValue::Bool(false)),
    ("token_ids", "tokenizer", |_| true),
    ("messages", "tokenizer", |_| true),
    ("fold", "postprocess", |_| true),
    ("aggregation_strategy", "postprocess", |_| true),
    ("token_scores", "postprocess", |_| true),
];

/// The backends whose request parameters are known. A step of any other one may read any parameter.
const KNOWN: [&str; 4] = ["tokenizer", "onnxruntime", "static", "postprocess"];

/// Whether each parameter of an operation is read by a step of the model, given the backends of its steps: a parameter that no
/// step reads would change nothing.
pub fn check_read(model: &str, parameters: &Parameters, backends: &[&str]) -> Result<(), InferError> {
    if backends.iter().any(|backend| !KNOWN.contains(backend)) {
        return Ok(());
    }
    let unread =
        |(name, reader, matters): &&Reader| parameters.get(*name).is_some_and(matters) && !backends.contains(reader);
    match READERS.iter().find(unread) {
        None => Ok(()),
        Some((name, reader, _)) => Err(InferError::unsupported(format!(
            "model '{model}' has no step of backend '{reader}', which reads parameter '{name}': leave the parameter out"
        ))),
    }
}

/// Which prompt is put before texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Prompt {
    /// The model's default one.
    #[default]
    Default,
    /// The one of this name.
    Named(String),
    /// The one for queries.
    Query,
    /// The one for documents.
    Document,
    /// The one of this name where the model has it, else its default one.
    IfThere(&'static str),
    /// The prompt of this name, or the prompt of queries or documents by Cohere's words for them; an error where the model has no such
    /// prompt.
    OfInputType(String),
    /// The default one of a model that makes no difference between queries and documents; the error of a request for another one.
    Needed(&'static str),
}

/// An end of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "left and right need no words")]
pub enum Side {
    Left,
    Right,
}

// === impl TextOptions ===

impl TextOptions {
    /// The request parameters that stages read: `prompt_name`, `instruction`, `truncate`, `truncation_side`, `max_tokens`,
    /// `max_text_tokens`, `max_pair_tokens`, `windows`, `overlap`, `labels`, `add_special_tokens`, `skip_special_tokens`, `token_ids` and `messages` the tokenizer;
    /// `normalize`, `raw_scores`, `dimensions`, `fold`, `aggregation_strategy`, `token_scores`, `labels`, `threshold`, `flat_ner` and
    /// `multi_label` postprocess.
    pub fn parameters(&self, capabilities: &Capabilities) -> Result<Parameters, InferError> {
        let query = || capabilities.prompt_of_queries().cloned();
        let document = || capabilities.prompt_of_documents().cloned();
        let prompt = match &self.prompt {
            Prompt::Default => None,
            Prompt::Named(name) => Some(name.clone()),
            Prompt::Query => query(),
            Prompt::Document => document(),
            Prompt::OfInputType(name) => {
                let found = match name.as_str() {
                    "search_query" => query(),
                    "search_document" => document(),
                    _ => None,
                };
                let supported = || capabilities.prompts.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                let unsupported = || format!("Unsupported input_type '{name}'. Supported values: {}", supported());
                let found = found.or_else(|| capabilities.prompts.get(name).cloned());
                Some(found.ok_or_else(|| InferError::invalid_arg(unsupported()))?)
            }
            Prompt::IfThere(name) => capabilities.prompts.get(*name).cloned(),
            Prompt::Needed(missing) if capabilities.tells_queries_apart() => {
                return Err(InferError::invalid_arg(*missing));
            }
            Prompt::Needed(_) => None,
        };
        let side = self.truncation_side.map(|side| match side {
            Side::Left => "left",
            Side::Right => "right",
        });
        let numbers = [
            ("max_tokens", self.max_tokens),
            ("max_text_tokens", self.max_text_tokens),
            ("max_pair_tokens", self.max_pair_tokens),
            ("dimensions", self.dimensions),
        ];
        if let Some((name, _)) = numbers.iter().find(|(_, number)| *number == Some(0)) {
            return Err(InferError::invalid_arg(format!("'{name}' is 0, expected at least 1")));
        }
        let texts = [
            ("prompt_name", prompt),
            ("instruction", self.instruction.clone()),
            ("truncation_side", side.map(str::to_owned)),
            ("aggregation_strategy", self.aggregation_strategy.clone()),
            ("fold", self.fold.clone()),
            ("labels", self.labels.clone()),
        ];
        let flags = [
            ("truncate", self.truncate),
            ("windows", self.windows),
            ("normalize", self.normalize),
            ("raw_scores", self.raw_scores),
            ("add_special_tokens", self.add_special_tokens),
            ("skip_special_tokens", self.skip_special_tokens),
            ("token_scores", self.token_scores.then_some(true)),
            ("flat_ner", self.flat_ner),
            ("multi_label", self.multi_label),
            ("token_ids", self.token_ids.then_some(true)),
            ("messages", self.messages.then_some(true)),
        ];
        let numbers = numbers.into_iter().chain([("overlap", self.overlap)]);
        let texts = texts.into_iter().filter_map(|(name, text)| Some((name, ParameterValue::String(text?))));
        let flags = flags.into_iter().filter_map(|(name, flag)| Some((name, ParameterValue::Bool(flag?))));
        let numbers = numbers.filter_map(|(name, number)| {
            let number = number?;
            // Signed where it fits, as JSON clients of v2 send it.
            Some((name, i64::try_from(number).map_or(ParameterValue::Uint64(number), ParameterValue::Int64)))
        });
        let threshold = self.threshold.map(|threshold| ("threshold", ParameterValue::Double(threshold)));
        Ok(texts.chain(flags).chain(numbers).chain(threshold).map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_told_what_was_asked_for_and_nothing_else() {
        let capabilities = Capabilities { query_prompt: Some("query".to_owned()), ..Capabilities::default() };
        assert!(TextOptions::default().parameters(&capabilities).unwrap().is_empty());
        let asked = TextOptions {
            prompt: Prompt::Query,
            instruction: Some("Find bugs".to_owned()),
            truncate: Some(false),
            truncation_side: Some(Side::Left),
            dimensions: Some(64),
            ..TextOptions::default()
        };
        let expected: Parameters = [
            ("prompt_name".to_owned(), "query".into()),
            ("instruction".to_owned(), "Find bugs".into()),
            ("truncate".to_owned(), ParameterValue::Bool(false)),
            ("truncation_side".to_owned(), "left".into()),
            ("dimensions".to_owned(), ParameterValue::Int64(64)),
        ]
        .into();
        assert_eq!(asked.parameters(&capabilities).unwrap(), expected);
        // A model without a prompt for documents takes them as they are.
        let document = TextOptions { prompt: Prompt::Document, ..TextOptions::default() };
        assert!(document.parameters(&capabilities).unwrap().is_empty());
        let none = TextOptions { dimensions: Some(0), ..TextOptions::default() };
        assert!(none.parameters(&capabilities).unwrap_err().message.contains("'dimensions' is 0"));
    }

    #[test]
    fn options_that_no_step_reads_are_refused() {
        let check = |options: TextOptions, backends: &[&str]| {
            let parameters = options.parameters(&Capabilities::default()).unwrap();
            check_read("m", &parameters, backends).map_err(|error| error.message)
        };
        let named = || TextOptions { prompt: Prompt::Named("query".to_owned()), ..TextOptions::default() };
        assert_eq!(check(named(), &["tokenizer", "onnxruntime", "postprocess"]), Ok(()));
        assert_eq!(
            check(named(), &["onnxruntime", "postprocess"]).unwrap_err(),
            "model 'm' has no step of backend 'tokenizer', which reads parameter 'prompt_name': leave the parameter out"
        );
        // A program may read any parameter.
        assert_eq!(check(named(), &["python"]), Ok(()));
        let strategy = TextOptions { aggregation_strategy: Some("max".to_owned()), ..TextOptions::default() };
        assert!(check(strategy, &["tokenizer", "onnxruntime"]).unwrap_err().contains("'aggregation_strategy'"));
        // Cohere's clients say what models do in any case.
        let cut = |truncate, side| TextOptions {
            truncate: Some(truncate),
            truncation_side: Some(side),
            ..TextOptions::default()
        };
        assert_eq!(check(cut(true, Side::Right), &["onnxruntime"]), Ok(()));
        assert!(check(cut(false, Side::Right), &["onnxruntime"]).unwrap_err().contains("'truncate'"));
        assert!(check(cut(true, Side::Left), &["onnxruntime"]).unwrap_err().contains("'truncation_side'"));
    }
}
