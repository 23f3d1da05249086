//! The stage-worker harness.

mod backend;
mod batching;
mod cancel;

pub use backend::{
    Backend, ExecuteRequest, ExecuteResponse, ExecuteTiming, LoadError, LoadedModel, ModelInstance, ModelSource,
};
pub use batching::{BatchPolicy, Candidate, Decision, OneAtATime};
pub use cancel::CancelFlag;
