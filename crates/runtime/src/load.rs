//! Loading the models of a repository: each by the backend its configuration names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trireme_inference::ModelKey;
use trireme_model_repository::{Repository, RepositoryModel};

use crate::backend::{Backend, LoadError, LoadedModel, ModelSource};
use crate::worker::{StartError, WorkerOptions};

/// Every backend there is, with the service that hosts it: a model that names another one can run nowhere.
const BACKENDS: &[(&str, &str)] = &[
    ("tokenizer", "tokenizer"),
    ("onnxruntime", "model"),
    ("generation", "model"),
    ("identity", "model"),
    ("repeat", "model"),
    ("postprocess", "postprocess"),
];

/// The stage that executes models of this backend: the service that hosts it.
pub fn stage(backend: &str) -> &'static str {
    BACKENDS.iter().find(|(name, _)| *name == backend).map_or("other", |(_, service)| service)
}

/// Loads every version of every model that one of `backends` executes. All faults are reported together.
pub async fn load_models(
    repository: &Repository,
    backends: &[Arc<dyn Backend>],
    options: &WorkerOptions,
) -> Result<Vec<(ModelKey, LoadedModel, Duration)>, StartError> {
    let mut loading = Vec::new();
    let mut faults = Vec::new();
    for model in repository.models().filter(|model| !model.config.is_ensemble()) {
        if model.config.sequence_batching {
            faults.push(LoadError::Config(format!(
                "model '{}': 'sequence_batching' is not supported: requests of one sequence are not kept together",
                model.name
            )));
            continue;
        }
        match backends.iter().find(|backend| backend.name() == model.config.backend) {
            Some(backend) => {
                for &version in &model.versions {
                    loading.push(start_loading(model, version, backend.clone(), options.auto_complete));
                }
            }
            None if BACKENDS.iter().any(|(name, _)| *name == model.config.backend) => {}
            None => faults.push(unknown_backend(model)),
        }
    }
    if loading.is_empty() && faults.is_empty() {
        let paths = options.model_repository.iter().map(|path| path.display().to_string());
        return Err(StartError::NothingToServe {
            repository: paths.collect::<Vec<_>>().join(", "),
            service: options.service.clone(),
            backends: backends.iter().map(|b| b.name()).collect::<Vec<_>>().join(", "),
        });
    }
    let mut loaded = Vec::new();
    for (key, task) in loading {
        match task.await {
            Ok(Ok((model, took))) => {
                tracing::info!(model = %key, backend = model.config.backend, instances = model.instances.len(), "loaded");
                loaded.push((key, model, took));
            }
            Ok(Err(fault)) => faults.push(fault),
            Err(panic) => {
                let reason = format!("its backend panicked while loading: {panic}");
                faults.push(LoadError::Backend { model: key.name, reason });
            }
        }
    }
    match faults.is_empty() {
        true => Ok(loaded),
        false => Err(StartError::Load(faults)),
    }
}

/// A model, and how long it took to load.
type Loading = tokio::task::JoinHandle<Result<(LoadedModel, Duration), LoadError>>;

fn start_loading(
    model: &RepositoryModel,
    version: i64,
    backend: Arc<dyn Backend>,
    auto_complete: bool,
) -> (ModelKey, Loading) {
    let key = ModelKey { name: model.name.clone(), version };
    let (config, model_path, version_path) = (model.config.clone(), model.path.clone(), model.version_path(version));
    let load = tokio::task::spawn_blocking(move || {
        let started = Instant::now();
        let loaded = backend.load(&ModelSource {
            config: &config,
            version,
            model_path: &model_path,
            version_path: &version_path,
            auto_complete,
        });
        loaded.map(|model| (model, started.elapsed()))
    });
    (key, load)
}

fn unknown_backend(model: &RepositoryModel) -> LoadError {
    let backend = &model.config.backend;
    let known: Vec<_> = BACKENDS.iter().map(|(name, service)| format!("'{name}' ({service} service)")).collect();
    LoadError::Config(format!(
        "model '{}': unable to find backend library for backend '{backend}', try specifying runtime on the model \
         configuration. Backends here are {}, and 'ensemble' as platform",
        model.name,
        known.join(", ")
    ))
}
