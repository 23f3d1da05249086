//! The canary: a made-up request that the instances of a model without traffic execute from time to time, so that one that
//! is broken is noticed before a client finds it. It waits for nothing but an idle instance, and counts nowhere.
//!
//! Not here: a canary request that does not end (`watchdog`, as for every execution).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use trireme_inference::{InferError, Shape, Tensor};
use trireme_model_repository::{ModelConfig, ModelInput};

use crate::backend::{ExecuteRequest, ModelInstance};
use crate::execute::panicked;
use crate::hosted::HostedModel;

/// The most elements of a made-up input: what a model needs more for is no probe.
const MAX_ELEMENTS: u64 = 1 << 20;

/// A model's canary request.
pub(crate) struct Canary {
    request: ExecuteRequest,
    trust: Mutex<Trust>,
}

/// What a canary request that fails says.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// It has never run: the model may not take it.
    Untried,
    /// It has run: now the instance is broken.
    Proven,
    /// The model does not take it.
    Useless,
}

/// Name under which a worker fails whose canary request fails.
const FAILURE: &str = "canary request";

/// Has the idle instances of a model execute its canary request after every `pause` in which nothing came for it.
pub(crate) async fn watch(model: Arc<HostedModel>, pause: Duration) {
    let stopping = model.worker.tasks.stopping().clone();
    let mut seen = model.admitted.load(Ordering::Relaxed);
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stopping.cancelled() => return,
        }
        let now = model.admitted.load(Ordering::Relaxed);
        if now == seen && model.queue.in_hand() == 0 {
            model.queue.call_idle();
        }
        seen = now;
    }
}

// === impl Canary ===

impl Canary {
    /// `declared` has run when the model was loaded. Without it, a request of one row whose open dimensions are 1, all zeros
    /// and empty texts; `None` for a model without inputs, or with very large ones.
    pub fn new(declared: Option<ExecuteRequest>, config: &ModelConfig) -> Option<Canary> {
        match declared {
            Some(request) => Some(Canary { request, trust: Mutex::new(Trust::Proven) }),
            None => Some(Canary { request: made_up(config)?, trust: Mutex::new(Trust::Untried) }),
        }
    }
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
    // Of a text, its length.
    let size = input.datatype.element_size().unwrap_or(4);
    Tensor::new(input.name.as_str(), input.datatype, shape, vec![0; count as usize * size].into()).ok()
}

// === impl HostedModel ===

impl HostedModel {
    /// The request that its idle instances execute now and then.
    pub(crate) fn canary_request(&self) -> Option<&ExecuteRequest> {
        let canary = self.canary.as_ref()?;
        (*canary.trust.lock() != Trust::Useless).then_some(&canary.request)
    }

    /// Executes the canary request on an idle instance.
    pub(crate) fn run_canary(&self, instance: &mut dyn ModelInstance) {
        let Some(request) = self.canary_request() else { return };
        let execution = self.executions.begin(Vec::new(), None);
        let results = std::panic::catch_unwind(AssertUnwindSafe(|| instance.execute(std::slice::from_ref(request))));
        drop(execution);
        let results = results.unwrap_or_else(|_| vec![Err(panicked())]);
        self.judge_canary(results.into_iter().try_for_each(|result| result.map(drop)));
    }

    /// A worker ends, and is replaced, whose canary request fails after it has run before: it is the instance that has
    /// changed, and what broke it (a device, memory) is the process's.
    pub(crate) fn judge_canary(&self, result: Result<(), InferError>) {
        let Some(canary) = &self.canary else { return };
        let mut trust = canary.trust.lock();
        match (result, *trust) {
            (Ok(()), _) => {
                *trust = Trust::Proven;
                tracing::debug!(model = %self.key, "canary request succeeded");
            }
            (Err(error), Trust::Proven) => {
                tracing::error!(model = %self.key, %error, "the canary request failed: this worker gives its work back and ends");
                self.executions.set_broken();
                self.intake.cancel();
                self.worker.tasks.fail(FAILURE);
            }
            (Err(error), _) => {
                *trust = Trust::Useless;
                tracing::info!(
                    model = %self.key, %error,
                    "no canary requests: the model does not take a made-up one; model_warmup can declare one"
                );
            }
        }
    }
}
