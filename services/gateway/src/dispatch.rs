//! Requests in flight. The dispatcher publishes a request, holds it until it is answered, publishes it again when the
//! broker has lost it, and ends it at its deadline. When the caller goes away, its request is cancelled everywhere.

mod cancel;
mod join;
mod order;
mod reconcile;
mod sequence;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use trireme_bus::{
    AnswerForm, Bus, BusError, Connection, Inbox, PendingReplies, QUEUE_FULL, QueueStatus, Queued, Reply, WorkMessage,
    queue_pause,
};
use trireme_inference::{InferError, ModelKey, UnixMicros};
use trireme_runtime::TaskSet;
use trireme_telemetry::trace_id;

use self::cancel::Canceller;
use self::join::{Fork, Pieces, SplitRequest, join};
pub use self::order::Place;
use self::order::RequestOrder;
use self::reconcile::{PATIENCE, PATIENCE_AFTER_LOSS, Reconciler, Search};
pub use self::sequence::{SequenceStep, StateTensor, Turn};
use crate::rows;

/// Average pause before a message is published again that the bus did not confirm. The pause varies, so that waiting
/// requests do not all hit a broker at the moment when it comes back.
const UNREACHABLE_PAUSE: Duration = Duration::from_secs(1);

/// Sends requests into the pipeline. Clones are the same.
#[derive(Clone)]
pub struct Dispatcher {
    bus: Arc<dyn Bus>,
    inbox: Arc<Inbox>,
    tasks: TaskSet,
    canceller: Canceller,
    reconciler: Reconciler,
    /// Most requests in flight; one more is refused.
    max_in_flight: usize,
    /// The number of this gateway's next request; together with the gateway's name it is unique.
    next: Arc<AtomicU64>,
    /// The order of answers, for models with `preserve_ordering`.
    order: RequestOrder,
}

/// A request in flight. If it is dropped before its last reply, it is cancelled everywhere.
pub enum Exchange {
    /// Sent as one message.
    Whole(Box<Flight>),
    /// Sent as several messages whose answers are joined, or answered in order: one reply, `None` after it was
    /// returned.
    Single(Option<BoxFuture<'static, Result<Reply, InferError>>>),
}

/// A message in flight.
pub struct Flight {
    bus: Arc<dyn Bus>,
    canceller: Canceller,
    reconciler: Reconciler,
    message: WorkMessage,
    replies: PendingReplies,
    connection: watch::Receiver<Connection>,
    publishing: Publishing,
    /// The message's place in its queue.
    queued: Option<Queued>,
    /// How often it was sent again.
    again: u32,
    /// When the search for it in its queues begins, and the search.
    seek_at: Instant,
    search: Option<Search>,
    /// How often its queue did not exist, and how often it was full.
    queueless: u32,
    refusals: u32,
    /// Notified when another message of the same request was answered. With siblings, a full queue is waited for,
    /// because the request is already being worked on.
    siblings: Option<Arc<Notify>>,
    /// Whether more replies may follow.
    open: bool,
}

/// Whether the request is in its queue.
#[derive(Clone, Copy)]
enum Publishing {
    /// It has to be published.
    Due,
    /// It has to be published again at this time.
    DueAt(Instant),
    /// Its queue has confirmed it.
    Done,
}

/// The error of a request that ended without a reply. This does not happen unless there is a bug.
pub fn no_answer() -> InferError {
    InferError::internal("request ended without an answer")
}

/// Logs a request that this gateway itself has failed.
fn log_failure(message: &WorkMessage, error: &InferError) {
    let trace_id = trace_id(message.traceparent.as_deref());
    let (request_id, id, model) = (&message.request_id, &message.client_id, message.route.model());
    tracing::warn!(request_id, trace_id, id, %model, %error, "request failed");
}

// === impl Dispatcher ===

impl Dispatcher {
    /// Opens the inbox of `gateway`; the name must be unique among gateways.
    pub async fn open(
        bus: Arc<dyn Bus>,
        gateway: &str,
        max_in_flight: usize,
        tasks: &TaskSet,
    ) -> Result<Dispatcher, BusError> {
        let inbox = bus.open_inbox(gateway).await?;
        let (next, order) = (Arc::new(AtomicU64::new(1)), RequestOrder::default());
        let canceller = Canceller::new(bus.clone(), tasks.clone());
        let reconciler = Reconciler::start(bus.clone(), gateway, tasks);
        Ok(Dispatcher { bus, inbox, tasks: tasks.clone(), canceller, reconciler, max_in_flight, next, order })
    }

    /// An id for a new request, unique among all gateways.
    pub fn request_id(&self) -> String {
        format!("{}-{}", self.inbox.gateway(), self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The name of this gateway, to which replies are sent.
    pub fn gateway(&self) -> &str {
        self.inbox.gateway()
    }

    /// Number of requests that wait for their answers, or whose answers wait for their turn.
    pub fn in_flight(&self) -> usize {
        self.inbox.waiting() + self.order.held()
    }

    /// The number of messages in a model version's queue, over all of its levels.
    pub async fn queue_status(&self, model: &ModelKey, levels: &[u32]) -> Result<QueueStatus, BusError> {
        self.bus.queue_status(model, levels).await
    }

    /// The number of bytes of tensors that fit into one message without a claim.
    pub fn message_bytes(&self) -> usize {
        self.bus.message_bytes()
    }

    /// Takes a request into the pipeline. It is published when its first reply is asked for.
    pub fn start(&self, message: WorkMessage) -> Result<Exchange, InferError> {
        self.admit(&message)?;
        Ok(self.exchange(message, None))
    }

    /// Takes a request into the pipeline as several requests, one for each part of its rows.
    pub fn start_split(&self, message: WorkMessage, parts: rows::SplitRows) -> Result<Exchange, InferError> {
        self.admit(&message)?;
        Ok(self.joined(SplitRequest::new(message, parts), None))
    }

    /// Takes a request of a sequence into the pipeline, behind those of its sequence that are there. It runs in a task, because
    /// others wait for it.
    pub fn start_in_sequence(&self, message: WorkMessage, turn: Turn) -> Result<Exchange, InferError> {
        self.admit(&message)?;
        let place = self.order.enter(turn.line(), &message.request_id, message.deadline);
        Ok(self.in_task("sequence", sequence::run(self.clone(), turn, message, place)))
    }

    /// Refuses a request when too many are in flight. Messages of an admitted request are not checked again.
    fn admit(&self, message: &WorkMessage) -> Result<(), InferError> {
        if self.in_flight() < self.max_in_flight {
            return Ok(());
        }
        let error = InferError::unavailable(QUEUE_FULL);
        log_failure(message, &error);
        Err(error)
    }

    /// The exchange of an admitted request, or of a message of one. If the route forks, it is sent in branches, except
    /// for an answer in parts: that stays one message, so that its parts keep their order. See [`Flight`] for
    /// `siblings`.
    fn exchange(&self, message: WorkMessage, siblings: Option<Arc<Notify>>) -> Exchange {
        let branches = match message.answer {
            AnswerForm::Whole => message.route.branches(&message.tensors),
            AnswerForm::InParts | AnswerForm::Part(_) => None,
        };
        match branches {
            Some(branches) => self.joined(Fork::new(message, branches), siblings),
            None => Exchange::Whole(Box::new(self.flight(message, siblings))),
        }
    }

    fn joined(&self, pieces: impl Pieces, siblings: Option<Arc<Notify>>) -> Exchange {
        Exchange::Single(Some(Box::pin(join(self.clone(), pieces, siblings))))
    }

    /// Takes a place for a request among those of its model, whose answers leave in this order.
    pub fn enter(&self, message: &WorkMessage) -> Place {
        self.order.enter(message.route.model().to_string(), &message.request_id, message.deadline)
    }

    /// An exchange of one reply that comes in its turn. It runs in a task, because other requests wait for it: a
    /// client, for example the reader of a stream, may not ask for its reply for a long time.
    pub fn in_turn(&self, mut exchange: Exchange, place: Place) -> Exchange {
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

    fn flight(&self, message: WorkMessage, siblings: Option<Arc<Notify>>) -> Flight {
        Flight {
            bus: self.bus.clone(),
            canceller: self.canceller.clone(),
            reconciler: self.reconciler.clone(),
            replies: self.inbox.expect(&message),
            connection: self.bus.connection(),
            publishing: Publishing::Due,
            queued: None,
            again: 0,
            seek_at: Instant::now() + PATIENCE,
            search: None,
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
    /// The next reply, or the error that ended the request, at its deadline at the latest. After the last reply,
    /// `None`.
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
    /// The next reply, or the error that ended the request, at its deadline at the latest. After the last reply,
    /// `None`.
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
            // One part has failed; a worker may still be making others.
            Ok(reply) => {
                let goes_on = reply.outcome.is_err() && self.message.answer == AnswerForm::InParts;
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
        // A message that was sent again may be in a queue twice.
        if cancel || self.again > 0 {
            self.cancel();
        }
        Some(reply)
    }

    /// Publishes the request, and publishes it again when it is lost. Then it may be executed twice; the first of equal
    /// replies wins.
    async fn reply(&mut self) -> Result<Reply, InferError> {
        loop {
            match self.publishing {
                Publishing::Due => {
                    self.search = None;
                    let published = tokio::select! {
                        published = self.bus.publish(&self.message) => published,
                        // The queue has it, only the confirmation is missing.
                        reply = self.replies.next() => return Ok(reply),
                    };
                    self.publishing = self.published(published)?;
                    self.seek_at = Instant::now() + PATIENCE;
                }
                Publishing::DueAt(_) | Publishing::Done => {}
            }
            let is_published = matches!(self.publishing, Publishing::Done);
            tokio::select! {
                reply = self.replies.next() => return Ok(reply),
                () = came_back(&mut self.connection) => {
                    self.seek_at = self.seek_at.min(Instant::now() + PATIENCE_AFTER_LOSS);
                }
                () = tokio::time::sleep_until(self.seek_at), if is_published && self.search.is_none() => {
                    self.search = Some(self.reconciler.seek(&self.message.request_id, &self.message.route));
                }
                () = lost(self.search.as_ref()), if self.search.is_some() => {
                    self.send_again("the message bus has lost the request");
                }
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
            // The registry has a worker for the model: the broker has restarted, and the queue will be created again.
            Err(BusError::NoQueue { model }) => {
                tracing::debug!(request_id, trace_id, %model, "request waits for its queue");
                self.queueless += 1;
                Ok(Publishing::DueAt(Instant::now() + queue_pause(self.queueless - 1)))
            }
            // Not refused, but the bus cannot be reached: the request waits here.
            Err(BusError::Unreachable(reason)) => {
                tracing::warn!(request_id, trace_id, reason, "request waits for the message bus");
                Ok(Publishing::DueAt(Instant::now() + UNREACHABLE_PAUSE.mul_f64(0.5 + fastrand::f64())))
            }
            // The request was accepted before, or a part of it was, so it is not refused now.
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

/// Waits until publishing is due again, by the clock or because a sibling has left its queue. If it is not due, waits
/// for ever.
async fn due(publishing: Publishing, siblings: Option<&Notify>) {
    match (publishing, siblings) {
        (Publishing::DueAt(time), None) => tokio::time::sleep_until(time).await,
        (Publishing::DueAt(time), Some(siblings)) => {
            let _ = tokio::time::timeout_at(time, siblings.notified()).await;
        }
        (Publishing::Due | Publishing::Done, _) => std::future::pending().await,
    }
}

/// Waits until the search finds that the request is lost.
async fn lost(search: Option<&Search>) {
    match search {
        Some(search) => search.lost().await,
        None => std::future::pending().await,
    }
}

/// Waits until a lost connection is back.
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
