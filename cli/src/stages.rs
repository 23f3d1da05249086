//! The stages of the pipeline, each with the backends that its service hosts: the one place that sees them all.

use std::sync::Arc;

use clap::ValueEnum;
use trireme_model::OnnxRuntimeOptions;
use trireme_ops::PostprocessBackend;
use trireme_python::PythonOptions;
use trireme_runtime::Backend;
use trireme_tokenizer::TokenizerBackend;

/// A stage of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Stage {
    /// Texts to tokens.
    Tokenizer,
    /// Executes models.
    Model,
    /// Ops on the outputs of models.
    Postprocess,
    /// Models in the form of a model.py, and programs.
    Python,
}

/// How models are run, by the flags.
#[derive(Clone, Debug, Default)]
pub struct StageOptions {
    /// The flags of ONNX Runtime.
    pub onnxruntime: OnnxRuntimeOptions,
    /// The flags of backend `python`.
    pub python: PythonOptions,
}

/// The backends of these stages.
pub fn backends(stages: &[Stage], options: &StageOptions) -> Vec<Arc<dyn Backend>> {
    stages.iter().flat_map(|stage| stage.backends(options)).collect()
}

// === impl Stage ===

impl Stage {
    /// Its name, as flags have it.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn backends(self, options: &StageOptions) -> Vec<Arc<dyn Backend>> {
        match self {
            Stage::Tokenizer => vec![Arc::new(TokenizerBackend)],
            Stage::Model => trireme_model::backends(options.onnxruntime.clone()),
            Stage::Postprocess => vec![Arc::new(PostprocessBackend)],
            Stage::Python => trireme_python::backends(&options.python).to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use trireme_model_repository::{BACKENDS, ModelConfig};

    use super::*;

    #[test]
    fn services_host_the_backends_that_the_model_repository_knows() {
        let mut hosted = BTreeSet::new();
        for stage in Stage::value_variants() {
            let service = stage.to_possible_value().unwrap().get_name().to_owned();
            let backends = stage.backends(&StageOptions::default());
            hosted.extend(backends.iter().map(|backend| (backend.name(), service.clone())));
        }
        assert!(
            hosted.remove(&("postprocess", "model".to_owned())),
            "the model service hosts reductions beside its models"
        );
        let known = BACKENDS.iter().filter_map(|known| Some((known.name, known.service?.to_owned())));
        assert_eq!(hosted, known.collect());
    }

    #[test]
    fn a_stage_hosts_every_model_of_its_backend() {
        for known in &BACKENDS {
            let Some(service) = known.service else { continue };
            let stage = Stage::from_str(service, false).unwrap();
            let backends = stage.backends(&StageOptions::default());
            let config = ModelConfig::parse(&format!("backend: '{}'", known.name), "m").unwrap();
            let hosts = |backend: &Arc<dyn Backend>| backend.name() == known.name && backend.hosts(&config);
            assert!(backends.iter().any(hosts), "{} of {service}", known.name);
        }
    }
}
