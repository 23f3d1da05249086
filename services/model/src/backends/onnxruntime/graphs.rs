//! Sessions for other backends that run ONNX graphs of their own: made as this one makes them.

use std::path::Path;

use ort::environment::Environment;
use ort::session::Session;
use trireme_model_repository::ModelConfig;
use trireme_runtime::LoadError;

use super::sessions::Sessions;
use super::settings::Settings;
use super::{OnnxRuntimeOptions, library};
use crate::cpus;

/// Makes the sessions of one model's graphs.
pub struct GraphSessions {
    model: String,
    environment: Environment,
    settings: Settings,
    options: OnnxRuntimeOptions,
}

// === impl GraphSessions ===

impl GraphSessions {
    /// Loads the library and reads what `config` says of sessions.
    pub fn new(config: &ModelConfig, options: &OnnxRuntimeOptions) -> Result<GraphSessions, LoadError> {
        let settings = Settings::new(config, options, cpus::available())?;
        let environment = library::environment(options.library.as_deref())
            .map_err(|error| LoadError::Backend { model: config.name.clone(), reason: error.to_string() })?;
        Ok(GraphSessions { model: config.name.clone(), environment, settings, options: options.clone() })
    }

    /// A session of the graph in `file`.
    pub fn open(&self, file: &Path) -> Result<Session, LoadError> {
        if let Err(source) = std::fs::File::open(file) {
            return Err(LoadError::File { model: self.model.clone(), path: file.to_owned(), source });
        }
        let sessions = Sessions::prepare(&self.model, &self.environment, &self.settings, &self.options, file);
        let session = sessions.make(self.settings.places[0], self.settings.intra_threads);
        session.map_err(|reason| LoadError::Backend { model: self.model.clone(), reason })
    }
}
