//! Makes the sessions of a model: from its file, or from its optimised graph if that is cached or its weights are
//! shared. An optimised graph only saves time and memory: where it cannot be made or opened, sessions are made of the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use parking_lot::Mutex;
use trireme_engine::{Promise, promise};
use trireme_model_repository::TemporaryFolder;

use super::accelerators::{Accelerator, AcceleratorKind, InstanceDevice};
use super::cost_cache::processor;
use super::graph_cache::Entry;
use super::levels::Levelled;
use super::library::CPU;
use super::options::OnnxRuntimeOptions;
use super::providers;
use super::settings::Settings;
use super::weights::{SharedWeights, write_beside};

#[cfg(test)]
thread_local! {
    /// How many sessions this thread has opened.
    pub static OPENED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Makes the sessions of a model.
pub struct Sessions {
    model: String,
    environment: Environment,
    settings: Settings,
    options: OnnxRuntimeOptions,
    path: PathBuf,
    /// None from when it proves to be of no use.
    optimised: Mutex<Option<Arc<Optimised>>>,
    /// TensorRT's options for shape profiles, if they were derived and it takes them.
    profiles: Mutex<BTreeMap<String, String>>,
    /// Which providers run how many nodes, as the log has it of the last session.
    described: Mutex<String>,
    /// The temporary folder of the model's file, if it is in one.
    folder: Option<TemporaryFolder>,
}

/// The optimised model, for sessions on the plain CPU provider.
struct Optimised {
    path: PathBuf,
    weights: Option<SharedWeights>,
    /// A temporary directory for files that are not cached.
    _directory: Option<TemporaryFolder>,
}

// === impl Sessions ===

impl Sessions {
    /// Prepares the sessions of the model at `path`. Optimises the model if the result is cached or its weights are
    /// shared.
    pub fn prepare(
        model: &str,
        environment: &Environment,
        settings: &Settings,
        options: &OnnxRuntimeOptions,
        path: &Path,
    ) -> Sessions {
        Sessions::prepare_with(model, environment, settings, options, path, &mut drop)
    }

    /// The same, with a session for the first place: the one that wrote the optimised model, and true, or one that is made for it.
    pub fn prepare_and_make(
        model: &str,
        environment: &Environment,
        settings: &Settings,
        options: &OnnxRuntimeOptions,
        path: &Path,
    ) -> Result<(Sessions, Session, bool), String> {
        let mut made = None;
        let sessions =
            Sessions::prepare_with(model, environment, settings, options, path, &mut |session| made = Some(session));
        let wrote = made.is_some();
        let session = made.map_or_else(|| sessions.make(settings.places[0], settings.intra_threads), Ok)?;
        Ok((sessions, session, wrote))
    }

    /// `wrote` gets the session that optimised the model.
    fn prepare_with(
        model: &str,
        environment: &Environment,
        settings: &Settings,
        options: &OnnxRuntimeOptions,
        path: &Path,
        wrote: &mut dyn FnMut(Session),
    ) -> Sessions {
        let (environment, settings, options) = (environment.clone(), settings.clone(), options.clone());
        let (model, path) = (model.to_owned(), path.to_owned());
        let (optimised, profiles, described) = (Mutex::default(), Mutex::default(), Mutex::default());
        let folder = None;
        let mut sessions =
            Sessions { model, environment, settings, options, path, optimised, profiles, described, folder };
        let entry = sessions.options.model_cache.as_deref().and_then(|directory| sessions.entry(directory));
        if let Some(entry) = &entry {
            sessions.keep_with_providers(entry);
        }
        let (settings, model) = (&sessions.settings, &sessions.model);
        let of_use = entry.is_some() || settings.share_weights;
        if of_use
            && settings.accelerators.at(InstanceDevice::Cpu).is_empty()
            && settings.places.contains(&InstanceDevice::Cpu)
        {
            match sessions.optimise(entry.as_ref(), wrote) {
                Ok(optimised) => *sessions.optimised.lock() = Some(Arc::new(optimised)),
                Err(reason) => {
                    tracing::warn!(model, reason, "no optimised model is kept or shared: each session makes its own");
                }
            }
        }
        sessions
    }

    /// Keeps the temporary folder of the model's file for as long as sessions are made.
    pub fn keep(&mut self, folder: Option<TemporaryFolder>) {
        self.folder = folder;
    }

    fn entry(&self, directory: &Path) -> Option<Entry> {
        let circumstances = format!("{:?} {} {}", self.settings, processor(), ort::info());
        Entry::new(directory, &self.model, &self.path, &circumstances)
            .inspect_err(|error| tracing::warn!(model = self.model, %error, "the model cannot be kept optimised"))
            .ok()
    }

    /// Gives providers that compile the model a directory for their own caches.
    fn keep_with_providers(&mut self, entry: &Entry) {
        let directory = entry.provider_directory();
        let accelerators = &mut self.settings.accelerators;
        for accelerator in accelerators.cpu.iter_mut().chain(&mut accelerators.gpu) {
            let (switch, key) = match accelerator.kind {
                AcceleratorKind::OpenVino => (None, "CACHE_DIR"),
                AcceleratorKind::TensorRt => (Some("trt_engine_cache_enable"), "trt_engine_cache_path"),
                AcceleratorKind::Cuda => continue,
            };
            if let Err(error) = std::fs::create_dir_all(&directory) {
                tracing::warn!(model = self.model, %error, directory = %directory.display(), "cannot keep compiled models");
                return;
            }
            let options = &mut accelerator.options;
            options.entry(key.to_owned()).or_insert_with(|| directory.display().to_string());
            if let Some(switch) = switch {
                options.entry(switch.to_owned()).or_insert_with(|| "1".to_owned());
            }
        }
    }

    fn optimise(&self, entry: Option<&Entry>, wrote: &mut dyn FnMut(Session)) -> Result<Optimised, String> {
        let threads = self.settings.intra_threads;
        let mut write = |path: &Path| {
            let _room = self.room(threads)?;
            let builder = write_beside(self.builder(&self.settings, InstanceDevice::Cpu, threads)?, path);
            wrote(self.open(builder.map_err(message)?, self.graph())?);
            Ok(())
        };
        let (path, directory) = match entry {
            Some(entry) => (entry.get_or_make(write)?, None),
            None => {
                let directory = TemporaryFolder::new("graph").map_err(|error| error.to_string())?;
                let path = directory.path().join("model.onnx");
                write(&path)?;
                (path, Some(directory))
            }
        };
        let weights = self.settings.share_weights.then(|| SharedWeights::read(&path)).transpose()?;
        Ok(Optimised { path, weights, _directory: directory })
    }

    /// Whether an instance could be at `place`: tries its providers without reading the model.
    pub fn try_providers(&self, place: InstanceDevice) -> Result<(), String> {
        self.builder(&self.settings, place, 1).map(drop)
    }

    /// Gives TensorRT these options for shape profiles, from now on.
    pub fn set_profiles(&mut self, profiles: BTreeMap<String, String>) {
        tracing::info!(model = self.model, ?profiles, "TensorRT's shape profiles");
        *self.profiles.get_mut() = profiles;
    }

    /// A session for an instance at `place`, with `threads` threads. Errors if its providers are not the configured
    /// ones.
    pub fn make(&self, place: InstanceDevice, threads: usize) -> Result<Session, String> {
        match self.try_make(place, threads) {
            // TensorRT refuses profiles of the inputs alone where it takes only parts of the graph.
            Err(reason) if place.is_gpu() && !std::mem::take(&mut *self.profiles.lock()).is_empty() => {
                tracing::warn!(
                    model = self.model,
                    reason,
                    "TensorRT does not take the shape profiles: it builds an engine for new shapes"
                );
                self.try_make(place, threads)
            }
            made => made,
        }
    }

    fn try_make(&self, place: InstanceDevice, threads: usize) -> Result<Session, String> {
        let _room = self.room(threads)?;
        let optimised = self.optimised.lock().clone().filter(|_| !place.is_gpu());
        match optimised.map(|optimised| self.of_optimised(&optimised, place, threads)) {
            Some(Ok(session)) => return self.verify(session, self.settings.accelerators.at(place)),
            Some(Err(reason)) => {
                *self.optimised.lock() = None;
                tracing::warn!(
                    model = self.model,
                    reason,
                    "the optimised model cannot be opened: each session is made of {}",
                    self.path.display()
                );
            }
            None => {}
        }
        let session = self.open(self.builder(&self.settings, place, threads)?, self.graph())?;
        self.verify(session, self.settings.accelerators.at(place))
    }

    /// The graph of which sessions are made, where none is optimised.
    fn graph(&self) -> &Path {
        self.settings.levelled.as_ref().map_or(&self.path, Levelled::path)
    }

    fn of_optimised(&self, optimised: &Optimised, place: InstanceDevice, threads: usize) -> Result<Session, String> {
        // The graph is optimised already, and its weights lie beside it.
        let level = Some(Settings::NO_OPTIMISATION);
        let settings = Settings { graph_level: level, levelled: None, ..self.settings.clone() };
        let mut builder = self.builder(&settings, place, threads)?;
        if let Some(weights) = &optimised.weights {
            builder = weights.give(builder).map_err(message)?;
        }
        self.open(builder, &optimised.path)
    }

    /// A session on the plain CPU provider, without any setting that trades precision for speed.
    pub fn make_plain(&self) -> Result<Session, String> {
        let (settings, threads) = (self.settings.plain(), crate::cpus::available());
        let _room = self.room(threads)?;
        let session = self.open(self.builder(&settings, InstanceDevice::Cpu, threads)?, self.graph())?;
        self.verify(session, &[])
    }

    /// Opens the graph at `path`. All sessions of a model are made here, and each has a line in the debug log.
    fn open(&self, mut builder: SessionBuilder, path: &Path) -> Result<Session, String> {
        let began = Instant::now();
        let session = builder.commit_from_file(path).map_err(message)?;
        tracing::debug!(model = self.model, path = %path.display(), seconds = began.elapsed().as_secs_f64(), "session opened");
        #[cfg(test)]
        OPENED.set(OPENED.get() + 1);
        Ok(session)
    }

    /// Room for the threads of a session, beside the one that runs it: the library hangs where it cannot start them.
    fn room(&self, threads: usize) -> Result<Promise, String> {
        let between = if self.settings.parallel { self.settings.inter_threads } else { 1 };
        let pools = threads.saturating_sub(1) + between.saturating_sub(1);
        promise(pools).map_err(|error| format!("no session can be made: {error}"))
    }

    /// The first provider of sessions at `place`, and the place.
    pub fn provider(&self, place: InstanceDevice) -> String {
        let first = self.settings.accelerators.at(place).first();
        format!("{} on {place}", first.map_or(CPU, |first| first.kind.provider()))
    }

    fn builder(&self, settings: &Settings, place: InstanceDevice, threads: usize) -> Result<SessionBuilder, String> {
        let builder = settings.builder(&self.environment, threads).map_err(message)?;
        let mut accelerators = settings.accelerators.at(place).to_vec();
        for accelerator in accelerators.iter_mut().filter(|accelerator| accelerator.kind == AcceleratorKind::TensorRt) {
            accelerator.options.extend(self.profiles.lock().clone());
        }
        let openvino = self.options.openvino_library.as_deref();
        providers::apply(builder, &self.environment, &accelerators, place, threads, settings.memory_arena, openvino)
    }

    fn verify(&self, session: Session, accelerators: &[Accelerator]) -> Result<Session, String> {
        let assignment = providers::assigned(&session).map_err(message)?;
        providers::check_assignment(&assignment, accelerators)?;
        let nodes = providers::describe(&assignment);
        let mut described = self.described.lock();
        if *described != nodes {
            tracing::info!(model = self.model, nodes, "session made");
            *described = nodes;
        }
        Ok(session)
    }
}

fn message<T>(error: ort::Error<T>) -> String {
    trireme_engine::one_line(error.message())
}
