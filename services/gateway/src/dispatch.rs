//! Requests in flight. The dispatcher publishes a request, holds it until it is answered, publishes it again when the
//! broker has lost it, and ends it at its deadline. When the caller goes away, its request is cancelled everywhere.

mod backlog;
mod cancel;
mod exchange;
mod flight;
mod join;
mod order;
mod reconcile;
mod sequence;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use trireme_bus::{Bus, BusError, QueueStatus, Reply, WorkMessage};
use trireme_inference::{Cause, InferError, Lane, ModelKey, QUEUE_FULL};
use trireme_runtime::TaskSet;

pub use self::exchange::{Exchange, no_answer};
pub use self::flight::EXPIRED;
pub use self::flight::RouteContents;
use self::flight::{Outbox, log_failure};
use self::join::{exchange, split};
pub use self::order::LinePlace;
use self::order::RequestOrder;
pub use self::sequence::{SequenceStep, StateTensor, Turn};
use crate::rows;

/// Sends requests into the pipeline. Clones are the same.
#[derive(Clone)]
pub struct Dispatcher {
    outbox: Outbox,
    tasks: TaskSet,
    /// Most requests in flight; one more is refused.
    max_in_flight: usize,
    /// The number of this gateway's next request; together with the gateway's name it is unique.
    next: Arc<AtomicU64>,
    /// The order of answers, for models with `preserve_ordering`.
    order: RequestOrder,
}

// === impl Dispatcher ===

impl Dispatcher {
    /// Opens the inbox of `gateway`; the name must be unique among gateways. A request that was admitted for another content than its
    /// worker's is admitted anew for the `contents` that are served then.
    pub async fn open(
        bus: Arc<dyn Bus>,
        gateway: &str,
        max_in_flight: usize,
        contents: RouteContents,
        tasks: &TaskSet,
    ) -> Result<Dispatcher, BusError> {
        let outbox = Outbox::open(bus, gateway, contents, tasks).await?;
        let (next, order) = (Arc::new(AtomicU64::new(1)), RequestOrder::default());
        Ok(Dispatcher { outbox, tasks: tasks.clone(), max_in_flight, next, order })
    }

    /// An id for a new request, unique among all gateways.
    pub fn request_id(&self) -> String {
        format!("{}-{}", self.outbox.inbox.gateway(), self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The name of this gateway, to which replies are sent.
    pub fn gateway(&self) -> &str {
        self.outbox.inbox.gateway()
    }

    /// Number of requests that wait for their answers, or whose answers wait for their turn.
    pub fn in_flight(&self) -> usize {
        self.outbox.inbox.waiting() + self.order.held()
    }

    /// The number of messages in a model version's queue, over all of its levels.
    pub async fn queue_status(&self, model: &ModelKey, levels: &[u32]) -> Result<QueueStatus, BusError> {
        self.outbox.bus.queue_status(model, levels).await
    }

    /// The queues that have a bulk lane.
    pub async fn bulk_queues(&self) -> Result<HashSet<ModelKey>, BusError> {
        self.outbox.bus.bulk_queues().await
    }

    /// The number of bytes of tensors that fit into one message without a claim.
    pub fn message_bytes(&self) -> usize {
        self.outbox.bus.message_bytes()
    }

    /// Takes a request into the pipeline. It is published when its first reply is asked for. If its queue is full, it waits for
    /// room as long as its `patience` lasts.
    pub fn start(&self, message: WorkMessage, patience: Duration) -> Result<Exchange, InferError> {
        self.admit(&message)?;
        let mut exchange = exchange(&self.outbox, message);
        if let Exchange::Whole(flight) = &mut exchange {
            flight.wait_for_room(patience);
        }
        Ok(exchange)
    }

    /// Takes a request into the pipeline as several requests, one for each part of its rows.
    pub fn start_split(&self, message: WorkMessage, parts: rows::SplitRows) -> Result<Exchange, InferError> {
        self.admit(&message)?;
        Ok(split(&self.outbox, message, parts))
    }

    /// Takes a request of a sequence into the pipeline, behind those of its sequence that are there. It runs in a task, because
    /// others wait for it.
    pub fn start_in_sequence(&self, message: WorkMessage, turn: Turn) -> Result<Exchange, InferError> {
        self.admit(&message)?;
        let place = self.order.enter(turn.line(), &message.request_id, message.deadline);
        Ok(self.in_task("sequence", sequence::run(self.outbox.clone(), turn, message, place)))
    }

    /// Refuses a request when too many are in flight. Bulk requests leave half of the places to live ones. Messages of an
    /// admitted request are not checked again.
    fn admit(&self, message: &WorkMessage) -> Result<(), InferError> {
        let most = match message.lane() {
            Lane::Live => self.max_in_flight,
            Lane::Bulk => self.max_in_flight.div_ceil(2),
        };
        if self.in_flight() < most {
            return Ok(());
        }
        let retry_after = Some(self.outbox.backlogs.retry_after(message));
        let error = InferError { retry_after, ..InferError::unavailable(QUEUE_FULL).because(Cause::QueueFull) };
        log_failure(message, &error);
        Err(error)
    }

    /// Takes a place for a request among those of its model, whose answers leave in this order.
    pub fn enter(&self, message: &WorkMessage) -> LinePlace {
        self.order.enter(message.route.model().to_string(), &message.request_id, message.deadline)
    }

    /// An exchange of one reply that comes in its turn. It runs in a task, because other requests wait for it: a
    /// client, for example the reader of a stream, may not ask for its reply for a long time.
    pub fn in_turn(&self, mut exchange: Exchange, place: LinePlace) -> Exchange {
        self.in_task("answer in order", async move {
            let reply = exchange.next().await.unwrap_or_else(|| Err(no_answer()))?;
            drop(exchange);
            if reply.outcome.is_ok() {
                place.turn().await?;
            }
            Ok(reply)
        })
    }

    /// An exchange of the one reply that `reply` gives, which runs in a task. Dropping the exchange ends the task.
    fn in_task(
        &self,
        name: &'static str,
        reply: impl Future<Output = Result<Reply, InferError>> + Send + 'static,
    ) -> Exchange {
        let (mut sender, receiver) = oneshot::channel();
        self.tasks.spawn(name, async move {
            let reply = tokio::select! {
                reply = reply => reply,
                () = sender.closed() => return,
            };
            let _ = sender.send(reply);
        });
        Exchange::Single(Some(Box::pin(async move { receiver.await.unwrap_or_else(|_| Err(no_answer())) })))
    }
}

#[cfg(test)]
mod tests;
