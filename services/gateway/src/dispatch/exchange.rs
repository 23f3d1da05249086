//! A request in flight, and its replies.

use futures_util::future::BoxFuture;
use trireme_bus::Reply;
use trireme_inference::InferError;

use super::flight::Flight;

/// A request in flight. If it is dropped before its last reply, it is cancelled everywhere.
pub enum Exchange {
    /// Sent as one message.
    Whole(Box<Flight>),
    /// Sent as several messages whose answers are joined, or answered in order: one reply, `None` after it was
    /// returned.
    Single(Option<BoxFuture<'static, Result<Reply, InferError>>>),
}

/// The error of a request that ended without a reply. This does not happen unless there is a bug.
pub fn no_answer() -> InferError {
    InferError::internal("request ended without an answer")
}

// === impl Exchange ===

impl Exchange {
    /// The next reply, or the error that ended the request, at its deadline at the latest. After the last reply,
    /// `None`.
    pub async fn next(&mut self) -> Option<Result<Reply, InferError>> {
        match self {
            Exchange::Whole(flight) => flight.next().await,
            Exchange::Single(single) => {
                let reply = single.as_mut()?.await;
                *single = None;
                Some(reply)
            }
        }
    }
}
