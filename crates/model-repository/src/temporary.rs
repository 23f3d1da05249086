//! Folders in the temporary directory: they go with their owner, or, where that was killed, at the next start of any process.
//!
//! The owner holds a lock on a file in its folder. The kernel releases it when the process ends, however it ends, so a folder whose lock
//! can be taken has no owner. Process ids would not tell that: they are reused, and containers that share a temporary directory have
//! the same ones.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The beginning of each folder's name.
const PREFIX: &str = "trireme-";

/// The file in a folder that its owner has locked.
const OWNER: &str = "owner";

/// The part of a folder that its owner fills.
const FILES: &str = "files";

/// An own folder in the temporary directory, deleted when this is dropped.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
    // The folder goes before its lock does.
    _folder: TempDir,
    _owner: File,
}

/// Deletes the folders of this user whose owners were killed. Faults are not told: the next start tries again.
pub fn remove_leftovers() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            let _ = remove_leftover(&entry.path());
        }
    }
}

/// Deletes the folder at `path`, unless it has an owner or was never locked.
fn remove_leftover(path: &Path) -> io::Result<()> {
    let (folder, lock) = (fs::symlink_metadata(path)?, path.join(OWNER));
    let is_file = fs::symlink_metadata(&lock)?.is_file();
    if folder.is_dir() && is_file && folder.uid() == rustix::process::geteuid().as_raw() {
        // Held until the folder is gone, so that nobody else deletes it or takes it for new.
        let owner = File::open(&lock)?;
        owner.try_lock()?;
        fs::remove_dir_all(path)?;
    }
    Ok(())
}

// === impl TemporaryFolder ===

impl TemporaryFolder {
    /// A new, empty folder, whose name tells that it is for `purpose`.
    pub fn new(purpose: &str) -> io::Result<TemporaryFolder> {
        loop {
            let folder = tempfile::Builder::new().prefix(&format!("{PREFIX}{purpose}-")).tempdir()?;
            let owner = File::create_new(folder.path().join(OWNER))?;
            // Between the two lines above and the lock, another process that starts may take the folder for a leftover.
            if owner.try_lock().is_ok() && owner.metadata()?.nlink() > 0 {
                let path = folder.path().join(FILES);
                fs::create_dir(&path)?;
                return Ok(TemporaryFolder { path, _folder: folder, _owner: owner });
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_go_with_their_owners_or_after_them() {
        let (alive, dropped) = (TemporaryFolder::new("test").unwrap(), TemporaryFolder::new("test").unwrap());
        let TemporaryFolder { path: orphan, _folder: folder, _owner: owner } = TemporaryFolder::new("test").unwrap();
        let foreign = tempfile::Builder::new().prefix(PREFIX).tempdir().unwrap();
        fs::write(orphan.join("weights"), "1").unwrap();
        let (root, path) = (folder.keep(), dropped.path().to_owned());
        drop(dropped);
        assert!(!path.exists());

        remove_leftovers();
        assert!(root.exists() && orphan.join("weights").exists(), "its lock is still held");
        drop(owner);
        remove_leftovers();
        assert!(!root.exists(), "its owner is gone");
        assert!(alive.path().is_dir(), "its owner lives");
        assert!(foreign.path().is_dir(), "it was never locked");
    }

    #[test]
    fn links_are_not_followed() {
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(elsewhere.path().join(OWNER), "").unwrap();
        let link = std::env::temp_dir().join(format!("{PREFIX}link-{}", std::process::id()));
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
        remove_leftovers();
        fs::remove_file(&link).expect("the link is still there");
        assert!(elsewhere.path().join(OWNER).exists());
    }
}
