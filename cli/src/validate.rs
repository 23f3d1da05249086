//! `trireme validate`: every fault of model repositories at once. Reads them, loads each model with its backend, and links
//! ensembles to the configurations that loading has completed; serves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::json;
use trireme_inference::ErrorCode;
use trireme_model::OnnxRuntimeArgs;
use trireme_model_repository::{EnsembleError, ModelConfig, ModelSources, Repository, compile_ensemble};
use trireme_python::PythonArgs;
use trireme_runtime::{
    Backend, FolderArgs, LoadError, LoadOptions, backend_of, is_remote, load_version, local_folder, service,
};
use trireme_telemetry::TelemetryArgs;

use crate::stages::{Stage, StageOptions, backends};
use crate::style::{Style, colours, paint};

/// Flags of `trireme validate`.
#[derive(Args)]
pub struct ValidateArgs {
    /// Model repositories and model folders, or URLs of such, as they are served together
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<PathBuf>,

    /// Read configurations only: load no model and link no ensemble, which need complete configurations
    #[arg(long)]
    no_load: bool,

    /// Take configurations as they are: do not fill in inputs and outputs from the model file
    #[arg(long)]
    disable_auto_complete_config: bool,

    /// Load instance groups of KIND_GPU on the CPU, as the flag of this name does when they are served
    #[arg(long)]
    gpu_groups_on_cpu: bool,

    #[command(flatten)]
    choices: FolderArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    onnxruntime: OnnxRuntimeArgs,
    #[command(flatten)]
    python: PythonArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// A fault.
#[derive(Debug)]
struct Fault {
    /// The faulty model, if the fault is one model's.
    model: Option<String>,
    code: ErrorCode,
    message: String,
}

// === impl Fault ===

impl Fault {
    fn of(model: &str, code: ErrorCode, message: String) -> Fault {
        Fault { model: Some(model.to_owned()), code, message }
    }
}

/// Configurations by name and version.
type Configs = BTreeMap<String, BTreeMap<i64, Arc<ModelConfig>>>;

/// Checks the repositories and prints a report; exit code 1 if it contains faults.
pub fn run(args: &ValidateArgs) -> ExitCode {
    let mut code = ExitCode::FAILURE;
    let ran = service::block_on("validate", &args.telemetry, async {
        let (repository, faults) = check(args).await;
        let written = crate::output::write_out(report(args, &repository, &faults).as_bytes());
        if faults.is_empty() {
            code = written;
        }
        Ok(())
    });
    if ran == ExitCode::SUCCESS { code } else { ran }
}

async fn check(args: &ValidateArgs) -> (Repository, Vec<Fault>) {
    let unreadable = |code, message| Fault { model: None, code, message };
    let (mut folders, mut faults) = (Vec::new(), Vec::new());
    let choices = FolderArgs { strict: true, ..args.choices.clone() };
    let choices = match choices.choices() {
        Ok(choices) => choices,
        Err(fault) => return (Repository::default(), vec![unreadable(ErrorCode::InvalidArg, fault.to_string())]),
    };
    for model in &args.models {
        match local_folder(model, None, &choices).await {
            Ok(folder) => folders.push(folder),
            Err(fault) => faults.push(unreadable(fault.code(), fault.to_string())),
        }
    }
    if !faults.is_empty() {
        return (Repository::default(), faults);
    }
    let sources = match ModelSources::open(folders.iter().map(|folder| (None, folder.as_path())), &choices) {
        Ok(sources) => sources,
        Err(faults) => {
            let faults = faults.iter().map(|fault| unreadable(fault.code(), fault.to_string()));
            return (Repository::default(), faults.collect());
        }
    };
    let repository = match Repository::read(&sources.repositories, &[]) {
        Ok(repository) => repository,
        Err(faults) => {
            let faults = faults.iter().map(|fault| unreadable(fault.code(), fault.to_string()));
            return (Repository::default(), faults.collect());
        }
    };
    let broken = repository.broken();
    let mut faults: Vec<_> =
        broken.map(|(name, broken)| Fault::of(name, broken.fault.code(), broken.fault.to_string())).collect();
    if let Err(empty) = repository.check_not_empty(&sources.repositories) {
        faults.push(unreadable(empty.code(), format!("model repository: {empty}")));
    }
    if !args.no_load {
        let downloads = args.models.iter().filter_map(|model| model.to_str()).any(is_remote);
        let stages = StageOptions {
            onnxruntime: (&args.onnxruntime).into(),
            python: args.python.options(PythonArgs::default_for(downloads), None),
        };
        let backends = backends(Stage::value_variants(), &stages);
        let options = LoadOptions {
            auto_complete: !args.disable_auto_complete_config,
            gpu_groups_on_cpu: args.gpu_groups_on_cpu,
            limit: None,
            ..LoadOptions::default()
        };
        let configs = load(&repository, &backends, options, &mut faults).await;
        link(&repository, &configs, &mut faults);
    }
    (repository, faults)
}

fn report(args: &ValidateArgs, repository: &Repository, faults: &[Fault]) -> String {
    if args.json {
        let models: Vec<_> =
            repository.models().map(|model| json!({"name": model.name, "versions": model.versions})).collect();
        let faults: Vec<_> = faults
            .iter()
            .map(|fault| json!({"model": fault.model, "code": fault.code, "message": fault.message}))
            .collect();
        return format!("{}\n", json!({"models": models, "faults": faults}));
    }
    // A fault of Python is several lines.
    let told = told(faults);
    let lines = told.iter().flat_map(|fault| fault.lines());
    let mut out: String = lines.map(|line| format!("{}\n", paint(line, Style::Bad, colours()))).collect();
    if faults.is_empty() {
        let what = if args.no_load { "can be read" } else { "load" };
        out.push_str(&format!(
            "{}\n",
            paint(&format!("all {} models {what}", repository.models().count()), Style::Good, colours())
        ));
    }
    out
}

/// The faults for a person. A fault of several models with the same reason, such as a missing library, is one text that names them.
fn told(faults: &[Fault]) -> Vec<String> {
    let mut told: Vec<(Vec<&str>, &str)> = Vec::new();
    for fault in faults {
        let reason = fault.model.as_deref().and_then(|model| {
            let about = format!("model '{model}': ");
            Some((model, fault.message.strip_prefix(&about)?))
        });
        let known = reason.and_then(|(model, reason)| {
            let (models, _) = told.iter_mut().find(|(models, known)| !models.is_empty() && *known == reason)?;
            if !models.contains(&model) {
                models.push(model);
            }
            Some(())
        });
        if known.is_none() {
            told.push(
                reason.map_or_else(|| (Vec::new(), fault.message.as_str()), |(model, reason)| (vec![model], reason)),
            );
        }
    }
    let line = |(models, reason): (Vec<&str>, &str)| match &models[..] {
        [] => reason.to_owned(),
        [model] => format!("model '{model}': {reason}"),
        several => format!("models '{}': {reason}", several.join("', '")),
    };
    told.into_iter().map(line).collect()
}

/// Loads every version of every model, one after the other, and keeps only its completed configuration.
async fn load(
    repository: &Repository,
    backends: &[Arc<dyn Backend>],
    options: LoadOptions,
    faults: &mut Vec<Fault>,
) -> Configs {
    let mut configs = Configs::new();
    for model in repository.models() {
        let mut fault = |error: LoadError| faults.push(Fault::of(&model.name, error.code(), error.to_string()));
        let backend = match backend_of(model, backends) {
            Ok(Some(backend)) => backend,
            Ok(None) => continue,
            Err(error) => {
                fault(error);
                continue;
            }
        };
        for &version in &model.versions {
            match load_version(model, version, backend.clone(), options.clone()).await {
                Ok((loaded, ..)) => {
                    let config = Arc::new(loaded.config.for_clients());
                    configs.entry(model.name.clone()).or_default().insert(version, config);
                }
                Err(error) => fault(error),
            }
        }
    }
    configs
}

/// Links ensembles to their models. An ensemble whose models exist but are faulty has no fault of its own.
fn link(repository: &Repository, configs: &Configs, faults: &mut Vec<Fault>) {
    let lookup = |name: &str, version: Option<i64>| match repository.model(name) {
        Some(model) if model.config.is_ensemble() => {
            Some(version.map_or(&model.config, |version| model.config_of(version)).clone())
        }
        _ => {
            let versions = configs.get(name)?;
            match version {
                Some(version) => versions.get(&version).cloned(),
                None => versions.values().next_back().cloned(),
            }
        }
    };
    let faulty: BTreeSet<String> = faults.iter().filter_map(|fault| fault.model.clone()).collect();
    for ensemble in repository.models().filter(|model| model.config.is_ensemble()) {
        let compiled = ensemble.versions.iter().map(|&version| compile_ensemble(ensemble.config_of(version), &lookup));
        let error = match compiled.collect::<Result<Vec<_>, _>>() {
            Ok(_) => continue,
            Err(EnsembleError::ModelsUnavailable { models, .. }) if models.iter().all(|name| faulty.contains(name)) => {
                continue;
            }
            Err(error) => error,
        };
        faults.push(Fault::of(&ensemble.name, error.code(), error.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_several_models_have_is_told_once() {
        let fault =
            |model: &str, reason: &str| Fault::of(model, ErrorCode::Internal, format!("model '{model}': {reason}"));
        let other = Fault::of("d", ErrorCode::InvalidArg, "d/config.pbtxt: no field".to_owned());
        let faults = [
            fault("a", "no library"),
            fault("b", "Traceback:\n  line 1"),
            other,
            fault("c", "no library"),
            fault("a", "no library"),
        ];
        assert_eq!(
            told(&faults),
            ["models 'a', 'c': no library", "model 'b': Traceback:\n  line 1", "d/config.pbtxt: no field"]
        );
        let args = <Command as clap::Parser>::try_parse_from(["validate", "m"]).unwrap().validate;
        assert_eq!(report(&args, &Repository::default(), &faults[1..2]), "model 'b': Traceback:\n  line 1\n");
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        validate: ValidateArgs,
    }
}
