//! Requests in flight: each is published, held until it is answered, published again when the broker was away, and ended
//! by its deadline. A caller that goes away cancels its request everywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use trireme_bus::{Bus, BusError, Connection, Inbox, Reply, WorkMessage};
use trireme_inference::{InferError, UnixMicros};
use trireme_runtime::TaskSet;

/// Pause before a message is offered again to a queue that its workers have to make anew.
const QUEUE_PAUSE: Duration = Duration::from_millis(50);

/// Pause before a message is offered again to a bus that did not confirm it.
const UNREACHABLE_PAUSE: Duration = Duration::from_secs(1);

/// Sends requests into the pipeline and waits for their answers.
pub struct Dispatcher {
    bus: Arc<dyn Bus>,
    inbox: Arc<Inbox>,
    tasks: TaskSet,
    /// Most requests in flight; one more is refused.
    max_in_flight: usize,
    /// Numbers this gateway's requests; with the gateway's name that makes them unique.
    next: AtomicU64,
}

/// Cancels the request everywhere when it is dropped before the answer came.
struct CancelOnDrop<'a> {
    dispatcher: &'a Dispatcher,
    request_id: &'a str,
    armed: bool,
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
        Ok(Dispatcher { bus, inbox, tasks: tasks.clone(), max_in_flight, next: AtomicU64::new(1) })
    }

    /// An id for a new request that no other request of any gateway has.
    pub fn request_id(&self) -> String {
        format!("{}-{}", self.inbox.gateway(), self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The name of this gateway: where replies go.
    pub fn gateway(&self) -> &str {
        self.inbox.gateway()
    }

    /// Requests that wait for their answers.
    pub fn in_flight(&self) -> usize {
        self.inbox.waiting()
    }

    /// Sends a request and waits for its answer, until its deadline at most.
    pub async fn send(&self, message: WorkMessage) -> Result<Reply, InferError> {
        if self.in_flight() >= self.max_in_flight {
            return Err(InferError::unavailable("Exceeds maximum queue size"));
        }
        let mut cancel = CancelOnDrop { dispatcher: self, request_id: &message.request_id, armed: true };
        let remaining = message.deadline.remaining(UnixMicros::now()).unwrap_or_default();
        let answered = tokio::time::timeout(remaining, self.until_answered(&message)).await;
        match answered {
            Ok(answer) => {
                cancel.armed = false;
                answer
            }
            Err(_) => Err(InferError::unavailable("Request timeout expired")),
        }
    }

    /// Publishes the request, and again after each time the bus was lost: an answer may have been lost with it. A message
    /// of the same name is not worked on twice at a time, and the first answer wins.
    async fn until_answered(&self, message: &WorkMessage) -> Result<Reply, InferError> {
        let mut replies = self.inbox.expect(&message.request_id);
        let mut connection = self.bus.connection();
        loop {
            connection.borrow_and_update();
            let published = tokio::select! {
                published = self.bus.publish(message) => published,
                // The queue had it, only the confirmation is missing.
                reply = replies.next() => return Ok(reply),
            };
            let again = match published {
                Ok(()) => None,
                // The registry says that the model is served: the broker has restarted, and the queue is on its way back.
                Err(BusError::NoQueue { model }) => {
                    tracing::debug!(request_id = message.request_id, %model, "request waits for its queue");
                    Some(QUEUE_PAUSE)
                }
                // Not refused, just not reachable: the request waits here.
                Err(BusError::Unreachable(reason)) => {
                    tracing::warn!(request_id = message.request_id, reason, "request waits for the message bus");
                    Some(UNREACHABLE_PAUSE)
                }
                Err(error) => return Err(InferError::new(error.code(), error.to_string())),
            };
            tokio::select! {
                reply = replies.next() => return Ok(reply),
                () = came_back(&mut connection) => {
                    tracing::info!(request_id = message.request_id, "message bus is back; publishing the request again");
                }
                () = pause(again) => {}
            }
        }
    }
}

/// Waits for `duration`; without one, for ever.
async fn pause(duration: Option<Duration>) {
    match duration {
        Some(duration) => tokio::time::sleep(duration).await,
        None => std::future::pending().await,
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

// === impl CancelOnDrop ===

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if self.armed {
            let (bus, request_id) = (self.dispatcher.bus.clone(), self.request_id.to_owned());
            self.dispatcher.tasks.spawn("cancel", async move {
                if let Err(error) = bus.cancel(&request_id).await {
                    tracing::debug!(request_id, %error, "cancellation could not be sent");
                }
            });
        }
    }
}
