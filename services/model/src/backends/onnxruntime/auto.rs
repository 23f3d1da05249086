//! `accelerator` `auto`: which of the installed providers serves a model, by a measurement at its first load.
//!
//! The plain provider goes first: its outputs and its speed are kept. OpenVINO has to pass the precision check against these outputs, and
//! to be faster. The session that was measured then serves. A model with several instances will be in memory for each of them, so its
//! plain session stays until the choice is made. The plain session of a model with one instance goes before OpenVINO's is made. Such a
//! model is in memory once, and its plain session is made again only if OpenVINO does not serve. The choice is kept beside the costs of
//! runs, and made again when the model's files, its configuration, the library or the processor change.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ort::environment::Environment;
use ort::session::Session;
use trireme_engine::{LoadError, ModelInstance, ModelSource, doing, warmup};
use trireme_model_repository::ModelConfig;

use super::accelerators::AcceleratorKind;
use super::cost_cache::{Entry, Rates};
use super::instance::OnnxInstance;
use super::options::OnnxRuntimeOptions;
use super::precision::{self, Expected};
use super::schema::Schema;
use super::sessions::Sessions;
use super::settings::{PrecisionCheck, Settings};
use super::shared::InstanceSession;
use super::{measure, providers};
use crate::batcher::Declaration;
use crate::cpus;

/// An accelerator is chosen if it does this many times the plain provider's tokens per second: the plain one has instances for bulk requests.
const PAYS: f64 = 1.05;

/// Rows and lengths of the runs that are timed: alone, and in batches.
const SIZES: [(u32, u32); 4] = [(1, 16), (1, 64), (8, 32), (4, 128)];

/// The least time of so many runs counts; a first run is not timed.
const RUNS: usize = 4;

/// Of a slow model fewer sizes and runs are timed: nothing further begins after this time, except each size's first timed run.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// Whether the log has why there is no accelerator to measure.
static SAID: AtomicBool = AtomicBool::new(false);

/// The word for the plain provider, in the configuration and the cache.
const PLAIN: &str = "none";

/// The provider that serves a model.
pub struct Chosen {
    /// The settings of its sessions.
    pub settings: Settings,
    /// The session that was measured; `None` if nothing was, or if it went before another one was made.
    pub measured: Option<Measured>,
}

/// A session that was measured, and the maker of more like it.
pub struct Measured {
    pub sessions: Sessions,
    /// `None` where the sessions that serve are of the optimised graph that this one wrote.
    pub session: Option<Session>,
}

/// Makes the choice for a model whose `settings` ask for it. `config` then names the accelerator, and the settings that are returned have it.
pub fn choose(
    source: &ModelSource<'_>,
    config: &mut ModelConfig,
    settings: Settings,
    options: &OnnxRuntimeOptions,
    environment: &Environment,
    path: &Path,
) -> Result<Chosen, LoadError> {
    let unmeasured = |settings| Ok(Chosen { settings, measured: None });
    let Some(declaration) = Declaration::parse(config)?.filter(|_| settings.auto) else {
        return unmeasured(settings);
    };
    let model = config.name.clone();
    match providers::has_openvino(environment, options.openvino_library.as_deref()) {
        Ok(true) => {}
        Ok(false) => return unmeasured(settings),
        Err(reason) => {
            // It is a fault of the machine, and all models have it.
            if !SAID.swap(true, Ordering::Relaxed) {
                tracing::warn!(reason, "the plain provider serves the models: there is no other to measure");
            }
            return unmeasured(settings);
        }
    }
    let mut accelerated = config.clone();
    let name = AcceleratorKind::OpenVino.name();
    accelerated.optimization.cpu_accelerators = vec![(name.to_owned(), BTreeMap::new())];
    let candidate = Settings::new(&accelerated, options, cpus::available(), &[])?;
    let kept = options.cost_model_cache.as_deref().map(|directory| {
        let circumstances = format!("{settings:?} {declaration:?} {:?} {}", options.openvino_library, ort::info());
        Entry::new(directory, &model, path, &format!("accelerator {circumstances}"))
    });
    let known = kept.as_ref().and_then(Entry::read_rates);
    let (found, from) = match known {
        Some(rates) => (Found { rates, plain: None, other: None }, "cache"),
        None => {
            doing("measuring which provider is the fastest");
            let other = AcceleratorKind::OpenVino.provider();
            let trial = Trial { source, config, declaration: &declaration, options, environment, path, other };
            (trial.run(&settings, &candidate)?, "measured")
        }
    };
    let Found { rates, plain, other } = found;
    if let (None, Some(Err(error))) = (known, kept.map(|entry| entry.write_rates(rates))) {
        tracing::warn!(model, %error, "the choice of the accelerator could not be kept");
    }
    let pays = pays(rates);
    tracing::info!(
        model,
        accelerator = if pays { name } else { PLAIN },
        source = from,
        plain_tokens_per_second = rates.plain.round(),
        openvino_tokens_per_second = rates.other.round(),
        "accelerator chosen"
    );
    if !pays {
        return Ok(Chosen { settings, measured: plain });
    }
    *config = accelerated;
    Ok(Chosen { settings: candidate.checked(), measured: other })
}

/// Whether the other provider serves.
pub fn pays(rates: Rates) -> bool {
    rates.other > 0.0 && rates.other >= PAYS * rates.plain
}

/// The seconds of a run of each of [`SIZES`]; `None` for those that were not timed.
type Timed = [Option<f64>; SIZES.len()];

/// The rates in the sizes that both providers ran, of so many `tokens`.
fn rates(tokens: [u32; SIZES.len()], plain: &Timed, other: &Timed) -> Rates {
    let both = plain.iter().zip(other).map(|(plain, other)| plain.zip(*other));
    let sums = both.zip(tokens).fold([0.0; 3], |[sum, plain, other], (seconds, tokens)| match seconds {
        Some((own, its)) => [sum + f64::from(tokens), plain + own, other + its],
        None => [sum, plain, other],
    });
    let [sum, plain, other] = sums;
    let rate = |seconds: f64| if seconds > 0.0 { sum / seconds } else { 0.0 };
    Rates { plain: rate(plain), other: rate(other) }
}

/// A model that is tried with one provider, or form of its graph, after the other.
pub struct Trial<'a> {
    pub source: &'a ModelSource<'a>,
    pub config: &'a ModelConfig,
    pub declaration: &'a Declaration,
    pub options: &'a OnnxRuntimeOptions,
    pub environment: &'a Environment,
    /// The model's file.
    pub path: &'a Path,
    /// The name of the candidate, for messages.
    pub other: &'static str,
}

/// The result of a trial, with the sessions that are still there.
pub struct Found {
    /// The rate of a provider that does not run the model, or not precisely enough, is 0.
    pub rates: Rates,
    pub plain: Option<Measured>,
    pub other: Option<Measured>,
}

/// An instance on trial.
struct OnTrial {
    sessions: Sessions,
    instance: OnnxInstance,
    /// Whether its session wrote the optimised model of which the others are made.
    wrote: bool,
}

// === impl OnTrial ===

impl OnTrial {
    fn into_measured(self) -> Measured {
        let session = Some(self.instance).filter(|_| !self.wrote).and_then(|one| one.into_session().into_own());
        Measured { sessions: self.sessions, session }
    }
}

// === impl Trial ===

impl Trial<'_> {
    /// Runs the model with the settings `plain`, and then with `candidate`.
    pub fn run(&self, plain: &Settings, candidate: &Settings) -> Result<Found, LoadError> {
        let model = &self.config.name;
        let samples = warmup::samples(self.config, self.source.model_path)?;
        let samples = samples.into_iter().map(|(_, request)| request).collect();
        let stays = plain.places.len() > 1;
        let mut own = match stays {
            true => self.open(plain, self.options)?,
            // Where no session follows, none shares its weights or needs its optimised graph.
            false => self.open(
                &Settings { share_weights: false, ..plain.clone() },
                &OnnxRuntimeOptions { model_cache: None, ..self.options.clone() },
            )?,
        };
        let expected = Expected::new(self.config, samples, &mut own.instance)?;
        let timed = self.timed(&mut own.instance, None);
        let plain = Some(own).filter(|_| stays).map(OnTrial::into_measured);
        match self.try_other(candidate, &expected, &timed) {
            Ok((other_timed, other)) => {
                let rates = rates(self.tokens(), &timed, &other_timed);
                Ok(Found { rates, plain, other: Some(other) })
            }
            Err(error) => {
                tracing::info!(model, "{} does not serve this model: {error}", self.other);
                let rates = Rates { other: 0.0, ..rates(self.tokens(), &timed, &timed) };
                Ok(Found { rates, plain, other: None })
            }
        }
    }

    /// Compares the outputs of the candidate, and times it.
    fn try_other(
        &self,
        candidate: &Settings,
        expected: &Expected,
        plain: &Timed,
    ) -> Result<(Timed, Measured), LoadError> {
        let mut its = self.open(&candidate.checked(), self.options)?;
        if let Some(check) = candidate.precision {
            let check = PrecisionCheck { refuse: true, ..check };
            precision::check(self.config, check, expected, self.other, &mut its.instance)?;
        }
        let timed = self.timed(&mut its.instance, Some(plain));
        Ok((timed, its.into_measured()))
    }

    /// An instance of the first session.
    fn open(&self, settings: &Settings, options: &OnnxRuntimeOptions) -> Result<OnTrial, LoadError> {
        let model = &self.config.name;
        let made = Sessions::prepare_and_make(model, self.environment, settings, options, self.path);
        let (sessions, session, wrote) = made.map_err(|reason| LoadError::Backend { model: model.clone(), reason })?;
        let schema = Schema::new(model, session.inputs(), session.outputs())?;
        schema.check(self.config)?;
        let padding = Some(self.declaration.padding.clone());
        let instance = OnnxInstance::new(self.config, &schema, InstanceSession::Own(session), padding, None);
        Ok(OnTrial { sessions, instance, wrote })
    }

    /// The sizes as far as the model takes so many rows.
    fn sizes(&self) -> [(u32, u32); SIZES.len()] {
        SIZES.map(|(rows, length)| (rows.min(self.declaration.max_rows), length))
    }

    fn tokens(&self) -> [u32; SIZES.len()] {
        self.sizes().map(|(rows, length)| rows * length)
    }

    /// Times the sizes that the model takes: those of `known`, or as many as there is time for.
    fn timed(&self, instance: &mut OnnxInstance, known: Option<&Timed>) -> Timed {
        let _alone = measure::alone();
        let began = Instant::now();
        let mut timed = Timed::default();
        for (at, (rows, length)) in self.sizes().into_iter().enumerate() {
            let is_wanted = known.map_or_else(|| began.elapsed() < TIME_LIMIT, |known| known[at].is_some());
            let Some(Ok(request)) = is_wanted.then(|| measure::request(self.config, self.declaration, rows, length))
            else {
                continue;
            };
            let mut run = || {
                let begun = Instant::now();
                let ran = instance.execute(std::slice::from_ref(&request)).pop();
                ran.is_some_and(|ran| ran.is_ok()).then(|| begun.elapsed().as_secs_f64())
            };
            if run().is_none() {
                continue;
            }
            let runs = (0..RUNS).take_while(|run| *run == 0 || began.elapsed() < TIME_LIMIT);
            timed[at] = runs.filter_map(|_| run()).min_by(f64::total_cmp);
        }
        timed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_compared_in_the_sizes_that_both_ran() {
        let tokens = [16, 64, 256, 512];
        let plain = [Some(0.01), Some(0.03), Some(0.12), None];
        let found = rates(tokens, &plain, &[Some(0.02), Some(0.02), None, None]);
        assert_eq!((found.plain.round(), found.other.round()), (2000.0, 2000.0));
        assert_eq!(rates(tokens, &plain, &Timed::default()), Rates { plain: 0.0, other: 0.0 });
    }

    #[test]
    fn the_other_provider_has_to_be_faster() {
        for (plain, other, expected) in [(100.0, 106.0, true), (100.0, 104.0, false), (0.0, 0.0, false)] {
            assert_eq!(pays(Rates { plain, other }), expected, "{plain} {other}");
        }
    }
}
