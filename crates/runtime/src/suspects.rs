//! Deliveries that are not the first of their message. Somebody may have died of the message, or failed with it, so it is a
//! suspect: how often it was begun is noted where that outlives this process, and a message that has been begun
//! `max_deliver` times is given up. A delivery that nobody began costs nothing.
//!
//! The last attempt that a message has is made in a batch of its own. Where nobody knows how the one before it ended, its
//! worker may have died of it: then it is also the only one of its kind that is executed in this process. What was executed
//! beside an input that kills its worker has then a run without it, and only that input is given up. One whose turn it is not
//! goes back to the queue: what waited here would take the place of work that has done nothing wrong.
//!
//! Not here: who takes the place of first deliveries (`hosted`), and what becomes of an attempt that fails (`settle`).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Mutex, OwnedMutexGuard};
use trireme_bus::{Attempts, BusError, WorkMessage};
use trireme_inference::{FailureReason, UnixMicros};

use crate::backend::ExecuteRequest;
use crate::hosted::{Claim, HostedModel, Pending, Work, given_up};
use crate::queue::Permit;

/// Pause before a delivery that was given back is delivered again: by then the pull requests of a worker that stops, and of
/// others that stop with it, have ended.
pub(crate) const GIVE_BACK_PAUSE: Duration = Duration::from_secs(1);

/// After so many deliveries a suspect whose turn it was not stays away for longer by [`GIVE_BACK_PAUSE`].
const PATIENCE: u32 = 10;

/// Whose turn it is among a process's suspects that may have killed their workers and have one attempt left.
#[derive(Default)]
pub(crate) struct Suspects(Arc<Mutex<()>>);

/// What is known of a suspect.
pub(crate) struct Suspect {
    /// How often it was begun before.
    known: Attempts,
    /// Whether nothing else may run in one batch with it.
    alone: bool,
    /// Until it has been executed.
    _turn: Option<OwnedMutexGuard<()>>,
}

// === impl Suspect ===

impl Suspect {
    pub fn is_alone(&self) -> bool {
        self.alone
    }
}

// === impl HostedModel ===

impl HostedModel {
    /// Takes in a delivery that is not the first of its message, if it is its turn.
    pub(crate) fn suspect(self: &Arc<Self>, message: WorkMessage, claim: Claim, permit: Permit<Work>) {
        let this = self.clone();
        self.worker.tasks.spawn("suspect", async move { this.admit_in_turn(message, claim, permit).await });
    }

    async fn admit_in_turn(self: Arc<Self>, message: WorkMessage, mut claim: Claim, permit: Permit<Work>) {
        let options = &self.worker.queue_options;
        let (known, noted) = match self.worker.bus.attempts(&claim.name).await {
            Ok(Some(known)) => (known, true),
            // Who had it first has not said that it did not begin it.
            Ok(None) => (Attempts { begun: 1, ended: false }, false),
            // There is a broker, and no place for notes: deliveries are counted, or nothing that came again would be done.
            Err(BusError::Refused { .. }) => {
                (Attempts { begun: claim.deliveries.saturating_sub(1), ended: false }, false)
            }
            Err(error) => return self.give_back(&message, claim, &error).await,
        };
        claim.attempts = known.begun;
        if claim.deliveries > options.max_deliveries() {
            claim.attempts = claim.attempts.max(options.max_deliver);
        }
        let left = options.max_deliver.saturating_sub(claim.attempts);
        let over = message.deadline <= UnixMicros::now() || self.worker.cancellations.is_cancelled(&message.request_id);
        // What will not be executed needs no turn for that.
        if left > 0 && !over {
            // Should there be no place for a note, this delivery is the last attempt.
            let alone = left == 1 || !noted && claim.deliveries >= options.max_deliver;
            let turn = match alone && !known.ended {
                true => match self.worker.suspects.0.clone().try_lock_owned() {
                    Ok(turn) => Some(turn),
                    // Where deliveries are counted, one that is given back would be an attempt: it does without its turn.
                    Err(_) if !noted && self.cannot_note(&claim, known).await => None,
                    Err(_) => {
                        let pause = pause(claim.deliveries, UnixMicros::now());
                        return self.report(&message, claim.acker.nak(pause).await);
                    }
                },
                false => None,
            };
            claim.suspect = Some(Suspect { known, alone, _turn: turn });
        }
        self.admit(message, claim, permit);
    }

    /// Whether the broker has no place for notes; what is `known` is noted where it has.
    async fn cannot_note(&self, claim: &Claim, known: Attempts) -> bool {
        matches!(self.worker.bus.note_attempts(&claim.name, known).await, Err(BusError::Refused { .. }))
    }

    /// Counts the attempts that begin now; those of suspects are noted first. One that cannot be noted does not begin, or
    /// its message could kill workers without end; where the broker has no place for notes, deliveries are its count. Called by
    /// an instance's thread, which waits for the bus: at most as long as a publish takes.
    pub(crate) fn count_attempts(
        self: &Arc<Self>,
        mut batch: Vec<(ExecuteRequest, Pending)>,
    ) -> Vec<(ExecuteRequest, Pending)> {
        let is_new = |claim: &Claim| !claim.begun && claim.suspect.is_some();
        if batch.iter().any(|(_, pending)| is_new(&pending.delivery)) {
            let noting = batch.iter().map(async |(_, Pending { delivery, .. })| match is_new(delivery) {
                true => {
                    let begins = Attempts { begun: delivery.attempt(), ended: false };
                    self.worker.bus.note_attempts(&delivery.name, begins).await
                }
                false => Ok(()),
            });
            let noted = self.worker.tasks.runtime().block_on(join_all(noting));
            let mut noted = noted.into_iter();
            let mut begin = |begun: (ExecuteRequest, Pending)| match noted.next() {
                None | Some(Ok(())) => Some(begun),
                Some(Err(error @ BusError::Refused { .. })) => self.begin_unnoted(begun, &error),
                Some(Err(error)) => {
                    self.do_not_begin(begun.1, error);
                    None
                }
            };
            batch = batch.into_iter().filter_map(&mut begin).collect();
        }
        for (_, pending) in &mut batch {
            pending.delivery.attempts = pending.delivery.attempt();
            pending.delivery.begun = true;
        }
        batch
    }

    /// Counts an attempt by the deliveries of its message, as far as that leaves one.
    fn begin_unnoted(
        self: &Arc<Self>,
        (request, mut pending): (ExecuteRequest, Pending),
        error: &BusError,
    ) -> Option<(ExecuteRequest, Pending)> {
        let (message, model) = (&pending.delivery.name.id, &self.key);
        tracing::warn!(message, %model, %error, "attempts cannot be noted; deliveries are counted instead");
        let delivery = &mut pending.delivery;
        delivery.attempts = delivery.attempts.max(delivery.deliveries.saturating_sub(1));
        if delivery.attempts < self.worker.queue_options.max_deliver {
            return Some((request, pending));
        }
        let given_up = given_up(delivery.attempts);
        self.fail(pending, given_up, FailureReason::Other);
        None
    }

    fn do_not_begin(self: &Arc<Self>, pending: Pending, error: BusError) {
        let (this, Pending { message, mut delivery, mut stay, .. }) = (self.clone(), pending);
        self.worker.cancellations.leave(&message.request_id);
        stay.span.fail(&error.to_string());
        self.settle(async move {
            let _stay = stay;
            if let Some(known) = delivery.suspect.take().map(|suspect| suspect.known) {
                // The note may be on its way all the same: this one comes after it, and says what is true.
                let _ = this.worker.bus.note_attempts(&delivery.name, known).await;
            }
            this.give_back(&message, delivery, &error).await;
        });
    }

    async fn give_back(&self, message: &WorkMessage, claim: Claim, error: &BusError) {
        let request_id = &message.request_id;
        tracing::warn!(request_id, model = %self.key, %error, "attempts cannot be counted; the delivery is given back");
        self.report(message, claim.acker.nak(GIVE_BACK_PAUSE).await);
    }

    /// An attempt is over, and its message will be delivered again: who gets it need not fear that its worker died of it.
    pub(crate) async fn note_end(&self, claim: &Claim) {
        if !claim.begun {
            return;
        }
        let ended = Attempts { begun: claim.attempts, ended: true };
        // Another worker may have begun it meanwhile: this one stood still for too long.
        if matches!(self.worker.bus.attempts(&claim.name).await, Ok(Some(noted)) if noted.begun > ended.begun) {
            return;
        }
        if let Err(error) = self.worker.bus.note_attempts(&claim.name, ended).await {
            // Taken for one whose worker died: it will have to wait for its turn.
            tracing::debug!(message = claim.name.id, model = %self.key, %error, "not noted that an attempt has ended");
        }
    }

    /// Gives back what waits in this worker. It was not begun, and that is noted.
    pub(crate) async fn hand_back(&self) {
        let waiting = self.queue.remove_where(|_| true);
        let giving = waiting.into_iter().map(async |work| {
            let Pending { message, delivery, .. } = work.pending;
            if delivery.attempts == 0 {
                // Otherwise it counts as begun once.
                let never = Attempts { begun: 0, ended: true };
                let _ = self.worker.bus.note_attempts(&delivery.name, never).await;
            }
            self.report(&message, delivery.acker.nak(GIVE_BACK_PAUSE).await);
        });
        join_all(giving).await;
    }
}

/// How long a suspect whose turn it was not stays away: never quite the same, so that those who came together do not come
/// together again, and longer as deliveries add up, of which there is an end.
fn pause(deliveries: u32, now: UnixMicros) -> Duration {
    let spread = (now.0 % 1000) as f64 / 1000.0;
    (GIVE_BACK_PAUSE * (1 + deliveries / PATIENCE)).mul_f64(0.5 + spread)
}

#[cfg(test)]
mod tests {
    use trireme_bus::QueueOptions;

    use super::*;

    #[test]
    fn deliveries_last_for_a_long_wait() {
        for max_deliver in [2, 3] {
            let deliveries = 2..QueueOptions { max_deliver, ..QueueOptions::default() }.max_deliveries();
            let shortest: Duration = deliveries.map(|delivery| pause(delivery, UnixMicros(0))).sum();
            assert!(shortest > Duration::from_secs(5 * 60), "{shortest:?} for {max_deliver}");
        }
    }

    #[test]
    fn those_who_came_together_part() {
        let pauses: Vec<_> = (0..1000).map(|now| pause(2, UnixMicros(now))).collect();
        assert!(pauses.is_sorted() && pauses.windows(2).all(|two| two[0] < two[1]));
        assert!(pauses[0] >= GIVE_BACK_PAUSE / 2 && pauses[999] < GIVE_BACK_PAUSE * 3 / 2);
    }
}
