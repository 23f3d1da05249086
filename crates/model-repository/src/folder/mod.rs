//! Model folders as Hugging Face and sentence-transformers write them: the second way to a configuration, beside
//! config.pbtxt.
//!
//! [`FolderDescription::read`] reads the small files of a folder and the outline of its ONNX file, and describes the model, each
//! setting with the file and field that it came from. A folder whose files contradict each other is refused, with both places.
//! [`FolderDescription::models`] makes configurations of a description, in the form that people write them, and [`place`]
//! puts them into a repository, which is then read like any other.
//!
//! Not here: downloads, conversions, and comparing a model's results.

mod causal;
mod chain;
mod choices;
mod classifier;
mod describe;
mod described;
mod description;
mod equivalent_spaces;
mod export;
mod fields;
mod files;
mod fold;
mod graphs;
mod guesses;
mod head;
mod heads;
mod in_graph;
mod inputs;
mod late;
mod lengths;
mod messages;
mod modules;
mod needed;
mod not_vectors;
mod origin;
mod place;
mod precision;
mod processing;
mod repository;
mod routed;
mod routes;
mod rows;
mod scores;
mod span_rows;
mod spans;
mod special;
mod table;
mod tables;
mod task;
mod tensors;
mod text;
mod tokenizer;
mod widths;
mod wiring;

use std::path::{Path, PathBuf};

use trireme_inference::ErrorCode;

use self::files::Reader;
use crate::repository::{CONFIG_FILE, version_number};

pub use self::choices::{Accelerator, Choices, FolderChoices, LongTexts, PaddingSide};
pub use self::description::FolderDescription;
pub use self::equivalent_spaces::{EQUIVALENT_SPACES, EquivalentSpaces, Measured};
pub use self::export::Export;
pub use self::fields::as_markdown as folder_fields;
pub(crate) use self::needed::read_files;
pub use self::needed::{NeededError, needed_files, needed_to_export};
pub use self::origin::Derived;
pub use self::place::{Placement, place};
pub use self::precision::Precision;
pub use self::repository::DerivedModel;
pub use self::table::Row;

/// Files that only model folders have at their top.
const MARKS: [&str; 7] = [
    spans::FILE,
    "config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
];

/// The reasons why a model folder cannot be served: all of its faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("model folder {}: {}", path.display(), faults.join("; "))]
pub struct FolderError {
    /// The folder.
    pub path: PathBuf,
    /// The faults, each of which names its places.
    pub faults: Vec<String>,
}

// === impl FolderError ===

impl FolderError {
    /// The code of an error about a model.
    pub fn code(&self) -> ErrorCode {
        ErrorCode::InvalidArg
    }
}

// === impl FolderDescription ===

impl FolderDescription {
    /// Reads the model folder at `path`; where its files leave something open, the choices say it. All its faults are reported together.
    pub fn read(path: &Path, choices: impl Into<Choices>) -> Result<FolderDescription, FolderError> {
        let reader = Reader::new(path, choices.into());
        let (found, faults) = match routes::routes(&reader) {
            Some(routes) if reader.faults().is_empty() => routed::describe(routes, path, reader.choices()),
            _ => {
                let found = describe::describe(&reader);
                let warnings = reader.take_warnings();
                (found.map(|found| FolderDescription { warnings, ..found }), reader.faults())
            }
        };
        let served_names = reader.choices().served_names.clone();
        match found {
            Some(description) if faults.is_empty() => {
                if let Some(fault) = description.fold_fault() {
                    return Err(FolderError { path: path.to_owned(), faults: vec![fault] });
                }
                let mut warnings = guesses::warnings(&description);
                if reader.choices().strict && !warnings.is_empty() {
                    let faults = warnings.iter().map(|guess| format!("--strict allows no guess: {guess}")).collect();
                    return Err(FolderError { path: path.to_owned(), faults });
                }
                warnings.extend(description.warnings.iter().cloned());
                Ok(FolderDescription { served_names, warnings, ..description })
            }
            _ => Err(FolderError { path: path.to_owned(), faults }),
        }
    }
}

/// Whether the directory `path` is a model folder, rather than a model repository, whose directories are models.
pub fn is_model_folder(path: &Path) -> bool {
    let has_graph = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|found| found == "onnx"))
    };
    MARKS.iter().any(|mark| path.join(mark).is_file()) || has_graph(path)
}

/// The model folders that lie in the directory `path`, by name, where it is neither a model folder nor a model repository: a folder
/// of model folders, such as Hugging Face's cache. Of a model in that cache it is the folder of its branch `main`.
pub fn model_folders_in(path: &Path) -> Vec<PathBuf> {
    if is_model_folder(path) {
        return Vec::new();
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_hidden = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    let mut inner: Vec<_> = entries.filter(|path| path.is_dir() && !is_hidden(path)).collect();
    inner.sort();
    let is_model = |directory: &PathBuf| {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.any(|name| name == CONFIG_FILE || version_number(&name).is_some())
    };
    if inner.iter().any(is_model) {
        return Vec::new();
    }
    inner
        .into_iter()
        .map(|folder| snapshot(&folder).unwrap_or(folder))
        .filter(|folder| is_model_folder(folder))
        .collect()
}

/// The folder of files of a model in Hugging Face's cache (`models--org--name`): that of its branch `main`, or the only one.
pub fn snapshot(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let snapshots = path.join("snapshots");
    if !name.starts_with("models--") || !snapshots.is_dir() {
        return None;
    }
    let main = std::fs::read_to_string(path.join("refs/main")).map(|commit| snapshots.join(commit.trim()));
    if let Some(main) = main.ok().filter(|main| main.is_dir()) {
        return Some(main);
    }
    let mut all = std::fs::read_dir(&snapshots).ok()?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    all.next().filter(|_| all.next().is_none())
}

/// The name of a model folder on Hugging Face's hub, `org/name` or `name`, where it is in the hub's cache
/// (`models--org--name/snapshots/…`).
pub fn hub_name(path: &Path) -> Option<String> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let names: Vec<_> = path.components().rev().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    match names.as_slice() {
        [_, snapshots, cached, ..] if snapshots == "snapshots" => {
            Some(cached.strip_prefix("models--")?.replacen("--", "/", 1))
        }
        _ => None,
    }
}

/// The default name for serving the model folder at `path`: the folder's, and in Hugging Face's
/// cache (`models--org--name/snapshots/…`) the model's. Characters that no model name has become `_`.
pub fn folder_name(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let last = || whole.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    let name = hub_name(path).map_or_else(last, |name| name.rsplit('/').next().unwrap_or(&name).to_owned());
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = name.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    match name.trim_start_matches('.') {
        "" => "model".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
