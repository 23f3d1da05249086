//! How labels of requests stand before texts.

use serde_json::json;

/// How rows are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpanRows {
    /// The value of `form`: the library whose rows they are.
    pub(super) form: &'static str,
    pub(super) label_token: String,
    pub(super) separator: String,
    pub(super) max_words: u64,
    pub(super) max_width: u64,
}

// === impl SpanRows ===

impl SpanRows {
    /// The tokenizer's parameter `spans`.
    pub(super) fn parameter(&self) -> String {
        let SpanRows { form, label_token, separator, max_words, max_width } = self;
        json!({
            "form": form, "label_token": label_token, "separator": separator, "max_words": max_words, "max_width": max_width
        })
        .to_string()
    }
}
