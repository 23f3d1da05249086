//! A broker whose file store is at its limit.

use trireme_bus::{Deployment, Nats, NatsOptions};
use trireme_testkit::NatsServer;

use super::*;

const JETSTREAM: &str = "jetstream { store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 24MB }\n";

/// Uploads files until one is refused. Returns their ids.
async fn fill(gateway: &Gateway) -> Vec<String> {
    let mut files = Vec::new();
    loop {
        let mut arrival = gateway.jobs.arrival();
        match arrival.write(&vec![b'x'; 2 << 20]).await {
            Ok(()) => match arrival.finish("x.jsonl", None).await {
                Ok((id, _)) => files.push(id),
                Err(_) => return files,
            },
            Err(error) => {
                assert!(matches!(error, JobError::Bus(trireme_bus::BusError::StoreFull { .. })), "{error}");
                let _ = arrival.abandon().await;
                // The rest of the room.
                let full = until("a refusal", async || {
                    let body = "x".repeat(1 << 16);
                    gateway.jobs.accept(call(&format!("refused{body}")), None).await.err()
                });
                assert!(matches!(full.await, JobError::Bus(trireme_bus::BusError::StoreFull { .. })));
                return files;
            }
        }
        assert!(files.len() < 20, "the limit is below that");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_deleted_and_batches_cancelled_when_nothing_can_be_written_and_uploads_go_on_by_themselves() {
    let server = NatsServer::start_with_files(&[("nats.conf", JETSTREAM)]);
    let options = NatsOptions {
        url: server.url().as_str().into(),
        name: "g".to_owned(),
        service: "gateway".to_owned(),
        deployment: Some(Deployment { queue: QueueOptions::default(), ..Deployment::default() }),
        connect_timeout: Duration::from_secs(10),
        ..NatsOptions::default()
    };
    let bus = Nats::connect(&options).await.expect("the server was started");
    let gateway = Gateway::over(Arc::new(bus), "g", Duration::from_secs(600));
    gateway.system.stuck.store(true, Ordering::Relaxed);
    let batch = gateway.batch(gateway.file(&lines(10)).await).await;
    until("the batch runs", async || (gateway.jobs.statistics().in_flight >= 10).then_some(())).await;
    // The reserve is laid down.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let files = fill(&gateway).await;
    assert!(files.len() >= 3, "{}", files.len());

    let cancelled = gateway.jobs.cancel_batch(&batch).await.expect("a cancel has room");
    assert_eq!(cancelled.state, BatchState::Cancelling);
    for file in &files {
        gateway.jobs.delete_file(file).await.expect("deleting takes no room");
        assert!(gateway.jobs.file(file).await.is_err());
    }
    assert_eq!(ended(&gateway, &batch).await.state, BatchState::Cancelled);
    assert_eq!(fill(&gateway).await.len(), files.len(), "the bytes are free again");
}
