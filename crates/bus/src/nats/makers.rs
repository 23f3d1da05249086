//! Stages ask a gateway to create the streams that they need.
//!
//! The broker's permissions cover the name of a stream, but not its subjects: a stage that may create a stream could
//! give it the subjects of replies and read them there. So stages may not create streams. A stage names the stream it
//! needs in a subject, which permissions do cover (`trireme.streams.work.<model>.<version>` for a queue), and the
//! gateway decides about the stream's configuration. The same is true of consumers, which deliver to any subject that
//! their creator chooses.
//!
//! Gateways listen as one queue group, so each request reaches a single gateway. A stage without an answer asks again, and
//! another gateway may get that request.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use async_nats::{HeaderMap, Message, Subject};
use bytes::Bytes;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use trireme_inference::ModelKey;

use super::connection::Nats;
use super::headers;
use super::limits::LONGEST;
use super::limits::{limited, taken};
use super::streams::Needed;
use super::subjects::Names;
use crate::envelope::MAX_NAME;
use crate::{Bucket, BusError, QueueOptions};

/// Streams that a gateway creates for stages at a time. Other requests wait for their turn.
const MAKING: usize = 64;

/// Most different requests for streams that a gateway takes. A stage whose request is not taken has to ask again.
const MOST_REQUESTS: usize = 8192;

/// The queue group of gateways that create streams.
const MAKERS: &str = "makers";

/// Most levels of a queue that a gateway creates for a stage.
const MAX_LEVELS: usize = 1024;

/// A stage's request for a queue. Its subject names the model too.
#[derive(Debug, Serialize, Deserialize)]
struct QueueRequest {
    model: ModelKey,
    options: QueueOptions,
}

/// A gateway's answer to a request for a stream.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StreamOutcome {
    Made,
    Refused(String),
    /// A limit of the account.
    OverLimit(String),
    Unreachable(String),
}

// === impl Nats ===

impl Nats {
    /// Makes sure that a stream exists, and that a queue has its options. A process without the permission asks a
    /// gateway. Any number of processes may do this at the same time.
    pub(super) async fn need(&self, needed: Needed<'_>) -> Result<(), BusError> {
        match self.makes_streams {
            true => self.make(needed, false).await,
            false => self.ask_for(needed).await,
        }
    }

    /// Answers requests for streams, for as long as the connection is open.
    pub(super) async fn keep_streams(&self) -> Result<(), BusError> {
        let asked = self.client.queue_subscribe(self.names.stream_requests(), MAKERS.to_owned());
        let mut asked = taken(asked).await?;
        let nats = self.clone();
        crate::spawn("nats streams", async move {
            let (mut making, turns) = (JoinSet::new(), Arc::new(Semaphore::new(MAKING)));
            // Stages that want the same stream share the answer.
            let mut askers = HashMap::<(String, Bytes), Vec<Subject>>::new();
            loop {
                let message = tokio::select! {
                    message = asked.next() => message,
                    Some(Ok((request, answer))) = making.join_next() => {
                        for asker in askers.remove(&request).unwrap_or_default() {
                            nats.answer(asker, &answer);
                        }
                        continue;
                    }
                };
                let Some(message) = message else { return };
                let Some(asker) = message.reply.clone().filter(|inbox| inbox.starts_with(&*nats.inboxes)) else {
                    continue;
                };
                let request = (message.subject.to_string(), message.payload.clone());
                match askers.entry(request) {
                    Entry::Occupied(mut same) => same.get_mut().push(asker),
                    Entry::Vacant(_) if making.len() >= MOST_REQUESTS => {
                        let reason = "too many streams are asked for at a time".to_owned();
                        nats.answer(asker, &StreamOutcome::Unreachable(reason));
                    }
                    Entry::Vacant(new) => {
                        let (nats, request, turns) = (nats.clone(), new.key().clone(), turns.clone());
                        new.insert(vec![asker]);
                        making.spawn(async move {
                            let _turn = turns.acquire().await;
                            let answer = nats.make_for(&message).await;
                            (request, answer)
                        });
                    }
                }
            }
        });
        Ok(())
    }

    /// Answers a stage. A stage without an answer asks again.
    fn answer(&self, asker: Subject, answer: &StreamOutcome) {
        if let Ok(body) = serde_json::to_vec(answer) {
            let client = self.client.clone();
            crate::spawn("nats answer", async move {
                drop(taken(client.publish_with_headers(asker, headers::answer(), body.into())).await)
            });
        }
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
        let (subject, mut connection) = (needed.subject(&self.names), self.connection.follow());
        let mut answers = self.question(subject.clone(), HeaderMap::new(), body.into()).await?;
        let answer = tokio::select! {
            answer = tokio::time::timeout(needed.patience(), Nats::next_answer(&mut answers)) => answer,
            reason = self.refused(|refusal| refusal.contains(&format!("\"{subject}\""))) => return Err(BusError::Refused { action, reason }),
            _ = connection.changed() => return Err(unreachable(&"the connection was lost")),
        };
        let answer = answer.map_err(|_| unreachable(&"no gateway has answered"))?;
        let answer = answer.ok_or_else(|| unreachable(&"no gateway is there to do it"))?;
        match serde_json::from_slice(&answer.payload) {
            Ok(StreamOutcome::Made) => Ok(()),
            Ok(StreamOutcome::Refused(reason)) => Err(BusError::Refused { action, reason }),
            Ok(StreamOutcome::OverLimit(reason)) => Err(BusError::OverLimit { reason }),
            Ok(StreamOutcome::Unreachable(reason)) => Err(unreachable(&reason)),
            Err(error) => Err(unreachable(&format!("a gateway's answer cannot be read: {error}"))),
        }
    }

    /// Creates the stream of a request.
    async fn make_for(&self, message: &Message) -> StreamOutcome {
        let made = match read(&self.names, &message.subject, &message.payload) {
            Ok(Request::Stream(needed)) => limited(LONGEST, self.make(needed, false)).await,
            Ok(Request::Queue(QueueRequest { model, options })) => {
                limited(LONGEST, self.make(Needed::Queue(&model, &options), true)).await
            }
            Err(reason) => {
                tracing::warn!(subject = %message.subject, reason, "refused a request for a stream");
                Err(BusError::Refused { action: "making a stream", reason })
            }
        };
        match made {
            Ok(()) => StreamOutcome::Made,
            Err(BusError::Refused { reason, .. }) => StreamOutcome::Refused(reason),
            Err(BusError::OverLimit { reason }) => StreamOutcome::OverLimit(reason),
            Err(error) => StreamOutcome::Unreachable(error.to_string()),
        }
    }
}

// === Requests of stages ===

/// A stage's request to a gateway.
#[derive(Debug)]
enum Request {
    Stream(Needed<'static>),
    Queue(QueueRequest),
}

/// Parses a request. It has to match its subject, because the broker's permissions cover the subject.
fn read(names: &Names, subject: &str, body: &[u8]) -> Result<Request, String> {
    let mut fixed = Bucket::ALL.into_iter().map(Needed::Bucket).chain([Needed::Claims]);
    if let Some(needed) = fixed.find(|needed| needed.subject(names) == subject) {
        return Ok(Request::Stream(needed));
    }
    let request: QueueRequest = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if names.queue_request(&request.model) != subject {
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

#[cfg(test)]
mod tests {
    use super::super::subjects::DeploymentName;
    use super::*;
    use crate::LevelPolicy;

    #[test]
    fn a_request_is_for_what_its_subject_says() {
        let names = Names::of(&DeploymentName::default());
        let model = ModelKey { name: "a.b".into(), version: 3 };
        let body = |levels: u32| {
            let options = QueueOptions {
                levels: (1..=levels).map(|level| (level, LevelPolicy::default())).collect(),
                ..Default::default()
            };
            serde_json::to_vec(&QueueRequest { model: model.clone(), options }).unwrap()
        };
        let subject = "trireme.streams.work.a=2Eb.3";
        let Ok(Request::Queue(read_back)) = read(&names, subject, &body(2)) else {
            panic!("{:?}", read(&names, subject, &body(2)))
        };
        assert_eq!((read_back.model, read_back.options.levels.len()), (model.clone(), 2));
        assert_eq!(read(&names, "trireme.streams.work.other.3", &body(2)).unwrap_err(), "it is for model 'a.b:3'");
        assert!(read(&names, subject, &body(1025)).unwrap_err().contains("1025 levels, expected 256 and 1024 at most"));
        assert!(read(&names, subject, b"rubbish").is_err());
        assert!(matches!(read(&names, "trireme.streams.claims", b""), Ok(Request::Stream(Needed::Claims))));
        assert!(read(&names, "trireme.streams.other", b"").is_err());
    }
}
