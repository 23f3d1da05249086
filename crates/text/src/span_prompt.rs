//! The settings of rows in which labels of the request stand before a text.

use std::num::NonZeroUsize;

use serde::Deserialize;

/// How the rows of a span model are made: the value of parameter `spans`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpanPrompt {
    /// Whose rows they are.
    #[serde(default)]
    pub form: SpanForm,
    /// The token before each label.
    pub label_token: String,
    /// The token between the labels and the text.
    pub separator: String,
    /// Most words of a row.
    pub max_words: NonZeroUsize,
    /// Most words of a span.
    pub max_width: NonZeroUsize,
}

/// The library whose models read the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanForm {
    /// `gliner`: labels and words alone.
    #[default]
    Gliner,
    /// `gliner2`: the labels are the fields of a schema named `entities`. Words are in lower case, and a text ends with a full stop.
    Gliner2,
}

// === impl SpanPrompt ===

impl SpanPrompt {
    /// The form of the parameter, for messages.
    pub(crate) const EXPECTED: &str = r#"a JSON object, as {"label_token": "<<ENT>>", "separator": "<<SEP>>", "max_words": 384, "max_width": 12}, with "form": "gliner2" for models of that library"#;
}

// === impl SpanForm ===

impl SpanForm {
    /// The token by which the graph finds the schema, where rows have one.
    pub(crate) const fn schema_token(self) -> Option<&'static str> {
        match self {
            SpanForm::Gliner => None,
            SpanForm::Gliner2 => Some("[P]"),
        }
    }

    /// What stands before the labels.
    pub(crate) const fn before(self) -> &'static [&'static str] {
        match self {
            SpanForm::Gliner => &[],
            SpanForm::Gliner2 => &["(", "[P]", "entities", "("],
        }
    }

    /// What stands behind the labels.
    pub(crate) const fn behind(self) -> &'static [&'static str] {
        match self {
            SpanForm::Gliner => &[],
            SpanForm::Gliner2 => &[")", ")"],
        }
    }
}
