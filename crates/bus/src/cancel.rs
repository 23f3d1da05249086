//! Cancellations: ids of requests for which no client waits any more, sent on a topic that every worker listens to.
//! Best effort: a worker that misses a cancellation stops at the request's deadline.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), trireme_bus::BusError> {
//! use trireme_bus::{Bus, InProcess};
//!
//! let bus: &dyn Bus = &InProcess::default();
//! let mut cancelled = bus.cancellations().await?;
//! bus.cancel("request-1").await?;
//! assert_eq!(cancelled.recv().await.as_deref(), Some("request-1"));
//! # Ok(())
//! # }
//! ```

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::envelope::MAX_NAME;
use crate::{Bus, BusError};

/// The topic.
pub(crate) const CANCEL: &str = "cancel";

/// Cancellations that may wait for a worker to read them. Beyond that the bus waits for the worker.
const BACKLOG: usize = 4096;

impl dyn Bus + '_ {
    /// Reports to every worker that no client waits for this request any more.
    pub async fn cancel(&self, request_id: &str) -> Result<(), BusError> {
        self.publish_to(CANCEL, Bytes::copy_from_slice(request_id.as_bytes())).await
    }

    /// The ids of requests that are cancelled from now on.
    pub async fn cancellations(&self) -> Result<mpsc::Receiver<String>, BusError> {
        let mut said = self.subscribe(CANCEL).await?;
        let (sender, receiver) = mpsc::channel(BACKLOG);
        crate::spawn("cancellations", async move {
            while let Some(said) = said.recv().await {
                let request_id = std::str::from_utf8(&said.body).ok().filter(|id| id.len() <= MAX_NAME);
                let Some(request_id) = request_id else {
                    tracing::warn!(bytes = said.body.len(), "ignored a malformed cancellation");
                    continue;
                };
                if sender.send(request_id.to_owned()).await.is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }
}
