//! Pulling from a queue that has a policy: an order among the messages that wait, or a limit to them.
//!
//! A level's stream holds what waits there and nothing else, so its limit is the policy's, to the message. A worker with
//! room takes those that go first, puts them into the stream of what is scheduled, under the ids that they have, and
//! confirms them at their level; then it takes as many from there. Whose they were does not matter: all workers schedule
//! as many as they take. A message is in both for a moment, and never in neither.
//!
//! To be delivered at a level means nothing: what comes to a worker that has no room any more, or that goes behind others,
//! is given back, and is first there again. What is scheduled is delivered as any work.
//!
//! Not here: what a queue's streams are like (`streams`), pull requests (`source`).

use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::header::{NATS_MESSAGE_ID, NATS_MESSAGE_TTL};
use async_nats::jetstream::{self, AckKind};
use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};
use tokio::task::JoinSet;
use trireme_inference::{ModelKey, UnixMicros};

use super::connect::{CLOSE_TIMEOUT, taken};
use super::open::{Opened, open};
use super::source::Source;
use super::work::failure;
use super::{Nats, subjects};
use crate::{BusError, Delivery, LevelPolicy, Puller, QueueOptions};

/// How soon what is scheduled is looked at again by a worker that has found nothing: work that another has left there.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// How many of the oldest messages of a level are looked at for those that go first, where the oldest go behind others.
const WINDOW: usize = 64;

/// The most messages that are refused at a time because they waited too long.
const OVERDUE: usize = 64;

/// For so long nothing is scheduled after that was not possible.
const TRY_AGAIN: Duration = Duration::from_millis(100);

/// After this a message is tried again that the broker does not let into the schedule.
const REFUSED_AGAIN: Duration = Duration::from_secs(1);

/// What was scheduled and has not come after so long is with another worker, or comes when it is looked for again.
const ARRIVES_WITHIN: Duration = Duration::from_millis(100);

pub struct PolicyPuller {
    /// By level, the highest first.
    levels: Vec<Level>,
    scheduled: Source,
    /// Chosen, and not on their way there yet.
    first: Vec<jetstream::Message>,
    /// How many this worker has put there and not taken from there.
    due: usize,
    /// When it was looked what others have left there.
    looked_at: Option<Instant>,
    /// From there, and not read yet because the caller went away.
    taken: Vec<jetstream::Message>,
    /// What is on its way from one stream to the other, or back; false where that was not possible.
    moving: JoinSet<bool>,
    /// Nothing is scheduled before this.
    held_up_until: Option<Instant>,
    /// Deliveries whose bodies are being fetched. They take up room already.
    fetching: JoinSet<Option<Delivery>>,
    /// Until when what was asked for is awaited, once it stops.
    give_up: Option<Instant>,
}

struct Level {
    policy: LevelPolicy,
    stream: String,
    source: Source,
    /// Taken, and neither scheduled nor given back yet.
    held: Vec<jetstream::Message>,
}

// === impl PolicyPuller ===

impl PolicyPuller {
    pub async fn open(nats: &Nats, model: &ModelKey, options: &QueueOptions) -> Result<PolicyPuller, BusError> {
        let mut levels = Vec::new();
        for (level, policy) in options.policies() {
            let stream = subjects::work_stream(model, level);
            let source = Source::open(nats, model, &stream).await?;
            levels.push(Level { policy, stream, source, held: Vec::new() });
        }
        let scheduled = Source::open(nats, model, &subjects::scheduled_stream(model)).await?;
        Ok(PolicyPuller {
            levels,
            scheduled,
            first: Vec::new(),
            due: 0,
            looked_at: None,
            taken: Vec::new(),
            moving: JoinSet::new(),
            held_up_until: None,
            fetching: JoinSet::new(),
            give_up: None,
        })
    }

    /// Waits until all that moves has arrived.
    async fn moved(&mut self) {
        while let Some(moved) = self.moving.join_next().await {
            if !moved.unwrap_or(false) {
                self.held_up_until = Some(Instant::now() + TRY_AGAIN);
            }
        }
    }

    fn is_held_up(&self) -> bool {
        self.held_up_until.is_some_and(|until| until > Instant::now())
    }

    /// Takes what this worker has scheduled, at most `room` messages: as many as it has put there.
    async fn take_due(&mut self, room: usize) -> Result<(), BusError> {
        self.take_asked_for().await;
        if self.taken.is_empty() {
            let count = room.min(self.due);
            // As long as there is no answer, nothing more is to be put there.
            if !self.scheduled.take_coming(count, ARRIVES_WITHIN, &mut self.taken).await? {
                self.held_up_until = Some(Instant::now() + TRY_AGAIN);
            }
            self.due -= count;
        } else {
            self.due = self.due.saturating_sub(self.taken.len());
        }
        Ok(())
    }

    /// Takes what others have left scheduled, at most `room` messages.
    async fn take_left(&mut self, room: usize) -> Result<(), BusError> {
        self.take_asked_for().await;
        let room = room.saturating_sub(self.taken.len());
        self.scheduled.take_waiting(room, &mut self.taken).await?;
        self.looked_at = Some(Instant::now());
        Ok(())
    }

    /// Takes what a caller that went away has asked for.
    async fn take_asked_for(&mut self) {
        while let Some(message) = self.scheduled.last(Instant::now() + ARRIVES_WITHIN).await {
            self.taken.push(message);
        }
    }

    /// Reads what was taken; bodies that travel by claim are fetched from now on.
    fn read(&mut self) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        for message in self.taken.drain(..) {
            match open(&self.scheduled.nats, &self.scheduled.model, message) {
                Opened::Work(delivery) => deliveries.push(*delivery),
                Opened::Claimed(fetch) => drop(self.fetching.spawn(fetch.run())),
                Opened::Nothing => {}
            }
        }
        deliveries
    }

    /// Schedules what goes first, at most `room` messages; how many those are.
    async fn schedule(&mut self, room: usize) -> Result<usize, BusError> {
        // There was more room when they were chosen.
        let others = self.first.split_off(room.min(self.first.len()));
        give_back(&mut self.moving, others);
        for level in &mut self.levels {
            let left = room - self.first.len();
            if left == 0 {
                break;
            }
            level.look(left).await?;
            let others = level.choose(left, UnixMicros::now(), &mut self.first);
            give_back(&mut self.moving, others);
        }
        let first = std::mem::take(&mut self.first);
        let count = first.len();
        self.due += count;
        // Sent in this order, confirmed in any.
        let (nats, model) = (self.scheduled.nats.clone(), self.scheduled.model.clone());
        let first = first.into_iter().map(move |message| put_into_schedule(nats.clone(), model.clone(), message));
        self.moving.spawn(join_all(first).map(|moved| moved.into_iter().all(|moved| moved)));
        Ok(count)
    }

    /// What this worker got at a level and does not take is given back; some of it may be on its way here yet.
    fn give_back(&mut self) {
        give_back(&mut self.moving, std::mem::take(&mut self.first));
        for level in &mut self.levels {
            give_back(&mut self.moving, std::mem::take(&mut level.held));
        }
    }
}

#[async_trait]
impl Puller for PolicyPuller {
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError> {
        let mut looked = false;
        loop {
            let deliveries = self.read();
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            let free = room.saturating_sub(self.fetching.len());
            if free > 0 && self.due > 0 {
                self.take_due(free).await?;
                continue;
            }
            self.moved().await;
            let is_time = self.looked_at.is_none_or(|at| at.elapsed() >= LOOK_AGAIN);
            if self.scheduled.outstanding() > 0 || (free > 0 && is_time) {
                self.take_left(free).await?;
                if !self.taken.is_empty() {
                    continue;
                }
            }
            let may_schedule = free > 0 && !self.is_held_up();
            let held = !self.first.is_empty() || self.levels.iter().any(|level| !level.held.is_empty());
            // All levels are looked at once; from then on each has an open request.
            if may_schedule && (held || !looked) {
                looked = self.schedule(free).await? == 0;
                if !looked {
                    continue;
                }
            }
            // Nothing waits anywhere, or there is no room: then what comes goes back.
            self.give_back();
            let asked = usize::from(may_schedule);
            let come = select_all(self.levels.iter_mut().map(|level| Box::pin(level.wait(asked))));
            tokio::select! {
                biased;
                Some(fetched) = self.fetching.join_next() => {
                    if let Ok(Some(delivery)) = fetched {
                        return Ok(vec![delivery]);
                    }
                }
                Some(message) = self.scheduled.last(Instant::now() + ARRIVES_WITHIN) => self.taken.push(message),
                (come, _, _) = come => come?,
                () = tokio::time::sleep(LOOK_AGAIN), if free > 0 => {}
            }
            if !may_schedule {
                self.give_back();
                looked = false;
            }
        }
    }

    async fn overdue(&mut self) -> Result<Vec<Delivery>, BusError> {
        let mut overdue = Vec::new();
        for level in &mut self.levels {
            let Some(timeout) = level.policy.rejects_after() else { continue };
            if level.held.is_empty() {
                if level.oldest_waits().await?.is_none_or(|waited| waited <= timeout) {
                    continue;
                }
                level.source.take_waiting(OVERDUE, &mut level.held).await?;
            }
            let now = UnixMicros::now();
            let (over, others): (Vec<_>, Vec<_>) =
                level.held.drain(..).partition(|message| waited(message, now) > timeout);
            give_back(&mut self.moving, others);
            for message in over {
                match open(&self.scheduled.nats, &self.scheduled.model, message) {
                    // Nobody has begun it, however often it was delivered.
                    Opened::Work(delivery) => overdue.push(Delivery { attempt: 1, ..*delivery }),
                    // Comes as work, and is refused as such.
                    Opened::Claimed(fetch) => drop(self.fetching.spawn(fetch.run())),
                    Opened::Nothing => {}
                }
            }
            if !overdue.is_empty() {
                break;
            }
        }
        Ok(overdue)
    }

    async fn stop(&mut self) -> Option<Vec<Delivery>> {
        // What comes after a subscription has ended is lost until ack_wait: so the open pull requests end first.
        let give_up = *self.give_up.get_or_insert_with(|| Instant::now() + CLOSE_TIMEOUT);
        let taken = self.read();
        if !taken.is_empty() {
            return Some(taken);
        }
        for level in &mut self.levels {
            while let Some(message) = level.source.last(give_up).await {
                level.held.push(message);
            }
        }
        self.give_back();
        let _ = tokio::time::timeout_at(give_up.into(), self.moved()).await;
        while let Some(message) = self.scheduled.last(give_up).await {
            self.taken.push(message);
        }
        let taken = self.read();
        if !taken.is_empty() {
            return Some(taken);
        }
        while let Ok(Some(fetched)) = tokio::time::timeout_at(give_up.into(), self.fetching.join_next()).await {
            if let Ok(Some(delivery)) = fetched {
                return Some(vec![delivery]);
            }
        }
        for source in self.levels.iter_mut().map(|level| &mut level.source).chain([&mut self.scheduled]) {
            source.close().await;
        }
        None
    }
}

// === impl Level ===

impl Level {
    /// Takes as many of the oldest messages as have to be looked at to choose `room`.
    async fn look(&mut self, room: usize) -> Result<(), BusError> {
        self.source.take_waiting(room.saturating_sub(self.held.len()), &mut self.held).await?;
        let now = UnixMicros::now();
        if self.held.iter().any(|message| self.policy.delays(waited(message, now))) {
            self.source.take_waiting(WINDOW.saturating_sub(self.held.len()), &mut self.held).await?;
        }
        Ok(())
    }

    /// Puts the `room` messages that go first, of what is held, behind those of higher levels; gives the others, in that order.
    fn choose(&mut self, room: usize, now: UnixMicros, first: &mut Vec<jetstream::Message>) -> Vec<jetstream::Message> {
        let mut held = std::mem::take(&mut self.held);
        held.sort_by_cached_key(|message| {
            let number = message.info().map(|info| info.stream_sequence).unwrap_or_default();
            (self.policy.delays(waited(message, now)), number)
        });
        let others = held.split_off(room.min(held.len()));
        first.extend(held);
        others
    }

    /// Waits for messages, of which so many are asked for.
    async fn wait(&mut self, room: usize) -> Result<(), BusError> {
        let messages = self.source.next(room).await?;
        self.held.extend(messages);
        Ok(())
    }

    /// How long the oldest message has waited; `None` when none waits.
    async fn oldest_waits(&self) -> Result<Option<Duration>, BusError> {
        const ACTION: &str = "looking at what waits";
        let jetstream = &self.source.nats.jetstream;
        let stream = jetstream.get_stream(&self.stream).await.map_err(|error| failure(ACTION, &error))?;
        let state = &stream.cached_info().state;
        let first = u64::try_from(state.first_timestamp.unix_timestamp_nanos() / 1000).unwrap_or_default();
        Ok((state.messages > 0).then(|| UnixMicros::now().since(UnixMicros(first))))
    }
}

/// How long a message has waited at its level, by the broker's clock for its beginning.
fn waited(message: &jetstream::Message, now: UnixMicros) -> Duration {
    let published =
        message.info().ok().and_then(|info| u64::try_from(info.published.unix_timestamp_nanos() / 1000).ok());
    published.map_or(Duration::ZERO, |published| now.since(UnixMicros(published)))
}

/// Puts a message from a level into the stream of what is scheduled, and takes it away there. Whether that was possible.
async fn put_into_schedule(nats: Nats, model: ModelKey, message: jetstream::Message) -> bool {
    let headers = message.headers.as_ref().map(carried).unwrap_or_default();
    let sent = nats.send_confirmed(subjects::scheduled(&model), headers, message.payload.clone()).await;
    let (kind, possible) = match sent.map_err(|error| nats.publish_error(&model, &error)) {
        // Also where it was there already: whoever put it there did not get to confirm it.
        Ok(_) => (AckKind::Ack, true),
        // Others may be taken, which are not as this one.
        Err(error @ BusError::Refused { .. }) => {
            tracing::warn!(%model, %error, "a message cannot be scheduled");
            (AckKind::Nak(Some(REFUSED_AGAIN)), true)
        }
        Err(error) => {
            tracing::debug!(%model, %error, "nothing can be scheduled for now");
            (AckKind::Nak(None), false)
        }
    };
    let _ = taken(message.ack_with(kind)).await;
    possible
}

/// The headers that a message keeps. The broker acts upon others of its own.
fn carried(headers: &HeaderMap) -> HeaderMap {
    let mut kept = HeaderMap::new();
    for (name, values) in headers.iter() {
        let is_the_brokers = AsRef::<str>::as_ref(name).starts_with("Nats-");
        if !is_the_brokers || [NATS_MESSAGE_ID, NATS_MESSAGE_TTL].contains(name) {
            values.iter().for_each(|value| kept.append(name.clone(), value.clone()));
        }
    }
    kept
}

/// Gives messages back in their order; each is first at its level again.
fn give_back(moving: &mut JoinSet<bool>, messages: Vec<jetstream::Message>) {
    if messages.is_empty() {
        return;
    }
    moving.spawn(async move {
        for message in messages {
            let _ = taken(message.ack_with(AckKind::Nak(None))).await;
        }
        true
    });
}
