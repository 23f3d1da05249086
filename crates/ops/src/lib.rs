//! Backend `postprocess`: turns a model's output into the client's answer, by a chain of ops. Two services use it: the postprocess
//! service hosts all of its models ([`PostprocessBackend`]); the model service hosts those that make a model's output small
//! ([`Reductions`]), so that large outputs stay in the process.
//!
//! The chain stands in config.pbtxt: `parameters { key: "ops" value { string_value: "pool:mean, normalize" } }`. Ops are
//! separated by commas; the text after a colon is an op's argument. [`ops::OPS`] lists them all.
//!
//! - The data is the model's first input; FP16, BF16 and FP64 are computed in FP32 like FP32. `decode` takes INT64 or INT32.
//! - The attention mask, which pooling needs, is the input named `attention_mask`, or else the first other input of
//!   INT64 or INT32. An input `pooling_mask` says which of its tokens are pooled.
//! - `decode` may be given a stream part by part: see [`ops::decode`] for its inputs `emitted` and `final`. `entities` has
//!   inputs of its own: see [`ops::entities`].
//! - The result goes to the model's one output, cast to the datatype that is declared for it; where the declared dims have one
//!   more axis of size 1 at the end (`dims: [ 1 ]`), it gets that. A chain that ends in `top_k` may have several outputs, which
//!   are distinguished by their names: see [`ops::top_k`]. So may one that ends in `sparse`, `lexical` or `distinct` (see
//!   [`ops::sparse`]), and one that gives a vector for each token, whose mask is the output `token_mask`.
//! - The parameters of a request may leave out ops or change their options: see [`RequestOptions`].
//! - The parameters of this backend are `ops`, `labels` (`"negative,positive"`, for models without a label file) and `beside_model`
//!   (`"true"` or `"false"`: whether the model service hosts the model, too).
//!
//! Loading a model checks its whole chain: names, arguments, the order of ops, and that ranks, datatypes and outputs fit
//! together. Each op is one file in [`ops`], and pure.
//!
//! Not here: the worker around the backend (`trireme-runtime`), the gateway's classification extension.

mod backend;
mod chain;
mod graph_end;
mod inputs;
mod labels;
pub mod ops;
mod options;
mod outputs;
mod reductions;
mod value;
mod weights;

pub use backend::PostprocessBackend;
pub use chain::{Chain, ChainError};
pub use inputs::{Side, SideInputs};
pub use labels::Labels;
pub use options::{Aggregation, Fold, RequestOptions};
pub use reductions::Reductions;
pub use value::{Form, Signature, Value};
