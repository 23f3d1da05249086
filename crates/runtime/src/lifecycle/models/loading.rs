//! Loading: makes the hosted versions of a model match the repository.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join};
use tokio::sync::SemaphorePermit;
use trireme_bus::{BusError, Content, ModelState, WorkerEntry};
use trireme_engine::{Backend, IdleCalls, LoadError, LoadOptions, backend_of, load_watched};
use trireme_inference::ModelKey;
use trireme_model_repository::RepositoryModel;

use super::hosting::NotHosted;
use super::retire::QUIET;
use super::{Applied, LAST_LOADS, Models, Version};
use crate::intake::IdleModel;
use crate::lifecycle::WorkerOptions;

/// A model that waits for this time for other loads is announced in the registry.
const SAID_AFTER: Duration = Duration::from_secs(1);

fn no_more_work() -> BusError {
    BusError::Unreachable("the worker takes no more work".to_owned())
}

// === impl Models ===

impl Models {
    /// Serves the model as it is in the repository now. A version that failed to load is tried again with `retry`, or
    /// when its files have changed. Waits for the model's turn, and for a place among the loads.
    pub async fn apply(self: &Arc<Self>, model: &RepositoryModel, retry: bool) -> Result<Applied, BusError> {
        let _turn = self.turns.of(&model.name).await;
        let backend = match backend_of(model, &self.backends) {
            Ok(Some(backend)) => backend,
            Ok(None) => {
                // The model may have been hosted here before its configuration changed. Now other workers serve its queue; an ensemble has
                // no workers.
                let quiet = if model.config.is_ensemble() { QUIET } else { Duration::ZERO };
                self.retire(&model.name, &[], quiet).await;
                return Ok(Applied::default());
            }
            Err(fault) => {
                let version = model.versions.last().copied().unwrap_or(1);
                if self.is_current(model, version, retry) {
                    return Ok(Applied::default());
                }
                self.refuse(model, version, &fault).await;
                let (entries, faults) = (self.entries_of(&model.name), vec![(version, fault)]);
                return Ok(Applied { mine: true, entries, faults });
            }
        };
        let changed: Vec<i64> =
            model.versions.iter().copied().filter(|version| !self.is_current(model, *version, retry)).collect();
        let place = if changed.is_empty() { None } else { Some(self.place(model, &changed).await?) };
        let asks_for_gpus = |version: &i64| model.config_of(*version).with_gpu_groups_on_cpu().is_some();
        if self.options.gpu_groups_on_cpu && changed.iter().any(asks_for_gpus) {
            tracing::warn!(model = model.name, "its instance groups of KIND_GPU run on the CPU (--gpu-groups-on-cpu)");
        }
        let loading = changed.iter().map(|&version| {
            let announce = async move |doing| self.announce_load(model, version, doing).await;
            let key = ModelKey { name: model.name.as_str().into(), version };
            let loading = load_watched(model, version, backend.clone(), self.load_options(key), announce);
            try_join(loading, self.read_content(model, version, backend.clone()))
        });
        let given_up = async {
            self.hopeless.cancelled().await;
            tokio::time::sleep(LAST_LOADS).await;
        };
        let outcomes = tokio::select! {
            outcomes = join_all(loading) => outcomes,
            () = given_up => return Err(no_more_work()),
        };
        let (mut loaded, mut faults) = (Vec::new(), Vec::new());
        for (version, outcome) in changed.into_iter().zip(outcomes) {
            let proven = match outcome {
                Ok(((instance, initial_states, took), content)) => {
                    self.prove(&model.name, instance, initial_states, took, content).await
                }
                Err(fault) => Err(fault),
            };
            match proven {
                Ok(instance) => loaded.push((version, instance)),
                Err(fault) => faults.push((version, fault)),
            }
        }
        drop(place);
        for (version, fault) in &faults {
            self.refuse(model, *version, fault).await;
        }
        for (version, instance) in loaded {
            let name = model.name.clone();
            let fault = match self.host(model, version, &backend, instance).await {
                Ok(()) => continue,
                Err(NotHosted::Threads(error)) => LoadError::Backend { model: name, reason: error.to_string() },
                Err(NotHosted::Bus(BusError::OverLimit { reason })) => LoadError::NoQueue { model: name, reason },
                Err(NotHosted::Bus(error)) => return Err(error),
            };
            self.refuse(model, version, &fault).await;
            faults.push((version, fault));
        }
        let mut entries = match faults.is_empty() {
            true => self.retire(&model.name, &model.versions, QUIET).await,
            false => Vec::new(),
        };
        entries.extend(self.entries_of(&model.name));
        Ok(Applied { mine: true, entries, faults })
    }

    /// How a version is loaded.
    pub(super) fn load_options(&self, key: ModelKey) -> LoadOptions {
        let WorkerOptions { auto_complete, gpu_groups_on_cpu, load_limit: limit, .. } = self.options;
        let calls = IdleCalls::of(Arc::new(IdleModel { key, worker: self.shared.clone() }));
        LoadOptions { auto_complete, gpu_groups_on_cpu, limit, calls }
    }

    /// Stops serving the model. `None` if it is not hosted here.
    pub async fn unload(&self, model: &str) -> Option<Vec<WorkerEntry>> {
        let _turn = self.turns.of(model).await;
        let known = self.versions.lock().keys().any(|key| key.name == model);
        let entries = self.retire(model, &[], QUIET).await;
        known.then_some(entries)
    }

    /// Waits for a place among the models that are loaded at the same time. Errors when the worker takes no more work.
    async fn place(&self, model: &RepositoryModel, versions: &[i64]) -> Result<SemaphorePermit<'_>, BusError> {
        let waiting = async {
            if let Ok(place) = tokio::time::timeout(SAID_AFTER, self.loads.acquire()).await {
                return place;
            }
            let others = self.options.load_threads;
            for &version in versions {
                let doing = format!("waiting for one of {others} other loads to end (--model-load-thread-count)");
                self.announce_load(model, version, doing).await;
            }
            self.loads.acquire().await
        };
        let place = self.hopeless.run_until_cancelled(waiting).await.and_then(Result::ok);
        place.ok_or_else(no_more_work)
    }

    /// The content of a version, for as long as its load may take.
    async fn read_content(
        &self,
        model: &RepositoryModel,
        version: i64,
        backend: Arc<dyn Backend>,
    ) -> Result<Option<Content>, LoadError> {
        let limit = self.options.load_limit.unwrap_or(Duration::MAX);
        let reading = self.content_of(model, version, backend);
        tokio::time::timeout(limit, reading).await.map_err(|_| LoadError::Backend {
            model: model.name.clone(),
            reason: format!("its files were not read within {} s (--model-load-limit-secs)", limit.as_secs_f32()),
        })
    }

    /// Whether the last attempt to load the version used the current files. With `retry`, a failed attempt does not
    /// count.
    fn is_current(&self, model: &RepositoryModel, version: i64, retry: bool) -> bool {
        let key = ModelKey { name: model.name.as_str().into(), version };
        let versions = self.versions.lock();
        versions
            .get(&key)
            .is_some_and(|known| known.fingerprint == model.fingerprint(version) && !(known.failed && retry))
    }

    /// Announces in the registry that a version is loading, if none of its instances serves meanwhile.
    async fn announce_load(&self, model: &RepositoryModel, version: i64, doing: String) {
        let key = ModelKey { name: model.name.as_str().into(), version };
        let mut said = self.said.lock().await;
        if self.versions.lock().get(&key).is_some_and(|known| known.running.is_some()) {
            return;
        }
        let mut entry = self.entry(&key, ModelState::Loading(doing), model.config_of(version).to_json(), 0);
        if let Err(error) = self.announce(&mut said, &mut entry).await {
            tracing::debug!(model = %key, %error, "could not announce that it is loading");
        }
    }

    /// Handles a version that could not be loaded: a version that served before goes on; otherwise the registry entry
    /// says why the model is not available.
    async fn refuse(&self, model: &RepositoryModel, version: i64, fault: &LoadError) {
        let key = ModelKey { name: model.name.as_str().into(), version };
        let fingerprint = model.fingerprint(version);
        let mut said = self.said.lock().await;
        if let Some(known) = self.versions.lock().get_mut(&key).filter(|known| known.running.is_some()) {
            (known.fingerprint, known.failed) = (fingerprint, true);
            return;
        }
        let mut entry =
            self.entry(&key, ModelState::Unavailable(fault.reason()), model.config_of(version).to_json(), 0);
        if let Err(error) = self.announce(&mut said, &mut entry).await {
            tracing::warn!(model = %key, %error, "could not announce that it is not available yet; trying on");
        }
        self.versions.lock().insert(key, Version { entry, fingerprint, failed: true, running: None });
    }
}
