//! Which queues the entries of a registry ask for.

use std::collections::BTreeMap;

use trireme_bus::{LevelPolicy, ModelState};
use trireme_inference::ModelKey;
use trireme_model_repository::ModelConfig;
use trireme_runtime::queue_levels;

use super::{Live, State};

/// Most levels of a queue. Each is a stream of the broker, and a stage writes the configuration.
const MAX_LEVELS: u32 = 1024;

/// The queue that the workers of a model version need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedQueue {
    /// The levels of all configurations that its workers have; 0 alone for a queue without levels.
    pub levels: BTreeMap<u32, LevelPolicy>,
    /// The requests that its workers take in together, where a level limits how many wait; 0 elsewhere.
    pub in_hand: u64,
}

// === impl State ===

impl State {
    /// The queue of each model version that a worker serves or is about to serve.
    pub fn queues(&self) -> BTreeMap<ModelKey, WantedQueue> {
        let mut queues = BTreeMap::<_, WantedQueue>::new();
        for Live { entry, config, .. } in self.entries.values() {
            if !matches!(entry.state, ModelState::Unavailable(_)) {
                let wanted = queues.entry(entry.model.clone()).or_default();
                let levels = queue_levels(&config.model);
                let only = levels.is_empty().then(|| (0, LevelPolicy::default()));
                wanted.levels.extend(levels.into_iter().chain(only));
                wanted.in_hand = wanted.in_hand.saturating_add(entry.capacity as u64);
            }
        }
        for wanted in
            queues.values_mut().filter(|wanted| wanted.levels.values().all(|level| level.max_waiting.is_none()))
        {
            wanted.in_hand = 0;
        }
        queues
    }

    /// Errors if a model's queue would have too many levels.
    pub(super) fn check_levels(config: &ModelConfig) -> Result<(), String> {
        let levels = config.dynamic_batching.as_ref().map_or(0, |batching| batching.priority_levels);
        match levels > MAX_LEVELS {
            true => Err(format!("its queue has {levels} levels (priority_levels), expected {MAX_LEVELS} at most")),
            false => Ok(()),
        }
    }
}
