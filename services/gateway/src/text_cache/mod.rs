//! The text cache: results of single texts, or of pairs of texts, for requests of operations on texts. A gateway looks each text of a request up,
//! sends the others into the pipeline as one smaller request, and puts the answer together ([`Lookup`]).
//!
//! Invariants:
//! - A key is of all that decides a result: the model version, the contents of its steps, the outputs asked for, the parameters, the text
//!   itself, and the owner unless owners share. So a result is that of computing, or it is not found.
//! - A result is kept only from an answer of the contents that are in its key, and only where the facts about the text are known: an answer
//!   counts all texts, whichever way they came.
//!
//! Not here: which requests are looked up, and how the others run (`handlers::infer::texts`); how bytes are weighed and which results go first
//! (`trireme_runtime::response_cache`).

mod lookup;

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;
use parking_lot::Mutex;
use ring::digest::{Context, SHA256};
use trireme_inference::{InferResponse, Ledger, ModelKey, Owner, Parameters, RequestedOutput, Tensor};
use trireme_runtime::response_cache::{CacheConfig, Key, ResponseCache};

pub use lookup::Lookup;
use lookup::TextResult;

use crate::rows::TextRows;

/// Flags about the text cache.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Response cache")]
pub struct TextCacheArgs {
    /// Bytes of a cache of texts' vectors, scores, classes and entities: of a request, only the texts that are not in it are computed;
    /// none by default
    #[arg(long, env = "TRIREME_TEXT_CACHE", value_name = "BYTES")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub text_cache: Option<u64>,

    /// Let owners of keys share the text cache: the time of an answer then tells whether another owner has sent the same text. Without
    /// this each owner has results of its own
    #[arg(long, env = "TRIREME_TEXT_CACHE_SHARED", value_parser = clap::builder::FalseyValueParser::new())]
    pub text_cache_shared: bool,
}

/// The cache. One per gateway.
pub struct TextCache {
    results: ResponseCache<TextResult>,
    shared: bool,
    models: Mutex<BTreeMap<ModelKey, OfModel>>,
}

/// The counts and the steps of a model.
#[derive(Default)]
struct OfModel {
    lookups: Lookups,
    /// The steps of its last answer, without times: results of one content share them.
    steps: Arc<Ledger>,
}

/// How many texts of a model were looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Texts that the cache had, or that were in their request before.
    pub hits: u64,
    /// Texts that had to be computed.
    pub misses: u64,
}

/// The terms that all texts of a request share.
pub struct Terms {
    model: ModelKey,
    common: Context,
    /// How often contents had changed when the request was admitted. A later answer may come from other contents than those in the keys.
    pub changes: u64,
}

// === impl TextCacheArgs ===

impl TextCacheArgs {
    /// The cache that the flags ask for.
    pub fn open(&self) -> anyhow::Result<Option<TextCache>> {
        let TextCacheArgs { text_cache, text_cache_shared: shared } = *self;
        anyhow::ensure!(
            text_cache.is_some() || !shared,
            "--text-cache-shared needs a cache: give --text-cache BYTES, or leave it out"
        );
        Ok(text_cache.map(|size| TextCache::new(size, shared)))
    }
}

// === impl TextCache ===

impl TextCache {
    fn new(size: u64, shared: bool) -> TextCache {
        TextCache { results: ResponseCache::new(CacheConfig { size }, false), shared, models: Mutex::default() }
    }

    /// The terms of a request's texts. `origin` names the sources of results; `changes` is how often contents have changed so far.
    pub fn terms(
        &self,
        model: &ModelKey,
        origin: &str,
        outputs: &[RequestedOutput],
        parameters: &Parameters,
        owner: &Owner,
        changes: u64,
    ) -> Terms {
        let owner = if self.shared { "" } else { owner.name.as_str() };
        let common = Key::new(model, format_args!("{owner:?} {origin}"), &[], outputs, parameters);
        let mut context = Context::new(&SHA256);
        add(&mut context, common.as_bytes());
        Terms { model: model.clone(), common: context, changes }
    }

    /// Looks up the texts of a request; `None` where its tensors have no row for each text.
    pub fn look_up(&self, terms: &Terms, tensors: &[Tensor]) -> Option<Lookup> {
        let keys = terms.keys(tensors)?;
        let lookup = Lookup::new(keys, |key| self.results.get(key));
        let mut models = self.models.lock();
        let counts = &mut models.entry(terms.model.clone()).or_default().lookups;
        counts.hits += lookup.hits() as u64;
        counts.misses += lookup.misses().len() as u64;
        Some(lookup)
    }

    /// Keeps the results of the texts that were not found, as far as the answer to them tells each one's.
    pub fn keep(&self, terms: &Terms, lookup: &mut Lookup, answer: &InferResponse) {
        let steps = self.steps(&terms.model, answer.ledger.without_times());
        for (key, result) in lookup.computed(answer, &steps) {
            self.results.keep(key.clone(), result);
        }
    }

    /// These steps, shared with other results of the model that have the same ones.
    fn steps(&self, model: &ModelKey, steps: Ledger) -> Arc<Ledger> {
        let mut models = self.models.lock();
        let shared = &mut models.entry(model.clone()).or_default().steps;
        if **shared != steps {
            *shared = Arc::new(steps);
        }
        shared.clone()
    }

    /// How many texts of each model were looked up.
    pub fn lookups(&self) -> BTreeMap<ModelKey, Lookups> {
        self.models.lock().iter().map(|(model, known)| (model.clone(), known.lookups)).collect()
    }

    /// The bytes that its entries are assumed to occupy.
    pub fn bytes(&self) -> u64 {
        self.results.bytes()
    }
}

// === impl Terms ===

impl Terms {
    /// The key of each text.
    fn keys(&self, tensors: &[Tensor]) -> Option<Vec<Key>> {
        let mut tensors = tensors.to_vec();
        tensors.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        let mut common = self.common.clone();
        for tensor in &tensors {
            add(
                &mut common,
                format!("{:?} {} {:?}", tensor.name(), tensor.datatype(), tensor.shape().get(1..)).as_bytes(),
            );
        }
        let rows = TextRows::of(&tensors)?;
        let key = |row| {
            let mut context = common.clone();
            rows.bytes_of(row).for_each(|bytes| add(&mut context, bytes));
            Key::of_digest(context.finish().as_ref())
        };
        Some((0..rows.len()).map(key).collect())
    }
}

/// Adds a part to a digest; its length counts, so that parts do not run into each other.
fn add(context: &mut Context, part: &[u8]) {
    context.update(&(part.len() as u64).to_le_bytes());
    context.update(part);
}

#[cfg(test)]
mod tests;
