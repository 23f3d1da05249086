//! The part of a row before its text: the labels of the request, with the schemas around them.

use tokenizers::Tokenizer;

use super::{Classifications, SpanLabels, classifications, labels};
use crate::span_prompt::{CLASS_TOKEN, NEXT_SCHEMA, SCHEMA_TOKEN, SpanForm, SpanPrompt};
use crate::{RequestOptions, TextError, TextTokenizer};

/// The name of the schema of entities.
const ENTITIES: &str = "entities";

/// The labels of a request: those of entities, those of classes, or both.
pub(super) struct Asked {
    pub(super) labels: Option<SpanLabels>,
    classifications: Option<Classifications>,
}

/// The words before a text, each with the request's parameter that it comes from, if any.
#[derive(Default)]
struct Words(Vec<(String, Option<&'static str>)>);

// === impl Asked ===

impl Asked {
    /// The labels of a request for rows of this form.
    pub(super) fn of(request: &RequestOptions<'_>, form: SpanForm) -> Result<Asked, TextError> {
        let labels = request.labels.map(SpanLabels::parse).transpose()?;
        let classifications = request.classifications.map(Classifications::parse).transpose()?;
        match (&labels, &classifications) {
            (None, None) => Err(TextError::NoLabels),
            (_, Some(_)) if form == SpanForm::Gliner => Err(TextError::Labels {
                parameter: classifications::PARAMETER,
                reason: "this model finds entities alone: leave it out".to_owned(),
            }),
            _ => Ok(Asked { labels, classifications }),
        }
    }

    /// How many labels of entities there are.
    pub(super) fn entities(&self) -> usize {
        self.labels.as_ref().map_or(0, |labels| labels.names().len())
    }

    /// The parameter with more labels.
    pub(super) fn longest(&self) -> &'static str {
        let classes = self.classifications.as_ref().map_or(0, Classifications::labels);
        if classes > self.entities() { classifications::PARAMETER } else { labels::PARAMETER }
    }

    /// The words before a text.
    fn words(&self, prompt: &SpanPrompt) -> Words {
        let mut words = Words::default();
        let names = self.labels.as_ref().map(SpanLabels::names);
        match (prompt.form, names) {
            (SpanForm::Gliner, _) => {
                words.labels(&prompt.label_token, names.unwrap_or_default(), labels::PARAMETER);
            }
            (SpanForm::Gliner2, None) => {}
            (SpanForm::Gliner2, Some(names)) => {
                words.schema((ENTITIES, None), &prompt.label_token, names, labels::PARAMETER);
            }
        }
        for task in self.classifications.iter().flat_map(Classifications::tasks) {
            let parameter = classifications::PARAMETER;
            words.schema((&task.heading(), Some(parameter)), CLASS_TOKEN, task.labels(), parameter);
        }
        words.own(&prompt.separator);
        words
    }
}

// === impl Words ===

impl Words {
    fn own(&mut self, word: &str) {
        self.0.push((word.to_owned(), None));
    }

    fn labels(&mut self, token: &str, labels: &[String], parameter: &'static str) {
        for label in labels {
            self.own(token);
            self.0.push((label.clone(), Some(parameter)));
        }
    }

    /// Labels in a schema, whose heading is the request's where it has a parameter.
    fn schema(
        &mut self,
        (heading, of): (&str, Option<&'static str>),
        token: &str,
        labels: &[String],
        parameter: &'static str,
    ) {
        if !self.0.is_empty() {
            self.own(NEXT_SCHEMA);
        }
        self.own("(");
        self.own(SCHEMA_TOKEN);
        self.0.push((heading.to_owned(), of));
        self.own("(");
        self.labels(token, labels, parameter);
        self.own(")");
        self.own(")");
    }
}

// === impl TextTokenizer ===

impl TextTokenizer {
    /// The tokens before a text: each label behind its token, with the schemas around labels, and the separator.
    pub(super) fn label_tokens(
        &self,
        tokenizer: &Tokenizer,
        prompt: &SpanPrompt,
        asked: &Asked,
    ) -> Result<Vec<u32>, TextError> {
        let Words(words) = asked.words(prompt);
        let failed = |reason: String| TextError::Labels { parameter: asked.longest(), reason };
        let given: Vec<&str> = words.iter().map(|(word, _)| word.as_str()).collect();
        let found = tokenizer.encode(given, false).map_err(|error| failed(error.to_string()))?;
        // The graph finds labels by these tokens.
        let marks =
            [prompt.label_token.as_str(), CLASS_TOKEN].map(|token| (token, self.encoder.core.token_to_id(token)));
        for (&id, word) in found.get_ids().iter().zip(found.get_word_ids()) {
            let mark = marks.iter().find(|(_, own)| *own == Some(id));
            let of = word.and_then(|word| words.get(word as usize)).and_then(|(_, parameter)| *parameter);
            if let (Some((token, _)), Some(parameter)) = (mark, of) {
                let reason = format!("a label holds '{token}', which stands before labels: leave it out");
                return Err(TextError::Labels { parameter, reason });
            }
        }
        Ok(found.get_ids().to_vec())
    }
}
