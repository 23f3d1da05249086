//! Pulling work from a queue without a policy: what comes is read and given to the caller.
//!
//! Not here: pull requests (`source`), queues whose messages wait in an order of their own (`policy`).

use std::time::Instant;

use async_trait::async_trait;
use tokio::task::JoinSet;
use trireme_inference::ModelKey;

use super::connect::CLOSE_TIMEOUT;
use super::open::{Opened, open};
use super::source::Source;
use super::{Nats, subjects};
use crate::{BusError, Delivery, Puller};

pub struct NatsPuller {
    source: Source,
    /// Deliveries whose bodies are being fetched. They take up room already.
    fetching: JoinSet<Option<Delivery>>,
    /// Until when what was asked for is awaited, once it stops.
    give_up: Option<Instant>,
}

// === impl NatsPuller ===

impl NatsPuller {
    pub async fn open(nats: &Nats, model: &ModelKey, level: u32) -> Result<NatsPuller, BusError> {
        let source = Source::open(nats, model, &subjects::work_stream(model, level)).await?;
        Ok(NatsPuller { source, fetching: JoinSet::new(), give_up: None })
    }
}

#[async_trait]
impl Puller for NatsPuller {
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError> {
        loop {
            let free = room.saturating_sub(self.fetching.len());
            let messages = tokio::select! {
                biased;
                Some(fetched) = self.fetching.join_next() => match fetched.ok().flatten() {
                    Some(delivery) => return Ok(vec![delivery]),
                    None => continue,
                },
                messages = self.source.next(free) => messages?,
            };
            let mut deliveries = Vec::new();
            for message in messages {
                match open(&self.source.nats, &self.source.model, message) {
                    Opened::Work(delivery) => deliveries.push(*delivery),
                    Opened::Claimed(fetch) => drop(self.fetching.spawn(fetch.run())),
                    Opened::Nothing => {}
                }
            }
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
        }
    }

    async fn overdue(&mut self) -> Result<Vec<Delivery>, BusError> {
        // No level of it has a timeout.
        Ok(Vec::new())
    }

    async fn stop(&mut self) -> Option<Vec<Delivery>> {
        // The client forgets a subscription before the broker has read that it ends (its own draining included), and what
        // comes then is lost until ack_wait: so the open pull requests end first.
        let give_up = *self.give_up.get_or_insert_with(|| Instant::now() + CLOSE_TIMEOUT);
        loop {
            let message = tokio::select! {
                biased;
                Some(fetched) = self.fetching.join_next() => match fetched.ok().flatten() {
                    Some(delivery) => return Some(vec![delivery]),
                    None => continue,
                },
                message = self.source.last(give_up) => message,
            };
            match message.map(|message| open(&self.source.nats, &self.source.model, message)) {
                Some(Opened::Work(delivery)) => return Some(vec![*delivery]),
                Some(Opened::Claimed(fetch)) => drop(self.fetching.spawn(fetch.run())),
                Some(Opened::Nothing) => {}
                None if self.fetching.is_empty() || Instant::now() >= give_up => break,
                // What is being fetched still comes.
                None => {
                    let fetched = tokio::time::timeout_at(give_up.into(), self.fetching.join_next()).await;
                    if let Ok(Some(Ok(Some(delivery)))) = fetched {
                        return Some(vec![delivery]);
                    }
                }
            }
        }
        self.source.close().await;
        None
    }
}
