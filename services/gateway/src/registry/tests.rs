//! The registry on a bus: workers that fall silent and come back, and stores that do not answer or are empty.

use trireme_bus::fixtures::refusing::{Call, Refusing};
use trireme_bus::{Bucket, Content, ContentQuestion, ModelState, Verdict};
use trireme_inference::UnixMicros;
use trireme_runtime::Statistics;

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// The calls that fail while the stores cannot be reached.
const STORES: [Call; 4] = [
    Call::Read(Bucket::Registry),
    Call::Read(Bucket::Models),
    Call::Write(Bucket::Registry),
    Call::Write(Bucket::Models),
];

/// A worker that writes its entries when asked, and sends heartbeats until its tasks stop.
struct Worker {
    tasks: TaskSet,
    entries: Vec<WorkerEntry>,
}

impl Worker {
    async fn start(bus: &Arc<dyn Bus>, name: &str) -> Worker {
        let tasks = TaskSet::new();
        let entries: Vec<_> = ["a", "b"].map(|model| entry(name, model)).into();
        for entry in &entries {
            bus.announce(entry).await.expect("in process nothing refuses");
        }
        let mut asked = bus.asked_to_announce().await.expect("in process nothing refuses");
        let (bus, name, own) = (bus.clone(), name.to_owned(), entries.clone());
        tasks.spawn_until_stop("worker", async move {
            let mut ticks = tokio::time::interval(Heartbeat::PERIOD);
            for number in 0.. {
                tokio::select! {
                    _ = ticks.tick() => {}
                    Some(process) = asked.recv() => {
                        if process == name {
                            for entry in &own {
                                let _ = bus.announce(entry).await;
                            }
                        }
                    }
                }
                let heartbeat = Heartbeat {
                    process: name.clone(),
                    started: UnixMicros(1),
                    number,
                    entries: 2,
                    since_sum: 14,
                    in_flight: None,
                    clock_offset_us: 0,
                };
                let _ = bus.beat(&heartbeat).await;
            }
        });
        Worker { tasks, entries }
    }
}

pub(super) fn entry(worker: &str, model: &str) -> WorkerEntry {
    WorkerEntry {
        worker: worker.to_owned(),
        service: "model".to_owned(),
        host: "h".to_owned(),
        model: ModelKey { name: model.into(), version: 1 },
        state: ModelState::Ready,
        config: format!(r#"{{"name":"{model}","backend":"identity"}}"#),
        capacity: 1,
        bulk: true,
        content: None,
        since: UnixMicros(7),
    }
}

/// A gateway's registry, with the heartbeats of its process.
async fn follow(bus: &Arc<dyn Bus>, name: &str, tasks: &TaskSet) -> Registry {
    let statistics = Statistics::new(name);
    let control = ControlOptions::default();
    let registry = Registry::follow(bus.clone(), name, Repository::default(), &control, false, tasks).await;
    statistics.report(bus, tasks).await.expect("in process nothing refuses");
    registry.expect("in process nothing refuses")
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let so = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, so).await.unwrap_or_else(|_| panic!("waited in vain until {what}"));
}

fn knows(registry: &Registry, worker: &Worker) -> bool {
    let names = registry.workers();
    worker.entries.iter().all(|entry| names.contains(&(entry.worker.clone(), entry.model.clone())))
}

async fn is_stored(bus: &Arc<dyn Bus>, worker: &Worker) -> bool {
    let mut stored = 0;
    for entry in &worker.entries {
        stored += usize::from(bus.get(Bucket::Registry, &entry.key()).await.is_ok_and(|found| found.is_some()));
    }
    stored == worker.entries.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_falls_silent_lapses_and_does_not_while_the_store_is_lost() {
    let (refusing, tasks) = (Arc::new(Refusing::default()), TaskSet::new());
    let bus: Arc<dyn Bus> = refusing.clone();
    let registry = follow(&bus, "g", &tasks).await;
    let (dies, lives) = (Worker::start(&bus, "dies").await, Worker::start(&bus, "lives").await);
    until("both are known", || knows(&registry, &dies) && knows(&registry, &lives)).await;
    refusing.refuse(STORES);
    dies.tasks.join().await;
    tokio::time::sleep(Heartbeat::TIME_TO_LIVE + 3 * Heartbeat::PERIOD).await;
    assert!(knows(&registry, &dies), "nobody is forgotten because the store is silent");
    refusing.refuse([]);
    until("it has lapsed", || !knows(&registry, &dies)).await;
    assert!(knows(&registry, &lives) && is_stored(&bus, &lives).await && !is_stored(&bus, &dies).await);
    assert_eq!(registry.processes().iter().map(|process| process.name.as_str()).collect::<Vec<_>>(), ["g", "lives"]);
    lives.tasks.join().await;
    tasks.join().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_comes_back_and_a_late_gateway_sees_it() {
    let (bus, tasks) = (Arc::new(Refusing::default()) as Arc<dyn Bus>, TaskSet::new());
    let worker = Worker::start(&bus, "w").await;
    let registry = follow(&bus, "g", &tasks).await;
    until("it is known", || knows(&registry, &worker)).await;
    bus.withdraw(&worker.entries[0].key()).await.unwrap();
    until("the gateway has heard of that", || !knows(&registry, &worker)).await;
    until("what was wrongly deleted comes back", || knows(&registry, &worker)).await;

    // All entries are deleted before the next gateway starts.
    for entry in &worker.entries {
        bus.withdraw(&entry.key()).await.unwrap();
    }
    let late = follow(&bus, "late", &tasks).await;
    until("both see all", || knows(&late, &worker) && knows(&registry, &worker)).await;
    assert!(is_stored(&bus, &worker).await);
    let latest = follow(&bus, "latest", &tasks).await;
    until("the latest sees all", || knows(&latest, &worker)).await;
    worker.tasks.join().await;
    tasks.join().await;
}

/// A gateway that reads an emptied store anew takes all entries and choices for lost. The store sends no second event for a choice that it
/// has.
#[tokio::test(flavor = "multi_thread")]
async fn a_choice_that_was_taken_for_lost_is_found_in_the_store() {
    let (bus, tasks) = (Arc::new(Refusing::default()) as Arc<dyn Bus>, TaskSet::new());
    let registry = follow(&bus, "g", &tasks).await;
    crate::contents::answer_all(bus.clone(), registry.clone(), &tasks).await.unwrap();
    let content = Content {
        of: "f".to_owned(),
        digest: "x".to_owned(),
        space: None,
        equivalences: Vec::new(),
        files_at: None,
        yields_to: None,
    };
    let entry = WorkerEntry { content: Some(content), ..entry("w", "m") };
    let question = ContentQuestion { key: entry.key(), since: entry.since, switch: false };
    bus.announce(&entry).await.unwrap();
    assert_eq!(bus.ask_verdict(&question).await.unwrap(), Some(Verdict::Serve), "its content was chosen");
    registry.0.state.lock().complete();
    bus.announce(&entry).await.unwrap();
    assert_eq!(bus.ask_verdict(&question).await.unwrap(), Some(Verdict::Serve), "the choice is known again");
    tasks.join().await;
}
