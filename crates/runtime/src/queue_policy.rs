//! Triton's queue policy (`dynamic_batching` in config.pbtxt) on a queue that all workers of a model share: what each
//! priority level may hold, and how long a request may wait. Pure, but for [`WorkerRooms`], which is a sum.
//!
//! The exact rule for `max_queue_size`: a level refuses a request when as many as `max_queue_size` wait besides those that
//! the model's workers may take in. Workers count because the broker cannot tell what they have begun to execute; a
//! worker of such a model takes in one batch for each instance and one more, as Triton's scheduler does. What it leaves in
//! the shared queue meanwhile, because it cannot begin it soon, counts all the same: so the sum is the same whoever holds it.
//!
//! Not here: enforcing the limits (the bus), answering requests that waited too long (`hosted`).

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use trireme_bus::{ModelState, RegistryEvent, WorkerEntry};
use trireme_inference::ModelKey;
use trireme_model_repository::{DynamicBatching, ModelConfig, QueuePolicy};

/// Bounds of the time between two looks at what waits.
const LOOKS_SHORTEST: Duration = Duration::from_millis(5);
const LOOKS_LONGEST: Duration = Duration::from_millis(100);

/// A queue's levels and the most messages of each; `None` is no limit of the model's own.
pub type Levels = BTreeMap<u32, Option<u64>>;

/// The levels of a model's queue when its workers have room for `taken_in` requests together.
pub fn levels(config: &ModelConfig, taken_in: u64) -> Levels {
    let Some(batching) = &config.dynamic_batching else { return Levels::new() };
    let limit = |level| match batching.policy(level).max_queue_size {
        0 => None,
        size => Some(taken_in.saturating_add(u64::from(size))),
    };
    config.queue_levels().into_iter().map(|level| (level, limit(level))).collect()
}

/// Whether any level has a limit.
pub fn is_limited(config: &ModelConfig) -> bool {
    config.dynamic_batching.as_ref().is_some_and(|batching| policies(batching).any(|policy| policy.max_queue_size > 0))
}

/// The most requests that a worker of a limited model takes in.
pub fn taken_in(instances: usize, max_rows: u32) -> usize {
    (instances + 1) * max_rows.max(1) as usize
}

/// What happens to a request that has waited for so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It waits on.
    Left,
    /// It waits on, behind all others of its level.
    Delayed,
    /// It is refused.
    Over,
}

/// Judges a request of `level` that has waited for `waited`.
pub fn patience(config: &ModelConfig, level: u32, waited: Duration) -> Patience {
    let Some(batching) = &config.dynamic_batching else { return Patience::Left };
    let policy = batching.policy(level);
    match (policy.default_timeout.is_zero() || waited <= policy.default_timeout, policy.delay_on_timeout) {
        (true, _) => Patience::Left,
        (false, true) => Patience::Delayed,
        (false, false) => Patience::Over,
    }
}

/// Whether any level has a timeout.
pub fn has_timeouts(config: &ModelConfig) -> bool {
    config
        .dynamic_batching
        .as_ref()
        .is_some_and(|batching| policies(batching).any(|policy| !policy.default_timeout.is_zero()))
}

/// How often what waits is looked at: often enough for the shortest timeout.
pub fn look_every(config: &ModelConfig) -> Duration {
    let timeouts = config.dynamic_batching.iter().flat_map(policies).map(|policy| policy.default_timeout);
    let shortest = timeouts.filter(|timeout| !timeout.is_zero()).min().unwrap_or(LOOKS_LONGEST);
    (shortest / 4).clamp(LOOKS_SHORTEST, LOOKS_LONGEST)
}

/// The levels at which requests are refused that wait too long, with how long that is.
pub fn refusing_levels(config: &ModelConfig) -> Vec<(u32, Duration)> {
    let Some(batching) = &config.dynamic_batching else { return Vec::new() };
    // Each level has a look of its own at the broker.
    let timeout = |level: u32| {
        let policy = batching.policy(level);
        (!policy.default_timeout.is_zero() && !policy.delay_on_timeout).then_some((level, policy.default_timeout))
    };
    config.queue_levels().into_iter().filter_map(timeout).collect()
}

fn policies(batching: &DynamicBatching) -> impl Iterator<Item = &QueuePolicy> {
    batching.priority_queue_policy.values().chain([&batching.default_queue_policy])
}

/// How many requests the workers of each model take in together, by the registry.
#[derive(Debug, Default)]
pub struct WorkerRooms(HashMap<String, (ModelKey, u64, Instant)>);

// === impl WorkerRooms ===

impl WorkerRooms {
    /// Takes in what the registry says, now.
    pub fn note(&mut self, event: RegistryEvent, now: Instant) {
        match event {
            RegistryEvent::Put(entry) if entry.state == ModelState::Ready => {
                self.0.insert(entry.key(), (entry.model, entry.capacity as u64, now));
            }
            RegistryEvent::Put(entry) => drop(self.0.remove(&entry.key())),
            RegistryEvent::Delete(key) => drop(self.0.remove(&key)),
        }
    }

    /// The sum for one model; entries that were not renewed do not count.
    pub fn of(&mut self, model: &ModelKey, now: Instant) -> u64 {
        self.0.retain(|_, (_, _, seen)| now.saturating_duration_since(*seen) <= WorkerEntry::TIME_TO_LIVE);
        self.0.values().filter(|(of, _, _)| of == model).map(|(_, room, _)| room).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(batching: &str) -> ModelConfig {
        let io = "[{ name: 'x' data_type: TYPE_FP32 dims: [1] }]";
        let text = format!("name: 'm' backend: 'identity' max_batch_size: 8 input {io} output {io} {batching}");
        ModelConfig::parse(&text, "m").unwrap()
    }

    #[test]
    fn each_level_has_its_own_limit() {
        assert_eq!(levels(&config(""), 4), Levels::new());
        assert_eq!(levels(&config("dynamic_batching {}"), 4), Levels::from([(0, None)]));
        let one = config("dynamic_batching { default_queue_policy { max_queue_size: 5 } }");
        assert_eq!(levels(&one, 4), Levels::from([(0, Some(9))]));
        let three = config(
            "dynamic_batching { priority_levels: 3 default_priority_level: 2 default_queue_policy { max_queue_size: 5 }
             priority_queue_policy [{ key: 1 value { max_queue_size: 1 } }, { key: 3 value {} }] }",
        );
        assert_eq!(levels(&three, 4), Levels::from([(1, Some(5)), (2, Some(9)), (3, None)]));
        assert!(is_limited(&three) && !is_limited(&config("dynamic_batching {}")) && !is_limited(&config("")));
    }

    #[test]
    fn waiting_too_long_is_refused_or_delayed() {
        let config = config(
            "dynamic_batching { priority_levels: 2 default_priority_level: 2
             default_queue_policy { default_timeout_microseconds: 1000 }
             priority_queue_policy [{ key: 1 value { default_timeout_microseconds: 500 timeout_action: DELAY } }] }",
        );
        let micros = Duration::from_micros;
        assert_eq!(patience(&config, 2, micros(1000)), Patience::Left);
        assert_eq!(patience(&config, 2, micros(1001)), Patience::Over);
        assert_eq!(patience(&config, 1, micros(501)), Patience::Delayed);
        assert_eq!(refusing_levels(&config), [(2, micros(1000))]);
        let patient = self::config("dynamic_batching {}");
        assert_eq!(patience(&patient, 0, Duration::MAX), Patience::Left);
    }

    #[test]
    fn workers_count_while_they_are_ready_and_renewed() {
        let model = ModelKey { name: "m".to_owned(), version: 1 };
        let entry = |worker: &str, capacity| WorkerEntry {
            worker: worker.to_owned(),
            service: "model".to_owned(),
            host: "h".to_owned(),
            model: model.clone(),
            state: ModelState::Ready,
            config: String::new(),
            capacity,
            since: trireme_inference::UnixMicros(1),
        };
        let (mut rooms, start) = (WorkerRooms::default(), Instant::now());
        rooms.note(RegistryEvent::Put(entry("a", 3)), start);
        rooms.note(RegistryEvent::Put(entry("b", 4)), start + WorkerEntry::TIME_TO_LIVE);
        assert_eq!(rooms.of(&model, start + WorkerEntry::TIME_TO_LIVE), 7);
        assert_eq!(rooms.of(&ModelKey { version: 2, ..model.clone() }, start), 0);
        assert_eq!(rooms.of(&model, start + WorkerEntry::TIME_TO_LIVE * 2), 4, "one has lapsed");
        rooms.note(RegistryEvent::Put(WorkerEntry { state: ModelState::Unloading, ..entry("b", 4) }), start);
        assert_eq!(rooms.of(&model, start), 0);
    }
}
