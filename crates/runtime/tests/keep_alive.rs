//! Models that leave the memory while they are idle, on the in-process bus.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Condvar, Mutex};
use trireme_bus::{AnswerForm, Bus, InProcess, Inbox, ModelState, QueueOptions, RegistryEvent, RegistryEvents, Reply};
use trireme_inference::{ErrorCode, InferError, ModelKey, Tensor};
use trireme_runtime::{
    Backend, ControlMode, ControlOptions, ExecuteRequest, ExecuteResponse, LoadError, LoadedModel, ModelInstance,
    ModelSource, OneAtATime, QueueLoad, Statistics, Worker, WorkerOptions,
};

use super::messages::{PATIENCE, message};

/// How long a model stays in memory here.
const KEEP: Duration = Duration::from_millis(50);

/// Time between two looks at a state that tells nobody of its changes.
const LOOK: Duration = Duration::from_millis(5);

/// A backend whose loads the test counts, holds up and has fail. Its models answer with their parameter `says`.
#[derive(Clone, Default)]
struct Watched(Arc<Shared>);

#[derive(Default)]
struct Shared {
    loads: AtomicUsize,
    /// The instances in memory.
    alive: AtomicUsize,
    gate: Mutex<Gate>,
    opened: Condvar,
}

#[derive(Default)]
struct Gate {
    closed: bool,
    /// The error of each load.
    fails: Option<&'static str>,
}

struct Instance {
    says: String,
    backend: Watched,
}

impl Backend for Watched {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        self.0.loads.fetch_add(1, Ordering::SeqCst);
        let mut gate = self.0.gate.lock();
        while gate.closed {
            self.0.opened.wait(&mut gate);
        }
        if let Some(reason) = gate.fails {
            return Err(LoadError::Backend { model: source.config.name.clone(), reason: reason.to_owned() });
        }
        self.0.alive.fetch_add(1, Ordering::SeqCst);
        let says = source.config.parameters.get("says").cloned().unwrap_or_default();
        let instance = Instance { says, backend: self.clone() };
        Ok(LoadedModel {
            config: Arc::new(source.config.clone()),
            instances: vec![(Box::new(instance) as Box<dyn ModelInstance>).into()],
            background: Vec::new(),
            guests: Vec::new(),
            policy: Box::new(OneAtATime),
            canary: None,
        })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.backend.0.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ModelInstance for Instance {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        let answer = || {
            let said = Tensor::from_bytes_elements("OUTPUT0", [1], &[&self.says])?;
            Ok(ExecuteResponse { outputs: vec![said], ..ExecuteResponse::default() })
        };
        requests.iter().map(|_| answer()).collect()
    }
}

impl Watched {
    fn loads(&self) -> usize {
        self.0.loads.load(Ordering::SeqCst)
    }

    fn close_gate(&self) {
        self.0.gate.lock().closed = true;
    }

    fn open_gate(&self) {
        self.0.gate.lock().closed = false;
        self.0.opened.notify_all();
    }
}

/// A worker with the model `m`, and a gateway's inbox.
struct Stage {
    bus: Arc<dyn Bus>,
    backend: Watched,
    inbox: Arc<Inbox>,
    statistics: Statistics,
    repository: tempfile::TempDir,
}

impl Stage {
    async fn start() -> (Stage, Worker) {
        let (bus, backend): (Arc<dyn Bus>, _) = (Arc::new(InProcess::default()), Watched::default());
        bus.init_settings(&QueueOptions::default()).await.expect("in process nothing refuses");
        let repository = tempfile::tempdir().expect("a temporary directory");
        write_model(repository.path(), "m", "first");
        let statistics = Statistics::new("worker");
        let control =
            ControlOptions { mode: ControlMode::Poll, poll: LOOK, exit_on_error: false, ..ControlOptions::default() };
        let options = WorkerOptions {
            keep_alive: Some(KEEP),
            control,
            ..WorkerOptions::new("test", vec![repository.path().to_owned()], statistics.clone())
        };
        let backends: [Arc<dyn Backend>; 1] = [Arc::new(backend.clone())];
        let worker = Worker::start(bus.clone(), &backends, &options).await.expect("in process nothing refuses");
        let inbox = bus.open_inbox("gateway").await.expect("in process nothing refuses");
        (Stage { bus, backend, inbox, statistics, repository }, worker)
    }

    async fn until(&self, what: &str, is: impl Fn(&Stage) -> bool) {
        let looking = async {
            while !is(self) {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(PATIENCE, looking).await.unwrap_or_else(|_| panic!("{what}, in vain"));
    }

    async fn until_asleep(&self) {
        self.until("waited for the model to leave the memory", |stage| {
            let models = stage.statistics.snapshot().models;
            let asleep = models.iter().all(|model| model.load.asleep.is_some());
            asleep && stage.backend.0.alive.load(Ordering::SeqCst) == 0
        })
        .await;
    }

    fn load(&self) -> QueueLoad {
        self.statistics.snapshot().models.first().map(|model| model.load).unwrap_or_default()
    }

    async fn ask(&self, id: &str) -> Reply {
        self.ask_models(id, &["m"]).await
    }

    /// A request to these models, one after the other.
    async fn ask_models(&self, id: &str, models: &[&str]) -> Reply {
        let input = Tensor::from_bytes_elements("t0", [1], &["a"]).expect("one element");
        let message = message(id, models, input, AnswerForm::Whole);
        let mut replies = self.inbox.expect(&message);
        self.bus.publish(&message).await.expect("in process nothing refuses");
        tokio::time::timeout(PATIENCE, replies.next()).await.expect("an answer")
    }

    /// The text of the model's answer.
    async fn said(&self, id: &str) -> String {
        let output = self.ask(id).await.outcome.expect("an answer");
        let said = output.tensors[0].bytes_elements().expect("text").next().expect("one element").to_owned();
        String::from_utf8(said).expect("text")
    }
}

/// The next state of the model in the registry; `None` if its entry is withdrawn.
async fn next_state(events: &mut RegistryEvents) -> Option<ModelState> {
    loop {
        match tokio::time::timeout(PATIENCE, events.recv()).await.expect("an event").expect("the bus is open") {
            RegistryEvent::Put(entry, _) => return Some(entry.state),
            RegistryEvent::Delete(_) => return None,
            _ => {}
        }
    }
}

fn write_model(repository: &Path, name: &str, says: &str) {
    let directory = repository.join(name);
    std::fs::create_dir_all(directory.join("1")).expect("a directory");
    let config = format!(
        "backend: 'identity' parameters {{ key: 'says' value {{ string_value: '{says}' }} }}
         input [{{ name: 'INPUT0' data_type: TYPE_STRING dims: [1] }}]
         output [{{ name: 'OUTPUT0' data_type: TYPE_STRING dims: [1] }}]"
    );
    std::fs::write(directory.join("config.pbtxt"), config).expect("a file");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_a_model_that_sleeps_load_it_once_and_wait() {
    let (stage, worker) = Stage::start().await;
    for round in 1..=2 {
        stage.until_asleep().await;
        assert_eq!(worker.models(), [ModelKey { name: "m".into(), version: 1 }], "it is served");
        stage.backend.close_gate();
        let ids: Vec<_> = (0..8).map(|number| format!("{round}-{number}")).collect();
        let answers = join_all(ids.iter().map(|id| stage.said(id)));
        let waiting = async {
            stage.until("waited for eight requests to wait", |stage| stage.load().waiting == 8).await;
            stage.backend.open_gate();
        };
        let (said, ()) = tokio::join!(answers, waiting);
        assert_eq!(said, ["first"; 8]);
        assert_eq!(stage.backend.loads(), 1 + round);
    }
    let waking = stage.statistics.snapshot().models[0].counters.waking.count;
    assert_eq!(waking, 2);
    stage.until_asleep().await;
    assert_eq!(worker.drain(PATIENCE).await, 0, "a worker whose model sleeps ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn later_steps_of_a_request_are_loaded_beside_the_first_one() {
    let (stage, worker) = Stage::start().await;
    write_model(stage.repository.path(), "n", "last");
    stage.until("waited for the second model", |_| worker.models().len() == 2).await;
    stage.until_asleep().await;
    let loads = stage.backend.loads();
    stage.backend.close_gate();
    let opening = async {
        // No request has come to the second model yet.
        stage.until("waited for both loads", |stage| stage.backend.loads() == loads + 2).await;
        stage.backend.open_gate();
    };
    let (reply, ()) = tokio::join!(stage.ask_models("both", &["m", "n"]), opening);
    let output = reply.outcome.expect("an answer");
    assert_eq!(output.tensors[0].bytes_elements().expect("text").next().expect("one element"), b"last");
    // A request that does not come keeps a model awake no longer than others.
    stage.until_asleep().await;
    assert_eq!(worker.drain(PATIENCE).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_fails_is_the_answer_and_the_next_request_tries_it_again() {
    let (stage, worker) = Stage::start().await;
    stage.until_asleep().await;
    stage.backend.0.gate.lock().fails = Some("no room on the device");
    for number in 0..2 {
        let error = stage.ask(&number.to_string()).await.outcome.expect_err("it cannot be loaded");
        assert_eq!(error.code, ErrorCode::Unavailable);
        assert!(error.message.contains("(--keep-alive), and cannot be loaded again: "), "{error}");
        assert!(error.message.ends_with("no room on the device"), "{error}");
        assert_eq!(stage.backend.loads(), 2 + number, "once for each request");
    }
    stage.backend.0.gate.lock().fails = None;
    assert_eq!(stage.said("third").await, "first");
    assert_eq!(worker.drain(PATIENCE).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_sleeps_is_reloaded_and_unloaded() {
    let (stage, worker) = Stage::start().await;
    let mut events = stage.bus.watch_registry().await.expect("in process nothing refuses");
    stage.until_asleep().await;
    stage.backend.close_gate();
    write_model(stage.repository.path(), "m", "a second text");
    stage.until("waited for the load of the new files", |stage| stage.backend.loads() == 2).await;
    // The request comes to the content that is about to be replaced, and is answered by the new one.
    let answer = stage.said("between");
    let opening = async {
        stage.until("waited for the request", |stage| stage.load().waiting == 1).await;
        stage.backend.open_gate();
    };
    let (said, ()) = tokio::join!(answer, opening);
    assert_eq!(said, "a second text");

    stage.until_asleep().await;
    let loads = stage.backend.loads();
    std::fs::remove_dir_all(stage.repository.path().join("m")).expect("a directory");
    while next_state(&mut events).await != Some(ModelState::Unloading) {}
    while next_state(&mut events).await.is_some() {}
    assert_eq!((worker.models(), stage.backend.loads()), (Vec::new(), loads), "nothing was loaded for that");
    assert_eq!(worker.drain(PATIENCE).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_loads_a_model_for_the_requests_that_it_holds() {
    let (stage, worker) = Stage::start().await;
    stage.until_asleep().await;
    stage.backend.close_gate();
    let mut events = stage.bus.watch_registry().await.expect("in process nothing refuses");
    let ending = async {
        stage.until("waited for the load", |stage| stage.backend.loads() == 2).await;
        let opening = async {
            while next_state(&mut events).await != Some(ModelState::Unloading) {}
            stage.backend.open_gate();
        };
        tokio::join!(worker.drain(PATIENCE), opening).0
    };
    assert_eq!(tokio::join!(stage.said("last"), ending), ("first".to_owned(), 0));
    assert_eq!(stage.backend.0.alive.load(Ordering::SeqCst), 0);
}
