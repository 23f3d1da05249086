//! Accounts and brokers with limits: streams and consumers fit into them, or the error has the limit's figure.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use trireme_bus::fixtures::{message, model, options, within};
use trireme_bus::{Bucket, BusError, Deployment, Nats, NatsOptions, NatsTls, QueueOptions};
use trireme_testkit::NatsServer;

use super::{at, connect, connect_as, connect_stage};

/// A broker whose clients without a login are in an account with these limits.
fn account(limits: &str) -> NatsServer {
    let config = format!(
        "jetstream {{ store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 64GB }}
         accounts {{ A: {{ jetstream {{ {limits} }}, users: [ {{ user: a, password: a }} ] }} }}
         no_auth_user: a\n"
    );
    NatsServer::start_with_files(&[("nats.conf", &config)])
}

/// A broker that has little itself.
fn broker(jetstream: &str) -> NatsServer {
    let config = format!("jetstream {{ store_dir: \"STORE\", {jetstream} }}\n");
    NatsServer::start_with_files(&[("nats.conf", &config)])
}

/// More messages than a broker below lets one pull request ask for.
const MESSAGES: i64 = 60;

#[tokio::test]
async fn a_deployment_fits_into_the_limits_of_its_account() {
    let unlimited = "max_memory_store: 64GB, max_file_store: 64GB";
    for (limits, server) in [
        ("a small plan", account("max_mem: 64MB, max_file: 128MB")),
        ("every stream has a limit", account("max_mem: 64MB, max_file: 128MB, max_bytes_required: true")),
        (
            "a limit of each stream",
            account("max_mem: 64MB, max_file: 1GB, mem_max_stream_bytes: 1MB, disk_max_stream_bytes: 2MB"),
        ),
        ("no memory", account("max_mem: 0, max_file: 1GB")),
        ("no files", account("max_mem: 1GB, max_file: 0")),
        ("few deliveries", account("max_mem: 1GB, max_file: 1GB, max_ack_pending: 100")),
        ("a broker without memory, as Helm's chart makes it", broker("max_memory_store: 0, max_file_store: 1GB")),
        ("a broker without files", broker("max_memory_store: 1GB, max_file_store: 0")),
        ("a small broker", broker("max_memory_store: 16MB, max_file_store: 32MB")),
        (
            "limits of the broker",
            broker(&format!(
                "{unlimited}, limits {{ max_ack_pending: 100, duplicate_window: 5s, max_request_batch: 50 }}"
            )),
        ),
    ] {
        let (gateway, worker) = (connect(&server).await, connect_stage(&server).await);
        let model = model("fits");
        let options = QueueOptions { max_messages: 10_000, max_bytes: 0, ..options() };
        // Nothing is to be changed the second time.
        for _ in 0..2 {
            let declared = within(limits, gateway.declare_queue(&model, &options)).await;
            declared.unwrap_or_else(|error| panic!("{limits}: {error}"));
        }
        for number in 0..MESSAGES {
            within(limits, gateway.publish(&message(&model, number))).await.unwrap();
        }
        let mut consumer = worker.pull(&model).await.unwrap();
        let mut taken = 0;
        while taken < MESSAGES {
            let deliveries = within(limits, consumer.next(200)).await.unwrap();
            taken += i64::try_from(deliveries.len()).unwrap();
            for delivery in deliveries {
                within(limits, delivery.acker.ack()).await.unwrap();
            }
        }
        for bucket in [Bucket::Jobs, Bucket::Objects] {
            let key = vec!["key"; if bucket == Bucket::Objects { 2 } else { 1 }].join(".");
            let written = within(limits, gateway.put(bucket, &key, Bytes::from_static(b"value"), None, None)).await;
            written.unwrap_or_else(|error| panic!("{limits}: {bucket:?}: {error}"));
        }
    }
}

#[tokio::test]
async fn an_operator_sets_the_size_of_a_store() {
    let server = account("max_mem: 1GB, max_file: 1GB");
    let sized = |bytes| {
        let deployment = Deployment { queue: options(), store_bytes: bytes, ..Deployment::default() };
        NatsOptions { deployment: Some(deployment), ..at(&server.url()) }
    };
    let jetstream = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    // Without a flag a share; a flag makes and changes it; without one it stays as it was.
    for (bytes, expected) in [
        (BTreeMap::new(), 1 << 27),
        (BTreeMap::from([("claims", 3 << 20)]), 3 << 20),
        (BTreeMap::new(), 3 << 20),
        (BTreeMap::from([("claims", 5 << 20)]), 5 << 20),
    ] {
        connect_as(&sized(bytes)).await;
        let claims = jetstream.get_stream("trireme_claims").await.unwrap();
        assert_eq!(claims.cached_info().config.max_bytes, expected);
    }
}

#[tokio::test]
async fn a_queue_beyond_the_account_s_streams_is_refused_with_the_figure() {
    let server = account("max_mem: 1GB, max_file: 1GB, max_streams: 11");
    let gateway = connect(&server).await;
    let mut refused = None;
    let models: Vec<_> = (0..4).map(|number| model(&format!("m{number}"))).collect();
    for model in &models {
        let declared = within("a queue", gateway.declare_queue(model, &options())).await;
        refused = refused.or(declared.err());
    }
    let Some(BusError::OverLimit { reason }) = refused else { panic!("expected a limit, got {refused:?}") };
    assert!(reason.contains("the account allows 11 streams, has 11, and needs one more"), "{reason}");
    // A queue that exists goes on.
    within("a queue", gateway.declare_queue(&models[0], &options())).await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_greet_may_want_tls_first() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tls://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let options = NatsOptions { connect_timeout: Duration::ZERO, ..at(&url) };
    let error = Nats::connect(&options).await.err().expect("no greeting is no connection").to_string();
    assert!(error.contains("handshake_first needs --nats-tls-first"), "{error}");
    let first = NatsTls { first: true, ..NatsTls::default() };
    let error = Nats::connect(&NatsOptions { tls: first, ..options }).await.err().expect("no TLS").to_string();
    assert!(!error.contains("--nats-tls-first"), "{error}");
}
