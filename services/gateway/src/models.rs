//! Loading and unloading models by request: the gateway's commands to workers, and its own part, the ensembles.
//!
//! Every gateway is a participant, as workers are, so that all gateways know which ensembles are served, whichever gateway got
//! the request. In poll mode each follows the repository by itself.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use trireme_bus::{Bus, BusError};
use trireme_inference::{InferError, shown};
use trireme_model_repository::{Repository, RepositoryError, RepositoryModel};
use trireme_runtime::model_control::{self, Memory, Outcome, Outcomes, Override, Participant, Participation};
use trireme_runtime::{ControlMode, ControlOptions, TaskSet, faults, find_model, read_again};

use crate::registry::Registry;

/// How long the load of an ensemble may wait for its composing models: other gateways see them through the registry.
const REGISTRY_LAG: Duration = Duration::from_secs(2);

/// How often the registry is checked for them.
const TICK: Duration = Duration::from_millis(20);

/// How long after its own start a gateway waits for a worker that can load a model, and the pause between two tries.
const STARTING: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(500);

/// Where models come from, and when they are loaded.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// Model repositories.
    pub model_repository: Vec<PathBuf>,
    /// Which models are served.
    pub control: ControlOptions,
}

/// A gateway's model control. Clones are the same.
#[derive(Clone)]
pub struct ModelControl(Arc<Inner>);

struct Inner {
    bus: Arc<dyn Bus>,
    /// This gateway's name among the participants.
    participant: String,
    options: ModelOptions,
    registry: Registry,
    memory: Memory,
    tasks: TaskSet,
    started: Instant,
}

// === impl ModelOptions ===

impl ModelOptions {
    /// Reads the repositories. A broken repository is an error, unless errors shall not end the process. No paths give an empty
    /// repository.
    pub fn read(&self) -> anyhow::Result<Repository> {
        let unreadable = |faults: Vec<String>| anyhow::anyhow!("model repository: {}", faults::list(faults));
        let repository = Repository::read_what_is_there(&self.model_repository, &[]);
        let control = &self.control;
        let missing = repository.unreadable().iter().map(ToString::to_string).collect::<Vec<_>>();
        if !missing.is_empty() && control.exit_on_error {
            let cure = "--model-repository names a folder that holds model folders";
            return Err(anyhow::anyhow!("{}; {cure}", unreadable(missing)));
        }
        let broken = repository.broken().filter(|(name, _)| control.concerns(name));
        let faults: Vec<_> = broken.map(|(_, broken)| broken.fault.to_string()).collect();
        if !faults.is_empty() && control.exit_on_error {
            return Err(unreadable(faults));
        }
        let missing = control.load.iter().filter(|name| *name != "*" && repository.model(name).is_none());
        let missing: Vec<_> = missing.map(String::as_str).collect();
        if !missing.is_empty() && !self.model_repository.is_empty() && control.exit_on_error && faults.is_empty() {
            anyhow::bail!("--load-model names models that are in no model repository: {}", missing.join(", "));
        }
        Ok(repository)
    }

    /// Logs the faults of a repository that is served all the same.
    pub fn log_faults(&self, repository: &Repository) {
        for fault in repository.unreadable() {
            tracing::error!(%fault, "a model repository could not be read; it is served without it");
        }
        for (model, broken) in repository.broken().filter(|(name, _)| self.control.concerns(name)) {
            tracing::error!(model, fault = %broken.fault, "a model directory is broken");
        }
    }
}

// === impl ModelControl ===

impl ModelControl {
    /// Joins the participants in explicit mode; follows the repository in poll mode.
    pub async fn start(
        bus: Arc<dyn Bus>,
        name: &str,
        options: ModelOptions,
        registry: Registry,
        tasks: &TaskSet,
    ) -> Result<ModelControl, BusError> {
        let (mode, participant) = (options.control.mode, format!("{name}/gateway"));
        let joined = match mode {
            ControlMode::Explicit => Some(Participation::join(bus.clone(), participant.clone()).await?),
            ControlMode::None | ControlMode::Poll => None,
        };
        let memory = joined.as_ref().map(|joined| joined.memory().clone()).unwrap_or_default();
        let (tasks, started) = (tasks.clone(), Instant::now());
        let inner =
            Inner { bus, participant, options, registry, memory: memory.clone(), tasks: tasks.clone(), started };
        let control = ModelControl(Arc::new(inner));
        for change in memory.changes() {
            control.wanted_changed(&change.model, change.wanted.as_ref()).await;
        }
        if let Some(joined) = joined {
            joined.serve(Arc::new(control.clone()), &tasks);
        }
        if mode == ControlMode::Poll {
            tasks.spawn_until_stop("repository poll", control.clone().poll());
        }
        Ok(control)
    }

    /// Loads a model, and an ensemble's composing models. Goes on when the client leaves: half a load would be worse.
    pub async fn load(&self, model: &str, with: Override) -> Result<(), InferError> {
        self.check_mode()?;
        let (this, model) = (self.clone(), model.to_owned());
        self.run(async move { this.load_now(&model, with).await }).await
    }

    /// Unloads a model; with `dependents`, also an ensemble's composing models, unless another ensemble needs them.
    pub async fn unload(&self, model: &str, dependents: bool) -> Result<(), InferError> {
        self.check_mode()?;
        let (this, model) = (self.clone(), model.to_owned());
        self.run(async move { this.unload_now(&model, dependents).await }).await
    }

    fn check_mode(&self) -> Result<(), InferError> {
        match self.0.options.control.mode {
            ControlMode::Explicit => Ok(()),
            ControlMode::None | ControlMode::Poll => {
                Err(InferError::unavailable("explicit model load / unload is not allowed if polling is enabled"))
            }
        }
    }

    async fn run(&self, work: impl Future<Output = Result<(), InferError>> + Send + 'static) -> Result<(), InferError> {
        let (done, outcome) = tokio::sync::oneshot::channel();
        self.0.tasks.spawn_until_stop("model request", async move {
            let _ = done.send(work.await);
        });
        outcome.await.unwrap_or_else(|_| Err(InferError::unavailable("the server is stopping")))
    }

    async fn load_now(&self, model: &str, with: Override) -> Result<(), InferError> {
        let with = self.lasting(model, &with).unwrap_or(with);
        for part in self.parts_of(model, &with).await {
            if self.0.registry.catalog().find(&part, None).is_ok() {
                continue;
            }
            // A model that cannot be loaded is named in the ensemble's own error.
            let answers = self.command(&part, Some(&Override::default())).await?;
            if self.judge(&part, &answers).await.is_ok() {
                self.write_wanted(&part, Some(Override::default()), true).await?;
            }
        }
        let mut answers = self.command(model, Some(&with)).await?;
        // Workers that start beside this gateway may not hear it yet.
        while answers.values().all(|outcome| *outcome == Outcome::NotMine)
            && self.0.started.elapsed() < STARTING
            && matches!(self.find(model, &with).await, Ok(Some(found)) if !found.config.is_ensemble())
        {
            tokio::time::sleep(AGAIN).await;
            answers = self.command(model, Some(&with)).await?;
        }
        self.judge(model, &answers).await?;
        self.write_wanted(model, Some(with), false).await
    }

    /// The earlier configuration that a load without one keeps, as Triton does: until config.pbtxt is changed or the model is
    /// unloaded.
    fn lasting(&self, model: &str, with: &Override) -> Option<Override> {
        let earlier = self.0.memory.get(model)?.wanted.filter(|earlier| with.is_plain() && earlier.is_lasting())?;
        let files = self.0.options.model_repository.iter().map(|path| path.join(model).join("config.pbtxt"));
        let changed = files.filter_map(|file| file.metadata().ok()?.modified().ok());
        let since = SystemTime::UNIX_EPOCH + Duration::from_micros(earlier.since.0);
        (!changed.into_iter().any(|changed| changed > since)).then_some(earlier)
    }

    /// The composing models of an ensemble that are not ensembles themselves, by the repository as it is now.
    async fn parts_of(&self, model: &str, with: &Override) -> Vec<String> {
        let Ok(Some(found)) = self.find(model, with).await else { return Vec::new() };
        let Some(steps) = &found.config.ensemble else { return Vec::new() };
        let mut parts: BTreeSet<String> = steps.iter().map(|step| step.model_name.clone()).collect();
        for step in steps {
            parts.extend(self.0.registry.composing(&step.model_name));
        }
        parts.into_iter().collect()
    }

    async fn unload_now(&self, model: &str, dependents: bool) -> Result<(), InferError> {
        let mut leaving = vec![model.to_owned()];
        if dependents {
            let named = &self.0.options.control.load;
            let implied = |part: &String| match self.0.memory.get(part) {
                Some(change) => change.implied,
                None => !named.contains(part),
            };
            let parts = self.0.registry.composing(model).into_iter();
            leaving.extend(parts.filter(|part| implied(part) && !self.0.registry.is_needed(part, model)));
        }
        for model in leaving {
            let answers = self.command(&model, None).await?;
            if answers.values().any(|outcome| matches!(outcome, Outcome::Done(_))) {
                self.write_wanted(&model, None, false).await?;
            }
        }
        Ok(())
    }

    /// Sends the command to all participants, and takes the registry entries in their answers in at once.
    async fn command(&self, model: &str, wanted: Option<&Override>) -> Result<Outcomes, InferError> {
        let workers = self.0.registry.workers().into_iter().map(|(name, _)| format!("{name}/worker"));
        let expected = workers.chain([self.0.participant.clone()]).collect();
        let answers = model_control::command(self.0.bus.as_ref(), &self.0.memory, model, wanted, &expected).await;
        let answers = answers.map_err(|error| InferError::from(&error))?;
        self.0.registry.take(answers.values().flat_map(Outcome::entries).cloned());
        Ok(answers)
    }

    /// The result of a load, in Triton's words.
    async fn judge(&self, model: &str, answers: &Outcomes) -> Result<(), InferError> {
        let unpolled = |why: &str| {
            let model = shown(model);
            InferError::internal(format!("failed to load '{model}', failed to poll from model repository{why}"))
        };
        let mut failed = BTreeSet::new();
        for outcome in answers.values() {
            match outcome {
                Outcome::Unreadable(why) => return Err(unpolled(&format!(": {why}"))),
                Outcome::Failed { why, .. } => drop(failed.insert(why.as_str())),
                Outcome::Done(_) | Outcome::NotMine => {}
            }
        }
        if !failed.is_empty() {
            let why: Vec<_> = failed.into_iter().collect();
            return Err(InferError::invalid_arg(format!("load failed for model '{model}': {}\n", why.join("\n"))));
        }
        if answers.values().any(|outcome| matches!(outcome, Outcome::Done(_))) {
            return Ok(());
        }
        match self.find(model, &Override::default()).await {
            Ok(Some(found)) if !found.config.is_ensemble() => Err(InferError::unavailable(format!(
                "load failed for model '{model}': no worker is there for backend '{}'",
                found.config.backend
            ))),
            _ => Err(unpolled("")),
        }
    }

    /// Writes the wanted state into the store, for all processes and for those that start later.
    async fn write_wanted(&self, model: &str, wanted: Option<Override>, implied: bool) -> Result<(), InferError> {
        model_control::write_wanted(self.0.bus.as_ref(), &self.0.memory, model, wanted, implied)
            .await
            .map_err(|error| InferError::from(&error))
    }

    async fn find(&self, model: &str, with: &Override) -> Result<Option<RepositoryModel>, RepositoryError> {
        find_model(&self.0.options.model_repository, model, with).await
    }

    async fn poll(self) {
        let mut ticks = tokio::time::interval(self.0.options.control.poll);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            match read_again(&self.0.options.model_repository).await {
                Ok(repository) => self.0.registry.replace(repository),
                Err(faults) => {
                    tracing::error!(?faults, "the model repository could not be read; the served models stay")
                }
            }
        }
    }
}

#[async_trait]
impl Participant for ModelControl {
    async fn load(&self, model: &str, with: &Override) -> Outcome {
        let found = match self.find(model, with).await {
            Ok(Some(found)) if found.config.is_ensemble() => found,
            Ok(_) => return Outcome::NotMine,
            Err(error @ (RepositoryError::NoVersion { .. } | RepositoryError::Ensemble(_))) => {
                return Outcome::failed(error.to_string());
            }
            Err(error) => return Outcome::Unreadable(error.to_string()),
        };
        let until = tokio::time::Instant::now() + REGISTRY_LAG;
        loop {
            match self.0.registry.try_ensemble(&found) {
                Ok(()) => return Outcome::Done(Vec::new()),
                Err(error) if tokio::time::Instant::now() >= until => return Outcome::failed(error.to_string()),
                Err(_) => tokio::time::sleep(TICK).await,
            }
        }
    }

    async fn unload(&self, model: &str) -> Outcome {
        match self.find(model, &Override::default()).await {
            Ok(Some(found)) if found.config.is_ensemble() => Outcome::Done(Vec::new()),
            _ => Outcome::NotMine,
        }
    }

    async fn wanted_changed(&self, model: &str, wanted: Option<&Override>) {
        let found = match wanted {
            Some(with) => self.find(model, with).await.unwrap_or_else(|error| {
                tracing::error!(model, %error, "a model that workers have loaded is broken in this gateway's repository");
                None
            }),
            None => None,
        };
        self.0.registry.want(model, found, wanted.is_some());
    }

    fn restores(&self) -> bool {
        true
    }
}
