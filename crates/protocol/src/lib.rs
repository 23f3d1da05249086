//! The v2 (KServe Open Inference / Triton) protocol: over HTTP, as bytes, infer requests and responses in JSON and in the
//! binary tensor extension and metadata bodies; over gRPC, as messages; and the table of statuses. Where Triton's own behaviour departs from the
//! published protocol it is Triton that clients were written against, so its error texts and statuses are kept.
//!
//! Invariants:
//! - Tensor bytes are never copied on the binary path: inputs are slices of the body, outputs are handed on as they are.
//! - No input makes decoding panic, recurse without bound, or allocate more than a small multiple of its own size.
//! - [`status`] is the only place that names a status.
//!
//! Not here: sockets, an HTTP library, gRPC's transport, compression, which model exists, and whether inputs fit a model (the gateway).

pub mod classification;
pub mod generate;
pub mod grpc;
pub mod infer;
pub mod json;
pub mod logging;
pub mod metadata;
pub mod repository;
pub mod shared_memory;
pub mod statistics;
pub mod status;
pub mod tracing;
