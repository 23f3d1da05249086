//! The instances that execute requests: a [`ModelInstance`] in batches, or a [`StepwiseInstance`] that takes requests while others are in work.
//!
//! Not here: the requests (`request`), how instances are made (`backend`), and the threads that they run on (`execute`, `stepwise`).

use std::sync::Arc;

use tokio::sync::watch;
use trireme_inference::{InferError, Parameters, Tensor};

use crate::division::Division;
use crate::request::{ExecuteRequest, ExecuteResponse};

/// Why an instance cannot execute now, though it will again; `None`: it can.
pub type Outage = Option<Arc<str>>;

/// One copy of a model, used by one thread at a time.
///
/// An instance that doubles numbers:
///
/// ```
/// use trireme_engine::{ExecuteRequest, ExecuteResponse, ModelInstance};
/// use trireme_inference::{InferError, Tensor};
///
/// struct Doubler;
///
/// impl ModelInstance for Doubler {
///     fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
///         let double = |request: &ExecuteRequest| {
///             let numbers: Vec<i64> = request.inputs[0].values()?.iter().map(|number: &i64| 2 * number).collect();
///             let outputs = vec![Tensor::from_values("DOUBLED", [numbers.len() as i64], numbers)?];
///             Ok(ExecuteResponse { outputs, ..ExecuteResponse::default() })
///         };
///         requests.iter().map(double).collect()
///     }
/// }
///
/// let request = ExecuteRequest::made_up("1", vec![Tensor::from_values("NUMBERS", [2], vec![3i64, 4])?], ["DOUBLED"]);
/// let response = Doubler.execute(&[request]).remove(0)?;
/// assert_eq!(*response.outputs[0].values::<i64>()?, [6, 8]);
/// # Ok::<(), InferError>(())
/// ```
pub trait ModelInstance: Send {
    /// Executes requests that the model's policy put together. Returns one result per request, in their order. The
    /// failure of one request must not fail the others.
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>>;

    /// The runs of a request that is too large for one run; `None` if [`ModelInstance::execute`] takes it as it is. The harness asks before it executes a
    /// request that is alone in its batch.
    fn divide(&mut self, _request: &ExecuteRequest) -> Result<Option<Division>, InferError> {
        Ok(None)
    }

    /// Handle that stops an execution from another thread; `None` if the instance cannot be stopped.
    fn stop(&self) -> Option<Arc<dyn Stop>> {
        None
    }

    /// Reports the times in which the instance cannot execute: for an instance that may lose a resource and gets it back by
    /// itself. Meanwhile the harness takes no work for the instance. While all instances of a model are out, the model is not
    /// ready.
    fn outage(&self) -> Option<watch::Receiver<Outage>> {
        None
    }
}

/// Stops executions of one [`ModelInstance`] from another thread.
pub trait Stop: Send + Sync {
    /// Stops the execution under way: no client waits for its requests any more, so it may end at once, with any error.
    /// Does not wait. This may be called just after the execution has begun, so the instance checks its requests
    /// ([`ExecuteRequest::unwanted`]) as soon as it can be stopped.
    fn stop(&self);

    /// The execution under way has passed the execution limit: ends it by force, where that is possible, and says whether it
    /// did. The execution is over soon then, with an error that is tried again. Does not wait.
    fn kill(&self) -> bool {
        false
    }
}

/// A request within a [`StepwiseInstance`], from joining to its end.
pub type Ticket = u64;

/// One copy of a model that works on its requests step by step. Requests join and leave between steps, so long answers
/// do not hold short ones back. Owned by one thread.
///
/// When a worker dies, another worker runs its requests again from the start, and the client leaves out the parts that
/// it already has. So a request must give the same parts each time it is run: random numbers come from the request's
/// own seed, or from its id.
///
/// A panic fails all requests in the instance. The harness calls `leave` for each of them and goes on using the
/// instance.
///
/// An instance that counts down, one number a step:
///
/// ```
/// use trireme_engine::{ExecuteRequest, ExecuteResponse, Progress, StepwiseInstance, Ticket};
/// use trireme_inference::{InferError, Tensor};
///
/// struct Countdown(Vec<(Ticket, i64)>);
///
/// impl StepwiseInstance for Countdown {
///     fn room(&self) -> usize {
///         8 - self.0.len()
///     }
///
///     fn join(&mut self, ticket: Ticket, request: ExecuteRequest) -> Result<(), InferError> {
///         self.0.push((ticket, request.inputs[0].values::<i64>()?[0]));
///         Ok(())
///     }
///
///     fn leave(&mut self, ticket: Ticket) {
///         self.0.retain(|(other, _)| *other != ticket);
///     }
///
///     fn step(&mut self) -> Vec<(Ticket, Progress)> {
///         self.0.iter_mut().for_each(|(_, number)| *number -= 1);
///         let done = self.0.extract_if(.., |(_, number)| *number == 0);
///         done.map(|(ticket, _)| (ticket, Progress::Done(Ok(ExecuteResponse::default())))).collect()
///     }
/// }
///
/// let request = ExecuteRequest::made_up("1", vec![Tensor::from_values("FROM", [1], vec![2i64])?], ["LEFT"]);
/// let mut countdown = Countdown(Vec::new());
/// countdown.join(7, request)?;
/// assert!(countdown.step().is_empty());
/// assert!(matches!(countdown.step()[..], [(7, Progress::Done(Ok(_)))]));
/// # Ok::<(), InferError>(())
/// ```
pub trait StepwiseInstance: Send {
    /// Number of requests that can join now. The harness takes at most this number from the queue.
    fn room(&self) -> usize;

    /// Lets a request join. An error refuses this request and does not affect the others.
    fn join(&mut self, ticket: Ticket, request: ExecuteRequest) -> Result<(), InferError>;

    /// Forgets a request: its deadline has passed, or the client has cancelled it.
    fn leave(&mut self, ticket: Ticket);

    /// Takes every request one step further. The harness calls it while there are requests in the instance, and checks
    /// deadlines and cancellations between two calls.
    fn step(&mut self) -> Vec<(Ticket, Progress)>;

    /// Reports the times in which the instance cannot execute; see [`ModelInstance::outage`].
    fn outage(&self) -> Option<watch::Receiver<Outage>> {
        None
    }
}

/// Outcome of a step for one request.
#[derive(Clone, Debug)]
pub enum Progress {
    /// Part of the answer and its parameters, for requests that take it in parts ([`ExecuteRequest::in_parts`]); more parts follow.
    Part(Vec<Tensor>, Parameters),
    /// The answer, its last part, or the error. The request has left the instance. A last part without outputs only says
    /// that no more parts follow.
    Done(Result<ExecuteResponse, InferError>),
}

/// The error of a request for one answer to a model that gives another number of responses. The text is Triton's. It
/// counts as the request's fault, because a retry would fail in the same way.
pub fn one_response() -> InferError {
    InferError::invalid_arg(
        "generate expects model to produce exactly 1 response, use generate stream for model that may generate various \
         number of responses",
    )
}

/// The instance has panicked.
pub(crate) fn panicked() -> InferError {
    InferError::internal("model instance panicked while executing")
}
