//! Batches of similar length: the policy for models whose inputs may be padded.
//!
//! A run costs time for its padded tokens, so it should have texts of similar length, up to a budget of tokens. Waiting
//! requests of one signature are sorted by length and split into adjacent runs so that the sum of their costs under the
//! model's [`CostModel`] is least. Of these runs, the one with the most useful tokens per second goes first. The
//! remaining requests are split again next time, together with those that have arrived by then.
//!
//! Promises: a run has requests of one signature and one priority level. Its rows and padded tokens stay within the
//! limits (a request that alone exceeds them runs alone). A request is never split. Higher levels go first. Once a
//! request has waited for `max_overtake`, no later one of its level starts before it, unless in one run with it or with
//! an even older one. With a queue delay, the requests of a signature run when their oldest has waited for that long,
//! when they could fill a run, or when a request arrived after them that cannot join them; waiting for the delay does
//! not count as being overtaken.
//!
//! Not here: tensors ([`super::merge`] pads), and measuring costs (the backend does).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use trireme_engine::{Appetite, BatchPolicy, Candidate, Decision, Description};
use trireme_inference::Tensor;
use trireme_model_repository::DynamicBatching;

use super::cost::{CostModel, DEFAULT_TOKEN_BUDGET, Fit};
use super::declaration::Declaration;
use super::padding::Padding;

/// Waiting requests among which a worker chooses. Twice as many would gain only 2 %.
const WINDOW: usize = 64;

/// A worker takes texts from the shared queue for this time at most, if they are fewer than the window. Half of it
/// costs a worker without peers another 3 % of its throughput (docs/adr/0008-room-in-time.md).
const LOOK_AHEAD: Duration = Duration::from_millis(220);

/// How long later requests may overtake a request: this many full runs, and at least [`MIN_OVERTAKE`]. In the simulator, with 16 requests in
/// flight, two runs give a median a tenth below that of strict order, with the same throughput and 99th percentile; with four
/// runs the 99th percentile is 1.6 times as long.
const OVERTAKEN_RUNS: f64 = 2.0;
const MIN_OVERTAKE: Duration = Duration::from_millis(50);

/// Requests in a run of similar lengths among usual texts. A worker takes at least this many for an instance.
const ALIKE: usize = 8;

/// Tokens of a usual text, used to estimate how many requests an instance executes at once.
pub const USUAL_LENGTH: u32 = 32;

/// Tokens of a short text, such as a query. A worker has room for a full run of them for each instance.
const SHORT_LENGTH: u32 = 8;

/// Chooses batches by length.
#[derive(Clone, Debug)]
pub struct LengthBatcher {
    padding: Padding,
    cost: CostModel,
    /// Most rows in one run, at least 1.
    max_rows: u32,
    /// Most rows times padded length in one run, at least 1.
    token_budget: u32,
    /// How long later requests may overtake a request.
    max_overtake: Duration,
    /// How long the oldest request of a signature may wait for others.
    delay: Duration,
    /// Rows that are enough to run without waiting for more.
    enough_rows: u32,
}

/// A possible run: indices into the queue.
struct Run {
    members: Vec<usize>,
    /// Useful tokens per unit of cost.
    efficiency: f64,
}

/// How long later requests may overtake a request, by the measured time of a full run of usual texts.
fn max_overtake(fit: Option<&Fit>, token_budget: u32) -> Duration {
    let full = fit.map_or(0.0, |fit| fit.model.cost((token_budget / USUAL_LENGTH).max(1), USUAL_LENGTH));
    Duration::try_from_secs_f64(OVERTAKEN_RUNS * full).map_or(MIN_OVERTAKE, |time| time.max(MIN_OVERTAKE))
}

// === impl LengthBatcher ===

impl LengthBatcher {
    /// A batcher for `declaration` and `settings` (the `dynamic_batching` block, if there is one); `fit` are the
    /// measurements. Of the preferred batch sizes the smallest counts: that many rows do not wait for more.
    pub fn new(declaration: &Declaration, settings: Option<&DynamicBatching>, fit: Option<&Fit>) -> LengthBatcher {
        let max_rows = declaration.max_rows.max(1);
        let measured = fit.map(|fit| fit.token_budget);
        let preferred = settings.map_or(&[][..], |settings| &settings.preferred_batch_sizes);
        let enough_rows = preferred.iter().copied().filter(|size| (1..=max_rows).contains(size)).min();
        let token_budget = declaration.token_budget.or(measured).unwrap_or(DEFAULT_TOKEN_BUDGET).max(1);
        LengthBatcher {
            padding: declaration.padding.clone(),
            cost: fit.map_or(CostModel::UNMEASURED, |fit| fit.model),
            max_rows,
            token_budget,
            max_overtake: declaration.max_overtake.unwrap_or_else(|| max_overtake(fit, token_budget)),
            delay: settings.map_or(Duration::ZERO, |settings| settings.max_queue_delay),
            enough_rows: enough_rows.unwrap_or(max_rows),
        }
    }

    /// Requests in a full run of texts of `length` tokens.
    fn full_run(&self, length: u32) -> usize {
        (self.token_budget / length).clamp(1, self.max_rows) as usize
    }

    /// Requests of equal level and signature, in order of arrival. The groups are in the order of their oldest
    /// requests.
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

    /// How long a group may wait for more requests; `None` if it should run now.
    fn due(&self, group: &[usize], waiting: &[Candidate], now: Instant) -> Option<Instant> {
        let due = waiting[*group.first()?].arrived.checked_add(self.delay)?;
        let (mut rows, mut tokens) = (0u32, 0u32);
        for &index in group {
            let Description { rows: own, length, .. } = waiting[index].description;
            rows = rows.saturating_add(own);
            tokens = tokens.saturating_add(own.saturating_mul(length));
        }
        let enough = rows >= self.enough_rows || tokens >= self.token_budget;
        let passed = group.last().is_some_and(|newest| newest + 1 < waiting.len());
        (due > now && !enough && !passed).then_some(due)
    }

    /// Splits a group into the runs whose costs have the least sum.
    fn split(&self, mut group: Vec<usize>, waiting: &[Candidate]) -> Vec<Run> {
        // Stable: among requests of equal length the oldest stay together.
        group.sort_by_key(|&index| waiting[index].description.length);
        let size = |position: usize| {
            let Description { rows, length, .. } = waiting[group[position]].description;
            (rows.max(1), length)
        };
        // The least cost of the first n requests, and the start of the last run of that split.
        let mut least = Vec::with_capacity(group.len() + 1);
        least.push((0.0, 0));
        for end in 1..=group.len() {
            // The requests are sorted by length, so the run is padded to its last request.
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
        Appetite { batch: self.full_run(USUAL_LENGTH).min(ALIKE), look_ahead: LOOK_AHEAD }
    }

    fn cost(&self, members: &[Description]) -> f64 {
        let rows = members.iter().fold(0u32, |rows, member| rows.saturating_add(member.rows.max(1)));
        self.cost.cost(rows, members.iter().map(|member| member.length).max().unwrap_or(0))
    }

    // With fewer, an instance that has taken a run of short texts leaves nothing to the others. Of longer texts the worker takes
    // only as many as it can begin within its look-ahead.
    fn in_hand(&self, instances: usize) -> usize {
        WINDOW + instances * self.full_run(SHORT_LENGTH)
    }
}

#[cfg(test)]
mod tests;
