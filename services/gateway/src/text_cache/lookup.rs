//! A request whose texts were looked up: which of them have to be computed, and the answer to all. Pure.

use std::collections::HashMap;
use std::sync::Arc;

use trireme_inference::{InferError, InferResponse, Ledger, ModelKey, Tensor, TextFacts};
use trireme_runtime::response_cache::{Cacheable, Key, own};

use crate::rows::{TextRows, join_rows};

/// A request whose texts were looked up.
pub struct Lookup {
    /// By row of the request.
    places: Vec<Place>,
    /// The rows that have to be computed, in order.
    misses: Vec<usize>,
    /// Their keys.
    keys: Vec<Key>,
    /// Their results, once the answer with them was split by row.
    computed: Vec<TextResult>,
}

/// The result of one text.
#[derive(Clone, Debug)]
pub(super) struct TextResult {
    /// Its outputs, of one row each.
    outputs: Vec<Tensor>,
    /// The counts of tokenizers; `None` where no step was a tokenizer.
    facts: Option<TextFacts>,
    /// The steps that it came from, without times.
    steps: Arc<Ledger>,
}

/// Where the result of a row comes from.
enum Place {
    /// It was kept.
    Kept(TextResult),
    /// From the computed row with this number; several rows may be alike.
    Computed(usize),
}

// === impl Cacheable ===

impl Cacheable for TextResult {
    fn kept(&self) -> TextResult {
        TextResult { outputs: own(&self.outputs), ..self.clone() }
    }

    fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }
}

// === impl Lookup ===

impl Lookup {
    /// Looks up the rows with these keys.
    pub(super) fn new(keys: Vec<Key>, find: impl Fn(&Key) -> Option<TextResult>) -> Lookup {
        let (mut misses, mut missed) = (Vec::new(), HashMap::new());
        let place = |(row, key): (usize, &Key)| match find(key) {
            Some(found) => Place::Kept(found),
            None => Place::Computed(*missed.entry(key.clone()).or_insert_with(|| {
                misses.push(row);
                misses.len() - 1
            })),
        };
        let places: Vec<Place> = keys.iter().enumerate().map(place).collect();
        let keys = misses.iter().map(|&row| keys[row].clone()).collect();
        Lookup { places, misses, keys, computed: Vec::new() }
    }

    /// The rows that have to be computed.
    pub fn misses(&self) -> &[usize] {
        &self.misses
    }

    /// How many rows need not be computed.
    pub fn hits(&self) -> usize {
        self.places.len() - self.misses.len()
    }

    /// The bytes of the results that were kept.
    pub fn bytes(&self) -> usize {
        let kept = self.places.iter().filter_map(|place| match place {
            Place::Kept(result) => Some(&result.outputs),
            Place::Computed(_) => None,
        });
        kept.flatten().map(|output| output.data().len()).sum()
    }

    /// The tensors of the rows that have to be computed.
    pub fn missing(&self, tensors: &[Tensor]) -> Result<Vec<Tensor>, InferError> {
        match TextRows::of(tensors) {
            Some(rows) => rows.gather(&self.misses),
            None => Ok(tensors.to_vec()),
        }
    }

    /// The results of the rows that were computed, with their keys: none where the answer cannot be split by row.
    pub(super) fn computed(
        &mut self,
        answer: &InferResponse,
        steps: &Arc<Ledger>,
    ) -> impl Iterator<Item = (&Key, &TextResult)> {
        self.computed = results(answer, steps, self.misses.len()).unwrap_or_default();
        self.keys.iter().zip(&self.computed)
    }

    /// The answer to the whole request: of results that were kept alone, or together with an answer to the others that was given to
    /// [`TextCache::keep`](super::TextCache::keep). `None` where that does not tell the texts apart, or its outputs do not fit to those that were kept.
    pub fn answer(&self, model: &ModelKey, computed: Option<&InferResponse>) -> Option<InferResponse> {
        if self.computed.len() != self.misses.len() {
            return None;
        }
        let mut is_new = vec![true; self.computed.len()];
        let (mut rows, mut cached, mut facts) = (Vec::with_capacity(self.places.len()), 0, None);
        for place in &self.places {
            let result = match place {
                Place::Kept(result) => result,
                Place::Computed(number) => &self.computed[*number],
            };
            rows.push(result.outputs.clone());
            let is_cached = match place {
                Place::Kept(_) => true,
                Place::Computed(number) => !std::mem::take(&mut is_new[*number]),
            };
            if is_cached {
                cached += 1;
                facts = facts.into_iter().chain(result.facts).reduce(TextFacts::and);
            }
        }
        let outputs = join_rows(rows).ok()?;
        let mut answer = match computed {
            Some(computed) => InferResponse { outputs, ..computed.clone() },
            None => InferResponse {
                id: String::new(),
                model: model.clone(),
                parameters: Default::default(),
                outputs,
                shared: Default::default(),
                ledger: self.places.iter().find_map(Place::steps)?,
            },
        };
        answer.ledger.add_cached(cached, facts);
        Some(answer)
    }
}

// === impl Place ===

impl Place {
    /// The steps that a result came from which was kept.
    fn steps(&self) -> Option<Ledger> {
        match self {
            Place::Kept(result) => Some(result.steps.as_ref().clone()),
            Place::Computed(_) => None,
        }
    }
}

/// The result of each row of an answer. `None` where the answer is about the request as a whole, does not say what tokenizers counted for each
/// text, or has outputs that are not by row.
fn results(answer: &InferResponse, steps: &Arc<Ledger>, rows: usize) -> Option<Vec<TextResult>> {
    if !answer.parameters.is_empty() {
        return None;
    }
    let facts = answer.ledger.each_text(rows)?;
    let outputs = TextRows::of(&answer.outputs).filter(|outputs| outputs.len() == rows)?;
    let result = |(row, facts): (usize, Option<TextFacts>)| {
        Some(TextResult { outputs: outputs.single(row).ok()??, facts, steps: steps.clone() })
    };
    facts.into_iter().enumerate().map(result).collect()
}
