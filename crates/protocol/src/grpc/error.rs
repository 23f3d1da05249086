//! Errors as gRPC statuses.

use tonic::{Code, Status};
use trireme_inference::InferError;

use crate::status::grpc_code;

/// The longest message of a status, in bytes. A status travels in headers, where clients accept 8 kB, and each byte
/// that is not plain ASCII takes three.
const MAX_MESSAGE: usize = 2000;

/// An error as the status that ends a call.
pub fn status(error: &InferError) -> Status {
    let mut message = error.message.clone();
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        message.push_str(" ...");
    }
    Status::new(Code::from_i32(grpc_code(error)), message)
}
