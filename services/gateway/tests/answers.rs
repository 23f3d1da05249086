//! A worker that sends wrong answers: the gateway checks them before a client sees them.

#![allow(clippy::disallowed_methods, reason = "the worker of a test ends with its runtime")]

use std::collections::VecDeque;
use std::sync::Arc;

use tonic::Code;
use trireme_bus::{Bus, ModelState, Output, QueueOptions, Reply};
use trireme_inference::{Hop, Ledger, ModelKey, Tensor};
use trireme_protocol::grpc::wire::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use trireme_protocol::grpc::wire::*;

use crate::control::{PATIENCE, Server, entry};

/// The outputs of a reply, and the hops of its ledger.
type Answer = (Vec<Tensor>, usize);

/// Hosts a model of two outputs, whose requests are answered with `answers`, one after the other.
async fn host(server: &mut Server, model: &str, backend: &str, answers: Vec<Answer>) {
    host_with(server, model, backend, None, answers).await;
}

/// The same for a model whose requests may travel in parts of so many rows.
async fn host_with(server: &mut Server, model: &str, backend: &str, rows: Option<&str>, answers: Vec<Answer>) {
    let bus: Arc<dyn Bus> = server.bus.clone();
    let key = ModelKey { name: model.into(), version: 1 };
    bus.declare_queue(&key, &QueueOptions::default()).await.expect("in process nothing refuses");
    let mut consumer = bus.pull(&key).await.expect("the queue is there");
    let parameters = rows.map(|rows| serde_json::json!({"max_rows_per_message": {"string_value": rows}}));
    let config = serde_json::json!({
        "name": model, "backend": backend, "max_batch_size": 8, "parameters": parameters.unwrap_or_default(),
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [2]}, {"name": "N", "data_type": "TYPE_INT64", "dims": [1]}],
    });
    let entry = trireme_bus::WorkerEntry { config: config.to_string(), ..entry(model, ModelState::Ready, 1) };
    bus.announce(&entry).await.expect("in process nothing refuses");
    let ready = async { while !server.is_ready(model).await {} };
    tokio::time::timeout(PATIENCE, ready).await.expect("the model comes");
    tokio::spawn(async move {
        let mut answers = VecDeque::from(answers);
        while let Some((tensors, hops)) = answers.pop_front() {
            let delivery = consumer.next(1).await.expect("in process nothing refuses").remove(0);
            let output = Output { tensors, ..Output::default() };
            let ledger = Ledger(vec![Hop { worker: "w".into(), ..Hop::default() }; hops]);
            let reply = Reply { ledger, ..delivery.message.reply(Ok(output)) };
            bus.reply(reply).await.expect("in process nothing refuses");
            delivery.acker.ack().await.expect("in process nothing refuses");
        }
    });
}

/// Sends a request of two rows.
async fn infer(server: &mut Server, model: &str, outputs: &[&str]) -> Result<Vec<String>, tonic::Status> {
    let output = |name: &&str| InferRequestedOutputTensor { name: (*name).to_owned(), ..Default::default() };
    let request = ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![InferInputTensor {
            name: "X".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![2, 1],
            ..Default::default()
        }],
        outputs: outputs.iter().map(output).collect(),
        raw_input_contents: vec![vec![0; 8].into()],
        ..Default::default()
    };
    let answer = tokio::time::timeout(PATIENCE, server.client.model_infer(request)).await.expect("an answer");
    answer.map(|answer| answer.into_inner().outputs.into_iter().map(|output| output.name).collect())
}

fn y(rows: i64) -> Tensor {
    Tensor::from_values("Y", [rows, 2], vec![0f32; 2 * rows as usize]).expect("a tensor")
}

fn n(rows: i64) -> Tensor {
    Tensor::from_values("N", [rows, 1], vec![0i64; rows as usize]).expect("a tensor")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_answer_is_the_workers_failure_at_once() {
    let mut server = Server::start().await;
    let wide = Tensor::from_values("Y", [2, 3], vec![0f32; 6]).expect("a tensor");
    let of = |fault: &str| format!("the answer of model 'm' {fault}");
    let wrong = [
        ((vec![y(2)], 1), of("has no output 'N', expected 'Y', 'N'")),
        ((vec![], 1), of("has no output 'Y', expected 'Y', 'N'")),
        ((vec![y(2), n(2), n(2)], 1), of("has output 'N' twice, expected 'Y', 'N'")),
        (
            (vec![y(2), n(2), n(2).renamed("other")], 1),
            of("has output 'other' that the request did not ask for, expected 'Y', 'N'"),
        ),
        ((vec![y(1), n(1)], 1), of("has output 'Y' of shape [1,2], expected 2 rows as in the request")),
        (
            (vec![y(2), y(2).renamed("N")], 1),
            of("has output 'N' of datatype FP32 and shape [2,2], expected INT64 and [-1,1]"),
        ),
        ((vec![wide, n(2)], 1), of("has output 'Y' of datatype FP32 and shape [2,3], expected FP32 and [-1,2]")),
        ((vec![y(2), n(2)], 2), of("has a ledger of 2 hops, expected 1 at most, one for each step")),
    ];
    let right = (vec![y(2), n(2)], 1);
    let answers = wrong.iter().map(|(answer, _)| answer.clone()).chain([right]).collect();
    host(&mut server, "m", "identity", answers).await;
    for (_, fault) in &wrong {
        let refused = infer(&mut server, "m", &[]).await.expect_err(fault);
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::Internal, format!("[request id: <id_unknown>] {fault}").as_str())
        );
    }
    assert_eq!(infer(&mut server, "m", &[]).await.expect("a right answer"), ["Y", "N"]);

    // A model in Python may leave out outputs and change the number of rows, as in Triton.
    let fewer = vec![y(2).renamed("N")];
    host(&mut server, "py", "python", vec![(fewer, 1), (vec![y(3)], 1), (vec![y(2), n(2)], 1)]).await;
    assert_eq!(infer(&mut server, "py", &[]).await.expect("user code may do that"), ["N"]);
    assert_eq!(infer(&mut server, "py", &["Y"]).await.expect("it may give other rows"), ["Y"]);
    let refused = infer(&mut server, "py", &["Y"]).await.expect_err("an output that nobody wants");
    assert!(refused.message().contains("has output 'N' that the request did not ask for, expected 'Y'"), "{refused}");
    // It may not change the number of rows where the rows of parts are put together.
    host_with(&mut server, "parts", "python", Some("2"), vec![(vec![y(3), n(2)], 1)]).await;
    let refused = infer(&mut server, "parts", &[]).await.expect_err("other rows");
    assert!(refused.message().contains("expected 2 rows as in the request"), "{refused}");
    server.stop().await;
}
