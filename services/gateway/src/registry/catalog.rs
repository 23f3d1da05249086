//! A snapshot of what is served: made whole from worker entries and ensembles, then only read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use trireme_inference::{InferError, ModelKey, RoutePlan, TensorSpec};
use trireme_model_repository::{CompiledEnsemble, ModelConfig, Repository, compile_ensemble, plan_single};
use trireme_protocol::repository::{IndexEntry, IndexVersion};

/// What is served at one time.
#[derive(Debug, Default)]
pub struct Catalog {
    models: BTreeMap<String, Model>,
}

/// A model by name.
#[derive(Debug)]
struct Model {
    /// The versions that are ready.
    versions: BTreeMap<i64, Arc<ServedModel>>,
    /// Every version that is or was there.
    known: BTreeSet<i64>,
    /// Why it is not ready, where that is known.
    reason: Option<String>,
}

/// A model version that is ready, and how a request for it runs.
#[derive(Debug)]
pub struct ServedModel {
    /// Its configuration after auto-completion.
    pub config: Arc<ModelConfig>,
    /// Its inputs, batch dimension included.
    pub inputs: Vec<TensorSpec>,
    /// Its outputs, batch dimension included.
    pub outputs: Vec<TensorSpec>,
    /// The steps that a request for it makes.
    pub plan: RoutePlan,
}

type Served<'a> = BTreeMap<&'a str, BTreeMap<i64, Arc<ModelConfig>>>;

// === impl Catalog ===

impl Catalog {
    /// Puts together what workers serve and the ensembles made of it.
    pub(super) fn build(
        repository: &Repository,
        served: &Served<'_>,
        known: &BTreeMap<String, BTreeSet<i64>>,
    ) -> Catalog {
        let mut catalog = Catalog::default();
        for (name, known) in known {
            catalog
                .models
                .insert(name.clone(), Model { versions: BTreeMap::new(), known: known.clone(), reason: None });
        }
        for (&name, versions) in served {
            let Some(model) = catalog.models.get_mut(name) else { continue };
            for (&version, config) in versions {
                model.versions.insert(version, ServedModel::new(config, plan_single(config)));
            }
        }
        // The models an ensemble is made of: those that workers serve, and other ensembles.
        let lookup = |name: &str, version: Option<i64>| match repository.model(name) {
            Some(model) if model.config.is_ensemble() => Some(model.config.clone()),
            _ => {
                let versions = served.get(name)?;
                let found = match version {
                    Some(version) => versions.get(&version),
                    None => versions.values().next_back(),
                };
                found.cloned()
            }
        };
        for ensemble in repository.models().filter(|model| model.config.is_ensemble()) {
            let Some(model) = catalog.models.get_mut(&ensemble.name) else { continue };
            match compile_ensemble(&ensemble.config, &lookup) {
                Ok(CompiledEnsemble { config, plan }) => {
                    let served = ServedModel::new(&config, plan);
                    model.versions = ensemble.versions.iter().map(|&version| (version, served.clone())).collect();
                }
                Err(error) => model.reason = Some(error.to_string()),
            }
        }
        catalog
    }

    /// The version of a model that answers a request: the one asked for, or the highest that is ready. Errors with
    /// Triton's texts.
    pub fn find(&self, name: &str, version: Option<i64>) -> Result<(i64, &Arc<ServedModel>), InferError> {
        let unknown = |what: String| InferError::not_found(format!("Request for unknown model: {what} is not found"));
        let Some(model) = self.models.get(name) else {
            return Err(unknown(format!("'{name}'")));
        };
        let found = match version {
            Some(version) => model.versions.get_key_value(&version),
            None => model.versions.last_key_value(),
        };
        match (found, version) {
            (Some((&version, served)), _) => Ok((version, served)),
            (None, Some(version)) if !model.known.contains(&version) => {
                Err(unknown(format!("'{name}' version {version}")))
            }
            (None, version) => {
                let version = version.or(model.known.last().copied()).unwrap_or(-1);
                let mut text = format!("Request for unknown model: '{name}' version {version} is not at ready state");
                if let Some(reason) = &model.reason {
                    text = format!("{text}: {reason}");
                }
                Err(InferError::unavailable(text))
            }
        }
    }

    /// The ready versions of a model, ascending.
    pub fn ready_versions(&self, name: &str) -> Vec<i64> {
        self.models.get(name).map(|model| model.versions.keys().copied().collect()).unwrap_or_default()
    }

    /// Every model version that is ready, in order.
    pub fn ready(&self) -> Vec<ModelKey> {
        self.keys(|model| model.versions.keys().copied().collect())
    }

    /// Every model version that is or was there, in order.
    pub fn known(&self) -> Vec<ModelKey> {
        self.keys(|model| model.known.iter().copied().collect())
    }

    fn keys(&self, versions: impl Fn(&Model) -> Vec<i64>) -> Vec<ModelKey> {
        let of = |(name, model): (&String, &Model)| {
            let name = name.clone();
            versions(model).into_iter().map(move |version| ModelKey { name: name.clone(), version })
        };
        self.models.iter().flat_map(of).collect()
    }

    /// Models that are known but not ready, each with the reason where that is known.
    pub fn unready(&self) -> Vec<String> {
        let unready = self.models.iter().filter(|(_, model)| model.versions.is_empty());
        unready
            .map(|(name, model)| match &model.reason {
                Some(reason) => format!("model '{name}' is not ready: {reason}"),
                None => format!("model '{name}' is not ready: no worker serves it"),
            })
            .collect()
    }

    /// Every model and version that is known, in order, as the repository index lists them.
    pub fn index(&self) -> Vec<IndexEntry> {
        let mut index = Vec::new();
        for (name, model) in &self.models {
            let line = |version| IndexEntry { name: name.clone(), version };
            if model.known.is_empty() {
                index.push(line(None));
            }
            index.extend(model.known.iter().map(|&version| {
                let ready = model.versions.contains_key(&version);
                let reason = match (ready, &model.reason) {
                    (true, _) => String::new(),
                    (false, Some(reason)) => reason.clone(),
                    (false, None) => "no worker serves it".to_owned(),
                };
                line(Some(IndexVersion { version, ready, reason }))
            }));
        }
        index
    }

    /// Whether waiting makes no more models ready: those that are not have a reason of their own, no worker is missing.
    pub(super) fn is_final(&self) -> bool {
        self.models.values().all(|model| !model.versions.is_empty() || model.reason.is_some())
    }

    /// Logs what became ready and what no longer is.
    pub(super) fn log_changes(&self, before: &Catalog) {
        for (name, model) in &self.models {
            let was = before.models.get(name);
            for version in model.versions.keys() {
                if !was.is_some_and(|was| was.versions.contains_key(version)) {
                    tracing::info!(model = name, version, "model is ready");
                }
            }
            for version in was.iter().flat_map(|was| was.versions.keys()) {
                if !model.versions.contains_key(version) {
                    tracing::warn!(model = name, version, reason = model.reason, "model is no longer ready");
                }
            }
            if model.reason.is_some() && was.is_none_or(|was| was.reason != model.reason) {
                tracing::info!(model = name, reason = model.reason, "model is not ready");
            }
        }
    }
}

// === impl ServedModel ===

impl ServedModel {
    fn new(config: &Arc<ModelConfig>, plan: RoutePlan) -> Arc<ServedModel> {
        Arc::new(ServedModel {
            inputs: config.input_specs(),
            outputs: config.output_specs(),
            config: config.clone(),
            plan,
        })
    }

    /// What the protocol calls the model's platform.
    pub fn platform(&self) -> &str {
        match self.config.platform.as_str() {
            "" => &self.config.backend,
            platform => platform,
        }
    }
}
