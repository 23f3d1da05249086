//! Deliveries that are not the first of their message. Somebody may have died of the message, or failed with it, so it is a
//! suspect: how often it was begun is noted where that outlives this process, and a message that has been begun
//! `max_deliver` times is given up. A delivery that nobody began costs nothing.
//!
//! The last attempt that a message has is made alone: in a batch of its own, and while no other suspect of this process is
//! executed. Whatever else shared a run with an input that kills its worker has then a run without it, and only that input
//! is given up. First deliveries pay nothing for any of this.
//!
//! Not here: who takes the place of first deliveries (`hosted`), and what becomes of an attempt that fails (`settle`).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};
use tokio_util::sync::CancellationToken;
use trireme_bus::{BusError, WorkMessage};

use crate::backend::ExecuteRequest;
use crate::hosted::{Claim, HostedModel, Pending, Work, unwanted};
use crate::queue::Permit;

/// Pause before a delivery that was given back is delivered again: by then the pull requests of a worker that stops, and of
/// others that stop with it, have ended.
pub(crate) const GIVE_BACK_PAUSE: Duration = Duration::from_secs(1);

/// How often a suspect that waits for its turn looks whether anybody still waits for it.
const LOOK: Duration = Duration::from_millis(50);

/// Which suspects of a process may be executed now: any number together, or one alone.
#[derive(Default)]
pub(crate) struct Suspects {
    turns: Arc<RwLock<()>>,
    closed: CancellationToken,
}

/// A suspect's turn, until its delivery is settled.
pub(crate) enum Turn {
    /// Beside others.
    Shared { _guard: OwnedRwLockReadGuard<()> },
    /// The last attempt.
    Alone { _guard: OwnedRwLockWriteGuard<()> },
}

/// How the wait for a turn ended.
enum Waited {
    Turn(Turn),
    /// Nobody waits for the request any more.
    Unwanted,
    /// This worker stops.
    Closed,
}

// === impl Suspects ===

impl Suspects {
    /// From now on those whose turn has not come are given back.
    pub fn close(&self) {
        self.closed.cancel();
    }

    async fn turn(&self, alone: bool) -> Turn {
        match alone {
            false => Turn::Shared { _guard: self.turns.clone().read_owned().await },
            true => Turn::Alone { _guard: self.turns.clone().write_owned().await },
        }
    }
}

// === impl HostedModel ===

impl HostedModel {
    /// Takes in a delivery that is not the first of its message, once its turn has come.
    pub(crate) fn suspect(self: &Arc<Self>, message: WorkMessage, claim: Claim, permit: Permit<Work>) {
        let this = self.clone();
        self.worker.tasks.spawn("suspect", async move { this.admit_in_turn(message, claim, permit).await });
    }

    async fn admit_in_turn(self: Arc<Self>, message: WorkMessage, mut claim: Claim, permit: Permit<Work>) {
        let options = &self.worker.queue_options;
        match self.worker.bus.attempts(&message).await {
            // Who had it first has not said that it did not begin it.
            Ok(noted) => claim.attempts = noted.unwrap_or(1),
            Err(error) => return self.give_back(&message, claim, &error).await,
        }
        if claim.deliveries > options.max_deliveries() {
            claim.attempts = claim.attempts.max(options.max_deliver);
        }
        // What has no attempt left needs no turn to be given up.
        if let Some(left) = options.max_deliver.checked_sub(claim.attempts).filter(|left| *left > 0) {
            match self.wait_for_turn(&message, left == 1).await {
                Waited::Turn(turn) => claim.turn = Some(turn),
                Waited::Unwanted => {}
                Waited::Closed => return self.report(&message, claim.acker.nak(GIVE_BACK_PAUSE).await),
            }
        }
        self.admit(message, claim, permit);
    }

    async fn wait_for_turn(&self, message: &WorkMessage, alone: bool) -> Waited {
        let (suspects, cancellations) = (&self.worker.suspects, &self.worker.cancellations);
        let cancelled = cancellations.enter(&message.request_id);
        let nobody_waits = async {
            while unwanted(&cancelled, message.deadline).is_none() {
                tokio::time::sleep(LOOK).await;
            }
        };
        let waited = tokio::select! {
            biased;
            turn = suspects.turn(alone) => Waited::Turn(turn),
            () = nobody_waits => Waited::Unwanted,
            () = suspects.closed.cancelled() => Waited::Closed,
        };
        cancellations.leave(&message.request_id);
        waited
    }

    /// Counts the attempts that begin now; those of suspects are noted first. One that cannot be noted does not begin, or
    /// its message could kill workers without end. Called by an instance's thread, which waits for the bus: at most as long
    /// as a publish takes.
    pub(crate) fn count_attempts(
        self: &Arc<Self>,
        mut batch: Vec<(ExecuteRequest, Pending)>,
    ) -> Vec<(ExecuteRequest, Pending)> {
        let is_new = |claim: &Claim| !claim.begun && claim.turn.is_some();
        if batch.iter().any(|(_, pending)| is_new(&pending.delivery)) {
            let noting = batch.iter().map(async |(_, Pending { message, delivery, .. })| match is_new(delivery) {
                true => self.worker.bus.note_attempts(message, delivery.attempt()).await,
                false => Ok(()),
            });
            let noted = self.worker.tasks.runtime().block_on(join_all(noting));
            let mut noted = noted.into_iter();
            let mut begin = |begun: (ExecuteRequest, Pending)| match noted.next() {
                Some(Err(error)) => {
                    self.do_not_begin(begun.1, error);
                    None
                }
                _ => Some(begun),
            };
            batch = batch.into_iter().filter_map(&mut begin).collect();
        }
        for (_, pending) in &mut batch {
            pending.delivery.attempts = pending.delivery.attempt();
            pending.delivery.begun = true;
        }
        batch
    }

    fn do_not_begin(self: &Arc<Self>, pending: Pending, error: BusError) {
        let (this, Pending { message, delivery, mut stay, .. }) = (self.clone(), pending);
        self.worker.cancellations.leave(&message.request_id);
        stay.span.fail(&error.to_string());
        self.settle(async move {
            let _stay = stay;
            this.give_back(&message, delivery, &error).await;
        });
    }

    async fn give_back(&self, message: &WorkMessage, claim: Claim, error: &BusError) {
        let request_id = &message.request_id;
        tracing::warn!(request_id, model = %self.key, %error, "attempts cannot be counted; the delivery is given back");
        self.report(message, claim.acker.nak(GIVE_BACK_PAUSE).await);
    }

    /// Gives back what waits in this worker. It was not begun, and that is noted.
    pub(crate) async fn hand_back(&self) {
        let waiting = self.queue.remove_where(|_| true);
        let giving = waiting.into_iter().map(async |work| {
            let Pending { message, delivery, .. } = work.pending;
            if delivery.attempts == 0 {
                // Otherwise it counts as begun once.
                let _ = self.worker.bus.note_attempts(&message, 0).await;
            }
            self.report(&message, delivery.acker.nak(GIVE_BACK_PAUSE).await);
        });
        join_all(giving).await;
    }
}
