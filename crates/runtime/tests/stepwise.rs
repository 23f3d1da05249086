//! A worker whose model works step by step, on the in-process bus: joining and leaving, parts and their order, errors
//! and panics.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use trireme_bus::{AnswerForm, Bus, InProcess, Inbox, PendingReplies, WorkMessage};
use trireme_inference::{InferError, Parameters, Route, Tensor, UnixMicros};
use trireme_runtime::{
    Backend, ExecuteRequest, ExecuteResponse, Instance, LoadError, LoadedModel, ModelInstance, ModelSource, OneAtATime,
    Progress, Statistics, StepwiseInstance, Ticket, Worker, WorkerOptions,
};

use super::messages::{PATIENCE, message};

/// Number of requests that the instance takes.
const ROOM: usize = 3;

/// Counts up to the number in the request's input, one step each. With `n` it makes n parts and an end without outputs.
/// Negative numbers choose other behaviour.
struct Counter {
    watch: Arc<Watch>,
    requests: BTreeMap<Ticket, (i64, i64, bool)>,
}

const REFUSE: i64 = -1;
const PANIC_ONCE: i64 = -2;
const FAIL_AFTER_TWO: i64 = -3;
const FOREVER: i64 = -4;
const HANG_ONCE: i64 = -5;
const PANIC: i64 = -6;

/// Longer than any step here that ends.
const EXECUTION_LIMIT: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Watch {
    most: AtomicUsize,
    now: AtomicUsize,
    panics: AtomicUsize,
    hung: AtomicBool,
}

impl StepwiseInstance for Counter {
    fn room(&self) -> usize {
        ROOM - self.requests.len()
    }

    fn join(&mut self, ticket: Ticket, request: ExecuteRequest) -> Result<(), InferError> {
        let goal = request.inputs[0].values::<i64>()?[0];
        if goal == REFUSE {
            return Err(InferError::invalid_arg("refused"));
        }
        self.requests.insert(ticket, (0, goal, request.in_parts));
        self.watch.now.store(self.requests.len(), Ordering::SeqCst);
        self.watch.most.fetch_max(self.requests.len(), Ordering::SeqCst);
        Ok(())
    }

    fn leave(&mut self, ticket: Ticket) {
        self.requests.remove(&ticket);
        self.watch.now.store(self.requests.len(), Ordering::SeqCst);
    }

    fn step(&mut self) -> Vec<(Ticket, Progress)> {
        std::thread::sleep(Duration::from_millis(2));
        let mut made = Vec::new();
        for (&ticket, (count, goal, in_parts)) in &mut self.requests {
            if *goal == PANIC || *goal == PANIC_ONCE && self.watch.panics.fetch_add(1, Ordering::SeqCst) == 0 {
                // Without a backtrace: on a busy machine, writing one takes seconds and would count as a step that
                // hangs.
                std::panic::resume_unwind(Box::new("as told"));
            }
            if *goal == HANG_ONCE && !self.watch.hung.swap(true, Ordering::SeqCst) {
                std::thread::sleep(Duration::from_secs(3600));
            }
            let number = |n| vec![Tensor::from_values("OUTPUT0", [1], vec![n]).expect("a number is a tensor")];
            let done = |outputs| Progress::Done(Ok(ExecuteResponse { outputs, ..ExecuteResponse::default() }));
            made.push(match (*count == *goal, *in_parts) {
                _ if *goal == FAIL_AFTER_TWO && *count == 2 => {
                    (ticket, Progress::Done(Err(InferError::invalid_arg("failed"))))
                }
                (true, true) => (ticket, done(vec![])),
                (true, false) => (ticket, done(number(*count))),
                (false, true) => (ticket, Progress::Part(number(*count), Parameters::default())),
                (false, false) => {
                    *count += 1;
                    continue;
                }
            });
            *count += 1;
        }
        for (ticket, progress) in &made {
            if matches!(progress, Progress::Done(_)) {
                self.leave(*ticket);
            }
        }
        made
    }
}

/// Echoes its input. Waits a little before even numbers, so that parts overtake one another.
struct Echo;

impl ModelInstance for Echo {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        let echo = |request: &ExecuteRequest| {
            if request.inputs[0].values::<i64>()?[0] % 2 == 0 {
                std::thread::sleep(Duration::from_millis(10));
            }
            let outputs = vec![request.inputs[0].clone().renamed("OUTPUT0")];
            Ok(ExecuteResponse { outputs, ..ExecuteResponse::default() })
        };
        requests.iter().map(echo).collect()
    }
}

struct Fake(Arc<Watch>);

impl Backend for Fake {
    fn name(&self) -> &'static str {
        "identity"
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        let instances = match source.config.decoupled {
            true => vec![Instance::Stepwise(Box::new(Counter { watch: self.0.clone(), requests: BTreeMap::new() }))],
            false => (0..4).map(|_| Instance::Batch(Box::new(Echo))).collect(),
        };
        Ok(LoadedModel {
            config: Arc::new(source.config.clone()),
            instances,
            background: Vec::new(),
            guests: Vec::new(),
            policy: Box::new(OneAtATime),
            canary: None,
        })
    }
}

struct Stage {
    bus: Arc<dyn Bus>,
    inbox: Arc<Inbox>,
    watch: Arc<Watch>,
    worker: Worker,
    _repository: tempfile::TempDir,
}

impl Stage {
    /// A worker with the models `count` and `echo`.
    async fn start() -> Stage {
        Stage::start_on(Arc::new(InProcess::default()), "gateway", Arc::default()).await
    }

    async fn start_on(bus: Arc<dyn Bus>, gateway: &str, watch: Arc<Watch>) -> Stage {
        let repository = tempfile::tempdir().expect("a temporary directory");
        write_model(repository.path(), "count", "model_transaction_policy { decoupled: true }");
        write_model(repository.path(), "echo", "");
        let options = WorkerOptions {
            execution_limit: Some(EXECUTION_LIMIT),
            ..WorkerOptions::new("test", vec![repository.path().to_owned()], Statistics::new("worker"))
        };
        let backends: [Arc<dyn Backend>; 1] = [Arc::new(Fake(watch.clone()))];
        let worker = Worker::start(bus.clone(), &backends, &options).await.expect("in process nothing refuses");
        let inbox = bus.open_inbox(gateway).await.expect("in process nothing refuses");
        Stage { bus, inbox, watch, worker, _repository: repository }
    }

    async fn send(&self, message: &WorkMessage) -> PendingReplies {
        let replies = self.inbox.expect(message);
        self.bus.publish(message).await.expect("in process nothing refuses");
        replies
    }

    async fn idle(&self) {
        let idle = async {
            while self.watch.now.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, idle).await.expect("the instance is not free");
    }
}

fn write_model(repository: &Path, name: &str, rest: &str) {
    let directory = repository.join(name);
    std::fs::create_dir_all(directory.join("1")).expect("the repository can be written");
    let config = format!(
        "backend: 'identity' input [{{ name: 'INPUT0' data_type: TYPE_INT64 dims: [1] }}]
         output [{{ name: 'OUTPUT0' data_type: TYPE_INT64 dims: [1] }}] {rest}"
    );
    std::fs::write(directory.join("config.pbtxt"), config).expect("the repository can be written");
}

fn request(id: &str, models: &[&str], order: i64, answer: AnswerForm) -> WorkMessage {
    let tensor = Tensor::from_values("t0", [1], vec![order]).expect("a number is a tensor");
    message(id, models, tensor, answer)
}

/// All replies up to the last one: the number in each (`None` for a reply without one), or the error that ended them.
async fn all(replies: &mut PendingReplies) -> Result<Vec<Option<i64>>, (Vec<Option<i64>>, InferError)> {
    let mut seen = Vec::new();
    loop {
        let reply = tokio::time::timeout(PATIENCE, replies.next()).await.expect("no reply");
        match reply.outcome {
            Ok(output) => {
                seen.push(output.tensors.first().map(|tensor| tensor.values::<i64>().expect("it holds a number")[0]))
            }
            Err(error) => return Err((seen, error)),
        }
        if reply.last {
            return Ok(seen);
        }
    }
}

fn numbers(count: i64) -> Vec<Option<i64>> {
    (0..count).map(Some).chain([None]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_arrive_in_order_though_they_overtake_one_another() {
    let stage = Stage::start().await;
    let mut replies = stage.send(&request("1", &["echo", "count", "echo"], 20, AnswerForm::InParts)).await;
    let first = tokio::time::timeout(PATIENCE, replies.next()).await.unwrap();
    let hops: Vec<_> = first.ledger.0.iter().map(|hop| hop.model.as_str()).collect();
    assert_eq!(hops, ["echo", "count", "echo"]);
    assert!(first.ledger.0[1].compute_infer_us > 1000, "{:?}", first.ledger.0[1]);
    assert_eq!(all(&mut replies).await.unwrap(), numbers(20)[1..]);

    let mut alone = stage.send(&request("2", &["count"], 100, AnswerForm::InParts)).await;
    assert_eq!(all(&mut alone).await.unwrap(), numbers(100));
    let mut none = stage.send(&request("3", &["count", "echo"], 0, AnswerForm::InParts)).await;
    assert_eq!(all(&mut none).await.unwrap(), [None]);
    let mut whole = stage.send(&request("4", &["count", "echo"], 9, AnswerForm::Whole)).await;
    assert_eq!(all(&mut whole).await.unwrap(), [Some(9)]);
    assert_eq!(stage.worker.drain(PATIENCE).await, 0, "every delivery is settled");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_join_as_room_allows_and_short_ones_leave_before_long_ones() {
    let stage = Stage::start().await;
    let mut long = stage.send(&request("long", &["count"], 900, AnswerForm::InParts)).await;
    let shorts = (0..12).map(|n| request(&n.to_string(), &["count"], 5, AnswerForm::InParts));
    let mut waiting = Vec::new();
    for short in shorts {
        waiting.push(stage.send(&short).await);
    }
    for replies in &mut waiting {
        assert_eq!(all(replies).await.unwrap(), numbers(5));
    }
    assert!(stage.watch.now.load(Ordering::SeqCst) > 0, "the long one goes on");
    assert_eq!(all(&mut long).await.unwrap(), numbers(900));
    assert_eq!(stage.watch.most.load(Ordering::SeqCst), ROOM);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_ends_a_request_and_leaves_its_neighbours_alone() {
    let stage = Stage::start().await;
    let mut neighbour = stage.send(&request("neighbour", &["count"], 50, AnswerForm::InParts)).await;
    let mut refused = stage.send(&request("refused", &["count"], REFUSE, AnswerForm::InParts)).await;
    let (seen, error) = all(&mut refused).await.unwrap_err();
    assert_eq!((seen.len(), error.message.as_str()), (0, "refused"));
    let mut failed = stage.send(&request("failed", &["count", "echo"], FAIL_AFTER_TWO, AnswerForm::InParts)).await;
    let (seen, error) = all(&mut failed).await.unwrap_err();
    assert_eq!(seen, [Some(0), Some(1)], "what was made before comes first");
    assert_eq!((error.message.as_str(), error.stage.as_deref()), ("in ensemble 'e', failed", Some("count:1")));
    assert_eq!(all(&mut neighbour).await.unwrap(), numbers(50));
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_and_late_requests_leave() {
    let stage = Stage::start().await;
    let late = request("late", &["count"], FOREVER, AnswerForm::InParts);
    let late = WorkMessage { deadline: UnixMicros::now().after(Duration::from_secs(2)), ..late };
    let mut first = stage.send(&late).await;
    tokio::time::timeout(PATIENCE, first.next()).await.unwrap().outcome.unwrap();
    stage.idle().await;

    let mut cancelled = stage.send(&request("cancelled", &["count"], FOREVER, AnswerForm::InParts)).await;
    tokio::time::timeout(PATIENCE, cancelled.next()).await.unwrap().outcome.unwrap();
    stage.bus.cancel("cancelled").await.unwrap();
    stage.idle().await;
    assert_eq!(stage.worker.drain(PATIENCE).await, 0, "every delivery is settled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_does_not_end_is_noticed_and_its_requests_given_back() {
    let stage = Stage::start().await;
    let mut hanging = stage.send(&request("hanging", &["count"], HANG_ONCE, AnswerForm::InParts)).await;
    let mut within = stage.send(&request("within", &["count"], 40, AnswerForm::Whole)).await;
    let failed = tokio::time::timeout(PATIENCE, stage.worker.failed()).await.expect("the worker notices");
    assert_eq!(failed, "execution that does not end");
    let drained = tokio::time::timeout(PATIENCE, stage.worker.drain(Duration::from_secs(60))).await;
    assert_eq!(drained.expect("nobody waits for it"), 0, "all work was given back");
    // Another worker executes the first worker's requests.
    let _peer = Stage::start_on(stage.bus.clone(), "other gateway", stage.watch.clone()).await;
    tokio::time::timeout(PATIENCE, hanging.next()).await.expect("an answer").outcome.unwrap();
    assert_eq!(all(&mut within).await.unwrap(), [Some(40)]);
    stage.bus.cancel("hanging").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_fails_what_is_in_hand_and_the_instance_lives_on() {
    let stage = Stage::start().await;
    let mut neighbour = stage.send(&request("neighbour", &["count"], 40, AnswerForm::InParts)).await;
    tokio::time::timeout(PATIENCE, neighbour.next()).await.unwrap().outcome.unwrap();
    let mut panics = stage.send(&request("panics", &["count"], PANIC_ONCE, AnswerForm::InParts)).await;
    // A panic is not the request's fault, so the request is tried again, and parts that were received do not come
    // again.
    assert_eq!(tokio::time::timeout(PATIENCE, panics.next()).await.unwrap().sequence, 0);
    assert_eq!(all(&mut neighbour).await.unwrap(), numbers(40)[1..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_always_panics_fails_alone() {
    let stage = Stage::start().await;
    let mut poison = stage.send(&request("poison", &["count"], PANIC, AnswerForm::Whole)).await;
    let mut neighbours = Vec::new();
    for id in ["one", "two"] {
        // Long enough for the other request to panic on every attempt meanwhile.
        neighbours.push(stage.send(&request(id, &["count"], 200, AnswerForm::Whole)).await);
    }
    for replies in &mut neighbours {
        assert_eq!(all(replies).await.unwrap(), [Some(200)]);
    }
    let (_, error) = all(&mut poison).await.unwrap_err();
    assert_eq!(error.message, "model instance panicked while executing");
    let dead = stage.bus.dead_letter_after(0).await.unwrap().expect("a dead letter");
    assert_eq!((dead.letter.message.request_id.as_str(), dead.letter.attempts), ("poison", 3));
    assert!(stage.bus.dead_letter_after(dead.number).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_handed_to_another_worker_in_the_middle_goes_on_where_it_was() {
    let stage = Stage::start().await;
    let message = request("1", &["count", "echo"], 200, AnswerForm::InParts);
    let mut replies = stage.send(&message).await;
    for expected in 0..20 {
        let reply = tokio::time::timeout(PATIENCE, replies.next()).await.unwrap();
        assert_eq!(reply.outcome.unwrap().tensors[0].values::<i64>().unwrap()[0], expected);
    }
    // A bus redelivers the message like this when the delivery's ack wait has run out.
    let again = WorkMessage {
        route: Route::resume(message.route.model().clone(), true, 7, message.route.remaining().to_vec()),
        ..message
    };
    stage.bus.publish(&again).await.unwrap();
    assert_eq!(all(&mut replies).await.unwrap(), numbers(200)[20..]);
}
