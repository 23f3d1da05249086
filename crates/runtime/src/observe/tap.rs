//! Taps: decoded copies of messages for a person who debugs, without any effect on the messages.
//!
//! The process of that person asks on the topic [`TAP`] and repeats the message for as long as the tap is needed.
//! Workers answer with the messages that they admit in the meantime: several messages in an answer, and few answers per
//! second. Messages beyond that are counted and left out. So a tap does not subscribe to work or replies, costs one
//! read of a flag while there is none, and ends when the asking process dies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use trireme_bus::{Bus, BusError, TopicMessage, WorkMessage, original_id};
use trireme_engine::stage;
use trireme_inference::{DataType, Hop, ModelKey, Tensor, UnixMicros};
use trireme_tasks::TaskSet;

/// The topic on which processes ask for taps.
pub const TAP: &str = "tap";

/// How long a tap lasts without being renewed.
const LASTS: Duration = Duration::from_secs(5);

/// How often the asking process renews its tap. A broker may allow only a few answers to a message: a worker sends at
/// most [`LASTS`] / [`FLUSH`] of them, apart from the first.
const RENEW: Duration = Duration::from_secs(2);

/// Time between two answers of a worker.
const FLUSH: Duration = Duration::from_millis(400);

/// Most messages in one answer.
const MAX_MESSAGES: usize = 32;

/// Most taps that a worker serves at a time.
const MAX_TAPS: usize = 8;

/// Number of a tensor's elements that are shown.
const SHOWN: usize = 8;

/// Number of a text's bytes that are shown.
const SHOWN_TEXT: usize = 120;

/// The messages that a tap shows; `None` matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapFilter {
    /// A model, or a stage: the service that executes it.
    pub stage: Option<String>,
    /// The request's id, ours or the client's.
    pub request_id: Option<String>,
}

/// A message for a tap.
#[derive(Serialize, Deserialize)]
struct Request {
    /// The id of the tap, the same each time the tap is renewed.
    id: String,
    filter: TapFilter,
}

/// A worker's answer to a message for a tap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TapAnswer {
    /// The worker.
    pub worker: String,
    /// Whether the worker hosts a model that matches the filter, and has room for the tap.
    pub listens: bool,
    /// Messages that it admitted since its last answer.
    pub messages: Vec<TappedMessage>,
    /// Number of further messages that were left out.
    pub left_out: u64,
}

/// A message that a worker admitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TappedMessage {
    /// When the message was admitted, in microseconds since the Unix epoch.
    pub time_us: u64,
    /// The model version that is to be executed.
    pub model: String,
    /// The request's id.
    pub request_id: String,
    /// The client's own id; may be empty.
    pub client_id: String,
    /// The gateway that waits for the answer.
    pub gateway: String,
    /// The step's number, from 0.
    pub step: u32,
    /// The models of the steps still to run, this one first.
    pub route: Vec<String>,
    /// Delivery attempt, from 1.
    pub attempt: u32,
    /// Time left until its deadline, in milliseconds.
    pub remaining_ms: u64,
    /// Its live tensors: name, datatype, shape, bytes and the first values.
    pub tensors: Vec<Value>,
    /// The hops of the steps executed so far.
    pub ledger: Vec<Hop>,
}

/// The taps of a worker.
#[derive(Default)]
pub(crate) struct Taps {
    /// Whether there are any taps. While there are none, a message costs only this read.
    active: AtomicBool,
    open: Mutex<HashMap<String, Tap>>,
}

struct Tap {
    filter: TapFilter,
    until: Instant,
    /// The latest message of the asking process; answers go there.
    message: Arc<TopicMessage>,
    messages: Vec<TappedMessage>,
    left_out: u64,
}

// === impl TapFilter ===

impl TapFilter {
    fn hosts(&self, model: &ModelKey, stage: &str) -> bool {
        self.stage.as_ref().is_none_or(|wanted| *wanted == model.name || *wanted == stage)
    }

    fn wants(&self, message: &WorkMessage) -> bool {
        let ids = [message.request_id.as_str(), original_id(&message.request_id), message.client_id.as_str()];
        self.request_id.as_ref().is_none_or(|wanted| ids.contains(&wanted.as_str()))
    }
}

// === impl Taps ===

impl Taps {
    /// Shows a message that is being admitted to the taps whose filter matches it.
    pub fn see(&self, model: &ModelKey, backend: &str, message: &WorkMessage, attempt: u32) {
        if self.active.load(Ordering::Relaxed) {
            self.show(model, stage(backend), message, attempt);
        }
    }

    fn show(&self, model: &ModelKey, stage: &str, message: &WorkMessage, attempt: u32) {
        let mut shown: Option<TappedMessage> = None;
        for tap in self.open.lock().values_mut() {
            if !tap.filter.hosts(model, stage) || !tap.filter.wants(message) {
                continue;
            }
            if tap.messages.len() >= MAX_MESSAGES {
                tap.left_out += 1;
                continue;
            }
            let shown = shown.get_or_insert_with(|| TappedMessage::of(model, message, attempt));
            tap.messages.push(shown.clone());
        }
    }

    /// Receives messages for taps and answers them, for as long as `tasks` runs. `hosted` returns the models of this
    /// worker, each with its backend.
    pub async fn serve(
        self: &Arc<Self>,
        worker: String,
        bus: &dyn Bus,
        tasks: &TaskSet,
        hosted: impl Fn() -> Vec<(ModelKey, String)> + Send + 'static,
    ) -> Result<(), BusError> {
        let mut messages = bus.subscribe(TAP).await?;
        let taps = self.clone();
        tasks.spawn_until_stop("taps", async move {
            let mut ticks = tokio::time::interval(FLUSH);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    message = messages.recv() => match message {
                        Some(message) => taps.open(&worker, message, &hosted()).await,
                        None => return,
                    },
                    _ = ticks.tick(), if taps.active.load(Ordering::Relaxed) => taps.flush(&worker).await,
                }
            }
        });
        Ok(())
    }

    async fn open(&self, worker: &str, message: TopicMessage, hosted: &[(ModelKey, String)]) {
        let request: Request = match serde_json::from_slice(&message.body) {
            Ok(request) => request,
            Err(error) => return tracing::warn!(%error, "ignored a message for a tap that cannot be read"),
        };
        let message = Arc::new(message);
        let hosts = hosted.iter().any(|(model, backend)| request.filter.hosts(model, stage(backend)));
        let listens = hosts && self.enter(request, message.clone());
        send(&message, &TapAnswer { worker: worker.to_owned(), listens, messages: Vec::new(), left_out: 0 }).await;
    }

    /// Begins or renews a tap, if there is room.
    fn enter(&self, request: Request, message: Arc<TopicMessage>) -> bool {
        let mut open = self.open.lock();
        let until = Instant::now() + LASTS;
        if let Some(tap) = open.get_mut(&request.id) {
            (tap.until, tap.message, tap.filter) = (until, message, request.filter);
            return true;
        }
        if open.len() >= MAX_TAPS {
            return false;
        }
        let tap = Tap { filter: request.filter, until, message, messages: Vec::new(), left_out: 0 };
        open.insert(request.id, tap);
        self.active.store(true, Ordering::Relaxed);
        true
    }

    async fn flush(&self, worker: &str) {
        let answers: Vec<_> = {
            let mut open = self.open.lock();
            let now = Instant::now();
            open.retain(|_, tap| tap.until > now);
            self.active.store(!open.is_empty(), Ordering::Relaxed);
            let seen = open.values_mut().filter(|tap| !tap.messages.is_empty());
            seen.map(|tap| {
                let (messages, left_out) = (std::mem::take(&mut tap.messages), std::mem::take(&mut tap.left_out));
                let answer = TapAnswer { worker: worker.to_owned(), listens: true, messages, left_out };
                (tap.message.clone(), answer)
            })
            .collect()
        };
        for (message, answer) in answers {
            send(&message, &answer).await;
        }
    }
}

async fn send(message: &TopicMessage, answer: &TapAnswer) {
    let body = serde_json::to_vec(answer).expect("numbers and texts become JSON");
    if let Err(error) = message.answer(body.into()).await {
        tracing::debug!(%error, "messages for a tap could not be sent");
    }
}

// === impl TappedMessage ===

impl TappedMessage {
    fn of(model: &ModelKey, message: &WorkMessage, attempt: u32) -> TappedMessage {
        let now = UnixMicros::now();
        let remaining = message.deadline.remaining(now).unwrap_or_default();
        TappedMessage {
            time_us: now.0,
            model: model.to_string(),
            request_id: message.request_id.to_string(),
            client_id: cut(message.client_id.as_bytes()),
            gateway: message.gateway.to_string(),
            step: message.route.step_number(),
            route: message.route.remaining().iter().map(|step| step.model.to_string()).collect(),
            attempt,
            remaining_ms: u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX),
            tensors: message.tensors.iter().map(preview).collect(),
            ledger: message.ledger.0.clone(),
        }
    }
}

/// The JSON of a tensor, with its first values.
fn preview(tensor: &Tensor) -> Value {
    json!({
        "name": tensor.name(),
        "datatype": tensor.datatype().name(),
        "shape": &tensor.shape()[..],
        "bytes": tensor.data().len(),
        "first": first(tensor),
    })
}

/// The first values of a tensor. Reads only their bytes, however large the tensor is.
fn first(tensor: &Tensor) -> Vec<Value> {
    fn numbers<const N: usize>(data: &[u8], number: impl Fn([u8; N]) -> Value) -> Vec<Value> {
        data.as_chunks::<N>().0.iter().take(SHOWN).map(|bytes| number(*bytes)).collect()
    }
    let data = tensor.data();
    match tensor.datatype() {
        DataType::Bytes => {
            let elements = tensor.bytes_elements().into_iter().flatten().take(SHOWN);
            elements.map(|element| Value::from(cut(element))).collect()
        }
        DataType::Bool => numbers(data, |[byte]: [u8; 1]| Value::from(byte != 0)),
        DataType::Uint8 => numbers(data, |bytes| Value::from(u8::from_le_bytes(bytes))),
        DataType::Int8 => numbers(data, |bytes| Value::from(i8::from_le_bytes(bytes))),
        DataType::Uint16 => numbers(data, |bytes| Value::from(u16::from_le_bytes(bytes))),
        DataType::Int16 => numbers(data, |bytes| Value::from(i16::from_le_bytes(bytes))),
        DataType::Uint32 => numbers(data, |bytes| Value::from(u32::from_le_bytes(bytes))),
        DataType::Int32 => numbers(data, |bytes| Value::from(i32::from_le_bytes(bytes))),
        DataType::Uint64 => numbers(data, |bytes| Value::from(u64::from_le_bytes(bytes))),
        DataType::Int64 => numbers(data, |bytes| Value::from(i64::from_le_bytes(bytes))),
        DataType::Fp32 => numbers(data, |bytes| Value::from(f32::from_le_bytes(bytes))),
        DataType::Fp64 => numbers(data, |bytes| Value::from(f64::from_le_bytes(bytes))),
        // JSON has no numbers of these types, so their bits are shown.
        DataType::Fp16 | DataType::Bf16 => {
            numbers(data, |bytes| Value::from(format!("0x{:04x}", u16::from_le_bytes(bytes))))
        }
    }
}

/// The beginning of a text.
fn cut(bytes: &[u8]) -> String {
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_TEXT)]).into_owned();
    if bytes.len() > SHOWN_TEXT { format!("{shown}… ({} bytes)", bytes.len()) } else { shown }
}

/// Opens a tap until the receiver is dropped. The receiver gets the messages that workers admit and, from each worker
/// at the beginning and at each renewal, whether it listens. `id` must be unique among taps.
pub fn tap(
    bus: Arc<dyn Bus>,
    tasks: &TaskSet,
    id: String,
    filter: TapFilter,
) -> BoxFuture<'_, Result<mpsc::Receiver<TapAnswer>, BusError>> {
    Box::pin(async move {
        let (sender, receiver) = mpsc::channel(64);
        let body: Bytes = serde_json::to_vec(&Request { id, filter }).expect("texts become JSON").into();
        let mut newer = bus.request(TAP, body.clone()).await?;
        tasks.spawn("tap", async move {
            // Answers to the message before the last one may still arrive when the next one is sent.
            let mut older = mpsc::channel::<Bytes>(1).1;
            let mut renew = tokio::time::interval_at(tokio::time::Instant::now() + RENEW, RENEW);
            loop {
                let answer = tokio::select! {
                    Some(answer) = newer.recv() => answer,
                    Some(answer) = older.recv() => answer,
                    _ = renew.tick() => {
                        match bus.request(TAP, body.clone()).await {
                            Ok(asked) => older = std::mem::replace(&mut newer, asked),
                            Err(error) => tracing::debug!(%error, "the tap could not be renewed"),
                        }
                        continue;
                    }
                    () = sender.closed() => return,
                };
                match serde_json::from_slice(&answer) {
                    Ok(answer) => {
                        if sender.send(answer).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => tracing::warn!(%error, "ignored an answer to a tap that cannot be read"),
                }
            }
        });
        Ok(receiver)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_values_are_shown_and_texts_are_cut() {
        let numbers = Tensor::from_values("n", [20], (0..20i64).collect()).unwrap();
        assert_eq!(first(&numbers), (0..8).map(Value::from).collect::<Vec<_>>());
        let texts = Tensor::from_bytes_elements("t", [2], &["a".to_owned(), "é".repeat(200)]).unwrap();
        let shown = preview(&texts);
        assert_eq!(shown["first"][0], "a");
        assert!(shown["first"][1].as_str().unwrap().ends_with("… (400 bytes)"), "{shown}");
        let floats = Tensor::from_values("f", [2], vec![0.5f32, f32::NAN]).unwrap();
        assert_eq!(first(&floats), [json!(0.5), Value::Null]);
    }

    #[test]
    fn a_filter_takes_models_stages_and_both_ids() {
        let model = ModelKey { name: "m".into(), version: 1 };
        let filter = |stage: Option<&str>| TapFilter { stage: stage.map(str::to_owned), request_id: None };
        let hosts = |stage| filter(stage).hosts(&model, "tokenizer");
        assert_eq!(
            [hosts(None), hosts(Some("m")), hosts(Some("tokenizer")), hosts(Some("x"))],
            [true, true, true, false]
        );
    }
}
