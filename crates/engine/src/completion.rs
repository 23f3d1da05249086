//! The way of a request out of the engine: the trait that a worker, or any other user of the engine, implements.

use std::time::Duration;

use trireme_inference::{FailureReason, InferError};

use crate::batching::Description;
use crate::cancel::refused;
use crate::request::{ExecuteRequest, ExecuteResponse};

/// The rest of a request while the engine has it: it decides when the request may run, and gets its result. The engine
/// calls it on the thread that executes the request, within the tokio runtime of the model's tasks, and gives up each one
/// exactly once.
///
/// Only [`Completion::description`], [`Completion::complete`], [`Completion::fail`] and [`Completion::into_parts`] have no
/// default: the others are for requests that came from somewhere and can go back.
///
/// Results go to a channel:
///
/// ```
/// # use std::sync::mpsc::{SyncSender, sync_channel};
/// # use trireme_engine::{Completion, Description, ExecuteResponse, SendParts};
/// # use trireme_inference::{FailureReason, InferError};
/// struct Pending(SyncSender<Result<ExecuteResponse, InferError>>);
///
/// impl Completion for Pending {
///     type Holding = ();
///     type PartSender = Pending;
///
///     fn description(&self) -> Description {
///         Description::exact(&[])
///     }
///
///     fn complete(self, response: ExecuteResponse) {
///         let _ = self.0.send(Ok(response));
///     }
///
///     fn fail(self, error: InferError, _: FailureReason) {
///         let _ = self.0.send(Err(error));
///     }
///
///     fn into_parts(self) -> Pending {
///         self
///     }
/// }
/// #
/// # impl SendParts for Pending {
/// #     fn send(&self, part: ExecuteResponse) -> bool {
/// #         self.0.send(Ok(part)).is_ok()
/// #     }
/// #     fn end(self, last: Result<ExecuteResponse, InferError>) {
/// #         let _ = self.0.send(last);
/// #     }
/// # }
///
/// let (sender, results) = sync_channel(1);
/// Pending(sender).fail(InferError::internal("out of memory"), FailureReason::Backend);
/// assert!(results.recv()?.is_err_and(|error| error.message == "out of memory"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Completion: Send + Sized + 'static {
    /// Can release a request while an instance's thread that hangs still has it.
    type Holding: Clone + Send + 'static;
    /// Sends the parts of an answer.
    type PartSender: SendParts;

    /// The description of the request's inputs, with `rows` set to 1 for a model without batches.
    fn description(&self) -> Description;

    /// The request has its result.
    fn complete(self, response: ExecuteResponse);

    /// The request has failed, or need not be executed.
    fn fail(self, error: InferError, reason: FailureReason);

    /// From now on the request is answered in parts.
    fn into_parts(self) -> Self::PartSender;

    /// Whether the request has to run in a batch of its own.
    fn is_alone(&self) -> bool {
        false
    }

    /// Whether a run that begins now and takes `run` is too late for the request.
    fn is_too_late(&self, _run: Duration) -> bool {
        false
    }

    /// Whether the request has waited longer than its model's queue policy allows.
    fn has_waited_too_long(&self) -> bool {
        false
    }

    /// The request is about to be executed, after it has waited in the queue for `queued`.
    fn begin(&mut self, _queued: Duration) {}

    /// A batch is about to be executed. Returns the requests that may begin; it has settled the others.
    fn begin_batch(batch: Vec<(ExecuteRequest, Self)>) -> Vec<(ExecuteRequest, Self)> {
        batch
    }

    /// These requests were executed in one batch.
    fn ran_together(_batch: &mut [Self]) {}

    /// The handle that can release the request; `None` if nothing else could execute it.
    fn held(&self) -> Option<Self::Holding> {
        None
    }

    /// Releases the requests of an execution that does not end.
    fn release(_held: Vec<Self::Holding>) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// An instance took these requests without knowing that it is out.
    fn give_back(batch: Vec<Self>) {
        batch.into_iter().for_each(|request| request.fail(refused(), FailureReason::Other));
    }
}

/// Sends the parts of one request's answer.
pub trait SendParts: Send {
    /// Sends a part on. Waits while too many parts wait already. Returns `false` if the request has ended meanwhile.
    fn send(&self, part: ExecuteResponse) -> bool;

    /// Ends the answer with its last part or an error.
    fn end(self, last: Result<ExecuteResponse, InferError>);
}
