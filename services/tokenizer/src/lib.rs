//! The tokenizer stage: texts to the tensors that transformer models take.
//!
//! A model with `backend: "tokenizer"` has a `tokenizer.json` (and `tokenizer_config.json`) in its version directory, or else a
//! SentencePiece model.
//! - Its first input holds the texts, a second one the second texts of pairs; both are TYPE_STRING, under any name. With
//!   `max_batch_size: 0` a tensor of n texts is `[n]`, with batching it is `[n, 1]`.
//! - Its outputs are those of `input_ids`, `attention_mask` and `token_type_ids` that it declares, TYPE_INT64 or
//!   TYPE_INT32, each `[n, length]`; and of `forced_bos_token_id`, `[n, 1]`: the token of the target language, that the
//!   output of a translation model has to begin with, or -1 without a target language.
//! - A configuration that declares no inputs or outputs gets `TEXT` and the first three.
//! - `parameters` say how texts are encoded: [`trireme_text::TokenizeOptions`] lists them. A request may have its own
//!   `source_language`, `target_language` and `prefix`: [`trireme_text::RequestOptions`].
//!
//! Instances share one tokenizer and work on their own threads, one request at a time: texts gain nothing from batches.
//!
//! Not here: the encoding itself (`trireme-text`), the worker around the backend (`trireme-runtime`).

mod backend;
mod schema;

pub use backend::TokenizerBackend;
