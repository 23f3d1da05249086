//! The time spent on a request, hop by hop.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Equivalence, MAX_LISTED, Name, equivalent_to};

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
    /// The same counts for each text of the request, in the order of the texts. Empty for a single text, for more than [`MAX_LISTED`] texts, and
    /// where a worker does not tell them.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "write_each",
        deserialize_with = "read_each"
    )]
    pub each_text: Vec<TextFacts>,
    /// The texts whose answers came from the text cache of a gateway, which alone knows them: they are never sent.
    #[serde(skip)]
    pub cached: CachedTexts,
    /// The space of the step's answers, where its worker knows it: a digest of what decides each row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<Name>,
    /// The spaces that the space of the whole answer was measured to equal, in the first hop. A gateway alone knows them: they are never sent.
    #[serde(skip)]
    pub equivalent: Vec<Name>,
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

/// Texts of a request whose answers a gateway's text cache had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedTexts {
    /// Their number.
    pub texts: u64,
    /// Their tokens, which count among those of the whole request too.
    pub tokens: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Facts as they travel in [`Hop::each_text`]: `[tokens, truncated, windows]`.
type FactsOfText = (u64, u64, u64);

fn write_each<S: Serializer>(each: &[TextFacts], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(each.iter().map(|facts| (facts.tokens, facts.truncated, facts.windows)))
}

fn read_each<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<TextFacts>, D::Error> {
    let each: Vec<FactsOfText> = crate::read_list(deserializer, "texts of a step")?;
    Ok(each.into_iter().map(|(tokens, truncated, windows)| TextFacts { tokens, truncated, windows }).collect())
}

// === impl Ledger ===

impl Ledger {
    /// The space of the whole answer; `None` where a step's is not known.
    pub fn space(&self) -> Option<String> {
        space_of(self.0.iter().map(|hop| hop.space.as_deref()))
    }

    /// The spaces that the answer's was measured to equal.
    pub fn equivalent_spaces(&self) -> &[Name] {
        self.0.first().map_or(&[], |hop| &hop.equivalent)
    }

    /// Takes in which spaces the answer's was measured to equal, of all that is known.
    pub fn tell_equivalent(&mut self, known: &[Equivalence]) {
        let equivalent = self.space().map(|space| equivalent_to(known, &space)).unwrap_or_default();
        if let Some(hop) = self.0.first_mut() {
            hop.equivalent = equivalent;
        }
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

    /// The facts about each of the request's texts, which are so many, over all steps; `None` for a text where no step was a tokenizer. `None` for
    /// all of them where a tokenizer does not tell the facts of each.
    pub fn each_text(&self, texts: usize) -> Option<Vec<Option<TextFacts>>> {
        let mut all = vec![None; texts];
        for hop in self.0.iter().filter(|hop| hop.texts.is_some()) {
            for (facts, more) in all.iter_mut().zip(hop.facts_of_each(texts)?.iter()) {
                *facts = [*facts, Some(*more)].into_iter().flatten().reduce(TextFacts::and);
            }
        }
        Some(all)
    }

    /// The texts whose answers came from a gateway's text cache.
    pub fn cached(&self) -> CachedTexts {
        let all = self.0.iter().map(|hop| hop.cached);
        all.fold(CachedTexts::default(), |sum, more| CachedTexts {
            texts: sum.texts.saturating_add(more.texts),
            tokens: sum.tokens.saturating_add(more.tokens),
        })
    }

    /// Adds texts whose answers came from a gateway's text cache, with the facts about them where a tokenizer counted them.
    pub fn add_cached(&mut self, texts: u64, facts: Option<TextFacts>) {
        let Some(hop) = self.0.first_mut() else { return };
        hop.texts = hop.texts.into_iter().chain(facts).reduce(TextFacts::and);
        hop.cached.texts = hop.cached.texts.saturating_add(texts);
        hop.cached.tokens = hop.cached.tokens.saturating_add(facts.map_or(0, |facts| facts.tokens));
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

    /// The facts about each text of a tokenizer's step, where the request has so many; `None` where the step gives none.
    pub fn facts_of_each(&self, texts: usize) -> Option<Cow<'_, [TextFacts]>> {
        match (self.texts, texts) {
            (Some(facts), 1) => Some(Cow::Owned(vec![facts])),
            _ => (self.each_text.len() == texts).then_some(Cow::Borrowed(&self.each_text)),
        }
    }
}

// === impl TextFacts ===

impl TextFacts {
    /// The facts about each text, as a step tells them: all of `each`, if they are several and not too many for a message.
    pub fn told(each: Vec<TextFacts>) -> Vec<TextFacts> {
        if (2..=MAX_LISTED).contains(&each.len()) { each } else { Vec::new() }
    }

    /// The facts about the texts of both.
    pub fn and(self, other: TextFacts) -> TextFacts {
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
    fn facts_about_each_text_are_known_where_every_tokenizer_tells_them() {
        let facts = |tokens| TextFacts { tokens, truncated: 0, windows: 0 };
        let hop = |each: &[u64]| Hop {
            texts: Some(facts(each.iter().sum())),
            each_text: TextFacts::told(each.iter().map(|&tokens| facts(tokens)).collect()),
            ..Hop::default()
        };
        let each = |hops: &[Hop], texts| Ledger(hops.to_vec()).each_text(texts);
        let known = |all: &[u64]| Some(all.iter().map(|&tokens| Some(facts(tokens))).collect::<Vec<_>>());
        assert_eq!(each(&[hop(&[2, 3]), Hop::default(), hop(&[10, 20])], 2), known(&[12, 23]));
        assert_eq!((hop(&[7]).each_text.len(), each(&[hop(&[7])], 1)), (0, known(&[7])), "one text needs no list");
        assert_eq!(each(&[Hop::default()], 2), Some(vec![None, None]), "no step was a tokenizer");
        assert_eq!(each(&[hop(&[2, 3]), hop(&[5])], 2), None);
        assert_eq!(each(&[hop(&[2, 3])], 3), None);
        let many = vec![1; MAX_LISTED + 1];
        assert_eq!(each(&[hop(&many)], many.len()), None, "a message does not hold so many");
    }

    #[test]
    fn cached_texts_count_among_all_and_apart() {
        let mut all = ledger(&[Some((5, 1)), None]);
        assert_eq!(all.cached(), CachedTexts::default());
        all.add_cached(2, Some(TextFacts { tokens: 10, truncated: 1, windows: 0 }));
        assert_eq!(all.texts(), Some(TextFacts { tokens: 15, truncated: 2, windows: 2 }));
        assert_eq!(all.cached(), CachedTexts { texts: 2, tokens: 10 });
        let mut uncounted = ledger(&[None]);
        uncounted.add_cached(3, None);
        assert_eq!((uncounted.texts(), uncounted.cached()), (None, CachedTexts { texts: 3, tokens: 0 }));
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
