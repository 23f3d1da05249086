//! `backend: "onnxruntime"`: ONNX models through the ONNX Runtime library, on the CPU or with the accelerators that the
//! configuration names.
//!
//! Loading makes one session per instance ([`sessions`]), checks an accelerated one against the plain model
//! ([`precision`]), and runs the warm-up. The library itself is loaded with the first model that needs it, so a process
//! without ONNX models needs none. Models that declare their inputs as paddable ([`batcher::Declaration`]) are batched by
//! length, with costs measured here.

mod accelerators;
mod cost_cache;
mod costs;
mod graph_cache;
mod graphs;
mod instance;
mod layouts;
mod library;
mod measure;
mod precision;
mod probe;
mod providers;
mod reshape;
mod schema;
mod sessions;
mod settings;
mod stop;
mod values;
mod weights;

use std::path::PathBuf;
use std::sync::Arc;

use trireme_runtime::{Backend, BatchPolicy, LoadError, LoadedModel, ModelInstance, ModelSource};

use self::cost_cache::Entry;
use self::instance::{OnnxInstance, Wide};
use self::schema::Schema;
use self::sessions::Sessions;
use self::settings::Settings;
use crate::batcher::{self, Declaration, LengthBatcher, Padding};
use crate::{cpus, warmup};

pub use self::cost_cache::default_directory as default_cost_model_cache;
pub use self::graphs::GraphSessions;

/// File name of a model where the configuration names none, also inside a directory that it names.
const MODEL_FILE: &str = "model.onnx";

/// Options of the process, for all its ONNX models.
#[derive(Clone, Debug)]
pub struct OnnxRuntimeOptions {
    /// The ONNX Runtime library; `None`: `ORT_DYLIB_PATH`, then where the setup script puts it, then the system's.
    pub library: Option<PathBuf>,
    /// The plugin with OpenVINO's execution provider; `None`: where the setup script puts it.
    pub openvino_library: Option<PathBuf>,
    /// Directory that keeps optimised models; `None`: they are optimised at each load.
    pub model_cache: Option<PathBuf>,
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
            openvino_library: None,
            model_cache: None,
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
        let settings = Settings::new(&config, &self.options, cpus::available())?;
        let path = model_file(source)?;
        let environment =
            library::environment(self.options.library.as_deref()).map_err(|error| refused(error.to_string()))?;
        let sessions = Sessions::prepare(&source.config.name, &environment, &settings, &self.options, &path);

        let place = settings.places[0];
        let first = sessions.make(place, settings.intra_threads).map_err(refused)?;
        let schema = Schema::new(&config.name, first.inputs(), first.outputs())?;
        if source.auto_complete {
            let found = schema.auto_complete(self.options.default_max_batch_size);
            config.complete(found).map_err(|error| LoadError::Config(error.to_string()))?;
        }
        schema.check(&config)?;
        let declaration = Declaration::parse(&config)?;
        let padding = declaration.as_ref().map(|declaration| &declaration.padding);
        let new_instance = |session, padding: Option<&Padding>| {
            OnnxInstance::new(&config, &schema, session, padding.cloned(), settings.arena_shrinkage.clone())
        };

        let mut loaded = vec![new_instance(first, padding)];
        for place in &settings.places[1..] {
            let session = sessions.make(*place, settings.intra_threads).map_err(refused)?;
            loaded.push(new_instance(session, padding));
        }
        if let Some(check) = settings.precision {
            // The instances are alike, but for where they run; the plain session goes when the check is over.
            let samples = warmup::samples(&config, source.model_path)?.into_iter().map(|(_, request)| request);
            let mut plain = new_instance(sessions.make_plain().map_err(refused)?, padding);
            let provider = sessions.provider(place);
            precision::check(&config, check, samples.collect(), provider, &mut loaded[0], &mut plain)?;
        }
        for instance in &mut loaded {
            warmup::run(&config, source.model_path, instance)?;
        }
        if let Some(declaration) = &declaration {
            probe::check(&config, declaration, &mut loaded[0])?;
        }
        let policy: Box<dyn BatchPolicy> = match &declaration {
            Some(declaration) => {
                let circumstances = format!("{settings:?} {declaration:?} {}", ort::info());
                let directory = self.options.cost_model_cache.as_deref();
                let kept = directory.map(|directory| Entry::new(directory, &config.name, &path, &circumstances));
                let fit = costs::find(&config, declaration, kept, &mut loaded[0]);
                Box::new(LengthBatcher::new(declaration, config.dynamic_batching.as_ref(), fit.as_ref()))
            }
            None => batcher::policy(&config),
        };
        if let Some(threads) = settings.wide_threads {
            // Last: what was measured is what runs cost beside others.
            let wide = Arc::new(Wide::new(sessions.make(place, threads).map_err(refused)?));
            loaded.iter_mut().for_each(|instance| instance.share(wide.clone()));
            warmup::run(&config, source.model_path, &mut loaded[0])?;
        }
        let instances = loaded.into_iter().map(|instance| (Box::new(instance) as Box<dyn ModelInstance>).into());
        let canary = warmup::first(&config, source.model_path)?;
        Ok(LoadedModel { config: Arc::new(config), instances: instances.collect(), policy, canary })
    }
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
