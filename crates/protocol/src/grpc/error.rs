//! Errors as gRPC statuses.

use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use trireme_inference::{Cause, InferError};

use crate::status::grpc_code;

/// The longest message of a status, in bytes. A status travels in headers, where clients accept 8 kB, and each byte
/// that is not plain ASCII takes three.
const MAX_MESSAGE: usize = 2000;

/// An error as the status that ends a call. One about an owner's limit says in its metadata when to ask again.
pub fn status(error: &InferError) -> Status {
    let mut message = error.message.clone();
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        message.push_str(" ...");
    }
    if error.cause != Some(Cause::OwnerLimit) {
        return Status::new(Code::from_i32(grpc_code(error.code)), message);
    }
    let mut metadata = MetadataMap::new();
    if let Some(after) = error.retry_after {
        metadata.insert("retry-after", (after.as_secs_f64().ceil() as u64).max(1).into());
    }
    Status::with_metadata(Code::ResourceExhausted, message, metadata)
}
