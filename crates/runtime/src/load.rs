//! Loads model versions, each with the backend that its configuration names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trireme_inference::ErrorCode;
use trireme_model_repository::{BACKENDS, KnownBackend, RepositoryModel};

use crate::backend::{Backend, LoadError, LoadedModel, ModelSource};

/// The stage of models of this backend: the service that hosts them.
pub fn stage(backend: &str) -> &'static str {
    service_of(backend).unwrap_or("other")
}

fn service_of(backend: &str) -> Option<&'static str> {
    KnownBackend::named(backend)?.service
}

/// The one of `backends` that executes the model. `None` if another service executes it, or if it is an ensemble, which
/// no worker hosts.
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
        Some(backend) if backend.reshapes() => Ok(Some(backend.clone())),
        Some(backend) => match model.config.reshaped() {
            Some(tensor) => Err(LoadError::Config(format!(
                "model '{}': '{tensor}' has a 'reshape', which backend '{}' does not act on; declare as 'dims' what the model takes",
                model.name,
                backend.name()
            ))),
            None => Ok(Some(backend.clone())),
        },
        None if service_of(&model.config.backend).is_some() => Ok(None),
        None => Err(unknown_backend(model)),
    }
}

/// Loads one version on a thread of its own. Also returns how long that took.
pub async fn load_version(
    model: &RepositoryModel,
    version: i64,
    backend: Arc<dyn Backend>,
    auto_complete: bool,
) -> Result<(LoadedModel, Duration), LoadError> {
    let (config, model_path, version_path) = (model.config.clone(), model.path.clone(), model.version_path(version));
    let uploaded = model.uploaded.clone();
    let started = Instant::now();
    let loading = tokio::task::spawn_blocking(move || {
        backend.load(&ModelSource {
            config: &config,
            version,
            model_path: &model_path,
            version_path: &version_path,
            auto_complete,
            uploaded: uploaded.as_ref(),
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
    /// The error's code.
    pub fn code(&self) -> ErrorCode {
        match self {
            LoadError::Config(_) => ErrorCode::InvalidArg,
            LoadError::File { .. } | LoadError::Backend { .. } => ErrorCode::Internal,
        }
    }

    /// The error's text in the repository index: as in Triton, the code's name comes first.
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
         configuration. Backends here are {}, and 'ensemble' as platform{}",
        model.name,
        hosted.collect::<Vec<_>>().join(", "),
        instead(model).map(|advice| format!("; {advice}")).unwrap_or_default()
    ))
}

/// Advice on another backend, going by the files in the model's version folder.
fn instead(model: &RepositoryModel) -> Option<String> {
    let folder = model.version_path(*model.versions.last()?);
    let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let with = |ending: &str| names.iter().find(|name| name.ends_with(ending));
    if names.iter().any(|name| name == "tokenizer.json") {
        return Some(
            "a tokenizer.json lies in its version folder, for which backend: \"tokenizer\" needs no code".to_owned(),
        );
    }
    if let Some(graph) = with(".onnx") {
        return Some(format!("{graph} lies in its version folder, which backend: \"onnxruntime\" runs"));
    }
    if let Some(traced) = with(".pt") {
        return Some(format!(
            "{traced} is TorchScript, which is not run here: export the model that it was traced from to ONNX \
             (optimum-cli export onnx --model FOLDER --task feature-extraction OUTPUT) and serve that with backend: \
             \"onnxruntime\""
        ));
    }
    with(".plan").map(|plan| {
        format!(
            "{plan} is a TensorRT plan, which runs only on the GPU and version that it was made for: serve the ONNX file that \
             it was made from with backend: \"onnxruntime\" and the accelerator tensorrt"
        )
    })
}
