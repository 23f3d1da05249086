//! The settings of rows in which labels of the request stand before a text.

use std::num::NonZeroUsize;

use serde::Deserialize;

/// The token by which the graph finds a schema.
pub(crate) const SCHEMA_TOKEN: &str = "[P]";

/// The token before each label of a class.
pub(crate) const CLASS_TOKEN: &str = "[L]";

/// The token before each field of a structure.
pub(crate) const FIELD_TOKEN: &str = "[C]";

/// The token before each of the two fields of a relation.
pub(crate) const ROLE_TOKEN: &str = "[R]";

/// The token between two schemas.
pub(crate) const NEXT_SCHEMA: &str = "[SEP_STRUCT]";

/// How the rows of a span model are made: the value of parameter `spans`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpanPrompt {
    /// The library whose models read the rows.
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
    /// `gliner2`: the labels are the fields of a schema named `entities`. Each structure is a schema of its own before it, and each relation and each
    /// task of classes one behind it. Words are in lower case, and a text ends with a full stop.
    Gliner2,
}

// === impl SpanPrompt ===

impl SpanPrompt {
    /// The form of the parameter, for messages.
    pub(crate) const EXPECTED: &str = r#"a JSON object, as {"label_token": "<<ENT>>", "separator": "<<SEP>>", "max_words": 384, "max_width": 12}, with "form": "gliner2" for models of that library"#;
}

// === impl SpanForm ===

impl SpanForm {
    /// The tokens of its schemas, besides the one before each label of an entity; none where rows have no schema.
    pub(crate) const fn schema_tokens(self) -> &'static [&'static str] {
        match self {
            SpanForm::Gliner => &[],
            SpanForm::Gliner2 => &[SCHEMA_TOKEN, FIELD_TOKEN, ROLE_TOKEN, CLASS_TOKEN, NEXT_SCHEMA],
        }
    }
}
