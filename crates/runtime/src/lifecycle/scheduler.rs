//! Decides which models a worker hosts: by the flags at the start, then by changes of the repository or by commands.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use trireme_engine::LoadError;
use trireme_inference::Name;
use trireme_model_repository::{Repository, RepositoryError, RepositoryModel};

use super::control_mode::ControlMode;
use super::model_control::{Outcome, Override, Participant, Participation};
use super::models::{Applied, Models};
use super::options::StartError;
use super::reading::{find_model, read_again};
use crate::faults;

/// Carries out the commands and changes for a worker's models.
pub(crate) struct Scheduler {
    models: Arc<Models>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Loads the models to serve at the start, and follows changes from then on.
    pub async fn start(models: Arc<Models>) -> Result<(), StartError> {
        let control = &models.options.control;
        let joined = match control.mode {
            ControlMode::Explicit => {
                let name = format!("{}/worker", models.shared.name);
                Some(Participation::join(models.shared.bus.clone(), name).await?)
            }
            ControlMode::None | ControlMode::Poll => None,
        };
        let mut repository = Repository::read_what_is_there(&models.options.model_repository, &[]);
        if !repository.unreadable().is_empty() && control.exit_on_error {
            return Err(StartError::Repository(repository.unreadable().to_vec()));
        }
        for fault in repository.unreadable() {
            tracing::error!(%fault, "a model repository could not be read");
        }
        let mut wanted = control.initial(&repository);
        if let Some(joined) = &joined {
            // Changes by request have precedence over the flags.
            for change in joined.memory().changes() {
                let name = change.model;
                match change.wanted {
                    None => drop(wanted.remove(&name)),
                    Some(with) => match models.find(&name, &with).await {
                        Ok(Some(model)) => {
                            repository.insert(model);
                            wanted.insert(name);
                        }
                        Ok(None) => {}
                        Err(error) => {
                            tracing::error!(model = name, %error, "a model that was loaded by request is broken")
                        }
                    },
                }
            }
        }
        // Changes are carried out from now on: a first load that hangs holds up its own model only.
        let tasks = &models.shared.tasks;
        match joined {
            Some(joined) => joined.serve(Arc::new(Scheduler { models: models.clone() }), tasks),
            None if control.mode == ControlMode::Poll => {
                tasks.spawn_until_stop("repository poll", poll(models.clone()))
            }
            None => {}
        }
        models.load_first(&repository, &wanted.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    fn outcome(model: &str, applied: Result<Applied, trireme_bus::BusError>) -> Outcome {
        match applied {
            Ok(applied) if !applied.mine => Outcome::NotMine,
            Ok(applied) if applied.faults.is_empty() => Outcome::Done(applied.entries),
            Ok(applied) => {
                let faults = applied
                    .faults
                    .iter()
                    .map(|(version, fault)| format!("version {version} is at UNAVAILABLE state: {};", fault.reason()));
                let why = faults.collect::<Vec<_>>().join(" ");
                Outcome::Failed { why, entries: applied.entries }
            }
            Err(error) => Outcome::failed(format!("model '{model}' is loaded but takes no work: {error}")),
        }
    }
}

#[async_trait]
impl Participant for Scheduler {
    async fn load(&self, model: &str, with: &Override) -> Outcome {
        match self.models.find(model, with).await {
            Ok(None) => Outcome::NotMine,
            Ok(Some(found)) => {
                let applied = self.models.apply(&found, true).await;
                applied.iter().for_each(|applied| log_faults(model, applied));
                Scheduler::outcome(model, applied)
            }
            Err(error @ RepositoryError::NoVersion { .. }) => Outcome::failed(error.to_string()),
            Err(error) => Outcome::Unreadable(error.to_string()),
        }
    }

    async fn unload(&self, model: &str) -> Outcome {
        match self.models.unload(model).await {
            Some(entries) => Outcome::Done(entries),
            None => Outcome::NotMine,
        }
    }

    async fn wanted_changed(&self, model: &str, wanted: Option<&Override>) {
        // Usually this process has already carried out the command, and nothing is left to do.
        match wanted {
            Some(with) => {
                if let outcome @ (Outcome::Failed { .. } | Outcome::Unreadable(_)) = self.load(model, with).await {
                    tracing::error!(model, ?outcome, "a model that other workers have loaded could not be loaded");
                }
            }
            None => drop(self.models.unload(model).await),
        }
    }
}

// === impl Models ===

impl Models {
    async fn find(&self, name: &str, with: &Override) -> Result<Option<RepositoryModel>, RepositoryError> {
        find_model(&self.options.model_repository, name, with).await
    }

    /// Loads the models in `wanted`. All faults are reported together.
    async fn load_first(self: &Arc<Self>, repository: &Repository, wanted: &[&str]) -> Result<(), StartError> {
        let control = &self.options.control;
        let broken: Vec<_> = repository.broken().filter(|(name, _)| control.concerns(name)).collect();
        if control.exit_on_error && !broken.is_empty() {
            return Err(StartError::Repository(broken.into_iter().map(|(_, broken)| broken.fault.clone()).collect()));
        }
        for (model, broken) in &broken {
            tracing::error!(model, fault = %broken.fault, "a model directory is broken");
        }
        if let Err(empty) = repository.check_not_empty(&self.options.model_repository) {
            match control.mode {
                ControlMode::None => return Err(StartError::Repository(vec![Arc::new(empty)])),
                ControlMode::Explicit | ControlMode::Poll => tracing::warn!("model repository: {empty}"),
            }
        }
        let models: Vec<_> = wanted.iter().filter_map(|name| repository.model(name)).collect();
        let said = Mutex::new(HashMap::new());
        let applying = models.iter().map(async |model| {
            let applied = self.apply(model, true).await;
            // Models that fail after this one fail because the worker gives up.
            let is_cause = !self.hopeless.is_cancelled();
            if control.exit_on_error && applied.as_ref().map_or(true, Applied::is_broken) {
                self.hopeless.cancel();
            } else if let Ok(applied) = &applied {
                log_first_faults(&model.name, applied, &mut said.lock());
            }
            (is_cause, applied)
        });
        let (mut mine, mut faults, mut failed) = (false, Vec::<LoadError>::new(), None);
        for (is_cause, applied) in join_all(applying).await {
            match applied {
                Ok(applied) => {
                    mine |= applied.mine;
                    if !applied.is_broken() {
                        continue;
                    }
                    faults.extend(applied.faults.into_iter().map(|(_, fault)| fault));
                }
                Err(error) if is_cause => failed = Some(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if control.exit_on_error && !faults.is_empty() {
            return Err(StartError::Load(faults));
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        if !mine && control.mode == ControlMode::None && repository.unreadable().is_empty() {
            let paths = self.options.model_repository.iter().map(|path| path.display().to_string());
            return Err(StartError::NothingToServe {
                repository: paths.collect::<Vec<_>>().join(", "),
                service: self.options.service.clone(),
                backends: self.backends(),
            });
        }
        Ok(())
    }
}

/// As [`log_faults`], for the first loads: a fault that another model has, too, such as a library that is missing, is in the log once. `said` has
/// the model that it was logged for, by fault.
fn log_first_faults(model: &str, applied: &Applied, said: &mut HashMap<String, String>) {
    for (version, fault) in &applied.faults {
        let text = fault.to_string();
        let alone = faults::of_model(&text).map_or(&*text, |(_, fault)| fault);
        match said.get(alone).filter(|other| *other != model) {
            Some(other) => tracing::error!(model, version, "a model version could not be loaded, as model '{other}'"),
            None => {
                tracing::error!(model, version, %fault, "a model version could not be loaded");
                said.insert(alone.to_owned(), model.to_owned());
            }
        }
    }
}

/// Logs why versions of a model could not be loaded, where the worker goes on without them.
fn log_faults(model: &str, applied: &Applied) {
    for (version, fault) in &applied.faults {
        tracing::error!(model, version, %fault, "a model version could not be loaded");
    }
}

/// Follows the repository's changes. A model whose directory is broken meanwhile stays as it was. A model with which something is still done
/// is looked at again later, so that it holds up no other.
async fn poll(models: Arc<Models>) {
    let mut ticks = tokio::time::interval(models.options.control.poll);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    let (mut reading, mut complained) = (None, Vec::new());
    let (mut changing, mut changed) = (FuturesUnordered::new(), BTreeSet::new());
    loop {
        let read = tokio::select! {
            _ = ticks.tick(), if reading.is_none() => {
                reading = Some(read_again(&models.options.model_repository));
                continue;
            }
            read = until_read(&mut reading) => read,
            Some(name) = changing.next() => {
                changed.remove(&name);
                continue;
            }
            () = models.pulling.cancelled() => break,
        };
        reading = None;
        let repository = match read {
            Ok(repository) => repository,
            Err(faults) => {
                tracing::error!(?faults, "the model repository could not be read; the served models stay");
                continue;
            }
        };
        let complaints: Vec<_> = repository.broken().map(|(_, broken)| broken.fault.to_string()).collect();
        for complaint in complaints.iter().filter(|complaint| !complained.contains(*complaint)) {
            tracing::error!(fault = complaint, "a model directory is broken; its served versions stay");
        }
        complained = complaints;
        let is_there =
            |name: &str| repository.model(name).is_some() || repository.broken().any(|(broken, _)| broken == name);
        let gone = models.names().into_iter().filter(|name| !is_there(name)).map(|name| (name, None));
        let there = repository.models().map(|model| (Name::from(model.name.as_str()), Some(model.clone())));
        for (name, model) in there.chain(gone) {
            if changed.insert(name.clone()) {
                changing.push(follow_one(models.clone(), name, model));
            }
        }
    }
    // Changes that have begun run to their end.
    while changing.next().await.is_some() {}
}

/// The repository, when it is read; waits for ever where nobody reads it.
async fn until_read<T>(reading: &mut Option<BoxFuture<'_, T>>) -> T {
    match reading {
        Some(reading) => reading.await,
        None => std::future::pending().await,
    }
}

/// Serves a model as it is in the repository now, or no more where it is gone. Returns its name.
async fn follow_one(models: Arc<Models>, name: Name, model: Option<RepositoryModel>) -> Name {
    match model {
        Some(model) => match models.apply(&model, false).await {
            Ok(applied) => log_faults(&model.name, &applied),
            Err(error) => tracing::error!(model = model.name, %error, "a model is loaded but takes no work"),
        },
        None => drop(models.unload(&name).await),
    }
    name
}
