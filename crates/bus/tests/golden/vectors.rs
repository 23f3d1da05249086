//! The messages of the golden vectors, and their description in JSON for people and programs in any language.
//!
//! The headers are written here from the contract, without the bus's own code; the tests over NATS compare that code
//! with them.

#![allow(dead_code, reason = "each of its users needs a part of it")]

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use trireme_bus::{
    AnswerForm, EnvelopeError, Output, Part, Reply, ReplyHeaders, WorkHeaders, WorkMessage, decode_reply, decode_work,
    encode_reply, encode_work,
};
use trireme_inference::{
    Callers, DataType, Hop, InferError, Ledger, ModelKey, ParameterValue, Parameters, Route, Step, StepInput,
    StepOutput, Tensor, TextFacts, TraceParent, UnixMicros,
};

/// One vector: `<name>.msgpack` is the body, `<name>.json` the description.
pub struct Vector {
    pub name: &'static str,
    /// Describes the vector's purpose.
    pub about: &'static str,
    pub message: Message,
    /// Whether its body travels by claim, at a broker with [`CLAIM_ABOVE`]. The committed body is then all parts
    /// together.
    pub claimed: bool,
}

/// The claim of the claimed vector: its request, step and time of sending.
const CLAIM: &str = "r4=2F0=2F1767225600000000";

/// The `max_payload` of the broker for claimed vectors, and the size of a part there.
pub const CLAIM_ABOVE: usize = 4096;
pub const PART_BYTES: usize = CLAIM_ABOVE - 256;

/// One of the contract's two messages.
#[derive(Debug, PartialEq)]
pub enum Message {
    Work(WorkMessage),
    Reply(Reply),
}

/// The folder of the vectors.
pub fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/message-contract"))
}

pub fn all() -> Vec<Vector> {
    let vector = |name, about, message| Vector { name, about, message, claimed: false };
    let output = Output {
        tensors: vec![numbers("embedding", &[1, 2], &[0.25, -1.5])],
        parameters: Parameters::from([("truncated".to_owned(), ParameterValue::Bool(false))]),
    };
    let refusal = InferError::invalid_arg("in ensemble 'embed', tensor 'ids' holds INT32, expected INT64");
    vec![
        vector("work-single", "a request for a single model: the least a work message holds", Message::Work(single())),
        vector(
            "work-ensemble",
            "an ensemble after its first step: two steps left, tensors that die, an optional input, parameters of every \
             type, a ledger",
            Message::Work(ensemble()),
        ),
        vector("work-datatypes", "tensors of every datatype, a scalar and empty ones", Message::Work(datatypes())),
        vector(
            "work-in-parts",
            "a request whose answer may come in parts",
            Message::Work(WorkMessage { answer: AnswerForm::InParts, ..single() }),
        ),
        vector(
            "work-part",
            "the third part of an answer, and the last one, on its way through the steps that are left",
            Message::Work(WorkMessage { answer: AnswerForm::Part(Part { sequence: 2, last: true }), ..ensemble() }),
        ),
        Vector {
            claimed: true,
            ..vector("work-claimed", "a body above the broker's max_payload of 4096 bytes, in two parts", Message::Work(large()))
        },
        vector("reply-result", "the one reply to a request, with its result", Message::Reply(ensemble().reply(Ok(output)))),
        vector(
            "reply-partial",
            "the second of several replies; more follow",
            Message::Reply(Reply { sequence: 1, last: false, ..single().reply(Ok(Output::default())) }),
        ),
        vector(
            "reply-error",
            "a reply that says why there is no result, and where that was found",
            Message::Reply(ensemble().reply(Err(refusal.at("minilm:2", "worker-b")))),
        ),
    ]
    .into_iter()
    .map(at_a_fixed_time)
    .collect()
}

fn at_a_fixed_time(mut vector: Vector) -> Vector {
    if let Message::Reply(reply) = &mut vector.message {
        reply.sent_at = UnixMicros(1_767_225_600_250_000);
    }
    vector
}

fn single() -> WorkMessage {
    let step = Step {
        model: key("minilm", 2),
        inputs: vec![input("input_ids", "input_ids")],
        outputs: vec![output("last_hidden_state", "last_hidden_state")],
        dead: vec![],
        level: 0,
        content: None,
    };
    WorkMessage {
        request_id: "r1".into(),
        gateway: "gateway-1".into(),
        deadline: UnixMicros(1_767_225_630_000_000),
        priority: 0,
        traceparent: None,
        client_id: String::new().into(),
        sent_at: UnixMicros(1_767_225_600_000_000),
        route: Route::resume(key("minilm", 2), false, 0, vec![step]),
        tensors: vec![Tensor::from_values("input_ids", [1, 3], vec![101i64, 7592, 102]).expect("three numbers")],
        parameters: Arc::default(),
        ledger: Ledger::default(),
        answer: AnswerForm::Whole,
        callers: Callers::default(),
        job: None,
        owner: trireme_inference::Owner::default(),
    }
}

fn ensemble() -> WorkMessage {
    let model = Step {
        model: key("minilm", 2),
        inputs: vec![
            input("input_ids", "ids"),
            StepInput { optional: true, ..input("token_type_ids", "types") },
            input("attention_mask", "mask"),
        ],
        outputs: vec![output("last_hidden_state", "hidden")],
        dead: vec!["ids".into()],
        level: 1,
        content: Some("sha256:9f86d081884c7d65".into()),
    };
    let pool = Step {
        model: key("mean pool", 1),
        inputs: vec![input("hidden", "hidden"), input("mask", "mask")],
        outputs: vec![output("pooled", "embedding")],
        dead: vec!["mask".into(), "hidden".into()],
        level: 0,
        content: None,
    };
    let hop = Hop {
        model: "tokenizer".into(),
        worker: "worker-a".into(),
        transit_us: 210,
        queue_us: 35,
        compute_input_us: 4,
        compute_infer_us: 180,
        compute_output_us: 6,
        batch_size: 1,
        texts: Some(TextFacts { tokens: 2, truncated: 0, windows: 0 }),
        each_text: Vec::new(),
        cached: Default::default(),
        equivalent: Vec::new(),
        space: Some("5d41402abc4b2a76b9719d911017c592".into()),
    };
    let parameters = [
        ("dimensions", ParameterValue::Int64(256)),
        ("large", ParameterValue::Uint64(u64::MAX)),
        ("negative", ParameterValue::Int64(-1)),
        ("normalize", ParameterValue::Bool(true)),
        ("prompt", "quéry: ".into()),
        ("temperature", ParameterValue::Double(0.5)),
    ];
    WorkMessage {
        request_id: "r2".into(),
        gateway: "gateway-1".into(),
        deadline: UnixMicros(1_767_225_605_000_000),
        priority: 1,
        traceparent: Some(TraceParent::new(
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            Some("vendor=value"),
        )),
        client_id: "the client's id".into(),
        sent_at: UnixMicros(1_767_225_600_125_000),
        route: Route::resume(key("embed", 1), true, 1, vec![model, pool]),
        tensors: vec![
            Tensor::from_values("ids", [1, 2], vec![101i64, 102]).expect("two numbers"),
            Tensor::from_values("mask", [1, 2], vec![1i64, 1]).expect("two numbers"),
        ],
        parameters: Arc::new(parameters.map(|(name, value)| (name.to_owned(), value)).into()),
        ledger: Ledger(vec![hop]),
        answer: AnswerForm::Whole,
        callers: Callers::default(),
        job: None,
        owner: trireme_inference::Owner::default(),
    }
}

fn datatypes() -> WorkMessage {
    let mut tensors: Vec<Tensor> = DataType::ALL
        .into_iter()
        .filter_map(|datatype| {
            let size = datatype.element_size()?;
            let data: Vec<u8> = match datatype {
                DataType::Bool => vec![1, 0],
                _ => (1..=2 * size as u8).collect(),
            };
            Some(Tensor::new(datatype.name(), datatype, [2], data.into()).expect("two elements"))
        })
        .collect();
    let texts = [&b"hi"[..], b"", "é\n".as_bytes(), b"\0\xff"];
    tensors.push(Tensor::from_bytes_elements("BYTES", [2, 2], &texts).expect("four elements"));
    tensors.push(numbers("scalar", &[], &[1.0]));
    tensors.push(numbers("empty", &[2, 0, 3], &[]));
    tensors.push(Tensor::new("no texts", DataType::Bytes, [0], Bytes::new()).expect("no elements"));
    WorkMessage { request_id: "r3".into(), tensors, ..single() }
}

fn large() -> WorkMessage {
    let ids: Vec<i64> = (0..520).collect();
    let tensor = Tensor::from_values("input_ids", [2, 260], ids).expect("520 numbers");
    WorkMessage { request_id: "r4".into(), tensors: vec![tensor], ..single() }
}

fn key(name: &str, version: i64) -> ModelKey {
    ModelKey { name: name.into(), version }
}

fn input(name: &str, tensor: &str) -> StepInput {
    StepInput { name: name.into(), tensor: tensor.into(), optional: false, reshapes: Vec::new(), crosses: false }
}

fn output(name: &str, tensor: &str) -> StepOutput {
    StepOutput { name: name.into(), tensor: tensor.into() }
}

fn numbers(name: &str, shape: &[i64], values: &[f32]) -> Tensor {
    Tensor::from_values(name, shape, values.to_vec()).expect("as many numbers as the shape says")
}

// === impl Message ===

impl Message {
    /// Encodes the body.
    pub fn encode(&self) -> Result<Bytes, EnvelopeError> {
        match self {
            Message::Work(message) => encode_work(message),
            Message::Reply(reply) => encode_reply(reply),
        }
    }

    /// Decodes a body to a message of this one's kind, with its headers.
    pub fn decode(&self, body: &Bytes) -> Result<Message, EnvelopeError> {
        match self {
            Message::Work(message) => decode_work(WorkHeaders::of(message), body).map(Message::Work),
            Message::Reply(Reply { request_id, gateway, sequence, last, .. }) => {
                let headers = ReplyHeaders {
                    request_id: request_id.clone(),
                    gateway: gateway.clone(),
                    sequence: *sequence,
                    last: *last,
                };
                decode_reply(headers, body).map(Message::Reply)
            }
        }
    }

    /// The subject on which it is published.
    pub fn subject(&self) -> String {
        match self {
            Message::Work(message) => {
                let step = message.route.current().expect("the vectors have a step left");
                // Of the names in use here, only the space has to be escaped.
                let [model, gateway, request] =
                    [&step.model.name, &message.gateway, &message.request_id].map(|name| name.replace(' ', "=20"));
                format!("trireme.work.{model}.{}.{}.{gateway}.{request}", step.model.version, step.level)
            }
            Message::Reply(reply) => format!("trireme.reply.{}.{}", reply.gateway, reply.request_id),
        }
    }

    /// Its headers.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        match self {
            Message::Work(message) => {
                let mut id = format!("{}/{}", message.request_id, message.route.step_number());
                let mut answer = Vec::new();
                match message.answer {
                    AnswerForm::Whole => {}
                    AnswerForm::InParts => answer.push(("Trireme-In-Parts", "true".to_owned())),
                    AnswerForm::Part(part) => {
                        id = format!("{id}/{}", part.sequence);
                        answer.push(("Trireme-Sequence", part.sequence.to_string()));
                        answer.push(("Trireme-Final", part.last.to_string()));
                    }
                }
                let mut headers = vec![
                    ("Nats-Msg-Id", id),
                    ("Trireme-Contract", "4".to_owned()),
                    ("Trireme-Request", message.request_id.to_string()),
                    ("Trireme-Gateway", message.gateway.to_string()),
                    ("Trireme-Deadline", message.deadline.0.to_string()),
                    ("Trireme-Priority", message.priority.to_string()),
                ];
                headers.extend(answer);
                let trace = message.traceparent.iter().flat_map(TraceParent::headers);
                headers.extend(trace.map(|(name, value)| (name, value.to_string())));
                headers
            }
            Message::Reply(reply) => vec![
                ("Trireme-Contract", "4".to_owned()),
                ("Trireme-Request", reply.request_id.to_string()),
                ("Trireme-Gateway", reply.gateway.to_string()),
                ("Trireme-Sequence", reply.sequence.to_string()),
                ("Trireme-Final", reply.last.to_string()),
            ],
        }
    }

    /// The body's map; `data` of a tensor is in hexadecimal digits.
    fn body(&self) -> Value {
        match self {
            Message::Work(message) => json!({
                "route": {
                    "model": message.route.model().name,
                    "version": message.route.model().version,
                    "ensemble": message.route.is_ensemble(),
                    "step": message.route.step_number(),
                    "steps": message.route.remaining(),
                },
                "tensors": describe_tensors(&message.tensors),
                "parameters": *message.parameters,
                "ledger": message.ledger,
                "id": message.client_id,
                "sent_at": message.sent_at,
            }),
            Message::Reply(reply) => {
                let none = Output::default();
                let output = reply.outcome.as_ref().unwrap_or(&none);
                let mut body = json!({
                    "tensors": describe_tensors(&output.tensors),
                    "parameters": output.parameters,
                    "ledger": reply.ledger,
                    "sent_at": reply.sent_at,
                });
                if let Err(error) = &reply.outcome {
                    body["error"] = json!(error);
                }
                body
            }
        }
    }
}

// === impl Vector ===

impl Vector {
    /// Its headers.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = self.message.headers();
        if self.claimed {
            let size = self.message.encode().expect("the vectors can be encoded").len();
            headers.push(("Trireme-Claim", CLAIM.to_owned()));
            headers.push(("Trireme-Claim-Bytes", size.to_string()));
            headers.push(("Trireme-Claim-Parts", self.parts().len().to_string()));
        }
        headers
    }

    /// The subjects of the parts of a claimed body, with the bytes of each.
    pub fn parts(&self) -> Vec<(String, Bytes)> {
        if !self.claimed {
            return Vec::new();
        }
        let body = self.message.encode().expect("the vectors can be encoded");
        let part = |number: usize| body.slice(number * PART_BYTES..body.len().min((number + 1) * PART_BYTES));
        (0..body.len().div_ceil(PART_BYTES)).map(|n| (format!("trireme.claim.{CLAIM}.{n}"), part(n))).collect()
    }

    /// The text of its JSON file.
    pub fn describe(&self) -> String {
        let headers: Map<String, Value> =
            self.headers().into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        let mut description = json!({
            "about": self.about,
            "subject": self.message.subject(),
            "headers": headers,
            "body": self.message.body(),
        });
        let parts: Vec<_> = self
            .parts()
            .into_iter()
            .map(|(subject, bytes)| json!({"subject": subject, "bytes": bytes.len()}))
            .collect();
        if !parts.is_empty() {
            description["parts"] = parts.into();
        }
        serde_json::to_string_pretty(&description).expect("JSON of maps with text keys") + "\n"
    }
}

fn describe_tensors(tensors: &[Tensor]) -> Vec<Value> {
    let describe = |tensor: &Tensor| {
        let hexadecimal: String = tensor.data().iter().map(|byte| format!("{byte:02x}")).collect();
        json!({
            "name": tensor.name(),
            "datatype": tensor.datatype(),
            "shape": tensor.shape(),
            "data": hexadecimal,
        })
    };
    tensors.iter().map(describe).collect()
}
