//! Batches of similar length: the policy for models whose inputs may be padded.
//!
//! A run costs time for its padded tokens, so it should have texts of similar length, up to a budget of tokens. Waiting
//! requests of one signature are sorted by length and split into adjacent runs so that the sum of their costs under the
//! model's [`CostModel`] is least. Of these runs, the one with the most useful tokens per second goes first. The
//! remaining requests are split again next time, together with those that have arrived by then. Under load the younger half of the
//! requests waits its turn: if it took part, it would fill the runs of requests that came before others (docs/batching.md has the curve).
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
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trireme_engine::{Appetite, BatchPolicy, Candidate, Decision, Description};
use trireme_inference::Tensor;
use trireme_model_repository::ModelConfig;

use super::cost::{CostModel, DEFAULT_TOKEN_BUDGET, Fit};
use super::declaration::Declaration;
use super::padding::Padding;

/// Waiting requests among which a worker chooses. Twice as many would gain only 2 %.
const WINDOW: usize = 64;

/// A worker takes texts from the shared queue for this time at most, if they are fewer than the window. Half of it
/// costs a worker without peers another 3 % of its throughput (docs/adr/0008-room-in-time.md).
const LOOK_AHEAD: Duration = Duration::from_millis(220);

/// How long later requests may overtake a request: the time of this many full runs, and at least [`MIN_OVERTAKE`]. The curve of the test
/// `the_curve` is flat in throughput; with 16 requests in flight one run has the 99th percentile of strict order and a shorter
/// median, and each further run makes the 99th percentile half as long again.
const OVERTAKEN_RUNS: f64 = 1.0;
const MIN_OVERTAKE: Duration = Duration::from_millis(50);

/// Of the waiting requests the older half takes part, and as many more as make so many full runs: fewer would leave too little to choose from.
const RUNS_TO_CHOOSE: u32 = 2;

/// Requests that arrived within this time are of one age: as the texts of one large request are.
const OF_ONE_AGE: Duration = Duration::from_millis(20);

/// The time of runs counts from this many on, and the last ones count most.
const FEWEST_RUNS: f64 = 32.0;
const REMEMBERED_RUNS: f64 = 64.0;

/// The log tells the time for overtaking when it has changed by more than this share.
const TOLD_CHANGE: f64 = 0.25;

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
    /// How long later requests may overtake a request, if the configuration sets it.
    max_overtake: Option<Duration>,
    /// The times of runs while the model serves. Clones share them.
    pace: Arc<Mutex<Pace>>,
    /// Tokens of waiting requests that are enough to choose from.
    enough_tokens: u32,
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

/// The times of runs while the model serves, beside their costs. Instances and other processes slow a run down, so that the measured
/// seconds are off by a factor. The time of a full run decides how long requests may be overtaken.
#[derive(Debug, Default)]
struct Pace {
    model: String,
    /// The cost of a full run of usual texts.
    full_run: f64,
    /// Seconds for a unit of cost, as measured before the model served; 0 if nothing was measured.
    measured: f64,
    /// Sums over the runs so far, in which older ones count less and less.
    seconds: f64,
    cost: f64,
    runs: f64,
    /// The time for overtaking that the log has.
    told: Duration,
}

// === impl LengthBatcher ===

impl LengthBatcher {
    /// A batcher for the model of `config` with this `declaration`; `fit` are the measurements. Of the preferred batch sizes the smallest
    /// counts: that many rows do not wait for more.
    pub fn new(config: &ModelConfig, declaration: &Declaration, fit: Option<&Fit>) -> LengthBatcher {
        let settings = config.dynamic_batching.as_ref();
        let max_rows = declaration.max_rows.max(1);
        let measured = fit.map(|fit| fit.token_budget);
        let preferred = settings.map_or(&[][..], |settings| &settings.preferred_batch_sizes);
        let enough_rows = preferred.iter().copied().filter(|size| (1..=max_rows).contains(size)).min();
        let token_budget = declaration.token_budget.or(measured).unwrap_or(DEFAULT_TOKEN_BUDGET).max(1);
        let cost = fit.map_or(CostModel::UNMEASURED, |fit| fit.model);
        let steps = fit.filter(|_| !declaration.has_multiple).map_or(declaration.padding.steps, |fit| fit.steps);
        LengthBatcher {
            padding: Padding { steps, ..declaration.padding.clone() },
            cost,
            max_rows,
            token_budget,
            max_overtake: declaration.max_overtake,
            pace: Arc::new(Mutex::new(Pace::new(&config.name, &cost, token_budget, fit.is_some()))),
            enough_tokens: token_budget.saturating_mul(RUNS_TO_CHOOSE),
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

    /// Leaves the younger requests out. `groups` are all of one level.
    fn leave_the_younger(&self, groups: &mut [Vec<usize>], waiting: &[Candidate]) {
        let mut all: Vec<usize> = groups.iter().flatten().copied().collect();
        all.sort_unstable();
        let mut tokens = 0u32;
        let is_needed = |(place, index): &(usize, usize)| {
            let is_needed = *place < all.len().div_ceil(2) || tokens < self.enough_tokens;
            let Description { rows, length, .. } = waiting[*index].description;
            tokens = tokens.saturating_add(rows.max(1).saturating_mul(length));
            is_needed
        };
        let Some((_, last)) = all.iter().copied().enumerate().take_while(is_needed).last() else { return };
        let until = waiting[last].arrived + OF_ONE_AGE;
        groups.iter_mut().for_each(|group| group.retain(|&index| waiting[index].arrived <= until));
    }

    /// How long later requests may overtake a request.
    fn max_overtake(&self) -> Duration {
        self.max_overtake.unwrap_or_else(|| self.pace.lock().max_overtake())
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
            let (mut rows, longest) = size(end - 1);
            let length = self.padding.steps.of(longest);
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

// === impl Pace ===

impl Pace {
    /// The pace of a model that has not served yet; `measured`: whether its costs are seconds.
    fn new(model: &str, cost: &CostModel, token_budget: u32, measured: bool) -> Pace {
        let full_run = cost.cost((token_budget / USUAL_LENGTH).max(1), USUAL_LENGTH);
        let measured = if measured { 1.0 } else { 0.0 };
        let mut pace = Pace { model: model.to_owned(), full_run, measured, ..Pace::default() };
        pace.told = pace.max_overtake();
        pace
    }

    /// Seconds for a unit of cost.
    fn ratio(&self) -> f64 {
        if self.runs >= FEWEST_RUNS { self.seconds / self.cost } else { self.measured }
    }

    fn max_overtake(&self) -> Duration {
        let time = Duration::try_from_secs_f64(OVERTAKEN_RUNS * self.full_run * self.ratio());
        time.map_or(MIN_OVERTAKE, |time| time.max(MIN_OVERTAKE))
    }

    /// Counts a run in, and logs what follows from it where that is another choice.
    fn note(&mut self, cost: f64, took: Duration) {
        let kept = if self.runs < REMEMBERED_RUNS { 1.0 } else { 1.0 - 1.0 / REMEMBERED_RUNS };
        self.runs += 1.0;
        self.seconds = self.seconds * kept + took.as_secs_f64();
        self.cost = self.cost * kept + cost.max(f64::MIN_POSITIVE);
        let (chosen, told) = (self.max_overtake(), self.told);
        if chosen.as_secs_f64() > told.as_secs_f64() * (1.0 + TOLD_CHANGE)
            || chosen.as_secs_f64() < told.as_secs_f64() * (1.0 - TOLD_CHANGE)
        {
            let millis = |time: Duration| time.as_millis() as u64;
            let full_run = Duration::try_from_secs_f64(self.full_run * self.ratio()).unwrap_or_default();
            tracing::info!(
                model = self.model,
                full_run_ms = millis(full_run),
                max_overtake_ms = millis(chosen),
                before_ms = millis(told),
                "requests may be overtaken for another time: full runs take longer or shorter than they did"
            );
            self.told = chosen;
        }
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
        self.leave_the_younger(&mut groups, waiting);
        let mut runs = groups.into_iter().flat_map(|group| self.split(group, waiting));
        let overtaken =
            oldest.filter(|&oldest| now.saturating_duration_since(waiting[oldest].arrived) >= self.max_overtake());
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
        self.cost.cost(rows, self.padding.steps.of(members.iter().map(|member| member.length).max().unwrap_or(0)))
    }

    fn ran(&self, cost: f64, took: Duration) {
        if self.max_overtake.is_none() {
            self.pace.lock().note(cost, took);
        }
    }

    // With fewer, an instance that has taken a run of short texts leaves nothing to the others. Of longer texts the worker takes
    // only as many as it can begin within its look-ahead.
    fn in_hand(&self, instances: usize) -> usize {
        WINDOW + instances * self.full_run(SHORT_LENGTH)
    }
}

#[cfg(test)]
mod tests;
