//! The worker's registry entries, heartbeats, and statistics.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use trireme_bus::{
    Bucket, Bus, Heartbeat, InProcess, ModelState, QueueOptions, RegistryEvent, RegistryEvents, TopicValues,
    WorkerEntry,
};
use trireme_inference::{Counters, InferError, ModelKey};
use trireme_model_repository::ModelConfig;
use trireme_runtime::statistics::report::{STATISTICS, STATISTICS_TOLD, decode};
use trireme_runtime::{
    Backend, ControlMode, ControlOptions, ExecuteRequest, ExecuteResponse, LoadError, LoadedModel, ModelInstance,
    ModelSource, OneAtATime, Statistics, TaskSet, Worker, WorkerOptions,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two looks at the repository.
const POLL: Duration = Duration::from_millis(20);

/// Returns its inputs. It leaves models with the parameter `elsewhere` to another service.
struct Echo;

impl Backend for Echo {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn hosts(&self, config: &ModelConfig) -> bool {
        !config.parameters.contains_key("elsewhere")
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        Ok(LoadedModel {
            config: Arc::new(source.config.clone()),
            instances: vec![(Box::new(Echo) as Box<dyn ModelInstance>).into()],
            background: Vec::new(),
            guests: Vec::new(),
            policy: Box::new(OneAtATime),
            canary: None,
        })
    }
}

impl ModelInstance for Echo {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        let echo = |request: &ExecuteRequest| {
            let outputs = vec![request.inputs[0].clone().renamed("OUTPUT0")];
            Ok(ExecuteResponse { outputs, ..ExecuteResponse::default() })
        };
        requests.iter().map(echo).collect()
    }
}

struct Stage {
    bus: Arc<dyn Bus>,
    worker: Worker,
    statistics: Statistics,
    events: RegistryEvents,
    heartbeats: TopicValues<Heartbeat>,
    repository: tempfile::TempDir,
}

fn write_model(repository: &Path, name: &str, head: &str) {
    let directory = repository.join(name);
    std::fs::create_dir_all(directory.join("1")).expect("a directory");
    let config = format!(
        "{head}
        input [{{ name: 'INPUT0' data_type: TYPE_STRING dims: [1] }}]
        output [{{ name: 'OUTPUT0' data_type: TYPE_STRING dims: [1] }}]"
    );
    std::fs::write(directory.join("config.pbtxt"), config).expect("a file");
}

impl Stage {
    async fn start(models: &[&str]) -> Stage {
        let repository = tempfile::tempdir().expect("a temporary directory");
        models.iter().for_each(|model| write_model(repository.path(), model, "backend: 'identity'"));
        let bus: Arc<dyn Bus> = Arc::new(InProcess::default());
        bus.init_settings(&QueueOptions::default()).await.expect("in process nothing refuses");
        let events = bus.watch_registry().await.expect("in process nothing refuses");
        let heartbeats = bus.heartbeats().await.expect("in process nothing refuses");
        let statistics = Statistics::new("worker");
        let mut options = WorkerOptions::new("test", vec![repository.path().to_owned()], statistics.clone());
        options.control = ControlOptions { mode: ControlMode::Poll, poll: POLL, ..ControlOptions::default() };
        let backends: [Arc<dyn Backend>; 1] = [Arc::new(Echo)];
        let worker = Worker::start(bus.clone(), &backends, &options).await.expect("in process nothing refuses");
        Stage { bus, worker, statistics, events, heartbeats, repository }
    }

    async fn next(&mut self) -> RegistryEvent {
        loop {
            match tokio::time::timeout(PATIENCE, self.events.recv()).await.expect("an event").expect("a watch") {
                RegistryEvent::Complete => {}
                event => return event,
            }
        }
    }

    async fn put(&mut self) -> WorkerEntry {
        match self.next().await {
            RegistryEvent::Put(entry, _) => entry,
            other => panic!("expected an entry, found {other:?}"),
        }
    }

    /// The first heartbeat with this number of entries.
    async fn heartbeat(&mut self, entries: u32) -> Heartbeat {
        let heartbeat = async {
            loop {
                let heartbeat = self.heartbeats.recv().await.expect("the bus is there");
                if heartbeat.entries == entries {
                    return heartbeat;
                }
            }
        };
        tokio::time::timeout(PATIENCE, heartbeat).await.expect("a heartbeat")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_announces_what_changes_and_all_of_it_when_it_is_asked() {
    let mut stage = Stage::start(&["a", "b"]).await;
    let mut entries = [stage.put().await, stage.put().await];
    entries.sort_by(|left, right| left.model.cmp(&right.model));
    assert!(entries.iter().all(|entry| entry.state == ModelState::Ready && entry.worker == "worker"));
    let heartbeat = stage.heartbeat(2).await;
    assert_eq!(heartbeat.since_sum, entries[0].since.0 + entries[1].since.0);

    tokio::time::sleep(2 * Heartbeat::PERIOD).await;
    assert!(stage.events.recv().now_or_never().is_none(), "nothing is written again by itself");
    // A deleted entry is written again when a gateway asks for it; several gateways ask at the same time.
    stage.bus.withdraw(&entries[0].key()).await.unwrap();
    assert_eq!(stage.next().await, RegistryEvent::Delete(entries[0].key()));
    for name in ["worker", "another", "worker"] {
        stage.bus.ask_to_announce(name).await.unwrap();
    }
    let mut again = [stage.put().await, stage.put().await];
    again.sort_by(|left, right| left.model.cmp(&right.model));
    assert_eq!(again, entries, "nothing has changed");
    tokio::time::sleep(Heartbeat::PERIOD / 2).await;
    assert!(stage.events.recv().now_or_never().is_none(), "once for all who ask");
    assert_eq!(stage.worker.drain(PATIENCE).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_drains_says_so_and_takes_its_entries_back() {
    let mut stage = Stage::start(&["a"]).await;
    let ready = stage.put().await;
    let mut told = stage.bus.subscribe(STATISTICS_TOLD).await.unwrap();
    let counters = stage.statistics.model(&ready.model);
    counters.record(|counters| counters.executions += 1);
    assert_eq!(stage.worker.drain(PATIENCE).await, 0);
    let mut states = Vec::new();
    // The watch passes its events on in a task of its own.
    while states.last() != Some(&None) {
        let event = tokio::time::timeout(PATIENCE, stage.events.recv()).await.expect("the entry is deleted");
        match event.expect("the bus is open") {
            RegistryEvent::Put(entry, _) => states.push(Some(entry.state)),
            RegistryEvent::Delete(_) => states.push(None),
            RegistryEvent::Chosen(..) | RegistryEvent::Complete => {}
        }
    }
    assert_eq!(states, [Some(ModelState::Unloading), None]);
    assert!(stage.bus.get(Bucket::Registry, &ready.key()).await.unwrap().is_none());
    let last = decode(&told.try_recv().expect("a last word").body).expect("a snapshot");
    assert_eq!((last.process.as_str(), last.models[0].counters.executions), ("worker", 1));
    assert!(told.try_recv().is_err(), "once");
}

/// The other service serves the model's queue at once. So this worker does not wait until no more work arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_another_service_hosts_now_is_unloaded() {
    let mut stage = Stage::start(&["a"]).await;
    let elsewhere = "backend: 'identity' parameters { key: 'elsewhere' value { string_value: 'true' } }";
    for head in [elsewhere, "backend: 'python'"] {
        let ready = stage.put().await;
        assert_eq!(ready.state, ModelState::Ready);
        let started = Instant::now();
        write_model(stage.repository.path(), "a", head);
        assert_eq!(stage.put().await.state, ModelState::Unloading);
        assert_eq!(stage.next().await, RegistryEvent::Delete(ready.key()));
        assert!(started.elapsed() < Duration::from_secs(2), "it took {:?}", started.elapsed());
        write_model(stage.repository.path(), "a", "backend: 'identity'");
    }
    assert_eq!(stage.put().await.state, ModelState::Ready, "it comes back");
    assert_eq!(stage.worker.drain(PATIENCE).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_has_one_heartbeat_and_one_answer_whatever_is_in_it() {
    let mut stage = Stage::start(&["a"]).await;
    // A gateway in the same process.
    let tasks = TaskSet::new();
    stage.statistics.report(&stage.bus, &tasks).await.unwrap();
    stage.statistics.gateway(|| 3);
    stage.statistics.model(&ModelKey { name: "never used".into(), version: 1 });
    let first = stage.heartbeat(1).await;
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let next = stage.heartbeat(1).await;
        assert_eq!((next.process.as_str(), next.started), ("worker", first.started));
        assert_eq!(next.in_flight, Some(3));
        numbers.push(next.number - first.number);
    }
    assert_eq!(numbers, [1, 2], "no other one between them");
    let mut answers = stage.bus.request(STATISTICS, Bytes::new()).await.unwrap();
    let answer = tokio::time::timeout(PATIENCE, answers.recv()).await.expect("no answer").expect("no answer");
    let snapshot = decode(&answer).expect("a snapshot");
    assert_eq!(snapshot.models.len(), 1, "only what is hosted, or was counted");
    assert_eq!(snapshot.models[0].counters, Counters::default());
    let second = tokio::time::timeout(Duration::from_millis(200), answers.recv()).await;
    assert!(!matches!(second, Ok(Some(_))), "one answer");
    assert_eq!(stage.worker.drain(PATIENCE).await, 0);
    tasks.join().await;
}
