//! `trireme validate`: every fault of model repositories at once. Reads them, loads each model with its backend, and links
//! ensembles to the configurations that loading has completed; serves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde_json::json;
use trireme_inference::ErrorCode;
use trireme_model::{OnnxRuntimeArgs, OnnxRuntimeOptions};
use trireme_model_repository::{
    EnsembleError, ModelConfig, Repository, RepositoryError, RepositoryModel, compile_ensemble,
};
use trireme_postprocess::PostprocessBackend;
use trireme_runtime::{Backend, ModelSource};
use trireme_tokenizer::TokenizerBackend;

use crate::style::{Style, colours, harmless, paint};

/// Flags of `trireme validate`.
#[derive(Args)]
pub struct ValidateArgs {
    /// Model repositories, as they are served together
    #[arg(value_name = "DIR", required = true)]
    repositories: Vec<PathBuf>,

    /// Read configurations only: load no model and link no ensemble, which need complete configurations
    #[arg(long)]
    no_load: bool,

    /// Take configurations as they are: do not fill in inputs and outputs from the model file
    #[arg(long)]
    disable_auto_complete_config: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    onnxruntime: OnnxRuntimeArgs,
}

/// Something wrong.
#[derive(Debug)]
struct Fault {
    /// The model, where it is one's.
    model: Option<String>,
    code: ErrorCode,
    message: String,
}

/// Configurations by name and version.
type Configs = BTreeMap<String, BTreeMap<i64, Arc<ModelConfig>>>;

/// Looks and prints; exit code 1 says that there are faults.
pub fn run(args: &ValidateArgs) -> ExitCode {
    let mut faults = Vec::new();
    let (models, unreadable) = read(&args.repositories, &mut faults);
    if !args.no_load {
        let mut backends = trireme_model::backends(OnnxRuntimeOptions::from(&args.onnxruntime));
        backends.push(Arc::new(TokenizerBackend) as Arc<dyn Backend>);
        backends.push(Arc::new(PostprocessBackend));
        let configs = load(&models, &backends, !args.disable_auto_complete_config, &mut faults);
        link(&models, &configs, unreadable, &mut faults);
    }
    let written = crate::write_out(report(args, &models, &faults).as_bytes());
    if faults.is_empty() { written } else { ExitCode::FAILURE }
}

fn report(args: &ValidateArgs, models: &BTreeMap<String, RepositoryModel>, faults: &[Fault]) -> String {
    if args.json {
        let models: Vec<_> =
            models.values().map(|model| json!({"name": model.name, "versions": model.versions})).collect();
        let faults: Vec<_> = faults
            .iter()
            .map(|fault| json!({"model": fault.model, "code": fault.code, "message": fault.message}))
            .collect();
        return format!("{}\n", json!({"models": models, "faults": faults}));
    }
    let mut out: String =
        faults.iter().map(|fault| format!("{}\n", paint(&harmless(&fault.message), Style::Bad, colours()))).collect();
    if faults.is_empty() {
        let what = if args.no_load { "can be read" } else { "load" };
        out.push_str(&format!("{}\n", paint(&format!("all {} models {what}", models.len()), Style::Good, colours())));
    }
    out
}

/// The models that can be read, and the names of those that cannot. What [`Repository::open`] finds wrong is a fault; the
/// others are still worth a look.
fn read(paths: &[PathBuf], faults: &mut Vec<Fault>) -> (BTreeMap<String, RepositoryModel>, BTreeSet<String>) {
    let found = match Repository::open(paths) {
        Ok(repository) => {
            let models = repository.models().map(|model| (model.name.clone(), model.clone()));
            return (models.collect(), BTreeSet::new());
        }
        Err(found) => found,
    };
    faults.extend(found.iter().map(|fault| Fault { model: None, code: fault.code(), message: fault.to_string() }));
    let duplicate = |name: &str| {
        found.iter().any(|fault| matches!(fault, RepositoryError::Duplicate { model, .. } if model == name))
    };
    let entries = paths.iter().filter_map(|path| std::fs::read_dir(path).ok()).flatten().flatten();
    let directories = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    let (mut models, mut unreadable) = (BTreeMap::new(), BTreeSet::new());
    for path in directories {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        match RepositoryModel::open(&name, &path, &[]) {
            Ok(model) if !duplicate(&name) => {
                models.insert(name, model);
            }
            _ => {
                unreadable.insert(name);
            }
        }
    }
    (models, unreadable)
}

/// Loads every version of every model, one after the other, and keeps only what its configuration became.
fn load(
    models: &BTreeMap<String, RepositoryModel>,
    backends: &[Arc<dyn Backend>],
    auto_complete: bool,
    faults: &mut Vec<Fault>,
) -> Configs {
    let mut configs = Configs::new();
    for model in models.values().filter(|model| !model.config.is_ensemble()) {
        let mut fault = |code, message| faults.push(Fault { model: Some(model.name.clone()), code, message });
        if model.config.sequence_batching {
            fault(ErrorCode::InvalidArg, format!("model '{}': 'sequence_batching' is not supported", model.name));
            continue;
        }
        let Some(backend) = backends.iter().find(|backend| backend.name() == model.config.backend) else {
            let known: Vec<_> = backends.iter().map(|backend| backend.name()).collect();
            let message = format!(
                "model '{}': unable to find backend library for backend '{}'; backends here are {}",
                model.name,
                model.config.backend,
                known.join(", ")
            );
            fault(ErrorCode::InvalidArg, message);
            continue;
        };
        for &version in &model.versions {
            let version_path = model.version_path(version);
            let source = ModelSource {
                config: &model.config,
                version,
                model_path: &model.path,
                version_path: &version_path,
                auto_complete,
            };
            match backend.load(&source) {
                Ok(loaded) => {
                    configs.entry(model.name.clone()).or_default().insert(version, loaded.config.clone());
                }
                Err(error) => fault(ErrorCode::InvalidArg, error.to_string()),
            }
        }
    }
    configs
}

/// Links ensembles to their models. One whose models are there but faulty has no fault of its own.
fn link(
    models: &BTreeMap<String, RepositoryModel>,
    configs: &Configs,
    unreadable: BTreeSet<String>,
    faults: &mut Vec<Fault>,
) {
    let lookup = |name: &str, version: Option<i64>| match models.get(name) {
        Some(model) if model.config.is_ensemble() => Some(model.config.clone()),
        _ => {
            let versions = configs.get(name)?;
            match version {
                Some(version) => versions.get(&version).cloned(),
                None => versions.values().next_back().cloned(),
            }
        }
    };
    let faulty: BTreeSet<String> = faults.iter().filter_map(|fault| fault.model.clone()).chain(unreadable).collect();
    for ensemble in models.values().filter(|model| model.config.is_ensemble()) {
        let error = match compile_ensemble(&ensemble.config, &lookup) {
            Ok(_) => continue,
            Err(EnsembleError::ModelsUnavailable { models, .. }) if models.iter().all(|name| faulty.contains(name)) => {
                continue;
            }
            Err(error) => error,
        };
        faults.push(Fault { model: Some(ensemble.name.clone()), code: error.code(), message: error.to_string() });
    }
}
