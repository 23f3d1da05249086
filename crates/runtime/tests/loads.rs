//! Loads that hang: what else the worker does meanwhile, and when they have failed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use trireme_bus::{Bus, InProcess, ModelState, QueueOptions, RegistryEvent, RegistryEvents};
use trireme_inference::InferError;
use trireme_runtime::{
    Backend, ControlMode, ControlOptions, ExecuteRequest, ExecuteResponse, LoadError, LoadedModel, ModelInstance,
    ModelSource, OneAtATime, Statistics, Worker, WorkerOptions,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two looks at the repository.
const POLL: Duration = Duration::from_millis(20);

/// How long a load may take.
const LIMIT: Duration = Duration::from_millis(300);

/// A backend that loads models at once, or never those with the parameter `hangs`.
struct Waits;

impl Backend for Waits {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        trireme_runtime::doing("waiting for Godot");
        while source.config.parameters.contains_key("hangs") {
            std::thread::park();
        }
        Ok(LoadedModel {
            config: Arc::new(source.config.clone()),
            instances: vec![(Box::new(Waits) as Box<dyn ModelInstance>).into()],
            background: Vec::new(),
            guests: Vec::new(),
            policy: Box::new(OneAtATime),
            canary: None,
        })
    }
}

impl ModelInstance for Waits {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        requests.iter().map(|_| Ok(ExecuteResponse::default())).collect()
    }
}

/// A worker that follows its repository.
struct Followed {
    worker: Worker,
    events: RegistryEvents,
    repository: tempfile::TempDir,
}

const HANGS: &str = "parameters { key: 'hangs' value { string_value: 'true' } }";

fn write_model(repository: &Path, name: &str, more: &str) {
    let directory = repository.join(name);
    std::fs::create_dir_all(directory.join("1")).expect("a directory");
    let config = format!(
        "backend: 'identity' {more} input [{{ name: 'I' data_type: TYPE_STRING dims: [1] }}]
         output [{{ name: 'O' data_type: TYPE_STRING dims: [1] }}]"
    );
    std::fs::write(directory.join("config.pbtxt"), config).expect("a file");
}

fn make_pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().expect("coreutils").success());
}

impl Followed {
    /// A worker of this repository, which loads so many models at the same time.
    async fn start(repository: tempfile::TempDir, load_threads: usize, load_limit: Option<Duration>) -> Followed {
        let bus: Arc<dyn Bus> = Arc::new(InProcess::default());
        bus.init_settings(&QueueOptions::default()).await.expect("in process nothing refuses");
        let events = bus.watch_registry().await.expect("in process nothing refuses");
        let options = WorkerOptions::new("test", vec![repository.path().to_owned()], Statistics::new("worker"));
        let control =
            ControlOptions { mode: ControlMode::Poll, poll: POLL, exit_on_error: false, ..ControlOptions::default() };
        let options = WorkerOptions { control, load_threads, load_limit, ..options };
        let backends: [Arc<dyn Backend>; 1] = [Arc::new(Waits)];
        let worker = Worker::start(bus, &backends, &options).await.expect("in process nothing refuses");
        Followed { worker, events, repository }
    }

    fn write(&self, name: &str, more: &str) {
        write_model(self.repository.path(), name, more);
    }

    /// Waits until the model has this state, and returns the text that belongs to it.
    async fn until(&mut self, model: &str, is: impl Fn(&ModelState) -> Option<String>) -> String {
        let state = async {
            loop {
                let event = self.events.recv().await.expect("the bus is open");
                let RegistryEvent::Put(entry, _) = event else { continue };
                if let Some(text) = is(&entry.state).filter(|_| entry.model.name == model) {
                    return text;
                }
            }
        };
        let waited = tokio::time::timeout(PATIENCE, state).await;
        waited.unwrap_or_else(|_| panic!("'{model}' does not get the state"))
    }

    async fn until_ready(&mut self, model: &str) {
        self.until(model, |state| (*state == ModelState::Ready).then(String::new)).await;
    }

    async fn until_unavailable(&mut self, model: &str) -> String {
        let why = |state: &ModelState| match state {
            ModelState::Unavailable(why) => Some(why.clone()),
            _ => None,
        };
        self.until(model, why).await
    }

    async fn end(self) {
        let drained = tokio::time::timeout(PATIENCE, self.worker.drain(Duration::from_millis(100))).await;
        assert_eq!(drained.expect("a load that hangs is not waited for"), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_models_come_and_go_while_a_load_hangs() {
    let repository = tempfile::tempdir().expect("a temporary directory");
    write_model(repository.path(), "a", "");
    let mut followed = Followed::start(repository, 2, None).await;
    followed.until_ready("a").await;
    followed.write("hang", HANGS);
    followed.until("hang", |state| matches!(state, ModelState::Loading(_)).then(String::new)).await;
    followed.write("b", "");
    followed.until_ready("b").await;
    std::fs::remove_dir_all(followed.repository.path().join("a")).expect("it is there");
    followed.until("a", |state| (*state == ModelState::Unloading).then(String::new)).await;
    followed.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_past_its_limit_has_failed_and_makes_room() {
    let mut followed = Followed::start(tempfile::tempdir().expect("a temporary directory"), 1, Some(LIMIT)).await;
    followed.write("hang", HANGS);
    let why = followed.until_unavailable("hang").await;
    let expected = "model 'hang': it was not loaded within 0.3 s (--model-load-limit-secs), and was waiting for Godot";
    assert!(why.ends_with(expected), "{why}");
    followed.write("b", "");
    followed.until_ready("b").await;
    // Its thread is still there: another one would only hang beside it.
    followed.write("hang", &format!("{HANGS} max_batch_size: 8"));
    let why = followed.until_unavailable("hang").await;
    assert!(why.contains("hang/1 has not ended yet: its files may lie on a file system that hangs"), "{why}");
    followed.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn named_pipes_are_refused_and_hold_up_nobody() {
    let repository = tempfile::tempdir().expect("a temporary directory");
    write_model(repository.path(), "piped", "");
    make_pipe(&repository.path().join("piped/1/model.onnx"));
    let mut followed = Followed::start(repository, 1, None).await;
    let why = followed.until_unavailable("piped").await;
    assert!(why.ends_with("piped/1/model.onnx: found a named pipe, expected a regular file"), "{why}");
    std::fs::create_dir_all(followed.repository.path().join("configured/1")).expect("a directory");
    make_pipe(&followed.repository.path().join("configured/config.pbtxt"));
    followed.write("b", "");
    followed.until_ready("b").await;
    followed.end().await;
}
