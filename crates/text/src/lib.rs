//! Text to token ids and back: the only user of Hugging Face's `tokenizers`.
//!
//! [`TextTokenizer`] reads a `tokenizer.json`, or the SentencePiece model of a tokenizer that has none, and gives the ids
//! that `AutoTokenizer(texts, padding=True, truncation=True)` gives for it, unless [`TokenizeOptions`] or a request's
//! [`RequestOptions`] say otherwise. Invariants:
//! - What the options say wins over what `tokenizer_config.json` says, and that over the truncation and padding that
//!   `tokenizer.json` carries.
//! - A call stays on its thread. The batch functions of `tokenizers`, which use a process-wide thread pool, are never
//!   called: who wants parallel work has more instances. A tokenizer is shared between threads by reference.
//! - What a text can make us allocate is bounded by its own size and [`MAX_PADDED_TOKENS`].
//!
//! The normalizer, pre-tokenizer and post-processor are those of `tokenizer.json`, except for three switches of BERT's
//! normalizer (`files`). `add_bos_token` and `add_eos_token` of `tokenizer_config.json` are not read: the post-processor
//! in `tokenizer.json` already says what is added.
//!
//! Tokenizers of translation models (`family`) put tokens of languages beside the text, which a request may choose.
//!
//! Texts are decoded whole, or piece by piece ([`TextTokenizer::decode_next`]); the pieces together are the whole.
//!
//! Not here: tensors other than [`texts_of`], requests, configuration files of models.

mod config;
mod core;
mod error;
mod family;
mod files;
mod joiner;
mod options;
mod sentencepiece;
mod slow;
mod tokenizer;
mod truncate;

pub use error::TextError;
pub use options::{Padding, RequestOptions, Side, TokenizeOptions, Truncation};
pub use tokenizer::{Encoded, MAX_PADDED_TOKENS, TextTokenizer, texts_of};
