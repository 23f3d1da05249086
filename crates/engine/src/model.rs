//! One model version in the engine: its queue, and the state that its instances' threads share.
//!
//! A request enters by [`Model::enter`]. A guest executes it at once, or it goes into [`Model::queue`] and an instance's thread
//! takes it with its batch and executes it (`execute`, `stepwise`). Its result goes to its [`Completion`].

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use trireme_inference::{ErrorCode, FailureReason, InferError, ModelKey};

use crate::backend::{BackgroundInstance, Instance};
use crate::canary::{self, Canary, Streak};
use crate::cancel::refused;
use crate::completion::Completion;
use crate::guests::Guests;
use crate::instance::{ModelInstance, Outage};
use crate::outage::is_out;
use crate::queue::WorkQueue;
use crate::request::{ExecuteRequest, ExecuteResponse, ExecuteTiming};
use crate::runs::executed;
use crate::statistics::ModelStatistics;
use crate::watchdog::{Callers, ExecutionLimit, Executions};
use trireme_tasks::TaskSet;

/// How often an instance that is out checks whether its queue is closed.
const LOOK: Duration = Duration::from_millis(100);

/// Name under which a worker fails whose canary request fails.
const CANARY_FAILURE: &str = "canary request";

/// A model version: its queue and what its instances' threads share.
///
/// With the `Doubler` of [`ModelInstance`] and the `Pending` of [`Completion`]:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use trireme_engine::{ExecuteRequest, ExecuteResponse, ModelInstance};
/// # use trireme_inference::{InferError, Tensor};
/// # struct Doubler;
/// # impl ModelInstance for Doubler {
/// #     fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
/// #         let double = |request: &ExecuteRequest| {
/// #             let numbers: Vec<i64> = request.inputs[0].values()?.iter().map(|number: &i64| 2 * number).collect();
/// #             let outputs = vec![Tensor::from_values("DOUBLED", [numbers.len() as i64], numbers)?];
/// #             Ok(ExecuteResponse { outputs, ..ExecuteResponse::default() })
/// #         };
/// #         requests.iter().map(double).collect()
/// #     }
/// # }
/// # use std::sync::mpsc::{SyncSender, sync_channel};
/// # use trireme_engine::{Completion, Description, SendParts};
/// # use trireme_inference::FailureReason;
/// # struct Pending(SyncSender<Result<ExecuteResponse, InferError>>);
/// # impl Completion for Pending {
/// #     type Holding = ();
/// #     type PartSender = Pending;
/// #     fn description(&self) -> Description {
/// #         Description::exact(&[])
/// #     }
/// #     fn complete(self, response: ExecuteResponse) {
/// #         let _ = self.0.send(Ok(response));
/// #     }
/// #     fn fail(self, error: InferError, _: FailureReason) {
/// #         let _ = self.0.send(Err(error));
/// #     }
/// #     fn into_parts(self) -> Pending {
/// #         self
/// #     }
/// # }
/// # impl SendParts for Pending {
/// #     fn send(&self, part: ExecuteResponse) -> bool {
/// #         self.0.send(Ok(part)).is_ok()
/// #     }
/// #     fn end(self, last: Result<ExecuteResponse, InferError>) {
/// #         let _ = self.0.send(last);
/// #     }
/// # }
/// # use std::sync::Arc;
/// # use std::time::Instant;
/// # use tokio_util::sync::CancellationToken;
/// # use trireme_engine::{Candidate, Executions, Guests, Instance, OneAtATime, WorkQueue};
/// # use trireme_tasks::TaskSet;
/// # use trireme_inference::{Lane, ModelKey};
/// use trireme_engine::{Model, Work};
///
/// let instances = vec![Instance::Batch(Box::new(Doubler))];
/// let model = Arc::new(Model {
///     key: ModelKey { name: "doubler".into(), version: 1 },
///     queue: WorkQueue::of(Box::new(OneAtATime), &instances, false),
///     guests: Guests::new(Vec::new()),
///     statistics: Arc::default(),
///     canary: None,
///     executions: Executions::default(),
///     intake: CancellationToken::new(),
///     tasks: TaskSet::new(),
/// });
/// let threads = model.start(instances, Vec::new())?;
///
/// # let numbers = Tensor::from_values("NUMBERS", [2], vec![3i64, 4])?;
/// # let request = ExecuteRequest::made_up("1", vec![numbers], ["DOUBLED"]);
/// # let arrived = Instant::now();
/// # let candidate = Candidate { arrived, priority: 0, description: model.queue.describe(&request.inputs) };
/// let (sender, results) = sync_channel(1);
/// model.enter(Lane::Live, candidate, Work { request, pending: Pending(sender), arrived });
/// assert_eq!(*results.recv()??.outputs[0].values::<i64>()?, [6, 8]);
///
/// // The threads end when the queue is closed and empty.
/// model.queue.close();
/// assert!(threads.into_iter().all(|thread| thread.join().is_ok()));
/// # Ok(())
/// # }
/// ```
pub struct Model<C: Completion> {
    /// Its name and version.
    pub key: ModelKey,
    /// The requests that wait for an instance.
    pub queue: Arc<WorkQueue<Work<C>>>,
    /// Its instances that run on the threads that bring requests.
    pub guests: Guests,
    /// Its counters.
    pub statistics: Arc<ModelStatistics>,
    /// The request that idle instances execute from time to time.
    pub canary: Option<Canary>,
    /// The executions of its instances that are under way.
    pub executions: Executions<C::Holding>,
    /// Cancelled when the version takes no more requests from outside.
    pub intake: CancellationToken,
    /// The tasks beside it. They fail when an instance becomes unreliable.
    pub tasks: TaskSet,
}

/// A request that waits in a model's queue.
pub struct Work<C> {
    /// The request to execute.
    pub request: ExecuteRequest,
    /// Where its result goes.
    pub pending: C,
    /// When it entered the queue.
    pub arrived: Instant,
}

// === impl Model ===

impl<C: Completion> Model<C> {
    /// Drops the guests, after the queue has dismissed the other instances.
    pub fn drop_guests(&self) {
        drop(self.guests.clear());
    }

    /// Starts instances in the place of those that were dismissed; they take the requests that wait.
    ///
    /// # Errors
    /// Threads cannot be started. The requests wait on.
    pub fn restart(
        self: &Arc<Self>,
        instances: Vec<Instance>,
        background: Vec<BackgroundInstance>,
        guests: Vec<Box<dyn ModelInstance>>,
    ) -> Result<Threads, std::io::Error> {
        self.guests.refill(guests);
        self.queue.recall();
        self.start(instances, background).inspect_err(|_| {
            self.queue.dismiss();
            self.drop_guests();
        })
    }

    /// Waits on an instance's thread until the instance can execute, or has to end.
    #[allow(clippy::disallowed_methods, reason = "the thread is the instance's own")]
    pub(crate) fn wait_out(&self, outage: Option<&watch::Receiver<Outage>>) {
        let Some(mut outage) = outage.filter(|_| is_out(outage)).cloned() else { return };
        self.tasks.runtime().block_on(async {
            while !self.queue.lets_go() {
                let over = outage.wait_for(Option::is_none);
                if tokio::time::timeout(LOOK, over).await.is_ok() {
                    return;
                }
            }
        });
    }

    /// Gives requests back that an instance took without knowing that it is out.
    pub(crate) fn return_work(&self, work: Vec<Work<C>>) {
        C::give_back(work.into_iter().map(|work| work.pending).collect());
    }

    /// The requests of a batch that are still to be executed.
    pub(crate) fn begin(&self, batch: Vec<Work<C>>, started: Instant) -> Vec<(ExecuteRequest, C)> {
        C::begin_batch(batch.into_iter().filter_map(|work| begin_one(work, started)).collect())
    }

    /// Counts a stepwise instance's work for a request from beginning to end as one run.
    pub(crate) fn count_step(&self, timing: &ExecuteTiming) {
        self.statistics.record(|counters| counters.execute(&executed(timing)));
    }

    /// The request that the model's instances execute from time to time.
    pub(crate) fn canary_request(&self) -> Option<&ExecuteRequest> {
        self.canary.as_ref().map(Canary::request)
    }

    /// Notes how a run of an instance ended.
    pub(crate) fn note_run(&self, streak: &mut Streak, outcome: Result<(), ErrorCode>) {
        if let Some(canary) = &self.canary {
            canary.note(&outcome);
        }
        streak.note(outcome);
    }

    /// Executes the canary request on an instance between two batches. Returns whether the instance may go on.
    pub(crate) fn run_canary(&self, instance: &mut dyn ModelInstance) -> bool {
        let Some(request) = self.canary_request() else { return true };
        let execution = self.executions.begin(Vec::new(), Callers::default(), ExecutionLimit::USUAL);
        let result = canary::execute(instance, request);
        drop(execution);
        self.judge_canary(result)
    }

    /// Fails the worker, so that its process is replaced, if its canary request failed: the request has run before, so
    /// the instance has changed. The cause (a device, memory) belongs to the process.
    /// An instance that is unavailable recovers by itself. Returns whether the instance may go on.
    pub(crate) fn judge_canary(&self, result: Result<(), InferError>) -> bool {
        match &result {
            Ok(()) => tracing::debug!(model = %self.key, "canary request succeeded"),
            Err(error) if error.code == ErrorCode::Unavailable => {
                tracing::warn!(model = %self.key, %error, "the canary request was not executed");
            }
            Err(error) => {
                tracing::error!(model = %self.key, %error, "the canary request failed: this worker gives its work back and ends");
                self.give_up(CANARY_FAILURE);
                return false;
            }
        }
        true
    }

    /// Its instances are unreliable: they take no more requests, and the process ends for the reason `failure`.
    pub(crate) fn give_up(&self, failure: &'static str) {
        self.executions.set_broken();
        self.intake.cancel();
        self.tasks.fail(failure);
    }
}

/// A request that is about to be executed, unless no client waits for it any more.
fn begin_one<C: Completion>(work: Work<C>, started: Instant) -> Option<(ExecuteRequest, C)> {
    let Work { request, mut pending, arrived } = work;
    if let Some(error) = request.unwanted() {
        pending.fail(error, FailureReason::Other);
        return None;
    }
    if pending.has_waited_too_long() {
        pending.fail(refused(), FailureReason::Rejected);
        return None;
    }
    pending.begin(started.duration_since(arrived));
    Some((request, pending))
}

/// A step has ended, with its result or without one.
pub(crate) fn conclude<C: Completion>(pending: C, result: Result<ExecuteResponse, InferError>) {
    match result {
        Ok(response) => pending.complete(response),
        Err(error) => pending.fail(error, FailureReason::Backend),
    }
}

/// The threads of a model's instances.
pub type Threads = Vec<JoinHandle<()>>;
