//! A snapshot of the served models. It is built as a whole from worker entries and ensembles, and then only read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use ring::digest::{SHA256, digest};
use trireme_inference::{InferError, Lane, ModelKey, Name, RequestedOutput, Route, RoutePlan, TensorSpec, shown};
use trireme_model_repository::{
    CompiledEnsemble, EnsembleError, ModelConfig, Repository, compile_ensemble, plan_single,
};
use trireme_operations::Capabilities;
use trireme_protocol::repository::{IndexEntry, IndexState, IndexVersion};

use super::labels::Labels;
use super::spaces::Spaces;

/// The models that are served at one time.
#[derive(Debug, Default)]
pub struct Catalog {
    pub(super) models: BTreeMap<String, Model>,
    labels: Arc<Labels>,
    /// The versions that no worker takes bulk requests for.
    live_only: BTreeSet<ModelKey>,
    /// The content of each version that is served, as its workers announce it.
    contents: BTreeMap<ModelKey, Name>,
    /// The space of each version that is served, as its workers tell it.
    spaces: Spaces,
    /// Counts the changes of these contents.
    changes_of_contents: u64,
    /// Why model repositories could not be read.
    unreadable: Vec<String>,
}

/// A model by name.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The versions that are ready.
    pub(super) versions: BTreeMap<i64, Arc<ServedModel>>,
    /// Every version that exists or has existed, with the state of those that are not ready.
    known: BTreeMap<i64, Unready>,
    /// Versions that are served but cannot execute now, each with the reason.
    recovering: BTreeMap<i64, String>,
    /// Versions of which some worker has another content than the one that is served, or whose files have a fault by now, each with
    /// the first reason.
    doubts: BTreeMap<i64, String>,
    /// Whether the model is meant to be served.
    wanted: bool,
    /// Whether the server is not ready without it.
    required: bool,
    /// Why none of its versions is ready, if known.
    reason: Option<String>,
    /// The fault of its directory, where no version of it can be known: as in Triton, the server is ready without it.
    broken: Option<String>,
    /// The steps whose models have not come, if the reason is only that: numbers from 1, and the models.
    waits: Vec<(usize, String)>,
    /// Further names of it, also while it is not ready.
    pub(super) served_names: Vec<String>,
}

/// Models that are no longer ready are named in one line from this many on: a worker that leaves may have had hundreds.
const MANY: usize = 5;

/// A version that is not ready.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Unready {
    /// It has no worker entry.
    #[default]
    Absent,
    /// Its workers finish their requests.
    Unloading,
    /// A worker loads it, and does this.
    Loading(String),
    /// A worker could not load it, or it has no configuration; the text says why.
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
    /// The steps of a request for it.
    pub plan: RoutePlan,
    /// The operations on texts that it offers, or the fault in its configuration of them.
    pub capabilities: Result<Arc<Capabilities>, String>,
    /// A digest of plan and configuration of an ensemble, by which its answers differ. Made when it is first asked for.
    linked: OnceLock<String>,
}

pub(super) type Served<'a> = BTreeMap<&'a str, BTreeMap<i64, Arc<ModelConfig>>>;

/// The data that a catalog is built from.
pub(super) struct Sources<'a> {
    /// The models in the repository.
    pub repository: &'a Repository,
    /// The models that workers serve.
    pub served: Served<'a>,
    /// The versions among them that cannot execute now, each with the reason. Requests for them wait.
    pub recovering: BTreeMap<ModelKey, String>,
    /// The faults in files of versions that are served, and what workers say whose content of a version is refused.
    pub doubts: BTreeMap<ModelKey, Vec<String>>,
    /// The versions that no worker takes bulk requests for.
    pub live_only: BTreeSet<ModelKey>,
    /// The content of each version, as its workers announce it.
    pub contents: BTreeMap<ModelKey, Name>,
    /// The space of each version, as its workers tell it.
    pub spaces: Spaces,
    /// Every model that may be asked for, with all versions that have ever existed.
    pub known: BTreeMap<String, BTreeMap<i64, Unready>>,
    /// Whether a model is meant to be served.
    pub wanted: &'a dyn Fn(&str) -> bool,
    /// Whether the server is not ready without a model.
    pub required: &'a dyn Fn(&str) -> bool,
    /// Whether models are loaded and unloaded by request.
    pub by_request: bool,
}

/// The reason of a version that was unloaded; Triton's word.
const UNLOADED: &str = "unloaded";

// === impl Catalog ===

impl Catalog {
    /// Builds a catalog from the models that workers serve and the ensembles made of them.
    pub(super) fn build(sources: Sources<'_>) -> Catalog {
        let Sources { repository, served, recovering, doubts, live_only, contents, spaces, .. } = sources;
        let Sources { known, wanted, required, by_request, .. } = sources;
        let unreadable = repository.unreadable().iter().map(|fault| format!("model repository: {fault}")).collect();
        let (models, labels) = (BTreeMap::new(), Arc::new(Labels::of(repository)));
        let mut catalog = Catalog { models, labels, live_only, contents, spaces, changes_of_contents: 0, unreadable };
        for (name, known) in known {
            let failed = known.values().rev().find_map(|version| match version {
                Unready::Failed(reason) => Some(reason.clone()),
                Unready::Absent | Unready::Unloading | Unready::Loading(_) => None,
            });
            let (wanted, required) = (wanted(&name), required(&name));
            catalog.models.insert(name, Model { known, wanted, required, reason: failed, ..Model::default() });
        }
        for model in repository.models() {
            if let Some(known) = catalog.models.get_mut(&model.name) {
                known.served_names = trireme_operations::served_names(&model.config);
            }
        }
        for (&name, versions) in &served {
            let Some(model) = catalog.models.get_mut(name) else { continue };
            for (&version, config) in versions {
                model.versions.insert(version, ServedModel::new(config, plan_single(config)));
            }
        }
        for (ModelKey { name, version }, reason) in recovering {
            if let Some(model) = catalog.models.get_mut(name.as_str()) {
                model.recovering.insert(version, reason);
            }
        }
        for (ModelKey { name, version }, reasons) in doubts {
            if let Some(model) = catalog.models.get_mut(name.as_str()) {
                model.doubts.extend(reasons.into_iter().next().map(|reason| (version, reason)));
            }
        }
        for (name, broken) in repository.broken() {
            if let Some(model) = catalog.models.get_mut(name).filter(|model| model.wanted) {
                model.broken = Some(broken.fault.to_string());
            }
        }
        let lookup = |name: &str, version| find_config(repository, &served, name, version);
        for ensemble in repository.models().filter(|model| model.config.is_ensemble()) {
            let Some(model) = catalog.models.get_mut(&ensemble.name) else { continue };
            if !model.wanted {
                continue;
            }
            for &version in &ensemble.versions {
                let config = ensemble.config_of(version);
                match compile_ensemble(config, &lookup) {
                    Ok(CompiledEnsemble { config, plan }) => {
                        model.versions.insert(version, ServedModel::new(&config, plan));
                    }
                    // The ensemble comes back when its models do.
                    Err(EnsembleError::ModelsUnavailable { models, .. })
                        if by_request && !models.iter().any(|model| wanted(model)) =>
                    {
                        (model.wanted, model.required) = (false, false);
                    }
                    Err(error) => {
                        let awaited = match &error {
                            EnsembleError::ModelsUnavailable { models, .. } => models.as_slice(),
                            EnsembleError::VersionUnavailable { model, .. } => std::slice::from_ref(model),
                            _ => &[],
                        };
                        let steps = config.ensemble.iter().flatten().map(|step| &step.model_name);
                        let missing = steps.zip(1..).filter(|(step, _)| awaited.contains(step));
                        model.waits = missing.map(|(step, number)| (number, step.clone())).collect();
                        model.reason = Some(error.to_string());
                    }
                }
            }
        }
        for (model, sides) in catalog.sides() {
            catalog.spaces.join(&model, &sides);
        }
        catalog
    }

    /// The lane of a request at this step, if it is in `lane` as a whole: workers in other languages may not take
    /// bulk requests.
    pub fn lane_at(&self, step: &ModelKey, lane: Lane) -> Lane {
        if self.live_only.contains(step) { Lane::Live } else { lane }
    }

    /// Goes on counting where the catalog before this one has stopped.
    pub(super) fn follow(&mut self, before: &Catalog) {
        self.changes_of_contents = before.changes_of_contents + u64::from(self.contents != before.contents);
    }

    /// How often the content of a model has changed.
    pub fn changes_of_contents(&self) -> u64 {
        self.changes_of_contents
    }

    /// The spaces of the versions that are served.
    pub fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    /// The same route for the contents that are served.
    pub fn for_contents(&self, route: Route) -> Route {
        route.for_contents(|model| self.contents.get(model).cloned())
    }

    /// The sources of the answer to a request with this route, as a text; equal texts mean equal answers. They are the contents of its
    /// models, the links of its steps, and the names of classes. `None` where the content of a model is not known.
    pub fn origin(&self, served: &ServedModel, route: &Route, outputs: &[RequestedOutput]) -> Option<String> {
        let mut origin = served.linked().to_owned();
        for output in outputs.iter().filter(|output| output.classification > 0) {
            origin += &format!("{:?}", self.labels.of_output(&route.model().name, &output.name));
        }
        for step in route.remaining() {
            let content = step.content.as_ref()?;
            origin.extend([" ", step.model.name.as_str(), ":", &step.model.version.to_string(), " ", content.as_str()]);
        }
        Some(origin)
    }

    /// The labels of models' outputs.
    pub fn labels(&self) -> &Arc<Labels> {
        &self.labels
    }

    /// The version of a model that answers a request: the requested version, or the highest one that is ready. Errors
    /// have Triton's texts.
    pub fn find(&self, name: &str, version: Option<i64>) -> Result<(i64, &Arc<ServedModel>), InferError> {
        let unknown = |what: String| InferError::not_found(format!("Request for unknown model: {what} is not found"));
        let model = self.models.get(name).filter(|model| model.wanted || !model.known.is_empty());
        let Some(model) = model else {
            return Err(unknown(format!("'{}'", shown(name))));
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
            // No version is being loaded, so there is nothing to wait for.
            (None, None) if !model.wanted || model.has_failed() || model.broken.is_some() => {
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

    /// Whether the model exists or has existed, with that version if one is given. A model that was never loaded
    /// counts, too.
    pub fn knows(&self, name: &str, version: Option<i64>) -> bool {
        let model = self.models.get(name);
        model.is_some_and(|model| version.is_none_or(|version| model.known.contains_key(&version)))
    }

    /// Whether a version that [`Catalog::find`] gives can be executed now, or its requests wait until it can.
    pub fn is_recovering(&self, name: &str, version: i64) -> bool {
        self.models.get(name).is_some_and(|model| model.recovering.contains_key(&version))
    }

    /// The ready versions of a model, ascending.
    pub fn ready_versions(&self, name: &str) -> Vec<i64> {
        self.models.get(name).map(|model| model.versions.keys().copied().collect()).unwrap_or_default()
    }

    /// Every model version that is ready, in order.
    pub fn ready(&self) -> Vec<ModelKey> {
        self.keys(|model| model.versions.keys().copied().collect())
    }

    /// Every model version that exists or has existed, in order.
    pub fn known(&self) -> Vec<ModelKey> {
        self.keys(|model| model.known.keys().copied().collect())
    }

    fn keys(&self, versions: impl Fn(&Model) -> Vec<i64>) -> Vec<ModelKey> {
        let of = |(name, model): (&String, &Model)| {
            let name = name.clone();
            versions(model).into_iter().map(move |version| ModelKey { name: name.as_str().into(), version })
        };
        self.models.iter().flat_map(of).collect()
    }

    /// Models that are not ready although they are required, or because they failed to load; each with the reason, if
    /// known.
    pub fn unready(&self) -> Vec<String> {
        let unready = self.models.iter().filter(|(_, model)| model.is_missing() || model.is_recovering());
        let unready =
            unready.map(|(name, model)| match model.reason.as_ref().or(model.recovering.values().next_back()) {
                Some(reason) => format!("model '{name}' is not ready: {reason}"),
                None => format!("model '{name}' is not ready: no worker serves it"),
            });
        self.unreadable.iter().cloned().chain(unready).collect()
    }

    /// The same in sentences that name the steps of ensembles, and models whose directories are broken.
    pub fn problems(&self) -> Vec<String> {
        let unready = self.models.iter().filter(|(_, model)| model.is_missing() || model.is_recovering());
        let unready = unready.map(|(name, model)| match (&model.reason, model.recovering.values().next_back()) {
            (Some(_), _) if !model.waits.is_empty() => {
                let steps = model.waits.iter().map(|(number, step)| format!("step {number} ({step})"));
                format!("no live worker for {} of model '{name}'", steps.collect::<Vec<_>>().join(", "))
            }
            (Some(reason), _) | (None, Some(reason)) => format!("model '{name}' is not ready: {reason}"),
            (None, None) => format!("no live worker for model '{name}'"),
        });
        let broken = self.models.iter().filter(|(_, model)| model.versions.is_empty());
        let broken = broken.filter_map(|(name, model)| Some((name, model.broken.as_ref()?)));
        let broken = broken.map(|(name, fault)| format!("the directory of model '{name}' is broken: {fault}"));
        self.unreadable.iter().cloned().chain(unready).chain(broken).collect()
    }

    /// Whether the first models have come, or none will: those that are not ready cannot be loaded.
    pub fn has_begun(&self) -> bool {
        self.models.values().any(|model| !model.versions.is_empty()) || (self.is_final() && self.unreadable.is_empty())
    }

    /// Every known model and version, in order, as in the repository index.
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

    /// Whether waiting makes no more models ready: each missing model has a reason of its own, and none only lacks a
    /// worker.
    pub(super) fn is_final(&self) -> bool {
        self.models.values().all(|model| !model.is_missing() || model.reason.is_some())
    }

    /// Logs which models became ready and which are no longer ready.
    pub(super) fn log_changes(&self, before: &Catalog) {
        let mut gone = Vec::new();
        for (name, model) in &self.models {
            let was = before.models.get(name);
            for (version, served) in &model.versions {
                if !was.is_some_and(|was| was.versions.contains_key(version)) {
                    tracing::info!(model = name, version, "model is ready");
                    if let Err(fault) = &served.capabilities {
                        tracing::warn!(model = name, version, fault, "model is served for v2 requests only");
                    }
                }
            }
            let lost =
                was.iter().flat_map(|was| was.versions.keys()).filter(|&version| !model.versions.contains_key(version));
            gone.extend(lost.map(|&version| (name, version, &model.reason)));
            if model.reason.is_some() && was.is_none_or(|was| was.reason != model.reason) {
                // A worker that could not load the model has logged why.
                match !model.waits.is_empty() || model.has_failed() {
                    true => tracing::debug!(model = name, reason = model.reason, "model is not ready yet"),
                    false => tracing::info!(model = name, reason = model.reason, "model is not ready"),
                }
            }
        }
        if let [(name, version, _), .., (last, ..)] = gone.as_slice()
            && gone.len() >= MANY
        {
            tracing::warn!(count = gone.len(), first = format!("{name}:{version}"), last, "models are no longer ready");
            return;
        }
        for (name, version, reason) in gone {
            tracing::warn!(model = name, version, reason, "model is no longer ready");
        }
    }
}

// === impl Model ===

impl Model {
    fn is_missing(&self) -> bool {
        self.versions.is_empty() && self.broken.is_none() && (self.required || self.has_failed())
    }

    fn has_failed(&self) -> bool {
        self.known.values().any(|version| matches!(version, Unready::Failed(_)))
    }

    /// Whether the version that answers a request that names none cannot be executed just now.
    fn is_recovering(&self) -> bool {
        self.versions.keys().next_back().is_some_and(|version| self.recovering.contains_key(version))
    }

    fn index_version(&self, version: i64, unready: &Unready) -> IndexVersion {
        let (state, reason) = match unready {
            _ if self.recovering.contains_key(&version) => (IndexState::Unavailable, self.recovering[&version].clone()),
            _ if self.versions.contains_key(&version) => {
                (IndexState::Ready, self.doubts.get(&version).cloned().unwrap_or_default())
            }
            Unready::Unloading => (IndexState::Unloading, String::new()),
            Unready::Loading(activity) => (IndexState::Loading, activity.clone()),
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

/// The configuration of a model that is part of an ensemble: a model that workers serve, or another ensemble.
pub(super) fn find_config(
    repository: &Repository,
    served: &Served<'_>,
    name: &str,
    version: Option<i64>,
) -> Option<Arc<ModelConfig>> {
    match repository.model(name) {
        Some(model) if model.config.is_ensemble() => {
            Some(version.map_or(&model.config, |version| model.config_of(version)).clone())
        }
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
        let (inputs, outputs) = (config.input_specs(), config.output_specs());
        let capabilities = Capabilities::of(config, &inputs, &outputs).map(Arc::new);
        let linked = OnceLock::new();
        Arc::new(ServedModel { inputs, outputs, config: config.clone(), plan, capabilities, linked })
    }

    /// A digest of the links of an ensemble's steps. Empty for other models: their contents have their plans and configurations.
    fn linked(&self) -> &str {
        self.linked.get_or_init(|| match self.plan.ensemble {
            true => {
                let digest = digest(&SHA256, format!("{:?} {:?}", self.plan, self.config).as_bytes());
                digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
            }
            false => String::new(),
        })
    }

    /// The model's platform in the protocol.
    pub fn platform(&self) -> &str {
        match self.config.platform.as_str() {
            "" => &self.config.backend,
            platform => platform,
        }
    }
}
