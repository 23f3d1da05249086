//! The v2 protocol over gRPC: the generated interface, and conversions between its messages and domain types.
//!
//! Invariants:
//! - Raw tensors are never copied on the way in: they stay slices of the message. On the way out each is copied once,
//!   into the message.
//! - The listener converts messages, so that other code sees only [`trireme_inference::InferRequest`] and similar
//!   types.
//! - Error texts are those of Triton's gRPC frontend, which differ from those of its HTTP frontend.
//!
//! Not here: sockets, deadlines, which models exist, and whether inputs fit a model (the gateway).

mod contents;
mod decode;
mod encode;
mod error;
mod logging;
mod metadata;
mod parameters;
mod repository;
mod shared_memory;
mod statistics;
mod tracing;
mod version;

/// The generated messages, servers and clients of `proto/grpc_service.proto`. Only listeners and clients use them.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

/// The generated messages, servers and clients of `proto/health.proto`.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
pub mod health {
    include!(concat!(env!("OUT_DIR"), "/grpc.health.v1.rs"));
}

/// The generated messages, servers and clients of `proto/tei.proto`.
#[allow(missing_docs, clippy::all, rustdoc::all, reason = "generated")]
pub mod tei {
    include!(concat!(env!("OUT_DIR"), "/tei.v1.rs"));
}

/// The descriptors of all services, an encoded `FileDescriptorSet`, which server reflection shows.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/services.bin"));

pub use decode::decode_infer_request;
pub use encode::{
    Named, encode_infer_response, encode_stream_end, encode_stream_error, encode_stream_refusal, encode_stream_response,
};
pub use error::status;
pub use logging::{decode_log_settings, encode_log_settings};
pub use metadata::{model_config, model_metadata, server_metadata};
pub use parameters::wants_empty_final;
pub use repository::{check_repository_name, decode_load_request, decode_unload_request, encode_index};
pub use shared_memory::{decode_region, encode_regions};
pub use statistics::encode_statistics;
pub use tracing::{decode_trace_changes, encode_trace_settings};
pub use version::parse_model_version;

#[cfg(test)]
mod tests;
