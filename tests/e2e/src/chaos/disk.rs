//! A small disk for the broker's files, which can be filled up. Mounting it needs root's rights.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Enough for the queues of a test, and quickly filled.
const SIZE: &str = "size=32m";

/// The file that takes all free space.
const FILLER: &str = "filler";

/// A file system of its own. It is unmounted when dropped.
pub struct SmallDisk(TempDir);

// === impl SmallDisk ===

impl SmallDisk {
    /// Mounts a disk; `None` if that is not permitted.
    ///
    /// # Panics
    /// When there is no temporary folder to mount it on.
    pub fn mount() -> Option<SmallDisk> {
        let folder = tempfile::Builder::new().prefix("trireme-disk-").tempdir().expect("a temporary folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", SIZE, "trireme-disk"]).arg(folder.path());
        mount.output().is_ok_and(|done| done.status.success()).then(|| SmallDisk(folder))
    }

    /// The folder for the broker's files.
    pub fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    /// Takes all free space.
    ///
    /// # Panics
    /// When writing fails for another reason than a full disk.
    pub fn fill(&self) {
        let mut filler = File::create(self.filler()).expect("the disk can be written");
        // The last bytes one by one, so that no small file finds room either.
        for piece in [&[0; 65536][..], &[0; 512], &[0]] {
            let error = loop {
                if let Err(error) = filler.write_all(piece) {
                    break error;
                }
            };
            assert_eq!(error.kind(), ErrorKind::StorageFull, "the disk was to get full: {error}");
        }
    }

    /// Frees the space again.
    ///
    /// # Panics
    /// When it was not taken.
    pub fn free(&self) {
        fs::remove_file(self.filler()).expect("the filler can be deleted");
    }

    fn filler(&self) -> PathBuf {
        self.0.path().join(FILLER)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        unmount(self.0.path());
    }
}

fn unmount(path: &Path) {
    // Lazily, because the broker that has files there may end a little later.
    let done = Command::new("umount").arg("--lazy").arg(path).status();
    if !done.is_ok_and(|status| status.success()) {
        eprintln!("{} stays mounted", path.display());
    }
}
