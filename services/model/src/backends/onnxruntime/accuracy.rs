//! `accuracy_level` `auto`: multiplications by weights of 4 or 8 bits (`MatMulNBits`) whose graph leaves their precision open compute in int8, if that is
//! precise enough and faster.
//!
//! ONNX Runtime reads the level from the graph's nodes alone: `session.qdq_matmulnbits_accuracy_level` is for nodes that it fuses by itself. Without a level
//! its CPU provider unpacks the weights and computes in fp32. So the sessions are made of a copy of the graph whose nodes have level 4 (`levels`).

use std::path::Path;

use ort::environment::Environment;
use trireme_engine::{LoadError, ModelSource, doing};
use trireme_model_repository::ModelConfig;

use super::accelerators::{Accelerators, InstanceDevice};
use super::auto::{self, Chosen, Found, Trial};
use super::cost_cache::Entry;
use super::levels::{AccuracyLevel, Edits, LEVEL, Levelled};
use super::options::OnnxRuntimeOptions;
use super::settings::{PrecisionCheck, Settings};
use crate::batcher::Declaration;

/// The lowest accepted cosine to the graph as it is. Weights of 4 bits alone turn the vectors of all-MiniLM-L6-v2 to 0.95, and activations of 8 bits turn those to
/// 0.9996.
const MIN_COSINE: f64 = 0.999;

/// Makes the choice for a model whose `settings` ask for it: the settings that are returned have the graph that serves.
pub fn choose(
    source: &ModelSource<'_>,
    config: &ModelConfig,
    settings: Settings,
    options: &OnnxRuntimeOptions,
    environment: &Environment,
    path: &Path,
) -> Result<Chosen, LoadError> {
    let model = config.name.as_str();
    let as_it_is = |settings| Ok(Chosen { settings, measured: None });
    let on_cpu = settings.places.iter().all(|place| *place == InstanceDevice::Cpu);
    let is_wanted = settings.accuracy_level == AccuracyLevel::Auto && on_cpu;
    if !is_wanted || settings.accelerators != Accelerators::default() {
        return as_it_is(settings);
    }
    let Some(declaration) = Declaration::parse(config)? else { return as_it_is(settings) };
    // A graph that cannot be read is an error where its session is made.
    let Some(edits) = Edits::find(path, LEVEL).ok().filter(|edits| edits.nodes > 0) else { return as_it_is(settings) };
    let kept = options.cost_model_cache.as_deref().map(|directory| {
        let circumstances = format!("accuracy level {LEVEL} {settings:?} {declaration:?} {}", ort::info());
        Entry::new(directory, model, path, &circumstances)
    });
    let known = kept.as_ref().and_then(Entry::read_rates);
    let levelled = || Levelled::make(model, &edits, path, options.model_cache.as_deref());
    let told = |name: &str| config.parameters.get(name).map(|told| told.trim());
    let min_cosine = told("precision_min_cosine").and_then(|told| told.parse().ok()).unwrap_or(MIN_COSINE);
    let is_checked = told("precision_check") != Some("off");
    let precision = is_checked.then_some(PrecisionCheck { min_cosine, refuse: true });
    let candidate = |levelled| Settings { levelled: Some(levelled), precision, ..settings.clone() };
    let (rates, plain, other) = match known {
        Some(rates) => (rates, None, None),
        None => {
            doing("measuring whether its packed weights are multiplied in int8");
            let levelled = match levelled() {
                Ok(levelled) => levelled,
                Err(reason) => {
                    tracing::warn!(
                        model,
                        reason,
                        "no graph with another accuracy_level can be made: the graph serves as it is"
                    );
                    return as_it_is(settings);
                }
            };
            let candidate = candidate(levelled);
            let trial = Trial {
                source,
                config,
                declaration: &declaration,
                options,
                environment,
                path,
                other: "accuracy_level 4",
            };
            let Found { rates, plain, other } = match trial.run(&settings, &candidate) {
                Ok(found) => found,
                // A fault of the model itself is an error of its load.
                Err(error) => {
                    tracing::info!(model, %error, "the accuracy level cannot be measured: the graph serves as it is");
                    return as_it_is(settings);
                }
            };
            (rates, plain, other.map(|other| (candidate, other)))
        }
    };
    if let (None, Some(Err(error))) = (known, kept.map(|entry| entry.write_rates(rates))) {
        tracing::warn!(model, %error, "the choice of the accuracy level could not be kept");
    }
    let pays = auto::pays(rates);
    tracing::info!(
        model,
        nodes = edits.nodes,
        accuracy_level = if pays { LEVEL } else { 0 },
        source = if known.is_some() { "cache" } else { "measured" },
        graph_tokens_per_second = rates.plain.round(),
        int8_tokens_per_second = rates.other.round(),
        "accuracy level of packed weights chosen"
    );
    match (pays, other) {
        (false, _) => Ok(Chosen { settings, measured: plain }),
        (true, Some((candidate, measured))) => {
            let settings = Settings { precision: settings.precision, ..candidate };
            Ok(Chosen { settings, measured: Some(measured) })
        }
        (true, None) => match levelled() {
            Ok(levelled) => {
                let settings = Settings { levelled: Some(levelled), ..settings };
                Ok(Chosen { settings, measured: None })
            }
            Err(reason) => {
                tracing::warn!(
                    model,
                    reason,
                    "no graph with another accuracy_level can be made: the graph serves as it is"
                );
                as_it_is(settings)
            }
        },
    }
}
