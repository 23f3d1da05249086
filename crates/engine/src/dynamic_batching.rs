//! The dynamic batcher's decisions, with Triton's settings and their meaning.
//!
//! Waiting requests form *groups* of equal signature, each in order of priority, then arrival. A group should run when
//! its rows reach a preferred size, when it cannot grow any more, when a request arrived after it that cannot join it,
//! or when its oldest request has waited for `max_queue_delay`; the first such group runs. Invariants: a batch has
//! requests of one signature. Its rows never exceed the largest batch (one request that alone exceeds it runs alone). A
//! request is never split, and never overtaken by a later one of its signature and priority.
//!
//! As in Triton, an idle instance does not wait for more requests of a shape once a request of another shape, or with
//! other optional inputs, has arrived. Unlike in Triton, that request does not end the batch before it: while all
//! instances are busy, groups fill side by side, so mixed shapes still batch under load. Two questions are separate:
//! which requests may run together ([`DynamicBatcher::groups`]), and when a group should run
//! ([`DynamicBatcher::ready`]).
//!
//! Not here: queue limits and timeouts (they answer requests, this only chooses among them), and the order of answers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use trireme_model_repository::{DynamicBatching, ModelConfig};

use crate::batching::{BatchPolicy, Candidate, Decision, OneAtATime};

/// Chooses batches by `dynamic_batching` of config.pbtxt.
///
/// One request waits for a second one, but no longer than `max_queue_delay`:
///
/// ```
/// # use std::time::{Duration, Instant};
/// # use trireme_engine::{BatchPolicy, Candidate, Decision, Description};
/// use trireme_engine::DynamicBatcher;
/// use trireme_model_repository::DynamicBatching;
///
/// let (delay, now) = (Duration::from_millis(5), Instant::now());
/// let settings =
///     DynamicBatching { preferred_batch_sizes: vec![2], max_queue_delay: delay, ..DynamicBatching::default() };
/// let batcher = DynamicBatcher::new(&settings, 8);
/// let request = Candidate { arrived: now, priority: 0, description: Description::exact(&[]) };
/// assert_eq!(batcher.decide(&[request.clone()], now), Decision::WaitUntil(now + delay));
/// assert_eq!(batcher.decide(&[request.clone(), request], now), Decision::Run(vec![0, 1]));
/// ```
#[derive(Clone, Debug)]
pub struct DynamicBatcher {
    /// Most rows in one run, at least 1.
    max_rows: u32,
    /// Batch sizes that run at once, in rows, ascending; none exceeds `max_rows`.
    preferred: Vec<u32>,
    /// How long the oldest request may wait for its batch to fill.
    delay: Duration,
}

/// Requests that may run together, as indices into the queue, in the order in which they join a batch.
struct Group {
    members: Vec<usize>,
    /// Sum of rows up to and including each member.
    rows: Vec<u32>,
    /// Whether a request of this signature did not fit any more.
    full: bool,
    /// The request of this signature that arrived last, whether it fits or not.
    newest: usize,
}

/// The decision of [`DynamicBatcher::ready`] about a group.
enum Readiness {
    /// Its first members, as many as this, run now.
    Run(usize),
    /// Not before this time, unless more requests arrive.
    At(Instant),
}

// === impl DynamicBatcher ===

impl DynamicBatcher {
    /// A batcher for a model whose largest batch is `max_batch_size` rows. Preferred sizes above that are ignored;
    /// without any, the largest batch is the preferred size.
    pub fn new(settings: &DynamicBatching, max_batch_size: u32) -> DynamicBatcher {
        let max_rows = max_batch_size.max(1);
        let mut preferred = settings.preferred_batch_sizes.clone();
        preferred.retain(|size| (1..=max_rows).contains(size));
        preferred.sort_unstable();
        if preferred.is_empty() {
            preferred.push(max_rows);
        }
        DynamicBatcher { max_rows, preferred, delay: settings.max_queue_delay }
    }

    /// The requests that may run together: one group per signature, in the order of each group's first member.
    fn groups(&self, waiting: &[Candidate]) -> Vec<Group> {
        let mut order: Vec<usize> = (0..waiting.len()).collect();
        order.sort_by_key(|&index| waiting[index].priority);
        let mut groups: Vec<Group> = Vec::new();
        let mut by_signature = HashMap::new();
        for index in order {
            let candidate = &waiting[index];
            let slot = *by_signature.entry(candidate.description.signature).or_insert_with(|| {
                groups.push(Group { members: Vec::new(), rows: Vec::new(), full: false, newest: 0 });
                groups.len() - 1
            });
            groups[slot].offer(index, candidate.description.rows.max(1), self.max_rows);
        }
        groups
    }

    /// When a group should run, and how many of its members.
    fn ready(&self, group: &Group, waiting: &[Candidate], now: Instant) -> Readiness {
        let all = group.members.len();
        let oldest = group.members.iter().map(|&index| waiting[index].arrived).min().unwrap_or(now);
        let expired = !self.delay.is_zero() && now.saturating_duration_since(oldest) >= self.delay;
        if !expired && let Some(count) = self.preferred_prefix(group) {
            return Readiness::Run(count);
        }
        let grown = group.full || group.total() >= self.largest_preferred();
        let passed = group.newest + 1 < waiting.len();
        match oldest.checked_add(self.delay) {
            Some(due) if !(expired || grown || passed || self.delay.is_zero()) => Readiness::At(due),
            _ => Readiness::Run(all),
        }
    }

    /// The most members whose rows are a preferred size. If no preferred size can be reached exactly any more, the most
    /// that stay within the largest one.
    fn preferred_prefix(&self, group: &Group) -> Option<usize> {
        let exact = group.rows.iter().rposition(|rows| self.preferred.binary_search(rows).is_ok());
        exact.map(|last| last + 1).or_else(|| {
            let within = group.rows.iter().take_while(|&&rows| rows <= self.largest_preferred()).count();
            (within > 0 && within < group.rows.len()).then_some(within)
        })
    }

    fn largest_preferred(&self) -> u32 {
        self.preferred.last().copied().unwrap_or(self.max_rows)
    }
}

impl BatchPolicy for DynamicBatcher {
    fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision {
        let mut earliest: Option<Instant> = None;
        for group in self.groups(waiting) {
            match self.ready(&group, waiting, now) {
                Readiness::Run(count) => return Decision::Run(group.members[..count].to_vec()),
                Readiness::At(due) => earliest = Some(earliest.map_or(due, |earlier| earlier.min(due))),
            }
        }
        earliest.map_or(Decision::Wait, Decision::WaitUntil)
    }

    fn max_rows(&self) -> u32 {
        self.max_rows
    }
}

// === impl Group ===

impl Group {
    /// Adds the next request, unless it or an earlier one does not fit: a later, smaller request must not overtake.
    fn offer(&mut self, index: usize, rows: u32, max_rows: u32) {
        let total = self.total().saturating_add(rows);
        self.full |= !self.members.is_empty() && total > max_rows;
        self.newest = self.newest.max(index);
        if !self.full {
            self.members.push(index);
            self.rows.push(total);
        }
    }

    fn total(&self) -> u32 {
        self.rows.last().copied().unwrap_or(0)
    }
}

/// The policy for requests of equal shapes in a configuration: the dynamic batcher if there is a `dynamic_batching`
/// block and a batch dimension, otherwise each request alone.
///
/// ```
/// use trireme_engine::policy;
/// use trireme_model_repository::ModelConfig;
///
/// let text = "backend: 'identity' max_batch_size: 8";
/// assert_eq!(policy(&ModelConfig::parse(text, "m")?).max_rows(), 1);
/// let text = format!("{text} dynamic_batching {{ }}");
/// assert_eq!(policy(&ModelConfig::parse(&text, "m")?).max_rows(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn policy(config: &ModelConfig) -> Box<dyn BatchPolicy> {
    match &config.dynamic_batching {
        Some(settings) if config.max_batch_size > 0 => Box::new(DynamicBatcher::new(settings, config.max_batch_size)),
        _ => Box::new(OneAtATime),
    }
}

#[cfg(test)]
mod tests;
