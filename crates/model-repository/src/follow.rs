//! Model folders whose files change while they are served: with each change a folder becomes its next version.
//!
//! A changed folder is taken when its files have stayed the same between two looks, and derived as at the start. The versions in the
//! derived repository are copies, so that files that are overwritten change no version that is served. The old version's directories
//! are removed when the next one is ready. Not here: loading and unloading (whoever polls the repository).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::folder::Placement;
use crate::{ModelFolder, ModelSources, RepositoryError, SourceError, fingerprint};

/// The directory in the derived repository where versions are written before they get their place. It is no model.
const STAGING: &str = ".next";

/// The model folders of a command line, each of the highest version of its name.
#[derive(Debug)]
pub struct FollowedFolders {
    sources: Arc<ModelSources>,
    repository: PathBuf,
    followed: Vec<Followed>,
}

#[derive(Debug)]
struct Followed {
    /// As it is served, or will be once it is loaded.
    folder: ModelFolder,
    digest: String,
    /// The state of its files that was taken, or found faulty.
    taken: u64,
    /// The state of its files at the last look.
    seen: u64,
    /// Why its files as they were taken cannot be served.
    fault: Option<String>,
    /// The versions that the present one takes over from.
    old: Vec<ModelFolder>,
}

/// A folder whose files have changed.
#[derive(Debug)]
pub struct Change {
    /// The folder; if it cannot be served, as it was before.
    pub folder: ModelFolder,
    /// Why its files as they are now cannot be served.
    pub fault: Option<SourceError>,
}

// === impl FollowedFolders ===

impl FollowedFolders {
    /// Follows the folders of `sources`, and makes copies of their files in the derived repository; none may be loaded yet. `None` if
    /// there are no folders.
    pub fn new(sources: Arc<ModelSources>) -> Result<Option<FollowedFolders>, SourceError> {
        let Some(repository) = sources.derived().map(Path::to_owned) else { return Ok(None) };
        let mut followed = Vec::new();
        for folder in &sources.folders {
            if sources.folders.iter().any(|other| other.name == folder.name && other.version > folder.version) {
                continue;
            }
            let taken = state(&folder.path);
            remove(&repository, folder)?;
            put(&repository, folder)?;
            let digest = digest(folder)?;
            followed.push(Followed {
                folder: folder.clone(),
                digest,
                taken,
                seen: taken,
                fault: None,
                old: Vec::new(),
            });
        }
        Ok(Some(FollowedFolders { sources, repository, followed }))
    }

    /// Looks whether files have changed. `is_ready` tells whether a version of a model is ready.
    pub fn look(&mut self, is_ready: impl Fn(&str, i64) -> bool) -> Vec<Change> {
        let mut changes = Vec::new();
        for followed in &mut self.followed {
            followed.retire(&self.repository, &is_ready);
            match followed.look(&self.sources, &self.repository) {
                Ok(true) => changes.push(Change { folder: followed.folder.clone(), fault: None }),
                Ok(false) => {}
                Err(fault) => {
                    followed.fault = Some(fault.to_string());
                    changes.push(Change { folder: followed.folder.clone(), fault: Some(fault) });
                }
            }
        }
        changes
    }

    /// The folders whose files cannot be served as they are now, as they are served, each with the fault.
    pub fn faults(&self) -> impl Iterator<Item = (&ModelFolder, &str)> {
        self.followed.iter().filter_map(|followed| Some((&followed.folder, followed.fault.as_deref()?)))
    }
}

// === impl Followed ===

impl Followed {
    /// Takes the folder as its next version, if it has another content. Returns whether it has.
    fn look(&mut self, sources: &ModelSources, repository: &Path) -> Result<bool, SourceError> {
        let now = state(&self.folder.path);
        let is_stable = std::mem::replace(&mut self.seen, now) == now;
        if now == self.taken || !is_stable {
            return Ok(false);
        }
        (self.taken, self.fault) = (now, None);
        let next = self.folder.next()?;
        let digest = digest(&next)?;
        if digest == self.digest {
            return Ok(false);
        }
        // A worker that finds the version in the repository asks for its folder.
        sources.keep_later(next.clone());
        put(repository, &next)?;
        if state(&next.path) != now {
            // The files changed while they were copied: the copy is no version, and the next look begins anew.
            self.taken = 0;
            remove(repository, &next)?;
            return Ok(false);
        }
        self.digest = digest;
        self.old.push(std::mem::replace(&mut self.folder, next));
        Ok(true)
    }

    /// Removes the versions before the present one, if that is ready. The next look tries again to remove those that stay.
    fn retire(&mut self, repository: &Path, is_ready: impl Fn(&str, i64) -> bool) {
        if is_ready(&self.folder.name, self.folder.version) {
            self.old.retain(|old| remove(repository, old).is_err());
        }
    }
}

/// A number that changes when files of the folder at this path change.
fn state(folder: &Path) -> u64 {
    fingerprint::of(folder, |name| !name.starts_with('.'))
}

fn digest(folder: &ModelFolder) -> Result<String, SourceError> {
    let digest = folder.digest();
    Ok(digest.map_err(|source| RepositoryError::Read { path: folder.path.clone(), source })?)
}

/// Writes the models of a folder into the repository; each version appears there as a whole.
fn put(repository: &Path, folder: &ModelFolder) -> Result<(), SourceError> {
    let staging = repository.join(STAGING);
    let cannot = |source| RepositoryError::Write { path: staging.clone(), source };
    let models: Vec<String> = folder.models().into_iter().map(|model| model.name).collect();
    let copy = || -> io::Result<()> {
        if staging.exists() {
            fs::remove_dir_all(&staging)?;
        }
        for model in models.iter().filter(|model| repository.join(model).exists()) {
            // The new version has a configuration of its own where the model has one.
            fs::create_dir_all(staging.join(model))?;
            fs::copy(
                repository.join(model).join(crate::repository::CONFIG_FILE),
                staging.join(model).join(crate::repository::CONFIG_FILE),
            )?;
        }
        Ok(())
    };
    copy().map_err(cannot)?;
    folder.write(&staging, Placement::Copy)?;
    let move_in = || -> io::Result<()> {
        for model in &models {
            match repository.join(model).exists() {
                true => {
                    let version = Path::new(model).join(folder.version.to_string());
                    fs::rename(staging.join(&version), repository.join(&version))?;
                }
                false => fs::rename(staging.join(model), repository.join(model))?,
            }
        }
        fs::remove_dir_all(&staging)
    };
    Ok(move_in().map_err(cannot)?)
}

/// Removes the versions of a folder's models, and models that have no other.
fn remove(repository: &Path, folder: &ModelFolder) -> Result<(), SourceError> {
    for model in folder.models() {
        let path = repository.join(&model.name);
        let version = path.join(folder.version.to_string());
        let gone = || -> io::Result<()> {
            let others =
                fs::read_dir(&path)?.flatten().filter(|entry| entry.path().is_dir() && entry.path() != version);
            if others.count() == 0 { fs::remove_dir_all(&path) } else { fs::remove_dir_all(&version) }
        };
        match gone() {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(RepositoryError::Write { path, source }.into());
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}
