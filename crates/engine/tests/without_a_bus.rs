//! Runs models in the engine alone, without a worker and without a bus: batches, answers in parts, errors, requests that are
//! not wanted any more, and executions that hang.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use trireme_engine::{
    BackgroundInstance, Candidate, Completion, Description, Division, DynamicBatcher, ExecuteRequest, ExecuteResponse,
    Executions, Guests, Instance, LoadError, Model, ModelInstance, ModelStatistics, OneAtATime, Progress, SendParts,
    StepwiseInstance, Ticket, Work, WorkQueue, in_background,
};
use trireme_inference::{FailureReason, InferError, Lane, ModelKey, Tensor};
use trireme_model_repository::ModelConfig;
use trireme_tasks::TaskSet;

const PATIENCE: Duration = Duration::from_secs(60);

/// A result of a request.
#[derive(Debug)]
enum Got {
    Response(Vec<i64>, u32),
    Part(Vec<i64>),
    Error(InferError, FailureReason),
    Released,
}

/// Gives results to a test.
struct Caller {
    description: Description,
    is_alone: bool,
    got: SyncSender<Got>,
}

struct PartsCaller(SyncSender<Got>);

fn values(response: &ExecuteResponse) -> Vec<i64> {
    response.outputs.first().map(|output| output.values::<i64>().expect("numbers").to_vec()).unwrap_or_default()
}

impl Completion for Caller {
    type Holding = SyncSender<Got>;
    type PartSender = PartsCaller;

    fn description(&self) -> Description {
        self.description
    }

    fn complete(self, response: ExecuteResponse) {
        let _ = self.got.send(Got::Response(values(&response), response.timing.batch_size));
    }

    fn fail(self, error: InferError, reason: FailureReason) {
        let _ = self.got.send(Got::Error(error, reason));
    }

    fn into_parts(self) -> PartsCaller {
        PartsCaller(self.got)
    }

    fn is_alone(&self) -> bool {
        self.is_alone
    }

    fn held(&self) -> Option<SyncSender<Got>> {
        Some(self.got.clone())
    }

    async fn release(held: Vec<SyncSender<Got>>) {
        held.iter().for_each(|got| drop(got.send(Got::Released)));
    }
}

impl SendParts for PartsCaller {
    fn send(&self, part: ExecuteResponse) -> bool {
        self.0.send(Got::Part(values(&part))).is_ok()
    }

    fn end(self, last: Result<ExecuteResponse, InferError>) {
        let _ = self.0.send(match last {
            Ok(last) => Got::Response(values(&last), last.timing.batch_size),
            Err(error) => Got::Error(error, FailureReason::Backend),
        });
    }
}

/// Doubles numbers. A zero fails the request, a negative number hangs.
struct Doubler;

impl ModelInstance for Doubler {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        let double = |request: &ExecuteRequest| {
            let number = request.inputs[0].values::<i64>()?[0];
            match number {
                0 => return Err(InferError::internal("zero")),
                ..0 => std::thread::sleep(PATIENCE * 2),
                _ => {}
            }
            let mut response = ExecuteResponse { outputs: vec![tensor(2 * number)], ..ExecuteResponse::default() };
            response.timing.batch_size = requests.len() as u32;
            Ok(response)
        };
        requests.iter().map(double).collect()
    }
}

/// Doubles the numbers of a request one by one, each when it is released. A zero fails, and a negative number cannot be divided.
struct OneByOne {
    release: Receiver<()>,
    ran: Arc<Mutex<Vec<i64>>>,
}

impl ModelInstance for OneByOne {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        self.release.recv_timeout(PATIENCE).expect("a release");
        let number = requests[0].inputs[0].values::<i64>().expect("numbers")[0];
        self.ran.lock().push(number);
        Doubler.execute(requests)
    }

    fn divide(&mut self, request: &ExecuteRequest) -> Result<Option<Division>, InferError> {
        let numbers = request.inputs[0].values::<i64>()?;
        assert!(numbers[0] >= 0, "as planned");
        let part = |&number: &i64| vec![ExecuteRequest { inputs: vec![tensor(number)], ..request.clone() }];
        let join = |outputs: Vec<Vec<Tensor>>| {
            let all = outputs.iter().map(|output| Ok(output[0].values::<i64>()?[0]));
            let all: Vec<i64> = all.collect::<Result<_, InferError>>()?;
            Ok(vec![Tensor::from_values("NUMBER", [all.len() as i64, 1], all)?])
        };
        Ok((numbers.len() > 1).then(|| Division::new(numbers.iter().map(part).collect(), join)))
    }
}

/// Counts down from a number, one part a step.
struct Countdown(Vec<(Ticket, i64)>);

impl StepwiseInstance for Countdown {
    fn room(&self) -> usize {
        2 - self.0.len()
    }

    fn join(&mut self, ticket: Ticket, request: ExecuteRequest) -> Result<(), InferError> {
        self.0.push((ticket, request.inputs[0].values::<i64>()?[0]));
        Ok(())
    }

    fn leave(&mut self, ticket: Ticket) {
        self.0.retain(|(other, _)| *other != ticket);
    }

    fn step(&mut self) -> Vec<(Ticket, Progress)> {
        let made = self.0.iter_mut().map(|(ticket, number)| {
            *number -= 1;
            match number {
                0 => (*ticket, Progress::Done(Ok(ExecuteResponse::default()))),
                _ => (*ticket, Progress::Part(vec![tensor(*number)], Default::default())),
            }
        });
        let made: Vec<_> = made.collect();
        self.0.retain(|(_, number)| *number > 0);
        made
    }
}

/// Answers with 1 on a thread of lower priority than the process, otherwise with 0, and computes before that as long as the request says, in
/// milliseconds.
struct Nice;

impl ModelInstance for Nice {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        let nice = |request: &ExecuteRequest| {
            let until = Instant::now() + Duration::from_millis(request.inputs[0].values::<i64>()?[0] as u64);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            let nice = |process| rustix::process::getpriority_process(process).expect("a priority");
            // The caller of the test may have given the process a priority of its own.
            let is_lower = nice(None) > nice(Some(rustix::process::getpid()));
            Ok(ExecuteResponse { outputs: vec![tensor(is_lower.into())], ..ExecuteResponse::default() })
        };
        requests.iter().map(nice).collect()
    }
}

/// Answers with 1 on the thread of an instance, with 0 on any other.
struct Place;

impl ModelInstance for Place {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        let own = std::thread::current().name().is_some_and(|name| name.starts_with("doubler-"));
        let place = |_| Ok(ExecuteResponse { outputs: vec![tensor(own.into())], ..ExecuteResponse::default() });
        requests.iter().map(place).collect()
    }
}

fn tensor(number: i64) -> Tensor {
    Tensor::from_values("NUMBER", [1, 1], vec![number]).expect("one element")
}

/// A model of one instance in the engine, and its tasks.
struct Running {
    model: Arc<Model<Caller>>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

impl Running {
    fn start(instance: Instance, delay: Option<Duration>) -> Running {
        Running::start_with(instance, Vec::new(), Vec::new(), delay)
    }

    fn start_with(
        instance: Instance,
        background: Vec<BackgroundInstance>,
        guests: Vec<Box<dyn ModelInstance>>,
        delay: Option<Duration>,
    ) -> Running {
        let instances = vec![instance];
        let policy: Box<dyn trireme_engine::BatchPolicy> = match delay {
            Some(delay) => {
                let text = format!(
                    "name: \"doubler\"\nbackend: \"identity\"\nmax_batch_size: 4\ndynamic_batching {{ preferred_batch_size: [ 2 ] \
                     max_queue_delay_microseconds: {} }}",
                    delay.as_micros()
                );
                let config = ModelConfig::parse(&text, "doubler").expect("a configuration");
                Box::new(DynamicBatcher::new(config.dynamic_batching.as_ref().expect("declared"), 4))
            }
            None => Box::new(OneAtATime),
        };
        let model = Arc::new(Model {
            key: ModelKey { name: "doubler".into(), version: 1 },
            queue: WorkQueue::of(policy, &instances, false),
            guests: Guests::new(guests),
            statistics: Arc::<ModelStatistics>::default(),
            canary: None,
            executions: Executions::default(),
            intake: CancellationToken::new(),
            tasks: TaskSet::new(),
        });
        let threads = Mutex::new(model.start(instances, background).expect("threads"));
        Running { model, threads }
    }

    fn push(&self, request: ExecuteRequest) -> Receiver<Got> {
        self.push_to(Lane::Live, request)
    }

    fn push_to(&self, lane: Lane, request: ExecuteRequest) -> Receiver<Got> {
        let (got, results) = sync_channel(16);
        let description = self.model.queue.describe(&request.inputs);
        let (arrived, pending) = (Instant::now(), Caller { description, is_alone: false, got });
        let candidate = Candidate { arrived, priority: 0, description };
        self.model.enter(lane, candidate, Work { request, pending, arrived });
        results
    }

    /// Closes the queue and waits for the threads.
    fn end(&self) {
        self.model.queue.close();
        self.threads.lock().drain(..).for_each(|thread| thread.join().expect("no panic"));
    }
}

fn request(number: i64) -> ExecuteRequest {
    ExecuteRequest::made_up("request", vec![tensor(number)], ["NUMBER"])
}

fn next(results: &Receiver<Got>) -> Got {
    results.recv_timeout(PATIENCE).expect("an answer in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_share_a_batch_and_each_gets_its_own_result() {
    let running = Running::start(Instance::Batch(Box::new(Doubler)), Some(Duration::from_secs(20)));
    let results: Vec<_> = [3, 4].map(|number| running.push(request(number))).into();
    assert!(matches!(next(&results[0]), Got::Response(values, 2) if values == [6]));
    assert!(matches!(next(&results[1]), Got::Response(values, 2) if values == [8]));
    running.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_or_is_not_wanted_gets_its_error() {
    let running = Running::start(Instance::Batch(Box::new(Doubler)), None);
    let failed = running.push(request(0));
    let unwanted = request(5);
    unwanted.cancelled.cancel();
    let unwanted = running.push(unwanted);
    assert!(matches!(next(&failed), Got::Error(error, FailureReason::Backend) if error.message == "zero"));
    assert!(matches!(next(&unwanted), Got::Error(error, FailureReason::Other) if error.message.contains("cancelled")));
    running.end();
    assert!(unwanted.try_recv().is_err(), "one answer each");
}

fn numbers(numbers: &[i64]) -> ExecuteRequest {
    let inputs = vec![Tensor::from_values("NUMBER", [numbers.len() as i64, 1], numbers.to_vec()).expect("numbers")];
    ExecuteRequest::made_up("request", inputs, ["NUMBER"])
}

/// A model whose instance takes numbers one by one, what it has run, and the way to release runs.
fn one_by_one() -> (Running, Arc<Mutex<Vec<i64>>>, impl Fn(usize)) {
    let (sender, release) = sync_channel(64);
    let ran = Arc::<Mutex<Vec<i64>>>::default();
    let running = Running::start(Instance::Batch(Box::new(OneByOne { release, ran: ran.clone() })), None);
    (running, ran, move |runs| (0..runs).for_each(|_| sender.send(()).expect("an instance")))
}

fn wait_for(ran: &Mutex<Vec<i64>>, numbers: &[i64]) {
    let until = Instant::now() + PATIENCE;
    while *ran.lock() != numbers {
        assert!(Instant::now() < until, "{:?}, expected {numbers:?}", ran.lock());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn others_run_between_the_runs_of_a_long_request() {
    let (running, ran, release) = one_by_one();
    let long = running.push(numbers(&[1, 2, 3, 4]));
    release(1);
    wait_for(&ran, &[1]);
    let (short, other) = (running.push(numbers(&[10])), running.push(numbers(&[5, 6])));
    release(6);
    assert!(matches!(next(&short), Got::Response(values, 1) if values == [20]));
    assert!(matches!(next(&long), Got::Response(values, 4) if values == [2, 4, 6, 8]));
    assert!(matches!(next(&other), Got::Response(values, 2) if values == [10, 12]));
    let (order, place) = (ran.lock().clone(), |number| ran.lock().iter().position(|&ran| ran == number));
    assert!(place(10) <= Some(2), "the short one waited for the run under way: {order:?}");
    assert!(place(5) < place(6) && place(3) < place(4) && order.len() == 7, "each in its order: {order:?}");
    let counted = running.model.statistics.snapshot(&running.model.key).expect("counters").counters;
    assert_eq!((counted.executions, counted.tokens), (7, 7), "each run is counted");
    // What has begun is finished when the queue is closed.
    let last = running.push(numbers(&[7, 8]));
    release(2);
    running.end();
    assert!(matches!(next(&last), Got::Response(values, 2) if values == [14, 16]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_request_ends_with_the_first_error() {
    let (running, ran, release) = one_by_one();
    let failed = running.push(numbers(&[1, 0, 3]));
    release(2);
    assert!(matches!(next(&failed), Got::Error(error, FailureReason::Backend) if error.message == "zero"));
    let unwanted = numbers(&[4, 5, 6]);
    let cancelled = unwanted.cancelled.clone();
    let unwanted = running.push(unwanted);
    release(1);
    wait_for(&ran, &[1, 0, 4]);
    cancelled.cancel();
    // The run under way.
    release(1);
    assert!(matches!(next(&unwanted), Got::Error(error, FailureReason::Other) if error.message.contains("cancelled")));
    assert!(!ran.lock().contains(&6));
    let undivided = running.push(numbers(&[-1, 2]));
    assert!(
        matches!(next(&undivided), Got::Error(error, FailureReason::Backend) if error.message.contains("panicked"))
    );
    running.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn between_the_runs_of_a_request_that_has_to_run_alone_no_other_runs() {
    let (running, ran, release) = one_by_one();
    let long = running.push(numbers(&[4, 5, 6]));
    release(1);
    wait_for(&ran, &[4]);
    let (got, alone) = sync_channel(1);
    let request = numbers(&[1, 2, 3]);
    let (arrived, description) = (Instant::now(), running.model.queue.describe(&request.inputs));
    let pending = Caller { description, is_alone: true, got };
    let candidate = Candidate { arrived, priority: 0, description };
    running.model.queue.push_alone(candidate, Work { request, pending, arrived });
    let short = running.push(numbers(&[10]));
    release(6);
    assert!(matches!(next(&alone), Got::Response(values, 3) if values == [2, 4, 6]));
    assert!(matches!(next(&short), Got::Response(values, 1) if values == [20]));
    assert!(matches!(next(&long), Got::Response(values, 3) if values == [8, 10, 12]));
    let order = ran.lock().clone();
    assert!(order.windows(3).any(|runs| runs == [1, 2, 3]), "{order:?}");
    running.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stepwise_instance_gives_parts_in_order() {
    let running = Running::start(Instance::Stepwise(Box::new(Countdown(Vec::new()))), None);
    let results = running.push(ExecuteRequest { in_parts: true, ..request(3) });
    let whole = running.push(request(2));
    assert!(matches!(next(&results), Got::Part(values) if values == [2]));
    assert!(matches!(next(&results), Got::Part(values) if values == [1]));
    assert!(matches!(next(&results), Got::Response(values, _) if values.is_empty()));
    assert!(matches!(next(&whole), Got::Error(error, _) if error.message.contains("exactly 1 response")));
    running.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_that_hangs_is_released_and_reported() {
    let running = Running::start(Instance::Batch(Box::new(Doubler)), None);
    let (model, tasks) = (running.model.clone(), running.model.tasks.clone());
    tasks.spawn_until_stop("watchdog", model.watch_executions(Duration::from_millis(200)));
    let results = running.push(request(-1));
    assert_eq!(tasks.failed().await, "execution that does not end");
    assert!(matches!(next(&results), Got::Released));
    assert!(running.model.executions.broken() && running.model.intake.is_cancelled());
    tasks.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_requests_run_in_the_background_beside_live_ones() {
    let make = in_background(|| Ok(Nice));
    let running = Running::start_with(Instance::Batch(Box::new(Nice)), vec![make], Vec::new(), None);
    assert!(matches!(next(&running.push(request(0))), Got::Response(nice, _) if nice == [0]));
    // The main instance may take the first bulk requests, while the other one is made.
    let until = Instant::now() + PATIENCE;
    while !matches!(next(&running.push_to(Lane::Bulk, request(0))), Got::Response(nice, _) if nice == [1]) {
        assert!(Instant::now() < until, "no instance in the background");
    }
    let (long, waiting) = (running.push_to(Lane::Bulk, request(1000)), running.push_to(Lane::Bulk, request(0)));
    assert!(matches!(next(&running.push(request(0))), Got::Response(nice, _) if nice == [0]));
    assert!(long.try_recv().is_err(), "the live request did not wait for the bulk request");
    assert!(matches!(next(&long), Got::Response(nice, _) if nice == [1]));
    assert!(matches!(next(&waiting), Got::Response(..)));
    running.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_background_instance_the_main_one_executes_bulk_requests() {
    let fails = || in_background(|| Err::<Nice, _>(LoadError::Config("no memory".to_owned())));
    let running = Running::start_with(Instance::Batch(Box::new(Nice)), vec![fails(), fails()], Vec::new(), None);
    for _ in 0..3 {
        assert!(matches!(next(&running.push_to(Lane::Bulk, request(0))), Got::Response(nice, _) if nice == [0]));
    }
    running.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_no_bulk_request_came_for_ends() {
    let make: BackgroundInstance = Box::new(|| panic!("no bulk request has come"));
    let running = Running::start_with(Instance::Batch(Box::new(Nice)), vec![make], Vec::new(), None);
    assert!(matches!(next(&running.push(request(0))), Got::Response(nice, _) if nice == [0]));
    running.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_executes_short_requests_on_the_thread_that_brings_them() {
    let running = Running::start_with(Instance::Batch(Box::new(Place)), Vec::new(), vec![Box::new(Place)], None);
    let place = |lane, request| match next(&running.push_to(lane, request)) {
        Got::Response(values, _) => values[0],
        other => panic!("{other:?}"),
    };
    assert_eq!(place(Lane::Live, request(1)), 1, "nobody knows yet how long a run takes");
    let until = Instant::now() + PATIENCE;
    while place(Lane::Live, request(1)) != 0 {
        assert!(Instant::now() < until, "no guest");
    }
    assert_eq!(place(Lane::Bulk, request(1)), 1);
    let large = Tensor::from_values("NUMBER", [1, 1000], vec![1i64; 1000]).expect("a thousand elements");
    assert_eq!(place(Lane::Live, ExecuteRequest { inputs: vec![large], ..request(1) }), 1);
    running.end();
}

/// The only thread of a runtime has to notice executions that hang.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_runtime_of_one_thread_has_no_guests() {
    let running = Running::start_with(Instance::Batch(Box::new(Place)), Vec::new(), vec![Box::new(Place)], None);
    for _ in 0..50 {
        assert!(matches!(next(&running.push(request(1))), Got::Response(values, _) if values == [1]));
    }
    running.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_guest_fails_gets_its_error() {
    let running = Running::start_with(Instance::Batch(Box::new(Doubler)), Vec::new(), vec![Box::new(Doubler)], None);
    for _ in 0..20 {
        assert!(matches!(next(&running.push(request(0))), Got::Error(error, _) if error.message == "zero"));
        assert!(matches!(next(&running.push(request(2))), Got::Response(values, 1) if values == [4]));
    }
    running.end();
}
