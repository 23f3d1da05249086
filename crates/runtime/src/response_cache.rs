//! The response cache: answers of models whose configuration has `response_cache`, for requests that were answered before. A gateway's text
//! cache is such a cache, too, with answers for single texts.
//!
//! As in Triton a model version's inputs decide; unlike there the outputs asked for and the request's parameters do too,
//! because an answer depends on them. The keys of requests are whole, not hashes: no request ever gets another one's answer. The keys of
//! texts are digests of 256 bits. A gateway looks up the requests of clients, and a worker the requests that reach a model as a step of an
//! ensemble; each has a cache of its own.
//!
//! The cache keeps answers, never errors, up to a number of bytes; the entry that is used least goes first. A cache lives as long
//! as its process.

use std::fmt::{Display, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Args;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use trireme_inference::{
    InferError, InferResponse, ModelKey, Parameters, RequestedOutput, TIMEOUTS, Tensor, TextFacts,
};

/// Bytes that an entry is assumed to occupy beside its tensors and key.
const ENTRY_OVERHEAD: u64 = 512;

/// The cache's tables have room at first for answers of this size; they grow as they have to.
const USUAL_ANSWER: u64 = 4096;

/// Flags about the response cache.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Response cache")]
pub struct CacheArgs {
    /// Cache of responses, for models with `response_cache`: `local,size=BYTES`; none by default
    #[arg(long, env = "TRIREME_CACHE_CONFIG", value_name = "local,size=BYTES")]
    pub cache_config: Option<CacheConfig>,
}

/// `--cache-config`: Triton's `local,size=BYTES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// The most bytes it holds.
    pub size: u64,
}

/// Everything that decides an answer, in a form in which equal requests are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Arc<[u8]>);

/// The result of a look-up and its duration, as Triton counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It was there, or made by an identical request that was in flight.
    Hit(Duration),
    /// It had to be computed. The time is that of the look-up and of keeping the answer.
    Miss(Duration),
}

/// An answer that a cache can keep.
pub trait Cacheable: Clone {
    /// A copy to keep, in memory of its own: an output may be a slice of a whole batch's.
    fn kept(&self) -> Self;

    /// Its outputs.
    fn outputs(&self) -> &[Tensor];
}

/// The answer of a step.
#[derive(Clone, Debug)]
pub struct StepAnswer {
    /// Its outputs, under the model's names.
    pub outputs: Vec<Tensor>,
    /// The tokens of its texts, and how many texts were cut.
    pub texts: Option<TextFacts>,
    /// The same of each of several texts.
    pub each_text: Vec<TextFacts>,
}

/// The cache.
pub struct ResponseCache<A> {
    cache: Cache<Key, Arc<A>, Weight, DefaultHashBuilder>,
    coalesce: bool,
}

#[derive(Clone)]
struct Weight;

// === impl CacheConfig ===

impl FromStr for CacheConfig {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheConfig, String> {
        let (name, settings) = text.split_once(',').unwrap_or((text, ""));
        if name.trim() != "local" {
            return Err(format!("there is no cache '{}': only 'local' is built in", name.trim()));
        }
        let size = settings.trim().strip_prefix("size=").and_then(|size| size.trim().parse().ok());
        match size {
            Some(size) if size > 0 => Ok(CacheConfig { size }),
            _ => Err(format!("cache 'local' needs size=BYTES, found '{settings}'")),
        }
    }
}

// === impl Key ===

impl Key {
    /// The key of a request for `outputs` of `model`. The order of inputs does not count. `origin` says what answers come from: another
    /// text where the model's files, or how it is served, have changed.
    pub fn new(
        model: &ModelKey,
        origin: impl Display,
        inputs: &[Tensor],
        outputs: &[RequestedOutput],
        parameters: &Parameters,
    ) -> Key {
        let mut inputs: Vec<&Tensor> = inputs.iter().collect();
        inputs.sort_unstable_by_key(|input| input.name());
        // How long a client waits does not change the answer.
        let parameters: Vec<_> = parameters.iter().filter(|(name, _)| !TIMEOUTS.contains(&name.as_str())).collect();
        let mut head = format!("{model:?} {:?} {outputs:?} {parameters:?}", origin.to_string());
        for input in &inputs {
            // Writing to a string cannot fail. Debug quotes names, so that none can look like what follows it.
            let _ = write!(head, " {:?} {} {} {}", input.name(), input.datatype(), input.shape(), input.data().len());
        }
        let mut key = Vec::with_capacity(8 + head.len() + inputs.iter().map(|i| i.data().len()).sum::<usize>());
        key.extend_from_slice(&(head.len() as u64).to_le_bytes());
        key.extend_from_slice(head.as_bytes());
        inputs.iter().for_each(|input| key.extend_from_slice(input.data()));
        Key(key.into())
    }

    /// A key that is the digest of all that decides an answer. The digest has to be of a kind without known collisions.
    pub fn of_digest(digest: &[u8]) -> Key {
        Key(digest.into())
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

// === impl Cacheable ===

/// Tensors in memory of their own.
pub fn own(tensors: &[Tensor]) -> Vec<Tensor> {
    let own = |tensor: &Tensor| {
        let data = Bytes::copy_from_slice(tensor.data());
        Tensor::new(tensor.name(), tensor.datatype(), tensor.shape().clone(), data)
            .expect("the same bytes fit the same shape")
    };
    tensors.iter().map(own).collect()
}

impl Cacheable for InferResponse {
    fn kept(&self) -> InferResponse {
        InferResponse {
            id: String::new(),
            model: self.model.clone(),
            outputs: own(&self.outputs),
            parameters: self.parameters.clone(),
            shared: Default::default(),
            ledger: self.ledger.without_times(),
        }
    }

    fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }
}

impl Cacheable for StepAnswer {
    fn kept(&self) -> StepAnswer {
        StepAnswer { outputs: own(&self.outputs), ..self.clone() }
    }

    fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }
}

// === impl ResponseCache ===

impl<A: Cacheable> ResponseCache<A> {
    /// An empty cache. With `coalesce`, identical requests in flight are computed once.
    pub fn new(config: CacheConfig, coalesce: bool) -> ResponseCache<A> {
        let options = OptionsBuilder::new()
            // Each of several shards would have its share of the bytes, and refuse larger answers.
            .shards(1)
            .estimated_items_capacity((config.size / USUAL_ANSWER).clamp(16, 1 << 20) as usize)
            .weight_capacity(config.size)
            .build()
            .expect("all of what it needs is set");
        let cache = Cache::with_options(options, Weight, DefaultHashBuilder::default(), DefaultLifecycle::default());
        ResponseCache { cache, coalesce }
    }

    /// The answer that is kept under `key`.
    pub fn get(&self, key: &Key) -> Option<A> {
        self.cache.get(key).map(|found| A::clone(&found))
    }

    /// The bytes that its entries are assumed to occupy.
    pub fn bytes(&self) -> u64 {
        self.cache.weight()
    }

    /// Keeps an answer.
    pub fn keep(&self, key: Key, answer: &A) {
        self.cache.insert(key, Arc::new(answer.kept()));
    }

    /// The answer of `key`, without an id: the one that is kept, or what `compute` gives, with whether it may be kept. Waits for an identical
    /// request, where that is wanted, no longer than `timeout`; if that one fails, this one is computed.
    pub async fn answer(
        &self,
        key: Key,
        timeout: Duration,
        compute: impl Future<Output = Result<(A, bool), InferError>>,
    ) -> Result<(A, Lookup), InferError> {
        let started = Instant::now();
        let mut guard = None;
        let found = match self.coalesce {
            false => self.cache.get(&key),
            true => match tokio::time::timeout(timeout, self.cache.get_value_or_guard_async(&key)).await {
                Ok(Ok(found)) => Some(found),
                Ok(Err(first)) => {
                    guard = Some(first);
                    None
                }
                Err(_) => return Err(InferError::unavailable("Request timeout expired")),
            },
        };
        let looked_up = started.elapsed();
        if let Some(found) = found {
            return Ok((A::clone(&found), Lookup::Hit(looked_up)));
        }
        // A guard that is dropped, also because this request was cancelled, lets the next one compute.
        let (answer, may_be_kept) = compute.await?;
        let keeping = Instant::now();
        match guard {
            _ if !may_be_kept => {}
            // Whoever waits gets it, even if it is too large to be kept.
            Some(guard) => drop(guard.insert(Arc::new(answer.kept()))),
            None => self.keep(key, &answer),
        }
        Ok((answer, Lookup::Miss(looked_up + keeping.elapsed())))
    }
}

// === impl Weight ===

impl<A: Cacheable> Weighter<Key, Arc<A>> for Weight {
    fn weight(&self, key: &Key, answer: &Arc<A>) -> u64 {
        let outputs: usize = answer.outputs().iter().map(|output| output.data().len()).sum();
        ENTRY_OVERHEAD + key.0.len() as u64 + outputs as u64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use trireme_inference::Ledger;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn model() -> ModelKey {
        ModelKey { name: "m".into(), version: 1 }
    }

    fn tensor(name: &str, values: &[i64]) -> Tensor {
        Tensor::from_values(name, [values.len() as i64], values.to_vec()).unwrap()
    }

    fn key(values: &[i64]) -> Key {
        Key::new(&model(), 0, &[tensor("x", values)], &[], &Parameters::default())
    }

    fn answer(values: &[i64]) -> InferResponse {
        InferResponse {
            id: "the first one's".into(),
            model: model(),
            parameters: Parameters::default(),
            outputs: vec![tensor("y", values)],
            shared: Default::default(),
            ledger: Ledger::default(),
        }
    }

    /// Asks for the answer to `value`, which is itself; counts how often it is computed.
    async fn ask(cache: &ResponseCache<InferResponse>, computed: &AtomicUsize, value: i64) -> Result<i64, InferError> {
        let compute = async {
            computed.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            if value < 0 { Err(InferError::internal("negative")) } else { Ok((answer(&[value]), true)) }
        };
        let (answer, _) = cache.answer(key(&[value]), SECOND, compute).await?;
        Ok(answer.outputs[0].values::<i64>().unwrap()[0])
    }

    #[test]
    fn tritons_flag_is_read() {
        assert_eq!("local,size=1048576".parse(), Ok(CacheConfig { size: 1 << 20 }));
        let fail = |text: &str| text.parse::<CacheConfig>().unwrap_err();
        assert_eq!(fail("redis,host=x"), "there is no cache 'redis': only 'local' is built in");
        for bad in ["local", "local,size=0", "local,size=x", "local,bytes=1"] {
            assert!(fail(bad).starts_with("cache 'local' needs size=BYTES"), "{bad}");
        }
    }

    #[test]
    fn whatever_decides_an_answer_is_in_its_key() {
        let output = |name: &str, classification| RequestedOutput { name: name.into(), classification };
        let make_of = |version, loaded, inputs: &[Tensor], outputs: &[RequestedOutput], parameters: &[(&str, &str)]| {
            let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
            Key::new(&ModelKey { name: "m".into(), version }, loaded, inputs, outputs, &parameters)
        };
        let make = |version, inputs: &[Tensor], outputs: &[RequestedOutput], parameters: &[(&str, &str)]| {
            make_of(version, 0, inputs, outputs, parameters)
        };
        let (x, y) = (tensor("x", &[1]), tensor("y", &[2]));
        let base = make(1, &[x.clone(), y.clone()], &[output("o", 0)], &[]);
        assert_eq!(
            base,
            make(1, &[y.clone(), x.clone()], &[output("o", 0)], &[]),
            "the order of inputs does not count"
        );
        let one_by_two = Tensor::from_values("x", [1, 1], vec![1i64]).unwrap();
        for other in [
            make(2, &[x.clone(), y.clone()], &[output("o", 0)], &[]),
            make(1, &[x.clone(), tensor("y", &[3])], &[output("o", 0)], &[]),
            make(1, &[tensor("x", &[2]), tensor("y", &[1])], &[output("o", 0)], &[]),
            make(1, &[one_by_two, y.clone()], &[output("o", 0)], &[]),
            make(1, std::slice::from_ref(&x), &[output("o", 0)], &[]),
            make(1, &[x.clone(), y.clone()], &[output("o", 1)], &[]),
            make(1, &[x.clone(), y.clone()], &[], &[]),
            make_of(1, 1, &[x.clone(), y.clone()], &[output("o", 0)], &[]),
            make(1, &[x, y], &[output("o", 0)], &[("p", "v")]),
        ] {
            assert_ne!(base, other);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_computed_once_and_errors_are_not_kept() {
        for coalesce in [false, true] {
            let (cache, computed) = (ResponseCache::new(CacheConfig { size: 1 << 20 }, coalesce), AtomicUsize::new(0));
            for _ in 0..3 {
                assert_eq!(ask(&cache, &computed, 7).await.unwrap(), 7);
            }
            assert_eq!(computed.load(Ordering::SeqCst), 1);
            let lookup = async |value| {
                cache.answer(key(&[value]), SECOND, async { Ok((answer(&[value]), true)) }).await.unwrap().1
            };
            assert!(matches!(lookup(7).await, Lookup::Hit(_)));
            assert!(matches!(lookup(8).await, Lookup::Miss(_)));
            for _ in 0..2 {
                assert_eq!(ask(&cache, &computed, -1).await.unwrap_err().message, "negative");
            }
            assert_eq!(computed.load(Ordering::SeqCst), 3);
            for _ in 0..2 {
                let (_, lookup) = cache.answer(key(&[9]), SECOND, async { Ok((answer(&[9]), false)) }).await.unwrap();
                assert!(matches!(lookup, Lookup::Miss(_)), "it was not to be kept");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn identical_requests_in_flight_are_computed_once_by_setting() {
        for (coalesce, expected) in [(true, 1), (false, 4)] {
            let (cache, computed) = (ResponseCache::new(CacheConfig { size: 1 << 20 }, coalesce), AtomicUsize::new(0));
            let ask = || ask(&cache, &computed, 7);
            let answers = tokio::join!(ask(), ask(), ask(), ask());
            assert_eq!([answers.0, answers.1, answers.2, answers.3].map(Result::unwrap), [7; 4]);
            assert_eq!(computed.load(Ordering::SeqCst), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn when_the_first_goes_away_or_fails_the_next_computes() {
        let (cache, computed) = (ResponseCache::new(CacheConfig { size: 1 << 20 }, true), AtomicUsize::new(0));
        let first = tokio::time::timeout(Duration::from_millis(10), ask(&cache, &computed, 7));
        let (first, second) = tokio::join!(first, ask(&cache, &computed, 7));
        assert!(first.is_err(), "its client went away");
        assert_eq!(second.unwrap(), 7);
        assert_eq!(computed.load(Ordering::SeqCst), 2);
        // A request waits no longer than its own time.
        let never = cache.answer(key(&[9]), SECOND, std::future::pending());
        let waiter = cache.answer(key(&[9]), Duration::from_millis(5), std::future::pending());
        let (_, waiter) = tokio::join!(tokio::time::timeout(Duration::from_millis(20), never), waiter);
        assert_eq!(waiter.unwrap_err().message, "Request timeout expired");
    }

    #[test]
    fn the_answer_of_a_step_keeps_what_was_said_of_its_texts() {
        let cache = ResponseCache::new(CacheConfig { size: 1 << 20 }, false);
        let texts = Some(TextFacts { tokens: 9, truncated: 1, windows: 2 });
        let each_text = vec![TextFacts { tokens: 4, ..TextFacts::default() }; 2];
        assert!(cache.get(&key(&[1])).is_none());
        cache.keep(key(&[1]), &StepAnswer { outputs: vec![tensor("y", &[5])], texts, each_text: each_text.clone() });
        let StepAnswer { outputs, texts: found, each_text: each } = cache.get(&key(&[1])).expect("it was kept");
        assert_eq!((outputs[0].values::<i64>().unwrap().into_owned(), found, each), (vec![5], texts, each_text));
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_bounded() {
        let cache = ResponseCache::new(CacheConfig { size: 10_000 }, false);
        let keep = |value: i64, count: usize| {
            let answer = answer(&vec![value; count]);
            cache.answer(key(&[value]), SECOND, async { Ok((answer, true)) })
        };
        for value in 0..100 {
            keep(value, 100).await.unwrap();
        }
        assert!(cache.cache.weight() <= 10_000, "{}", cache.cache.weight());
        assert!((1..100).contains(&cache.cache.len()));
        keep(1000, 10_000).await.unwrap();
        assert!(cache.cache.weight() <= 10_000, "what is larger than all is not kept");
    }
}
