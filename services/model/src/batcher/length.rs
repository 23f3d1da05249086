//! Batches of like length: the policy for models whose inputs may be padded.
//!
//! A run costs time for its padded tokens, so texts of like length belong together, up to a budget of tokens. Waiting
//! requests of one signature are sorted by length and split into neighbouring runs such that all of them together cost
//! least under the model's [`CostModel`]; of these runs the one with the most useful tokens per second goes first.
//! What is left is split afresh next time, together with what has arrived by then.
//!
//! Promises: a run holds requests of one signature and one priority level; its rows and padded tokens stay within the
//! bounds (a request that alone exceeds them runs alone); a request is never split; higher levels go first; and once a
//! request has waited for `max_overtake`, no later one of its level starts before it, unless in one run with it or with an
//! even older one. With a queue delay the requests of a signature run when their oldest has waited for that long, or when
//! they could fill a run; waiting for the delay is not being overtaken.
//!
//! Not here: tensors ([`super::merge`] pads), measuring costs (the backend does).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use trireme_inference::Tensor;
use trireme_model_repository::DynamicBatching;
use trireme_runtime::{Appetite, BatchPolicy, Candidate, Decision, Description};

use super::cost::{CostModel, DEFAULT_TOKEN_BUDGET, Fit};
use super::declaration::Declaration;
use super::padding::Padding;

/// Waiting requests that a worker has to choose from: twice as many gain 2 % more.
const WINDOW: usize = 64;

/// Time for which texts are taken from the shared queue, where that is fewer than the window. Half of it costs a worker
/// without peers another 3 % of its throughput (docs/adr/0008-room-in-time.md).
const LOOK_AHEAD: Duration = Duration::from_millis(200);

/// Requests of a run of like lengths among usual texts: what is taken for an instance at least.
const ALIKE: usize = 8;

/// Tokens of a usual text: tells how many requests an instance executes at once.
const USUAL_LENGTH: u32 = 32;

/// Chooses batches by length.
#[derive(Clone, Debug)]
pub struct LengthBatcher {
    padding: Padding,
    cost: CostModel,
    /// Most rows in one run, at least 1.
    max_rows: u32,
    /// Most rows times padded length in one run, at least 1.
    token_budget: u32,
    /// How long a request may be overtaken.
    max_overtake: Duration,
    /// How long the oldest request of a signature may wait for company.
    delay: Duration,
    /// Rows that are worth running without waiting for more.
    enough_rows: u32,
}

/// A run to choose: indices into the queue.
struct Run {
    members: Vec<usize>,
    /// Useful tokens per unit of cost.
    efficiency: f64,
}

// === impl LengthBatcher ===

impl LengthBatcher {
    /// A batcher as `declaration` and `settings` (the `dynamic_batching` block, if there is one) ask for; `fit` is what was
    /// measured. Of the preferred batch sizes the smallest counts: so many rows do not wait for more.
    pub fn new(declaration: &Declaration, settings: Option<&DynamicBatching>, fit: Option<&Fit>) -> LengthBatcher {
        let max_rows = declaration.max_rows.max(1);
        let measured = fit.map(|fit| fit.token_budget);
        let preferred = settings.map_or(&[][..], |settings| &settings.preferred_batch_sizes);
        let enough_rows = preferred.iter().copied().filter(|size| (1..=max_rows).contains(size)).min();
        LengthBatcher {
            padding: declaration.padding.clone(),
            cost: fit.map_or(CostModel::UNMEASURED, |fit| fit.model),
            max_rows,
            token_budget: declaration.token_budget.or(measured).unwrap_or(DEFAULT_TOKEN_BUDGET).max(1),
            max_overtake: declaration.max_overtake,
            delay: settings.map_or(Duration::ZERO, |settings| settings.max_queue_delay),
            enough_rows: enough_rows.unwrap_or(max_rows),
        }
    }

    /// Requests of a full run of usual texts.
    fn usual_batch(&self) -> usize {
        (self.token_budget / USUAL_LENGTH).clamp(1, self.max_rows) as usize
    }

    /// Requests of equal level and signature, in order of arrival, which groups keep too: by their oldest.
    fn groups(waiting: &[Candidate]) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut slots = HashMap::new();
        for (index, candidate) in waiting.iter().enumerate() {
            let slot = *slots.entry((candidate.priority, candidate.description.signature)).or_insert_with(|| {
                groups.push(Vec::new());
                groups.len() - 1
            });
            groups[slot].push(index);
        }
        groups
    }

    /// Until when a group may wait for more; `None`: it is worth running now.
    fn due(&self, group: &[usize], waiting: &[Candidate], now: Instant) -> Option<Instant> {
        let due = waiting[*group.first()?].arrived.checked_add(self.delay)?;
        let (mut rows, mut tokens) = (0u32, 0u32);
        for &index in group {
            let Description { rows: own, length, .. } = waiting[index].description;
            rows = rows.saturating_add(own);
            tokens = tokens.saturating_add(own.saturating_mul(length));
        }
        let enough = rows >= self.enough_rows || tokens >= self.token_budget;
        (due > now && !enough).then_some(due)
    }

    /// Splits a group into the runs that together cost least.
    fn split(&self, mut group: Vec<usize>, waiting: &[Candidate]) -> Vec<Run> {
        // Stable: among equals the oldest stay together.
        group.sort_by_key(|&index| waiting[index].description.length);
        let size = |position: usize| {
            let Description { rows, length, .. } = waiting[group[position]].description;
            (rows.max(1), length)
        };
        // Least cost of the first n requests, and where the last run of that split begins.
        let mut least = Vec::with_capacity(group.len() + 1);
        least.push((0.0, 0));
        for end in 1..=group.len() {
            // Sorted by length, so the run's last request is what it is padded to.
            let (mut rows, length) = size(end - 1);
            let mut best = (least[end - 1].0 + self.cost.cost(rows, length), end - 1);
            for start in (0..end - 1).rev() {
                rows = rows.saturating_add(size(start).0);
                if rows > self.max_rows || rows.saturating_mul(length) > self.token_budget {
                    break;
                }
                let cost = least[start].0 + self.cost.cost(rows, length);
                if cost <= best.0 {
                    best = (cost, start);
                }
            }
            least.push(best);
        }
        let (mut runs, mut end) = (Vec::new(), group.len());
        while end > 0 {
            let start = least[end].1;
            let useful: f64 = (start..end).map(size).map(|(rows, length)| f64::from(rows) * f64::from(length)).sum();
            let efficiency = useful / (least[end].0 - least[start].0);
            runs.push(Run { members: group[start..end].to_vec(), efficiency });
            end = start;
        }
        runs
    }
}

impl BatchPolicy for LengthBatcher {
    fn describe(&self, inputs: &[Tensor]) -> Description {
        self.padding.describe(inputs)
    }

    fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision {
        let mut groups = LengthBatcher::groups(waiting);
        let mut earliest: Option<Instant> = None;
        groups.retain(|group| {
            let due = self.due(group, waiting, now);
            earliest = earliest.into_iter().chain(due).min();
            due.is_none()
        });
        let level = groups.iter().map(|group| waiting[group[0]].priority).min();
        groups.retain(|group| Some(waiting[group[0]].priority) == level);
        let oldest = groups.first().map(|group| group[0]);
        let mut runs = groups.into_iter().flat_map(|group| self.split(group, waiting));
        let overtaken =
            oldest.filter(|&oldest| now.saturating_duration_since(waiting[oldest].arrived) >= self.max_overtake);
        let chosen = match overtaken {
            Some(oldest) => runs.find(|run| run.members.contains(&oldest)),
            None => runs.max_by(|a, b| a.efficiency.total_cmp(&b.efficiency)),
        };
        match (chosen, earliest) {
            (Some(run), _) => Decision::Run(run.members),
            (None, Some(due)) => Decision::WaitUntil(due),
            (None, None) => Decision::Wait,
        }
    }

    fn max_rows(&self) -> u32 {
        self.max_rows
    }

    fn appetite(&self) -> Appetite {
        Appetite { batch: self.usual_batch().min(ALIKE), look_ahead: LOOK_AHEAD }
    }

    fn cost(&self, members: &[Description]) -> f64 {
        let rows = members.iter().fold(0u32, |rows, member| rows.saturating_add(member.rows.max(1)));
        self.cost.cost(rows, members.iter().map(|member| member.length).max().unwrap_or(0))
    }

    fn in_hand(&self, instances: usize) -> usize {
        WINDOW + instances * self.usual_batch()
    }
}

#[cfg(test)]
mod tests;
