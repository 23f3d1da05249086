//! Pull requests on one consumer: asks the broker for exactly as many messages as there is room for, and gives the messages
//! as they come, unread.
//!
//! The client's own streams prefetch (200 messages by default), which takes work away from idle replicas; so the pull
//! requests are made here: each asks for the room that is free and not already asked for. The protocol is JetStream's
//! (`$JS.API.CONSUMER.MSG.NEXT`): messages and status messages arrive at the reply subject of the request.
//!
//! Not here: what a message is and what becomes of it (`open`, `puller`, `policy`).

use std::time::{Duration, Instant};

use async_nats::{Message, StatusCode, Subscriber, jetstream};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;
use trireme_inference::ModelKey;

use super::connect::taken;
use super::pulls::{PULL_EXPIRES, Pulls};
use super::{Nats, subjects};
use crate::{BusError, Connection};

/// Pause after a pull request that the broker turned down, so that asking again does not become a storm.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// How long the broker's answer to "what is there" is awaited.
const TAKE_LIMIT: Duration = Duration::from_millis(500);

/// A consumer that this process pulls from.
pub struct Source {
    pub nats: Nats,
    pub model: ModelKey,
    /// Where pull requests go.
    next_subject: String,
    /// Pull request `n` has the reply subject `<inbox>.<n>`.
    inbox: String,
    incoming: Subscriber,
    connection: watch::Receiver<Connection>,
    pulls: Pulls,
    /// No pull request is made before this.
    paused_until: Option<Instant>,
}

/// The broker says that there is no such queue.
struct NoQueue;

// === impl Source ===

impl Source {
    /// The workers' consumer of a stream of work for `model`.
    pub async fn open(nats: &Nats, model: &ModelKey, stream: &str) -> Result<Source, BusError> {
        let mut connection = nats.connection.clone();
        // What is true now is no change.
        connection.mark_unchanged();
        let inbox = nats.client.new_inbox();
        let incoming = nats.subscribe(format!("{inbox}.*")).await?;
        let next_subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{}", subjects::WORKERS);
        Ok(Source {
            nats: nats.clone(),
            model: model.clone(),
            next_subject,
            inbox,
            incoming,
            connection,
            pulls: Pulls::default(),
            paused_until: None,
        })
    }

    /// How many messages may still come.
    pub fn outstanding(&self) -> usize {
        self.pulls.outstanding()
    }

    /// Waits until messages come, at most `room` of them; for those that are not asked for yet it asks, where that is worth
    /// it. With a room of 0 it asks for nothing. Cancel safe.
    pub async fn next(&mut self, room: usize) -> Result<Vec<jetstream::Message>, BusError> {
        loop {
            let now = Instant::now();
            self.see_to_connection(now);
            self.ask(room, now).await?;
            let wake = self.paused_until.or(self.pulls.next_loss()).unwrap_or(now + PULL_EXPIRES);
            let mut messages = Vec::new();
            let mut arrived = self.wait(wake).await?;
            // From here to the return nothing waits. Whatever else has arrived comes along.
            while let Some(message) = arrived {
                match self.receive(message) {
                    Ok(message) => messages.extend(message),
                    Err(NoQueue) if messages.is_empty() => return Err(self.no_queue()),
                    // Said again when asked again.
                    Err(NoQueue) => break,
                }
                arrived = match messages.len() < room {
                    true => self.incoming.next().now_or_never().flatten(),
                    false => None,
                };
            }
            if !messages.is_empty() {
                return Ok(messages);
            }
        }
    }

    /// Takes what waits now, at most `room` messages more than were asked for already, and puts it into `messages`. Whether
    /// the broker has answered: then there is no more, or there are as many. Cancel safe.
    pub async fn take_waiting(
        &mut self,
        room: usize,
        messages: &mut Vec<jetstream::Message>,
    ) -> Result<bool, BusError> {
        self.take(room, r#""no_wait":true"#, TAKE_LIMIT, messages).await
    }

    /// The same with `count` messages that are on their way to the stream: waits for all of them for so long. Cancel safe.
    pub async fn take_coming(
        &mut self,
        count: usize,
        within: Duration,
        messages: &mut Vec<jetstream::Message>,
    ) -> Result<bool, BusError> {
        self.take(count, &format!(r#""expires":{}"#, within.as_nanos()), within + TAKE_LIMIT, messages).await
    }

    async fn take(
        &mut self,
        room: usize,
        until: &str,
        limit: Duration,
        messages: &mut Vec<jetstream::Message>,
    ) -> Result<bool, BusError> {
        let now = Instant::now();
        self.see_to_connection(now);
        if room == 0 || self.is_down() || self.paused_until.is_some() {
            return Ok(room == 0);
        }
        let number = self.send(room, until, now).await?;
        // An answer that got lost must not hold up the other levels.
        let mut left = room;
        while left > 0 && self.pulls.is_open(number) {
            let Some(message) = self.wait(now + limit).await? else { return Ok(false) };
            if let Some(message) = self.receive(message).map_err(|NoQueue| self.no_queue())? {
                messages.push(message);
                left -= 1;
            }
        }
        Ok(self.paused_until.is_none())
    }

    /// What still comes of what was asked for, once nothing more is. `None` when nothing will, or none has until then. Cancel
    /// safe.
    pub async fn last(&mut self, until: Instant) -> Option<jetstream::Message> {
        loop {
            let now = Instant::now();
            self.see_to_connection(now);
            if self.outstanding() == 0 || now >= until {
                return None;
            }
            match self.wait(until).await {
                Ok(Some(message)) => {
                    if let Ok(Some(message)) = self.receive(message) {
                        return Some(message);
                    }
                }
                Ok(None) => {}
                Err(_) => return None,
            }
        }
    }

    /// Ends the subscription, once nothing comes any more.
    pub async fn close(&mut self) {
        let _ = taken(self.incoming.unsubscribe()).await;
    }

    /// Asks for the room that is not asked for yet.
    async fn ask(&mut self, room: usize, now: Instant) -> Result<(), BusError> {
        let missing = self.pulls.missing(room);
        // What is sent while the connection is down goes out after it is back: in addition to what is asked for then.
        if missing == 0 || self.is_down() || self.paused_until.is_some() {
            return Ok(());
        }
        self.send(missing, &format!(r#""expires":{}"#, PULL_EXPIRES.as_nanos()), now).await.map(drop)
    }

    /// Sends a request for `count` messages and notes it. Gives its number.
    async fn send(&mut self, count: usize, until: &str, now: Instant) -> Result<u64, BusError> {
        let reply = format!("{}.{}", self.inbox, self.pulls.upcoming());
        let request = format!(r#"{{"batch":{count},{until}}}"#);
        taken(self.nats.client.publish_with_reply(self.next_subject.clone(), reply, request.into())).await?;
        // Not before: whoever stops to wait meanwhile has not asked.
        Ok(self.pulls.ask(count, now))
    }

    fn is_down(&self) -> bool {
        *self.connection.borrow() == Connection::Down
    }

    fn no_queue(&self) -> BusError {
        BusError::NoQueue { model: self.model.clone() }
    }

    fn see_to_connection(&mut self, now: Instant) {
        self.pulls.forget_lost(now);
        if self.connection.has_changed().is_ok_and(|changed| changed) {
            // A new connection knows nothing of what was asked over the old one.
            self.connection.mark_unchanged();
            self.pulls.clear();
        }
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }

    /// What of a queue a message from the broker brings; nothing, if it is a status. Does not wait, so that no message is lost
    /// between being received and being returned.
    fn receive(&mut self, message: Message) -> Result<Option<jetstream::Message>, NoQueue> {
        if let Some(status) = message.status {
            return self.on_status(status, &message).map(|()| None);
        }
        self.pulls.delivered();
        Ok(Some(jetstream::Message { message, context: self.nats.jetstream.clone() }))
    }

    /// A status message ends the pull request whose reply subject it came to.
    fn on_status(&mut self, status: StatusCode, message: &Message) -> Result<(), NoQueue> {
        const HEARTBEAT: u16 = 100;
        const EXPIRED: u16 = 408;
        const NO_MESSAGES: u16 = 404;
        const NO_RESPONDERS: u16 = 503;
        if status.as_u16() == HEARTBEAT {
            return Ok(());
        }
        let unserved = message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
        let unserved = unserved.and_then(|value| value.as_str().parse().ok());
        let number = message.subject.rsplit('.').next().and_then(|token| token.parse().ok()).unwrap_or(0);
        let open = self.pulls.is_open(number);
        self.pulls.ended(number, unserved);
        let gone = message.description.as_deref().is_some_and(|text| text.contains("Deleted"));
        if status.as_u16() == NO_RESPONDERS || gone {
            // What was asked before the queue was known to be gone says nothing new.
            return match open {
                true => {
                    self.pulls.clear();
                    Err(NoQueue)
                }
                false => Ok(()),
            };
        }
        if !matches!(status.as_u16(), EXPIRED | NO_MESSAGES) {
            tracing::debug!(model = %self.model, %status, description = message.description, "a pull request ended");
            self.paused_until = Some(Instant::now() + REFUSED_PAUSE);
        }
        Ok(())
    }

    /// Waits for a message; `None` when there is something else to see to, or it is time.
    async fn wait(&mut self, until: Instant) -> Result<Option<Message>, BusError> {
        let lost = || BusError::Unreachable("connection closed".to_owned());
        tokio::select! {
            biased;
            message = self.incoming.next() => message.map(Some).ok_or_else(lost),
            changed = self.connection.changed() => {
                self.connection.mark_changed();
                changed.map(|()| None).map_err(|_| lost())
            }
            () = tokio::time::sleep_until(until.into()) => Ok(None),
        }
    }
}
