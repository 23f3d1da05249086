//! Redeliveries. A worker may have died while it executed the message, or may have failed with it, so the message is a
//! suspect: the number of its attempts is noted in the bus, where it outlives this process, and after `max_attempts`
//! attempts the message is given up. A delivery whose execution was never begun does not count as an attempt.
//!
//! The last attempt of a message is made in a batch of its own. If it is not known how the attempt before it ended, its
//! worker may have died of it. Then the message is also the only such suspect that is executed in this process at that
//! time. Requests that shared a batch with an input that kills its worker get a run without it that way, and only that
//! input is given up. A suspect that has to wait for its turn goes back to the queue: if it waited in this worker, it
//! would take the place of requests that are not suspects.
//!
//! Not here: admitting first deliveries (`hosted`), and the treatment of an attempt that fails (`settle`).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use trireme_bus::{AttemptNote, BusError, WorkMessage};
use trireme_engine::ExecuteRequest;
use trireme_inference::{FailureReason, UnixMicros};

use crate::hosted::suspects::Suspect;
use crate::hosted::{HeldDelivery, HostedModel, Pending};
use crate::settle::{GIVE_BACK_PAUSE, given_up};

/// A suspect that has to wait for its turn stays away longer by [`GIVE_BACK_PAUSE`] after each time this many
/// deliveries.
const PATIENCE: u32 = 10;

// === impl HostedModel ===

impl HostedModel {
    /// Finds out whether a redelivery may be executed now. `None` if it has to wait for its turn: then it goes back to the
    /// queue.
    pub(crate) async fn take_turn(
        &self,
        message: WorkMessage,
        mut held: HeldDelivery,
    ) -> Option<(WorkMessage, HeldDelivery)> {
        let options = self.worker.queue_options();
        let (known, noted) = match self.worker.bus.attempts(&held.name).await {
            Ok(Some(known)) => (known, true),
            // The first worker has not noted that it did not begin the message.
            Ok(None) => (AttemptNote { attempts: 1, ended: false }, false),
            // The broker has no place for notes. Then deliveries are counted as attempts, because otherwise no
            // redelivery could be executed.
            Err(BusError::Refused { .. }) => {
                (AttemptNote { attempts: held.deliveries.saturating_sub(1), ended: false }, false)
            }
            Err(error) => {
                self.give_back(&message, held, &error).await;
                return None;
            }
        };
        held.attempts = known.attempts;
        if held.deliveries > options.max_deliveries() {
            held.attempts = held.attempts.max(options.max_attempts);
        }
        let left = options.max_attempts.saturating_sub(held.attempts);
        let over = message.deadline <= UnixMicros::now() || self.worker.cancellations.is_cancelled(&message.request_id);
        // A message that will not be executed needs no turn.
        if left > 0 && !over {
            // If the attempt cannot be noted, this delivery may be the last attempt.
            let alone = left == 1 || !noted && held.deliveries >= options.max_attempts;
            let turn = match alone && !known.ended {
                true => match self.worker.suspects.0.clone().try_lock_owned() {
                    Ok(turn) => Some(turn),
                    // If deliveries are counted as attempts, giving this one back would use up an attempt, so it runs
                    // without a turn.
                    Err(_) if !noted && self.cannot_note(&held, known).await => None,
                    Err(_) => {
                        let pause = pause(held.deliveries, UnixMicros::now());
                        self.report(&message, held.acker.nak(pause).await);
                        return None;
                    }
                },
                false => None,
            };
            held.suspect = Some(Suspect { known, alone, _turn: turn });
        }
        Some((message, held))
    }

    /// Whether the broker has no place for notes. If it has, `known` is noted.
    async fn cannot_note(&self, held: &HeldDelivery, known: AttemptNote) -> bool {
        matches!(self.worker.bus.note_attempts(&held.name, known).await, Err(BusError::Refused { .. }))
    }

    /// Counts the attempts that begin now; those of suspects are noted first. A suspect whose attempt cannot be noted
    /// does not begin, because its message could kill workers without end. If the broker has no place for notes,
    /// deliveries are counted instead. An instance thread calls this and waits for the bus, at most as long as a
    /// publish takes.
    pub(crate) fn count_attempts(
        self: &Arc<Self>,
        mut batch: Vec<(ExecuteRequest, Box<Pending>)>,
    ) -> Vec<(ExecuteRequest, Box<Pending>)> {
        let is_new = |held: &HeldDelivery| !held.begun && held.suspect.is_some();
        if batch.iter().any(|(_, pending)| is_new(&pending.delivery)) {
            let noting = batch.iter().map(async |(_, pending)| match is_new(&pending.delivery) {
                true => {
                    let begins = AttemptNote { attempts: pending.delivery.attempt(), ended: false };
                    self.worker.bus.note_attempts(&pending.delivery.name, begins).await
                }
                false => Ok(()),
            });
            #[allow(clippy::disallowed_methods, reason = "the thread is the instance's own")]
            let noted = self.worker.tasks.runtime().block_on(join_all(noting));
            let mut noted = noted.into_iter();
            let mut begin = |begun: (ExecuteRequest, Box<Pending>)| match noted.next() {
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

    /// Counts an attempt by the message's deliveries, if one is left by that count.
    fn begin_unnoted(
        self: &Arc<Self>,
        (request, mut pending): (ExecuteRequest, Box<Pending>),
        error: &BusError,
    ) -> Option<(ExecuteRequest, Box<Pending>)> {
        let (message, model) = (&pending.delivery.name.id, &self.key);
        tracing::warn!(%message, %model, %error, "attempts cannot be noted; deliveries are counted instead");
        let delivery = &mut pending.delivery;
        delivery.attempts = delivery.attempts.max(delivery.deliveries.saturating_sub(1));
        if delivery.attempts < self.worker.queue_options().max_attempts {
            return Some((request, pending));
        }
        let given_up = given_up(delivery.attempts);
        self.fail(pending, given_up, FailureReason::Other);
        None
    }

    fn do_not_begin(self: &Arc<Self>, pending: Box<Pending>, error: BusError) {
        let (this, Pending { message, mut delivery, mut stay, .. }) = (self.clone(), *pending);
        self.worker.cancellations.leave(&message.request_id);
        stay.span.fail(&error.to_string());
        self.settle(async move {
            let _stay = stay;
            if let Some(known) = delivery.suspect.take().map(|suspect| suspect.known) {
                // The failed note may still arrive. This note comes after it and corrects it.
                let _ = this.worker.bus.note_attempts(&delivery.name, known).await;
            }
            this.give_back(&message, delivery, &error).await;
        });
    }
}

/// How long a suspect that has to wait for its turn stays away. The time varies, so that suspects which came together
/// do not come together again, and grows with the number of deliveries, which is limited.
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
        for max_attempts in [2, 3] {
            let deliveries = 2..QueueOptions { max_attempts, ..QueueOptions::default() }.max_deliveries();
            let shortest: Duration = deliveries.map(|delivery| pause(delivery, UnixMicros(0))).sum();
            assert!(shortest > Duration::from_secs(5 * 60), "{shortest:?} for {max_attempts}");
        }
    }

    #[test]
    fn those_who_came_together_part() {
        let pauses: Vec<_> = (0..1000).map(|now| pause(2, UnixMicros(now))).collect();
        assert!(pauses.is_sorted() && pauses.windows(2).all(|two| two[0] < two[1]));
        assert!(pauses[0] >= GIVE_BACK_PAUSE / 2 && pauses[999] < GIVE_BACK_PAUSE * 3 / 2);
    }
}
