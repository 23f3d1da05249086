//! The bulk lane of a queue over NATS: one more stream, at a level of its own.
//!
//! Most models never get bulk requests, and a stream costs the broker something also at rest. So the gateway that has the first
//! bulk request for a model makes the stream, and says so to the model's workers, which look for it once in a while besides.
//!
//! Not here: the order of the lanes in a worker (`trireme-engine`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Subscriber;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::{Mutex, watch};
use trireme_inference::{Lane, ModelKey, Route};

use super::connection::{BulkLane, Nats};
use super::consumer::NatsConsumer;
use super::limits::{LONGEST, limited, taken};
use super::streams::Needed;
use crate::{BusError, Connection, Consumer, Delivery, LevelPolicy, MessagePosition, QueueOptions, WorkMessage};

/// How often a worker looks for a bulk lane that is not there, in case that it missed the message about it.
const LOOK: Duration = Duration::from_secs(60);

/// Pulls from a bulk lane, which may not be there yet.
pub struct BulkConsumer {
    lane: NatsConsumer,
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
    pub(super) async fn publish_bulk(&self, message: &WorkMessage) -> Result<MessagePosition, BusError> {
        if self.makes_streams {
            self.make_bulk_lanes(&message.route).await?;
        }
        let published = self.publish_work(message).await;
        if matches!(published, Err(BusError::NoQueue { .. })) {
            for lane in self.bulk_lanes_of(&message.route).map(|(_, lane)| lane) {
                if let Ok(mut lane) = lane.try_lock() {
                    lane.made_over = None;
                }
            }
        }
        published
    }

    /// Makes the bulk lanes that a route's steps lead to, where this gateway has not made them before. One request makes a
    /// lane; others go on meanwhile, and the caller publishes them again if the lane is not there.
    async fn make_bulk_lanes(&self, route: &Route) -> Result<(), BusError> {
        const ACTION: &str = "making a bulk lane";
        let connection = *self.connection.now();
        for (model, lane) in self.bulk_lanes_of(route) {
            let Ok(mut lane) = lane.try_lock() else { continue };
            if lane.made_over == Some(connection) {
                continue;
            }
            let stream = self.names.work_stream(model, Lane::Bulk.level(0));
            if self.out_of_reach.is_due(&stream, Instant::now()) {
                lane.refused = None;
                let options = options(self.settings.lock().clone().unwrap_or_default());
                match limited(LONGEST, self.make(Needed::Queue(model, &options))).await {
                    Ok(()) => {
                        taken(self.client.publish(self.names.bulk_made(model), Bytes::new())).await?;
                        lane.made_over = Some(connection);
                    }
                    // The lane may be there even though the brokers cannot say so.
                    Err(BusError::Unreachable(reason)) => tracing::debug!(%model, reason, "a bulk lane was not made"),
                    Err(BusError::Refused { reason, .. } | BusError::OverLimit { reason }) => {
                        lane.refused = Some(reason)
                    }
                    Err(error) => return Err(error),
                }
            }
            if let Some(reason) = &lane.refused {
                return Err(BusError::Refused { action: ACTION, reason: reason.clone() });
            }
        }
        Ok(())
    }

    /// The models whose bulk lanes a route's steps lead to, and what this gateway knows about the lanes.
    fn bulk_lanes_of<'a>(&self, route: &'a Route) -> impl Iterator<Item = (&'a ModelKey, Arc<Mutex<BulkLane>>)> {
        let steps = route.remaining().iter().filter(|step| Lane::of_level(step.level) == Lane::Bulk);
        steps.map(|step| (&step.model, self.bulk_lanes.lock().entry(step.model.clone()).or_default().clone()))
    }

    /// Forgets which bulk lanes were made, because the settings have changed.
    pub(super) fn forget_bulk_lanes(&self) {
        self.bulk_lanes.lock().clear();
    }
}

// === impl BulkConsumer ===

impl BulkConsumer {
    pub async fn open(nats: &Nats, model: &ModelKey) -> Result<BulkConsumer, BusError> {
        let made = nats.subscribe(nats.names.bulk_made(model)).await?;
        let lane = NatsConsumer::open(nats, model, &options(QueueOptions::default())).await?;
        let connection = nats.connection.follow();
        Ok(BulkConsumer { lane, made, connection, look_at: None })
    }
}

#[async_trait]
impl Consumer for BulkConsumer {
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
            // Gateways also announce a lane that was there.
            while let Some(Some(_)) = self.made.next().now_or_never() {}
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
