//! Deliveries that go back to the bus, and the notes about attempts that have ended: the next worker that gets the message
//! reads them.
//!
//! Not here: counting the attempts that begin (`intake::attempts`).

use std::time::Duration;

use futures_util::future::join_all;
use trireme_bus::{AttemptNote, BusError, WorkMessage};

use crate::hosted::{HeldDelivery, HostedModel, Pending};

/// Pause before a delivery that was given back is delivered again. By then the pull requests of this worker, and of
/// others that stop with it, have ended.
pub(crate) const GIVE_BACK_PAUSE: Duration = Duration::from_secs(1);

// === impl HostedModel ===

impl HostedModel {
    /// Gives a delivery back whose attempts cannot be counted now.
    pub(crate) async fn give_back(&self, message: &WorkMessage, held: HeldDelivery, error: &BusError) {
        let request_id = &message.request_id;
        tracing::warn!(%request_id, model = %self.key, %error, "attempts cannot be counted; the delivery is given back");
        self.report(message, held.acker.nak(GIVE_BACK_PAUSE).await);
    }

    /// Notes that an attempt has ended whose message will be delivered again, so that the next worker knows that this
    /// one did not die of it.
    pub(crate) async fn note_end(&self, held: &HeldDelivery) {
        if !held.begun {
            return;
        }
        let ended = AttemptNote { attempts: held.attempts, ended: true };
        // If this worker stood still for long, another one may have begun the message meanwhile.
        if matches!(self.worker.bus.attempts(&held.name).await, Ok(Some(noted)) if noted.attempts > ended.attempts) {
            return;
        }
        if let Err(error) = self.worker.bus.note_attempts(&held.name, ended).await {
            // The next worker assumes that this one died, so the message will have to wait for its turn.
            tracing::debug!(message = %held.name.id, model = %self.key, %error, "not noted that an attempt has ended");
        }
    }

    /// Gives the requests that wait in this worker back to the bus, which delivers them again after `pause`. Notes that
    /// they were not begun.
    pub(crate) async fn give_back_waiting(&self, pause: Duration) {
        let work = self.queue.remove_where(|_| true);
        self.give_back_work(work.into_iter().map(|work| work.pending).collect(), pause).await;
    }

    /// Gives requests that were not begun back to the bus, which delivers them again after `pause`.
    #[allow(clippy::vec_box, reason = "the engine has them boxed")]
    pub(crate) async fn give_back_work(&self, requests: Vec<Box<Pending>>, pause: Duration) {
        let giving = requests.into_iter().map(async |pending| {
            let Pending { message, delivery, stay, .. } = *pending;
            let _stay = stay;
            self.worker.cancellations.leave(&message.request_id);
            if delivery.attempts == 0 {
                // Without the note, this delivery would count as one attempt.
                let never = AttemptNote { attempts: 0, ended: true };
                let _ = self.worker.bus.note_attempts(&delivery.name, never).await;
            }
            self.report(&message, delivery.acker.nak(pause).await);
        });
        join_all(giving).await;
    }
}
