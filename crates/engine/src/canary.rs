//! The canary: a request that a model's instances execute from time to time while no other request succeeds, so that a
//! broken instance is noticed. Without traffic, it is noticed before a client's request fails. With traffic, it is
//! noticed before the instance fails most of the requests: an instance that fails is faster than those that work.
//! Canary requests are not counted.
//!
//! Not here: a canary request that does not end (`watchdog`, as for every execution).

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use trireme_inference::{ErrorCode, InferError, Shape, Tensor};
use trireme_model_repository::{ModelConfig, ModelInput};

use crate::backend::{Instance, LoadError, LoadedModel};
use crate::instance::{ModelInstance, Progress, StepwiseInstance, Ticket, panicked};
use crate::request::ExecuteRequest;
use crate::threads::spawn;

/// The most elements of a made-up input. A model that needs a larger input gets no made-up canary request.
const MAX_ELEMENTS: u64 = 1 << 20;

/// The most steps that a made-up request may take when it is tried.
const MAX_STEPS: usize = 10_000;

/// After this many failures in a row that are not the requests' fault, an instance has to execute the canary request.
const FAILURES: u32 = 8;

/// A model's canary request. The model has executed it when it was loaded, so a failure later means that the instance
/// has changed.
pub struct Canary {
    request: ExecuteRequest,
    /// Number of clients' runs that succeeded.
    successes: AtomicU64,
}

/// Number of failures in a row of an instance that are not the requests' fault.
#[derive(Debug, Default)]
pub(crate) struct Streak(u32);

/// Why a model is not served that does not answer the made-up request in time.
const HANGS: &str = "a made-up canary request takes longer than the execution limit; model_warmup can declare another";

/// Whether a canary request is due: `seen` and `now` count successes at the pause's beginning and end.
pub(crate) fn is_due(seen: u64, now: u64, in_hand: usize) -> bool {
    now == seen && in_hand == 0
}

// === impl Streak ===

impl Streak {
    /// Notes how a run ended. Errors that are the request's fault say nothing about the instance.
    pub fn note(&mut self, outcome: Result<(), ErrorCode>) {
        match outcome {
            Ok(()) => self.0 = 0,
            Err(ErrorCode::Internal) => self.0 = self.0.saturating_add(1),
            Err(_) => {}
        }
    }

    /// Whether the instance has to execute the canary request now. The count starts again at 0.
    pub fn is_due(&mut self) -> bool {
        let due = self.0 >= FAILURES;
        if due {
            self.0 = 0;
        }
        due
    }
}

// === impl Canary ===

impl Canary {
    fn new(request: ExecuteRequest) -> Canary {
        Canary { request, successes: AtomicU64::new(0) }
    }

    /// The request itself.
    pub(crate) fn request(&self) -> &ExecuteRequest {
        &self.request
    }

    /// Number of clients' runs that succeeded.
    pub(crate) fn successes(&self) -> u64 {
        self.successes.load(Ordering::Relaxed)
    }

    /// Notes how a run of a client's request ended.
    pub(crate) fn note(&self, outcome: &Result<(), ErrorCode>) {
        self.successes.fetch_add(u64::from(outcome.is_ok()), Ordering::Relaxed);
    }

    /// Finds the canary request of a model that is being loaded. A declared one has run already. Otherwise a request is
    /// made up: one row, open dimensions 1, all zeros and empty texts. It is used if the first instance executes it
    /// without an error. `None` for a model without inputs, or with very large ones. Errors when the made-up request
    /// takes longer than `limit`.
    pub async fn prove(
        model: &mut LoadedModel,
        name: &str,
        limit: Option<Duration>,
    ) -> Result<Option<Canary>, LoadError> {
        let request = match (model.canary.take(), made_up(&model.config)) {
            (Some(request), _) => return Ok(Some(Canary::new(request))),
            (None, None) => return Ok(None),
            (None, Some(request)) => request,
        };
        let failed = |reason: &str| LoadError::Backend { model: name.to_owned(), reason: reason.to_owned() };
        let (mut instances, tried) = (std::mem::take(&mut model.instances), request.clone());
        let (sender, trying) = oneshot::channel();
        // A thread of its own: if it hangs, nothing waits for it, and it ends with the process.
        let thread = spawn(format!("{name}-canary"), move || {
            let outcome = instances.first_mut().map_or(Ok(()), |instance| attempt(instance, tried));
            // After the limit the receiver is gone.
            let _ = sender.send((outcome, instances));
        });
        thread.map_err(|error| failed(&error.to_string()))?;
        let tried = tokio::time::timeout(limit.unwrap_or(Duration::MAX), trying).await;
        let Ok(tried) = tried else { return Err(failed(HANGS)) };
        let (outcome, instances) = tried.map_err(|_| failed("its first instance panicked"))?;
        model.instances = instances;
        Ok(match outcome {
            Ok(()) => Some(Canary::new(request)),
            Err(error) => {
                tracing::info!(
                    model = name, %error,
                    "no canary requests: the model does not take a made-up one; model_warmup can declare one"
                );
                None
            }
        })
    }
}

/// Executes a request on an instance that takes no other requests yet.
fn attempt(instance: &mut Instance, request: ExecuteRequest) -> Result<(), InferError> {
    const TICKET: Ticket = Ticket::MAX;
    match instance {
        Instance::Batch(instance) => execute(instance.as_mut(), &request),
        Instance::Stepwise(instance) => {
            let ended = caught(|| step_through(instance.as_mut(), TICKET, request));
            if ended.is_err() {
                let _ = caught(|| {
                    instance.leave(TICKET);
                    Ok(())
                });
            }
            ended
        }
    }
}

/// Executes a request whose outputs are not used.
pub(crate) fn execute(instance: &mut dyn ModelInstance, request: &ExecuteRequest) -> Result<(), InferError> {
    caught(|| instance.execute(std::slice::from_ref(request)).into_iter().try_for_each(|result| result.map(drop)))
}

fn step_through(
    instance: &mut dyn StepwiseInstance,
    ticket: Ticket,
    request: ExecuteRequest,
) -> Result<(), InferError> {
    instance.join(ticket, request)?;
    for _ in 0..MAX_STEPS {
        for (_, progress) in instance.step() {
            if let Progress::Done(result) = progress {
                return result.map(drop);
            }
        }
    }
    Err(InferError::internal(format!("not answered within {MAX_STEPS} steps")))
}

fn caught(call: impl FnOnce() -> Result<(), InferError>) -> Result<(), InferError> {
    std::panic::catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err(panicked()))
}

fn made_up(config: &ModelConfig) -> Option<ExecuteRequest> {
    let needed = config.inputs.iter().filter(|input| !input.optional);
    let inputs: Vec<Tensor> = needed.map(|input| zeros(input, config.max_batch_size > 0)).collect::<Option<_>>()?;
    let outputs = config.outputs.iter().map(|output| &output.name);
    (!inputs.is_empty()).then(|| ExecuteRequest::made_up("canary", inputs, outputs))
}

fn zeros(input: &ModelInput, batched: bool) -> Option<Tensor> {
    let shape = Shape::from(input.dims.iter().map(|&size| if size < 0 { 1 } else { size }).collect::<Vec<_>>());
    let shape = if batched { shape.prepend(1) } else { shape };
    let count = shape.element_count().filter(|&count| count <= MAX_ELEMENTS)?;
    // 4 is the length of an empty text.
    let size = input.datatype.element_size().unwrap_or(4);
    Tensor::new(input.name.as_str(), input.datatype, shape, vec![0; count as usize * size].into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_successes_put_the_canary_off() {
        let canary = Canary::new(ExecuteRequest::made_up("canary", Vec::new(), [""; 0]));
        let successes = || canary.successes.load(Ordering::Relaxed);
        let before = successes();
        assert!(is_due(before, successes(), 0), "nothing came");
        canary.note(&Err(ErrorCode::Internal));
        canary.note(&Err(ErrorCode::InvalidArg));
        assert!(is_due(before, successes(), 0), "all that came failed");
        assert!(!is_due(before, successes(), 1), "something is being executed");
        canary.note(&Ok(()));
        assert!(!is_due(before, successes(), 0), "something succeeded");
    }

    #[test]
    fn an_instance_that_fails_again_and_again_has_to_show_that_it_works() {
        let mut streak = Streak::default();
        for outcome in [Err(ErrorCode::Internal), Err(ErrorCode::InvalidArg)] {
            (1..FAILURES).for_each(|_| streak.note(outcome));
        }
        assert!(!streak.is_due(), "what a request was refused for says nothing");
        streak.note(Err(ErrorCode::Internal));
        assert!(streak.is_due());
        assert!(!streak.is_due(), "once");
        (1..FAILURES).for_each(|_| streak.note(Err(ErrorCode::Internal)));
        streak.note(Ok(()));
        streak.note(Err(ErrorCode::Internal));
        assert!(!streak.is_due(), "it has worked since");
    }
}
