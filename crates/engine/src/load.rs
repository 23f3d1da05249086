//! Loads model versions, each with the backend that its configuration names.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trireme_inference::{ErrorCode, Tensor};
use trireme_model_repository::{BACKENDS, KnownBackend, ModelConfig, RepositoryModel, onnx_instead, torch_file};

use crate::activity::Activity;
use crate::backend::{Backend, LoadError, LoadedModel, ModelSource, SequenceSupport};
use crate::calls::IdleCalls;
use crate::threads::on_thread;

/// A load of more than this time is announced in the registry.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(1);

/// The period of the log lines about such a load.
const SAID_EVERY: Duration = Duration::from_secs(4);

/// The stage of models of this backend: the service that hosts them.
///
/// ```
/// assert_eq!(trireme_engine::stage("onnxruntime"), "model");
/// assert_eq!(trireme_engine::stage("my_backend"), "other");
/// ```
pub fn stage(backend: &str) -> &'static str {
    service_of(backend).unwrap_or("other")
}

fn service_of(backend: &str) -> Option<&'static str> {
    KnownBackend::named(backend)?.service
}

/// The first of `backends` that hosts the model. `None` if another service does, or if it is an ensemble, which no worker hosts.
pub fn backend_of(
    model: &RepositoryModel,
    backends: &[Arc<dyn Backend>],
) -> Result<Option<Arc<dyn Backend>>, LoadError> {
    if model.config.is_ensemble() {
        return Ok(None);
    }
    let hosts = |backend: &&Arc<dyn Backend>| backend.name() == model.config.backend && backend.hosts(&model.config);
    let found = backends.iter().find(hosts);
    if let Some(backend) = found {
        check_sequences(&model.config, backend.keeps_sequences()).map_err(LoadError::Config)?;
    }
    match found {
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

/// Whether a backend with this support executes the model's `sequence_batching`, if it has one.
fn check_sequences(config: &ModelConfig, support: SequenceSupport) -> Result<(), String> {
    let Some(batching) = &config.sequence_batching else { return Ok(()) };
    let ModelConfig { name: model, backend, .. } = config;
    let fault = match support {
        SequenceSupport::None => format!(
            "has 'sequence_batching', which backend '{backend}' does not execute; backends 'onnxruntime' and 'python' do"
        ),
        SequenceSupport::DeclaredStates if batching.states.is_empty() => format!(
            "has 'sequence_batching' without 'state': any worker may execute the next request of a sequence, so a model of \
             backend '{backend}' cannot keep states in its own process. Declare each state in 'state', with 'input_name', \
             'output_name', 'data_type' and 'dims': the model then gets it as an input and returns the new one as an output"
        ),
        _ if batching.iterative => {
            "has 'iterative_sequence', which is not supported: let the client send a request for each iteration"
                .to_owned()
        }
        _ if config.decoupled => {
            "has 'sequence_batching' and is decoupled, which is not supported: a request of a sequence has \
                                  one answer; remove one of the two"
                .to_owned()
        }
        _ if config.max_rows_per_message.is_some() => {
            "has 'sequence_batching' and the parameter 'max_rows_per_message', but a \
                                                       request of a sequence is one row; remove the parameter"
                .to_owned()
        }
        SequenceSupport::DeclaredStates | SequenceSupport::All => return Ok(()),
    };
    Err(format!("model '{model}' {fault}"))
}

/// A loaded version, the states before the first request of its sequences, and how long the load took.
pub type Loaded = (LoadedModel, Vec<Tensor>, Duration);

/// How versions are loaded.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Whether backends may complete configurations.
    pub auto_complete: bool,
    /// Whether instance groups of `KIND_GPU` run on the CPU.
    pub gpu_groups_on_cpu: bool,
    /// How long a load may take; `None` is for ever.
    pub limit: Option<Duration>,
    /// The way of the model's code to other models while no request is executed.
    pub calls: IdleCalls,
}

/// The directories of versions whose loads have passed their limit, and their threads' signs of life.
static HANGING: Mutex<Vec<(PathBuf, Weak<()>)>> = Mutex::new(Vec::new());

/// Loads one version on a thread of its own. During a long load the log repeats its present step every few seconds.
pub async fn load_version(
    model: &RepositoryModel,
    version: i64,
    backend: Arc<dyn Backend>,
    options: LoadOptions,
) -> Result<Loaded, LoadError> {
    load_watched(model, version, backend, options, async |_| {}).await
}

/// As [`load_version`]; `announce` gets the present step of a long load, once. A load that passes its limit of time has failed, and nothing
/// waits for its thread.
pub async fn load_watched(
    model: &RepositoryModel,
    version: i64,
    backend: Arc<dyn Backend>,
    options: LoadOptions,
    announce: impl AsyncFnOnce(String),
) -> Result<Loaded, LoadError> {
    let activity = Activity::new();
    let loading = load(model, version, backend, options, activity.clone());
    tokio::pin!(loading);
    let started = Instant::now();
    if let Ok(loaded) = tokio::time::timeout(ANNOUNCED_AFTER, &mut loading).await {
        return loaded;
    }
    // The announcer goes on by itself where the bus does not answer.
    let _ = tokio::time::timeout(SAID_EVERY, announce(activity.now())).await;
    let mut said = tokio::time::interval_at(tokio::time::Instant::now() + SAID_EVERY, SAID_EVERY);
    loop {
        tokio::select! {
            biased;
            loaded = &mut loading => return loaded,
            _ = said.tick() => {
                let (seconds, doing) = (started.elapsed().as_secs(), activity.now());
                tracing::info!(model = model.name, version, seconds, doing, "still loading");
            }
        }
    }
}

async fn load(
    model: &RepositoryModel,
    version: i64,
    backend: Arc<dyn Backend>,
    LoadOptions { auto_complete, gpu_groups_on_cpu, limit, calls }: LoadOptions,
    activity: Activity,
) -> Result<Loaded, LoadError> {
    let failed = |reason: String| LoadError::Backend { model: model.name.clone(), reason };
    let (mut config, model_path) = (model.config_of(version).clone(), model.config_path(version));
    if let Some(on_cpu) = config.with_gpu_groups_on_cpu().filter(|_| gpu_groups_on_cpu) {
        config = Arc::new(on_cpu);
    }
    let version_path = model.version_path(version);
    let uploaded = model.uploaded.clone();
    let (started, name) = (Instant::now(), format!("load-{}", model.name));
    let (life, path) = (Arc::new(()), version_path.clone());
    let is_alive = Arc::downgrade(&life);
    if still_hangs(&path) {
        return Err(failed(format!(
            "an earlier load of {} has not ended yet: its files may lie on a file system that hangs",
            path.display()
        )));
    }
    let (said, files) = (activity.clone(), model.clone());
    let loading = on_thread(name, move || {
        let _life = life;
        let source = ModelSource {
            config: &config,
            version,
            model_path: &model_path,
            version_path: &version_path,
            auto_complete,
            uploaded: uploaded.as_ref(),
            calls,
        };
        let refused =
            |error: std::io::Error| LoadError::Backend { model: config.name.clone(), reason: error.to_string() };
        files.check_files(version).map_err(refused)?;
        let others = files.run_agents(version);
        let others = others.map_err(|fault| LoadError::Config(format!("model '{}': {fault}", config.name)))?;
        if !others.is_empty() {
            let agents = others.join(", ");
            tracing::warn!(model = config.name, agents, "model_repository_agents other than 'checksum' are not run");
        }
        let mut loaded = activity.during(|| backend.load(&source))?;
        if loaded.config.sequence_batching.is_some() {
            loaded.config = Arc::new(loaded.config.for_execution());
        }
        let initial_states = loaded.config.initial_states(&model_path);
        let initial_states =
            initial_states.map_err(|fault| LoadError::Config(format!("model '{}': {fault}", config.name)))?;
        Ok((loaded, initial_states))
    });
    let Ok(loading) = tokio::time::timeout(limit.unwrap_or(Duration::MAX), loading).await else {
        HANGING.lock().push((path, is_alive));
        let (seconds, doing) = (limit.unwrap_or_default().as_secs_f32(), said.now());
        return Err(failed(format!("it was not loaded within {seconds} s (--model-load-limit-secs), and was {doing}")));
    };
    let loaded = loading.map_err(|error| failed(format!("its load has failed: {error}")))?;
    let (loaded, initial_states) = loaded?;
    let (backend, instances) = (&loaded.config.backend, loaded.instances.len());
    tracing::info!(model = model.name, version, backend, instances, "loaded");
    Ok((loaded, initial_states, started.elapsed()))
}

/// Whether a load from this directory has passed its limit and its thread is still there.
fn still_hangs(path: &Path) -> bool {
    let mut hanging = HANGING.lock();
    hanging.retain(|(_, life)| life.strong_count() > 0);
    hanging.iter().any(|(hangs, _)| hangs == path)
}

// === impl LoadError ===

impl LoadError {
    /// The error's code.
    pub fn code(&self) -> ErrorCode {
        match self {
            LoadError::Config(_) => ErrorCode::InvalidArg,
            LoadError::File { .. } | LoadError::Backend { .. } => ErrorCode::Internal,
            LoadError::NoQueue { .. } => ErrorCode::Unavailable,
        }
    }

    /// The error's text in the repository index: as in Triton, the code's name comes first.
    pub fn reason(&self) -> String {
        let code = match self.code() {
            ErrorCode::InvalidArg => "Invalid argument",
            ErrorCode::Unavailable => "Unavailable",
            _ => "Internal",
        };
        format!("{code}: {self}")
    }
}

fn unknown_backend(model: &RepositoryModel) -> LoadError {
    let backend = &model.config.backend;
    let hosted = BACKENDS.iter().filter_map(|known| Some(format!("'{}' ({} service)", known.name, known.service?)));
    let advised = model.versions.last().and_then(|version| advice(&model.version_path(*version)));
    let advised = advised.or_else(|| onnx_instead(backend).map(str::to_owned));
    LoadError::Config(format!(
        "model '{}': unable to find backend library for backend '{backend}', try specifying runtime on the model \
         configuration. Backends here are {}, and 'ensemble' as platform{}",
        model.name,
        hosted.collect::<Vec<_>>().join(", "),
        advised.map(|advice| format!("; {advice}")).unwrap_or_default()
    ))
}

/// The end of an error about a model's backend or its file: advice on another backend, by the files in the version folder. Empty
/// where they suggest none.
pub fn instead(version_path: &Path) -> String {
    advice(version_path).map(|advice| format!("; {advice}")).unwrap_or_default()
}

fn advice(version_path: &Path) -> Option<String> {
    let entries = std::fs::read_dir(version_path).into_iter().flatten().flatten();
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
    if let Some(file) = torch_file(version_path, "") {
        let (file, model) = (file.file_name().unwrap_or_default(), version_path.parent().unwrap_or(version_path));
        return Some(format!(
            "{} is a file of torch, which is not run here: make the ONNX file that is served in its place with: trireme export {} \
             (--python names a Python that has torch)",
            file.display(),
            model.display()
        ));
    }
    with(".plan").and_then(|_| onnx_instead("tensorrt")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_the_version_folder_say_which_backend_is_meant() {
        let advised = |files: &[&str]| {
            let folder = tempfile::tempdir().unwrap();
            files.iter().for_each(|file| std::fs::write(folder.path().join(file), "").unwrap());
            instead(folder.path())
        };
        assert!(advised(&["tokenizer.json", "config.json"]).contains("for which backend: \"tokenizer\" needs no code"));
        assert!(advised(&["model.onnx"]).starts_with("; model.onnx lies in its version folder"));
        let traced = advised(&["model.pt"]);
        assert!(
            traced.contains("model.pt is a file of torch") && traced.contains("with: trireme export /"),
            "{traced}"
        );
        assert!(advised(&["model.plan"]).contains("a TensorRT plan runs only on the GPU"));
        assert_eq!(advised(&["README.md"]), "");
    }

    #[test]
    fn sequences_that_no_worker_could_keep_are_refused_with_advice() {
        let state = "state [{ input_name: 'i' output_name: 'o' data_type: TYPE_FP32 dims: [1] }]";
        let check = |support, batching: &str, more: &str| {
            let text = format!(
                "backend: 'b' max_batch_size: 4 input [{{ name: 'x' data_type: TYPE_FP32 dims: [1] }}]
                 output [{{ name: 'y' data_type: TYPE_FP32 dims: [1] }}] sequence_batching {{ {batching} }} {more}"
            );
            check_sequences(&ModelConfig::parse(&text, "m").unwrap(), support).err().unwrap_or_default()
        };
        let decoupled = "model_transaction_policy { decoupled: true }";
        let rows = "parameters { key: 'max_rows_per_message' value { string_value: '2' } }";
        assert_eq!(check(SequenceSupport::All, "", ""), "");
        assert_eq!(check(SequenceSupport::DeclaredStates, state, ""), "");
        let cases = [
            (SequenceSupport::None, state, "", "which backend 'b' does not execute"),
            (SequenceSupport::DeclaredStates, "", "", "Declare each state in 'state', with 'input_name'"),
            (SequenceSupport::All, "iterative_sequence: true", "", "'iterative_sequence', which is not supported"),
            (SequenceSupport::All, state, decoupled, "is decoupled, which is not supported"),
            (SequenceSupport::All, state, rows, "remove the parameter"),
        ];
        for (support, batching, more, expected) in cases {
            let fault = check(support, batching, more);
            assert!(fault.starts_with("model 'm' has ") && fault.contains(expected), "{fault}");
        }
    }
}
