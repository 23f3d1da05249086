//! Pulling work: asks the broker for exactly as many messages as there is room for, and keeps asking.
//!
//! The client's own streams prefetch (200 messages by default), which takes work away from idle replicas; so the pull
//! requests are made here: each asks for the room that is free and not already asked for. The protocol is JetStream's
//! (`$JS.API.CONSUMER.MSG.NEXT`): messages and status messages arrive at the reply subject of the request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, AckKind};
use async_nats::{Message, StatusCode, Subscriber};
use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::watch;
use trireme_inference::ModelKey;

use super::{Nats, headers, subjects};
use crate::{AckHandle, Acker, BusError, Connection, Delivery, Puller, envelope};

/// How long a pull request stays with the broker. Short enough that one that got lost does not starve a worker.
const PULL_EXPIRES: Duration = Duration::from_secs(10);

/// How much longer than that its end is awaited before it counts as lost.
const EXPIRY_SLACK: Duration = Duration::from_secs(1);

pub struct NatsPuller {
    nats: Nats,
    model: ModelKey,
    /// Where pull requests go.
    next_subject: String,
    /// Pull request `n` has the reply subject `<inbox>.<n>`.
    inbox: String,
    incoming: Subscriber,
    connection: watch::Receiver<Connection>,
    pulls: VecDeque<Pull>,
    pulls_made: u64,
}

/// A pull request that the broker has not yet answered in full.
struct Pull {
    number: u64,
    outstanding: usize,
    expires: Instant,
}

/// What one message from the broker was.
enum Incoming {
    Work(Box<Delivery>),
    /// A status, or something unusable that has been dealt with.
    Nothing,
}

struct NatsAck {
    message: jetstream::Message,
}

// === impl NatsPuller ===

impl NatsPuller {
    pub async fn open(nats: &Nats, model: &ModelKey) -> Result<NatsPuller, BusError> {
        let inbox = nats.client.new_inbox();
        let incoming = nats.subscribe(format!("{inbox}.*")).await?;
        let next_subject =
            format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", subjects::work_stream(model), subjects::WORKERS);
        Ok(NatsPuller {
            nats: nats.clone(),
            model: model.clone(),
            next_subject,
            inbox,
            incoming,
            connection: nats.connection.clone(),
            pulls: VecDeque::new(),
            pulls_made: 0,
        })
    }

    fn outstanding(&self) -> usize {
        self.pulls.iter().map(|pull| pull.outstanding).sum()
    }

    /// Asks for the room that is not asked for yet, once that is worth a request.
    async fn ask(&mut self, room: usize) -> Result<(), BusError> {
        let outstanding = self.outstanding();
        let missing = room.saturating_sub(outstanding);
        if missing == 0 || (outstanding > 0 && missing < room.div_ceil(4)) {
            return Ok(());
        }
        self.pulls_made += 1;
        let reply = format!("{}.{}", self.inbox, self.pulls_made);
        let request = format!(r#"{{"batch":{missing},"expires":{}}}"#, PULL_EXPIRES.as_nanos());
        let sent = self.nats.client.publish_with_reply(self.next_subject.clone(), reply, request.into()).await;
        sent.map_err(|error| BusError::Unreachable(error.to_string()))?;
        let expires = Instant::now() + PULL_EXPIRES + EXPIRY_SLACK;
        self.pulls.push_back(Pull { number: self.pulls_made, outstanding: missing, expires });
        Ok(())
    }

    async fn receive(&mut self, message: Message) -> Result<Incoming, BusError> {
        if let Some(status) = message.status {
            return self.on_status(status, &message).map(|()| Incoming::Nothing);
        }
        // Work comes under the stream's subject, which does not tell the request: the oldest is served first.
        if let Some(pull) = self.pulls.front_mut() {
            pull.outstanding -= 1;
            if pull.outstanding == 0 {
                self.pulls.pop_front();
            }
        }
        let work = headers::read_work(&message)
            .and_then(|headers| envelope::decode_work(headers, &message.payload))
            .map_err(|error| error.to_string());
        let message = jetstream::Message { message, context: self.nats.jetstream.clone() };
        let attempt = message.info().map(|info| u32::try_from(info.delivered).unwrap_or(u32::MAX));
        match (work, attempt) {
            (Ok(work), Ok(attempt)) if work.queue() == Some(&self.model) => {
                let acker = Acker::new(Arc::new(NatsAck { message }));
                Ok(Incoming::Work(Box::new(Delivery { message: work, attempt, acker })))
            }
            (work, attempt) => {
                let reason = match (work, attempt) {
                    (Err(error), _) => error,
                    (_, Err(error)) => error.to_string(),
                    (Ok(work), Ok(_)) => format!("its route leads to '{:?}'", work.queue()),
                };
                tracing::warn!(model = %self.model, subject = %message.subject, reason, "refused a malformed message");
                let _ = message.ack_with(AckKind::Term).await;
                Ok(Incoming::Nothing)
            }
        }
    }

    /// A status message ends the pull request whose reply subject it came to.
    fn on_status(&mut self, status: StatusCode, message: &Message) -> Result<(), BusError> {
        const HEARTBEAT: u16 = 100;
        const NO_RESPONDERS: u16 = 503;
        if status.as_u16() == HEARTBEAT {
            return Ok(());
        }
        let number = message.subject.rsplit('.').next().and_then(|token| token.parse().ok());
        self.pulls.retain(|pull| Some(pull.number) != number);
        let gone = message.description.as_deref().is_some_and(|text| text.contains("Deleted"));
        if status.as_u16() == NO_RESPONDERS || gone {
            self.pulls.clear();
            return Err(BusError::NoQueue { model: self.model.clone() });
        }
        Ok(())
    }
}

#[async_trait]
impl Puller for NatsPuller {
    async fn next(&mut self, room: usize) -> Result<Vec<Delivery>, BusError> {
        let room = room.max(1);
        let mut deliveries = Vec::new();
        loop {
            let now = Instant::now();
            self.pulls.retain(|pull| pull.expires > now);
            self.ask(room).await?;

            let expires = self.pulls.iter().map(|pull| pull.expires).min().unwrap_or(now + PULL_EXPIRES);
            let message = tokio::select! {
                biased;
                message = self.incoming.next() => message,
                changed = self.connection.changed() => {
                    if changed.is_ok() {
                        // A new connection knows nothing of what was asked over the old one.
                        self.pulls.clear();
                    }
                    continue;
                }
                () = tokio::time::sleep_until(expires.into()) => continue,
            };
            let Some(message) = message else {
                return Err(BusError::Unreachable("connection closed".to_owned()));
            };
            if let Incoming::Work(delivery) = self.receive(message).await? {
                deliveries.push(*delivery);
            }
            // Whatever else has arrived comes along.
            while deliveries.len() < room {
                let Some(Some(message)) = self.incoming.next().now_or_never() else { break };
                if let Incoming::Work(delivery) = self.receive(message).await? {
                    deliveries.push(*delivery);
                }
            }
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
        }
    }
}

// === impl NatsAck ===

impl NatsAck {
    async fn send(&self, kind: AckKind) -> Result<(), BusError> {
        self.message.ack_with(kind).await.map_err(|error| BusError::Unreachable(error.to_string()))
    }
}

#[async_trait]
impl AckHandle for NatsAck {
    async fn ack(&self) -> Result<(), BusError> {
        self.send(AckKind::Ack).await
    }

    async fn nak(&self, delay: Duration) -> Result<(), BusError> {
        self.send(AckKind::Nak((!delay.is_zero()).then_some(delay))).await
    }

    async fn term(&self, _reason: &str) -> Result<(), BusError> {
        self.send(AckKind::Term).await
    }

    async fn in_progress(&self) -> Result<(), BusError> {
        self.send(AckKind::Progress).await
    }

    fn abandon(&self) {
        tracing::warn!("delivery was let go without being settled; the broker delivers it again after ack_wait");
    }
}
