//! The streams that the system needs, and who makes them: gateways, also for the stages, which ask one of them.
//!
//! The broker checks what a stream is called, not what it is to hold: who may make one could give it the subjects of
//! answers, and read them there. So stages may not. They say which of these they need, by a subject that the broker can hold
//! them to (`trireme.streams.work.<model>.<version>` for a queue), and what it is to be like is decided here. The same is
//! true of consumers, which deliver to any subject that who makes them likes.
//!
//! Not here: what the streams are like that there is one of (`fixed_streams`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind};
use async_nats::jetstream::{consumer, stream};
use async_nats::{Message, jetstream};
use futures_util::StreamExt;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use trireme_inference::{ModelKey, UnixMicros};

use super::connect::{REQUEST_TIMEOUT, limited, taken};
use super::work::{chain, failure, is_not_found};
use super::{LONGEST, Nats, fixed_streams, subjects};
use crate::envelope::MAX_NAME;
use crate::{BusError, QueueOptions};

/// How long the broker remembers message ids. Longer than a few redeliveries; its memory is rate times window.
const DEDUP_WINDOW: Duration = Duration::from_secs(15);

/// Deliveries without a limit.
const ANY_NUMBER: i64 = -1;

/// The same for what is scheduled: the copy at its level may have to wait for room, should it be there still.
const SCHEDULED_WINDOW: Duration = Duration::from_secs(120);

/// Streams that are made for others at a time; who asks for one more asks again.
const MAKING: usize = 64;

/// Streams whose requests are remembered, beside those that are being made.
const REMEMBERED: usize = 4096;

/// Most levels of a queue that is made for others.
const MAX_LEVELS: usize = 1024;

/// How much longer a queue may take for each of its levels: a stream on the disks of several brokers is not made at once.
const LEVEL_PATIENCE: Duration = Duration::from_millis(100);

/// A stream that somebody needs.
#[derive(Clone, Copy, Debug)]
pub enum Needed<'a> {
    /// How often messages were begun.
    Attempts,
    /// Bodies above `max_payload`.
    Claims,
    /// Messages that were given up.
    Dead,
    /// Workers and the model versions they serve.
    Registry,
    /// Work for a model version: a stream for each level, and the consumer that its workers share.
    Queue(&'a ModelKey, &'a QueueOptions),
}

/// What a request for a queue says. Its subject says whose.
#[derive(Debug, Serialize, Deserialize)]
struct QueueRequest {
    model: ModelKey,
    options: QueueOptions,
}

/// What a gateway says to who needs a stream.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Made,
    Refused(String),
    Unreachable(String),
}

/// The requests for each stream one after the other: one that is held up must not undo what was asked for later. By subject,
/// the number of the last that was done.
#[derive(Default)]
struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<u64>>>>);

/// One of the streams of a queue.
struct WorkStream {
    name: String,
    subject: String,
    max_messages: u64,
    max_deliver: i64,
    duplicate_window: Duration,
}

// === impl Turns ===

impl Turns {
    fn of(&self, subject: &str) -> Arc<tokio::sync::Mutex<u64>> {
        let mut turns = self.0.lock();
        if turns.len() >= REMEMBERED {
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        }
        turns.entry(subject.to_owned()).or_default().clone()
    }
}

// === impl Needed ===

impl Needed<'_> {
    fn action(self) -> &'static str {
        match self {
            Needed::Attempts => "making the stream of attempts",
            Needed::Claims => "making the stream of claims",
            Needed::Dead => "making the dead-letter stream",
            Needed::Registry => "making the registry",
            Needed::Queue(..) => "making a work queue",
        }
    }

    /// How long a gateway may take to make it.
    fn patience(self) -> Duration {
        match self {
            Needed::Queue(_, options) => REQUEST_TIMEOUT + LEVEL_PATIENCE * options.levels.len() as u32,
            _ => REQUEST_TIMEOUT,
        }
    }

    /// Where gateways are asked for it.
    fn subject(self) -> String {
        match self {
            Needed::Attempts => subjects::stream_request("attempts"),
            Needed::Claims => subjects::stream_request("claims"),
            Needed::Dead => subjects::stream_request("dead"),
            Needed::Registry => subjects::stream_request("registry"),
            Needed::Queue(model, _) => subjects::queue_request(model),
        }
    }
}

// === impl Nats ===

impl Nats {
    /// Makes sure that a stream is there, and a queue as its options have it; where this process may not, a gateway does.
    /// Any number of processes may do so at the same time.
    pub(super) async fn need(&self, needed: Needed<'_>) -> Result<(), BusError> {
        match self.keeps_streams {
            true => self.make(needed).await,
            false => self.ask_for(needed).await,
        }
    }

    /// Makes the streams that others need, for as long as the connection is there.
    pub(super) async fn keep_streams(&self) -> Result<(), BusError> {
        let mut asked = self.subscribe_at_once(subjects::STREAM_REQUESTS.to_owned()).await?;
        let nats = self.clone();
        crate::spawn("nats streams", async move {
            let (mut making, turns, mut number) = (JoinSet::new(), Arc::new(Turns::default()), 0);
            loop {
                let message = tokio::select! {
                    message = asked.next() => message,
                    Some(_) = making.join_next() => continue,
                };
                let Some(message) = message else { return };
                number += 1;
                // The broker lets an answer go wherever the asker says.
                let Some(asker) = message.reply.clone().filter(|inbox| inbox.starts_with("_INBOX.")) else { continue };
                let (nats, turns, is_one_too_many) = (nats.clone(), turns.clone(), making.len() >= MAKING);
                making.spawn(async move {
                    let answer = match is_one_too_many {
                        true => Answer::Unreachable("too many streams are asked for at a time".to_owned()),
                        false => nats.make_for(&message, &turns, number).await,
                    };
                    if let Ok(body) = serde_json::to_vec(&answer) {
                        // Who does not get it asks again.
                        let _ = taken(nats.client.publish(asker, body.into())).await;
                    }
                });
            }
        });
        Ok(())
    }

    async fn ask_for(&self, needed: Needed<'_>) -> Result<(), BusError> {
        let action = needed.action();
        let unreachable = |reason: &dyn std::fmt::Display| BusError::Unreachable(format!("{action}: {reason}"));
        let body = match needed {
            Needed::Queue(model, options) => {
                serde_json::to_vec(&QueueRequest { model: model.clone(), options: options.clone() })
            }
            _ => Ok(Vec::new()),
        };
        let body = body.map_err(|error| BusError::Refused { action, reason: error.to_string() })?;
        let (subject, mut connection) = (needed.subject(), self.connection.clone());
        connection.mark_unchanged();
        let request = async_nats::Request::new().payload(body.into()).timeout(Some(needed.patience()));
        let answer = tokio::select! {
            answer = self.client.send_request(subject.clone(), request) => answer,
            reason = self.refused(|refusal| refusal.contains(&format!("\"{subject}\""))) => return Err(BusError::Refused { action, reason }),
            _ = connection.changed() => return Err(unreachable(&"the connection was lost")),
        };
        let answer = answer.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => unreachable(&"no gateway is there to do it"),
            RequestErrorKind::TimedOut => unreachable(&"no gateway has answered"),
            _ => unreachable(&chain(&error)),
        })?;
        match serde_json::from_slice(&answer.payload) {
            Ok(Answer::Made) => Ok(()),
            Ok(Answer::Refused(reason)) => Err(BusError::Refused { action, reason }),
            Ok(Answer::Unreachable(reason)) => Err(unreachable(&reason)),
            Err(error) => Err(unreachable(&format!("a gateway's answer cannot be read: {error}"))),
        }
    }

    /// Waits until the broker says that this process may not do what `is_meant` knows by the subject in its words: it tells so
    /// no other way.
    async fn refused(&self, is_meant: impl Fn(&str) -> bool) -> String {
        let mut refusals = self.refusals.clone();
        refusals.mark_unchanged();
        loop {
            if refusals.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            let refusal = refusals.borrow_and_update();
            if is_meant(&refusal) {
                return refusal.clone();
            }
        }
    }

    /// Does what one request for a stream asks for, the `number`th that came here.
    async fn make_for(&self, message: &Message, turns: &Turns, number: u64) -> Answer {
        let turn = turns.of(&message.subject);
        let mut done = turn.lock().await;
        if *done > number {
            // What was asked for later holds.
            return Answer::Made;
        }
        let made = match read(&message.subject, &message.payload) {
            Ok(Request::Stream(needed)) => limited(LONGEST, self.make(needed)).await,
            Ok(Request::Queue(QueueRequest { model, options })) => {
                limited(LONGEST, self.make(Needed::Queue(&model, &options))).await
            }
            Err(reason) => {
                tracing::warn!(subject = %message.subject, reason, "refused a request for a stream");
                Err(BusError::Refused { action: "making a stream", reason })
            }
        };
        match made {
            Ok(()) => {
                *done = number;
                Answer::Made
            }
            Err(BusError::Refused { reason, .. }) => Answer::Refused(reason),
            Err(error) => Answer::Unreachable(error.to_string()),
        }
    }

    async fn make(&self, needed: Needed<'_>) -> Result<(), BusError> {
        let config = match needed {
            Needed::Attempts => fixed_streams::attempts(),
            Needed::Claims => fixed_streams::claims(),
            Needed::Dead => fixed_streams::dead(),
            Needed::Registry => fixed_streams::registry(),
            Needed::Queue(model, options) => return self.make_allowed_queue(model, options).await,
        };
        let name = config.name.clone();
        let made = self.jetstream.get_or_create_stream(config).await;
        made.map(drop).map_err(|error| stream_failure(needed.action(), &name, &error))
    }

    /// As [`Nats::make_queue`]; says so where the broker does not let this process, which it tells nobody who waits.
    async fn make_allowed_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        let stream = subjects::work_stream(model, 0);
        // A level's name goes on with `-`, a consumer's with `.`.
        let ends = ['"', '-', '.'].map(|end| format!(".{stream}{end}"));
        tokio::select! {
            made = self.make_queue(model, options) => made,
            reason = self.refused(|refusal| ends.iter().any(|end| refusal.contains(end))) => {
                Err(BusError::Refused { action: Needed::Queue(model, options).action(), reason })
            }
        }
    }

    async fn make_queue(&self, model: &ModelKey, options: &QueueOptions) -> Result<(), BusError> {
        let scheduled = self.is_scheduled(model, options).await?;
        let max_deliver = i64::from(options.deliveries_made());
        let all = WorkStream {
            name: subjects::scheduled_stream(model),
            subject: subjects::scheduled(model),
            max_messages: options.max_messages,
            max_deliver,
            duplicate_window: SCHEDULED_WINDOW,
        };
        for (level, policy) in options.policies() {
            let most = policy.max_waiting.unwrap_or(u64::MAX).min(options.max_messages);
            let level = WorkStream {
                name: subjects::work_stream(model, level),
                subject: subjects::work(model, level),
                max_messages: most,
                // Deliveries at a level are no attempts at its messages where those are scheduled first.
                max_deliver: if scheduled { ANY_NUMBER } else { max_deliver },
                duplicate_window: DEDUP_WINDOW,
            };
            self.make_stream(model, level, options).await?;
        }
        match scheduled {
            true => self.make_stream(model, all, options).await,
            false => Ok(()),
        }
    }

    /// Whether work is scheduled before it is executed: where the queue has a policy, and where it has had one, because what
    /// waits there still has been delivered any number of times.
    pub(super) async fn is_scheduled(&self, model: &ModelKey, options: &QueueOptions) -> Result<bool, BusError> {
        if options.has_policy() {
            return Ok(true);
        }
        match self.jetstream.get_stream(subjects::scheduled_stream(model)).await {
            Ok(_) => Ok(true),
            Err(error) if is_not_found(&error) => Ok(false),
            Err(error) => Err(failure("looking for a work queue", &error)),
        }
    }

    /// Makes a stream of work, and the consumer that workers share.
    async fn make_stream(
        &self,
        model: &ModelKey,
        WorkStream { name, subject, max_messages, max_deliver, duplicate_window }: WorkStream,
        options: &QueueOptions,
    ) -> Result<(), BusError> {
        let storage = match options.file_storage {
            true => stream::StorageType::File,
            false => stream::StorageType::Memory,
        };
        let config = stream::Config {
            name: name.clone(),
            description: Some(format!("work for {model}")),
            subjects: vec![subject],
            retention: stream::RetentionPolicy::WorkQueue,
            discard: stream::DiscardPolicy::New,
            max_messages: i64::try_from(max_messages).unwrap_or(i64::MAX),
            max_bytes: i64::try_from(options.max_bytes).unwrap_or(i64::MAX),
            duplicate_window,
            allow_message_ttl: true,
            num_replicas: options.replicas,
            storage,
            ..Default::default()
        };
        let made = self.create_or_update(config).await;
        made.map_err(|error| stream_failure("making a work queue", &name, &error))?;
        let config = consumer::pull::Config {
            durable_name: Some(subjects::WORKERS.to_owned()),
            description: Some(format!("workers of {model}")),
            ack_policy: consumer::AckPolicy::Explicit,
            ack_wait: options.ack_wait,
            max_deliver,
            // Pullers ask only for what they have room for, so the queue's own limit is the only one needed.
            max_ack_pending: i64::try_from(options.max_messages).unwrap_or(i64::MAX),
            ..Default::default()
        };
        let created = self.jetstream.create_consumer_on_stream(config, &name).await;
        created.map(drop).map_err(|error| match error.kind() {
            stream::ConsumerErrorKind::JetStream(answer) => BusError::Refused {
                action: "making a work queue's consumer",
                reason: format!("stream {name}: {answer}"),
            },
            _ => failure("making a work queue's consumer", &error),
        })
    }

    /// A stream that is made begins with a number that no stream of its name has come to before: an acknowledgement names
    /// its message by number alone, so one for a message that a broker has lost must be none for another message.
    async fn create_or_update(&self, config: stream::Config) -> Result<(), CreateStreamError> {
        let updated = self.jetstream.update_stream(&config).await;
        if !updated.as_ref().is_err_and(|error| error.kind() == CreateStreamErrorKind::NotFound) {
            return updated.map(drop);
        }
        let new = stream::Config { first_sequence: Some(UnixMicros::now().0), ..config.clone() };
        match self.jetstream.create_stream(new).await {
            // Another gateway was faster, and its stream begins with another number.
            Err(error) if is_name_in_use(&error) => self.jetstream.update_stream(&config).await.map(drop),
            created => created.map(drop),
        }
    }
}

// === What others ask for ===

/// What a process asks a gateway for.
#[derive(Debug)]
enum Request {
    Stream(Needed<'static>),
    Queue(QueueRequest),
}

/// Who may publish to a subject is held to it by the broker, so what is asked for has to be what that says.
fn read(subject: &str, body: &[u8]) -> Result<Request, String> {
    let fixed = [Needed::Attempts, Needed::Claims, Needed::Dead, Needed::Registry];
    if let Some(needed) = fixed.into_iter().find(|needed| needed.subject() == subject) {
        return Ok(Request::Stream(needed));
    }
    let request: QueueRequest = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if subjects::queue_request(&request.model) != subject {
        return Err(format!("it is for model '{}'", request.model));
    }
    let (name, levels) = (request.model.name.len(), request.options.levels.len());
    if name > MAX_NAME || levels > MAX_LEVELS {
        return Err(format!(
            "a name of {name} bytes and {levels} levels, expected {MAX_NAME} and {MAX_LEVELS} at most"
        ));
    }
    Ok(Request::Queue(request))
}

fn is_name_in_use(error: &CreateStreamError) -> bool {
    match error.kind() {
        CreateStreamErrorKind::JetStream(answer) => answer.error_code() == jetstream::ErrorCode::STREAM_NAME_EXIST,
        _ => false,
    }
}

/// As [`failure`], for a stream: the client keeps the broker's answer in the error's kind.
fn stream_failure(action: &'static str, name: &str, error: &CreateStreamError) -> BusError {
    match error.kind() {
        CreateStreamErrorKind::JetStream(answer) => BusError::Refused {
            action,
            reason: format!("stream {name}: {answer}; `nats stream rm {name}` makes room for one with new settings"),
        },
        _ => failure(action, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LevelPolicy;

    #[test]
    fn a_request_is_for_what_its_subject_says() {
        let model = ModelKey { name: "a.b".to_owned(), version: 3 };
        let body = |levels: u32| {
            let options = QueueOptions {
                levels: (1..=levels).map(|level| (level, LevelPolicy::default())).collect(),
                ..Default::default()
            };
            serde_json::to_vec(&QueueRequest { model: model.clone(), options }).unwrap()
        };
        let subject = "trireme.streams.work.a=2Eb.3";
        let Ok(Request::Queue(read_back)) = read(subject, &body(2)) else { panic!("{:?}", read(subject, &body(2))) };
        assert_eq!((read_back.model, read_back.options.levels.len()), (model.clone(), 2));
        assert_eq!(read("trireme.streams.work.other.3", &body(2)).unwrap_err(), "it is for model 'a.b:3'");
        assert!(read(subject, &body(1025)).unwrap_err().contains("1025 levels, expected 256 and 1024 at most"));
        assert!(read(subject, b"rubbish").is_err());
        assert!(matches!(read("trireme.streams.claims", b""), Ok(Request::Stream(Needed::Claims))));
        assert!(read("trireme.streams.other", b"").is_err());
    }
}
