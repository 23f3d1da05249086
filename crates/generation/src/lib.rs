//! `backend: "generation"`: encoder-decoder models that generate text, in the layout of Hugging Face's ONNX export.
//!
//! Token ids go in, generated ids come out; the loop, the search and the key-value cache are here. An instance works
//! step by step: requests join and leave between steps. docs/generation.md is the documentation for users.
//!
//! Pure: [`settings`], [`options`], [`processors`], [`warpers`], [`search`], [`beams`], [`scheduler`], [`random`]. With
//! ONNX Runtime: [`graphs`], [`values`], [`instance`]. Not here: tokenizing, languages, decoding of ids.

mod beams;
mod files;
mod graphs;
mod instance;
mod options;
mod processors;
mod random;
mod request;
mod scheduler;
mod search;
mod settings;
mod values;
mod warpers;

use std::sync::Arc;

use serde_json::{Map, Value};
use trireme_engine::{Backend, Instance, LoadError, LoadedModel, ModelSource, StepwiseInstance, policy, warmup};
use trireme_model_repository::{AutoComplete, ModelConfig};

use files::ModelFiles;
use graphs::Graphs;
use instance::Generator;
use request::Format;
use settings::{Limits, OptionError, Settings};

pub use graphs::OpenGraph;
pub use request::{EMITTED, FINAL, GENERATED, SCORES};

/// Rows of the decoder's batch without `max_rows`: each beam and each sample takes one.
const MAX_ROWS: usize = 32;
/// The longest text and sequence of models that do not set a limit (T5's positions are relative).
const LONGEST: usize = 4096;

/// Makes the sessions of models' graphs, by ONNX Runtime's library and its settings. The service that has these implements it.
pub trait Sessions: Send + Sync {
    /// Reads the session settings in `config`; the result opens the graphs of this model. Settings that are impossible for
    /// its graphs are refused.
    fn of(&self, config: &ModelConfig) -> Result<OpenGraph, LoadError>;
}

/// The generation backend.
pub struct Generation {
    sessions: Box<dyn Sessions>,
}

// === impl Generation ===

impl Generation {
    /// The backend; loads nothing yet.
    pub fn new(sessions: impl Sessions + 'static) -> Generation {
        Generation { sessions: Box::new(sessions) }
    }
}

impl Backend for Generation {
    fn name(&self) -> &'static str {
        "generation"
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        let mut config = source.config.clone();
        if source.auto_complete {
            let (inputs, outputs) = request::tensors(config.max_batch_size > 0);
            config
                .complete(AutoComplete { inputs, outputs, default_max_batch_size: 0 })
                .map_err(|error| LoadError::Config(error.to_string()))?;
        }
        request::check_config(&config)?;
        let instances = source.cpu_instances()?;
        let files = ModelFiles::find(&config, source.version_path)?;
        let model_config = files::read_json(&config.name, &files.config)?;
        let defaults = defaults(&config, &files, &model_config)?;
        let open = self.sessions.of(&config)?;

        let mut loaded: Vec<Instance> = Vec::new();
        for _ in 0..instances {
            let graphs = Graphs::open(&config.name, &files, &open)?;
            let format = format(&config, &model_config, graphs.vocabulary, defaults.clone())?;
            let mut generator: Box<dyn StepwiseInstance> = Box::new(Generator::new(graphs, format));
            warmup::run_stepwise(&config, source.model_path, generator.as_mut())?;
            loaded.push(Instance::from(generator));
        }
        let policy = policy(&config);
        let canary = warmup::first(&config, source.model_path)?;
        Ok(LoadedModel {
            config: Arc::new(config),
            instances: loaded,
            background: Vec::new(),
            guests: Vec::new(),
            policy,
            canary,
        })
    }
}

/// The settings of requests without options of their own.
fn defaults(
    config: &ModelConfig,
    files: &ModelFiles,
    model_config: &Map<String, Value>,
) -> Result<Settings, LoadError> {
    let model = &config.name;
    let at = |place: String| move |error: OptionError| LoadError::Config(format!("model '{model}': {place}{error}"));
    let mut settings = Settings::default();
    match &files.generation_config {
        Some(path) => {
            let generation = files::read_json(model, path)?;
            options::apply_file(&mut settings, &generation).map_err(at(format!("{}: ", path.display())))?;
        }
        // Older models have these settings in `config.json`.
        None => {
            let place = format!("{}: ", files.config.display());
            options::apply_file(&mut settings, model_config).map_err(at(place))?;
        }
    }
    if settings.decoder_start_token_id.is_none() {
        settings.decoder_start_token_id = model_config.get("decoder_start_token_id").and_then(Value::as_i64);
    }
    options::apply_config(&mut settings, &config.parameters).map_err(at(String::new()))?;
    Ok(settings)
}

/// The limits and defaults of the model's requests.
fn format(
    config: &ModelConfig,
    model_config: &Map<String, Value>,
    vocabulary: Option<usize>,
    defaults: Settings,
) -> Result<Format, LoadError> {
    let model = &config.name;
    let number = |name: &str| model_config.get(name).and_then(Value::as_u64).map(|number| number as usize);
    let vocabulary = vocabulary.or_else(|| number("vocab_size")).ok_or_else(|| {
        LoadError::Config(format!(
            "model '{model}': neither the decoder's 'logits' nor config.json's 'vocab_size' say how many ids there are"
        ))
    })?;
    let count = |name: &str| match config.parameters.get(name) {
        None => Ok(None),
        Some(text) => {
            text.trim().parse::<usize>().ok().filter(|&count| (1..=65_536).contains(&count)).map(Some).ok_or_else(
                || {
                    LoadError::Config(format!(
                        "model '{model}': parameter '{name}' has to be 1 to 65536, found '{text}'"
                    ))
                },
            )
        }
    };
    let positions = number("max_position_embeddings").unwrap_or(LONGEST);
    let limits = Limits { vocabulary, longest: positions, rows: count("max_rows")?.unwrap_or(MAX_ROWS) };
    defaults.check(&limits).map_err(|error| LoadError::Config(format!("model '{model}': {error}")))?;
    Ok(Format { model: model.clone(), defaults, limits, longest_text: positions, batches: config.max_batch_size > 0 })
}
