//! A snapshot of what is served: made whole from worker entries and ensembles, then only read.

use std::collections::BTreeMap;
use std::sync::Arc;

use trireme_inference::{InferError, ModelKey, RoutePlan, TensorSpec};
use trireme_model_repository::{
    CompiledEnsemble, EnsembleError, ModelConfig, Repository, compile_ensemble, plan_single,
};
use trireme_protocol::repository::{IndexEntry, IndexState, IndexVersion};

use crate::handlers::Labels;

/// What is served at one time.
#[derive(Debug, Default)]
pub struct Catalog {
    models: BTreeMap<String, Model>,
    labels: Arc<Labels>,
}

/// A model by name.
#[derive(Debug, Default)]
struct Model {
    /// The versions that are ready.
    versions: BTreeMap<i64, Arc<ServedModel>>,
    /// Every version that is or was there, with what is known of those that are not ready.
    known: BTreeMap<i64, Unready>,
    /// Whether it is meant to be served.
    wanted: bool,
    /// Whether the server is not ready without it.
    required: bool,
    /// Why none of it is ready, where that is known.
    reason: Option<String>,
}

/// A version that is not ready.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Unready {
    /// No worker says anything of it.
    #[default]
    Absent,
    /// Its workers finish what they have.
    Unloading,
    /// A worker could not load it, or it has no configuration; why.
    Failed(String),
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

pub(super) type Served<'a> = BTreeMap<&'a str, BTreeMap<i64, Arc<ModelConfig>>>;

/// What a catalog is made of.
pub(super) struct Sources<'a> {
    /// Models as the repository has them.
    pub repository: &'a Repository,
    /// What workers serve.
    pub served: Served<'a>,
    /// Every model that may be asked for, with the versions that were ever there.
    pub known: BTreeMap<String, BTreeMap<i64, Unready>>,
    /// Whether a model is meant to be served.
    pub wanted: &'a dyn Fn(&str) -> bool,
    /// Whether the server is not ready without a model.
    pub required: &'a dyn Fn(&str) -> bool,
    /// Whether models are loaded and unloaded by request.
    pub by_request: bool,
}

/// What became of a version that was unloaded; Triton's word.
const UNLOADED: &str = "unloaded";

// === impl Catalog ===

impl Catalog {
    /// Puts together what workers serve and the ensembles made of it.
    pub(super) fn build(sources: Sources<'_>) -> Catalog {
        let Sources { repository, served, known, wanted, required, by_request } = sources;
        let mut catalog = Catalog { models: BTreeMap::new(), labels: Arc::new(Labels::of(repository)) };
        for (name, known) in known {
            let failed = known.values().rev().find_map(|version| match version {
                Unready::Failed(reason) => Some(reason.clone()),
                Unready::Absent | Unready::Unloading => None,
            });
            let (wanted, required) = (wanted(&name), required(&name));
            catalog.models.insert(name, Model { versions: BTreeMap::new(), known, wanted, required, reason: failed });
        }
        for (&name, versions) in &served {
            let Some(model) = catalog.models.get_mut(name) else { continue };
            for (&version, config) in versions {
                model.versions.insert(version, ServedModel::new(config, plan_single(config)));
            }
        }
        let lookup = |name: &str, version| find_config(repository, &served, name, version);
        for ensemble in repository.models().filter(|model| model.config.is_ensemble()) {
            let Some(model) = catalog.models.get_mut(&ensemble.name) else { continue };
            if !model.wanted {
                continue;
            }
            match compile_ensemble(&ensemble.config, &lookup) {
                Ok(CompiledEnsemble { config, plan }) => {
                    let served = ServedModel::new(&config, plan);
                    model.versions = ensemble.versions.iter().map(|&version| (version, served.clone())).collect();
                }
                // With what it is made of it comes back.
                Err(EnsembleError::ModelsUnavailable { models, .. })
                    if by_request && !models.iter().any(|model| wanted(model)) =>
                {
                    (model.wanted, model.required) = (false, false);
                }
                Err(error) => model.reason = Some(error.to_string()),
            }
        }
        catalog
    }

    /// The labels of models' outputs.
    pub fn labels(&self) -> &Arc<Labels> {
        &self.labels
    }

    /// The version of a model that answers a request: the one asked for, or the highest that is ready. Errors with
    /// Triton's texts.
    pub fn find(&self, name: &str, version: Option<i64>) -> Result<(i64, &Arc<ServedModel>), InferError> {
        let unknown = |what: String| InferError::not_found(format!("Request for unknown model: {what} is not found"));
        let model = self.models.get(name).filter(|model| model.wanted || !model.known.is_empty());
        let Some(model) = model else {
            return Err(unknown(format!("'{name}'")));
        };
        let found = match version {
            Some(version) => model.versions.get_key_value(&version),
            None => model.versions.last_key_value(),
        };
        match (found, version) {
            (Some((&version, served)), _) => Ok((version, served)),
            (None, Some(version)) if !model.known.contains_key(&version) => {
                Err(unknown(format!("'{name}' version {version}")))
            }
            // Nothing is on its way that would be worth to wait for.
            (None, None) if !model.wanted || model.has_failed() => {
                Err(InferError::not_found(format!("Request for unknown model: '{name}' has no available versions")))
            }
            (None, version) => {
                let version = version.or(model.known.keys().next_back().copied()).unwrap_or(-1);
                let mut text = format!("Request for unknown model: '{name}' version {version} is not at ready state");
                if let Some(reason) = model.reason.as_ref().filter(|_| model.wanted && !model.has_failed()) {
                    text = format!("{text}: {reason}");
                }
                Err(InferError::unavailable(text))
            }
        }
    }

    /// Whether there is or was such a model, in that version where one is named; also one that was never loaded.
    pub fn knows(&self, name: &str, version: Option<i64>) -> bool {
        let model = self.models.get(name);
        model.is_some_and(|model| version.is_none_or(|version| model.known.contains_key(&version)))
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
        self.keys(|model| model.known.keys().copied().collect())
    }

    fn keys(&self, versions: impl Fn(&Model) -> Vec<i64>) -> Vec<ModelKey> {
        let of = |(name, model): (&String, &Model)| {
            let name = name.clone();
            versions(model).into_iter().map(move |version| ModelKey { name: name.clone(), version })
        };
        self.models.iter().flat_map(of).collect()
    }

    /// Models that the server needs to be ready, or that failed to load, and are not ready; each with the reason where that is known.
    pub fn unready(&self) -> Vec<String> {
        let unready = self.models.iter().filter(|(_, model)| model.is_missing());
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
            index.extend(
                model.known.iter().map(|(&version, unready)| line(Some(model.index_version(version, unready)))),
            );
        }
        index
    }

    /// Whether waiting makes no more models ready: those that are not have a reason of their own, no worker is missing.
    pub(super) fn is_final(&self) -> bool {
        self.models.values().all(|model| !model.is_missing() || model.reason.is_some())
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

// === impl Model ===

impl Model {
    fn is_missing(&self) -> bool {
        self.versions.is_empty() && (self.required || self.has_failed())
    }

    fn has_failed(&self) -> bool {
        self.known.values().any(|version| matches!(version, Unready::Failed(_)))
    }

    fn index_version(&self, version: i64, unready: &Unready) -> IndexVersion {
        let (state, reason) = match unready {
            _ if self.versions.contains_key(&version) => (IndexState::Ready, String::new()),
            Unready::Unloading => (IndexState::Unloading, String::new()),
            Unready::Failed(reason) => (IndexState::Unavailable, reason.clone()),
            Unready::Absent if !self.wanted || !self.versions.is_empty() => {
                (IndexState::Unavailable, UNLOADED.to_owned())
            }
            Unready::Absent => {
                let reason = self.reason.clone().unwrap_or_else(|| "no worker serves it".to_owned());
                (IndexState::Unavailable, reason)
            }
        };
        IndexVersion { version, state, reason }
    }
}

/// The configuration of a model that an ensemble is made of: one that workers serve, or another ensemble.
pub(super) fn find_config(
    repository: &Repository,
    served: &Served<'_>,
    name: &str,
    version: Option<i64>,
) -> Option<Arc<ModelConfig>> {
    match repository.model(name) {
        Some(model) if model.config.is_ensemble() => Some(model.config.clone()),
        _ => {
            let versions = served.get(name)?;
            let found = match version {
                Some(version) => versions.get(&version),
                None => versions.values().next_back(),
            };
            found.cloned()
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
