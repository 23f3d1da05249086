//! Pulls work from the levels of a queue, the highest first, and reads the messages.
//!
//! Not here: pull requests (`source`).

use std::time::{Duration, Instant};

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::{self, AckKind};
use async_trait::async_trait;
use futures_util::future::select_all;
use tokio::task::JoinSet;
use trireme_inference::{ModelKey, UnixMicros};

use super::connection::Nats;
use super::headers;
use super::limits::{CLOSE_TIMEOUT, taken};
use super::open::{Received, open};
use super::source::Source;
use crate::{AttemptNote, Bus, BusError, Consumer, Delivery, MessageName, QueueOptions};

/// How often a worker with room asks all levels again while no message arrives. This finds messages that it was not
/// sent because a pull request got lost.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The most messages that are refused at a time because they waited too long.
const OVERDUE: usize = 32;

pub struct NatsConsumer {
    /// The highest first.
    levels: Vec<Level>,
    /// Messages that were received and not read yet, because the caller dropped its future.
    taken: Vec<jetstream::Message>,
    /// Deliveries whose bodies are being fetched. They count against the caller's room.
    fetching: JoinSet<Option<Delivery>>,
    /// Once stopped: when to stop waiting for deliveries that are still on their way.
    give_up: Option<Instant>,
}

struct Level {
    source: Source,
    /// How long a message may wait here before it is refused.
    rejects_after: Option<Duration>,
}

// === impl NatsConsumer ===

impl NatsConsumer {
    pub async fn open(nats: &Nats, model: &ModelKey, options: &QueueOptions) -> Result<NatsConsumer, BusError> {
        let mut levels = Vec::new();
        for (level, policy) in options.policies() {
            let source = Source::open(nats, model, &nats.names.work_stream(model, level)).await?;
            levels.push(Level { source, rejects_after: policy.rejects_after() });
        }
        Ok(NatsConsumer { levels, taken: Vec::new(), fetching: JoinSet::new(), give_up: None })
    }

    /// Reads the received messages, and starts to fetch bodies that travel by claim.
    fn read(&mut self) -> Vec<Delivery> {
        let Some(Level { source, .. }) = self.levels.first() else { return Vec::new() };
        let mut deliveries = Vec::new();
        for message in self.taken.drain(..) {
            match open(&source.nats, &source.model, message) {
                Received::Work(delivery) => deliveries.push(*delivery),
                Received::Claimed(fetch) => drop(self.fetching.spawn(fetch.run())),
                Received::Nothing => {}
            }
        }
        deliveries
    }

    /// Returns received messages for which the caller has no room. They are first at their level again. A note says
    /// that no worker began them.
    async fn give_back(&mut self) {
        let Some(Level { source, .. }) = self.levels.first() else { return };
        while let Some(message) = self.taken.last() {
            let id = message.headers.as_ref().and_then(|headers| headers.get(NATS_MESSAGE_ID));
            if let (Some(id), Ok(headers)) = (id, headers::read_work(message)) {
                let (model, id) = (source.model.clone(), id.as_str().to_owned());
                let never = AttemptNote { attempts: 0, ended: true };
                let name = MessageName { model, id: id.into(), deadline: headers.deadline };
                let _ = (&source.nats as &dyn Bus).note_attempts(&name, never).await;
            }
            let _ = taken(message.ack_with(AckKind::Nak(None))).await;
            self.taken.pop();
        }
    }

    /// Takes up to `room` messages that wait now, from the highest levels that have any.
    async fn take_waiting(&mut self, room: usize) -> Result<(), BusError> {
        for level in &mut self.levels {
            let left = room.saturating_sub(self.taken.len());
            if left > 0 {
                level.source.take_waiting(left, &mut self.taken).await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Consumer for NatsConsumer {
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError> {
        let mut looked = false;
        loop {
            if room == 0 && self.levels.len() > 1 {
                // A message from one level must not come before messages that wait at a higher one.
                self.give_back().await;
            }
            let deliveries = self.read();
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            let free = room.saturating_sub(self.fetching.len());
            // With one level the open request is enough.
            if free > 0 && self.levels.len() > 1 && !looked {
                self.take_waiting(free).await?;
                looked = true;
                continue;
            }
            // One message from each level at most, so that a message at a lower level leaves room for one at a higher
            // level.
            let asked = if self.levels.len() > 1 { free.min(1) } else { free };
            let come = select_all(self.levels.iter_mut().map(|level| Box::pin(level.source.next(asked))));
            tokio::select! {
                biased;
                Some(fetched) = self.fetching.join_next() => {
                    if let Ok(Some(delivery)) = fetched {
                        return Ok(vec![delivery]);
                    }
                }
                (come, _, _) = come => self.taken.extend(come?),
                () = tokio::time::sleep(LOOK_AGAIN), if free > 0 => looked = false,
            }
        }
    }

    async fn overdue(&mut self) -> Result<Vec<Delivery>, BusError> {
        for index in 0..self.levels.len() {
            let level = &mut self.levels[index];
            let Some(timeout) = level.rejects_after else { continue };
            // The oldest messages come first, so if the last of a batch is overdue, all of them are.
            for count in [OVERDUE, 1] {
                let since = level.source.waits_since(count as u64 - 1).await?;
                if since.is_some_and(|since| UnixMicros::now().since(since) > timeout) {
                    level.source.take_waiting(count, &mut self.taken).await?;
                    break;
                }
            }
            // No worker has begun them, however often they were delivered.
            let overdue: Vec<_> =
                self.read().into_iter().map(|delivery| Delivery { deliveries: 1, ..delivery }).collect();
            if !overdue.is_empty() {
                return Ok(overdue);
            }
        }
        Ok(Vec::new())
    }

    async fn stop(&mut self) -> Option<Vec<Delivery>> {
        // The client forgets a subscription before the broker has read the unsubscribe, even when it drains. A message
        // that arrives in between would be lost until `ack_wait`. So the open pull requests of a busy worker end first.
        let give_up = *self.give_up.get_or_insert_with(|| Instant::now() + CLOSE_TIMEOUT);
        for level in &mut self.levels {
            while let Some(message) = level.source.last(give_up).await {
                self.taken.push(message);
            }
        }
        let taken = self.read();
        if !taken.is_empty() {
            return Some(taken);
        }
        while let Ok(Some(fetched)) = tokio::time::timeout_at(give_up.into(), self.fetching.join_next()).await {
            if let Ok(Some(delivery)) = fetched {
                return Some(vec![delivery]);
            }
        }
        for level in &mut self.levels {
            level.source.close().await;
        }
        None
    }
}
