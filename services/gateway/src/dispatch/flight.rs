//! A message in flight: it is published, published again when the broker has lost it, and ended at its deadline.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use trireme_bus::{
    AnswerForm, Bus, BusError, BusFault, Connection, First, Inbox, MessagePosition, PendingReplies, Reply,
    WaitingRooms, WorkMessage, queue_pause, room_pause,
};
use trireme_inference::{Backoff, Cause, InferError, Route, UnixMicros};
use trireme_runtime::TaskSet;
use trireme_telemetry::trace_id;

use super::backlog::Backlogs;
use super::cancel::Canceller;
use super::reconcile::{PATIENCE, PATIENCE_AFTER_LOSS, Reconciler, Search};

/// Average pause before a message is published again that the bus did not confirm. The pause varies, so that waiting
/// requests do not all hit a broker at the moment when it comes back.
const UNREACHABLE_PAUSE: Duration = Duration::from_secs(1);

/// How long after the last sign of life of the bus a request still waits for it. It is longer than the restart of a broker, and
/// shorter than most clients wait, so that they learn the reason.
const OUTAGE_PATIENCE: Duration = Duration::from_secs(30);

/// The pauses before a request is published for the content that is served by then, where workers have declined it. Meanwhile the
/// registry learns of the change.
const ANEW: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

/// The error of a request that was not answered by its deadline.
pub const EXPIRED: &str = "Request timeout expired";

/// Makes a route one for the contents that are served now.
pub type RouteContents = Arc<dyn Fn(Route) -> Route + Send + Sync>;

/// Sends the messages of a gateway and expects their replies. Clones are the same.
#[derive(Clone)]
pub struct Outbox {
    pub bus: Arc<dyn Bus>,
    pub inbox: Arc<Inbox>,
    canceller: Canceller,
    reconciler: Reconciler,
    pub backlogs: Backlogs,
    waiting_rooms: Arc<WaitingRooms>,
    contents: RouteContents,
}

/// A message in flight.
pub struct Flight {
    bus: Arc<dyn Bus>,
    canceller: Canceller,
    reconciler: Reconciler,
    message: WorkMessage,
    replies: PendingReplies,
    connection: watch::Receiver<Connection>,
    fault: watch::Receiver<Option<BusFault>>,
    publishing: Publishing,
    /// The message's place in its queue.
    queued: Option<MessagePosition>,
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
    /// Until when a full queue is waited for.
    room_by: Instant,
    /// Where the message waits for room behind others, and its place when it is the first of them.
    waiting_rooms: Arc<WaitingRooms>,
    entered: Option<BoxFuture<'static, First>>,
    first: Option<First>,
    backlogs: Backlogs,
    contents: RouteContents,
    /// Whether the message is a request, and not a piece of one: all pieces of a request are for the same contents.
    whole: bool,
    /// How often workers of another content have declined it, and the last one's words.
    declined: (u32, Option<InferError>),
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

/// Logs a request that this gateway itself has failed.
pub fn log_failure(message: &WorkMessage, error: &InferError) {
    let trace_id = trace_id(message.traceparent.as_ref().map(|trace| trace.parent.as_str()));
    let (request_id, id, model) = (&message.request_id, &message.client_id, message.route.model());
    tracing::warn!(%request_id, trace_id, %id, %model, %error, "request failed");
}

// === impl Outbox ===

impl Outbox {
    /// Opens the inbox of `gateway`; the name must be unique among gateways.
    pub async fn open(
        bus: Arc<dyn Bus>,
        gateway: &str,
        contents: RouteContents,
        tasks: &TaskSet,
    ) -> Result<Outbox, BusError> {
        let inbox = bus.open_inbox(gateway).await?;
        let canceller = Canceller::new(bus.clone(), tasks.clone());
        let reconciler = Reconciler::start(bus.clone(), gateway, tasks);
        let (backlogs, waiting_rooms) = (Backlogs::default(), Arc::default());
        Ok(Outbox { bus, inbox, canceller, reconciler, backlogs, waiting_rooms, contents })
    }

    /// Admits a request anew, for the contents that are served now, after its workers have declined it this many times. `false` if its
    /// deadline has passed meanwhile.
    pub async fn admit_anew(&self, message: &mut WorkMessage, declined: u32) -> bool {
        tokio::time::sleep(ANEW.after(declined.saturating_add(1))).await;
        message.route = (self.contents)(message.route.clone());
        message.deadline.remaining(UnixMicros::now()).is_some()
    }

    /// A message that is published when its first reply is asked for. See [`Flight`] for `whole` and `siblings`.
    pub fn flight(&self, message: WorkMessage, whole: bool, siblings: Option<Arc<Notify>>) -> Flight {
        Flight {
            bus: self.bus.clone(),
            canceller: self.canceller.clone(),
            reconciler: self.reconciler.clone(),
            replies: self.inbox.expect(&message),
            connection: self.bus.connection(),
            fault: self.bus.fault(),
            publishing: Publishing::Due,
            queued: None,
            again: 0,
            seek_at: Instant::now() + PATIENCE,
            search: None,
            queueless: 0,
            refusals: 0,
            siblings,
            room_by: Instant::now(),
            waiting_rooms: self.waiting_rooms.clone(),
            entered: None,
            first: None,
            backlogs: self.backlogs.clone(),
            contents: self.contents.clone(),
            whole,
            declined: (0, None),
            open: true,
            message,
        }
    }
}

// === impl Flight ===

impl Flight {
    /// Waits this long for room in a full queue, from now on.
    pub fn wait_for_room(&mut self, patience: Duration) {
        self.room_by = Instant::now() + patience;
    }

    /// The next reply, or the error that ended the request, at its deadline at the latest. After the last reply,
    /// `None`.
    pub async fn next(&mut self) -> Option<Result<Reply, InferError>> {
        if !self.open {
            return None;
        }
        let remaining = self.message.deadline.remaining(UnixMicros::now()).unwrap_or_default();
        let reply = match tokio::time::timeout(remaining, self.reply()).await {
            Ok(reply) => reply,
            Err(_) => return self.end(Err(self.expired()), true),
        };
        match reply {
            // The inbox ends requests at their deadlines, too.
            Ok(reply)
                if reply.outcome.as_ref().is_err_and(|error| error.message == EXPIRED)
                    && (self.is_bus_away() || self.declined.1.is_some()) =>
            {
                self.end(Err(self.expired()), true)
            }
            Ok(reply) if !reply.last => Some(Ok(reply)),
            // One part has failed; a worker may still be making others.
            Ok(reply) => {
                let goes_on = reply.outcome.is_err() && self.message.answer == AnswerForm::InParts;
                self.end(Ok(reply), goes_on)
            }
            Err(error) => self.end(Err(error), false),
        }
    }

    fn is_bus_away(&self) -> bool {
        self.fault.borrow().as_ref().is_some_and(|fault| fault.stops_requests)
    }

    fn expired(&self) -> InferError {
        InferError::unavailable(match &*self.fault.borrow() {
            Some(fault) if fault.stops_requests => format!("{EXPIRED}: {fault}"),
            Some(_) | None => match &self.declined.1 {
                Some(error) => format!("{EXPIRED}: {}", error.message),
                None => EXPIRED.to_owned(),
            },
        })
    }

    fn end(&mut self, reply: Result<Reply, InferError>, cancel: bool) -> Option<Result<Reply, InferError>> {
        self.open = false;
        match &reply {
            Ok(reply) => self.backlogs.note(&self.message, reply),
            Err(error) => log_failure(&self.message, error),
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
                    if self.declined.0 > 0 {
                        self.message.route = (self.contents)(self.message.route.clone());
                    }
                    let published = match self.message.queue() {
                        Some(model) if self.is_behind_others() => Err(BusError::Full { model: model.clone() }),
                        _ => tokio::select! {
                            published = self.bus.publish(&self.message) => published,
                            // The queue has it, only the confirmation is missing.
                            reply = self.replies.next() => match self.unless_declined(reply) {
                                Some(reply) => return Ok(reply),
                                None => continue,
                            },
                            error = outage(&mut self.fault) => return Err(error),
                        },
                    };
                    self.publishing = self.published(published)?;
                    self.seek_at = Instant::now() + PATIENCE;
                }
                Publishing::DueAt(_) | Publishing::Done => {}
            }
            let is_published = matches!(self.publishing, Publishing::Done);
            tokio::select! {
                biased;
                reply = self.replies.next() => if let Some(reply) = self.unless_declined(reply) {
                    return Ok(reply);
                },
                error = outage(&mut self.fault) => return Err(error),
                () = came_back(&mut self.connection) => {
                    self.seek_at = self.seek_at.min(Instant::now() + PATIENCE_AFTER_LOSS);
                }
                () = tokio::time::sleep_until(self.seek_at), if is_published && self.search.is_none() => {
                    self.search = Some(self.reconciler.seek(&self.message.request_id, &self.message.route));
                }
                () = lost(self.search.as_ref()), if self.search.is_some() => if !self.replies.is_arriving() {
                    self.send_again("neither the request nor its answer is to be found");
                },
                first = entered(&mut self.entered) => {
                    (self.first, self.entered) = (Some(first), None);
                    self.publishing = Publishing::Due;
                }
                () = due(self.publishing, self.siblings.as_deref()) => self.publishing = Publishing::Due,
            }
        }
    }

    /// The reply, unless a worker of another content has declined the request: then that is admitted anew. Where a part of its answer was
    /// made, it cannot be: the parts would be of two contents.
    fn unless_declined(&mut self, reply: Reply) -> Option<Reply> {
        let is_untouched =
            self.message.answer == AnswerForm::Whole || (reply.sequence == 0 && reply.ledger.0.is_empty());
        if !self.whole || !is_untouched || !is_declined(&reply) {
            return Some(reply);
        }
        if reply.request_id != self.message.request_id {
            // An earlier copy, in whose place this one was published.
            self.replies.begin_anew();
            return None;
        }
        let times = self.declined.0;
        let request_id = &self.message.request_id;
        tracing::debug!(%request_id, "a worker of another content has declined the request; admitting it anew");
        self.declined = (times + 1, reply.outcome.err());
        self.replies.begin_anew();
        self.again += 1;
        self.message.request_id = self.message.id_when_sent_again(self.again);
        self.search = None;
        self.publishing = Publishing::DueAt(Instant::now() + ANEW.after(times.saturating_add(1)));
        None
    }

    fn send_again(&mut self, why: &str) {
        tracing::info!(
            request_id = %self.message.request_id,
            trace_id = trace_id(self.message.traceparent.as_ref().map(|trace| trace.parent.as_str())),
            "{why}; publishing the request again"
        );
        self.again += 1;
        self.message.request_id = self.message.id_when_sent_again(self.again);
        self.publishing = Publishing::Due;
    }

    fn published(&mut self, published: Result<MessagePosition, BusError>) -> Result<Publishing, InferError> {
        let request_id = &self.message.request_id;
        let trace_id = trace_id(self.message.traceparent.as_ref().map(|trace| trace.parent.as_str()));
        if !matches!(published, Err(BusError::Full { .. })) {
            (self.first, self.entered) = (None, None);
        }
        match published {
            Ok(queued) => {
                self.queued = Some(queued);
                Ok(Publishing::Done)
            }
            // The registry has a worker for the model: the broker has restarted, and the queue will be created again.
            Err(BusError::NoQueue { model }) => {
                tracing::debug!(%request_id, trace_id, %model, "request waits for its queue");
                self.queueless += 1;
                Ok(Publishing::DueAt(Instant::now() + queue_pause(self.queueless - 1)))
            }
            // Not refused, but the bus cannot be reached: the request waits here.
            Err(BusError::Unreachable(reason)) => {
                tracing::warn!(%request_id, trace_id, reason, "request waits for the message bus");
                Ok(Publishing::DueAt(Instant::now() + UNREACHABLE_PAUSE.mul_f64(0.5 + fastrand::f64())))
            }
            Err(error @ (BusError::Full { .. } | BusError::ClaimsFull { .. }))
                if self.was_accepted() || Instant::now() < self.room_by =>
            {
                tracing::debug!(%request_id, trace_id, %error, "request waits for room");
                let now = Instant::now();
                let due = match error {
                    _ if self.was_accepted() => return Ok(Publishing::DueAt(now + self.next_pause(queue_pause))),
                    BusError::Full { .. } if self.first.is_some() => now + self.next_pause(room_pause),
                    BusError::Full { .. } => {
                        self.entered.get_or_insert_with(|| self.waiting_rooms.enter(&self.message).boxed());
                        self.room_by
                    }
                    _ => now + self.next_pause(queue_pause),
                };
                Ok(Publishing::DueAt(due.min(self.room_by)))
            }
            Err(error) => {
                let error = InferError::from(&error);
                let is_full = error.cause == Some(Cause::QueueFull);
                let retry_after = is_full.then(|| self.backlogs.retry_after(&self.message));
                Err(InferError { retry_after, ..error })
            }
        }
    }

    /// Whether the request, or a part of it, was accepted before: then a full queue does not refuse it, and it waits behind nobody.
    fn was_accepted(&self) -> bool {
        self.again > 0 || self.siblings.is_some()
    }

    /// Whether other requests wait for room in the same queue and come first.
    fn is_behind_others(&self) -> bool {
        self.first.is_none() && !self.was_accepted() && self.waiting_rooms.is_occupied(&self.message)
    }

    fn next_pause(&mut self, pause: fn(u32) -> Duration) -> Duration {
        self.refusals += 1;
        pause(self.refusals - 1)
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

/// Whether a worker has declined the request because it serves another content of the model.
pub fn is_declined(reply: &Reply) -> bool {
    reply.outcome.as_ref().is_err_and(|error| error.cause == Some(Cause::OtherContent))
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

/// Waits until the message is the first in the waiting room that it has entered.
async fn entered(room: &mut Option<BoxFuture<'static, First>>) -> First {
    match room {
        Some(room) => room.await,
        None => std::future::pending().await,
    }
}

/// Waits until the search finds that the request is lost.
async fn lost(search: Option<&Search>) {
    match search {
        Some(search) => search.lost().await,
        None => std::future::pending().await,
    }
}

/// Waits until the bus has taken no requests for too long; the error says so.
async fn outage(fault: &mut watch::Receiver<Option<BusFault>>) -> InferError {
    loop {
        let now = fault.borrow_and_update().clone().filter(|fault| fault.stops_requests);
        let until = now.as_ref().map(|fault| Instant::from_std(fault.since) + OUTAGE_PATIENCE);
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {
                if let Some(fault) = now {
                    return InferError::unavailable(format!("the request was not executed: {fault}"));
                }
            }
            changed = fault.changed() => if changed.is_err() {
                return std::future::pending().await;
            },
        }
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

#[cfg(test)]
mod tests {
    use trireme_bus::FaultKind;

    use super::*;

    /// The broker answers no more, or its disk is full.
    fn fault(stops_requests: bool) -> BusFault {
        let (kind, since) = (FaultKind::Unreachable, Instant::now().into_std());
        BusFault { kind, stops_requests, since, reason: "the connection is lost".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_the_bus_for_a_limited_time() {
        let (faults, mut seen) = watch::channel(Some(fault(true)));
        let waits = async |seen: &mut watch::Receiver<Option<BusFault>>, seconds| {
            tokio::time::timeout(Duration::from_secs(seconds), outage(seen)).await
        };
        assert!(waits(&mut seen, 25).await.is_err(), "a broker may be restarted meanwhile");
        let error = waits(&mut seen, 10).await.expect("it gives up");
        assert!(error.message.starts_with("the request was not executed: the broker cannot be reached"), "{error}");
        assert_eq!(error.code, trireme_inference::ErrorCode::Unavailable);
        faults.send_replace(None);
        assert!(waits(&mut seen, 3600).await.is_err(), "the bus works");
        faults.send_replace(Some(fault(false)));
        assert!(waits(&mut seen, 3600).await.is_err(), "only durable work is refused");
    }
}
