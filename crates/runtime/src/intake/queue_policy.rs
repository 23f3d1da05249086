//! Triton's queue policy (`dynamic_batching` in config.pbtxt) for a queue that all workers of a model share: how many
//! requests each priority level may hold, and how long a request may wait. Pure.
//!
//! The rule for `max_queue_size`: a level refuses a request when `max_queue_size` requests wait there. A request that a
//! worker has taken does not count as waiting, like a request that Triton's scheduler has given to an instance: workers
//! take requests when an instance is free or about to be free.
//!
//! The policy is about live requests: those of the bulk lane may wait for as long as their deadlines.
//!
//! Not here: enforcing the limits and the order (the bus), answering requests that waited too long (`hosted`).

use std::collections::BTreeMap;
use std::time::Duration;

use trireme_bus::{LevelPolicy, WaitTimeout};
use trireme_inference::{Lane, Parameters, queue_timeout};
use trireme_model_repository::{DynamicBatching, ModelConfig, QueuePolicy};

/// Bounds of the time between two checks of the waiting requests.
const LOOKS_SHORTEST: Duration = Duration::from_millis(5);
const LOOKS_LONGEST: Duration = Duration::from_millis(100);

/// The levels of a model's queue, each with the rules for the requests that wait there.
pub fn levels(config: &ModelConfig) -> BTreeMap<u32, LevelPolicy> {
    let Some(batching) = &config.dynamic_batching else { return BTreeMap::new() };
    let level = |level| {
        let QueuePolicy { max_queue_size, default_timeout, delay_on_timeout, .. } = *batching.policy(level);
        let timeout = match delay_on_timeout {
            _ if default_timeout.is_zero() => None,
            true => Some(WaitTimeout::Delay(default_timeout)),
            false => Some(WaitTimeout::Reject(default_timeout)),
        };
        let max_waiting = (max_queue_size > 0).then(|| u64::from(max_queue_size));
        (level, LevelPolicy { max_waiting, timeout })
    };
    config.queue_levels().into_iter().map(level).collect()
}

/// The queue policy's decision about a request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueDecision {
    /// It goes on waiting.
    Left,
    /// It goes on waiting, behind all others of its level.
    Delayed,
    /// It is refused.
    Over,
}

/// Decides about a request of `level` with these parameters that has waited for `waited`. Its own `timeout` lowers that of a policy that
/// lets it, as in Triton's `PolicyQueue::Enqueue`.
pub fn decide(config: &ModelConfig, level: u32, parameters: &Parameters, waited: Duration) -> QueueDecision {
    let live = Lane::of_level(level) == Lane::Live;
    let Some(batching) = config.dynamic_batching.as_ref().filter(|_| live) else { return QueueDecision::Left };
    let policy = batching.policy(level);
    let own = queue_timeout(parameters).filter(|_| policy.allow_timeout_override);
    let timeout = own.unwrap_or(policy.default_timeout).min(policy.default_timeout);
    match (timeout.is_zero() || waited <= timeout, policy.delay_on_timeout) {
        (true, _) => QueueDecision::Left,
        (false, true) => QueueDecision::Delayed,
        (false, false) => QueueDecision::Over,
    }
}

/// Whether any level has a timeout.
pub fn has_timeouts(config: &ModelConfig) -> bool {
    config
        .dynamic_batching
        .as_ref()
        .is_some_and(|batching| policies(batching).any(|policy| !policy.default_timeout.is_zero()))
}

/// Time between two checks of the waiting requests, short enough for the shortest timeout.
pub fn look_every(config: &ModelConfig) -> Duration {
    let timeouts = config.dynamic_batching.iter().flat_map(policies).map(|policy| policy.default_timeout);
    let shortest = timeouts.filter(|timeout| !timeout.is_zero()).min().unwrap_or(LOOKS_LONGEST);
    (shortest / 4).clamp(LOOKS_SHORTEST, LOOKS_LONGEST)
}

/// Whether any level refuses requests that wait too long.
pub fn has_refusals(config: &ModelConfig) -> bool {
    let refuses = |policy: &QueuePolicy| !policy.default_timeout.is_zero() && !policy.delay_on_timeout;
    config.dynamic_batching.as_ref().is_some_and(|batching| policies(batching).any(refuses))
}

fn policies(batching: &DynamicBatching) -> impl Iterator<Item = &QueuePolicy> {
    batching.priority_queue_policy.values().chain([&batching.default_queue_policy])
}

#[cfg(test)]
mod tests {
    use trireme_inference::ParameterValue;

    use super::*;

    fn config(batching: &str) -> ModelConfig {
        let io = "[{ name: 'x' data_type: TYPE_FP32 dims: [1] }]";
        let text = format!("name: 'm' backend: 'identity' max_batch_size: 8 input {io} output {io} {batching}");
        ModelConfig::parse(&text, "m").unwrap()
    }

    #[test]
    fn each_level_has_a_policy_of_its_own() {
        let none = LevelPolicy::default();
        assert_eq!(levels(&config("")), BTreeMap::new());
        assert_eq!(levels(&config("dynamic_batching {}")), BTreeMap::from([(0, none)]));
        let at_most = |size| LevelPolicy { max_waiting: Some(size), ..none };
        let one = config("dynamic_batching { default_queue_policy { max_queue_size: 5 } }");
        assert_eq!(levels(&one), BTreeMap::from([(0, at_most(5))]));
        let three = config(
            "dynamic_batching { priority_levels: 3 default_priority_level: 2 default_queue_policy { max_queue_size: 5 }
             priority_queue_policy [
                 { key: 1 value { max_queue_size: 1 default_timeout_microseconds: 7 timeout_action: DELAY } },
                 { key: 3 value { default_timeout_microseconds: 8 } }
             ] }",
        );
        let timeout = |timeout| LevelPolicy { timeout: Some(timeout), ..none };
        let first = LevelPolicy { max_waiting: Some(1), ..timeout(WaitTimeout::Delay(Duration::from_micros(7))) };
        let third = timeout(WaitTimeout::Reject(Duration::from_micros(8)));
        assert_eq!(levels(&three), BTreeMap::from([(1, first), (2, at_most(5)), (3, third)]));
    }

    #[test]
    fn a_queue_has_a_policy_where_the_configuration_says_so() {
        let level = "priority_levels: 1 default_priority_level: 1";
        for (batching, expected) in [
            ("", false),
            ("dynamic_batching { max_queue_delay_microseconds: 5 }", false),
            ("dynamic_batching { default_queue_policy { timeout_action: DELAY } }", false),
            ("dynamic_batching { default_queue_policy { max_queue_size: 1 } }", true),
            ("dynamic_batching { default_queue_policy { default_timeout_microseconds: 1 } }", true),
            ("dynamic_batching { priority_levels: 2 default_priority_level: 1 }", true),
            (&format!("dynamic_batching {{ {level} }}"), false),
            (
                &format!(
                    "dynamic_batching {{ {level} priority_queue_policy {{ key: 1 value {{ max_queue_size: 1 }} }} }}"
                ),
                true,
            ),
        ] {
            let config = config(batching);
            assert_eq!(config.has_queue_policy(), expected, "{batching}");
        }
    }

    #[test]
    fn waiting_too_long_is_refused_or_delayed() {
        let config = config(
            "dynamic_batching { priority_levels: 2 default_priority_level: 2
             default_queue_policy { default_timeout_microseconds: 1000 }
             priority_queue_policy [{ key: 1 value { default_timeout_microseconds: 500 timeout_action: DELAY } }] }",
        );
        let micros = Duration::from_micros;
        assert_eq!(decide(&config, 2, &Parameters::new(), micros(1000)), QueueDecision::Left);
        assert_eq!(decide(&config, 2, &Parameters::new(), micros(1001)), QueueDecision::Over);
        assert_eq!(decide(&config, 1, &Parameters::new(), micros(501)), QueueDecision::Delayed);
        assert_eq!(decide(&config, Lane::Bulk.level(2), &Parameters::new(), Duration::MAX), QueueDecision::Left);
        assert!(has_refusals(&config));
        let patient = self::config("dynamic_batching {}");
        assert_eq!(decide(&patient, 0, &Parameters::new(), Duration::MAX), QueueDecision::Left);
    }

    /// As Triton's `PolicyQueue::Enqueue`.
    #[test]
    fn a_requests_own_timeout_lowers_that_of_a_policy_which_lets_it() {
        let decide = |policy: &str, own: i64, waited| {
            let config = config(&format!("dynamic_batching {{ default_queue_policy {{ {policy} }} }}"));
            let parameters = [("timeout".to_owned(), ParameterValue::Int64(own))].into();
            decide(&config, 0, &parameters, Duration::from_micros(waited))
        };
        let lets = "default_timeout_microseconds: 1000 allow_timeout_override: true";
        assert_eq!(decide(lets, 500, 500), QueueDecision::Left);
        assert_eq!(decide(lets, 500, 501), QueueDecision::Over);
        assert_eq!(decide(lets, 5000, 1001), QueueDecision::Over);
        assert_eq!(decide(lets, 0, 501), QueueDecision::Left);
        assert_eq!(decide("default_timeout_microseconds: 1000", 500, 501), QueueDecision::Left);
        assert_eq!(decide("allow_timeout_override: true", 500, 501), QueueDecision::Left);
        assert_eq!(decide(&format!("{lets} timeout_action: DELAY"), 500, 501), QueueDecision::Delayed);
    }
}
