//! Trace files, as Triton writes them: what happened to single requests, and when.
//!
//! A request that is picked has an [`OpenTrace`]. It collects what the gateway learns about the request until the answer has
//! been sent. Then the trace goes to the [`Writer`], which makes text of it and writes files in a thread of its own.
//!
//! Invariant: requests never wait for files. A trace for which the writer has no room is dropped and counted.
//!
//! Not here: which requests are picked (the gateway's `handlers::sampling`), spans (`telemetry`), the records' format (`protocol`).

mod args;
mod files;
mod open_trace;
mod record;
mod trace;
mod writer;

pub use args::{TraceArgs, TraceConfig, TraceTarget};
pub use open_trace::OpenTrace;
pub use writer::{Stream, Writer};
