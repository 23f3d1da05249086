//! The time spent on a request, hop by hop.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::Name;

/// Characters of a step's space in that of an answer.
const STEP_DIGITS: usize = 12;

/// The hops a request has made so far, in order. Becomes the `Server-Timing` header and the per-stage histograms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ledger(#[serde(deserialize_with = "read_hops")] pub Vec<Hop>);

fn read_hops<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Hop>, D::Error> {
    crate::read_list(deserializer, "hops")
}

/// One step of the route, as the worker that ran it saw it. All times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// The step's model.
    pub model: Name,
    /// The worker that ran it.
    pub worker: Name,
    /// From sending by the previous stage to receiving here: the broker and its queue.
    pub transit_us: u64,
    /// From receiving until the batch began to run: the worker's own queue.
    pub queue_us: u64,
    /// Preparing the batch: gathering, padding, converting inputs.
    pub compute_input_us: u64,
    /// The run itself.
    pub compute_infer_us: u64,
    /// Splitting and converting outputs.
    pub compute_output_us: u64,
    /// Rows (batch elements) of the executed batch this request was part of.
    pub batch_size: u32,
    /// A tokenizer's counts for the request's texts; `None` from other steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub texts: Option<TextFacts>,
    /// The space of the step's answers, where its worker knows it: a digest of what decides each row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<Name>,
}

/// A tokenizer's counts for the texts of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextFacts {
    /// Tokens over all rows, special tokens included, padding not.
    pub tokens: u64,
    /// Rows that were too long and lost tokens.
    pub truncated: u64,
    /// Rows of those texts that have several, because they are longer than a row may be.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub windows: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

// === impl Ledger ===

impl Ledger {
    /// The space of the whole answer; `None` where a step's is not known.
    pub fn space(&self) -> Option<String> {
        space_of(self.0.iter().map(|hop| hop.space.as_deref()))
    }

    /// The steps and their spaces, for an answer that is given again: no worker ran for it, it took none of the times, and no tokens.
    pub fn without_times(&self) -> Ledger {
        let hop = |hop: &Hop| Hop { model: hop.model.clone(), space: hop.space.clone(), ..Hop::default() };
        Ledger(self.0.iter().map(hop).collect())
    }

    /// The time of all hops, on the bus and in workers.
    pub fn spent(&self) -> Duration {
        let hops = self.0.iter().map(|hop| {
            let times =
                [hop.transit_us, hop.queue_us, hop.compute_input_us, hop.compute_infer_us, hop.compute_output_us];
            times.into_iter().fold(0, u64::saturating_add)
        });
        Duration::from_micros(hops.fold(0, u64::saturating_add))
    }

    /// The facts of all tokenizers together; `None` where no step was one.
    pub fn texts(&self) -> Option<TextFacts> {
        self.0.iter().filter_map(|hop| hop.texts).reduce(TextFacts::and)
    }

    /// Adds the facts about other rows of the same request, which took the same steps in a message of their own.
    pub fn add_texts_of(&mut self, other: &Ledger) {
        for (hop, more) in self.0.iter_mut().zip(&other.0) {
            hop.texts = hop.texts.into_iter().chain(more.texts).reduce(TextFacts::and);
        }
    }
}

/// The space of an answer whose steps have these spaces, in order: theirs, joined by dots, each short. `None` where one is not known, or where
/// there is no step.
pub fn space_of<'a>(steps: impl Iterator<Item = Option<&'a str>>) -> Option<String> {
    let spaces = steps.map(|space| space.map(short)).collect::<Option<Vec<_>>>()?;
    (!spaces.is_empty()).then(|| spaces.join("."))
}

/// The digits of a step's space that `trireme-space` has.
pub(crate) fn short(space: &str) -> &str {
    space.get(..STEP_DIGITS).unwrap_or(space)
}

// === impl Hop ===

impl Hop {
    /// Whether a worker ran the step for this very answer, and the step is not that of an answer that is given again.
    pub fn ran(&self) -> bool {
        !self.worker.is_empty()
    }
}

// === impl TextFacts ===

impl TextFacts {
    fn and(self, other: TextFacts) -> TextFacts {
        TextFacts {
            tokens: self.tokens.saturating_add(other.tokens),
            truncated: self.truncated.saturating_add(other.truncated),
            windows: self.windows.saturating_add(other.windows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(texts: &[Option<(u64, u64)>]) -> Ledger {
        let facts = |(tokens, truncated)| TextFacts { tokens, truncated, windows: 2 * truncated };
        Ledger(texts.iter().map(|texts| Hop { texts: texts.map(facts), ..Hop::default() }).collect())
    }

    #[test]
    fn facts_about_texts_add_up_over_steps_and_parts() {
        assert_eq!(ledger(&[None, None]).texts(), None);
        let mut all = ledger(&[Some((5, 1)), None, Some((2, 0))]);
        assert_eq!(all.texts(), Some(TextFacts { tokens: 7, truncated: 1, windows: 2 }));
        all.add_texts_of(&ledger(&[Some((10, 2)), None, None]));
        assert_eq!(all, ledger(&[Some((15, 3)), None, Some((2, 0))]));
        all.add_texts_of(&ledger(&[]));
        all.add_texts_of(&ledger(&[Some((u64::MAX, 0))]));
        assert_eq!(all.texts(), Some(TextFacts { tokens: u64::MAX, truncated: 3, windows: 6 }));
    }
}
