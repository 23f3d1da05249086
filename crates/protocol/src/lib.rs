//! The v2 (KServe Open Inference / Triton) protocol. Over HTTP: infer requests and responses in JSON and in the binary
//! tensor extension, and metadata bodies, all as bytes. Over gRPC: messages. Also the table of statuses. If Triton
//! differs from the published protocol, this crate follows Triton, with its error texts and statuses, because clients
//! were written for Triton.
//!
//! Invariants:
//! - Tensor bytes are never copied on the binary path: inputs are slices of the body, and outputs are passed on
//!   unchanged.
//! - No input makes decoding panic, recurse without bound, or allocate more than a small multiple of its own size.
//! - Statuses are only in [`status`].
//!
//! Not here: sockets, an HTTP library, gRPC's transport, compression, which models exist, and whether inputs fit a
//! model (the gateway).

pub mod classification;
pub mod generate;
pub mod grpc;
pub mod infer;
pub mod json;
pub mod logging;
pub mod metadata;
mod refusal;
pub mod repository;
pub mod shared_memory;
pub mod statistics;
pub mod status;
pub mod trace_file;
pub mod tracing;
