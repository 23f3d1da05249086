//! Model repositories on disk: their models, the versions, and the files beside them.
//!
//! ```text
//! <repository>/<model>/config.pbtxt        may be missing where the files below tell the backend
//! <repository>/<model>/<label file>        named by `label_filename`
//! <repository>/<model>/<version>/...       the backend's files; empty for an ensemble, but there
//! <repository>/<model>/<version>/config.pbtxt   the version's own configuration, if it differs; its label files lie beside it
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use prost::Message;

use crate::digest::{Digest, check_regular};
use crate::fingerprint::{self, hash};
use crate::normalize::Surroundings;
use crate::parse::{read_json, read_text};
use crate::proto::model_config::SchedulingChoice;
use crate::{ModelConfig, RepositoryError, TemporaryFolder, VersionPolicy, proto, requested};

mod files;

pub(crate) use files::version_number;
use files::{Entry, distinct, list, read_file, read_labels, version_directories};

/// The configuration's file name.
pub(crate) const CONFIG_FILE: &str = "config.pbtxt";
/// The file of a derived repository that says why the model's folder cannot be served.
const FAULT_FILE: &str = ".trireme-fault";
/// The parameter that names a model's operations on texts.
const TASK: &str = "task";

/// The models of one or more model repositories.
#[derive(Clone, Debug, Default)]
pub struct Repository {
    models: BTreeMap<String, RepositoryModel>,
    broken: BTreeMap<String, BrokenModel>,
    unreadable: Vec<Arc<RepositoryError>>,
}

/// A model as its directory defines it.
#[derive(Clone, Debug)]
pub struct RepositoryModel {
    /// The model's name.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// The configuration of the highest version that is served, normalized but not yet completed by its backend.
    pub config: Arc<ModelConfig>,
    /// The versions that its policy serves, ascending; never empty.
    pub versions: Vec<i64>,
    labels: BTreeMap<String, Arc<[String]>>,
    fingerprints: BTreeMap<i64, u64>,
    /// How each version is defined.
    definitions: BTreeMap<i64, Definition>,
    /// The parts of the model that came with a load request; `None`: all comes from the repository.
    pub uploaded: Option<Uploaded>,
}

/// The configuration of a version.
#[derive(Clone, Debug)]
struct Definition {
    config: Arc<ModelConfig>,
    /// Whether it lies in the version's directory, and its label files with it.
    is_own: bool,
    /// The fields on which answers depend, encoded.
    content: Arc<[u8]>,
}

/// The configuration, and maybe the files, that came with a load request. The files exist as long as a clone of this does.
#[derive(Clone, Debug)]
pub struct Uploaded {
    _folder: Option<Arc<TemporaryFolder>>,
}

/// A model whose directory is faulty.
#[derive(Clone, Debug)]
pub struct BrokenModel {
    /// The version directories that could be found, ascending.
    pub versions: Vec<i64>,
    /// The fault.
    pub fault: Arc<RepositoryError>,
}

/// The content of a load request that replaces the content of the model's directory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replacement<'a> {
    /// The whole configuration, as JSON.
    pub config: Option<&'a str>,
    /// All files of the model, by their paths within its directory; the directory itself is not looked at then.
    pub files: Option<&'a BTreeMap<String, Bytes>>,
}

/// Writes a model's directory that stands for a folder which cannot be served: version 1, and the reason.
pub(crate) fn write_fault(directory: &Path, fault: &str) -> Result<(), RepositoryError> {
    let file = directory.join(FAULT_FILE);
    let written = fs::create_dir_all(directory.join("1")).and_then(|()| fs::write(&file, fault));
    written.map_err(|source| RepositoryError::Write { path: file, source })
}

// === impl Repository ===

impl Repository {
    /// Reads every model directory under `paths`, for a host without GPUs. The faults of all models are reported
    /// together. Directories whose name begins with a dot are no models.
    pub fn open(paths: &[PathBuf]) -> Result<Repository, Vec<RepositoryError>> {
        Repository::open_with_gpus(paths, &[])
    }

    /// As [`Repository::open`], for a host with these GPUs: instance groups that leave the choice run on them.
    pub fn open_with_gpus(paths: &[PathBuf], gpus: &[i32]) -> Result<Repository, Vec<RepositoryError>> {
        let mut repository = Repository::read(paths, gpus)?;
        let broken = std::mem::take(&mut repository.broken);
        let faults: Vec<_> = broken.into_values().filter_map(|broken| Arc::into_inner(broken.fault)).collect();
        if faults.is_empty() { Ok(repository) } else { Err(faults) }
    }

    /// As [`Repository::open_with_gpus`], but models that are broken stand beside those that are not
    /// ([`Repository::broken`]): only a directory that cannot be listed is an error.
    pub fn read(paths: &[PathBuf], gpus: &[i32]) -> Result<Repository, Vec<RepositoryError>> {
        let mut repository = Repository::read_what_is_there(paths, gpus);
        match std::mem::take(&mut repository.unreadable) {
            faults if faults.is_empty() => Ok(repository),
            faults => Err(faults.into_iter().filter_map(Arc::into_inner).collect()),
        }
    }

    /// As [`Repository::read`], but directories that cannot be listed are left out, and named by
    /// [`Repository::unreadable`].
    pub fn read_what_is_there(paths: &[PathBuf], gpus: &[i32]) -> Repository {
        let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        let mut repository = Repository::default();
        for path in distinct(paths) {
            match list(path) {
                Ok(entries) => {
                    for Entry { name, path, .. } in entries.into_iter().filter(Entry::may_be_model) {
                        found.entry(name).or_default().push(path);
                    }
                }
                Err(fault) => repository.unreadable.push(Arc::new(fault)),
            }
        }
        for (name, paths) in found {
            match RepositoryModel::open_one(&name, &paths, Replacement::default(), gpus) {
                Ok(model) => repository.insert(model),
                Err(fault) => {
                    let versions = paths.first().and_then(|path| version_directories(path).ok());
                    let versions = versions.map(|found| found.into_keys().collect()).unwrap_or_default();
                    repository.broken.insert(name, BrokenModel { versions, fault: Arc::new(fault) });
                }
            }
        }
        repository
    }

    /// The reasons why model repositories, or parts of them, could not be listed.
    pub fn unreadable(&self) -> &[Arc<RepositoryError>] {
        &self.unreadable
    }

    /// An error if the directories at `paths`, from which this was read, hold no model, faulty ones included.
    pub fn check_not_empty(&self, paths: &[PathBuf]) -> Result<(), RepositoryError> {
        if !(self.models.is_empty() && self.broken.is_empty() && self.unreadable.is_empty()) {
            return Ok(());
        }
        let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        Err(RepositoryError::Empty { paths: paths.join(", ") })
    }

    /// The models in order of name.
    pub fn models(&self) -> impl Iterator<Item = &RepositoryModel> {
        self.models.values()
    }

    /// The model called `name`.
    pub fn model(&self, name: &str) -> Option<&RepositoryModel> {
        self.models.get(name)
    }

    /// The names of the composing models of an ensemble, also of ensembles within it.
    pub fn composing(&self, ensemble: &str) -> BTreeSet<String> {
        let mut composing = BTreeSet::new();
        let mut open = vec![ensemble];
        while let Some(name) = open.pop() {
            let configs = self.models.get(name).into_iter().flat_map(RepositoryModel::configs);
            for step in configs.flat_map(|config| config.ensemble.as_ref()).flatten() {
                if composing.insert(step.model_name.clone()) {
                    open.push(&step.model_name);
                }
            }
        }
        composing
    }

    /// The models whose directories are faulty, in order of name.
    pub fn broken(&self) -> impl Iterator<Item = (&str, &BrokenModel)> {
        self.broken.iter().map(|(name, broken)| (name.as_str(), broken))
    }

    /// Adds a model, in place of an earlier one of its name.
    pub fn insert(&mut self, model: RepositoryModel) {
        self.broken.remove(&model.name);
        self.models.insert(model.name.clone(), model);
    }
}

// === impl RepositoryModel ===

impl RepositoryModel {
    /// Reads the model `name` from its directory, for a host with these GPUs.
    pub fn open(name: &str, path: &Path, gpus: &[i32]) -> Result<RepositoryModel, RepositoryError> {
        RepositoryModel::read(name, path, None, gpus)
    }

    /// Finds the model `name` under `paths` and reads it, with the parts of `replacement` in place of its own. `None` if no
    /// directory has the name.
    pub fn find(
        paths: &[PathBuf],
        name: &str,
        replacement: Replacement<'_>,
        gpus: &[i32],
    ) -> Result<Option<RepositoryModel>, RepositoryError> {
        let is_name = Path::new(name).components().eq([Component::Normal(name.as_ref())]) && !name.starts_with('.');
        if !is_name {
            return Ok(None);
        }
        let found: Vec<_> = distinct(paths).map(|path| path.join(name)).filter(|path| path.is_dir()).collect();
        if found.is_empty() && replacement.files.is_none() {
            return Ok(None);
        }
        RepositoryModel::open_one(name, &found, replacement, gpus).map(Some)
    }

    /// Reads a model that has to be in one directory only, or comes with its files.
    fn open_one(
        name: &str,
        paths: &[PathBuf],
        replacement: Replacement<'_>,
        gpus: &[i32],
    ) -> Result<RepositoryModel, RepositoryError> {
        if let Some(files) = replacement.files {
            let Some(config) = replacement.config else {
                return Err(RepositoryError::Invalid(format!("model '{name}': files without a configuration")));
            };
            return RepositoryModel::unpack(name, config, files, gpus);
        }
        match paths {
            [path] => RepositoryModel::read(name, path, replacement.config, gpus),
            [first, second, ..] => {
                Err(RepositoryError::Duplicate { model: name.to_owned(), first: first.clone(), second: second.clone() })
            }
            [] => Err(RepositoryError::Invalid(format!("model '{name}' has no directory"))),
        }
    }

    /// Makes a directory of files that came with a request, and reads the model from there.
    fn unpack(
        name: &str,
        config: &str,
        files: &BTreeMap<String, Bytes>,
        gpus: &[i32],
    ) -> Result<RepositoryModel, RepositoryError> {
        let cannot = |path: &Path| {
            let path = path.to_owned();
            move |source| RepositoryError::Write { path, source }
        };
        let folder = TemporaryFolder::new("model").map_err(cannot(&std::env::temp_dir()))?;
        let root = folder.path().join(name);
        fs::create_dir(&root).map_err(cannot(&root))?;
        for (file, content) in files {
            let relative = Path::new(file);
            if !relative.components().all(|part| matches!(part, Component::Normal(_))) || file.is_empty() {
                return Err(RepositoryError::Invalid(format!(
                    "model '{name}': file path '{file}' is outside model directory"
                )));
            }
            let path = root.join(relative);
            let parent = path.parent().unwrap_or(&root);
            fs::create_dir_all(parent).map_err(cannot(parent))?;
            fs::write(&path, content).map_err(cannot(&path))?;
        }
        let mut model = RepositoryModel::read(name, &root, Some(config), gpus)?;
        // By content, because the same files lie in another place each time they come.
        let content = hash(&(config, files));
        model.fingerprints.values_mut().for_each(|fingerprint| *fingerprint = content);
        model.uploaded = Some(Uploaded { _folder: Some(Arc::new(folder)) });
        Ok(model)
    }

    /// Reads a model from its directory; `replaced` takes the place of its configuration file.
    fn read(name: &str, path: &Path, replaced: Option<&str>, gpus: &[i32]) -> Result<RepositoryModel, RepositoryError> {
        if let Ok(fault) = fs::read_to_string(path.join(FAULT_FILE)) {
            return Err(RepositoryError::Invalid(fault));
        }
        let directories = version_directories(path)?;
        // Before anything is read: what changes while it is read is a change at the next look.
        let shared = fingerprint::of(path, |entry| version_number(entry).is_none());
        let fingerprint = |version: &i64| hash(&(replaced, shared, fingerprint::of(&directories[version], |_| true)));
        let mut fingerprints: BTreeMap<i64, u64> =
            directories.keys().map(|version| (*version, fingerprint(version))).collect();
        let mut files = BTreeSet::new();
        for directory in directories.values() {
            files.extend(list(directory)?.into_iter().map(|entry| entry.name));
        }

        let config_path = path.join(CONFIG_FILE);
        let configured = replaced.is_some() || config_path.exists();
        let message = match replaced {
            Some(json) => read_json(json)?,
            None if configured => read_text(&read_file(&config_path)?, &config_path.display().to_string())?,
            None => Default::default(),
        };
        let content = content(&message);
        let around = Surroundings { directory: Some(name), files, gpus, completes: true };
        let config = ModelConfig::from_message(message, &around).map_err(|fault| match fault {
            RepositoryError::Invalid(text) if !configured => RepositoryError::Invalid(format!(
                "{text}; {} is missing and no version directory holds a file that tells the backend",
                config_path.display()
            )),
            fault => fault,
        })?;
        if replaced.is_some() {
            requested::check(&config)?;
        }

        let found: Vec<i64> = directories.keys().copied().collect();
        let versions = config.version_policy.choose(&found);
        let Some(&highest) = versions.last() else {
            let found = match found.is_empty() {
                true => "none".to_owned(),
                false => found.iter().map(i64::to_string).collect::<Vec<_>>().join(", "),
            };
            return Err(RepositoryError::NoVersion { model: name.to_owned(), path: path.to_owned(), found });
        };
        let shared = Definition { config: Arc::new(config), is_own: false, content };
        let mut definitions = BTreeMap::new();
        for &version in &versions {
            let own = match replaced {
                None => Definition::read(version, &directories[&version], &shared.config, &around)?,
                Some(_) => None,
            };
            definitions.insert(version, own.unwrap_or_else(|| shared.clone()));
        }
        let latest = &definitions[&highest];
        let labels = read_labels(&latest.config, if latest.is_own { &directories[&highest] } else { path })?;
        fingerprints.retain(|version, _| versions.contains(version));
        let (name, path, config) = (name.to_owned(), path.to_owned(), latest.config.clone());
        let uploaded = replaced.map(|_| Uploaded { _folder: None });
        Ok(RepositoryModel { name, path, config, versions, labels, fingerprints, definitions, uploaded })
    }

    /// The configuration of version `version`.
    pub fn config_of(&self, version: i64) -> &Arc<ModelConfig> {
        self.definitions.get(&version).map_or(&self.config, |definition| &definition.config)
    }

    /// The configurations of its versions.
    fn configs(&self) -> impl Iterator<Item = &Arc<ModelConfig>> {
        self.definitions.values().map(|definition| &definition.config)
    }

    /// The directory beside whose files the configuration of version `version` lies.
    pub fn config_path(&self, version: i64) -> PathBuf {
        match self.definitions.get(&version) {
            Some(definition) if definition.is_own => self.version_path(version),
            _ => self.path.clone(),
        }
    }

    /// The directory of version `version`.
    pub fn version_path(&self, version: i64) -> PathBuf {
        self.path.join(version.to_string())
    }

    /// A number that changes when files of the version, or those beside its directory, change. It compares files by size and time
    /// of change, and is valid within one process.
    pub fn fingerprint(&self, version: i64) -> u64 {
        self.fingerprints.get(&version).copied().unwrap_or_default()
    }

    /// When the newest file of the version, or beside its directory, was changed.
    pub fn files_at(&self, version: i64) -> Option<SystemTime> {
        let is_beside = |name: &str| !name.starts_with('.') && version_number(name).is_none();
        let own = fingerprint::newest(&self.version_path(version), |name| !name.starts_with('.'));
        own.max(fingerprint::newest(&self.path, is_beside))
    }

    /// A digest of the sources of the version's answers: its configuration, the files of its directory, the files beside that directory, and
    /// `surroundings`, which its backend names. It is the same on every host that has the same ones. Reads the files, as long as they are not
    /// known; the error names the path.
    pub fn digest(&self, version: i64, surroundings: &str) -> io::Result<String> {
        let mut digest = Digest::new();
        digest.add(surroundings.as_bytes());
        digest.add(self.definitions.get(&version).map_or(&[], |definition| &definition.content));
        let is_beside = |name: &str| name != CONFIG_FILE && version_number(name).is_none();
        digest.add_directory(&self.path, is_beside)?;
        digest.add_directory(&self.version_path(version), |name| name != CONFIG_FILE)?;
        Ok(digest.finish())
    }

    /// An error that names the first file of the version that nobody can read to its end: a named pipe or a device. Names in its directory, or
    /// beside that, that begin with a dot are left out.
    pub fn check_files(&self, version: i64) -> io::Result<()> {
        check_regular(&self.path, |name| version_number(name).is_none())?;
        check_regular(&self.version_path(version), |_| true)
    }

    /// The labels of `output`, by index; `None` where it has no label file.
    pub fn labels(&self, output: &str) -> Option<&[String]> {
        self.labels.get(output).map(|labels| &labels[..])
    }
}

// === impl Definition ===

impl Definition {
    /// Reads the configuration in a version's directory, if there is one. The version is of the same kind as the others.
    fn read(
        version: i64,
        directory: &Path,
        shared: &ModelConfig,
        around: &Surroundings<'_>,
    ) -> Result<Option<Definition>, RepositoryError> {
        let path = directory.join(CONFIG_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let message = read_text(&read_file(&path)?, &path.display().to_string())?;
        let content = content(&message);
        let config = ModelConfig::from_message(message, around)?;
        check_kind(shared, &config, version)?;
        Ok(Some(Definition { config: Arc::new(config), is_own: true, content }))
    }
}

/// The configuration of the model `name` as its config.pbtxt has it, without the settings that its files add; `None` without that file.
pub(crate) fn read_config(directory: &Path, name: &str) -> Result<Option<ModelConfig>, RepositoryError> {
    let path = directory.join(CONFIG_FILE);
    path.exists().then(|| ModelConfig::parse(&read_file(&path)?, name)).transpose()
}

/// An error if a version's configuration is of another kind than the model's.
pub(crate) fn check_kind(shared: &ModelConfig, own: &ModelConfig, version: i64) -> Result<(), RepositoryError> {
    // Further tasks are those of heads, which one version may have and another not.
    let task = |config: &ModelConfig| {
        config.parameters.get(TASK).and_then(|tasks| tasks.split(',').next()).unwrap_or_default().to_owned()
    };
    let kinds: [(&str, String, String); 3] = [
        ("backend", own.backend.clone(), shared.backend.clone()),
        ("platform", own.platform.clone(), shared.platform.clone()),
        (TASK, task(own), task(shared)),
    ];
    match kinds.into_iter().find(|(_, found, expected)| found != expected) {
        Some((what, found, expected)) => Err(RepositoryError::Invalid(format!(
            "model '{}' version {version}: found {what} '{found}', expected '{expected}' as in the model's other versions; give a model of another \
             kind a name of its own",
            shared.name
        ))),
        None => Ok(()),
    }
}

// === impl VersionPolicy ===

impl VersionPolicy {
    /// The subset of `versions` that is served. Both are ascending.
    pub fn choose(&self, versions: &[i64]) -> Vec<i64> {
        match self {
            VersionPolicy::All => versions.to_vec(),
            VersionPolicy::Latest(count) => {
                let skipped = versions.len().saturating_sub(*count as usize);
                versions[skipped..].to_vec()
            }
            VersionPolicy::Specific(wanted) => versions.iter().copied().filter(|v| wanted.contains(v)).collect(),
        }
    }
}

/// A configuration without comments, and without the fields that have no part in answers: where, how often and in which batches a model
/// runs may differ from host to host, and the policy chooses among versions.
fn content(message: &proto::ModelConfig) -> Arc<[u8]> {
    let mut defining = proto::ModelConfig { instance_group: Vec::new(), version_policy: None, ..message.clone() };
    if let Some(SchedulingChoice::DynamicBatching(batching)) = &mut defining.scheduling_choice {
        batching.preferred_batch_size = Vec::new();
        batching.max_queue_delay_microseconds = 0;
        if *batching == Default::default() {
            defining.scheduling_choice = None;
        }
    }
    defining.encode_to_vec().into()
}

/// The parameters of a configuration derived from a model folder that change no answer. An accelerator serves only if its outputs are those of
/// the plain provider; a folder in the cache of the hub has a further name.
const IMMATERIAL: [&str; 4] = ["accelerator", "layouts", "max_rows_per_message", "served_names"];

/// The content of a configuration that was derived from a model folder.
pub(crate) fn derived_content(config: &str) -> Result<Arc<[u8]>, RepositoryError> {
    let mut message = read_text(config, "a derived configuration")?;
    message.optimization = None;
    message.parameters.retain(|key, _| !IMMATERIAL.contains(&key.as_str()));
    Ok(content(&message))
}

#[cfg(test)]
mod tests;
