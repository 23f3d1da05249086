//! [`PythonBackend`]: loads models, each instance a child process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use trireme_model_repository::{InstanceKind, ModelConfig, RepositoryError};
use trireme_runtime::statistics::own::OwnMetrics;
use trireme_runtime::{Backend, Instance, LoadError, LoadedModel, ModelSource, SequenceSupport, doing, instead};

use crate::args::{AllowPython, PythonOptions};
use crate::batch::BatchInstance;
use crate::child::{InstancePlace, Recipe, kill};
use crate::decoupled::DecoupledInstance;
use crate::environment::interpreter;
use crate::package::Package;
use crate::policy::{CallTime, batching, policy};
use crate::reshaped::reshaped;
use crate::slot::Slot;

/// The model file where the configuration names none.
const MODEL_FILE: &str = "model.py";

/// The name that a model file contains if it completes its own configuration.
const COMPLETES: &str = "auto_complete_config";

/// Loads models with `backend: "python"`.
#[derive(Clone, Debug)]
pub struct PythonBackend {
    options: PythonOptions,
}

// === impl PythonBackend ===

impl PythonBackend {
    /// A backend with these options.
    pub fn new(options: PythonOptions) -> PythonBackend {
        PythonBackend { options }
    }

    fn recipe(&self, source: &ModelSource<'_>, config: &ModelConfig, file: PathBuf) -> Result<Recipe, LoadError> {
        let package = package(&config.name)?;
        let found = interpreter(config, source.model_path, &self.options.python)
            .map_err(|reason| LoadError::Config(format!("model '{}': {reason}", config.name)))?;
        let variables = found.variables(std::env::vars_os(), &self.options.environment, package.path());
        Ok(Recipe {
            model: config.name.clone(),
            program: found.program,
            arguments: ["-m", "trireme_python"].map(str::to_owned).to_vec(),
            folder: None,
            named_by: "--python",
            unpacked: found.unpacked,
            variables,
            file,
            args: arguments(source, config),
            decoupled: config.decoupled,
            start_limit: self.options.start_limit,
            memory_limit: self.options.memory_limit,
            package,
            metrics: OwnMetrics::new(&config.name),
            uploaded: source.uploaded.cloned(),
            calls: source.calls.clone(),
        })
    }

    /// The configuration as the model completes it, in a process of its own.
    fn complete(&self, source: &ModelSource<'_>, file: &std::path::Path) -> Result<ModelConfig, LoadError> {
        let recipe = self.recipe(source, source.config, file.to_owned())?;
        let name = &source.config.name;
        let failed = |reason: String| LoadError::Backend { model: name.clone(), reason };
        let child = recipe.start(&places(source.config)[0], true, &|| false).map_err(failed)?;
        let mut process = child.process;
        kill(&process);
        let _ = process.wait();
        let json = child.config.ok_or_else(|| failed("its process sent no configuration".to_owned()))?;
        let completed = ModelConfig::from_json(&json).map_err(|error| match error {
            // Triton's own words, which name the model.
            RepositoryError::Invalid(fault) => LoadError::Config(fault),
            error => LoadError::Config(format!("model '{name}': what {COMPLETES} makes of the configuration: {error}")),
        })?;
        match completed.name == *name && completed.backend == source.config.backend {
            true => Ok(completed),
            false => Err(LoadError::Config(format!("model '{name}': {COMPLETES} must not change name and backend"))),
        }
    }
}

impl Backend for PythonBackend {
    fn name(&self) -> &'static str {
        "python"
    }

    fn reshapes(&self) -> bool {
        true
    }

    fn keeps_sequences(&self) -> SequenceSupport {
        SequenceSupport::DeclaredStates
    }

    fn surroundings(&self, source: &ModelSource<'_>) -> Result<String, String> {
        let allowed = check_allowed(&self.options, source, "backend 'python' runs its model.py");
        allowed.map_err(|error| error.to_string())?;
        let found = interpreter(source.config, source.model_path, &self.options.python)?;
        let package = package(&source.config.name).map_err(|error| error.to_string())?;
        found.packages(&found.variables(std::env::vars_os(), &self.options.environment, package.path()))
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        check_allowed(&self.options, source, "backend 'python' runs its model.py")?;
        let name = &source.config.name;
        let file = model_file(source)?;
        let text = std::fs::read_to_string(&file);
        let text = text.map_err(|error| LoadError::File { model: name.clone(), path: file.clone(), source: error })?;
        let config = match source.auto_complete && text.contains(COMPLETES) {
            true => Arc::new(self.complete(source, &file)?),
            false => {
                source.config.check_whole().map_err(|fault| LoadError::Config(fault.to_string()))?;
                Arc::new(source.config.clone())
            }
        };

        let recipe = self.recipe(source, &config, file)?;
        doing("waiting for initialize of model.py");
        start(recipe, config, &self.options)
    }
}

/// Returns an error if the model's code may not run; `what` says in which way it would.
pub fn check_allowed(options: &PythonOptions, source: &ModelSource<'_>, what: &str) -> Result<(), LoadError> {
    let refused = |what: &str, flag: &str| {
        let model = &source.config.name;
        Err(LoadError::Config(format!("model '{model}': {what}, which is code; {flag} allows it")))
    };
    match (options.allow, source.uploaded) {
        (AllowPython::Never, _) => refused(what, "--allow-python"),
        (AllowPython::Local, Some(_)) => {
            refused("its files or its configuration came with a request to load it", "--allow-python=uploads")
        }
        (AllowPython::Local, None) | (AllowPython::Uploads, _) => Ok(()),
    }
}

/// The package that children import.
pub fn package(model: &str) -> Result<Package, LoadError> {
    Package::get().map_err(|error| LoadError::Backend {
        model: model.to_owned(),
        reason: format!("cannot write the package trireme_python: {error}"),
    })
}

/// The arguments of `initialize`, without those about the instance.
pub fn arguments(source: &ModelSource<'_>, config: &ModelConfig) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        ("model_config", config.to_json()),
        ("model_name", config.name.clone()),
        ("model_repository", source.model_path.display().to_string()),
        ("model_version", source.version.to_string()),
    ])
}

/// Starts the processes of a model and waits until all of them have loaded it.
pub fn start(recipe: Recipe, config: Arc<ModelConfig>, options: &PythonOptions) -> Result<LoadedModel, LoadError> {
    let (name, backend) = (&config.name, &config.backend);
    if !config.warmup.is_empty() {
        tracing::warn!(model = name, backend, "model_warmup is not executed for this backend: warm up while loading");
    }
    let recipe = Arc::new(recipe);
    let failed = |reason: String| LoadError::Backend { model: name.clone(), reason };
    let begin = |place| Slot::begin(recipe.clone(), place).map_err(|error| failed(error.to_string()));
    let slots: Vec<_> = places(&config).into_iter().map(begin).collect::<Result<_, _>>()?;
    // Programs of backend `process` need not know that requests may be executed one by one.
    let apart = (batching(&config).is_none() && backend == "python").then(Arc::<CallTime>::default);
    let mut instances = Vec::new();
    for slot in slots {
        slot.wait().map_err(failed)?;
        let instance = match config.decoupled {
            true => Instance::Stepwise(Box::new(DecoupledInstance::new(slot, options.execution_limit))),
            false => Instance::Batch(Box::new(BatchInstance::new(slot, config.max_batch_size > 0, apart.clone()))),
        };
        instances.push(reshaped(&config, instance));
    }
    let policy = policy(&config, instances.len(), apart.filter(|_| !config.decoupled));
    Ok(LoadedModel { config, instances, background: Vec::new(), guests: Vec::new(), policy, canary: None })
}

/// The model file of a version, absolute: the child may change its folder.
fn model_file(source: &ModelSource<'_>) -> Result<PathBuf, LoadError> {
    let named = match source.config.default_model_filename.as_str() {
        "" => MODEL_FILE,
        name => name,
    };
    let path = source.version_path.join(named);
    // A link stays one: what lies beside it belongs to the model.
    path.metadata().and_then(|_| std::path::absolute(&path)).map_err(|error| {
        let error = std::io::Error::new(error.kind(), format!("{error}{}", instead(source.version_path)));
        LoadError::File { model: source.config.name.clone(), path, source: error }
    })
}

/// The instances that a configuration asks for, at least one. Tensors are in CPU memory for every kind of instance; a model
/// that computes on a GPU moves them itself.
fn places(config: &ModelConfig) -> Vec<InstancePlace> {
    let mut places = Vec::new();
    for (number, group) in config.instance_groups.iter().enumerate() {
        let (kind, mut devices) = match group.kind {
            InstanceKind::Gpu => ("GPU", group.gpus.clone()),
            InstanceKind::Model => ("MODEL", Vec::new()),
            InstanceKind::Auto | InstanceKind::Cpu => ("CPU", Vec::new()),
        };
        if devices.is_empty() {
            devices.push(0);
        }
        for device in devices {
            for index in 0..group.count.max(1) {
                let name = match kind {
                    "GPU" => format!("{}_{number}_gpu{device}_{index}", config.name),
                    _ => format!("{}_{number}_{index}", config.name),
                };
                places.push(InstancePlace { name, kind, device });
            }
        }
    }
    if places.is_empty() {
        places.push(InstancePlace { name: format!("{}_0_0", config.name), kind: "CPU", device: 0 });
    }
    places
}
