//! Messages, names and bounded waits, for the properties and for the tests of a single bus.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use trireme_inference::{
    Callers, DataType, Hop, Ledger, ModelKey, ParameterValue, Parameters, Route, Step, StepInput, StepOutput, Tensor,
    TextFacts, TraceParent, UnixMicros,
};

use crate::{AnswerForm, Consumer, Delivery, Part, QueueOptions, WorkMessage};

/// Longer than any working operation takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Short, so that redeliveries come soon; long enough that a busy machine does not cause any.
pub const ACK_WAIT: Duration = Duration::from_millis(1500);

/// Bytes of a large message: three times the `max_payload` of the deployments.
pub const LARGE: usize = 24 << 20;

/// Waits for an event, with a limit.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LIMIT, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited {LIMIT:?} in vain for {what}"),
    }
}

/// A name used nowhere else, with characters that are not allowed in subjects and bucket keys.
pub fn unique(name: &str) -> String {
    format!("{name}. *>é/{:032x}", fastrand::u128(..))
}

/// A model version for one test.
pub fn model(name: &str) -> ModelKey {
    ModelKey { name: unique(name).into(), version: 3 }
}

/// Options with a short `ack_wait`. Brokers reserve `max_bytes`, so it is modest.
pub fn options() -> QueueOptions {
    QueueOptions { ack_wait: ACK_WAIT, max_bytes: 16 << 20, ..QueueOptions::default() }
}

/// Options with an `ack_wait` longer than a test, so any repeated delivery is a fault.
pub fn patient_options() -> QueueOptions {
    QueueOptions { ack_wait: Duration::from_secs(60), ..options() }
}

/// A small message for the queue of `model`, with a number to recognise it by.
pub fn message(model: &ModelKey, number: i64) -> WorkMessage {
    let tensor = Tensor::from_values("number", [1], vec![number]).expect("one number in a tensor of one");
    with_tensors(model, vec![tensor])
}

/// The same message at a priority level of the queue.
pub fn message_at(model: &ModelKey, level: u32, number: i64) -> WorkMessage {
    let message = message(model, number);
    WorkMessage { route: message.route.clone().at_levels(|_| level), ..message }
}

/// A message of a little more than `size` bytes.
pub fn heavy_message(model: &ModelKey, size: usize) -> WorkMessage {
    let tensor =
        Tensor::from_values("ballast", [size as i64], vec![0u8; size]).expect("as many bytes as the shape says");
    with_tensors(model, vec![tensor])
}

/// The number of a message made by [`message`].
pub fn number(delivery: &Delivery) -> i64 {
    let tensor = delivery.message.tensors.first().expect("the message has its tensor");
    *tensor.values::<i64>().expect("it is INT64").first().expect("it holds a number")
}

/// A message that uses every field, and tensors of every datatype.
pub fn full_message(model: &ModelKey) -> WorkMessage {
    let mut tensors: Vec<Tensor> = DataType::ALL
        .into_iter()
        .filter_map(|datatype| {
            let size = datatype.element_size()?;
            let data: Vec<u8> = (0..size * 6).map(|i| i as u8).collect();
            Some(tensor(datatype.name(), datatype, &[2, 3], data))
        })
        .collect();
    let elements = [&b"a\0b"[..], b"", "é".as_bytes(), b"\xff\xfe"];
    tensors.push(Tensor::from_bytes_elements("TEXT", [2, 2], &elements).expect("four elements"));
    tensors.push(tensor("scalar", DataType::Fp32, &[], vec![0, 0, 128, 63]));
    tensors.push(tensor("nothing", DataType::Fp16, &[4, 0, 2], vec![]));
    tensors.push(tensor("no texts", DataType::Bytes, &[0], vec![]));
    tensors.push(tensor("", DataType::Int8, &[1], vec![7]));

    let parameters = Parameters::from([
        ("truncate".to_owned(), ParameterValue::Bool(true)),
        ("negative".to_owned(), ParameterValue::Int64(-5)),
        ("large".to_owned(), ParameterValue::Uint64(u64::MAX)),
        ("temperature".to_owned(), ParameterValue::Double(0.5)),
        ("".to_owned(), "línea\n\"2\"".into()),
    ]);
    let next = ModelKey { name: "another model".into(), version: i64::MAX };
    let steps = vec![
        Step {
            model: model.clone(),
            inputs: vec![
                StepInput {
                    name: "text".into(),
                    tensor: "TEXT".into(),
                    optional: false,
                    reshapes: Vec::new(),
                    crosses: false,
                },
                StepInput {
                    name: "extra".into(),
                    tensor: "missing".into(),
                    optional: true,
                    reshapes: Vec::new(),
                    crosses: false,
                },
            ],
            outputs: vec![StepOutput { name: "ids".into(), tensor: "input_ids".into() }],
            dead: vec!["TEXT".into(), "scalar".into()],
            level: 0,
            content: Some("sha256:9f86d081".into()),
        },
        Step { model: next, inputs: vec![], outputs: vec![], dead: vec![], level: u32::MAX, content: None },
    ];
    let hop = Hop {
        model: "first".into(),
        worker: "worker-1".into(),
        transit_us: 1,
        queue_us: u64::MAX,
        compute_input_us: 3,
        compute_infer_us: 4,
        compute_output_us: 5,
        batch_size: 6,
        texts: Some(TextFacts { tokens: u64::MAX, truncated: 7, windows: 9 }),
        space: Some("5d41402abc4b2a76b9719d911017c592".into()),
    };
    WorkMessage {
        request_id: format!("{:032x}", fastrand::u128(..)).into(),
        gateway: unique("gateway").into(),
        deadline: UnixMicros::NEVER,
        priority: 2,
        traceparent: Some(TraceParent::new(
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            Some("vendor=value,other=1"),
        )),
        client_id: "the client's own id: ü\n".into(),
        sent_at: UnixMicros(1_700_000_000_000_001),
        route: Route::resume(ModelKey { name: "ensemble".into(), version: 9 }, true, 1, steps),
        tensors,
        parameters: Arc::new(parameters),
        ledger: Ledger(vec![hop, Hop::default()]),
        answer: AnswerForm::Part(Part { sequence: 7, last: true }),
        callers: Callers::joined([&Callers::default()], model),
        job: Some("batch_1 line 7".into()),
    }
}

/// Waits for one delivery.
pub async fn take(consumer: &mut Box<dyn Consumer>, what: &str) -> Delivery {
    let mut deliveries = within(what, consumer.next(1)).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(deliveries.len(), 1, "{what}: one delivery for room of one");
    deliveries.remove(0)
}

/// Checks that no message is delivered for `time`.
pub async fn assert_idle(consumer: &mut Box<dyn Consumer>, time: Duration, why: &str) {
    match tokio::time::timeout(time, consumer.next(1)).await {
        Err(_) => {}
        Ok(Ok(deliveries)) => panic!("{why}: nothing is to be delivered, got {deliveries:?}"),
        Ok(Err(error)) => panic!("{why}: {error}"),
    }
}

fn with_tensors(model: &ModelKey, tensors: Vec<Tensor>) -> WorkMessage {
    let step = Step { model: model.clone(), inputs: vec![], outputs: vec![], dead: vec![], level: 0, content: None };
    WorkMessage {
        request_id: format!("{:032x}", fastrand::u128(..)).into(),
        gateway: "gateway".into(),
        deadline: UnixMicros::now().after(Duration::from_secs(300)),
        priority: 0,
        traceparent: None,
        client_id: String::new().into(),
        sent_at: UnixMicros::now(),
        route: Route::resume(model.clone(), false, 0, vec![step]),
        tensors,
        parameters: Arc::default(),
        ledger: Ledger::default(),
        answer: AnswerForm::Whole,
        callers: Callers::default(),
        job: None,
    }
}

fn tensor(name: &str, datatype: DataType, shape: &[i64], data: Vec<u8>) -> Tensor {
    Tensor::new(name, datatype, shape, Bytes::from(data)).expect("bytes that fit the shape")
}
