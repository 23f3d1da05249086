//! The settings of rows in which labels of the request stand before a text.

use std::num::NonZeroUsize;

use serde::Deserialize;

/// How the rows of a span model are made: the value of parameter `spans`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpanPrompt {
    /// The token before each label.
    pub label_token: String,
    /// The token between the labels and the text.
    pub separator: String,
    /// Most words of a row.
    pub max_words: NonZeroUsize,
    /// Most words of a span.
    pub max_width: NonZeroUsize,
}

// === impl SpanPrompt ===

impl SpanPrompt {
    /// The form of the parameter, for messages.
    pub(crate) const EXPECTED: &str =
        r#"a JSON object, as {"label_token": "<<ENT>>", "separator": "<<SEP>>", "max_words": 384, "max_width": 12}"#;
}
