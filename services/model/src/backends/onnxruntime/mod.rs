//! `backend: "onnxruntime"`: ONNX models in the ONNX Runtime library, on the CPU or with the accelerators in the
//! configuration.
//!
//! Loading a model runs the plain model for later comparison ([`precision`]), makes one session per instance ([`sessions`]),
//! compares an instance at each place with the plain model, and runs the warm-up. The library is loaded with the first model
//! that needs it, so a process without ONNX models does not need it. Models that declare their inputs as paddable ([`batcher::Declaration`]) are
//! batched by length, with costs measured here; those with one wide session are tried and measured while they serve ([`trial`]).

mod accelerators;
mod accuracy;
mod auto;
mod binding;
mod caches;
mod cost_cache;
mod costs;
mod files;
mod gpus;
mod graph_cache;
mod graphs;
mod instance;
mod layouts;
mod levels;
mod library;
mod measure;
mod options;
mod packing;
mod precision;
mod probe;
mod profiles;
mod proof;
mod providers;
mod run;
mod schema;
mod sessions;
mod settings;
mod shared;
mod stop;
mod tasks;
mod trial;
mod values;
mod weights;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use trireme_engine::{
    Backend, BackgroundInstance, BatchPolicy, LoadError, LoadedModel, ModelInstance, ModelSource, SequenceSupport,
    doing, in_background, instead, warmup,
};
use trireme_inference::DataType;
use trireme_model_repository::{ModelConfig, torch_file_beside};

use self::accelerators::InstanceDevice;
use self::binding::Memory;
use self::cost_cache::Entry;
use self::instance::OnnxInstance;
use self::layouts::Wide;
use self::precision::Expected;
use self::proof::{Company, Proof};
use self::schema::Schema;
use self::sessions::Sessions;
use self::settings::Settings;
use self::shared::InstanceSession;
use self::trial::Trial;
use crate::batcher::packing::{GROUPS, Packing};
use crate::batcher::{self, Declaration, LengthBatcher, PackedBatcher, Padding};
use crate::cpus;

pub use self::cost_cache::{default_directory as default_cost_model_cache, processor};
pub use self::graphs::GraphSessions;
pub use self::levels::AccuracyLevel;
pub use self::library::{FoundLibrary, LibraryError, find as find_library};
pub use self::options::OnnxRuntimeOptions;
pub use self::proof::TRACED;

/// Default file name of a model, also inside a directory named in the configuration.
const MODEL_FILE: &str = "model.onnx";

/// The ONNX Runtime backend.
#[derive(Clone, Debug)]
pub struct OnnxRuntime {
    options: OnnxRuntimeOptions,
}

// === impl OnnxRuntime ===

impl OnnxRuntime {
    /// The backend; loads nothing yet.
    pub fn new(options: OnnxRuntimeOptions) -> OnnxRuntime {
        OnnxRuntime { options }
    }
}

impl Backend for OnnxRuntime {
    fn name(&self) -> &'static str {
        "onnxruntime"
    }

    fn reshapes(&self) -> bool {
        true
    }

    fn keeps_sequences(&self) -> SequenceSupport {
        SequenceSupport::All
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        let mut config = source.config.for_execution();
        let refused = |reason: String| LoadError::Backend { model: source.config.name.clone(), reason };
        let settings = Settings::new(&config, &self.options, cpus::available(), &gpus::of_this_process())?;
        let path = model_file(source)?;
        say_what_is_not_served(&config.name, &path);
        let environment =
            library::environment(self.options.library.as_deref()).map_err(|error| refused(error.to_string()))?;
        let level = accuracy::choose(source, &config, settings, &self.options, &environment, &path)?;
        let chosen = auto::choose(source, &mut config, level.settings, &self.options, &environment, &path)?;
        let auto::Chosen { settings, measured } = chosen;
        let is_plain = settings.accelerators == accelerators::Accelerators::default();
        let measured = measured.or(level.measured.filter(|_| is_plain));
        let prepare = || Sessions::prepare(&source.config.name, &environment, &settings, &self.options, &path);
        let (mut sessions, measured) = match measured {
            Some(auto::Measured { sessions, session }) => (sessions, session),
            None => (prepare(), None),
        };

        let each_place = accelerators::firsts(&settings.places, |place| place);
        // The plain model runs and goes before the others are made, so that the model is in memory once.
        // Shape profiles also need the model's inputs before.
        let lack_profiles = settings.accelerators.lack_profiles();
        let plain_first = settings.precision.is_some() || lack_profiles;
        doing(format!("making a session of {}", path.display()));
        let made = match (plain_first, measured) {
            (true, measured) => {
                drop(measured);
                let missing = each_place.iter().try_for_each(|&at| sessions.try_providers(settings.places[at]));
                missing.and_then(|()| sessions.make_plain())
            }
            (false, Some(session)) => Ok(session),
            (false, None) => sessions.make(settings.places[0], settings.intra_threads),
        };
        let made = made.map_err(refused)?;
        let schema = Schema::new(&config.name, made.inputs(), made.outputs())?;
        if source.auto_complete {
            let found = schema.auto_complete(self.options.default_max_batch_size);
            config.complete(found).map_err(|error| LoadError::Config(error.to_string()))?;
        }
        schema.check(&config)?;
        tasks::Tasks::of(&config)?;
        let mut declaration = Declaration::parse(&config)?;
        let padding = declaration.as_ref().map(|declaration| declaration.padding.clone());
        let new_instance = |session, padding: Option<&Padding>| {
            OnnxInstance::new(&config, &schema, session, padding.cloned(), settings.arena_shrinkage.clone())
        };

        let samples = || -> Result<Vec<_>, LoadError> {
            Ok(warmup::samples(&config, source.model_path)?.into_iter().map(|(_, request)| request).collect())
        };
        let (mut first, mut expected) = (None, None);
        match settings.precision {
            Some(_) => {
                doing("running the plain model");
                expected = Some(Expected::new(
                    &config,
                    samples()?,
                    &mut new_instance(InstanceSession::Own(made), padding.as_ref()),
                )?);
            }
            None if plain_first => drop(made),
            None => first = Some(made),
        }
        let mut packs = None;
        if let Some(declaration) = &declaration
            && !declaration.alone
            && packing::wanted(declaration, &self.options) != Packing::Off
        {
            let plain = first.take().map(|session| new_instance(InstanceSession::Own(session), padding.as_ref()));
            let candidate = packing::Candidate {
                config: &config,
                declaration,
                schema: &schema,
                settings: &settings,
                options: &self.options,
                environment: &environment,
                path: &path,
            };
            if let Some(packed) = candidate.choose(plain)? {
                (sessions, packs) = (packed.sessions, Some(packed.token_budget));
            }
        }
        if lack_profiles {
            sessions.set_profiles(profiles::derive(&schema.inputs, &config, declaration.as_ref(), &samples()?));
        }
        doing(format!("making {} sessions of {}", settings.places.len(), path.display()));
        let mut loaded = Vec::with_capacity(settings.places.len());
        let mut shared = HashMap::new();
        for &place in &settings.places {
            let make = || first.take().map_or_else(|| sessions.make(place, settings.intra_threads), Ok);
            let share = (place.is_gpu() && settings.share_sessions || settings.wide_only).then_some(&mut shared);
            let held = InstanceSession::at(place, share, make).map_err(refused)?;
            let mut instance = new_instance(held, padding.as_ref());
            if packs.is_some() {
                instance.pack(GROUPS);
            }
            if let InstanceDevice::Gpu(gpu) = place
                && may_be_pinned(&config)
            {
                instance.stage(Memory::Pinned(gpu));
            }
            loaded.push(instance);
        }
        if let (Some(check), Some(expected)) = (settings.precision, expected) {
            doing("comparing the accelerated model with the plain one");
            for &at in &each_place {
                let provider = sessions.provider(settings.places[at]);
                precision::check(&config, check, &expected, &provider, &mut loaded[at])?;
            }
        }
        for instance in &mut loaded {
            warmup::run(&config, source.model_path, instance)?;
        }
        let circumstances = format!("{settings:?} {declaration:?} {}", ort::info());
        let rows = match &declaration {
            Some(declaration) => Some(declaration.clone()),
            None => Declaration::of_rows(&config)?,
        };
        let told = declaration.as_ref().is_some_and(|declaration| declaration.alone);
        let mut is_apart = told;
        if let Some(rows) = rows.as_ref().filter(|rows| !rows.sample_rows.is_empty()) {
            doing("trying rows of the tokenizer");
            let proof = Proof { config: &config, declaration: rows, graph: &path };
            let mut company = Company::Independent;
            for &at in &each_place {
                company = company.max(proof.run(&mut loaded[at])?);
                if !settings.wide_only {
                    proof.run_longest(&mut loaded[at])?;
                }
            }
            // A declaration that is not checked lets them share all the same.
            let is_checked = declaration.as_ref().is_none_or(|declaration| declaration.check);
            is_apart |= company == Company::Dependent && is_checked;
        }
        if is_apart && !told {
            tracing::warn!(
                model = config.name,
                "each row has a run of its own, which costs throughput under load: rows do not run together, or the result of one depends on the others"
            );
        }
        if is_apart {
            declaration = None;
        }
        let may_wait = |declaration: &mut Declaration| settings.wide_only && (declaration.check || declaration.measure);
        let tried = declaration.take_if(may_wait).map(|declaration| -> Result<_, LoadError> {
            let make = || sessions.make(settings.places[0], settings.intra_threads);
            let held = InstanceSession::at(settings.places[0], Some(&mut shared), make).map_err(refused)?;
            let (instance, shares) = (new_instance(held, padding.as_ref()), Arc::new(OnceLock::new()));
            loaded[0].keep_requests_apart_until(shares.clone());
            let trial = Trial {
                config: Arc::new(config.clone()),
                declaration,
                cost_models: self.options.cost_model_cache.clone(),
                path: path.clone(),
                circumstances: circumstances.clone(),
            };
            Ok((trial.begin(instance, shares.clone()), shares))
        });
        let (tried, until) = tried.transpose()?.unzip();
        let mut shares = !is_apart;
        if let Some(declaration) = declaration.as_ref().filter(|declaration| declaration.check) {
            doing("trying whether rows may share a run");
            for &at in &each_place {
                shares &= probe::check(&config, declaration, settings.places[at], &mut loaded[at])?;
            }
        }
        if !shares {
            loaded.iter_mut().for_each(OnnxInstance::keep_requests_apart);
            declaration = None;
        }
        let mut budget = packs;
        let policy: Box<dyn BatchPolicy> = match (&declaration, tried, packs) {
            (_, Some(tried), _) => Box::new(tried),
            (Some(declaration), None, Some(budget)) => Box::new(PackedBatcher::new(&config, declaration, budget)),
            (Some(declaration), None, None) => {
                let directory = self.options.cost_model_cache.as_deref();
                let kept = |place: InstanceDevice| {
                    let makes = if place.is_gpu() { gpus::makes() } else { String::new() };
                    Some(Entry::new(directory?, &config.name, &path, &format!("{place} {makes} {circumstances}")))
                };
                doing("measuring the cost of runs");
                let is_accelerated = |place| !settings.accelerators.at(place).is_empty();
                let places = costs::Places { all: &settings.places, is_accelerated: &is_accelerated };
                let fit = costs::find(&config, declaration, places, kept, &mut loaded, &|| true);
                budget = fit.map(|fit| declaration.token_budget.unwrap_or(fit.token_budget));
                if let Some(fit) = fit.filter(|_| !declaration.has_multiple) {
                    loaded.iter_mut().for_each(|instance| instance.pad_to(fit.steps));
                }
                Box::new(LengthBatcher::new(&config, declaration, fit.as_ref()))
            }
            (None, None, _) => batcher::policy(&config),
        };
        if let Some(budget) = budget {
            loaded.iter_mut().for_each(|instance| instance.run_at_most(budget));
        }
        if let Some(threads) = settings.wide_threads {
            // Added last, because the measured costs are those of runs beside others.
            doing("making the session for lone requests");
            let wide = Arc::new(Wide::new(sessions.make(InstanceDevice::Cpu, threads).map_err(refused)?));
            loaded.iter_mut().for_each(|instance| instance.share(wide.clone()));
            warmup::run(&config, source.model_path, &mut loaded[0])?;
        }
        let instances = loaded.into_iter().map(|instance| (Box::new(instance) as Box<dyn ModelInstance>).into());
        let instances = instances.collect();
        // A lock that nobody sets: the rows of these instances stay apart for good, too.
        let until = until.or_else(|| (!shares).then(Arc::default));
        let canary = warmup::first(&config, source.model_path)?;
        let config = Arc::new(config);
        let background = match settings.has_background() {
            true => background(sessions, &settings, config.clone(), schema, padding, move |instance| {
                if packs.is_some() {
                    instance.pack(GROUPS);
                }
                if let Some(budget) = budget {
                    instance.run_at_most(budget);
                }
                if let Some(shares) = &until {
                    instance.keep_requests_apart_until(shares.clone());
                }
            }),
            false => Vec::new(),
        };
        Ok(LoadedModel { config, instances, background, guests: Vec::new(), policy, canary })
    }
}

/// Whether inputs and outputs may be in pinned memory. Strings have memory of their own.
fn may_be_pinned(config: &ModelConfig) -> bool {
    let inputs = config.inputs.iter().map(|input| input.datatype);
    let mut datatypes = inputs.chain(config.outputs.iter().map(|output| output.datatype));
    config.optimization.pinned_memory && datatypes.all(|datatype| datatype != DataType::Bytes)
}

/// As many instances for bulk requests as there are others, with as many threads, each of which `prepare` gets first.
fn background(
    sessions: Sessions,
    settings: &Settings,
    config: Arc<ModelConfig>,
    schema: Schema,
    padding: Option<Padding>,
    prepare: impl Fn(&mut OnnxInstance) + Send + Sync + 'static,
) -> Vec<BackgroundInstance> {
    let (sessions, schema, prepare) = (Arc::new(sessions), Arc::new(schema), Arc::new(prepare));
    let one = |_| {
        let (sessions, config, schema, padding) = (sessions.clone(), config.clone(), schema.clone(), padding.clone());
        let prepare = prepare.clone();
        let (threads, shrinkage) = (settings.intra_threads, settings.arena_shrinkage.clone());
        in_background(move || {
            let session = sessions.make(InstanceDevice::Cpu, threads);
            let session = session.map_err(|reason| LoadError::Backend { model: config.name.clone(), reason })?;
            let mut instance = OnnxInstance::new(&config, &schema, InstanceSession::Own(session), padding, shrinkage);
            prepare(&mut instance);
            Ok(instance)
        })
    };
    settings.places.iter().map(one).collect()
}

/// The version's model file: the file named in the configuration, or the model in the directory named there (with
/// external weights beside it).
fn model_file(source: &ModelSource<'_>) -> Result<PathBuf, LoadError> {
    let name = match source.config.default_model_filename.as_str() {
        "" => MODEL_FILE,
        name => name,
    };
    let mut path = source.version_path.join(name);
    if path.is_dir() {
        path.push(MODEL_FILE);
    }
    match std::fs::File::open(&path) {
        Ok(_) => Ok(path),
        Err(error) => {
            let error = std::io::Error::new(error.kind(), format!("{error}{}", there(source.version_path)));
            Err(LoadError::File { model: source.config.name.clone(), path, source: error })
        }
    }
}

/// Logs that a graph is served in place of the file of torch that `trireme export` made it from.
fn say_what_is_not_served(model: &str, graph: &Path) {
    let Some(torch) = torch_file_beside(graph) else { return };
    let written = |path: &Path| std::fs::metadata(path).and_then(|found| found.modified()).ok();
    let (served, beside) = (graph.display(), torch.display());
    if written(&torch) > written(graph) {
        tracing::warn!(
            model,
            file = %served,
            "serves this file in place of {beside}, which was written later: if its weights have changed, move the ONNX file away \
             and make it again with trireme export"
        );
    } else {
        tracing::info!(model, file = %served, "serves this file in place of {beside}, which is a file of torch");
    }
}

/// The files in a version folder whose model file is missing, and the configuration that would serve them.
fn there(version_path: &Path) -> String {
    const SHOWN: usize = 8;
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    };
    let mut found = names(version_path);
    let folders = found.iter().filter(|name| version_path.join(name).is_dir());
    let nested: Vec<_> = folders
        .flat_map(|folder| names(&version_path.join(folder)).into_iter().map(move |name| format!("{folder}/{name}")))
        .collect();
    found.extend(nested);
    if found.is_empty() {
        return "; the version folder is empty".to_owned();
    }
    let advice = match found.iter().find(|name| name.ends_with(".onnx")) {
        Some(graph) => format!(": to serve {graph}, write default_model_filename: \"{graph}\" in config.pbtxt"),
        None => instead(version_path),
    };
    let more = if found.len() > SHOWN { ", …" } else { "" };
    format!("; the version folder holds {}{more}{advice}", found[..found.len().min(SHOWN)].join(", "))
}

#[cfg(test)]
mod tests;
