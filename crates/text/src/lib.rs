//! Text to token ids and back: the only user of Hugging Face's `tokenizers`.
//!
//! [`TextTokenizer`] reads a `tokenizer.json`, or the SentencePiece model of a tokenizer without one. It returns the
//! same ids as `AutoTokenizer(texts, padding=True, truncation=True)`, unless [`TokenizeOptions`] or a request's
//! [`RequestOptions`] ask for something else. Invariants:
//! - The options override `tokenizer_config.json`, which overrides the truncation and padding in `tokenizer.json`.
//! - A call stays on its thread. The batch functions of `tokenizers`, which use a process-wide thread pool, are never
//!   called: more instances of a model give parallel work. Threads share a tokenizer by reference.
//! - The memory allocated for a text is bounded by its own size and [`MAX_PADDED_TOKENS`].
//!
//! The normalizer, pre-tokenizer and post-processor are those of `tokenizer.json`, except for three switches of BERT's
//! normalizer (`files`), and the space before the first word of byte-level tokenizers (`completion`). `add_bos_token` and
//! `add_eos_token` of `tokenizer_config.json` are not read, because the post-processor in `tokenizer.json` already adds these
//! tokens.
//!
//! Tokenizers of translation models (`family`) put tokens of languages beside the text; a request may choose the
//! languages.
//!
//! Where the options ask for it, texts become messages of a chat, of which a template makes the text that is tokenized (`chat`).
//!
//! Texts are decoded whole, or piece by piece ([`TextTokenizer::decode_next`]). The pieces together are the whole text.
//!
//! Not here: tensors other than [`texts_of`], requests, and the configuration files of models.

mod around;
mod chat;
mod completion;
mod config;
mod core;
mod encoded;
mod error;
mod expansion;
mod family;
mod files;
mod growth;
mod joiner;
mod json_file;
mod limits;
mod listing;
mod options;
mod part;
mod prompt;
mod request_options;
mod role;
mod row;
mod sentencepiece;
mod sides;
mod slow;
mod span_prompt;
mod spans;
mod tokenizer;
mod tokens;
mod truncate;
mod window;
mod windows;

pub use encoded::{Encoded, Extras};
pub use error::TextError;
pub use expansion::{ExpansionStrategy, QueryExpansion};
pub use limits::MAX_PADDED_TOKENS;
pub use options::{LongTexts, MessageFormat, Padding, Side, TokenizeOptions, Truncation, WindowsOf};
pub use request_options::RequestOptions;
pub use span_prompt::{SpanForm, SpanPrompt};
pub use spans::{Classification, Classifications, Field, MOST_LABELS, ROLES, Records, Relation, SpanLabels, Structure};
pub use tokenizer::{TextTokenizer, texts_of};
