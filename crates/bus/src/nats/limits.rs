//! Time limits of what a process asks of the broker.

use std::time::Duration;

use crate::BusError;

/// How long closing may wait until buffered messages are sent.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a request to the broker may take, and how long the client may take to accept something to send.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit of a call that asks the broker several times.
pub const LONGEST: Duration = Duration::from_secs(30);

/// Waits until the client has accepted something to send, within a limit. While the connection is down the client
/// accepts as much as its channel holds, and then nothing until the connection is back.
pub async fn taken<T, E: std::fmt::Display>(sending: impl Future<Output = Result<T, E>>) -> Result<T, BusError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, sending).await {
        Ok(Ok(sent)) => Ok(sent),
        Ok(Err(error)) => Err(BusError::Unreachable(error.to_string())),
        Err(_) => Err(overdue()),
    }
}

/// Like [`taken`], for calls that ask the broker several times.
pub async fn limited<T>(limit: Duration, asking: impl Future<Output = Result<T, BusError>>) -> Result<T, BusError> {
    tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| Err(overdue()))
}

fn overdue() -> BusError {
    BusError::Unreachable("nothing can be sent right now".to_owned())
}
