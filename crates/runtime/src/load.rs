//! Loading model versions, each by the backend its configuration names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trireme_inference::ErrorCode;
use trireme_model_repository::{BACKENDS, KnownBackend, RepositoryModel};

use crate::backend::{Backend, LoadError, LoadedModel, ModelSource};

/// The stage that executes models of this backend: the service that hosts it.
pub fn stage(backend: &str) -> &'static str {
    service_of(backend).unwrap_or("other")
}

fn service_of(backend: &str) -> Option<&'static str> {
    KnownBackend::named(backend)?.service
}

/// The one of `backends` that executes the model. `None`: another service's does, or it is an ensemble, which nobody has to.
pub fn backend_of(
    model: &RepositoryModel,
    backends: &[Arc<dyn Backend>],
) -> Result<Option<Arc<dyn Backend>>, LoadError> {
    if model.config.is_ensemble() {
        return Ok(None);
    }
    if model.config.sequence_batching {
        return Err(LoadError::Config(format!(
            "model '{}': 'sequence_batching' is not supported: requests of one sequence are not kept together",
            model.name
        )));
    }
    match backends.iter().find(|backend| backend.name() == model.config.backend) {
        Some(backend) => Ok(Some(backend.clone())),
        None if service_of(&model.config.backend).is_some() => Ok(None),
        None => Err(unknown_backend(model)),
    }
}

/// Loads one version, on a thread of its own. Says also how long that took.
pub async fn load_version(
    model: &RepositoryModel,
    version: i64,
    backend: Arc<dyn Backend>,
    auto_complete: bool,
) -> Result<(LoadedModel, Duration), LoadError> {
    let (config, model_path, version_path) = (model.config.clone(), model.path.clone(), model.version_path(version));
    let started = Instant::now();
    let loading = tokio::task::spawn_blocking(move || {
        backend.load(&ModelSource {
            config: &config,
            version,
            model_path: &model_path,
            version_path: &version_path,
            auto_complete,
        })
    });
    let loaded = loading.await.unwrap_or_else(|panic| {
        let reason = format!("its backend panicked while loading: {panic}");
        Err(LoadError::Backend { model: model.name.clone(), reason })
    })?;
    let (backend, instances) = (&loaded.config.backend, loaded.instances.len());
    tracing::info!(model = model.name, version, backend, instances, "loaded");
    Ok((loaded, started.elapsed()))
}

// === impl LoadError ===

impl LoadError {
    /// What kind of fault it is.
    pub fn code(&self) -> ErrorCode {
        match self {
            LoadError::Config(_) => ErrorCode::InvalidArg,
            LoadError::File { .. } | LoadError::Backend { .. } => ErrorCode::Internal,
        }
    }

    /// The error as the repository index gives it: Triton puts the code's name in front.
    pub fn reason(&self) -> String {
        let code = match self.code() {
            ErrorCode::InvalidArg => "Invalid argument",
            _ => "Internal",
        };
        format!("{code}: {self}")
    }
}

fn unknown_backend(model: &RepositoryModel) -> LoadError {
    let backend = &model.config.backend;
    let hosted = BACKENDS.iter().filter_map(|known| Some(format!("'{}' ({} service)", known.name, known.service?)));
    LoadError::Config(format!(
        "model '{}': unable to find backend library for backend '{backend}', try specifying runtime on the model \
         configuration. Backends here are {}, and 'ensemble' as platform",
        model.name,
        hosted.collect::<Vec<_>>().join(", ")
    ))
}
