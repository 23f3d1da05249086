//! Sessions for other backends that run ONNX graphs. They are made in the same way as those of this backend.

use std::path::Path;

use ort::environment::Environment;
use ort::session::Session;
use trireme_engine::LoadError;
use trireme_model_repository::ModelConfig;

use super::options::OnnxRuntimeOptions;
use super::sessions::Sessions;
use super::settings::Settings;
use super::{gpus, library};
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
    /// Loads the library and reads the session settings in `config`. Settings that are impossible for graphs of another
    /// backend are refused, so that none is silently ignored.
    pub fn new(config: &ModelConfig, options: &OnnxRuntimeOptions) -> Result<GraphSessions, LoadError> {
        let settings = Settings::new(config, options, cpus::available(), &gpus::of_this_process())?;
        let refused = |what: &str| {
            let (name, backend) = (&config.name, &config.backend);
            Err(LoadError::Config(format!("model '{name}': backend '{backend}' {what}")))
        };
        if settings.wide_threads.is_some() {
            return refused("has no 'layouts' by_load: remove the parameter");
        }
        if settings.precision.is_some() {
            return refused(
                "cannot check the precision of accelerators and settings that may round: set 'precision_check' to off to \
                 take it as it is",
            );
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_backend_cannot_do_is_refused() {
        let refused = |text: &str| {
            let config = ModelConfig::parse(&format!("backend: 'generation' {text}"), "m").unwrap();
            GraphSessions::new(&config, &OnnxRuntimeOptions::default()).err().map(|error| error.to_string())
        };
        let openvino = "optimization { execution_accelerators { cpu_execution_accelerator: [{ name: 'openvino' }] } }";
        let unchecked = "parameters { key: 'precision_check' value { string_value: 'off' } }";
        let message = refused(openvino).expect("it would not be checked");
        assert!(message.starts_with("model 'm': backend 'generation' cannot check the precision"), "{message}");
        assert_eq!(refused(&format!("{openvino} {unchecked}")), None);
        assert_eq!(refused(""), None);
    }
}
