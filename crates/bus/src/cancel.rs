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

use crate::envelope::MAX_NAME;
use crate::{Bus, BusError, TopicValues};

/// The topic.
pub(crate) const CANCEL: &str = "cancel";

impl dyn Bus + '_ {
    /// Reports to every worker that no client waits for this request any more.
    pub async fn cancel(&self, request_id: &str) -> Result<(), BusError> {
        self.publish_to(CANCEL, Bytes::copy_from_slice(request_id.as_bytes())).await
    }

    /// The ids of requests that are cancelled from now on.
    pub async fn cancellations(&self) -> Result<TopicValues<String>, BusError> {
        Ok(TopicValues::new(self.subscribe(CANCEL).await?, "cancellation", |body| {
            std::str::from_utf8(body).ok().filter(|id| id.len() <= MAX_NAME).map(str::to_owned)
        }))
    }
}
