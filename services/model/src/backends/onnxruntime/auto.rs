//! `accelerator` `auto`: which of the installed providers serves a model, by a measurement at its first load.
//!
//! The plain provider goes first: its outputs and its speed are kept, and its session is dropped before OpenVINO's is made, so that the model
//! is in memory once. The accelerator has to pass the precision check against the plain outputs, and to be faster. The choice is kept
//! beside the costs of runs, and made again when the model's files, its configuration, the library or the processor change.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ort::environment::Environment;
use ort::session::Session;
use trireme_engine::{LoadError, ModelInstance, ModelSource, doing, warmup};
use trireme_model_repository::ModelConfig;

use super::accelerators::{AcceleratorKind, InstanceDevice};
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

/// Whether the log has why there is no accelerator to measure.
static SAID: AtomicBool = AtomicBool::new(false);

/// The word for the plain provider, in the configuration and the cache.
const PLAIN: &str = "none";

/// Makes the choice for a model whose `settings` ask for it. `config` then names the accelerator, and the settings that are returned have it.
pub fn choose(
    source: &ModelSource<'_>,
    config: &mut ModelConfig,
    settings: Settings,
    options: &OnnxRuntimeOptions,
    environment: &Environment,
    path: &Path,
) -> Result<Settings, LoadError> {
    let Some(declaration) = Declaration::parse(config)?.filter(|_| settings.auto) else { return Ok(settings) };
    let model = config.name.clone();
    match providers::has_openvino(environment, options.openvino_library.as_deref()) {
        Ok(true) => {}
        Ok(false) => return Ok(settings),
        Err(reason) => {
            // It is a fault of the machine, and all models have it.
            if !SAID.swap(true, Ordering::Relaxed) {
                tracing::warn!(reason, "the plain provider serves the models: there is no other to measure");
            }
            return Ok(settings);
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
    let (rates, from) = match known {
        Some(rates) => (rates, "cache"),
        None => {
            doing("measuring which provider is the fastest");
            let trial = Trial { source, config, declaration: &declaration, options, environment, path };
            (trial.measure(&settings, &candidate)?, "measured")
        }
    };
    if let (None, Some(Err(error))) = (known, kept.map(|entry| entry.write_rates(rates))) {
        tracing::warn!(model, %error, "the choice of the accelerator could not be kept");
    }
    let pays = rates.other >= PAYS * rates.plain;
    tracing::info!(
        model,
        accelerator = if pays { name } else { PLAIN },
        source = from,
        plain_tokens_per_second = rates.plain.round(),
        openvino_tokens_per_second = rates.other.round(),
        "accelerator chosen"
    );
    if !pays {
        return Ok(settings);
    }
    *config = accelerated;
    // It was checked when it was chosen.
    Ok(Settings { precision: None, ..candidate })
}

/// A model that is tried with one provider after the other.
struct Trial<'a> {
    source: &'a ModelSource<'a>,
    config: &'a ModelConfig,
    declaration: &'a Declaration,
    options: &'a OnnxRuntimeOptions,
    environment: &'a Environment,
    path: &'a Path,
}

// === impl Trial ===

impl Trial<'_> {
    fn measure(&self, plain: &Settings, candidate: &Settings) -> Result<Rates, LoadError> {
        let model = &self.config.name;
        let failed = |reason: String| LoadError::Backend { model: model.clone(), reason };
        let samples = warmup::samples(self.config, self.source.model_path)?;
        let samples = samples.into_iter().map(|(_, request)| request).collect();
        let mut instance = self.instance(self.session(plain).map_err(failed)?)?;
        let expected = Expected::new(self.config, samples, &mut instance)?;
        let mut rates = Rates { plain: self.rate(&mut instance), other: 0.0 };
        drop(instance);
        let accelerated = self.session(candidate).map_err(failed).and_then(|session| {
            let mut instance = self.instance(session)?;
            if let Some(check) = candidate.precision {
                let check = PrecisionCheck { refuse: true, ..check };
                let provider = AcceleratorKind::OpenVino.provider();
                precision::check(self.config, check, &expected, provider, &mut instance)?;
            }
            Ok(self.rate(&mut instance))
        });
        match accelerated {
            Ok(rate) => rates.other = rate,
            Err(error) => tracing::info!(model, "OpenVINO does not serve this model: {error}"),
        }
        Ok(rates)
    }

    /// A session of the file itself, without the cached model and the shared weights, which are made for the session that serves.
    fn session(&self, settings: &Settings) -> Result<Session, String> {
        let settings = Settings { share_weights: false, ..settings.clone() };
        let options = OnnxRuntimeOptions { model_cache: None, ..self.options.clone() };
        let sessions = Sessions::prepare(&self.config.name, self.environment, &settings, &options, self.path);
        sessions.make(InstanceDevice::Cpu, settings.intra_threads)
    }

    fn instance(&self, session: Session) -> Result<OnnxInstance, LoadError> {
        let schema = Schema::new(&self.config.name, session.inputs(), session.outputs())?;
        schema.check(self.config)?;
        let padding = Some(self.declaration.padding.clone());
        Ok(OnnxInstance::new(self.config, &schema, InstanceSession::Own(session), padding, None))
    }

    /// Tokens per second of the sizes that the model takes; 0 if there is none.
    fn rate(&self, instance: &mut OnnxInstance) -> f64 {
        let _alone = measure::alone();
        let (mut tokens, mut seconds) = (0.0, 0.0);
        for (rows, length) in SIZES {
            let rows = rows.min(self.declaration.max_rows);
            let Ok(request) = measure::request(self.config, self.declaration, rows, length) else { continue };
            let mut run = || {
                let begun = Instant::now();
                let ran = instance.execute(std::slice::from_ref(&request)).pop();
                ran.is_some_and(|ran| ran.is_ok()).then(|| begun.elapsed().as_secs_f64())
            };
            let first = run();
            let least = first.and_then(|_| (0..RUNS).filter_map(|_| run()).min_by(f64::total_cmp));
            if let Some(least) = least {
                tokens += f64::from(rows * length);
                seconds += least;
            }
        }
        if seconds > 0.0 { tokens / seconds } else { 0.0 }
    }
}
