//! The bulk lane of a queue over NATS: one more stream, at a level of its own.
//!
//! Most models never get bulk requests, and a stream costs the broker something also at rest. So the gateway that has the first
//! bulk request for a model makes the stream, and says so to the model's workers, which look for it once in a while besides.
//!
//! Not here: the order of the lanes in a worker (`trireme-engine`).

use std::collections::HashSet;
use std::time::{Duration, Instant};

use async_nats::Subscriber;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::watch;
use trireme_inference::{Lane, ModelKey, Route};

use super::connection::Nats;
use super::limits::{LONGEST, limited, taken};
use super::puller::NatsPuller;
use super::streams::Needed;
use super::subjects;
use crate::{BusError, Connection, Delivery, LevelPolicy, Puller, QueueOptions, Queued, WorkMessage};

/// How often a worker looks for a bulk lane that is not there, in case that it missed the message about it.
const LOOK: Duration = Duration::from_secs(60);

/// Pulls from a bulk lane, which may not be there yet.
pub struct BulkPuller {
    lane: NatsPuller,
    /// Messages that say that the lane was made.
    made: Subscriber,
    connection: watch::Receiver<Connection>,
    /// Set while the lane is not there: when to look again.
    look_at: Option<Instant>,
}

/// A queue's options for its bulk lane alone. No queue policy is about bulk requests.
fn options(settings: QueueOptions) -> QueueOptions {
    QueueOptions { levels: [(Lane::Bulk.level(0), LevelPolicy::default())].into(), ..settings }
}

// === impl Nats ===

impl Nats {
    /// Publishes a bulk request, into a lane that this process makes if it makes streams.
    pub(super) async fn publish_bulk(&self, message: &WorkMessage) -> Result<Queued, BusError> {
        if self.makes_streams {
            self.make_bulk_lanes(&message.route).await?;
        }
        let published = self.publish_work(message).await;
        if matches!(published, Err(BusError::NoQueue { .. })) {
            self.forget_bulk_lanes();
        }
        published
    }

    /// Makes the bulk lanes that a route's steps lead to, where this gateway has not made them before.
    async fn make_bulk_lanes(&self, route: &Route) -> Result<(), BusError> {
        for step in route.remaining().iter().filter(|step| Lane::of_level(step.level) == Lane::Bulk) {
            let connection = Some(*self.connection.borrow());
            {
                let mut made = self.bulk_lanes.lock();
                if made.0 != connection {
                    // A broker that was restarted has lost the streams in its memory.
                    *made = (connection, HashSet::new());
                }
                if made.1.contains(&step.model) {
                    continue;
                }
            }
            let options = options(self.settings.lock().clone().unwrap_or_default());
            limited(LONGEST, self.make(Needed::Queue(&step.model, &options), false)).await?;
            taken(self.client.publish(subjects::bulk_made(&step.model), Bytes::new())).await?;
            let mut made = self.bulk_lanes.lock();
            if made.0 == connection {
                made.1.insert(step.model.clone());
            }
        }
        Ok(())
    }

    /// Forgets which bulk lanes were made, because a lane is gone or the settings have changed.
    pub(super) fn forget_bulk_lanes(&self) {
        self.bulk_lanes.lock().1.clear();
    }
}

// === impl BulkPuller ===

impl BulkPuller {
    pub async fn open(nats: &Nats, model: &ModelKey) -> Result<BulkPuller, BusError> {
        let made = nats.subscribe(subjects::bulk_made(model)).await?;
        let lane = NatsPuller::open(nats, model, &options(QueueOptions::default())).await?;
        let mut connection = nats.connection.clone();
        connection.mark_unchanged();
        Ok(BulkPuller { lane, made, connection, look_at: None })
    }
}

#[async_trait]
impl Puller for BulkPuller {
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError> {
        loop {
            if let Some(at) = self.look_at {
                tokio::select! {
                    _ = self.made.next() => {}
                    _ = self.connection.changed() => {}
                    () = tokio::time::sleep_until(at.into()) => {}
                }
                self.look_at = None;
            }
            match self.lane.next(room).await {
                Err(BusError::NoQueue { .. }) => self.look_at = Some(Instant::now() + LOOK),
                pulled => return pulled,
            }
        }
    }

    async fn overdue(&mut self) -> Result<Vec<Delivery>, BusError> {
        Ok(Vec::new())
    }

    async fn stop(&mut self) -> Option<Vec<Delivery>> {
        self.lane.stop().await
    }
}
