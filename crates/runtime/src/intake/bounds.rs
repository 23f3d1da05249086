//! Applies a model's queue policy to requests that wait too long, in this worker and in the shared queue. The policy's
//! rules are in `queue_policy`; the bus enforces the number of waiting requests and their order.

use std::sync::Arc;
use std::time::Instant;

use trireme_bus::{BusError, Consumer, Delivery};
use trireme_inference::{Lane, UnixMicros};

use super::queue_policy::{self, QueueDecision};
use crate::hosted::HostedModel;

/// Refuses or delays requests that wait in this worker longer than their timeout, until it is dropped.
pub(crate) async fn watch_timeouts(model: Arc<HostedModel>) {
    let mut ticks = tokio::time::interval(queue_policy::look_every(&model.config));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        model.apply_queue_policy();
    }
}

/// Waits for the next deliveries, as far as there is room. Deliveries that were pulled before the room became less are
/// taken as well, because nothing else would keep them alive. Meanwhile, while there is no room, refuses requests that
/// wait too long in the shared queue. Cancel safe.
pub(crate) async fn next(
    model: &Arc<HostedModel>,
    lane: Lane,
    consumer: &mut dyn Consumer,
) -> Result<Vec<Delivery>, BusError> {
    let refuses = lane == Lane::Live && queue_policy::has_refusals(&model.config);
    let every = queue_policy::look_every(&model.config);
    let mut look = Instant::now() + every;
    let (mut room, mut since) = (0, Instant::now());
    loop {
        tokio::select! {
            deliveries = consumer.next(room) => {
                let deliveries = deliveries?;
                let (now, waited) = (UnixMicros::now(), since.elapsed());
                let was_there = |delivery: &Delivery| now.since(delivery.message.sent_at) > waited;
                if room > 0 && deliveries.iter().any(was_there) {
                    model.queue.fetched(lane, since);
                }
                return Ok(deliveries);
            }
            other = model.queue.room_beyond(lane, room) => {
                if room == 0 || other.0 == 0 {
                    since = other.1;
                }
                room = other.0;
            }
            () = tokio::time::sleep_until(look.into()), if room == 0 && refuses => {
                refuse_overdue(model, consumer, Instant::now() + every).await?;
                look = Instant::now() + every;
            }
        }
    }
}

/// Refuses requests that wait too long in the shared queue, until there are none left or until `until`.
async fn refuse_overdue(model: &Arc<HostedModel>, consumer: &mut dyn Consumer, until: Instant) -> Result<(), BusError> {
    loop {
        let overdue = consumer.overdue().await?;
        let (none, now) = (overdue.is_empty(), UnixMicros::now());
        for delivery in overdue {
            match model.decide(&delivery.message, now) {
                QueueDecision::Over => model.refuse(delivery),
                // The policy alone decides, whatever the queue has taken out.
                QueueDecision::Left | QueueDecision::Delayed => model.receive(delivery, false),
            }
        }
        if none || Instant::now() >= until {
            return Ok(());
        }
    }
}
