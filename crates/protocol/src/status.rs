//! The one table from error codes to HTTP and gRPC statuses.

use trireme_inference::{Cause, ErrorCode, InferError};

/// The HTTP status for an error. Triton never uses 408, 413, 429 or 499: a client's fault is 400, and a full queue is 503.
pub const fn http_status(error: &InferError) -> u16 {
    statuses(error).0
}

/// The gRPC status code, as its canonical number, for an error.
pub const fn grpc_code(error: &InferError) -> i32 {
    statuses(error).1
}

const fn statuses(error: &InferError) -> (u16, i32) {
    match error.code {
        // Triton has no conditions: HTTP calls it "precondition failed", and gRPC likewise.
        _ if matches!(error.cause, Some(Cause::OtherSpace)) => (412, 9),
        ErrorCode::Cancelled => (400, 1),
        ErrorCode::Unknown => (400, 2),
        ErrorCode::InvalidArg => (400, 3),
        ErrorCode::NotFound => (404, 5),
        ErrorCode::AlreadyExists => (400, 6),
        ErrorCode::Unsupported => (501, 12),
        ErrorCode::Internal => (500, 13),
        ErrorCode::Unavailable => (503, 14),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with published tables: Triton's HTTP statuses, and its gRPC codes with gRPC's own numbers.
    #[test]
    fn every_code_has_its_published_statuses() {
        const UNIMPLEMENTED: i32 = 12;
        for code in ErrorCode::ALL {
            let (http, grpc) = match code {
                ErrorCode::Internal => (500, 13),
                ErrorCode::NotFound => (404, 5),
                ErrorCode::Unavailable => (503, 14),
                ErrorCode::Unsupported => (501, UNIMPLEMENTED),
                ErrorCode::Unknown => (400, 2),
                ErrorCode::InvalidArg => (400, 3),
                ErrorCode::AlreadyExists => (400, 6),
                ErrorCode::Cancelled => (400, 1),
            };
            let error = InferError::new(code, "");
            assert_eq!((http_status(&error), grpc_code(&error)), (http, grpc), "{code:?}");
        }
        let condition = InferError::invalid_arg("").because(Cause::OtherSpace);
        assert_eq!((http_status(&condition), grpc_code(&condition)), (412, 9));
    }
}
