//! Batches in the order of arrival, for models whose graph is packed: texts of all lengths share a run without padding, so that nothing is gained
//! by sorting. A run takes the requests that came first, up to a budget of tokens. A request is never split, nor overtaken by one of its level.

use std::time::{Duration, Instant};

use trireme_engine::{Appetite, BatchPolicy, Candidate, Decision, Description};
use trireme_inference::Tensor;
use trireme_model_repository::ModelConfig;

use super::declaration::Declaration;
use super::length::USUAL_LENGTH;
use super::padding::Padding;

/// A worker takes requests that its instances can begin within this time: nothing is gained by choosing among more.
const LOOK_AHEAD: Duration = Duration::from_millis(20);

/// Starting a run costs as much as so many tokens.
const RUN: f64 = 10.0;

/// Takes requests in the order of arrival, up to a budget of tokens.
#[derive(Clone, Debug)]
pub struct PackedBatcher {
    padding: Padding,
    max_rows: u32,
    token_budget: u32,
    /// How long the oldest request may wait for others.
    delay: Duration,
    /// Rows that are enough to run without waiting for more.
    enough_rows: u32,
}

// === impl PackedBatcher ===

impl PackedBatcher {
    /// A batcher for the model of `config` with this `declaration`. `budget` are the most tokens of a run, where the configuration does not
    /// say.
    pub fn new(config: &ModelConfig, declaration: &Declaration, budget: u32) -> PackedBatcher {
        let settings = config.dynamic_batching.as_ref();
        let max_rows = declaration.max_rows.max(1);
        let preferred = settings.map_or(&[][..], |settings| &settings.preferred_batch_sizes);
        let enough_rows = preferred.iter().copied().filter(|size| (1..=max_rows).contains(size)).min();
        PackedBatcher {
            padding: declaration.padding.clone(),
            max_rows,
            token_budget: declaration.token_budget.unwrap_or(budget).max(1),
            delay: settings.map_or(Duration::ZERO, |settings| settings.max_queue_delay),
            enough_rows: enough_rows.unwrap_or(max_rows),
        }
    }
}

impl BatchPolicy for PackedBatcher {
    fn describe(&self, inputs: &[Tensor]) -> Description {
        self.padding.describe(inputs)
    }

    fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision {
        let Some(oldest) = waiting.iter().min_by_key(|candidate| candidate.priority) else { return Decision::Wait };
        let of_level = waiting.iter().enumerate().filter(|(_, candidate)| candidate.priority == oldest.priority);
        let (mut run, mut rows, mut tokens) = (Vec::new(), 0u32, 0u32);
        for (at, Candidate { description, .. }) in of_level {
            let own = description.rows.max(1);
            let all = (rows.saturating_add(own), tokens.saturating_add(own.saturating_mul(description.length)));
            let fits = all.0 <= self.max_rows && all.1 <= self.token_budget;
            // A request that cannot join ends the run, because no later one overtakes it.
            if !run.is_empty() && (!fits || description.signature != oldest.description.signature) {
                return Decision::Run(run);
            }
            run.push(at);
            (rows, tokens) = all;
        }
        let due = oldest.arrived.checked_add(self.delay).filter(|due| *due > now);
        let is_enough = rows >= self.enough_rows || tokens >= self.token_budget;
        due.filter(|_| !is_enough).map_or(Decision::Run(run), Decision::WaitUntil)
    }

    fn max_rows(&self) -> u32 {
        self.max_rows
    }

    fn appetite(&self) -> Appetite {
        let batch = (self.token_budget / USUAL_LENGTH).clamp(1, self.max_rows) as usize;
        Appetite { batch, look_ahead: LOOK_AHEAD }
    }

    fn cost(&self, members: &[Description]) -> f64 {
        RUN + members.iter().map(|member| f64::from(member.rows.max(1)) * f64::from(member.length)).sum::<f64>()
    }
}

#[cfg(test)]
mod tests;
