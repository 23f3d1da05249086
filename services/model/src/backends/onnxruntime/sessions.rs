//! Sessions for other backends that run ONNX graphs of their own: made as this one makes them.

use std::path::Path;

use ort::environment::Environment;
use ort::session::Session;
use trireme_model_repository::ModelConfig;
use trireme_runtime::LoadError;

use super::settings::Settings;
use super::{OnnxRuntimeOptions, library, one_line};
use crate::cpus;

/// Makes the sessions of one model.
pub struct Sessions {
    model: String,
    environment: Environment,
    settings: Settings,
}

// === impl Sessions ===

impl Sessions {
    /// Loads the library and reads what `config` says of sessions; the process's CPUs are shared by `instances`.
    pub fn new(config: &ModelConfig, options: &OnnxRuntimeOptions, instances: usize) -> Result<Sessions, LoadError> {
        let settings = Settings::new(config, options, cpus::per_instance(cpus::available(), instances))?;
        let environment = library::environment(options.library.as_deref())
            .map_err(|error| LoadError::Backend { model: config.name.clone(), reason: error.to_string() })?;
        Ok(Sessions { model: config.name.clone(), environment, settings })
    }

    /// A session of the graph in `file`.
    pub fn open(&self, file: &Path) -> Result<Session, LoadError> {
        if let Err(source) = std::fs::File::open(file) {
            return Err(LoadError::File { model: self.model.clone(), path: file.to_owned(), source });
        }
        let session = self.settings.builder(&self.environment).and_then(|mut builder| builder.commit_from_file(file));
        session.map_err(|error| LoadError::Backend { model: self.model.clone(), reason: one_line(error.message()) })
    }
}
