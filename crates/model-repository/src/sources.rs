//! The models of a command line: model repositories, and model folders, from which a repository is derived.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use trireme_inference::ErrorCode;

use crate::digest::{self, Digest};
use crate::fingerprint;
use crate::folder::{
    Choices, DerivedModel, EQUIVALENT_SPACES, EquivalentSpaces, FolderChoices, FolderDescription, FolderError,
    Placement, folder_name, hub_name, is_model_folder, model_folders_in, place, read_files,
};
use crate::repository::{derived_content, version_number, write_fault};
use crate::{RepositoryError, TemporaryFolder};

/// Model repositories, with the ones derived from model folders.
#[derive(Debug)]
pub struct ModelSources {
    /// The repositories, as [`crate::Repository::open`] takes them.
    pub repositories: Vec<PathBuf>,
    /// The model folders, in the order given.
    pub folders: Vec<ModelFolder>,
    /// Folders whose files have changed, as their later versions.
    later: Mutex<Vec<ModelFolder>>,
    /// Model folders that cannot be served, beside those that can: the derived repository has a broken model for each.
    pub broken: Vec<BrokenFolder>,
    /// The derived repository: links, which go when this is dropped.
    derived: Option<TemporaryFolder>,
}

/// A model folder that is served.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    /// The name of its ensemble.
    pub name: String,
    /// The version of its models.
    pub version: i64,
    /// Where it is.
    pub path: PathBuf,
    /// The folder's derived description.
    pub description: FolderDescription,
    /// The spaces that its own was measured to equal, where a file says so.
    pub equivalent_spaces: Option<EquivalentSpaces>,
    /// The flags about it.
    pub choices: Choices,
}

/// A model folder that cannot be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenFolder {
    /// The name of the model that it would be.
    pub name: String,
    /// The reasons.
    pub fault: FolderError,
}

/// The reason why a path of the command line cannot be served.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the messages show")]
pub enum SourceError {
    /// The path does not exist.
    #[error(
        "there is no folder '{0}': expected a model repository or a model folder; a model of the Hugging Face hub is \
         named hf://org/name"
    )]
    Missing(String),
    /// A name was given for a model repository, whose models have names already.
    #[error("'{path}' is a model repository, whose models have names; a name goes with a model folder: found '{name}'")]
    Named { name: String, path: String },
    /// A name was given for several model folders.
    #[error(
        "'{path}' holds the model folders {}, and a name goes with one of them: found '{name}', expected as in --model \
         {name}={path}/{}, or '{path}' without a name, which serves them all",
        folders.join(", "),
        folders.first().map(String::as_str).unwrap_or_default()
    )]
    Holds { name: String, path: String, folders: Vec<String> },
    /// A name that cannot be one.
    #[error(
        "'{0}' is no model name: expected letters, digits, '-', '_' and '.', without a '.' at the beginning, maybe the name of an organisation \
         before it, and a version from 1 on behind it, as in name@2 and org/name"
    )]
    BadName(String),
    /// Two folders under one name and version.
    #[error(
        "{} and {} would both be version {version} of '{name}': give one of them another name or version with --model NAME=MODEL or \
         NAME@2=MODEL",
        first.display(),
        second.display()
    )]
    SameName { name: String, version: i64, first: PathBuf, second: PathBuf },
    /// A flag for a model that is none of the folders.
    #[error("--{flag} {value}: there is no model folder of that name, only {}", known.join(", "))]
    Choice { flag: &'static str, value: String, known: Vec<String> },
    /// A model folder that cannot be served.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The derived repository cannot be written.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
}

// === impl SourceError ===

impl SourceError {
    /// The error's code.
    pub fn code(&self) -> ErrorCode {
        match self {
            SourceError::Missing(_) => ErrorCode::NotFound,
            SourceError::Named { .. }
            | SourceError::Holds { .. }
            | SourceError::BadName(_)
            | SourceError::Choice { .. }
            | SourceError::SameName { .. } => ErrorCode::InvalidArg,
            SourceError::Folder(error) => error.code(),
            SourceError::Repository(error) => error.code(),
        }
    }
}

/// Checks that choices by name are for one of the folders.
pub fn check_choices(choices: &FolderChoices, folders: &[ModelFolder]) -> Result<(), SourceError> {
    let mut known: Vec<&str> = folders.iter().map(|folder| folder.name.as_str()).collect();
    known.dedup();
    let known_names = || known.iter().map(|&name| name.to_owned()).collect();
    match choices.for_none_of(&known) {
        Some((flag, value)) => Err(SourceError::Choice { flag, value, known: known_names() }),
        None => Ok(()),
    }
}

// === impl ModelSources ===

impl ModelSources {
    /// Tells repositories and folders apart, and derives a repository of the folders in the system's temporary directory.
    /// `models` are paths; each may have a name, which only a folder takes. `choices` are for folders. All
    /// faults together.
    pub fn open<'a>(
        models: impl IntoIterator<Item = (Option<&'a str>, &'a Path)>,
        choices: &FolderChoices,
    ) -> Result<ModelSources, Vec<SourceError>> {
        let sources = ModelSources::open_what_can_be_served(models, choices)?;
        match sources.broken.is_empty() {
            true => Ok(sources),
            false => Err(sources.broken.into_iter().map(|broken| SourceError::Folder(broken.fault)).collect()),
        }
    }

    /// As [`ModelSources::open`], but model folders that cannot be served are broken models of the derived repository.
    pub fn open_what_can_be_served<'a>(
        models: impl IntoIterator<Item = (Option<&'a str>, &'a Path)>,
        choices: &FolderChoices,
    ) -> Result<ModelSources, Vec<SourceError>> {
        let mut faults = Vec::new();
        let (mut repositories, mut folders, mut broken) = (Vec::new(), Vec::<ModelFolder>::new(), Vec::new());
        for (name, model) in models {
            let inner = model_folders_in(model);
            let found = match inner.as_slice() {
                [] => vec![source(name, model, choices)],
                inner if name.is_some() => vec![Err(holds(name, model, inner))],
                inner => inner.iter().map(|folder| source(None, folder, choices)).collect(),
            };
            for source in found {
                match source {
                    Ok(Source::Repository(path)) => repositories.push(path),
                    Ok(Source::Folder(folder)) => match folders.iter().find(|other| other.key() == folder.key()) {
                        Some(other) => faults.push(SourceError::SameName {
                            name: folder.name.clone(),
                            version: folder.version,
                            first: other.path.clone(),
                            second: folder.path.clone(),
                        }),
                        None => folders.push(*folder),
                    },
                    Err(SourceError::Folder(fault)) => {
                        let own = || folder_name(&fault.path);
                        let name = name.and_then(named).map_or_else(own, |(name, ..)| name);
                        broken.push(BrokenFolder { name, fault });
                    }
                    Err(fault) => faults.push(fault),
                }
            }
        }
        // A flag may be for a folder that cannot be served.
        if faults.is_empty() && !folders.is_empty() && broken.is_empty() {
            faults.extend(check_choices(choices, &folders).err());
        }
        if !faults.is_empty() {
            faults.extend(broken.into_iter().map(|broken| SourceError::Folder(broken.fault)));
            return Err(faults);
        }
        let derived = derive(&folders, &broken).map_err(|fault| vec![fault])?;
        repositories.extend(derived.as_ref().map(|derived| derived.path().to_owned()));
        Ok(ModelSources { repositories, folders, later: Mutex::default(), broken, derived })
    }

    /// The repository that is derived from the folders, if there are folders.
    pub(crate) fn derived(&self) -> Option<&Path> {
        self.derived.as_ref().map(TemporaryFolder::path)
    }

    /// Keeps a folder whose files have changed, in place of its earlier versions that were kept so, except the last one: it may still be served.
    pub(crate) fn keep_later(&self, folder: ModelFolder) {
        let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        later.retain(|other| other.name != folder.name || other.version + 1 == folder.version);
        later.push(folder);
    }

    /// The model folder that a version of a model is made of.
    pub fn folder_of(&self, model: &str, version: i64) -> Option<ModelFolder> {
        let later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        let mut folders = self.folders.iter().chain(&*later);
        folders.find(|folder| folder.version == version && folder.has(model)).cloned()
    }
}

// === impl ModelFolder ===

impl ModelFolder {
    /// Reads the model folder at `path`; its ensemble is called `name`, or else by [`folder_name`]. Behind a name may be its version,
    /// as in `name@2`; else it is version 1. The ensemble of a name `org/name` is called `name`, and answers to both.
    pub fn read(path: &Path, name: Option<&str>, choices: &FolderChoices) -> Result<ModelFolder, SourceError> {
        let (name, version, also) = match name {
            Some(name) => named(name).ok_or_else(|| SourceError::BadName(name.to_owned()))?,
            None => (folder_name(path), 1, hub_name(path)),
        };
        let mut choices = choices.of(&name);
        choices.served_names.extend(also);
        choices.served_names.retain(|also| *also != name);
        let description = FolderDescription::read(path, choices.clone())?;
        let equivalent_spaces = EquivalentSpaces::read(path)?;
        Ok(ModelFolder { name, version, path: path.to_owned(), description, equivalent_spaces, choices })
    }

    /// The folder as it is now, as the version behind this one.
    pub(crate) fn next(&self) -> Result<ModelFolder, SourceError> {
        let description = FolderDescription::read(&self.path, self.choices.clone())?;
        let equivalent_spaces = EquivalentSpaces::read(&self.path)?;
        Ok(ModelFolder { description, equivalent_spaces, version: self.version + 1, ..self.clone() })
    }

    fn key(&self) -> (&str, i64) {
        (&self.name, self.version)
    }

    /// The models that it is served as, the ensemble first.
    pub(crate) fn models(&self) -> Vec<DerivedModel> {
        self.description.models(&self.name, self.version)
    }

    /// Whether the folder is served as several models of which `model` is one.
    fn has(&self, model: &str) -> bool {
        model.strip_prefix(&self.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
            && self.models().iter().any(|derived| derived.name == model)
    }

    /// A digest of the sources of its answers: the files that it is served from, and its description, in which the choices of the command
    /// line are. It is the same on every host that has the same files and choices. Reads the files, as long as they are not known; the error
    /// names the path.
    pub fn digest(&self) -> io::Result<String> {
        let names = digest::names(&self.path)?;
        let listed: Vec<&str> = names.iter().map(String::as_str).collect();
        let files = read_files(&self.path, &listed, &self.choices).map_err(io::Error::other)?;
        let mut digest = Digest::new();
        for name in files {
            digest.add_file(&name, &self.path.join(&name))?;
        }
        // As the first version, whichever it is: the next version of the same files is the same content.
        for DerivedModel { name, config, files, texts, converted } in self.description.models(&self.name, 1) {
            digest.add(name.as_bytes());
            digest.add(&derived_content(&config).map_err(io::Error::other)?);
            for (place, what) in files.iter().chain(&texts).chain(&converted) {
                digest.add(place.as_bytes());
                digest.add(what.as_bytes());
            }
        }
        Ok(digest.finish())
    }

    /// A number that changes when the folder's files change. It compares files by size and time of change, and is valid within one process.
    pub fn fingerprint(&self) -> u64 {
        fingerprint::of(&self.path, is_of_model)
    }

    /// When the newest of the folder's files was changed.
    pub fn files_at(&self) -> Option<SystemTime> {
        fingerprint::newest(&self.path, is_of_model)
    }

    /// Writes its models into the repository `directory`, beside other versions of them.
    pub fn write(&self, directory: &Path, placement: Placement) -> Result<(), RepositoryError> {
        place(&self.models(), &self.path, directory, self.version, placement)
    }

    /// Warnings for a person, before the folder is served: guesses, contradictions that were accepted, fields that are not
    /// understood. Each warning says what settles it.
    pub fn warnings(&self) -> &[String] {
        self.description.warnings()
    }

    /// The derived values, in a line for each part: `tokenizer: max_length 256 (sentence_bert_config.json: max_seq_length)`.
    pub fn summary(&self) -> Vec<String> {
        let mut parts: Vec<(String, Vec<String>)> = Vec::new();
        for row in self.description.table() {
            let line = format!("{} {} ({})", row.what, row.value, row.origin);
            match parts.iter_mut().find(|(part, _)| *part == row.part) {
                Some((_, lines)) => lines.push(line),
                None => parts.push((row.part, vec![line])),
            }
        }
        let line = |(part, lines): (String, Vec<String>)| match part.as_str() {
            "" => lines.join(", "),
            part => format!("{part}: {}", lines.join(", ")),
        };
        parts.into_iter().map(line).collect()
    }
}

/// Whether a file at the top of a model folder may be one of the model's: the record of a measurement is not.
fn is_of_model(name: &str) -> bool {
    !name.starts_with('.') && name != EQUIVALENT_SPACES
}

/// The error of a name for the model folders `inner` of `path`.
fn holds(name: Option<&str>, path: &Path, inner: &[PathBuf]) -> SourceError {
    let last = |folder: &PathBuf| folder.strip_prefix(path).unwrap_or(folder).display().to_string();
    let (name, folders) = (name.unwrap_or_default().to_owned(), inner.iter().map(last).collect());
    SourceError::Holds { name, path: path.display().to_string(), folders }
}

/// The two kinds of path.
enum Source {
    Repository(PathBuf),
    Folder(Box<ModelFolder>),
}

fn source(name: Option<&str>, path: &Path, choices: &FolderChoices) -> Result<Source, SourceError> {
    if is_model_folder(path) {
        return ModelFolder::read(path, name, choices).map(|folder| Source::Folder(Box::new(folder)));
    }
    match name {
        _ if !path.is_dir() => Err(SourceError::Missing(path.display().to_string())),
        Some(name) => Err(SourceError::Named { name: name.to_owned(), path: path.display().to_string() }),
        None => Ok(Source::Repository(path.to_owned())),
    }
}

/// The name and the version of `name@version`, or of a name alone; of `org/name` also the whole.
fn named(text: &str) -> Option<(String, i64, Option<String>)> {
    let (name, version) = match text.split_once('@') {
        Some((name, version)) => (name, version_number(version).filter(|&version| version > 0)?),
        None => (text, 1),
    };
    let (org, own) = name.split_once('/').map_or((None, name), |(org, own)| (Some(org), own));
    (is_name(own) && org.is_none_or(is_name)).then(|| (own.to_owned(), version, org.map(|_| name.to_owned())))
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// A repository of all folders; `None` without folders.
fn derive(folders: &[ModelFolder], broken: &[BrokenFolder]) -> Result<Option<TemporaryFolder>, SourceError> {
    if folders.is_empty() && broken.is_empty() {
        return Ok(None);
    }
    let derived = TemporaryFolder::new("models");
    let derived = derived.map_err(|source| RepositoryError::Write { path: std::env::temp_dir(), source })?;
    for folder in folders {
        folder.write(derived.path(), Placement::Link)?;
    }
    for folder in broken {
        let directory = derived.path().join(&folder.name);
        // A folder of this name that is served stays.
        if !directory.exists() {
            write_fault(&directory, &folder.fault.to_string())?;
        }
    }
    Ok(Some(derived))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_an_organisation_and_a_version() {
        let found = |text: &str| named(text).map(|(name, version, also)| (name, version, also.unwrap_or_default()));
        let expected = |name: &str, version, also: &str| Some((name.to_owned(), version, also.to_owned()));
        assert_eq!(found("bge-m3"), expected("bge-m3", 1, ""));
        assert_eq!(found("bge-m3@2"), expected("bge-m3", 2, ""));
        assert_eq!(found("BAAI/bge-m3"), expected("bge-m3", 1, "BAAI/bge-m3"));
        assert_eq!(found("BAAI/bge-m3@3"), expected("bge-m3", 3, "BAAI/bge-m3"));
        for bad in ["", "a/b/c", "/m", "m/", "m@0", ".m", "a/.m", "a b"] {
            assert_eq!(named(bad), None, "{bad}");
        }
    }
}
