//! The operations of the protocol, free of HTTP and gRPC, which both call them. A listener passes its knowledge of a request as plain
//! values: [`trireme_server::RequestContext`], [`trireme_server::access::Access`], parameters.

mod bottleneck;
mod health;
mod infer;
mod logging;
mod metadata;
mod metering;
mod pipelines;
mod query;
mod repository;
mod sampling;
mod sequences;
mod shared_memory;
mod state;
mod statistics;
mod status;
mod trace;
mod zero_shot;

pub use infer::{Next, Responses, Traced};
pub use metadata::ModelMetadata;
pub use sampling::Tracing;
pub use state::{Handlers, SharedHandlers};
pub use statistics::Queues;
