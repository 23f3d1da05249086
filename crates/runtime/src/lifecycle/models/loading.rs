//! Loading: makes the hosted versions of a model match the repository.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use trireme_bus::{BusError, ModelState, WorkerEntry};
use trireme_engine::{LoadError, backend_of, load_watched};
use trireme_inference::ModelKey;
use trireme_model_repository::RepositoryModel;

use super::retire::QUIET;
use super::{Applied, Models, Version};

// === impl Models ===

impl Models {
    /// Serves the model as it is in the repository now. A version that failed to load is tried again with `retry`, or
    /// when its files have changed.
    pub async fn apply(self: &Arc<Self>, model: &RepositoryModel, retry: bool) -> Result<Applied, BusError> {
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
        let loading = changed.iter().map(|&version| {
            let announce = async move |doing| self.announce_load(model, version, doing).await;
            let loading = load_watched(model, version, backend.clone(), self.options.auto_complete, announce);
            futures_util::future::join(loading, self.content_of(model, version))
        });
        let outcomes = join_all(loading).await;
        let (mut loaded, mut faults) = (Vec::new(), Vec::new());
        for (version, (outcome, content)) in changed.into_iter().zip(outcomes) {
            let proven = match outcome {
                Ok((instance, initial_states, took)) => {
                    self.prove(&model.name, instance, initial_states, took, content).await
                }
                Err(fault) => Err(fault),
            };
            match proven {
                Ok(instance) => loaded.push((version, instance)),
                Err(fault) => faults.push((version, fault)),
            }
        }
        for (version, fault) in &faults {
            self.refuse(model, *version, fault).await;
        }
        for (version, instance) in loaded {
            match self.host(model, version, instance).await {
                Err(BusError::OverLimit { reason }) => {
                    let fault = LoadError::NoQueue { model: model.name.clone(), reason };
                    self.refuse(model, version, &fault).await;
                    faults.push((version, fault));
                }
                hosted => hosted?,
            }
        }
        let mut entries = match faults.is_empty() {
            true => self.retire(&model.name, &model.versions, QUIET).await,
            false => Vec::new(),
        };
        entries.extend(self.entries_of(&model.name));
        Ok(Applied { mine: true, entries, faults })
    }

    /// Stops serving the model. `None` if it is not hosted here.
    pub async fn unload(&self, model: &str) -> Option<Vec<WorkerEntry>> {
        let known = self.versions.lock().keys().any(|key| key.name == model);
        let entries = self.retire(model, &[], QUIET).await;
        known.then_some(entries)
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
