//! Three hops over JetStream and nothing else: the yardstick for pipelines as services in `make bench`.
//!
//! A client publishes a payload to a stream, three workers pass it on from stream to stream, and the last one replies. A worker
//! acknowledges a message when the broker has stored the next one, as Trireme's workers do. There are no models, no HTTP, no
//! deadlines and no recovery.
//!
//! `trireme-bare-chain NATS_URL IN_FLIGHT PAYLOAD_BYTES SECONDS` prints a line of JSON with `requests_per_second`, `p50_ms` and `p99_ms`.

use std::time::{Duration, Instant};

use async_nats::jetstream::{self, consumer, stream};
use async_nats::{Client, HeaderMap, Subject};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, TryStreamExt, future};

const HOPS: usize = 3;
const REPLY_TO: &str = "Reply-To";

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [url, in_flight, payload, seconds] = words.as_slice() else {
        return Err("usage: trireme-bare-chain NATS_URL IN_FLIGHT PAYLOAD_BYTES SECONDS".into());
    };
    let (in_flight, payload) = (in_flight.parse::<usize>()?, Bytes::from(vec![0; payload.parse()?]));
    let until = Instant::now() + Duration::from_secs_f64(seconds.parse()?);

    let mut workers = Vec::new();
    for hop in 0..HOPS {
        // A connection of its own, as a service has.
        let client = async_nats::connect(url).await?;
        let messages = queue(&client, hop).await?.stream().max_messages_per_batch(2 * in_flight).messages().await?;
        workers.push(work(client, hop, messages, in_flight).boxed());
    }
    let client = async_nats::connect(url).await?;
    let load = future::try_join_all((0..in_flight).map(|_| requests(&client, &payload, until)));
    let begun = Instant::now();
    let times = tokio::select! {
        times = load => times?.concat(),
        (ended, ..) = future::select_all(workers) => return Err(format!("a worker ended: {ended:?}").into()),
    };
    println!("{}", figures(times, begun.elapsed()));
    Ok(())
}

fn subject(hop: usize) -> String {
    format!("bare_chain.{hop}")
}

/// The stream of a hop, in memory, and its consumer.
async fn queue(client: &Client, hop: usize) -> Outcome<consumer::PullConsumer> {
    let config = stream::Config {
        name: format!("bare_chain_{hop}"),
        subjects: vec![subject(hop)],
        retention: stream::RetentionPolicy::WorkQueue,
        storage: stream::StorageType::Memory,
        ..Default::default()
    };
    let stream = jetstream::new(client.clone()).get_or_create_stream(config).await?;
    let config = consumer::pull::Config { durable_name: Some("workers".to_owned()), ..Default::default() };
    Ok(stream.create_consumer(config).await?)
}

/// Passes the messages of a hop on to the next one, or replies to them at the end.
async fn work(client: Client, hop: usize, messages: consumer::pull::Stream, in_flight: usize) -> Outcome<()> {
    let jetstream = jetstream::new(client.clone());
    let pass_on = async |message: jetstream::Message| -> Outcome<()> {
        let headers = message.headers.clone().unwrap_or_default();
        if hop + 1 < HOPS {
            jetstream.publish_with_headers(subject(hop + 1), headers, message.payload.clone()).await?.await?;
        } else {
            let reply_to = headers.get(REPLY_TO).ok_or("a message without a reply subject")?;
            client.publish(Subject::from(reply_to.as_str()), message.payload.clone()).await?;
        }
        message.ack().await
    };
    messages.map_err(Into::into).try_for_each_concurrent(2 * in_flight, pass_on).await
}

/// One request after the other; how long each took.
async fn requests(client: &Client, payload: &Bytes, until: Instant) -> Outcome<Vec<Duration>> {
    let (jetstream, reply_to) = (jetstream::new(client.clone()), client.new_inbox());
    let mut replies = client.subscribe(reply_to.clone()).await?;
    let mut headers = HeaderMap::new();
    headers.insert(REPLY_TO, reply_to);
    let mut times = Vec::new();
    while Instant::now() < until {
        let begun = Instant::now();
        jetstream.publish_with_headers(subject(0), headers.clone(), payload.clone()).await?.await?;
        replies.next().await.ok_or("the subscription ended")?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

fn figures(mut times: Vec<Duration>, took: Duration) -> serde_json::Value {
    times.sort_unstable();
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).map(|time| 1e3 * time.as_secs_f64());
    let rate = times.len() as f64 / took.as_secs_f64();
    serde_json::json!({ "requests_per_second": rate, "p50_ms": at(0.5), "p99_ms": at(0.99) })
}
