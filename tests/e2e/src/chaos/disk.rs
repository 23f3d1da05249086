//! A small disk for the broker's files, which can get full. Mounting one takes root's rights.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Enough for the queues of a test, and soon full.
const SIZE: &str = "size=32m";

/// The file that takes all room there is.
const FILLER: &str = "filler";

/// A file system of its own. Dropped, it is unmounted.
pub struct SmallDisk(TempDir);

// === impl SmallDisk ===

impl SmallDisk {
    /// Mounts one; `None` where that is not permitted.
    ///
    /// # Panics
    /// When there is no temporary folder to mount it on.
    pub fn mount() -> Option<SmallDisk> {
        let folder = tempfile::Builder::new().prefix("trireme-disk-").tempdir().expect("a temporary folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", SIZE, "trireme-disk"]).arg(folder.path());
        mount.output().is_ok_and(|done| done.status.success()).then(|| SmallDisk(folder))
    }

    /// Where files are kept.
    pub fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    /// Takes all room that is left.
    ///
    /// # Panics
    /// When something else than a full disk ends that.
    pub fn fill(&self) {
        let mut filler = File::create(self.filler()).expect("the disk can be written");
        // The last bytes one by one: smaller files than this must not find room either.
        for piece in [&[0; 65536][..], &[0; 512], &[0]] {
            let error = loop {
                if let Err(error) = filler.write_all(piece) {
                    break error;
                }
            };
            assert_eq!(error.kind(), ErrorKind::StorageFull, "the disk was to get full: {error}");
        }
    }

    /// Gives the room back.
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
    // Lazily: the broker that has files there may end a little later.
    let done = Command::new("umount").arg("--lazy").arg(path).status();
    if !done.is_ok_and(|status| status.success()) {
        eprintln!("{} stays mounted", path.display());
    }
}
