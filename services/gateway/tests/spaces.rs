//! `If-Space`: a request is computed only where its answer will have a space that it asks for, and answered only where the answer has.

#![allow(clippy::disallowed_methods, reason = "the worker of a test ends with its runtime")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tonic::Code;
use trireme_bus::{Bus, Content, ModelState, Output, QueueOptions, Reply, WorkerEntry};
use trireme_inference::{Hop, Ledger, ModelKey};
use trireme_protocol::grpc::wire::model_infer_request::InferInputTensor;
use trireme_protocol::grpc::wire::*;

use crate::control::{PATIENCE, Server, entry};
use crate::exposure::send;

/// A worker's entry for model `m`, which tells this space.
fn telling(worker: &str, space: Option<&str>, since: u64) -> WorkerEntry {
    let config = serde_json::json!({
        "name": "m", "backend": "identity",
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "X", "data_type": "TYPE_FP32", "dims": [1]}],
    });
    let space = space.map(Into::into);
    let content = Content {
        of: "m".to_owned(),
        digest: "d".to_owned(),
        space,
        equivalences: Vec::new(),
        files_at: None,
        yields_to: None,
    };
    WorkerEntry {
        worker: worker.to_owned(),
        config: config.to_string(),
        content: Some(content),
        ..entry("m", ModelState::Ready, since)
    }
}

/// Hosts model `m`, whose answers have this space, whatever its entry tells. Counts the requests that it gets.
async fn host(server: &mut Server, told: Option<&str>, answered: Option<&'static str>) -> Arc<AtomicUsize> {
    let bus: Arc<dyn Bus> = server.bus.clone();
    let key = ModelKey { name: "m".into(), version: 1 };
    bus.declare_queue(&key, &QueueOptions::default()).await.expect("in process nothing refuses");
    let mut consumer = bus.pull(&key).await.expect("the queue is there");
    bus.announce(&telling("w", told, 1)).await.expect("in process nothing refuses");
    let ready = async { while !server.is_ready("m").await {} };
    tokio::time::timeout(PATIENCE, ready).await.expect("the model comes");
    let begun = Arc::new(AtomicUsize::new(0));
    let count = begun.clone();
    tokio::spawn(async move {
        while let Ok(mut deliveries) = consumer.next(1).await {
            let delivery = deliveries.remove(0);
            count.fetch_add(1, Ordering::SeqCst);
            let output = Output { tensors: delivery.message.tensors.clone(), ..Output::default() };
            let hop = Hop { worker: "w".into(), space: answered.map(Into::into), ..Hop::default() };
            let reply = Reply { ledger: Ledger(vec![hop]), ..delivery.message.reply(Ok(output)) };
            bus.reply(reply).await.expect("in process nothing refuses");
            delivery.acker.ack().await.expect("in process nothing refuses");
        }
    });
    begun
}

/// A request for the model.
fn message() -> ModelInferRequest {
    let input =
        InferInputTensor { name: "X".to_owned(), datatype: "FP32".to_owned(), shape: vec![1], ..Default::default() };
    ModelInferRequest {
        model_name: "m".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![vec![0; 4].into()],
        ..Default::default()
    }
}

/// Sends a request that names these spaces in `if-space`.
async fn infer(server: &mut Server, if_space: Option<&'static str>) -> Result<(), tonic::Status> {
    let mut request = tonic::Request::new(message());
    if let Some(spaces) = if_space {
        request.metadata_mut().insert("if-space", spaces.parse().expect("a value of metadata"));
    }
    let answer = tokio::time::timeout(PATIENCE, server.client.model_infer(request)).await.expect("an answer");
    answer.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_another_space_is_never_computed() {
    let mut server = Server::start().await;
    let begun = host(&mut server, Some("0123456789abcdef"), Some("0123456789abcdef")).await;
    for right in [None, Some("0123456789ab"), Some("0123456789abcdef"), Some("other, 0123456789ab")] {
        infer(&mut server, right).await.unwrap_or_else(|refused| panic!("{right:?}: {refused}"));
    }
    assert_eq!(begun.load(Ordering::SeqCst), 4);
    let about = ModelMetadataRequest { name: "m".to_owned(), ..Default::default() };
    let metadata = server.client.model_metadata(about).await.expect("metadata").into_inner();
    assert_eq!(metadata.properties, [("space".to_owned(), "0123456789ab".to_owned())].into());
    for wrong in ["0123456789ac", "0123456789a", "0123456789abcdef0", "0123456789ab.0", "0123456789AB"] {
        let refused = infer(&mut server, Some(wrong)).await.expect_err(wrong);
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let words = format!("If-Space asks for '{wrong}', but model 'm' has space '0123456789ab'");
        assert!(refused.message().contains(&words), "{refused}");
    }
    let refused = infer(&mut server, Some("\"0123456789ab\"")).await.expect_err("quotes");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert_eq!(begun.load(Ordering::SeqCst), 4, "requests that were refused were computed");

    // A second worker announces the same content with another space.
    let bus: &dyn Bus = server.bus.as_ref();
    bus.announce(&telling("w2", Some("fedcba9876543210"), 2)).await.expect("in process nothing refuses");
    let refused = async {
        loop {
            match infer(&mut server, Some("0123456789ab")).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(refused) => return refused,
            }
        }
    };
    let refused = tokio::time::timeout(PATIENCE, refused).await.expect("the gateway learns of the worker");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(
        refused.message().contains("several spaces just now, '0123456789abcdef' and 'fedcba9876543210'"),
        "{refused}"
    );
    infer(&mut server, None).await.expect("a request without a condition");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_space_that_no_worker_knows_is_none_that_was_asked_for() {
    let mut server = Server::start().await;
    let begun = host(&mut server, None, None).await;
    let refused = infer(&mut server, Some("0123456789ab")).await.expect_err("nobody knows the space");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("a worker of model 'm' does not know its space"), "{refused}");
    assert_eq!(begun.load(Ordering::SeqCst), 0);
    infer(&mut server, None).await.expect("a request without a condition");
    server.stop().await;
}

/// The model changes between the check and the run.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_another_space_than_was_admitted_is_not_given() {
    for (answered, words) in [
        (Some("fedcba9876543210"), "has changed meanwhile and its answer has space 'fedcba987654'"),
        (None, "the answer of model 'm' does not tell its space"),
    ] {
        let mut server = Server::start().await;
        let begun = host(&mut server, Some("0123456789abcdef"), answered).await;
        let refused = infer(&mut server, Some("0123456789ab")).await.expect_err(words);
        assert_eq!((refused.code(), begun.load(Ordering::SeqCst)), (Code::FailedPrecondition, 1), "{refused}");
        assert!(refused.message().contains(words), "{refused}");
        server.stop().await;
    }
}

/// Over a stream, where answers come one by one. The worker has done its part, but the client got no answer.
#[tokio::test(flavor = "multi_thread")]
async fn the_usage_counts_a_refused_answer_of_a_stream_as_an_error() {
    let mut server = Server::start().await;
    host(&mut server, Some("0123456789abcdef"), Some("fedcba9876543210")).await;
    let mut request = tonic::Request::new(futures_util::stream::iter([message()]));
    request.metadata_mut().insert("if-space", "0123456789ab".parse().expect("a value of metadata"));
    let mut answers = server.client.model_stream_infer(request).await.expect("a stream").into_inner();
    let answer = tokio::time::timeout(PATIENCE, answers.message()).await.expect("an answer");
    let answer = answer.expect("the stream goes on").expect("an answer");
    assert!(answer.error_message.contains("its answer has space 'fedcba987654'"), "{}", answer.error_message);
    let (status, usage) = send(server.http, "GET", "/v2/trireme/usage", &[]).await;
    let usage: serde_json::Value = serde_json::from_str(usage.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    let line = &usage["usage"][0];
    assert_eq!((status, &line["requests"], &line["errors"]), (200, &1.into(), &1.into()), "{usage}");
    server.stop().await;
}
