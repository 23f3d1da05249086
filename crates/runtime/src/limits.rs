//! The tasks that apply a model's queue policy: they keep the shared queue's limits in step with the workers that serve it,
//! and refuse what waits too long, here and in the shared queue. What the policy says is `queue_policy`'s business.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trireme_bus::{BusError, Delivery, Puller, WorkerEntry};
use trireme_inference::UnixMicros;

use crate::hosted::HostedModel;
use crate::queue_policy::{self, WorkerRooms};

/// Keeps the limits of a model's queue: what its levels may hold besides what all of its workers take in.
pub(crate) async fn follow(model: Arc<HostedModel>) {
    let shared = model.worker.clone();
    let stopping = shared.tasks.stopping().clone();
    let mut rooms = WorkerRooms::default();
    loop {
        let mut events = match shared.bus.watch_registry().await {
            Ok(events) => Some(events),
            Err(error) => {
                tracing::warn!(model = %model.key, %error, "the registry cannot be followed yet");
                None
            }
        };
        loop {
            let event = async {
                match &mut events {
                    Some(events) => events.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = event => match event {
                    Some(event) => rooms.note(event, Instant::now()),
                    None => break,
                },
                // Entries lapse without an event.
                () = tokio::time::sleep(WorkerEntry::TIME_TO_LIVE / 3) => if events.is_none() { break },
                () = stopping.cancelled() => return,
            }
            let room = rooms.of(&model.key, Instant::now());
            // This worker's own entry comes with the others'.
            if room == 0 || *model.taken_in.lock() == Some(room) {
                continue;
            }
            *model.taken_in.lock() = Some(room);
            if let Err(error) = shared.bus.declare_queue(&model.key, &model.queue_options()).await {
                tracing::warn!(model = %model.key, %error, "the limits of its queue could not be changed yet");
                *model.taken_in.lock() = None;
            }
        }
    }
}

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
    let refusing = queue_policy::refusing_levels(&model.config);
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
            () = tokio::time::sleep_until(look.into()), if room == 0 && !refusing.is_empty() => {
                refuse_overdue(model, puller, &refusing, Instant::now() + every).await?;
                look = Instant::now() + every;
            }
        }
    }
}

/// Refuses what waits too long in the shared queue, as many as time allows: most of what waits is there.
async fn refuse_overdue(
    model: &Arc<HostedModel>,
    puller: &mut dyn Puller,
    refusing: &[(u32, Duration)],
    until: Instant,
) -> Result<(), BusError> {
    for (level, timeout) in refusing {
        loop {
            let overdue = puller.overdue(*level, *timeout).await?;
            let none = overdue.is_empty();
            overdue.into_iter().for_each(|delivery| model.refuse(delivery));
            if none || Instant::now() >= until {
                break;
            }
        }
    }
    Ok(())
}
