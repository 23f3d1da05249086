//! Applies a model's queue policy to what waits too long: here, and in the shared queue. What the policy says is
//! `queue_policy`'s business; how many wait, and which go first, the bus sees to.

use std::sync::Arc;
use std::time::Instant;

use trireme_bus::{BusError, Delivery, Puller};
use trireme_inference::UnixMicros;

use crate::hosted::HostedModel;
use crate::queue_policy;

/// Refuses or delays what waits in this worker beyond its timeout.
pub(crate) async fn watch_timeouts(model: Arc<HostedModel>) {
    let stopping = model.worker.tasks.stopping().clone();
    let mut ticks = tokio::time::interval(queue_policy::look_every(&model.config));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => model.apply_queue_policy(),
            () = stopping.cancelled() => return,
        }
    }
}

/// The next deliveries to execute, as far as there is room. What was asked for while there was more room is taken in all the
/// same: nobody else would report progress on it. Meanwhile refuses what waits too long in the shared queue. Cancel safe.
pub(crate) async fn next(model: &Arc<HostedModel>, puller: &mut dyn Puller) -> Result<Vec<Delivery>, BusError> {
    let refuses = queue_policy::has_refusals(&model.config);
    let every = queue_policy::look_every(&model.config);
    let mut look = Instant::now() + every;
    let (mut room, mut since) = (0, Instant::now());
    loop {
        tokio::select! {
            deliveries = puller.next(room) => {
                let deliveries = deliveries?;
                let (now, waited) = (UnixMicros::now(), since.elapsed());
                let was_there = |delivery: &Delivery| now.since(delivery.message.sent_at) > waited;
                if room > 0 && deliveries.iter().any(was_there) {
                    model.queue.fetched(since);
                }
                return Ok(deliveries);
            }
            other = model.queue.room_beyond(room) => {
                if room == 0 || other.0 == 0 {
                    since = other.1;
                }
                room = other.0;
            }
            () = tokio::time::sleep_until(look.into()), if room == 0 && refuses => {
                refuse_overdue(model, puller, Instant::now() + every).await?;
                look = Instant::now() + every;
            }
        }
    }
}

/// Refuses what waits too long in the shared queue, as many as time allows: most of what waits is there.
async fn refuse_overdue(model: &Arc<HostedModel>, puller: &mut dyn Puller, until: Instant) -> Result<(), BusError> {
    loop {
        let overdue = puller.overdue().await?;
        let none = overdue.is_empty();
        overdue.into_iter().for_each(|delivery| model.refuse(delivery));
        if none || Instant::now() >= until {
            return Ok(());
        }
    }
}
