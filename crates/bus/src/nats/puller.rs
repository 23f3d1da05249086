//! Pulling work: asks the broker for exactly as many messages as there is room for, and keeps asking.
//!
//! The client's own streams prefetch (200 messages by default), which takes work away from idle replicas; so the pull
//! requests are made here: each asks for the room that is free and not already asked for. The protocol is JetStream's
//! (`$JS.API.CONSUMER.MSG.NEXT`): messages and status messages arrive at the reply subject of the request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, AckKind};
use async_nats::{Message, StatusCode, Subscriber};
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use trireme_inference::{ModelKey, UnixMicros};

use super::ack::NatsAck;
use super::claims::Claim;
use super::connect::{CLOSE_TIMEOUT, taken};
use super::fetch::{Fetch, decode};
use super::pulls::{PULL_EXPIRES, Pulls};
use super::{Nats, headers, subjects};
use crate::{Acker, BusError, Connection, Delivery, EnvelopeError, Puller, WorkHeaders};

/// Pause after a pull request that the broker turned down, so that asking again does not become a storm.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// For so long a message of a contract version that is not ours is left to other workers.
const VERSION_PAUSE: Duration = Duration::from_secs(1);

/// How long an answer to "what is there now" is awaited.
const TAKE_LIMIT: Duration = Duration::from_millis(500);

pub struct NatsPuller {
    nats: Nats,
    model: ModelKey,
    /// The level's stream and the subject of its work.
    stream: String,
    subject: String,
    /// Where pull requests go.
    next_subject: String,
    /// Pull request `n` has the reply subject `<inbox>.<n>`.
    inbox: String,
    incoming: Subscriber,
    connection: watch::Receiver<Connection>,
    pulls: Pulls,
    /// How long a pull request stays with the broker.
    expires: Duration,
    /// No pull request is made before this.
    paused_until: Option<Instant>,
    /// Deliveries whose bodies are being fetched. They take up room already.
    fetching: JoinSet<Option<Delivery>>,
    /// Until when what was asked for is awaited, once it stops.
    give_up: Option<Instant>,
}

/// What one message from the broker was.
enum Incoming {
    Work(Box<Delivery>),
    /// Work whose body has to be fetched.
    Claimed(Box<Fetch>),
    /// A status, or something unusable that has been dealt with.
    Nothing,
    /// Word that there is no such queue.
    NoQueue,
}

/// What there was to wait for.
enum Event {
    Message(Message),
    /// A body was fetched, or not.
    Fetched(Option<Delivery>),
    /// There is something else to see to.
    Other,
}

// === impl NatsPuller ===

impl NatsPuller {
    pub async fn open(nats: &Nats, model: &ModelKey, level: u32, expires: Duration) -> Result<NatsPuller, BusError> {
        let mut connection = nats.connection.clone();
        // What is true now is no change.
        connection.mark_unchanged();
        let inbox = nats.client.new_inbox();
        let incoming = nats.subscribe(format!("{inbox}.*")).await?;
        let stream = subjects::work_stream(model, level);
        let next_subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{}", subjects::WORKERS);
        Ok(NatsPuller {
            nats: nats.clone(),
            model: model.clone(),
            stream,
            subject: subjects::work(model, level),
            next_subject,
            inbox,
            incoming,
            connection,
            pulls: Pulls::default(),
            expires,
            paused_until: None,
            fetching: JoinSet::new(),
            give_up: None,
        })
    }

    /// Asks for the room that is not asked for yet.
    async fn ask(&mut self, room: usize, now: Instant) -> Result<(), BusError> {
        let missing = self.pulls.missing(room);
        // What is sent while the connection is down goes out after it is back: in addition to what is asked for then.
        let down = *self.connection.borrow() == Connection::Down;
        if missing == 0 || down || self.paused_until.is_some() {
            return Ok(());
        }
        self.send(missing, &format!(r#""expires":{}"#, self.expires.as_nanos()), now).await.map(drop)
    }

    /// Sends a request for `count` messages and notes it. Gives its number.
    async fn send(&mut self, count: usize, until: &str, now: Instant) -> Result<u64, BusError> {
        let reply = format!("{}.{}", self.inbox, self.pulls.upcoming());
        let request = format!(r#"{{"batch":{count},{until}}}"#);
        taken(self.nats.client.publish_with_reply(self.next_subject.clone(), reply, request.into())).await?;
        // Not before: whoever stops to wait meanwhile has not asked.
        Ok(self.pulls.ask(count, now))
    }

    /// How many messages may still come, bodies that are being fetched included.
    pub fn outstanding(&self) -> usize {
        self.pulls.outstanding() + self.fetching.len()
    }

    /// Takes what waits now, at most `room` messages more than were asked for already, and puts it into `taken`. Cancel safe.
    pub async fn take_waiting(&mut self, room: usize, taken: &mut Vec<Delivery>) -> Result<(), BusError> {
        let now = Instant::now();
        self.see_to_connection(now);
        let down = *self.connection.borrow() == Connection::Down;
        if room == 0 || down || self.paused_until.is_some() {
            return Ok(());
        }
        let number = self.send(room, r#""no_wait":true"#, now).await?;
        // The broker answers at once; an answer that got lost must not hold up the other levels.
        let mut left = room;
        while left > 0 && self.pulls.is_open(number) {
            let message = match self.wait(now + TAKE_LIMIT).await? {
                Event::Message(message) => message,
                Event::Fetched(fetched) => {
                    taken.extend(fetched);
                    continue;
                }
                Event::Other => break,
            };
            match self.receive(message) {
                Incoming::Work(delivery) => {
                    taken.push(*delivery);
                    left -= 1;
                }
                Incoming::Claimed(fetch) => {
                    self.fetching.spawn(fetch.run());
                    left -= 1;
                }
                Incoming::Nothing => {}
                Incoming::NoQueue => return Err(BusError::NoQueue { model: self.model.clone() }),
            }
        }
        Ok(())
    }

    /// How long the message has waited that is delivered next; `None` when none waits.
    async fn oldest_waits(&self) -> Result<Option<Duration>, BusError> {
        let failed = |error: &dyn std::error::Error| BusError::Unreachable(error.to_string());
        let stream = self.nats.jetstream.get_stream_no_info(&self.stream).await.map_err(|error| failed(&error))?;
        let info = stream.consumer_info(subjects::WORKERS).await.map_err(|error| failed(&error))?;
        if info.num_pending == 0 {
            return Ok(None);
        }
        let next = stream.direct_get_next_for_subject(&self.subject, Some(info.delivered.stream_sequence + 1)).await;
        // It may have been taken meanwhile.
        let Ok(message) = next else { return Ok(None) };
        let published = u64::try_from(message.time.unix_timestamp_nanos() / 1000).unwrap_or_default();
        Ok(Some(UnixMicros::now().since(UnixMicros(published))))
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

    /// Does not wait, so that no delivery is lost between being received and being returned.
    fn receive(&mut self, message: Message) -> Incoming {
        if let Some(status) = message.status {
            return self.on_status(status, &message);
        }
        self.pulls.delivered();
        let message = jetstream::Message { message, context: self.nats.jetstream.clone() };
        let nats = self.nats.clone();
        match self.read(&message) {
            Ok((headers, attempt, Some(claim))) => {
                Incoming::Claimed(Box::new(Fetch { nats, model: self.model.clone(), message, headers, claim, attempt }))
            }
            Ok((headers, attempt, None)) => match decode(&self.model, headers, &message.payload) {
                Ok(work) => {
                    let acker = Acker::new(Arc::new(NatsAck { nats, message, claim: None }));
                    Incoming::Work(Box::new(Delivery { message: work, attempt, acker }))
                }
                Err(reason) => {
                    self.refuse(message, &reason);
                    Incoming::Nothing
                }
            },
            // Another worker may know that version.
            Err(error @ EnvelopeError::Version(_)) => {
                tracing::warn!(model = %self.model, subject = %message.subject, %error, "left a message to others");
                settle(message, AckKind::Nak(Some(VERSION_PAUSE)));
                Incoming::Nothing
            }
            Err(error) => {
                self.refuse(message, &error.to_string());
                Incoming::Nothing
            }
        }
    }

    /// What a message's headers and reply subject say.
    fn read(&self, message: &jetstream::Message) -> Result<(WorkHeaders, u32, Option<Claim>), EnvelopeError> {
        let headers = headers::read_work(message)?;
        let claim = headers::read_claim(message)?;
        let info = message.info().map_err(|error| EnvelopeError::Header {
            name: "reply subject",
            found: error.to_string(),
            expected: "that of a delivery",
        })?;
        Ok((headers, u32::try_from(info.delivered).unwrap_or(u32::MAX), claim))
    }

    fn refuse(&self, message: jetstream::Message, reason: &str) {
        tracing::warn!(model = %self.model, subject = %message.subject, reason, "refused a malformed message");
        settle(message, AckKind::Term);
    }

    /// A status message ends the pull request whose reply subject it came to.
    fn on_status(&mut self, status: StatusCode, message: &Message) -> Incoming {
        const HEARTBEAT: u16 = 100;
        const EXPIRED: u16 = 408;
        const NO_MESSAGES: u16 = 404;
        const NO_RESPONDERS: u16 = 503;
        if status.as_u16() == HEARTBEAT {
            return Incoming::Nothing;
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
                    Incoming::NoQueue
                }
                false => Incoming::Nothing,
            };
        }
        if !matches!(status.as_u16(), EXPIRED | NO_MESSAGES) {
            tracing::debug!(model = %self.model, %status, description = message.description, "a pull request ended");
            self.paused_until = Some(Instant::now() + REFUSED_PAUSE);
        }
        Incoming::Nothing
    }

    /// Waits until there is something to see to.
    async fn wait(&mut self, until: Instant) -> Result<Event, BusError> {
        tokio::select! {
            biased;
            Some(fetched) = self.fetching.join_next() => Ok(Event::Fetched(fetched.ok().flatten())),
            message = self.incoming.next() => match message {
                Some(message) => Ok(Event::Message(message)),
                None => Err(BusError::Unreachable("connection closed".to_owned())),
            },
            changed = self.connection.changed() => match changed {
                Ok(()) => {
                    self.connection.mark_changed();
                    Ok(Event::Other)
                }
                Err(_) => Err(BusError::Unreachable("connection closed".to_owned())),
            },
            () = tokio::time::sleep_until(until.into()) => Ok(Event::Other),
        }
    }
}

/// Unsettled a message would come again, to be refused again.
fn settle(message: jetstream::Message, kind: AckKind) {
    crate::spawn("nats refusal", async move {
        let _ = message.ack_with(kind).await;
    });
}

#[async_trait]
impl Puller for NatsPuller {
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError> {
        loop {
            let now = Instant::now();
            self.see_to_connection(now);
            self.ask(room.saturating_sub(self.fetching.len()), now).await?;
            let wake = self.paused_until.or(self.pulls.next_loss()).unwrap_or(now + PULL_EXPIRES);
            let mut deliveries = Vec::new();
            let mut arrived = match self.wait(wake).await? {
                Event::Message(message) => Some(message),
                Event::Fetched(Some(delivery)) => return Ok(vec![delivery]),
                Event::Fetched(None) | Event::Other => None,
            };
            // From here to the return nothing waits. Whatever else has arrived comes along.
            while let Some(message) = arrived {
                match self.receive(message) {
                    Incoming::Work(delivery) => deliveries.push(*delivery),
                    Incoming::Claimed(fetch) => drop(self.fetching.spawn(fetch.run())),
                    Incoming::Nothing => {}
                    Incoming::NoQueue if deliveries.is_empty() => {
                        return Err(BusError::NoQueue { model: self.model.clone() });
                    }
                    // Said again when asked again.
                    Incoming::NoQueue => break,
                }
                arrived = match deliveries.len() < room {
                    true => self.incoming.next().now_or_never().flatten(),
                    false => None,
                };
            }
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
        }
    }

    async fn overdue(&mut self, _level: u32, age: Duration) -> Result<Vec<Delivery>, BusError> {
        let mut overdue = Vec::new();
        // What was asked for is on its way here, and would be taken for what waits.
        if self.outstanding() == 0 && self.oldest_waits().await?.is_some_and(|waited| waited > age) {
            self.take_waiting(1, &mut overdue).await?;
        }
        Ok(overdue)
    }

    async fn stop(&mut self) -> Option<Vec<Delivery>> {
        // The client forgets a subscription before the broker has read that it ends (its own draining included), and what
        // comes then is lost until ack_wait: so the open pull requests end first.
        let give_up = *self.give_up.get_or_insert_with(|| Instant::now() + CLOSE_TIMEOUT);
        loop {
            let now = Instant::now();
            self.see_to_connection(now);
            if self.outstanding() == 0 || now >= give_up {
                break;
            }
            let message = match self.wait(give_up).await {
                Ok(Event::Message(message)) => message,
                Ok(Event::Fetched(Some(delivery))) => return Some(vec![delivery]),
                Ok(Event::Fetched(None) | Event::Other) => continue,
                Err(_) => break,
            };
            match self.receive(message) {
                Incoming::Work(delivery) => return Some(vec![*delivery]),
                Incoming::Claimed(fetch) => drop(self.fetching.spawn(fetch.run())),
                Incoming::Nothing | Incoming::NoQueue => {}
            }
        }
        let _ = taken(self.incoming.unsubscribe()).await;
        None
    }
}
