//! How long requests wait in the queues, as the latest answers say: a client whose request finds a queue full gets this time as the
//! time after which to try again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use trireme_bus::{Reply, WorkMessage};
use trireme_inference::ModelKey;

/// Shorter waits are not kept, and no client is asked to try again sooner: a queue usually has room within a second.
const SHORTEST: Duration = Duration::from_secs(1);

/// No client is asked to stay away for longer.
const LONGEST: Duration = Duration::from_secs(60);

/// The waits at the levels of queues at which requests wait long. Clones are the same.
#[derive(Clone, Default)]
pub(super) struct Backlogs(Arc<Mutex<HashMap<(ModelKey, u32), Duration>>>);

// === impl Backlogs ===

impl Backlogs {
    /// Notes how long a request has waited in its first queue; `message` is the request as it was published.
    pub fn note(&self, message: &WorkMessage, reply: &Reply) {
        let (Some(queue), Some(hop)) = (message.queue(), reply.ledger.0.first()) else { return };
        let waited = Duration::from_micros(hop.transit_us.saturating_add(hop.queue_us));
        let mut waits = self.0.lock();
        if waited > SHORTEST {
            waits.insert((queue.clone(), message.level()), waited);
        } else if !waits.is_empty() {
            waits.remove(&(queue.clone(), message.level()));
        }
    }

    /// When to send a request again that found its first queue full: the queue is as long as the last request's that left it.
    pub fn retry_after(&self, message: &WorkMessage) -> Duration {
        let waits = self.0.lock();
        let waited = message.queue().and_then(|queue| waits.get(&(queue.clone(), message.level()))).copied();
        waited.unwrap_or_default().clamp(SHORTEST, LONGEST)
    }
}
