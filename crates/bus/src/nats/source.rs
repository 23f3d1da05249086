//! Pull requests on one consumer: asks the broker for exactly as many messages as the caller has room for, and returns
//! them unread.
//!
//! The client's own streams prefetch (200 messages by default), which takes work away from idle workers. So the pull
//! requests are made here: each asks for the room that is free and not already asked for. The protocol is JetStream's
//! (`$JS.API.CONSUMER.MSG.NEXT`): messages and status messages arrive at the reply subject of the request.
//!
//! Not here: reading and settling a message (`open`, `consumer`).

use std::fmt::Write;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::RawMessageErrorKind;
use async_nats::{Message, StatusCode, Subscriber, jetstream};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;
use trireme_inference::{ModelKey, UnixMicros};

use super::connection::Nats;
use super::errors::failure;
use super::limits::taken;
use super::pulls::{PULL_EXPIRES, Pulls};
use super::subjects;
use crate::{BusError, Connection};

/// Pause after a pull request that the broker refused, which limits the rate of retries.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// How long to wait for the broker's answer to a request for waiting messages.
const TAKE_LIMIT: Duration = Duration::from_millis(500);

/// A consumer that this process pulls from.
pub struct Source {
    pub nats: Nats,
    pub model: ModelKey,
    stream: String,
    /// Where pull requests go.
    next_subject: String,
    /// Pull request `n` has the reply subject `<inbox>.<n>`.
    inbox: String,
    incoming: Subscriber,
    connection: watch::Receiver<Connection>,
    pulls: Pulls,
    /// No pull request is made before this.
    paused_until: Option<Instant>,
    /// The most messages that the broker lets one request ask for.
    most: usize,
}

/// The broker reports that the queue does not exist.
struct NoQueue;

// === impl Source ===

impl Source {
    /// Opens the workers' consumer of one of the streams of `model`'s queue.
    pub async fn open(nats: &Nats, model: &ModelKey, stream: &str) -> Result<Source, BusError> {
        let mut connection = nats.connection.clone();
        // The present state does not count as a change.
        connection.mark_unchanged();
        let inbox = nats.client.new_inbox();
        let incoming = nats.subscribe(format!("{inbox}.*")).await?;
        let next_subject = format!("{}.CONSUMER.MSG.NEXT.{stream}.{}", nats.api, subjects::WORKERS);
        Ok(Source {
            nats: nats.clone(),
            model: model.clone(),
            stream: stream.to_owned(),
            next_subject,
            inbox,
            incoming,
            connection,
            pulls: Pulls::default(),
            paused_until: None,
            most: usize::MAX,
        })
    }

    /// How many messages may still come.
    pub fn outstanding(&self) -> usize {
        self.pulls.outstanding()
    }

    /// Waits for messages and returns at most `room` of them. It asks the broker for those it has not asked for yet,
    /// once they are worth a request. With a room of 0 it asks for nothing. Cancel safe.
    pub async fn next(&mut self, room: usize) -> Result<Vec<jetstream::Message>, BusError> {
        loop {
            let now = Instant::now();
            self.see_to_connection(now);
            self.ask(room, now).await?;
            let wake = self.paused_until.or(self.pulls.next_loss()).unwrap_or(now + PULL_EXPIRES);
            let mut messages = Vec::new();
            let mut arrived = self.wait(wake).await?;
            // From here to the return nothing waits. Messages that have arrived meanwhile are returned too.
            while let Some(message) = arrived {
                match self.receive(message) {
                    Ok(message) => messages.extend(message),
                    Err(NoQueue) if messages.is_empty() => return Err(self.no_queue()),
                    // The next request gets the same error.
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

    /// Takes messages that wait now and adds them to `messages`: at most `room` more than were asked for already. Returns whether
    /// the broker has answered, that is, whether the queue is empty or the room is used up. Cancel safe.
    pub async fn take_waiting(
        &mut self,
        room: usize,
        messages: &mut Vec<jetstream::Message>,
    ) -> Result<bool, BusError> {
        let now = Instant::now();
        self.see_to_connection(now);
        if room == 0 || self.is_down() || self.paused_until.is_some() {
            return Ok(room == 0);
        }
        let room = room.min(self.most);
        let number = self.send(room, r#""no_wait":true"#, TAKE_LIMIT, now).await?;
        // A lost answer must not delay the other levels.
        let mut left = room;
        while left > 0 && self.pulls.is_open(number) {
            let Some(message) = self.wait(now + TAKE_LIMIT).await? else { return Ok(false) };
            if let Some(message) = self.receive(message).map_err(|NoQueue| self.no_queue())? {
                messages.push(message);
                left -= 1;
            }
        }
        Ok(self.paused_until.is_none())
    }

    /// When the waiting message behind `others` older ones was published. `None` if fewer wait.
    pub async fn waits_since(&self, others: u64) -> Result<Option<UnixMicros>, BusError> {
        const ACTION: &str = "looking at what waits";
        let jetstream = &self.nats.jetstream;
        let stream = jetstream.get_stream_no_info(&self.stream).await.map_err(|error| failure(ACTION, &error))?;
        let info = stream.consumer_info(subjects::WORKERS).await.map_err(|error| failure(ACTION, &error))?;
        if info.num_pending <= others {
            return Ok(None);
        }
        let after = info.delivered.stream_sequence + 1 + others;
        match stream.get_first_raw_message_by_subject(">", after).await {
            Ok(message) => {
                let published = u64::try_from(message.time.unix_timestamp_nanos() / 1000).unwrap_or_default();
                Ok(Some(UnixMicros(published)))
            }
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(failure(ACTION, &error)),
        }
    }

    /// A message that was asked for and is still on its way. Called when no more are asked for. `None` when no more
    /// will come, or at `until`. Cancel safe.
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

    /// Ends the subscription, after the last message has come.
    pub async fn close(&mut self) {
        let _ = taken(self.incoming.unsubscribe()).await;
    }

    /// Asks for the room that was not asked for yet.
    async fn ask(&mut self, room: usize, now: Instant) -> Result<(), BusError> {
        let missing = self.pulls.missing(room).min(self.most);
        // A request made without a connection would be sent when it is back, in addition to the new one made then.
        if missing == 0 || self.is_down() || self.paused_until.is_some() {
            return Ok(());
        }
        let expires = self.pulls.expires();
        let mut until = format!(r#""expires":{}"#, expires.as_nanos());
        let heartbeat = self.pulls.heartbeat().filter(|_| self.nats.is_clustered());
        if let Some(heartbeat) = heartbeat {
            let _ = write!(until, r#","idle_heartbeat":{}"#, heartbeat.as_nanos());
        }
        self.send(missing, &until, heartbeat.unwrap_or(expires), now).await.map(drop)
    }

    /// Sends a request for `count` messages and counts it. The broker says something about it `within` this time. Returns its
    /// number.
    async fn send(&mut self, count: usize, until: &str, within: Duration, now: Instant) -> Result<u64, BusError> {
        let reply = format!("{}.{}", self.inbox, self.pulls.upcoming());
        let request = format!(r#"{{"batch":{count},{until}}}"#);
        taken(self.nats.client.publish_with_reply(self.next_subject.clone(), reply, request.into())).await?;
        // Not earlier: if the caller drops the future before, nothing was asked.
        Ok(self.pulls.ask(count, within, now))
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
            // The broker does not keep pull requests of an old connection.
            self.connection.mark_unchanged();
            self.pulls.clear();
        }
        self.paused_until = self.paused_until.filter(|until| *until > now);
    }

    /// The work message in a message from the broker; `None` if it is a status. Does not wait, so that no message is
    /// lost between receiving and returning it.
    fn receive(&mut self, message: Message) -> Result<Option<jetstream::Message>, NoQueue> {
        if let Some(status) = message.status {
            return self.on_status(status, &message).map(|()| None);
        }
        self.pulls.delivered();
        Ok(Some(jetstream::Message { message, context: self.nats.jetstream.clone() }))
    }

    /// A status message is about the pull request at whose reply subject it arrived. All but a heartbeat end the request.
    fn on_status(&mut self, status: StatusCode, message: &Message) -> Result<(), NoQueue> {
        const HEARTBEAT: u16 = 100;
        const EXPIRED: u16 = 408;
        const NO_MESSAGES: u16 = 404;
        const NO_RESPONDERS: u16 = 503;
        let number = message.subject.rsplit('.').next().and_then(|token| token.parse().ok()).unwrap_or(0);
        if status.as_u16() == HEARTBEAT {
            self.pulls.confirmed(number, Instant::now());
            return Ok(());
        }
        let unserved = message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
        let unserved = unserved.and_then(|value| value.as_str().parse().ok());
        let open = self.pulls.is_open(number);
        self.pulls.ended(number, unserved);
        let gone = message.description.as_deref().is_some_and(|text| text.contains("Deleted"));
        if status.as_u16() == NO_RESPONDERS || gone {
            // An answer to an older request says nothing new about the queue.
            return match open {
                true => {
                    self.pulls.clear();
                    Err(NoQueue)
                }
                false => Ok(()),
            };
        }
        if status.as_u16() == EXPIRED {
            self.pulls.expired();
        } else if status.as_u16() != NO_MESSAGES {
            tracing::debug!(model = %self.model, %status, description = message.description, "a pull request ended");
            let most =
                message.description.as_deref().and_then(|text| text.strip_prefix("Exceeded MaxRequestBatch of "));
            if let Some(most) = most.and_then(|most| most.trim().parse().ok()) {
                self.most = most;
                return Ok(());
            }
            self.paused_until = Some(Instant::now() + REFUSED_PAUSE);
        }
        Ok(())
    }

    /// Waits for a message; `None` at `until`, or when the state of the connection has changed.
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
