//! The trial of a model with one wide session, while it serves: whether rows of different lengths may share a run, and how long runs take.
//!
//! The trial runs the session in turn with the instance. Until it has shown that such rows may share a run, they do not. It can only make
//! runs larger: a trial that fails leaves the model as it was, with a warning.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use trireme_engine::{Appetite, BatchPolicy, Candidate, Decision, Description, spawn};
use trireme_inference::Tensor;
use trireme_model_repository::ModelConfig;

use super::accelerators::InstanceDevice;
use super::cost_cache::Entry;
use super::instance::OnnxInstance;
use super::proof::Proof;
use super::{costs, probe};
use crate::batcher::{self, Declaration, LengthBatcher};

/// The place of the one session.
const PLACE: InstanceDevice = InstanceDevice::Cpu;

/// The model that is tried, and the place where its costs are kept.
pub struct Trial {
    /// The model's configuration.
    pub config: Arc<ModelConfig>,
    /// Its declaration.
    pub declaration: Declaration,
    /// The cache of cost models; `None`: none.
    pub cost_models: Option<PathBuf>,
    /// The model's file.
    pub path: PathBuf,
    /// The other circumstances on which the costs depend.
    pub circumstances: String,
}

/// The policy of such a model: one for requests of equal shapes, and from the end of the trial on one by length.
pub struct TriedPolicy {
    before: Box<dyn BatchPolicy>,
    /// The policy that the worker asks when the model begins, as if rows might share a run; its costs are not measured.
    expected: LengthBatcher,
    after: Arc<OnceLock<LengthBatcher>>,
    is_wanted: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

// === impl Trial ===

impl Trial {
    /// Begins the trial on `instance`, which shares its session with the one that serves. `shares` becomes true when rows may share a run.
    pub fn begin(self, mut instance: OnnxInstance, shares: Arc<OnceLock<bool>>) -> TriedPolicy {
        let (before, config) = (batcher::policy(&self.config), self.config.clone());
        let expected = LengthBatcher::new(&config, &self.declaration, None);
        let (after, is_wanted) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(true)));
        let thread = spawn("trial", {
            let (after, is_wanted, config) = (after.clone(), is_wanted.clone(), config.clone());
            move || {
                let found = self.run(&mut instance, &is_wanted);
                if let Some(batcher) = found.filter(|_| is_wanted.load(Ordering::Relaxed)) {
                    // In this order: a batch by length needs an instance that takes it.
                    let _ = shares.set(true);
                    let _ = after.set(batcher);
                    tracing::info!(model = config.name, "texts of different lengths share a run from now on");
                }
            }
        });
        if let Err(error) = &thread {
            tracing::warn!(model = config.name, %error, "texts of different lengths do not share a run: it cannot be tried");
        }
        TriedPolicy { before, expected, after, is_wanted, thread: thread.ok() }
    }

    /// The policy that the results allow.
    fn run(self, instance: &mut OnnxInstance, is_wanted: &AtomicBool) -> Option<LengthBatcher> {
        let Trial { config, declaration, cost_models, path, circumstances } = self;
        if declaration.check {
            let proof = Proof { config: &config, declaration: &declaration, graph: &path };
            let shares =
                proof.run_longest(instance).and_then(|()| probe::check(&config, &declaration, PLACE, instance));
            match shares {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    tracing::error!(model = config.name, "texts of different lengths do not share a run: {error}");
                    return None;
                }
            }
        }
        let kept = |place| {
            Some(Entry::new(cost_models.as_deref()?, &config.name, &path, &format!("{place}  {circumstances}")))
        };
        let wanted = || is_wanted.load(Ordering::Relaxed);
        // The steps of lengths are not measured: the instance that serves has its lengths already.
        let places = costs::Places { all: &[PLACE], is_accelerated: &|_| false };
        let fit = costs::find(&config, &declaration, places, kept, std::slice::from_mut(instance), &wanted);
        Some(LengthBatcher::new(&config, &declaration, fit.as_ref()))
    }
}

// === impl TriedPolicy ===

impl TriedPolicy {
    fn present(&self) -> &dyn BatchPolicy {
        self.after.get().map_or(&*self.before, |after| after)
    }
}

impl BatchPolicy for TriedPolicy {
    fn describe(&self, inputs: &[Tensor]) -> Description {
        self.present().describe(inputs)
    }

    fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision {
        self.present().decide(waiting, now)
    }

    fn max_rows(&self) -> u32 {
        self.expected.max_rows()
    }

    fn appetite(&self) -> Appetite {
        self.expected.appetite()
    }

    fn cost(&self, members: &[Description]) -> f64 {
        self.present().cost(members)
    }

    fn ran(&self, cost: f64, took: Duration) {
        self.present().ran(cost, took);
    }

    fn in_hand(&self, instances: usize) -> usize {
        self.expected.in_hand(instances)
    }
}

impl Drop for TriedPolicy {
    /// Ends the trial with its present run, because the library must not run when the process ends.
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
