//! `backend: "onnxruntime"`: ONNX models through the ONNX Runtime library, on the CPU.
//!
//! Loading makes one session per instance; sessions share nothing but the process's environment. The library itself is
//! loaded with the first model that needs it, so a process without ONNX models needs none. Models that declare their
//! inputs as paddable ([`batcher::Declaration`]) are batched by length, with costs measured here.

mod cost_cache;
mod costs;
mod instance;
mod library;
mod measure;
mod probe;
mod reshape;
mod schema;
mod sessions;
mod settings;
mod values;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ort::environment::Environment;
use ort::session::Session;
use trireme_runtime::{Backend, BatchPolicy, LoadError, LoadedModel, ModelInstance, ModelSource};

use self::cost_cache::Entry;
use self::instance::OnnxInstance;
use self::schema::Schema;
use self::settings::Settings;
use crate::batcher::{self, Declaration, LengthBatcher};
use crate::{cpus, warmup};

pub use self::cost_cache::default_directory as default_cost_model_cache;
pub(super) use self::sessions::Sessions;

/// File name of a model where the configuration names none, also inside a directory that it names.
const MODEL_FILE: &str = "model.onnx";

/// Options of the process, for all its ONNX models.
#[derive(Clone, Debug)]
pub struct OnnxRuntimeOptions {
    /// The ONNX Runtime library; `None`: `ORT_DYLIB_PATH`, then where the setup script puts it, then the system's.
    pub library: Option<PathBuf>,
    /// Threads within an operator for models that do not say; `None`: the CPUs of the process over the model's instances.
    pub intra_threads: Option<usize>,
    /// Threads between operators for models that do not say; `None`: as many as within one.
    pub inter_threads: Option<usize>,
    /// Directory that keeps what measurements of models found; `None`: they are measured at each load.
    pub cost_model_cache: Option<PathBuf>,
    /// Largest batch of models that can batch and whose configuration leaves it open, in rows; 0 turns that off.
    pub default_max_batch_size: u32,
}

/// The ONNX Runtime backend.
#[derive(Clone, Debug)]
pub struct OnnxRuntime {
    options: OnnxRuntimeOptions,
}

impl Default for OnnxRuntimeOptions {
    fn default() -> Self {
        OnnxRuntimeOptions {
            library: None,
            intra_threads: None,
            inter_threads: None,
            cost_model_cache: None,
            default_max_batch_size: 4,
        }
    }
}

// === impl OnnxRuntime ===

impl OnnxRuntime {
    /// The backend; loads nothing yet.
    pub fn new(options: OnnxRuntimeOptions) -> OnnxRuntime {
        OnnxRuntime { options }
    }
}

impl Backend for OnnxRuntime {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        let mut config = source.config.clone();
        let refused = |reason: String| LoadError::Backend { model: source.config.name.clone(), reason };
        let instances = source.cpu_instances()?;
        let settings = Settings::new(&config, &self.options, cpus::per_instance(cpus::available(), instances))?;
        let path = model_file(source)?;
        let environment =
            library::environment(self.options.library.as_deref()).map_err(|error| refused(error.to_string()))?;
        let new_session =
            || session(&environment, &settings, &path).map_err(|error| refused(one_line(error.message())));

        let first = new_session()?;
        let schema = Schema::new(&config.name, first.inputs(), first.outputs())?;
        if source.auto_complete {
            let found = schema.auto_complete(self.options.default_max_batch_size);
            config.complete(found).map_err(|error| LoadError::Config(error.to_string()))?;
        }
        schema.check(&config)?;
        let declaration = Declaration::parse(&config)?;
        let padding = declaration.as_ref().map(|declaration| &declaration.padding);

        let mut sessions = vec![first];
        for _ in 1..instances {
            sessions.push(new_session()?);
        }
        let mut loaded: Vec<Box<dyn ModelInstance>> = Vec::new();
        for session in sessions {
            let mut instance =
                OnnxInstance::new(&config, &schema, session, padding.cloned(), settings.arena_shrinkage.clone());
            warmup::run(&config, source.model_path, &mut instance)?;
            if let Some(declaration) = declaration.as_ref().filter(|_| loaded.is_empty()) {
                probe::check(&config, declaration, &mut instance)?;
            }
            loaded.push(Box::new(instance));
        }
        let policy: Box<dyn BatchPolicy> = match (&declaration, loaded.first_mut()) {
            (Some(declaration), Some(instance)) => {
                let circumstances = format!("{settings:?} instances={instances} {declaration:?} {}", ort::info());
                let directory = self.options.cost_model_cache.as_deref();
                let kept = directory.map(|directory| Entry::new(directory, &config.name, &path, &circumstances));
                let fit = costs::find(&config, declaration, kept, instance.as_mut());
                Box::new(LengthBatcher::new(declaration, config.dynamic_batching.as_ref(), fit.as_ref()))
            }
            _ => batcher::policy(&config),
        };
        Ok(LoadedModel { config: Arc::new(config), instances: loaded.into_iter().map(Into::into).collect(), policy })
    }
}

fn session(environment: &Environment, settings: &Settings, path: &Path) -> ort::Result<Session> {
    settings.builder(environment)?.commit_from_file(path)
}

/// The version's model file: the one that the configuration names, or the one in the directory that it names (where
/// external weights lie beside it).
fn model_file(source: &ModelSource<'_>) -> Result<PathBuf, LoadError> {
    let name = match source.config.default_model_filename.as_str() {
        "" => MODEL_FILE,
        name => name,
    };
    let mut path = source.version_path.join(name);
    if path.is_dir() {
        path.push(MODEL_FILE);
    }
    match std::fs::File::open(&path) {
        Ok(_) => Ok(path),
        Err(error) => Err(LoadError::File { model: source.config.name.clone(), path, source: error }),
    }
}

/// The library's messages span lines and may quote whole tensors.
pub(super) fn one_line(message: &str) -> String {
    const LONGEST: usize = 600;
    let mut line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(LONGEST) {
        line.truncate(end);
        line.push('…');
    }
    line
}

/// Loads the library for tests that make values without a session.
#[cfg(test)]
pub(super) fn for_tests() {
    library::environment(None).unwrap();
}

#[cfg(test)]
mod tests;
