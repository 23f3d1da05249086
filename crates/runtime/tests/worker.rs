//! A whole worker on the in-process bus, with a backend whose behaviour each request chooses.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use parking_lot::Mutex;
use trireme_bus::fixtures::refusing::{Call, Refusing};
use trireme_bus::{
    AnswerForm, Bucket, Bus, Delivery, Inbox, ModelState, QueueOptions, RegistryEvent, Reply, WorkMessage,
};
use trireme_inference::{Cause, ErrorCode, InferError, ModelKey, Tensor, UnixMicros};
use trireme_runtime::{
    Backend, BatchPolicy, Candidate, Decision, ExecuteRequest, ExecuteResponse, LoadError, LoadedModel, ModelInstance,
    ModelSource, OneAtATime, Statistics, Stop, Worker, WorkerOptions,
};

use super::messages::{PATIENCE, message};

/// A limit below the time that results wait for a queue that does not exist.
const SOON: Duration = Duration::from_secs(20);

/// Longer than any execution here that ends.
const EXECUTION_LIMIT: Duration = Duration::from_secs(10);

/// The longest time that a cancellation takes to its worker, whose arrival the test cannot see.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// The id of canary requests here.
const CANARY_ID: &str = "canary";

/// Whether an instance hangs already: `hang once` hangs only a single instance.
static HUNG: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Canary requests are executed after this time without traffic.
const CANARY: Duration = Duration::from_millis(50);

/// Obeys the text in its input.
#[derive(Default)]
struct Obedient {
    executions: Arc<AtomicUsize>,
    /// The text of its canary requests; with an empty text there are none.
    canary: Arc<Mutex<&'static str>>,
    /// Whether it declares a canary request.
    declared: bool,
    /// Canary requests are executed after this time without a success; with zero, after [`CANARY`].
    pause: Duration,
    /// Whether its batch policy panics.
    panics: bool,
}

/// A batch policy that panics.
struct Panics;

impl BatchPolicy for Panics {
    fn decide(&self, _: &[Candidate], _: Instant) -> Decision {
        // Without a backtrace: on a busy machine, writing one takes seconds.
        std::panic::resume_unwind(Box::new("as told"))
    }

    fn max_rows(&self) -> u32 {
        1
    }
}

struct Instance {
    executions: Arc<AtomicUsize>,
    canary: Arc<Mutex<&'static str>>,
    calls: Arc<Calls>,
}

/// Counts the executions that were stopped.
#[derive(Default)]
struct Calls(AtomicUsize);

impl Stop for Calls {
    fn stop(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Backend for Obedient {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        let instance = || {
            let (executions, canary) = (self.executions.clone(), self.canary.clone());
            Box::new(Instance { executions, canary, calls: Arc::default() }) as Box<dyn ModelInstance>
        };
        let canary = ExecuteRequest::made_up(
            CANARY_ID,
            vec![Tensor::from_bytes_elements("INPUT0", [1], &["echo"]).expect("one element")],
            [""; 0],
        );
        Ok(LoadedModel {
            config: Arc::new(source.config.clone()),
            instances: (0..source.cpu_instances()?).map(|_| instance().into()).collect(),
            background: Vec::new(),
            guests: Vec::new(),
            policy: if self.panics { Box::new(Panics) } else { Box::new(OneAtATime) },
            canary: self.declared.then_some(canary),
        })
    }
}

impl ModelInstance for Instance {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        self.executions.fetch_add(1, Ordering::SeqCst);
        match requests {
            [canary] if canary.request_id == CANARY_ID => {
                let order = *self.canary.lock();
                let inputs = vec![Tensor::from_bytes_elements("INPUT0", [1], &[order]).expect("one element")];
                vec![obey(&ExecuteRequest { inputs, ..canary.clone() })]
            }
            _ => requests.iter().map(|request| self.obey(request)).collect(),
        }
    }

    fn stop(&self) -> Option<Arc<dyn Stop>> {
        Some(self.calls.clone())
    }
}

impl Instance {
    fn obey(&self, request: &ExecuteRequest) -> Result<ExecuteResponse, InferError> {
        if request.inputs[0].bytes_elements()?.next() == Some(b"last") {
            let (started, before) = (Instant::now(), self.calls.0.load(Ordering::SeqCst));
            while self.calls.0.load(Ordering::SeqCst) == before {
                assert!(started.elapsed() < PATIENCE, "nobody calls it off");
                std::thread::sleep(Duration::from_millis(1));
            }
            return Err(InferError::internal("was stopped"));
        }
        obey(request)
    }
}

fn obey(request: &ExecuteRequest) -> Result<ExecuteResponse, InferError> {
    let order = request.inputs[0].bytes_elements()?.next().expect("one element").to_owned();
    match order.as_slice() {
        b"refuse" => return Err(InferError::invalid_arg("refused")),
        b"fail" => return Err(InferError::internal("failed")),
        // Without a backtrace: on a busy machine, writing one takes seconds and would count as an execution that hangs.
        b"panic" => std::panic::resume_unwind(Box::new("as told")),
        b"hang" => std::thread::sleep(Duration::from_secs(3600)),
        b"sleep" => std::thread::sleep(Duration::from_secs(1)),
        b"hang once" if !HUNG.swap(true, Ordering::SeqCst) => std::thread::sleep(Duration::from_secs(3600)),
        _ => {}
    }
    Ok(ExecuteResponse { outputs: vec![request.inputs[0].clone().renamed("OUTPUT0")], ..ExecuteResponse::default() })
}

/// A worker that hosts `models` of one step each, and a gateway's inbox.
struct Stage {
    bus: Arc<Refusing>,
    worker: Worker,
    inbox: Arc<Inbox>,
    executions: Arc<AtomicUsize>,
    statistics: Statistics,
    _repository: tempfile::TempDir,
}

impl Stage {
    async fn start(models: &[&str], queue: QueueOptions) -> Stage {
        Stage::start_on(Arc::default(), "gateway", models, queue).await
    }

    async fn start_on(bus: Arc<Refusing>, gateway: &str, models: &[&str], queue: QueueOptions) -> Stage {
        let repository = tempfile::tempdir().expect("a temporary directory");
        Stage::start_backend(bus, gateway, models, queue, Obedient::default(), repository).await
    }

    /// A worker whose canary requests have the text `canary` from now on. They are made up unless `declared`.
    async fn start_with_canary(canary: &Arc<Mutex<&'static str>>, declared: bool) -> Stage {
        let repository = tempfile::tempdir().expect("a temporary directory");
        let backend = Obedient { canary: canary.clone(), declared, ..Obedient::default() };
        Stage::start_backend(Arc::default(), "gateway", &["a"], three_attempts(), backend, repository).await
    }

    /// The same, but idle instances execute no canary requests.
    async fn start_with_rare_canary(bus: &Arc<Refusing>, canary: &Arc<Mutex<&'static str>>, declared: bool) -> Stage {
        let repository = tempfile::tempdir().expect("a temporary directory");
        let backend = Obedient { canary: canary.clone(), declared, pause: Duration::MAX / 4, ..Obedient::default() };
        Stage::start_backend(bus.clone(), "gateway", &["a"], three_attempts(), backend, repository).await
    }

    /// Waits until no message is in a queue or delivered and not acknowledged; acknowledgements follow the reply.
    async fn wait_for_rest(&self, models: &[&str]) {
        for model in models {
            let model = ModelKey { name: (*model).into(), version: 1 };
            let rest = async {
                while self
                    .bus
                    .queue_status(&model, &[])
                    .await
                    .is_ok_and(|status| status.all_waiting() + status.delivered > 0)
                {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(PATIENCE, rest).await.expect("everything is acknowledged");
        }
    }

    async fn wait_for_executions(&self, count: usize) {
        let executed = async {
            while self.executions() < count {
                tokio::time::sleep(CANARY / 5).await;
            }
        };
        tokio::time::timeout(PATIENCE, executed).await.expect("that many executions");
    }

    async fn start_backend(
        bus: Arc<Refusing>,
        gateway: &str,
        models: &[&str],
        queue: QueueOptions,
        backend: Obedient,
        repository: tempfile::TempDir,
    ) -> Stage {
        for model in models {
            write_model(repository.path(), model);
        }
        let executions = backend.executions.clone();
        let options = options(repository.path(), &backend);
        (bus.as_ref() as &dyn Bus).change_settings(&queue).await.expect("in process nothing refuses");
        let backends: [Arc<dyn Backend>; 1] = [Arc::new(backend)];
        let worker = Worker::start(bus.clone(), &backends, &options).await.expect("in process nothing refuses");
        let inbox = bus.open_inbox(gateway).await.expect("in process nothing refuses");
        let statistics = options.statistics;
        Stage { bus, worker, inbox, executions, statistics, _repository: repository }
    }

    async fn ask(&self, message: &WorkMessage) -> Reply {
        // The worker's answer counts, also when it comes late.
        let mut replies = self.inbox.expect(&WorkMessage { deadline: UnixMicros::NEVER, ..message.clone() });
        self.bus.publish(message).await.expect("in process nothing refuses");
        tokio::time::timeout(PATIENCE, replies.next()).await.expect("no answer")
    }

    fn executions(&self) -> usize {
        self.executions.load(Ordering::SeqCst)
    }
}

fn options(repository: &Path, backend: &Obedient) -> WorkerOptions {
    WorkerOptions {
        execution_limit: Some(EXECUTION_LIMIT),
        canary: (!backend.canary.lock().is_empty()).then_some(backend.pause.max(CANARY)),
        ..WorkerOptions::new("test", vec![repository.to_owned()], Statistics::new("worker"))
    }
}

/// A model with one instance, or with the number of instances at the end of its name.
fn write_model(repository: &Path, name: &str) {
    let directory = repository.join(name);
    std::fs::create_dir_all(directory.join("1")).expect("a directory");
    let instances: u32 = name.trim_start_matches(char::is_alphabetic).parse().unwrap_or(1);
    let config = format!(
        "backend: 'identity' max_batch_size: 0
        input [{{ name: 'INPUT0' data_type: TYPE_STRING dims: [1] }}]
        output [{{ name: 'OUTPUT0' data_type: TYPE_STRING dims: [1] }}]
        instance_group [{{ count: {instances} kind: KIND_CPU }}]"
    );
    std::fs::write(directory.join("config.pbtxt"), config).expect("a file");
}

fn request(id: &str, models: &[&str], order: &str) -> WorkMessage {
    let tensor = Tensor::from_bytes_elements("t0", [1], &[order]).expect("one element");
    message(id, models, tensor, AnswerForm::Whole)
}

fn three_attempts() -> QueueOptions {
    QueueOptions { max_attempts: 3, ..QueueOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_passes_all_its_steps_and_only_then_is_acknowledged() {
    // A queue of one message: if the first delivery were not settled, the second request would be refused.
    let stage = Stage::start(&["a", "b", "c"], QueueOptions { max_messages: 1, ..three_attempts() }).await;
    for id in ["1", "2", "3"] {
        let reply = stage.ask(&request(id, &["a", "b", "c"], "echo")).await;
        let output = reply.outcome.unwrap();
        assert_eq!(output.tensors.len(), 1);
        assert_eq!(output.tensors[0].name(), "t3");
        let hops: Vec<_> = reply.ledger.0.iter().map(|hop| (hop.model.as_str(), hop.worker.as_str())).collect();
        assert_eq!(hops, [("a", "worker"), ("b", "worker"), ("c", "worker")]);
        stage.wait_for_rest(&["a", "b", "c"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_another_content_is_declined_at_every_step() {
    let stage = Stage::start(&["a", "b"], three_attempts()).await;
    let mut contents = std::collections::HashMap::new();
    let bus: &dyn Bus = stage.bus.as_ref();
    let mut events = bus.watch_registry().await.expect("in process nothing refuses");
    while contents.len() < 2 {
        if let Some(RegistryEvent::Put(entry, _)) = events.recv().await {
            contents.insert(entry.model.clone(), entry.content.expect("its files can be read").digest);
        }
    }
    let ask = async |id: &str, other: &str| {
        let message = request(id, &["a", "b"], "echo");
        let content = |model: &ModelKey| match model.name == other {
            true => Some("other".into()),
            false => contents.get(model).map(|digest| digest.into()),
        };
        let reply = stage.ask(&WorkMessage { route: message.route.clone().for_contents(content), ..message }).await;
        (reply.outcome.map(drop).map_err(|error| (error.code, error.cause)), stage.executions())
    };
    let declined = Err((ErrorCode::Unavailable, Some(Cause::OtherContent)));
    assert_eq!(ask("1", "").await, (Ok(()), 2));
    assert_eq!(ask("2", "a").await, (declined, 2), "no step of it ran");
    assert_eq!(ask("3", "b").await, (declined, 3), "nor the second one, which is in the same process");
    stage.wait_for_rest(&["a", "b"]).await;
    assert!(stage.bus.dead_letters().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_the_request_is_answered_at_once_and_names_its_place() {
    let stage = Stage::start(&["a", "b"], three_attempts()).await;
    let error = stage.ask(&request("1", &["a", "b"], "refuse")).await.outcome.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArg);
    assert_eq!(error.message, "in ensemble 'e', refused");
    assert_eq!((error.stage.as_deref(), error.worker.as_deref()), (Some("a:1"), Some("worker")));
    assert_eq!(stage.executions(), 1);
    assert!(stage.bus.dead_letters().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_ours_is_tried_again_then_answered_and_set_aside() {
    let stage = Stage::start(&["a"], three_attempts()).await;
    for (number, (order, text)) in
        [("fail", "failed"), ("panic", "model instance panicked while executing")].into_iter().enumerate()
    {
        let error = stage.ask(&request(order, &["a"], order)).await.outcome.unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (ErrorCode::Internal, text));
        assert_eq!(stage.executions(), 3 * (number + 1));
        let dead = stage.bus.dead_letters();
        assert_eq!(dead.len(), number + 1, "set aside before it is answered");
        assert_eq!(dead[number].attempts, 3);
        assert_eq!(dead[number].reason.message, text);
    }
    let reply = stage.ask(&request("after", &["a"], "echo")).await;
    assert!(reply.outcome.is_ok(), "the instance lives on after a panic: {:?}", reply.outcome);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_and_cancelled_work_is_dropped_before_it_is_computed() {
    let stage = Stage::start(&["a"], three_attempts()).await;
    let late = WorkMessage { deadline: UnixMicros::now(), ..request("late", &["a"], "echo") };
    stage.bus.publish(&late).await.unwrap();
    stage.bus.cancel("gone").await.unwrap();
    tokio::time::sleep(ON_ITS_WAY).await;
    stage.bus.publish(&request("gone", &["a"], "echo")).await.unwrap();
    // The second request is cancelled while it waits behind a slow one.
    let slow = request("slow", &["a"], "sleep");
    let mut answer = stage.inbox.expect(&slow);
    stage.bus.publish(&slow).await.unwrap();
    stage.bus.publish(&request("waiting", &["a"], "echo")).await.unwrap();
    stage.wait_for_executions(1).await;
    stage.bus.cancel("waiting").await.unwrap();
    tokio::time::timeout(PATIENCE, answer.next()).await.unwrap().outcome.unwrap();
    stage.ask(&request("last", &["a"], "echo")).await.outcome.unwrap();
    assert_eq!(stage.executions(), 2, "only the slow and the last one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_hangs_gives_its_work_back_and_fails() {
    let stage = Stage::start(&["a"], QueueOptions::default()).await;
    let (hanging, waiting) = (request("hanging", &["a"], "hang once"), request("waiting", &["a"], "echo"));
    let mut answers = [stage.inbox.expect(&hanging), stage.inbox.expect(&waiting)];
    for message in [&hanging, &waiting] {
        stage.bus.publish(message).await.unwrap();
    }
    let failed = tokio::time::timeout(PATIENCE, stage.worker.failed()).await.expect("the worker notices");
    assert_eq!(failed, "execution that does not end");
    let Stage { bus, worker, inbox: _inbox, _repository, .. } = stage;
    let drained =
        tokio::time::timeout(PATIENCE, worker.drain(Duration::from_secs(60))).await.expect("nobody waits for it");
    assert_eq!(drained, 0, "all work was given back");
    // Another worker executes the first worker's requests.
    let _peer = Stage::start_on(bus, "other gateway", &["a"], QueueOptions::default()).await;
    for answer in &mut answers {
        tokio::time::timeout(PATIENCE, answer.next()).await.expect("an answer").outcome.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_is_stopped_when_nobody_waits_for_it() {
    let stage = Stage::start(&["a"], three_attempts()).await;
    stage.bus.publish(&request("gone", &["a"], "last")).await.unwrap();
    while stage.executions() == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stage.bus.cancel("gone").await.unwrap();
    stage.ask(&request("after", &["a"], "echo")).await.outcome.unwrap();
    assert_eq!(stage.executions(), 2, "it is not tried again");
    assert!(stage.bus.dead_letters().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn canary_requests_are_executed_without_traffic_and_count_nowhere() {
    for declared in [true, false] {
        let canary = Arc::new(Mutex::new("echo"));
        let stage = Stage::start_with_canary(&canary, declared).await;
        stage.wait_for_executions(3).await;
        let counters = stage.statistics.snapshot().models.remove(0).counters;
        assert_eq!((counters.executions, counters.request.count, counters.fail.count), (0, 0, 0));
        stage.ask(&request("1", &["a"], "echo")).await.outcome.unwrap();
        let counters = stage.statistics.snapshot().models.remove(0).counters;
        assert_eq!((counters.executions, counters.request.count, counters.fail.count), (1, 1, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_ends_whose_canary_request_fails() {
    for (order, declared) in [("fail", true), ("panic", true), ("fail", false)] {
        let canary = Arc::new(Mutex::new("echo"));
        let stage = Stage::start_with_canary(&canary, declared).await;
        stage.wait_for_executions(1).await;
        *canary.lock() = order;
        let failed = tokio::time::timeout(PATIENCE, stage.worker.failed()).await.expect("the worker notices");
        assert_eq!(failed, "canary request");
        // The worker has failed, so it does not take this request.
        stage.bus.publish(&request(order, &["a"], "echo")).await.unwrap();
        assert_eq!(stage.worker.drain(PATIENCE).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_made_up_canary_request_is_tried_before_work_is_taken() {
    let canary = Arc::new(Mutex::new("echo"));
    let stage = Stage::start_with_rare_canary(&Arc::default(), &canary, false).await;
    assert_eq!(stage.executions(), 1);
    stage.ask(&request("1", &["a"], "echo")).await.outcome.unwrap();
    // A failure after the first canary request is noticed, too.
    let stage = Stage::start_with_canary(&canary, false).await;
    *canary.lock() = "fail";
    let failed = tokio::time::timeout(PATIENCE, stage.worker.failed()).await.expect("the worker notices");
    assert_eq!(failed, "canary request");
}

/// Publishes requests that fail and are tried three times each.
async fn fail_in_a_row(stage: &Stage, requests: usize) {
    for number in 0..requests {
        stage.bus.publish(&request(&number.to_string(), &["a"], "fail")).await.expect("in process nothing refuses");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_ends_that_fails_all_that_comes() {
    let (bus, canary) = (Arc::new(Refusing::default()), Arc::new(Mutex::new("echo")));
    let stage = Stage::start_with_rare_canary(&bus, &canary, true).await;
    *canary.lock() = "fail";
    fail_in_a_row(&stage, 8).await;
    let failed = tokio::time::timeout(PATIENCE, stage.worker.failed()).await.expect("the worker notices");
    assert_eq!(failed, "canary request");
    // The worker has failed, so it does not take this request.
    let mut answer = stage.inbox.expect(&request("later", &["a"], "echo"));
    bus.publish(&request("later", &["a"], "echo")).await.unwrap();
    let Stage { worker, inbox: _inbox, _repository, .. } = stage;
    assert_eq!(worker.drain(PATIENCE).await, 0);
    let _peer = Stage::start_on(bus, "other gateway", &["a"], three_attempts()).await;
    tokio::time::timeout(PATIENCE, answer.next()).await.expect("an answer").outcome.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_fail_again_and_again_end_no_worker_that_works() {
    let canary = Arc::new(Mutex::new("echo"));
    let stage = Stage::start_with_rare_canary(&Arc::default(), &canary, true).await;
    fail_in_a_row(&stage, 5).await;
    // Fifteen runs, and the canary request after the eighth.
    stage.wait_for_executions(16).await;
    stage.wait_for_rest(&["a"]).await;
    stage.ask(&request("after", &["a"], "echo")).await.outcome.unwrap();
    assert_eq!(stage.executions(), 17);
    assert!(stage.worker.failed().now_or_never().is_none(), "the worker goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_made_up_canary_request_that_the_model_does_not_take_is_given_up() {
    let canary = Arc::new(Mutex::new("refuse"));
    let stage = Stage::start_with_canary(&canary, false).await;
    stage.wait_for_executions(1).await;
    let ended = tokio::time::timeout(CANARY * 6, stage.worker.failed()).await;
    assert!(ended.is_err(), "the worker goes on");
    assert_eq!(stage.executions(), 1, "it is not tried again");
    stage.ask(&request("1", &["a"], "echo")).await.outcome.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_hangs_on_a_made_up_canary_request_is_not_served() {
    let repository = tempfile::tempdir().expect("a temporary directory");
    write_model(repository.path(), "a");
    let backend = Obedient { canary: Arc::new(Mutex::new("hang")), ..Obedient::default() };
    let options = options(repository.path(), &backend);
    let options = WorkerOptions { execution_limit: Some(CANARY), ..options };
    let (bus, backends): (_, [Arc<dyn Backend>; 1]) = (Arc::new(Refusing::default()), [Arc::new(backend)]);
    let started = tokio::time::timeout(PATIENCE, Worker::start(bus, &backends, &options)).await.expect("it is noticed");
    assert!(started.is_err_and(|error| error.to_string().contains("takes longer than the execution limit")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_was_never_settled_is_given_up_without_running() {
    let bus = Arc::new(Refusing::default());
    let queue = QueueOptions { max_attempts: 1, ..QueueOptions::default() };
    let model = ModelKey { name: "a".into(), version: 1 };
    bus.declare_queue(&model, &queue).await.unwrap();
    bus.publish(&request("1", &["a"], "echo")).await.unwrap();
    // A worker takes the message and dies.
    drop(bus.pull(&model).await.unwrap().next(1).await.unwrap());

    let stage = Stage::start_on(bus.clone(), "gateway", &["a"], queue).await;
    let dead = async {
        while bus.dead_letters().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, dead).await.expect("not given up");
    assert_eq!(stage.executions(), 0);
    let dead = bus.dead_letters();
    assert_eq!(dead[0].attempts, 1);
    assert!(dead[0].reason.message.contains("was given up after 1 attempts"), "{}", dead[0].reason.message);
}

fn two_attempts() -> QueueOptions {
    QueueOptions { max_attempts: 2, ..QueueOptions::default() }
}

/// These messages as deliveries of a worker. When the deliveries are dropped, as when the worker dies, the messages are
/// suspects with one attempt left.
async fn delivered_once(bus: &Refusing, messages: &[WorkMessage]) -> Vec<Delivery> {
    let model = messages[0].queue().expect("a route");
    bus.declare_queue(model, &two_attempts()).await.expect("in process nothing refuses");
    for message in messages {
        bus.publish(message).await.expect("in process nothing refuses");
    }
    let mut consumer = bus.pull(model).await.expect("in process nothing refuses");
    consumer.next(messages.len()).await.expect("in process nothing refuses")
}

/// Suspects with one attempt left, at a new worker, which executes the first until that request is cancelled.
async fn suspects(model: &'static str, count: usize) -> (Stage, Vec<String>) {
    let bus = Arc::new(Refusing::default());
    let ids: Vec<_> = (0..count).map(|number| number.to_string()).collect();
    let messages: Vec<_> = ids.iter().map(|id| request(id, &[model], "last")).collect();
    drop(delivered_once(&bus, &messages).await);
    let stage = Stage::start_on(bus, "gateway", &[model], two_attempts()).await;
    stage.wait_for_executions(1).await;
    (stage, ids)
}

#[tokio::test(flavor = "multi_thread")]
async fn suspects_whose_turn_it_is_not_take_nobodys_place() {
    // Far more than the worker holds.
    let (stage, ids) = suspects("a2", 100).await;
    stage.ask(&request("healthy", &["a2"], "echo")).await.outcome.expect("a result");
    // An attempt that is seen to fail did not kill its worker, so the last attempt needs no turn.
    let error = stage.ask(&request("failing", &["a2"], "fail")).await.outcome.unwrap_err();
    assert_eq!(error.message, "failed");
    assert_eq!(stage.executions(), 4, "of the suspects the first is still executed");
    for id in ids {
        stage.bus.cancel(&id).await.expect("in process nothing refuses");
    }
    stage.wait_for_rest(&["a2"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_could_not_be_noted_in_time_does_not_count() {
    let bus = Arc::new(Refusing::default());
    let message = request("1", &["a"], "echo");
    drop(delivered_once(&bus, std::slice::from_ref(&message)).await);
    // The bus writes the note, but its confirmation comes too late.
    bus.refuse([Call::WriteUnheard(Bucket::Attempts)]);
    let stage = Stage::start_on(bus, "gateway", &["a"], two_attempts()).await;
    let mut answer = stage.inbox.expect(&message);
    tokio::time::timeout(PATIENCE, answer.next()).await.expect("an answer").outcome.expect("it was begun once");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_is_no_place_for_notes_deliveries_are_counted() {
    let (noting, counting) = (Call::Write(Bucket::Attempts), Call::Read(Bucket::Attempts));
    for refused in [vec![noting], vec![noting, counting]] {
        let bus = Arc::new(Refusing::default());
        let messages =
            [("good", "echo"), ("bad", "fail"), ("deadly", "echo")].map(|(id, order)| request(id, &["a"], order));
        let mut delivered = delivered_once(&bus, &messages).await;
        // The workers of this message die.
        let mut deadly = delivered.pop();
        for _ in 1..3 {
            drop(deadly.take());
            let mut consumer = bus.pull(messages[2].queue().unwrap()).await.unwrap();
            deadly = consumer.next(1).await.unwrap().pop();
        }
        bus.refuse(refused);
        let stage = Stage::start_on(bus, "gateway", &["a"], three_attempts()).await;
        let mut answers = messages.each_ref().map(|message| stage.inbox.expect(message));
        drop((delivered, deadly));
        let mut outcomes = Vec::new();
        for answer in &mut answers {
            let reply = tokio::time::timeout(PATIENCE, answer.next()).await.expect("an answer");
            outcomes.push(reply.outcome.map(drop).map_err(|error| error.message));
        }
        let given_up = "request was given up after 3 attempts: each time the worker died or stopped responding";
        assert_eq!(outcomes, [Ok(()), Err("failed".to_owned()), Err(given_up.to_owned())]);
        assert_eq!(stage.executions(), 3, "the good one, and the second and third attempt at the bad one");
        assert!(stage.bus.dead_letters().iter().all(|dead| dead.attempts == 3));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_over_when_its_run_is() {
    let bus = Arc::new(Refusing::default());
    let messages = [request("1", &["a", "nowhere"], "echo"), request("2", &["a"], "echo")];
    let mut before = delivered_once(&bus, &messages).await;
    drop(before.remove(0));
    let stage = Stage::start_on(bus, "gateway", &["a"], two_attempts()).await;
    let mut second = stage.inbox.expect(&messages[1]);
    stage.wait_for_executions(1).await;
    drop(before);
    tokio::time::timeout(SOON, second.next()).await.expect("an answer").outcome.expect("a result");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_that_waits_for_its_turn_goes_to_another_worker_when_this_one_stops() {
    let (Stage { bus, worker, executions, inbox: _inbox, _repository, .. }, ids) = suspects("a", 2).await;
    let peer_starts = async {
        // The first worker is being drained and takes no more messages.
        let peer = Stage::start_on(bus.clone(), "other gateway", &["a"], two_attempts()).await;
        peer.wait_for_executions(1).await;
        for id in ids {
            bus.cancel(&id).await.unwrap();
        }
        peer
    };
    let (unfinished, peer) = tokio::join!(worker.drain(PATIENCE), peer_starts);
    assert_eq!(unfinished, 0);
    peer.wait_for_rest(&["a"]).await;
    assert_eq!(executions.load(Ordering::SeqCst), 1, "the other one was not begun there");
    assert!(bus.dead_letters().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_that_waits_for_its_turn_leaves_when_it_is_cancelled() {
    let (stage, ids) = suspects("a", 2).await;
    for id in ids {
        stage.bus.cancel(&id).await.unwrap();
    }
    stage.wait_for_rest(&["a"]).await;
    assert!(stage.bus.dead_letters().is_empty());
    stage.ask(&request("after", &["a"], "echo")).await.outcome.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_ends_whose_instance_thread_does() {
    let repository = tempfile::tempdir().expect("a temporary directory");
    let backend = Obedient { panics: true, ..Obedient::default() };
    let stage = Stage::start_backend(Arc::default(), "gateway", &["a"], three_attempts(), backend, repository).await;
    let mut answer = stage.inbox.expect(&request("1", &["a"], "echo"));
    stage.bus.publish(&request("1", &["a"], "echo")).await.unwrap();
    let failed = tokio::time::timeout(PATIENCE, stage.worker.failed()).await.expect("the worker notices");
    assert_eq!(failed, "instance that panicked");
    let Stage { bus, worker, inbox: _inbox, _repository, .. } = stage;
    assert_eq!(worker.drain(PATIENCE).await, 0, "all work was given back");
    let _peer =
        Stage::start_on(bus, "other gateway", &["a"], QueueOptions { max_attempts: 1, ..three_attempts() }).await;
    tokio::time::timeout(PATIENCE, answer.next()).await.expect("an answer").outcome.expect("it was never begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_input_from_another_stage_is_refused() {
    let stage = Stage::start(&["a"], three_attempts()).await;
    let mut wrong = request("1", &["a"], "echo");
    wrong.tensors = vec![Tensor::from_values("t0", [1], vec![1.0f32]).unwrap()];
    let error = stage.ask(&wrong).await.outcome.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidArg);
    assert!(error.message.contains("data-type is 'FP32', but model 'a' expects 'BYTES'"), "{}", error.message);
    let mut none = request("2", &["a"], "echo");
    none.tensors.clear();
    let error = stage.ask(&none).await.outcome.unwrap_err();
    assert!(error.message.contains("tensor 't0', which step 'a:1' takes as input 'INPUT0'"), "{}", error.message);
    assert_eq!(stage.executions(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_nobody_serves_is_waited_for_until_the_deadline() {
    let stage = Stage::start(&["a"], three_attempts()).await;
    let patient = |id, patience| WorkMessage {
        deadline: UnixMicros::now().after(patience),
        ..request(id, &["a", "late"], "echo")
    };
    let error = stage.ask(&patient("1", Duration::from_secs(1))).await.outcome.unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    assert_eq!(error.message, "in ensemble 'e', no worker serves 'late:1' on this bus");
    let [dead] = &stage.bus.dead_letters()[..] else { panic!("it is set aside") };
    assert_eq!(dead.message.queue().map(|model| model.name.as_str()), Some("a"), "as it was delivered");

    let mut replies = stage.inbox.expect(&request("2", &["a"], ""));
    stage.bus.publish(&patient("2", PATIENCE)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let late = Stage::start_on(stage.bus.clone(), "another gateway", &["late"], three_attempts()).await;
    tokio::time::timeout(PATIENCE, replies.next()).await.expect("no answer").outcome.unwrap();
    assert_eq!((stage.executions(), late.executions()), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_waits_for_its_queue_is_let_go_of_when_nobody_wants_it() {
    let stage = Stage::start(&["a"], three_attempts()).await;
    let patient = WorkMessage { deadline: UnixMicros::NEVER, ..request("1", &["a", "nowhere"], "echo") };
    stage.bus.publish(&patient).await.unwrap();
    stage.wait_for_executions(1).await;
    stage.bus.cancel("1").await.unwrap();
    tokio::time::timeout(SOON, stage.wait_for_rest(&["a"])).await.expect("it is let go of");
    assert_eq!(stage.executions(), 1);
    assert!(stage.bus.dead_letters().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_answered_is_set_aside_as_it_came() {
    let stage = Stage::start(&["a"], three_attempts()).await;
    stage.bus.refuse([Call::Reply]);
    let message = request("1", &["a"], "echo");
    stage.bus.publish(&message).await.unwrap();
    stage.wait_for_rest(&["a"]).await;
    let [dead] = &stage.bus.dead_letters()[..] else { panic!("it is set aside") };
    assert_eq!((&dead.message, dead.attempts), (&message, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_cannot_be_hosted_is_let_go_of() {
    for call in [Call::Declare, Call::Write(Bucket::Registry)] {
        let (repository, backend) = (tempfile::tempdir().expect("a temporary directory"), Obedient::default());
        write_model(repository.path(), "a");
        let (bus, instances) = (Refusing::default(), backend.executions.clone());
        bus.refuse([call]);
        let options = options(repository.path(), &backend);
        let started = Worker::start(Arc::new(bus), &[Arc::new(backend)], &options).await;
        assert!(started.is_err_and(|error| error.to_string().contains("the test refuses")), "{call:?}");
        let gone = async {
            while Arc::strong_count(&instances) > 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, gone).await.expect("nobody has the instance any more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_finishes_what_is_in_hand_and_leaves_the_registry() {
    let stage = Stage::start(&["a"], three_attempts()).await;
    let mut events = (stage.bus.as_ref() as &dyn Bus).watch_registry().await.unwrap();
    let mut answer = stage.inbox.expect(&request("1", &["a"], ""));
    stage.bus.publish(&request("1", &["a"], "sleep")).await.unwrap();
    stage.wait_for_executions(1).await;

    assert_eq!(stage.worker.drain(PATIENCE).await, 0);
    answer.next().await.outcome.unwrap();
    let mut states = Vec::new();
    // The watch passes its events on in a task of its own.
    while states.last() != Some(&None) {
        let event = tokio::time::timeout(PATIENCE, events.recv()).await.expect("the entry is deleted");
        states.push(match event.expect("the bus is open") {
            RegistryEvent::Put(entry, _) => Some(entry.state),
            RegistryEvent::Delete(_) => None,
            RegistryEvent::Chosen(..) | RegistryEvent::Complete => continue,
        });
    }
    assert_eq!(states, [Some(ModelState::Ready), Some(ModelState::Unloading), None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_at_its_limit() {
    let stage = Stage::start(&["a"], three_attempts()).await;
    stage.bus.publish(&request("1", &["a"], "sleep")).await.unwrap();
    stage.wait_for_executions(1).await;
    assert_eq!(stage.worker.drain(Duration::from_millis(20)).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_is_counted_before_it_is_answered() {
    let stage = Stage::start(&["a", "b"], three_attempts()).await;
    let counters = |model: &str| {
        let snapshot = stage.statistics.snapshot();
        snapshot.models.into_iter().find(|found| found.model.name == model).expect("a hosted model").counters
    };
    for n in 1..=3 {
        stage.ask(&request(&n.to_string(), &["a", "b"], "echo")).await.outcome.unwrap();
        for counters in [counters("a"), counters("b")] {
            assert_eq!((counters.request.count, counters.queue.count, counters.compute_infer.count), (n, n, n));
            assert_eq!((counters.inferences, counters.executions, counters.fail.count), (n, n, 0));
        }
    }
    stage.ask(&request("r", &["a"], "refuse")).await.outcome.unwrap_err();
    stage.ask(&request("f", &["a"], "fail")).await.outcome.unwrap_err();
    let mut wrong = request("w", &["a"], "echo");
    wrong.tensors.clear();
    stage.ask(&wrong).await.outcome.unwrap_err();
    let found = counters("a");
    assert_eq!(
        found.failures,
        [0, 0, 2, 1, 0],
        "rejected, cancelled, by the backend (each once, whatever was tried), other, without a broker"
    );
    assert_eq!((found.redeliveries, found.dead_letters, found.request.count), (2, 1, 3));

    stage.bus.cancel("gone").await.unwrap();
    tokio::time::sleep(ON_ITS_WAY).await;
    stage.bus.publish(&request("gone", &["a"], "echo")).await.unwrap();
    let late = WorkMessage { deadline: UnixMicros::now(), ..request("late", &["a"], "echo") };
    stage.bus.publish(&late).await.unwrap();
    stage.ask(&request("last", &["a"], "echo")).await.outcome.unwrap();
    let found = counters("a");
    assert_eq!((found.dropped, found.fail.count), ([1, 1], 3), "who waits no more has counted the failure already");
    assert_eq!(found.tokens, found.inferences);

    let snapshot = stage.statistics.snapshot();
    assert!(snapshot.models.iter().all(|model| model.stage == "model" && model.load.waiting == 0));
}
