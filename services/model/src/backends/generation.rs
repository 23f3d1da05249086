//! Backend `generation`: the crate of that name, with the sessions of this service.

use trireme_engine::LoadError;
use trireme_generation::{Generation, OpenGraph, Sessions};
use trireme_model_repository::ModelConfig;

use super::onnxruntime::{GraphSessions, OnnxRuntimeOptions};

/// The backend, on ONNX Runtime with these options.
pub fn generation(options: OnnxRuntimeOptions) -> Generation {
    Generation::new(OnnxSessions(options))
}

struct OnnxSessions(OnnxRuntimeOptions);

impl Sessions for OnnxSessions {
    fn of(&self, config: &ModelConfig) -> Result<OpenGraph, LoadError> {
        let sessions = GraphSessions::new(config, &self.0)?;
        Ok(Box::new(move |file| sessions.open(file)))
    }
}

#[cfg(test)]
mod tests;
