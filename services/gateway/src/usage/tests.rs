use trireme_bus::{InProcess, QueueOptions};
use trireme_inference::Lane;

use super::query::{Piece, Span};
use super::*;

const EVER: Query = Query { span: Span { from: 0, until: u64::MAX }, piece: Piece::Total, owner: None };

async fn tokens(usage: &Usage) -> Vec<(String, u64)> {
    let lines = usage.read(&EVER).await.unwrap();
    lines.iter().map(|line| (format!("{} {}", line.key.owner, line.key.lane), line.counts.tokens)).collect()
}

fn count(usage: &Usage, owner: &str, lane: Lane, tokens: u64) {
    usage.count(&Used { owner, model: "m", lane }, &Counts { tokens, requests: 1, ..Counts::default() });
}

#[tokio::test]
async fn the_usage_of_a_deployment_is_the_sum_of_its_gateways() {
    let folder = tempfile::tempdir().unwrap();
    let open = || trireme_bus_disk::open(&QueueOptions::default(), folder.path());
    let bus: Arc<dyn Bus> = Arc::new(open().unwrap());
    let tasks = TaskSet::new();
    let (one, two) = (Usage::keep(bus.clone(), "one", &tasks), Usage::keep(bus.clone(), "two", &tasks));
    count(&one, "alice", Lane::Live, 3);
    count(&two, "alice", Lane::Live, 4);
    count(&two, "bob", Lane::Bulk, 5);
    // Writing again changes nothing.
    two.write().await.unwrap();
    two.write().await.unwrap();
    one.write().await.unwrap();
    assert_eq!(tokens(&one).await, [("alice live".to_owned(), 7), ("bob bulk".to_owned(), 5)]);
    count(&one, "alice", Lane::Live, 10);
    assert_eq!(tokens(&one).await[0].1, 17, "what is not written yet is told as well");

    // The next process of the same name adds to it.
    tasks.stop();
    tasks.join().await;
    drop((one, two));
    bus.close().await;
    drop(bus);
    // A write that was under way when the tasks were stopped holds the file until it has ended.
    let again = async {
        loop {
            match open() {
                Ok(bus) => break bus,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(30), again).await.expect("the file is free");
    let bus: Arc<dyn Bus> = Arc::new(again);
    let tasks = TaskSet::new();
    let next = Usage::keep(bus.clone(), "one", &tasks);
    count(&next, "alice", Lane::Live, 100);
    assert_eq!(tokens(&next).await[0].1, 117);
    tasks.stop();
    tasks.join().await;
}

#[tokio::test(start_paused = true)]
async fn counts_are_written_within_the_time_that_is_said() {
    let bus: Arc<dyn Bus> = Arc::new(InProcess::default());
    let tasks = TaskSet::new();
    let usage = Usage::keep(bus.clone(), "one", &tasks);
    count(&usage, "alice", Lane::Live, 3);
    assert!(store::read(bus.as_ref(), EVER.span).await.unwrap().is_empty());
    tokio::time::sleep(WRITE_EVERY + Duration::from_millis(1)).await;
    assert_eq!(store::read(bus.as_ref(), EVER.span).await.unwrap()[0].counts.tokens, 3);
    tasks.stop();
    tasks.join().await;
}
