//! Hugging Face's cache, which its Python libraries share:
//!
//! ```text
//! models--ORG--NAME/blobs/ETAG                 a file's content
//! models--ORG--NAME/snapshots/COMMIT/PATH      a link to it
//! models--ORG--NAME/refs/REVISION              the commit that a branch or tag was
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::FetchError;

/// The folder of one repository in the cache.
pub(crate) struct HubCache {
    root: PathBuf,
    lock: PathBuf,
}

// === impl HubCache ===

impl HubCache {
    pub(crate) fn new(cache: &Path, repository: &str) -> HubCache {
        let folder = format!("models--{}", repository.replace('/', "--"));
        HubCache { root: cache.join(&folder), lock: cache.join(".locks").join(folder).join("trireme.lock") }
    }

    /// The file that processes lock.
    pub(crate) fn lock(&self) -> &Path {
        &self.lock
    }

    /// The folder of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// Where the links of a commit are put until all files are there: beside the snapshot, so that links can be moved.
    pub(crate) fn staging(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(format!(".{commit}.incomplete"))
    }

    /// Where a file's content goes.
    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    /// Where a file's content lies while it arrives.
    pub(crate) fn partial(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(format!("{etag}.trireme-incomplete"))
    }

    /// Makes the link to a file's content in the folder `staging`.
    pub(crate) fn link(&self, staging: &Path, name: &str, etag: &str) -> Result<(), FetchError> {
        let path = staging.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(FetchError::io(parent))?;
        }
        let up = "../".repeat(2 + name.matches('/').count());
        if path.symlink_metadata().is_ok() {
            fs::remove_file(&path).map_err(FetchError::io(&path))?;
        }
        symlink(format!("{up}blobs/{etag}"), &path).map_err(FetchError::io(&path))
    }

    /// Makes a complete staging folder the snapshot. Where another program has made a snapshot of some files, the missing
    /// files are added.
    pub(crate) fn finish(&self, commit: &str, staging: &Path) -> Result<PathBuf, FetchError> {
        let snapshot = self.snapshot(commit);
        if !snapshot.exists() {
            fs::rename(staging, &snapshot).map_err(FetchError::io(&snapshot))?;
            return Ok(snapshot);
        }
        add(staging, &snapshot)?;
        fs::remove_dir_all(staging).map_err(FetchError::io(staging))?;
        Ok(snapshot)
    }

    /// Remembers which commit a revision is.
    pub(crate) fn set_commit(&self, revision: &str, commit: &str) -> Result<(), FetchError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision);
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(FetchError::io(parent))?;
        let new = path.with_extension("trireme-new");
        fs::write(&new, commit).map_err(FetchError::io(&new))?;
        fs::rename(&new, &path).map_err(FetchError::io(&path))
    }

    /// The snapshot that a revision was when it was downloaded.
    pub(crate) fn find(&self, revision: &str) -> Option<PathBuf> {
        let commit = fs::read_to_string(self.root.join("refs").join(revision));
        let snapshot = self.snapshot(commit.as_deref().unwrap_or(revision).trim());
        snapshot.is_dir().then_some(snapshot)
    }
}

/// Moves what `to` lacks.
fn add(from: &Path, to: &Path) -> Result<(), FetchError> {
    for entry in fs::read_dir(from).map_err(FetchError::io(from))? {
        let entry = entry.map_err(FetchError::io(from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        match entry.file_type().map_err(FetchError::io(&source))?.is_dir() {
            true => {
                fs::create_dir_all(&target).map_err(FetchError::io(&target))?;
                add(&source, &target)?;
            }
            false if target.is_file() => {}
            false => fs::rename(&source, &target).map_err(FetchError::io(&target))?,
        }
    }
    Ok(())
}
