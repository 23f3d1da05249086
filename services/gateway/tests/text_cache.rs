//! The text cache while contents change: kept results are never joined with results of later contents, nor are these kept under earlier keys.

use std::time::Duration;

use trireme_bus::{Bus, Consumer, Content, ModelState, Output, QueueOptions, Reply, WorkerEntry};
use trireme_gateway::Embedder;
use trireme_inference::{Hop, Ledger, ModelKey, Tensor};

use crate::control::{PATIENCE, Server, entry};

/// A worker's entry, with a content.
fn with_content(model: &str, config: &str) -> WorkerEntry {
    let (of, digest) = (model.to_owned(), "d".to_owned());
    let content = Content {
        of,
        digest,
        space: Some("0123456789abcdef".into()),
        equivalences: Vec::new(),
        files_at: None,
        yields_to: None,
    };
    WorkerEntry { content: Some(content), config: config.to_owned(), ..entry(model, ModelState::Ready, 1) }
}

const CONFIG: &str = r#"{"name": "m", "backend": "identity", "max_batch_size": 8, "parameters": {"task": {"string_value": "embed"}},
    "input": [{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]}],
    "output": [{"name": "embedding", "data_type": "TYPE_FP32", "dims": [2]}]}"#;

/// Answers the next request with a vector for each text: this number and the text's length. First it waits for `before`. Gives the number of rows.
async fn answer(
    bus: &dyn Bus,
    consumer: &mut Box<dyn Consumer>,
    number: f32,
    before: impl Future<Output = ()>,
) -> usize {
    let next = tokio::time::timeout(PATIENCE, consumer.next(1)).await.expect("a request");
    let delivery = next.expect("in process nothing refuses").remove(0);
    before.await;
    let texts: Vec<usize> = delivery.message.tensors[0].bytes_elements().expect("texts").map(<[u8]>::len).collect();
    let vectors = texts.iter().flat_map(|&length| [number, length as f32]).collect();
    let vectors = Tensor::from_values("embedding", [texts.len() as i64, 2], vectors).expect("two for each");
    let output = Output { tensors: vec![vectors], ..Output::default() };
    let hop = Hop { worker: "w".into(), space: Some("0123456789abcdef".into()), ..Hop::default() };
    let reply = Reply { ledger: Ledger(vec![hop]), ..delivery.message.reply(Ok(output)) };
    bus.reply(reply).await.expect("in process nothing refuses");
    delivery.acker.ack().await.expect("in process nothing refuses");
    texts.len()
}

async fn embed(embedder: &Embedder, texts: &[&str]) -> Vec<Vec<f32>> {
    let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
    let embedded = tokio::time::timeout(PATIENCE, embedder.embed(Some("m"), &texts, None, Duration::ZERO, None)).await;
    embedded.expect("an answer").expect("vectors").vectors
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_is_joined_from_two_contents_and_no_later_result_is_kept() {
    let mut server = Server::start_with(&["--text-cache=100000"]).await;
    let shared = server.bus.clone();
    let bus: &dyn Bus = shared.as_ref();
    let key = ModelKey { name: "m".into(), version: 1 };
    bus.declare_queue(&key, &QueueOptions::default()).await.expect("in process nothing refuses");
    let mut consumer = bus.pull(&key).await.expect("the queue is there");
    server.bring(&with_content("m", CONFIG)).await;
    let embedder = server.embedder();

    let (vectors, rows) = tokio::join!(embed(&embedder, &["a"]), answer(bus, &mut consumer, 1.0, async {}));
    assert_eq!((vectors, rows), (vec![vec![1.0, 1.0]], 1));
    assert_eq!(embed(&embedder, &["a", "a"]).await, [[1.0, 1.0], [1.0, 1.0]], "no worker is asked");
    let (vectors, rows) = tokio::join!(embed(&embedder, &["bb", "a"]), answer(bus, &mut consumer, 2.0, async {}));
    assert_eq!((vectors, rows), (vec![vec![2.0, 2.0], vec![1.0, 1.0]], 1), "of one content they are joined");

    // A content changes while a text is computed: then all texts are.
    let other = with_content("other", r#"{"name": "other", "backend": "identity"}"#);
    let worker = async {
        let part = answer(bus, &mut consumer, 3.0, server.bring(&other)).await;
        (part, answer(bus, &mut consumer, 4.0, async {}).await)
    };
    let (vectors, rows) = tokio::join!(embed(&embedder, &["a", "ccc"]), worker);
    assert_eq!((vectors, rows), (vec![vec![4.0, 1.0], vec![4.0, 3.0]], (1, 2)));

    // Neither of the two later answers was kept.
    let (vectors, rows) = tokio::join!(embed(&embedder, &["a", "ccc"]), answer(bus, &mut consumer, 5.0, async {}));
    assert_eq!((vectors, rows), (vec![vec![1.0, 1.0], vec![5.0, 3.0]], 1));
    server.stop().await;
}
