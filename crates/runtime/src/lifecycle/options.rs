//! The options of a worker, and the errors of its start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use trireme_bus::BusError;
use trireme_engine::LoadError;
use trireme_model_repository::{ModelSources, RepositoryError};

use crate::faults;
use crate::lifecycle::control_mode::ControlOptions;
use crate::observe::statistics::Statistics;
use crate::response_cache::CacheConfig;

/// How many models are loaded at the same time by default, as in Triton.
pub(crate) const LOAD_THREADS: usize = 4;

/// How a worker treats live workers that have other files under a name and version that it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OtherContent {
    /// It takes no work of the model until they are gone.
    #[default]
    Wait,
    /// It serves the model, and they stop to.
    Switch,
}

/// Options of a worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The worker's name, unique among all processes.
    pub name: String,
    /// The service it is part of: `tokenizer`, `model`, `postprocess`, `trireme`.
    pub service: String,
    /// Model repositories.
    pub model_repository: Vec<PathBuf>,
    /// Keeps those among them that were derived of model folders.
    pub sources: Option<Arc<ModelSources>>,
    /// Whether backends may complete configurations.
    pub auto_complete: bool,
    /// Whether instance groups of `KIND_GPU` run on the CPU.
    pub gpu_groups_on_cpu: bool,
    /// Which models are served.
    pub control: ControlOptions,
    /// The statistics of this process, under the worker's name.
    pub statistics: Statistics,
    /// How many models are loaded at the same time, 1 or more.
    pub load_threads: usize,
    /// How long the load of a model may take; `None` is for ever.
    pub load_limit: Option<Duration>,
    /// How long one execution may take before the worker counts as hung; `None` is for ever.
    pub execution_limit: Option<Duration>,
    /// An idle model leaves the memory after this time; `None` is never.
    pub keep_alive: Option<Duration>,
    /// The canary request is executed after a model had no traffic for this time; `None` is never.
    pub canary: Option<Duration>,
    /// The cache for answers of steps, if there is one.
    pub cache: Option<CacheConfig>,
    /// How it treats workers with other files under the same names.
    pub other_content: OtherContent,
}

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model repository is broken; all of its faults.
    #[error("model repository: {}", faults::list(.0))]
    Repository(Vec<Arc<RepositoryError>>),
    /// Models that could not be loaded; all of their faults.
    #[error("{}", faults::list(.0))]
    Load(Vec<LoadError>),
    /// The repository has no model for this service.
    #[error("model repository {repository} holds no model for the {service} service (backend {backends})")]
    NothingToServe {
        /// The repository's paths.
        repository: String,
        /// The service.
        service: String,
        /// The backends it hosts.
        backends: String,
    },
    /// An error of the bus.
    #[error(transparent)]
    Bus(#[from] BusError),
}

// === impl WorkerOptions ===

impl WorkerOptions {
    /// A worker with the name of `statistics` that serves all models of these repositories, without limits.
    pub fn new(service: &str, model_repository: Vec<PathBuf>, statistics: Statistics) -> WorkerOptions {
        WorkerOptions {
            name: statistics.process().to_owned(),
            service: service.to_owned(),
            model_repository,
            sources: None,
            auto_complete: true,
            gpu_groups_on_cpu: false,
            control: ControlOptions::default(),
            statistics,
            load_threads: LOAD_THREADS,
            load_limit: None,
            execution_limit: None,
            keep_alive: None,
            canary: None,
            cache: None,
            other_content: OtherContent::default(),
        }
    }
}
