//! Model repositories on disk: which models there are, in which versions, and what lies beside them.
//!
//! ```text
//! <repository>/<model>/config.pbtxt        may be missing where the files below tell the backend
//! <repository>/<model>/<label file>        named by `label_filename`
//! <repository>/<model>/<version>/...       the backend's files; empty for an ensemble, but there
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::normalize::Surroundings;
use crate::parse::read_text;
use crate::{ModelConfig, RepositoryError, VersionPolicy};

/// The configuration's file name.
const CONFIG_FILE: &str = "config.pbtxt";
/// No configuration or label file is larger than this by intent.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// The models of one or more model repositories, every one of them valid.
#[derive(Clone, Debug, Default)]
pub struct Repository {
    models: BTreeMap<String, RepositoryModel>,
}

/// A model as its directory has it.
#[derive(Clone, Debug)]
pub struct RepositoryModel {
    /// The model's name.
    pub name: String,
    /// Its directory.
    pub path: PathBuf,
    /// Its configuration, normalized but not yet completed by its backend.
    pub config: Arc<ModelConfig>,
    /// The versions that its policy serves, ascending; never empty.
    pub versions: Vec<i64>,
    labels: BTreeMap<String, Arc<[String]>>,
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
        let mut models: BTreeMap<String, RepositoryModel> = BTreeMap::new();
        let mut faults = Vec::new();
        // By name, also where loading failed: a second directory of that name is a fault of its own.
        let mut seen: BTreeMap<String, PathBuf> = BTreeMap::new();
        for path in paths {
            let directories = match list(path) {
                Ok(entries) => entries.into_iter().filter(|entry| entry.is_directory && !entry.name.starts_with('.')),
                Err(fault) => {
                    faults.push(fault);
                    continue;
                }
            };
            for Entry { name, path, .. } in directories {
                if let Some(first) = seen.insert(name.clone(), path.clone()) {
                    faults.push(RepositoryError::Duplicate { model: name, first, second: path });
                    continue;
                }
                match RepositoryModel::open(&name, &path, gpus) {
                    Ok(model) => {
                        models.insert(name, model);
                    }
                    Err(fault) => faults.push(fault),
                }
            }
        }
        match faults.is_empty() {
            true => Ok(Repository { models }),
            false => Err(faults),
        }
    }

    /// The models in order of name.
    pub fn models(&self) -> impl Iterator<Item = &RepositoryModel> {
        self.models.values()
    }

    /// The model called `name`.
    pub fn model(&self, name: &str) -> Option<&RepositoryModel> {
        self.models.get(name)
    }
}

// === impl RepositoryModel ===

impl RepositoryModel {
    /// Reads the model `name` from its directory, for a host with these GPUs.
    pub fn open(name: &str, path: &Path, gpus: &[i32]) -> Result<RepositoryModel, RepositoryError> {
        let versions = list(path)?.into_iter().filter(|entry| entry.is_directory);
        let versions: BTreeMap<i64, PathBuf> =
            versions.filter_map(|entry| Some((version_number(&entry.name)?, entry.path))).collect();
        let mut files = BTreeSet::new();
        for directory in versions.values() {
            files.extend(list(directory)?.into_iter().map(|entry| entry.name));
        }

        let config_path = path.join(CONFIG_FILE);
        let configured = config_path.exists();
        let message = match configured {
            true => read_text(&read_file(&config_path)?, &config_path.display().to_string())?,
            false => Default::default(),
        };
        let around = Surroundings { directory: Some(name), files, gpus };
        let config = ModelConfig::from_message(message, &around).map_err(|fault| match fault {
            RepositoryError::Invalid(text) if !configured => RepositoryError::Invalid(format!(
                "{text}; {} is missing and no version directory holds a file that tells the backend",
                config_path.display()
            )),
            fault => fault,
        })?;

        let found: Vec<i64> = versions.into_keys().collect();
        let versions = config.version_policy.choose(&found);
        if versions.is_empty() {
            let found = match found.is_empty() {
                true => "none".to_owned(),
                false => found.iter().map(i64::to_string).collect::<Vec<_>>().join(", "),
            };
            return Err(RepositoryError::NoVersion { model: name.to_owned(), path: path.to_owned(), found });
        }
        let labels = read_labels(&config, path)?;
        Ok(RepositoryModel { name: name.to_owned(), path: path.to_owned(), config: Arc::new(config), versions, labels })
    }

    /// The directory of version `version`.
    pub fn version_path(&self, version: i64) -> PathBuf {
        self.path.join(version.to_string())
    }

    /// The labels of `output`, by index; `None` where it has no label file.
    pub fn labels(&self, output: &str) -> Option<&[String]> {
        self.labels.get(output).map(|labels| &labels[..])
    }
}

// === impl VersionPolicy ===

impl VersionPolicy {
    /// Those of `versions` (ascending) that are served, ascending.
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

/// The version that a directory name stands for: digits only, no leading zero.
fn version_number(name: &str) -> Option<i64> {
    let digits = name.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = name.len() > 1 && name.starts_with('0');
    if digits && !leading_zero { name.parse().ok() } else { None }
}

fn read_labels(config: &ModelConfig, path: &Path) -> Result<BTreeMap<String, Arc<[String]>>, RepositoryError> {
    let mut labels = BTreeMap::new();
    for output in config.outputs.iter().filter(|output| !output.label_filename.is_empty()) {
        let file = Path::new(&output.label_filename);
        let label_path = path.join(file);
        if !file.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(RepositoryError::Invalid(format!(
                "label file path '{}' for output '{}' in model '{}' is outside model directory",
                label_path.display(),
                output.name,
                config.name
            )));
        }
        labels.insert(output.name.clone(), read_file(&label_path)?.lines().map(str::to_owned).collect());
    }
    Ok(labels)
}

struct Entry {
    name: String,
    path: PathBuf,
    is_directory: bool,
}

/// What lies in the directory `path`, in order of name. Links are followed: mounted configurations are made of them.
fn list(path: &Path) -> Result<Vec<Entry>, RepositoryError> {
    let read = || -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_directory = path.is_dir();
            entries.push(Entry { name, path, is_directory });
        }
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(entries)
    };
    read().map_err(|source| RepositoryError::Read { path: path.to_owned(), source })
}

fn read_file(path: &Path) -> Result<String, RepositoryError> {
    let read = || {
        let mut text = String::new();
        let size = File::open(path)?.take(MAX_TEXT_BYTES + 1).read_to_string(&mut text)? as u64;
        match size > MAX_TEXT_BYTES {
            true => Err(io::Error::other(format!("larger than {MAX_TEXT_BYTES} bytes"))),
            false => Ok(text),
        }
    };
    read().map_err(|source| RepositoryError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
#[path = "repository/tests.rs"]
mod tests;
