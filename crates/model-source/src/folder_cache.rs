//! The cache of places that have none of their own:
//!
//! ```text
//! NAME-DIGEST-OF-URL/STATE/NAME/…    the folder as it was when its files had these sizes and ETags
//! NAME-DIGEST-OF-URL/latest          the last STATE that was downloaded
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};

use crate::FetchError;
use crate::remote::RemoteFile;
use crate::transfer::hex;

/// Digits of a digest in names.
const DIGITS: usize = 16;

/// The states of one folder in the cache.
pub(crate) struct FolderCache {
    root: PathBuf,
    name: String,
}

// === impl FolderCache ===

impl FolderCache {
    pub(crate) fn new(cache: &Path, url: &str, name: &str) -> FolderCache {
        let key = &hex(digest(&SHA256, url.as_bytes()).as_ref())[..DIGITS];
        FolderCache { root: cache.join(format!("{name}-{key}")), name: name.to_owned() }
    }

    /// The file that processes lock.
    pub(crate) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// Where the folder lies in this state.
    pub(crate) fn folder(&self, state: &str) -> PathBuf {
        self.root.join(state).join(&self.name)
    }

    /// The folder that files are put into until all are there.
    pub(crate) fn staging(&self, state: &str) -> PathBuf {
        self.unfinished(state).join(&self.name)
    }

    /// Where a file lies while it arrives.
    pub(crate) fn partial(&self, state: &str, name: &str) -> PathBuf {
        self.unfinished(state).join(".arriving").join(name)
    }

    fn unfinished(&self, state: &str) -> PathBuf {
        self.root.join(format!("{state}.incomplete"))
    }

    /// Gives the complete folder its name.
    pub(crate) fn finish(&self, state: &str) -> Result<(), FetchError> {
        let (unfinished, finished) = (self.unfinished(state), self.root.join(state));
        let arriving = unfinished.join(".arriving");
        if arriving.exists() {
            fs::remove_dir_all(&arriving).map_err(FetchError::io(&arriving))?;
        }
        fs::rename(&unfinished, &finished).map_err(FetchError::io(&finished))
    }

    /// Remembers the state that was used last.
    pub(crate) fn set_latest(&self, state: &str) -> Result<(), FetchError> {
        let (new, latest) = (self.root.join("latest.new"), self.root.join("latest"));
        fs::write(&new, state).map_err(FetchError::io(&new))?;
        fs::rename(&new, &latest).map_err(FetchError::io(&latest))
    }

    /// The folder in the state that was used last.
    pub(crate) fn latest(&self) -> Option<PathBuf> {
        let state = fs::read_to_string(self.root.join("latest")).ok()?;
        Some(self.folder(state.trim())).filter(|folder| folder.is_dir())
    }
}

/// A name for the present state of the files.
pub(crate) fn state(files: &[RemoteFile]) -> String {
    let mut lines: Vec<String> =
        files.iter().map(|file| format!("{}\0{:?}\0{:?}\n", file.name, file.size, file.etag)).collect();
    lines.sort();
    hex(digest(&SHA256, lines.concat().as_bytes()).as_ref())[..DIGITS].to_owned()
}
