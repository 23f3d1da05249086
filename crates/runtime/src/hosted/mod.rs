//! The values that all parts of a worker share: its model versions, the requests within them, and the deliveries that brought
//! these requests.
//!
//! The path of a request through the worker: `intake` checks it and puts it into its model's queue. The engine executes it
//! with its batch. `settle` sends the result to the next step in this process, to the bus, or back to the gateway. Only then
//! is the delivery acknowledged.
//!
//! Not here: any of these steps.

pub mod cancellations;
pub mod held;
pub mod standing;
pub mod suspects;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio_util::sync::CancellationToken;
use trireme_bus::{Acker, Bus, BusError, MessageName, QueueOptions, WaitingRooms, WorkMessage};
use trireme_engine::{Description, Model, Permit};
use trireme_inference::{ModelKey, Name, Tensor, UnixMicros};
use trireme_model_repository::ModelConfig;
use trireme_tasks::TaskSet;
use trireme_telemetry::steps::StepSpan;

use crate::observe::statistics::Statistics;
use crate::observe::tap::Taps;
use crate::response_cache::{Key, ResponseCache, StepAnswer};
use cancellations::Cancellations;
use held::{HeldDeliveries, HeldGuard};
use standing::{Obstacles, Standing};
use suspects::{Suspect, Suspects};

/// State that all parts of a worker share.
pub(crate) struct WorkerState {
    pub name: Name,
    pub bus: Arc<dyn Bus>,
    pub tasks: TaskSet,
    /// The deployment's settings, read before the first queue is declared.
    pub settings: OnceLock<QueueOptions>,
    pub held: HeldDeliveries,
    pub suspects: Suspects,
    pub cancellations: Cancellations,
    /// Results that wait for room in their next queue.
    pub waiting_rooms: WaitingRooms,
    pub taps: Arc<Taps>,
    pub statistics: Statistics,
    pub hosted: RwLock<HashMap<ModelKey, Arc<HostedModel>>>,
    /// Answers of models with `response_cache` to steps of ensembles.
    pub step_answers: Option<ResponseCache<StepAnswer>>,
    /// How many model versions with such answers were loaded.
    pub loads: AtomicU64,
    /// How a request enters its next step if that is hosted here.
    pub next_step: NextStep,
}

/// Takes a request into a model of this process. Returns it if there is no room for it.
pub(crate) type NextStep = fn(&Arc<HostedModel>, WorkMessage, HeldDelivery) -> Option<(WorkMessage, HeldDelivery)>;

/// A model version of the engine with its place in this worker.
pub(crate) struct HostedModel {
    pub engine: Arc<Model<Box<Pending>>>,
    pub config: Arc<ModelConfig>,
    pub worker: Arc<WorkerState>,
    /// Number of requests admitted so far.
    pub admitted: AtomicU64,
    /// How many requests in this worker the limits of its queue policy allow for; without a policy, the most that it holds.
    pub allowance: usize,
    /// Whether the first dimension of its inputs is a batch; otherwise a request is one row.
    pub batched: bool,
    /// The states before the first request of a sequence, for requests that bring none.
    pub initial_states: Vec<Tensor>,
    /// Cancelled when the version holds no requests and gets no more: it was replaced or unloaded.
    pub gone: CancellationToken,
    /// Where its answers are cached: the number of the load that made it, which no other version has.
    pub cached: Option<u64>,
    /// Its content, if that is known.
    pub standing: Option<Standing>,
    /// Why it takes no work just now.
    pub obstacles: Mutex<Obstacles>,
}

/// A request that waits in this worker's queue. The rest of it is boxed, because queue and batches move it several times.
pub(crate) type Work = trireme_engine::Work<Box<Pending>>;

/// The rest of a request while the engine has it; it is needed to settle the delivery afterwards.
pub(crate) struct Pending {
    pub model: Arc<HostedModel>,
    pub message: WorkMessage,
    pub delivery: HeldDelivery,
    pub stay: Stay,
    pub received_at: UnixMicros,
    /// How long the request has waited in this worker's queue.
    pub queued: Duration,
    /// The description of its inputs, with `rows` set to 1 for a model without batches.
    pub description: Description,
    /// Its place in the response cache, if it was looked for there.
    pub missed: Option<Missed>,
}

/// Values that live as long as the request is in this worker.
pub(crate) struct Stay {
    pub _permit: Permit<Work>,
    pub span: StepSpan,
}

/// The delivery that brought a request into this process. When the request is handed over to a model in this process,
/// its delivery goes along: it is acknowledged when the work has left the process.
pub(crate) struct HeldDelivery {
    pub acker: Acker,
    pub guard: HeldGuard,
    /// The name of the delivered message. It stays the same when the request moves on to later steps in this process.
    pub name: MessageName,
    /// How many times the message was delivered, this time included.
    pub deliveries: u32,
    /// How many attempts at the message were begun. The number includes this attempt once that has begun.
    pub attempts: u32,
    /// Whether this attempt has begun.
    pub begun: bool,
    /// Set for a redelivery, until it has been executed.
    pub suspect: Option<Suspect>,
    /// Sequence number of the reply if it is an error.
    pub sequence: u32,
}

/// The place in the response cache for the answer to a request that was not found there.
pub(crate) struct Missed {
    pub key: Key,
    /// How long looking for it took.
    pub looked_up: Duration,
}

// === impl HostedModel ===

impl Deref for HostedModel {
    type Target = Model<Box<Pending>>;

    fn deref(&self) -> &Model<Box<Pending>> {
        &self.engine
    }
}

// === impl HeldDelivery ===

impl HeldDelivery {
    /// Number of this attempt at the message, or of the attempt that is about to begin; from 1.
    pub fn attempt(&self) -> u32 {
        self.attempts.saturating_add(u32::from(!self.begun))
    }

    /// Whether the request has to run in a batch of its own.
    pub fn is_alone(&self) -> bool {
        self.suspect.as_ref().is_some_and(|suspect| suspect.alone)
    }
}

// === impl WorkerState ===

impl WorkerState {
    /// Waits for the deployment's settings, which its first gateway writes.
    pub async fn learn_settings(&self) -> Result<(), BusError> {
        if self.settings.get().is_none() {
            let _ = self.settings.set(self.bus.settings().await?);
        }
        Ok(())
    }

    /// The deployment's settings.
    pub fn queue_options(&self) -> &QueueOptions {
        self.settings.get().expect("learnt before a queue is declared, and nothing comes before that")
    }

    /// Moves a request to its next step if that is hosted here and has room, without encoding and without the broker.
    /// The delivery goes along and is acknowledged when the work leaves the process. Otherwise returns both.
    pub fn hand_over(&self, message: WorkMessage, held: HeldDelivery) -> Option<(WorkMessage, HeldDelivery)> {
        let next = message.queue().and_then(|model| self.hosted.read().get(model).cloned());
        match next {
            Some(model) => (self.next_step)(&model, message, held),
            None => Some((message, held)),
        }
    }

    /// Allows to hand requests over to a model version; it replaces another one with the same key.
    pub fn remember(&self, model: &Arc<HostedModel>) {
        self.hosted.write().insert(model.key.clone(), model.clone());
    }

    /// Whether requests can be handed over to a model version.
    pub fn hosts(&self, model: &ModelKey) -> bool {
        self.hosted.read().contains_key(model)
    }

    /// Hands no more requests over to this model version. A version that has replaced it stays.
    pub fn forget(&self, model: &Arc<HostedModel>) {
        let mut hosted = self.hosted.write();
        if hosted.get(&model.key).is_some_and(|known| Arc::ptr_eq(known, model)) {
            hosted.remove(&model.key);
        }
    }

    /// Hands no more requests over to any model version.
    pub fn forget_all(&self) {
        self.hosted.write().clear();
    }
}
