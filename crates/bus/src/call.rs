//! Calls: requests that the code of a model sends to other models.
//!
//! A worker sends a call to one of the gateways, which runs it like a client's request and sends the replies back. A call
//! is encoded like a work message whose route has one step: the model, version [`LATEST`] for the latest one, and the
//! outputs that are wanted. The gateway makes the real route. The request's id names the call.
//!
//! Nothing is stored. While a gateway runs a call it says so every [`ALIVE`], so that the caller notices within
//! [`SILENCE`] that the gateway is gone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use trireme_inference::{Action, InferError, UnixMicros};

use crate::envelope::{self, MAX_NAME};
use crate::{
    Bus, BusError, EnvelopeError, Reply, ReplyHeaders, TopicMessage, WorkHeaders, WorkMessage, decode_reply,
    decode_work, encode_reply, encode_work,
};

/// The version in a call that leaves the choice to the gateway.
pub const LATEST: i64 = -1;

/// The topic of calls, which gateways share: each call goes to one gateway.
const CALL: &str = "call";

/// The topic of calls whose answers nobody waits for any more.
const HANG_UP: &str = "hang_up";

/// How often a gateway says that it still runs a call.
pub const ALIVE: Duration = Duration::from_secs(2);

/// How long a caller waits without a sign of the gateway.
const SILENCE: Duration = Duration::from_secs(10);

/// Calls that may wait for the gateway to take them.
const BACKLOG: usize = 1024;

/// Number of calls from which on those that have ended are looked for.
const FEW: usize = 64;

/// A call on the wire, as MessagePack.
#[derive(Serialize, Deserialize)]
struct WireCall {
    #[serde(default)]
    action: Action,
    headers: WorkHeaders,
    /// The body of the work message.
    body: Bytes,
}

/// An answer on the wire, as MessagePack; `None` is a sign of life.
type WireAnswer = Option<WireReply>;

#[derive(Serialize, Deserialize)]
struct WireReply {
    headers: ReplyHeaders,
    /// The body of the reply.
    body: Bytes,
}

/// A call at the gateway that runs it.
pub struct Call {
    /// The action that the model asks for.
    pub action: Action,
    /// The request; see the module's documentation for its route.
    pub message: WorkMessage,
    question: TopicMessage,
    /// Closed or true when the caller waits no longer.
    hung_up: watch::Receiver<bool>,
}

/// The replies to a call. Dropping them before the last one ends the call.
///
/// A model's call, and the gateway that runs it:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let model = trireme_inference::ModelKey { name: "encoder".into(), version: 1 };
/// # use std::sync::Arc;
/// use trireme_bus::fixtures::message;
/// use trireme_bus::{Bus, CallReplies, InProcess, Output};
/// use trireme_inference::Action;
///
/// let bus: Arc<dyn Bus> = Arc::new(InProcess::default());
/// let mut calls = bus.calls().await?;
/// let mut replies = CallReplies::open(bus.clone(), Action::Infer, message(&model, 7)).await?;
///
/// let call = calls.recv().await.expect("one gateway gets the call");
/// call.reply(&call.message.reply(Ok(Output::default()))).await?;
/// assert!(replies.next().await.is_some_and(|reply| reply.last && reply.outcome.is_ok()));
/// assert!(replies.next().await.is_none());
/// # Ok(())
/// # }
/// ```
pub struct CallReplies {
    bus: Arc<dyn Bus>,
    message: WorkMessage,
    answers: mpsc::Receiver<Bytes>,
    complete: bool,
}

/// The calls that a gateway runs, by id. Ended calls are removed when the map has grown.
#[derive(Default)]
struct Running {
    calls: HashMap<String, watch::Sender<bool>>,
    sweep_at: usize,
}

// === impl Call ===

impl Call {
    /// Sends a reply.
    pub async fn reply(&self, reply: &Reply) -> Result<(), BusError> {
        let reply = WireReply { headers: ReplyHeaders::of(reply), body: encode_reply(reply)? };
        self.send(&Some(reply)).await
    }

    /// Says that the gateway still runs it.
    pub async fn alive(&self) -> Result<(), BusError> {
        self.send(&None).await
    }

    async fn send(&self, answer: &WireAnswer) -> Result<(), BusError> {
        let body = rmp_serde::to_vec_named(answer).map_err(EnvelopeError::from)?;
        self.question.answer(body.into()).await
    }

    /// Waits until the caller waits no longer.
    pub async fn hung_up(&self) {
        let mut hung_up = self.hung_up.clone();
        // The sender is dropped when the gateway takes no more calls. The call goes on then.
        if hung_up.wait_for(|hung_up| *hung_up).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

// === impl CallReplies ===

impl CallReplies {
    /// Sends a call.
    pub async fn open(bus: Arc<dyn Bus>, action: Action, message: WorkMessage) -> Result<CallReplies, BusError> {
        let call = WireCall { action, headers: WorkHeaders::of(&message), body: encode_work(&message)? };
        let body = rmp_serde::to_vec_named(&call).map_err(EnvelopeError::from)?;
        let answers = bus.request(CALL, body.into()).await?;
        Ok(CallReplies { bus, message, answers, complete: false })
    }

    /// The next reply; `None` after the last one. Ends with an error at the deadline, or when the gateway is gone.
    pub async fn next(&mut self) -> Option<Reply> {
        if self.complete {
            return None;
        }
        let reply = self.receive().await;
        self.complete = reply.last;
        Some(reply)
    }

    async fn receive(&mut self) -> Reply {
        loop {
            let left = self.message.deadline.remaining(UnixMicros::now());
            let Some(left) = left else { return self.fail("Request timeout expired") };
            let answer = match tokio::time::timeout(left.min(SILENCE), self.answers.recv()).await {
                Err(_) if left <= SILENCE => continue,
                Err(_) => return self.fail("the gateway that ran it is gone"),
                Ok(None) => return self.fail("no gateway is there to run it"),
                Ok(Some(answer)) => answer,
            };
            match read_answer(&answer) {
                Ok(Some(reply)) => return reply,
                Ok(None) => {}
                Err(error) => return self.fail(&format!("the gateway's answer cannot be read: {error}")),
            }
        }
    }

    fn fail(&self, reason: &str) -> Reply {
        let model = self.message.route.model();
        self.message.reply(Err(InferError::unavailable(format!("request to model '{}': {reason}", model.name))))
    }
}

impl Drop for CallReplies {
    fn drop(&mut self) {
        if self.complete {
            return;
        }
        let (bus, id) = (self.bus.clone(), Bytes::copy_from_slice(self.message.request_id.as_bytes()));
        if tokio::runtime::Handle::try_current().is_ok() {
            crate::spawn("hanging up", async move {
                if let Err(error) = bus.publish_to(HANG_UP, id).await {
                    tracing::debug!(%error, "a call that nobody waits for could not be ended; it ends at its deadline");
                }
            });
        }
    }
}

fn read_answer(answer: &[u8]) -> Result<Option<Reply>, EnvelopeError> {
    let answer: WireAnswer = envelope::decode_body(answer)?;
    answer.map(|WireReply { headers, body }| decode_reply(headers, &body)).transpose()
}

fn read_call(body: &[u8]) -> Result<(Action, WorkMessage), EnvelopeError> {
    let WireCall { action, headers, body } = envelope::decode_body(body)?;
    Ok((action, decode_work(headers, &body)?))
}

// === impl Running ===

impl Running {
    /// Remembers a call; the receiver tells when the caller waits no longer.
    fn begin(&mut self, id: &str) -> watch::Receiver<bool> {
        if self.calls.len() >= self.sweep_at {
            self.calls.retain(|_, call| !call.is_closed());
            self.sweep_at = (2 * self.calls.len()).max(FEW);
        }
        let (sender, receiver) = watch::channel(false);
        self.calls.insert(id.to_owned(), sender);
        receiver
    }

    fn hang_up(&mut self, id: &[u8]) {
        if let Some(call) = std::str::from_utf8(id).ok().and_then(|id| self.calls.remove(id)) {
            call.send_replace(true);
        }
    }
}

impl dyn Bus + '_ {
    /// The calls that this gateway gets from now on. Each call goes to one gateway.
    pub async fn calls(&self) -> Result<mpsc::Receiver<Call>, BusError> {
        let (mut asked, mut ended) = (self.queue_subscribe(CALL).await?, self.subscribe(HANG_UP).await?);
        let (sender, receiver) = mpsc::channel(BACKLOG);
        crate::spawn("calls", async move {
            let mut running = Running::default();
            loop {
                let question = tokio::select! {
                    biased;
                    question = asked.recv() => question,
                    Some(id) = ended.recv() => {
                        running.hang_up(&id.body);
                        continue;
                    }
                    () = sender.closed() => return,
                };
                let Some(question) = question else { return };
                let (action, message) = match read_call(&question.body) {
                    Ok((action, message)) if message.request_id.len() <= MAX_NAME => (action, message),
                    Ok((_, message)) => {
                        tracing::warn!(bytes = message.request_id.len(), "ignored a call with too long an id");
                        continue;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "ignored a malformed call");
                        continue;
                    }
                };
                let hung_up = running.begin(&message.request_id);
                if sender.send(Call { action, message, question, hung_up }).await.is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }
}
