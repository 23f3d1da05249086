//! The part of a row before its text: the labels of the request, with the schemas around them.

use tokenizers::Tokenizer;

use super::records::{MOST_RECORDS, RELATIONS, ROLES, STRUCTURES};
use super::{Classifications, Records, SpanLabels, classifications, labels};
use crate::span_prompt::{CLASS_TOKEN, FIELD_TOKEN, NEXT_SCHEMA, ROLE_TOKEN, SCHEMA_TOKEN, SpanForm, SpanPrompt};
use crate::{RequestOptions, TextError, TextTokenizer};

/// The name of the schema of entities.
const ENTITIES: &str = "entities";

/// The labels of a request: of entities, of records, of classes.
pub(super) struct Asked {
    labels: Option<SpanLabels>,
    records: Records,
    classifications: Option<Classifications>,
}

/// The tokens before a text.
pub(super) struct Before {
    /// Tokens of the labels, with the schemas around them, and the separator.
    pub(super) labels: Vec<u32>,
    /// By word, the tokens of the choices of fields, which have scores as the words of the text have.
    pub(super) choices: Vec<Vec<u32>>,
}

/// The words before a text, each with the request's parameter that it comes from, if any.
#[derive(Default)]
struct Words(Vec<(String, Option<&'static str>)>);

// === impl Asked ===

impl Asked {
    /// The labels of a request for rows of this form.
    pub(super) fn of(request: &RequestOptions<'_>, form: SpanForm) -> Result<Asked, TextError> {
        let labels = request.labels.map(SpanLabels::parse).transpose()?;
        let records = Records::parse(request.structures, request.relations)?;
        let classifications = request.classifications.map(Classifications::parse).transpose()?;
        let asked = Asked { labels, records, classifications };
        match asked.longest() {
            None => Err(TextError::NoLabels),
            _ if form == SpanForm::Gliner2 => Ok(asked),
            _ => {
                match asked.counts().into_iter().find(|&(parameter, count)| parameter != labels::PARAMETER && count > 0)
                {
                    None => Ok(asked),
                    Some((parameter, _)) => Err(TextError::Labels {
                        parameter,
                        reason: "this model finds entities alone: leave it out".to_owned(),
                    }),
                }
            }
        }
    }

    /// The parameters, each with the number of its labels.
    fn counts(&self) -> [(&'static str, usize); 4] {
        let relations = ROLES.len() * self.records.relations().len();
        [
            (labels::PARAMETER, self.entities()),
            (classifications::PARAMETER, self.classifications.as_ref().map_or(0, Classifications::labels)),
            (STRUCTURES, self.records.fields() - relations),
            (RELATIONS, relations),
        ]
    }

    /// How many labels of entities there are.
    fn entities(&self) -> usize {
        self.labels.as_ref().map_or(0, |labels| labels.names().len())
    }

    /// Most scores of a span of the text.
    pub(super) fn scores(&self) -> usize {
        self.entities() + MOST_RECORDS * self.records.fields()
    }

    /// The parameter with the most labels; none where the request has no label.
    fn longest(&self) -> Option<&'static str> {
        let longest = self.counts().into_iter().max_by_key(|&(_, count)| count);
        longest.filter(|&(_, count)| count > 0).map(|(parameter, _)| parameter)
    }

    /// A fault of the parameter with the most labels.
    pub(super) fn fault(&self, reason: String) -> TextError {
        TextError::Labels { parameter: self.longest().unwrap_or(labels::PARAMETER), reason }
    }

    /// The words before a text.
    fn words(&self, prompt: &SpanPrompt) -> Words {
        let mut words = Words::default();
        for structure in self.records.structures() {
            let fields = structure.fields().iter().map(|field| field.name());
            words.schema((&structure.heading(), Some(STRUCTURES)), FIELD_TOKEN, fields, STRUCTURES);
        }
        if let Some(labels) = &self.labels {
            let names = labels.names().iter().map(String::as_str);
            match prompt.form {
                SpanForm::Gliner => words.labels(&prompt.label_token, names, labels::PARAMETER),
                SpanForm::Gliner2 => {
                    words.schema((ENTITIES, None), &prompt.label_token, names, labels::PARAMETER);
                }
            }
        }
        for relation in self.records.relations() {
            words.schema((&relation.heading(), Some(RELATIONS)), ROLE_TOKEN, ROLES, RELATIONS);
        }
        for task in self.classifications.iter().flat_map(Classifications::tasks) {
            let parameter = classifications::PARAMETER;
            let names = task.labels().iter().map(String::as_str);
            words.schema((&task.heading(), Some(parameter)), CLASS_TOKEN, names, parameter);
        }
        words.own(&prompt.separator);
        words
    }

    /// The words of choices.
    fn choices(&self) -> Words {
        Words(self.records.words_of_choices().into_iter().map(|word| (word, Some(STRUCTURES))).collect())
    }
}

// === impl Before ===

impl Before {
    /// How many tokens they are.
    pub(super) fn len(&self) -> usize {
        self.labels.len() + self.choices.iter().map(Vec::len).sum::<usize>()
    }
}

// === impl Words ===

impl Words {
    fn own(&mut self, word: &str) {
        self.0.push((word.to_owned(), None));
    }

    fn labels<'l>(&mut self, token: &str, labels: impl IntoIterator<Item = &'l str>, parameter: &'static str) {
        for label in labels {
            self.own(token);
            self.0.push((label.to_owned(), Some(parameter)));
        }
    }

    /// Labels in a schema, whose heading is the request's where it has a parameter.
    fn schema<'l>(
        &mut self,
        (heading, of): (&str, Option<&'static str>),
        token: &str,
        labels: impl IntoIterator<Item = &'l str>,
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
    /// The tokens before a text: each label behind its token, with the schemas around labels, the separator, and the choices of fields.
    pub(super) fn before(
        &self,
        tokenizer: &Tokenizer,
        prompt: &SpanPrompt,
        asked: &Asked,
    ) -> Result<Before, TextError> {
        let labels = self.tokens_of(tokenizer, prompt, asked, &asked.words(prompt))?.concat();
        let choices = asked.choices();
        let tokens = self.tokens_of(tokenizer, prompt, asked, &choices)?;
        match choices.0.iter().zip(&tokens).find(|(_, tokens)| tokens.is_empty()) {
            None => Ok(Before { labels, choices: tokens }),
            Some(((word, _), _)) => Err(TextError::Labels {
                parameter: STRUCTURES,
                reason: format!("the model has no token for '{word}': write it otherwise"),
            }),
        }
    }

    /// By word, its tokens.
    fn tokens_of(
        &self,
        tokenizer: &Tokenizer,
        prompt: &SpanPrompt,
        asked: &Asked,
        Words(words): &Words,
    ) -> Result<Vec<Vec<u32>>, TextError> {
        let given: Vec<&str> = words.iter().map(|(word, _)| word.as_str()).collect();
        let found = tokenizer.encode(given, false).map_err(|error| asked.fault(error.to_string()))?;
        // The graph finds schemas and labels by these tokens.
        let marks = prompt.form.schema_tokens().iter().copied().chain([prompt.label_token.as_str()]);
        let marks: Vec<_> = marks.map(|token| (token, self.encoder.core.token_to_id(token))).collect();
        let mut tokens = vec![Vec::new(); words.len()];
        for (&id, word) in found.get_ids().iter().zip(found.get_word_ids()) {
            let Some(word) = word.map(|word| word as usize).filter(|&word| word < words.len()) else { continue };
            let mark = marks.iter().find(|(_, own)| *own == Some(id));
            if let (Some((token, _)), Some(parameter)) = (mark, words[word].1) {
                let reason = format!("a label holds '{token}', which marks the parts of a row: leave it out");
                return Err(TextError::Labels { parameter, reason });
            }
            tokens[word].push(id);
        }
        Ok(tokens)
    }
}
