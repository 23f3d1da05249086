//! Cancels requests: sends the cancellation to workers, and deletes the message from the queue into which this gateway
//! has put it. This is best effort: workers drop a message that was missed, at its deadline at the latest.

use std::sync::Arc;

use tokio::sync::Semaphore;
use trireme_bus::{Bus, Connection, MessagePosition, WorkMessage};
use trireme_runtime::TaskSet;
use trireme_telemetry::trace_id;

/// Most messages that are deleted from queues at a time, because each costs a request to the broker. Further messages
/// stay in their queues.
const AT_ONCE: usize = 64;

/// Cancels requests. Clones are the same.
#[derive(Clone)]
pub(super) struct Canceller {
    bus: Arc<dyn Bus>,
    tasks: TaskSet,
    under_way: Arc<Semaphore>,
}

// === impl Canceller ===

impl Canceller {
    pub fn new(bus: Arc<dyn Bus>, tasks: TaskSet) -> Canceller {
        Canceller { bus, tasks, under_way: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Cancels a request that was sent again `again` times; `queued` is its place in its queue.
    pub fn cancel(&self, message: &WorkMessage, again: u32, queued: Option<MessagePosition>) {
        if *self.bus.connection().borrow() == Connection::Down {
            // No worker would receive the cancellation, and the broker may be away for long.
            return;
        }
        let Canceller { bus, under_way, .. } = self.clone();
        let trace_id = trace_id(message.traceparent.as_ref().map(|trace| trace.parent.as_str())).map(str::to_owned);
        let ids: Vec<_> = (0..=again).map(|time| message.id_when_sent_again(time)).collect();
        self.tasks.spawn("cancel", async move {
            for request_id in ids {
                if let Err(error) = bus.cancel(&request_id).await {
                    tracing::debug!(%request_id, trace_id, %error, "cancellation could not be sent");
                }
            }
            if let (Some(queued), Ok(_place)) = (queued, under_way.try_acquire())
                && let Err(error) = bus.take_back(&queued).await
            {
                tracing::debug!(trace_id, %error, "a message of a cancelled request could not be taken back");
            }
        });
    }
}
