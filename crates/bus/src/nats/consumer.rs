//! Pulls work from the levels of a queue, the highest first. Each level is asked for exactly as many messages as the caller has room
//! for.
//!
//! The client's own streams prefetch (200 messages by default), which takes work away from idle workers. So the pull
//! requests are made here: each asks for the room that is free and not already asked for. The protocol is JetStream's
//! (`$JS.API.CONSUMER.MSG.NEXT`): messages and status messages arrive at the reply subject of the request.
//!
//! Not here: counting what the broker may still send (`pulls`), and reading and settling a message (`deliveries`).

use std::fmt::Write;
use std::time::{Duration, Instant};

use async_nats::header::NATS_MESSAGE_ID;
use async_nats::jetstream::stream::RawMessageErrorKind;
use async_nats::jetstream::{self, AckKind};
use async_nats::{Message, StatusCode, Subscriber};
use async_trait::async_trait;
use futures_util::future::select_all;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;
use tokio::task::JoinSet;
use trireme_inference::{ModelKey, UnixMicros};

use super::connection::Nats;
use super::deliveries::open;
use super::errors::failure;
use super::limits::{CLOSE_TIMEOUT, taken};
use super::pulls::{PULL_EXPIRES, Pulls};
use super::subjects::WORKERS;
use super::{clock, headers};
use crate::{AttemptNote, Bus, BusError, Connection, Consumer, Delivery, MessageName, QueueOptions};

/// How often a worker with room asks all levels again while no message arrives. This finds messages that it was not
/// sent because a pull request got lost.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The most messages that are taken at a time because they have waited too long.
const OVERDUE: usize = 32;

/// Bounds of the shortest time between two looks for such messages at a level: a quarter of the time that a message may wait.
const LOOK_SHORTEST: Duration = Duration::from_millis(100);
const LOOK_LONGEST: Duration = Duration::from_secs(1);

/// Pause after a pull request that the broker refused, which limits the rate of retries.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// How long to wait for the broker's answer to a request for waiting messages.
const TAKE_LIMIT: Duration = Duration::from_millis(500);

pub struct NatsConsumer {
    nats: Nats,
    model: ModelKey,
    /// The highest first.
    levels: Vec<Level>,
    /// Messages that were received and not read yet, because the caller dropped its future.
    taken: Vec<jetstream::Message>,
    /// Deliveries whose bodies are being fetched. They count against the caller's room.
    fetching: JoinSet<Option<Delivery>>,
    /// Once stopped: when to stop waiting for deliveries that are still on their way.
    give_up: Option<Instant>,
}

/// The workers' consumer of a level's stream.
struct Level {
    nats: Nats,
    model: ModelKey,
    stream: String,
    /// How long a message may wait here before it is refused.
    rejects_after: Option<Duration>,
    /// No message that waits now is refused before this time.
    look_at: Instant,
    /// How many messages are taken at a time to be refused.
    at_once: usize,
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

// === impl NatsConsumer ===

impl NatsConsumer {
    pub async fn open(nats: &Nats, model: &ModelKey, options: &QueueOptions) -> Result<NatsConsumer, BusError> {
        let mut levels = Vec::new();
        for (level, policy) in options.policies() {
            let stream = nats.names.work_stream(model, level);
            levels.push(Level::open(nats, model, stream, policy.rejects_after()).await?);
        }
        let (nats, model, fetching) = (nats.clone(), model.clone(), JoinSet::new());
        Ok(NatsConsumer { nats, model, levels, taken: Vec::new(), fetching, give_up: None })
    }

    /// Reads the received messages.
    fn read(&mut self) -> Vec<Delivery> {
        let taken = std::mem::take(&mut self.taken);
        self.open_all(taken)
    }

    /// Reads messages, and starts to fetch bodies that travel by claim.
    fn open_all(&mut self, messages: Vec<jetstream::Message>) -> Vec<Delivery> {
        let (nats, model, fetching) = (&self.nats, &self.model, &mut self.fetching);
        messages.into_iter().filter_map(|message| open(nats, model, message, fetching)).collect()
    }

    /// Returns received messages for which the caller has no room. They are first at their level again. A note says
    /// that no worker began them.
    async fn give_back(&mut self) {
        while let Some(message) = self.taken.last() {
            let id = message.headers.as_ref().and_then(|headers| headers.get(NATS_MESSAGE_ID));
            if let (Some(id), Ok(headers)) = (id, headers::read_work(message)) {
                let never = AttemptNote { attempts: 0, ended: true };
                let name = MessageName { id: id.as_str().into(), deadline: headers.deadline };
                let _ = (&self.nats as &dyn Bus).note_attempts(&name, never).await;
            }
            let _ = taken(message.ack_with(AckKind::Nak(None))).await;
            self.taken.pop();
        }
    }

    /// Takes up to `room` messages that wait now, from the highest levels that have any.
    async fn take_waiting(&mut self, room: usize) -> Result<(), BusError> {
        for level in &mut self.levels {
            let left = room.saturating_sub(self.taken.len());
            if left > 0 {
                level.take_waiting(left, &mut self.taken).await?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Consumer for NatsConsumer {
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError> {
        let mut looked = false;
        // The messages that an earlier call was about to give back when its caller left it.
        let mut is_left = !self.taken.is_empty();
        loop {
            if (room == 0 || std::mem::take(&mut is_left)) && self.levels.len() > 1 {
                // A message from one level must not come before messages that wait at a higher one.
                self.give_back().await;
            }
            let deliveries = self.read();
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            let free = room.saturating_sub(self.fetching.len());
            // With one level the open request is enough.
            if free > 0 && self.levels.len() > 1 && !looked {
                self.take_waiting(free).await?;
                looked = true;
                continue;
            }
            // One message from each level at most, so that a message at a lower level leaves room for one at a higher
            // level.
            let asked = if self.levels.len() > 1 { free.min(1) } else { free };
            let come = select_all(self.levels.iter_mut().map(|level| Box::pin(level.next(asked))));
            tokio::select! {
                biased;
                Some(fetched) = self.fetching.join_next() => {
                    if let Ok(Some(delivery)) = fetched {
                        return Ok(vec![delivery]);
                    }
                }
                (come, _, _) = come => self.taken.extend(come?),
                () = tokio::time::sleep(LOOK_AGAIN), if free > 0 => looked = false,
            }
        }
    }

    async fn overdue(&mut self) -> Result<Vec<Delivery>, BusError> {
        for index in 0..self.levels.len() {
            let level = &mut self.levels[index];
            let Some(timeout) = level.rejects_after else { continue };
            let count = level.overdue(timeout).await?;
            if count == 0 {
                continue;
            }
            let before = self.taken.len();
            level.take_waiting(count, &mut self.taken).await?;
            // Others may have been taken: the queue numbers messages that are gone, and other workers take messages too.
            let is_overdue = |message: &jetstream::Message| {
                message.info().is_ok_and(|info| waits_longer(clock::micros(info.published), timeout))
            };
            let (overdue, young): (Vec<_>, Vec<_>) = self.taken.split_off(before).into_iter().partition(is_overdue);
            level.took(count, overdue.len(), young.is_empty());
            let overdue = self.open_all(overdue);
            self.taken.extend(young);
            self.give_back().await;
            if !overdue.is_empty() {
                return Ok(overdue);
            }
        }
        Ok(Vec::new())
    }

    async fn stop(&mut self) -> Option<Vec<Delivery>> {
        // The client forgets a subscription before the broker has read the unsubscribe, even when it drains. A message
        // that arrives in between would be lost until `ack_wait`. So the open pull requests of a busy worker end first.
        let give_up = *self.give_up.get_or_insert_with(|| Instant::now() + CLOSE_TIMEOUT);
        for level in &mut self.levels {
            while let Some(message) = level.last(give_up).await {
                self.taken.push(message);
            }
        }
        let deliveries = self.read();
        if !deliveries.is_empty() {
            return Some(deliveries);
        }
        while let Ok(Some(fetched)) = tokio::time::timeout_at(give_up.into(), self.fetching.join_next()).await {
            if let Ok(Some(delivery)) = fetched {
                return Some(vec![delivery]);
            }
        }
        for level in &mut self.levels {
            let _ = taken(level.incoming.unsubscribe()).await;
        }
        None
    }
}

/// Whether a message that was published at `since` has waited longer than `timeout`.
fn waits_longer(since: UnixMicros, timeout: Duration) -> bool {
    UnixMicros::now().since(since) > timeout
}

// === impl Level ===

impl Level {
    async fn open(
        nats: &Nats,
        model: &ModelKey,
        stream: String,
        rejects_after: Option<Duration>,
    ) -> Result<Level, BusError> {
        let connection = nats.connection.follow();
        let inbox = nats.client.new_inbox();
        let incoming = nats.subscribe(format!("{inbox}.*")).await?;
        let (nats, model, pulls) = (nats.clone(), model.clone(), Pulls::default());
        Ok(Level {
            nats,
            model,
            stream,
            rejects_after,
            look_at: Instant::now(),
            at_once: 1,
            inbox,
            incoming,
            connection,
            pulls,
            paused_until: None,
            most: usize::MAX,
        })
    }

    /// Waits for messages and returns at most `room` of them. It asks the broker for those it has not asked for yet,
    /// once they are worth a request. With a room of 0 it asks for nothing. Cancel safe.
    async fn next(&mut self, room: usize) -> Result<Vec<jetstream::Message>, BusError> {
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
                    Err(no_queue) if messages.is_empty() => return Err(no_queue),
                    // The next request gets the same error.
                    Err(_) => break,
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

    /// Takes messages that wait now and adds them to `messages`: at most `room` more than were asked for already. Ends when the queue
    /// is empty or the room is used up, or without the broker's answer after [`TAKE_LIMIT`]. Cancel safe.
    async fn take_waiting(&mut self, room: usize, messages: &mut Vec<jetstream::Message>) -> Result<(), BusError> {
        let now = Instant::now();
        self.see_to_connection(now);
        if self.nats.is_down() || self.paused_until.is_some() {
            return Ok(());
        }
        let mut left = room.min(self.most);
        let number = self.send(left, r#""no_wait":true"#, TAKE_LIMIT, now).await?;
        // A lost answer must not delay the other levels.
        while left > 0 && self.pulls.is_open(number) {
            let Some(message) = self.wait(now + TAKE_LIMIT).await? else { break };
            if let Some(message) = self.receive(message)? {
                messages.push(message);
                left -= 1;
            }
        }
        Ok(())
    }

    /// How many messages to take because they have waited longer than `timeout`. Messages that were taken back leave gaps in
    /// the numbers of the others, so some of the messages that come may be younger.
    ///
    /// The oldest messages come first. So after a look at the oldest one it is known until when no other one is overdue, and the
    /// broker is not asked before.
    async fn overdue(&mut self, timeout: Duration) -> Result<usize, BusError> {
        const ACTION: &str = "looking at what waits";
        let now = Instant::now();
        if now < self.look_at {
            return Ok(0);
        }
        let pause = (timeout / 4).clamp(LOOK_SHORTEST, LOOK_LONGEST);
        self.look_at = now + pause;
        let jetstream = &self.nats.jetstream;
        let stream = jetstream.get_stream_no_info(&self.stream).await.map_err(|error| failure(ACTION, &error))?;
        let info = stream.consumer_info(WORKERS).await.map_err(|error| failure(ACTION, &error))?;
        let waiting = usize::try_from(info.num_pending).unwrap_or(usize::MAX);
        let mut since = UnixMicros::now();
        for count in [self.at_once.min(waiting), 1].into_iter().filter(|count| (1..=waiting).contains(count)) {
            let number = info.delivered.stream_sequence + count as u64;
            since = match stream.get_first_raw_message_by_subject(">", number).await {
                Ok(message) => clock::micros(message.time),
                Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => UnixMicros::now(),
                Err(error) => return Err(failure(ACTION, &error)),
            };
            if waits_longer(since, timeout) {
                return Ok(count);
            }
        }
        let left = timeout.saturating_sub(UnixMicros::now().since(since));
        self.look_at = Instant::now() + left.max(pause);
        Ok(0)
    }

    /// Takes in that of `count` messages asked for, `overdue` came that were, and whether they were the only ones.
    fn took(&mut self, count: usize, overdue: usize, only: bool) {
        self.at_once = if only { (count * 2).min(OVERDUE) } else { 1 };
        if overdue == count {
            self.look_at = Instant::now();
        }
    }

    /// A message that was asked for and is still on its way. Called when no more are asked for. `None` when no more
    /// will come, or at `until`. Cancel safe.
    async fn last(&mut self, until: Instant) -> Option<jetstream::Message> {
        loop {
            let now = Instant::now();
            self.see_to_connection(now);
            if self.pulls.outstanding() == 0 || now >= until {
                return None;
            }
            if let Some(message) = self.wait(until).await.ok()?
                && let Ok(Some(message)) = self.receive(message)
            {
                return Some(message);
            }
        }
    }

    /// Asks for the room that was not asked for yet.
    async fn ask(&mut self, room: usize, now: Instant) -> Result<(), BusError> {
        let missing = self.pulls.missing(room).min(self.most);
        // A request made without a connection would be sent when it is back, in addition to the new one made then.
        if missing == 0 || self.nats.is_down() || self.paused_until.is_some() {
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
        let subject = format!("{}.CONSUMER.MSG.NEXT.{}.{WORKERS}", self.nats.api, self.stream);
        let reply = format!("{}.{}", self.inbox, self.pulls.upcoming());
        let request = format!(r#"{{"batch":{count},{until}}}"#);
        taken(self.nats.client.publish_with_reply(subject, reply, request.into())).await?;
        // Not earlier: if the caller drops the future before, nothing was asked.
        Ok(self.pulls.ask(count, within, now))
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

    /// The work message in a message from the broker; `None` if it is a status. The error says that the queue is gone. Does not wait, so
    /// that no message is lost between receiving and returning it.
    fn receive(&mut self, message: Message) -> Result<Option<jetstream::Message>, BusError> {
        if let Some(status) = message.status {
            return self.on_status(status, &message).map(|()| None);
        }
        self.pulls.delivered();
        Ok(Some(jetstream::Message { message, context: self.nats.jetstream.clone() }))
    }

    /// A status message is about the pull request at whose reply subject it arrived. All but a heartbeat end the request.
    fn on_status(&mut self, status: StatusCode, message: &Message) -> Result<(), BusError> {
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
        let text = message.description.as_deref().unwrap_or_default();
        let is_gone = status.as_u16() == NO_RESPONDERS || text.contains("Deleted");
        match status.as_u16() {
            _ if is_gone && open => {
                self.pulls.clear();
                return Err(BusError::NoQueue { model: self.model.clone() });
            }
            // An answer to an older request says nothing new about the queue.
            _ if is_gone => {}
            EXPIRED => self.pulls.expired(),
            NO_MESSAGES => {}
            _ => {
                tracing::debug!(model = %self.model, %status, description = text, "a pull request ended");
                let most = text.strip_prefix("Exceeded MaxRequestBatch of ");
                match most.and_then(|most| most.trim().parse().ok()) {
                    Some(most) => self.most = most,
                    None => self.paused_until = Some(Instant::now() + REFUSED_PAUSE),
                }
            }
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
