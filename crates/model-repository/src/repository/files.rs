//! The files of a repository: its directories, versions and label files. Not here: configurations (the parent).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trireme_model_files::regular;

use crate::validate::lies_beneath;
use crate::{ModelConfig, RepositoryError};

/// No configuration or label file is larger than this by intent.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// An entry of a directory.
pub(super) struct Entry {
    pub name: String,
    pub path: PathBuf,
    pub is_directory: bool,
}

// === impl Entry ===

impl Entry {
    pub(super) fn may_be_model(&self) -> bool {
        self.is_directory && !self.name.starts_with('.')
    }
}

/// The version directories of a model's directory, by version.
pub(super) fn version_directories(path: &Path) -> Result<BTreeMap<i64, PathBuf>, RepositoryError> {
    let directories = list(path)?.into_iter().filter(|entry| entry.is_directory);
    Ok(directories.filter_map(|entry| Some((version_number(&entry.name)?, entry.path))).collect())
}

/// The version that a directory name stands for: digits only, no leading zero.
pub(crate) fn version_number(name: &str) -> Option<i64> {
    let digits = name.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = name.len() > 1 && name.starts_with('0');
    if digits && !leading_zero { name.parse().ok() } else { None }
}

/// The labels of each output that has a file of them, in the order of the classes.
pub(super) fn read_labels(
    config: &ModelConfig,
    path: &Path,
) -> Result<BTreeMap<String, Arc<[String]>>, RepositoryError> {
    let mut labels = BTreeMap::new();
    // The outputs of the message include outputs that the model's code still has to complete.
    for output in config.message.output.iter().filter(|output| !output.label_filename.is_empty()) {
        let label_path = path.join(&output.label_filename);
        if !lies_beneath(&output.label_filename) {
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

/// The paths without those that name a directory a second time.
pub(super) fn distinct(paths: &[PathBuf]) -> impl Iterator<Item = &PathBuf> {
    let mut seen = BTreeSet::new();
    paths.iter().filter(move |path| seen.insert(path.canonicalize().unwrap_or_else(|_| path.to_path_buf())))
}

/// The entries of a directory by name.
pub(super) fn list(path: &Path) -> Result<Vec<Entry>, RepositoryError> {
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

/// A text file, which may have 64 MiB.
pub(super) fn read_file(path: &Path) -> Result<String, RepositoryError> {
    let read = || {
        let mut text = String::new();
        let size = regular::open(path)?.take(MAX_TEXT_BYTES + 1).read_to_string(&mut text)? as u64;
        match size > MAX_TEXT_BYTES {
            true => Err(io::Error::other(format!("larger than {MAX_TEXT_BYTES} bytes"))),
            false => Ok(text),
        }
    };
    read().map_err(|source| RepositoryError::Read { path: path.to_owned(), source })
}
