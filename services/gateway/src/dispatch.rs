//! Requests in flight: each is published, held until it is answered, published again when the broker was away, and ended
//! by its deadline. A caller that goes away cancels its request everywhere.

mod cancel;
mod join;
mod order;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use trireme_bus::{
    Answer, Arrival, Bus, BusError, Connection, Inbox, PendingReplies, QUEUE_FULL, QueueStatus, Queued, Reply,
    WorkMessage, queue_pause,
};
use trireme_inference::{InferError, ModelKey, UnixMicros};
use trireme_runtime::TaskSet;
use trireme_telemetry::trace_id;

use self::cancel::Canceller;
use self::join::{Fork, Parts, Pieces, join};
use self::order::Order;
pub use self::order::Place;
use crate::rows;

/// Pause before a message is offered again to a bus that did not confirm it.
const UNREACHABLE_PAUSE: Duration = Duration::from_secs(1);

/// How often a request is sent again because its reply was lost on the way while the bus was there.
const LOST_AGAIN: u32 = 3;

/// Sends requests into the pipeline. Clones are the same.
#[derive(Clone)]
pub struct Dispatcher {
    bus: Arc<dyn Bus>,
    inbox: Arc<Inbox>,
    tasks: TaskSet,
    canceller: Canceller,
    /// Most requests in flight; one more is refused.
    max_in_flight: usize,
    /// Numbers this gateway's requests; with the gateway's name that makes them unique.
    next: Arc<AtomicU64>,
    /// Of requests whose models keep it.
    order: Order,
}

/// A request in flight. Dropped before its last reply it is cancelled everywhere.
pub enum Exchange {
    /// As one message.
    Whole(Box<Flight>),
    /// As several, whose answers are joined, or in its turn: one reply, `None` once it was given.
    Single(Option<BoxFuture<'static, Result<Reply, InferError>>>),
}

/// A message in flight.
pub struct Flight {
    bus: Arc<dyn Bus>,
    canceller: Canceller,
    message: WorkMessage,
    replies: PendingReplies,
    connection: watch::Receiver<Connection>,
    publishing: Publishing,
    /// Where its queue has it.
    queued: Option<Queued>,
    /// How often it was sent again, and how often of those because a reply was lost.
    again: u32,
    lost: u32,
    /// How often its queue was not there, and how often full.
    queueless: u32,
    refusals: u32,
    /// Told when another message of its request was answered. With it a full queue is waited for, because work of the
    /// request is under way.
    siblings: Option<Arc<Notify>>,
    /// More replies may follow.
    open: bool,
}

/// Whether the request's queue has it.
#[derive(Clone, Copy)]
enum Publishing {
    /// It has to be published.
    Due,
    /// It has to be published again, then.
    DueAt(Instant),
    /// The queue has had it.
    Done,
}

/// A request without a reply: nothing that happens while its exchange is as it should be.
pub fn no_answer() -> InferError {
    InferError::internal("request ended without an answer")
}

/// This gateway itself has failed a request.
fn log_failure(message: &WorkMessage, error: &InferError) {
    let trace_id = trace_id(message.traceparent.as_deref());
    let (request_id, id, model) = (&message.request_id, &message.client_id, message.route.model());
    tracing::warn!(request_id, trace_id, id, %model, %error, "request failed");
}

// === impl Dispatcher ===

impl Dispatcher {
    /// Opens the inbox of `gateway`, whose name no other gateway has.
    pub async fn open(
        bus: Arc<dyn Bus>,
        gateway: &str,
        max_in_flight: usize,
        tasks: &TaskSet,
    ) -> Result<Dispatcher, BusError> {
        let inbox = bus.open_inbox(gateway).await?;
        let (next, order) = (Arc::new(AtomicU64::new(1)), Order::default());
        let canceller = Canceller::new(bus.clone(), tasks.clone());
        Ok(Dispatcher { bus, inbox, tasks: tasks.clone(), canceller, max_in_flight, next, order })
    }

    /// An id for a new request that no other request of any gateway has.
    pub fn request_id(&self) -> String {
        format!("{}-{}", self.inbox.gateway(), self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The name of this gateway: where replies go.
    pub fn gateway(&self) -> &str {
        self.inbox.gateway()
    }

    /// Requests that wait for their answers, or have them and wait for their turn.
    pub fn in_flight(&self) -> usize {
        self.inbox.waiting() + self.order.held()
    }

    /// How full the queue of a model version is, all of its levels together.
    pub async fn queue_status(&self, model: &ModelKey, levels: &[u32], policy: bool) -> Result<QueueStatus, BusError> {
        self.bus.queue_status(model, levels, policy).await
    }

    /// The bytes of tensors that one message carries without a detour.
    pub fn message_bytes(&self) -> usize {
        self.bus.message_bytes()
    }

    /// Takes a request into the pipeline. Nothing is sent before its replies are asked for.
    pub fn start(&self, message: WorkMessage) -> Result<Exchange, InferError> {
        self.admit(&message)?;
        Ok(self.exchange(message, None))
    }

    /// Takes a request into the pipeline as several requests, one for each part of its rows.
    pub fn start_parts(&self, message: WorkMessage, parts: rows::Parts) -> Result<Exchange, InferError> {
        self.admit(&message)?;
        Ok(self.joined(Parts::new(message, parts), None))
    }

    /// Refuses a request when too many are in flight. One that was admitted is not refused half way, as several messages.
    fn admit(&self, message: &WorkMessage) -> Result<(), InferError> {
        if self.in_flight() < self.max_in_flight {
            return Ok(());
        }
        let error = InferError::unavailable(QUEUE_FULL);
        log_failure(message, &error);
        Err(error)
    }

    /// An admitted request, or a message of one: in branches when its route forks. An answer in parts keeps to one message,
    /// in whose order the parts come. `siblings` are told of by [`Flight`].
    fn exchange(&self, message: WorkMessage, siblings: Option<Arc<Notify>>) -> Exchange {
        let branches = match message.answer {
            Answer::Whole => message.route.branches(&message.tensors),
            Answer::InParts | Answer::Part(_) => None,
        };
        match branches {
            Some(branches) => self.joined(Fork::new(message, branches), siblings),
            None => Exchange::Whole(Box::new(self.flight(message, siblings))),
        }
    }

    fn joined(&self, pieces: impl Pieces, siblings: Option<Arc<Notify>>) -> Exchange {
        Exchange::Single(Some(Box::pin(join(self.clone(), pieces, siblings))))
    }

    /// The place of a request among those of its model, whose answers shall leave in this order.
    pub fn enter(&self, message: &WorkMessage) -> Place {
        self.order.enter(message.route.model(), &message.request_id, message.deadline)
    }

    /// An exchange of one reply that comes in its turn. It goes on by itself: others wait for it, whether or not
    /// anybody asks for its reply, as the reader of a stream may not for long.
    pub fn in_turn(&self, mut exchange: Exchange, place: Place) -> Exchange {
        let (mut sender, receiver) = oneshot::channel();
        self.tasks.spawn("answer in order", async move {
            let reply = async {
                let reply = exchange.next().await.unwrap_or_else(|| Err(no_answer()))?;
                drop(exchange);
                if reply.outcome.is_ok() {
                    place.turn().await?;
                }
                Ok(reply)
            };
            let reply = tokio::select! {
                reply = reply => reply,
                () = sender.closed() => return,
            };
            let _ = sender.send(reply);
        });
        Exchange::Single(Some(Box::pin(async move { receiver.await.unwrap_or_else(|_| Err(no_answer())) })))
    }

    fn flight(&self, message: WorkMessage, siblings: Option<Arc<Notify>>) -> Flight {
        Flight {
            bus: self.bus.clone(),
            canceller: self.canceller.clone(),
            replies: self.inbox.expect(&message),
            connection: self.bus.connection(),
            publishing: Publishing::Due,
            queued: None,
            again: 0,
            lost: 0,
            queueless: 0,
            refusals: 0,
            siblings,
            open: true,
            message,
        }
    }
}

// === impl Exchange ===

impl Exchange {
    /// The next reply, or why there is none, until the request's deadline at most. After the last one, `None`.
    pub async fn next(&mut self) -> Option<Result<Reply, InferError>> {
        match self {
            Exchange::Whole(flight) => flight.next().await,
            Exchange::Single(single) => {
                let reply = single.as_mut()?.await;
                *single = None;
                Some(reply)
            }
        }
    }
}

// === impl Flight ===

impl Flight {
    /// The next reply, or why there is none, until the request's deadline at most. After the last one, `None`.
    pub async fn next(&mut self) -> Option<Result<Reply, InferError>> {
        if !self.open {
            return None;
        }
        let remaining = self.message.deadline.remaining(UnixMicros::now()).unwrap_or_default();
        let reply = match tokio::time::timeout(remaining, self.reply()).await {
            Ok(reply) => reply,
            Err(_) => return self.end(Err(InferError::unavailable("Request timeout expired")), true),
        };
        match reply {
            Ok(reply) if !reply.last => Some(Ok(reply)),
            // One part failed; others may still be being made.
            Ok(reply) => {
                let goes_on = reply.outcome.is_err() && self.message.answer == Answer::InParts;
                self.end(Ok(reply), goes_on)
            }
            Err(error) => self.end(Err(error), false),
        }
    }

    fn end(&mut self, reply: Result<Reply, InferError>, cancel: bool) -> Option<Result<Reply, InferError>> {
        self.open = false;
        if let Err(error) = &reply {
            log_failure(&self.message, error);
        }
        // What was sent again may still wait in a queue a second time.
        if cancel || self.again > 0 {
            self.cancel();
        }
        Some(reply)
    }

    /// Publishes the request, and again after each time the bus was lost, or a reply: with the bus a reply may have been lost,
    /// too. That may make work twice; the first of equal replies wins.
    async fn reply(&mut self) -> Result<Reply, InferError> {
        loop {
            match self.publishing {
                Publishing::Due => {
                    self.connection.borrow_and_update();
                    let published = tokio::select! {
                        published = self.bus.publish(&self.message) => published,
                        // The queue had it, only the confirmation is missing.
                        reply = self.replies.next() => return Ok(reply),
                    };
                    self.publishing = self.published(published)?;
                }
                Publishing::DueAt(_) | Publishing::Done => {}
            }
            tokio::select! {
                arrival = self.replies.arrival() => match arrival {
                    Arrival::Reply(reply) => return Ok(reply),
                    // Of another name, it was sent again already.
                    Arrival::Lost(id) if id == self.message.request_id && self.lost < LOST_AGAIN => {
                        self.lost += 1;
                        self.send_again("a reply was lost");
                    }
                    Arrival::Lost(_) => {}
                },
                () = came_back(&mut self.connection) => self.send_again("message bus is back"),
                () = due(self.publishing, self.siblings.as_deref()) => self.publishing = Publishing::Due,
            }
        }
    }

    fn send_again(&mut self, why: &str) {
        tracing::info!(
            request_id = self.message.request_id,
            trace_id = trace_id(self.message.traceparent.as_deref()),
            "{why}; publishing the request again"
        );
        self.again += 1;
        self.message.request_id = self.message.id_when_sent_again(self.again);
        self.publishing = Publishing::Due;
    }

    fn published(&mut self, published: Result<Queued, BusError>) -> Result<Publishing, InferError> {
        let request_id = &self.message.request_id;
        let trace_id = trace_id(self.message.traceparent.as_deref());
        match published {
            Ok(queued) => {
                self.queued = Some(queued);
                Ok(Publishing::Done)
            }
            // The registry says that the model is served: the broker has restarted, and the queue is on its way back.
            Err(BusError::NoQueue { model }) => {
                tracing::debug!(request_id, trace_id, %model, "request waits for its queue");
                self.queueless += 1;
                Ok(Publishing::DueAt(Instant::now() + queue_pause(self.queueless - 1)))
            }
            // Not refused, just not reachable: the request waits here.
            Err(BusError::Unreachable(reason)) => {
                tracing::warn!(request_id, trace_id, reason, "request waits for the message bus");
                Ok(Publishing::DueAt(Instant::now() + UNREACHABLE_PAUSE))
            }
            // It was accepted before, or a part of its request was: that is no time to refuse it.
            Err(error @ (BusError::Full { .. } | BusError::ClaimsFull { .. }))
                if self.again > 0 || self.siblings.is_some() =>
            {
                tracing::debug!(request_id, trace_id, %error, "request waits for room");
                self.refusals += 1;
                Ok(Publishing::DueAt(Instant::now() + queue_pause(self.refusals - 1)))
            }
            Err(error) => Err(InferError::new(error.code(), error.to_string())),
        }
    }

    fn cancel(&self) {
        self.canceller.cancel(&self.message, self.again, self.queued.clone());
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.open {
            self.cancel();
        }
    }
}

/// Waits until publishing is due again, by the clock or because a sibling has left its queue; when it is not, for ever.
async fn due(publishing: Publishing, siblings: Option<&Notify>) {
    match (publishing, siblings) {
        (Publishing::DueAt(time), None) => tokio::time::sleep_until(time).await,
        (Publishing::DueAt(time), Some(siblings)) => {
            let _ = tokio::time::timeout_at(time, siblings.notified()).await;
        }
        (Publishing::Due | Publishing::Done, _) => std::future::pending().await,
    }
}

/// Waits until the bus was lost and is back.
async fn came_back(connection: &mut watch::Receiver<Connection>) {
    loop {
        if connection.changed().await.is_err() {
            return std::future::pending().await;
        }
        if matches!(*connection.borrow_and_update(), Connection::Up(_)) {
            return;
        }
    }
}
