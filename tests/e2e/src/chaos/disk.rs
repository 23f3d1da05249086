//! A small disk for the brokers' files: a file system in a file, on a loop device. It can be filled up, and it can lose bytes that were
//! not synced, as in a power cut. It takes root's rights.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use tempfile::TempDir;

/// Enough for the queues and the jobs of a test.
const BYTES: u64 = 2 << 30;

/// The least piece of free space that is taken at once.
const LEAST: u64 = 64 << 10;

/// The files that take all free space: large pieces of it, and the rest.
const FILLERS: [&str; 2] = ["filler", "filler-of-the-rest"];

/// In the folder of a disk: its image, the image's copy, and the place where it is mounted.
const IMAGE: &str = "image";
const COPY: &str = "copy";
const MOUNTED: &str = "mounted";

/// Where images are, if this folder exists: in memory, so that a sync takes no time.
const MEMORY: &str = "/dev/shm";

/// How the disk is made: no thread initializes it in the background.
const MAKE: [&str; 5] = ["-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"];

/// How it is mounted: for five minutes only synced bytes are written to the image.
const OPTIONS: &str = "loop,noatime,commit=300";

/// A file system of its own. It is unmounted when dropped.
pub struct SmallDisk {
    folder: TempDir,
    /// The broker's setting for the disk, in its `jetstream` block.
    sync: &'static str,
}

// === impl SmallDisk ===

impl SmallDisk {
    /// Mounts a disk; `None` if that is not permitted. Brokers sync each message to it before they confirm the message.
    ///
    /// # Panics
    /// When there is no folder for its image.
    pub fn mount() -> Option<SmallDisk> {
        let place = if Path::new(MEMORY).is_dir() { PathBuf::from(MEMORY) } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix("trireme-disk-").tempdir_in(place).expect("a temporary folder");
        let (image, mounted) = (folder.path().join(IMAGE), folder.path().join(MOUNTED));
        fs::create_dir(&mounted).expect("the temporary folder can be written");
        File::create(&image).and_then(|image| image.set_len(BYTES)).expect("the temporary folder can be written");
        let is_made = runs(Command::new("mkfs.ext4").args(MAKE).arg(&image)) && mount(&image, &mounted);
        is_made.then_some(SmallDisk { folder, sync: ", sync_interval: always" })
    }

    /// The same with the default of brokers, which is to sync their files every two minutes.
    pub fn with_default_sync(mut self) -> SmallDisk {
        self.sync = "";
        self
    }

    /// The broker's setting for the disk, in its `jetstream` block.
    pub(super) fn sync(&self) -> &'static str {
        self.sync
    }

    /// The folder for the brokers' files.
    pub fn store(&self) -> PathBuf {
        self.mounted().join("store")
    }

    /// Copies the disk without the bytes that were not synced.
    ///
    /// # Panics
    /// When it cannot be copied.
    pub(super) fn copy(&self) {
        let [image, copy] = [IMAGE, COPY].map(|name| self.folder.path().join(name));
        let copied = runs(Command::new("cp").arg("--sparse=always").args([&image, &copy]));
        assert!(copied, "{} cannot be copied", image.display());
    }

    /// Mounts the copy in place of the disk. No process may have files there.
    ///
    /// # Panics
    /// When there is no copy, or it cannot be mounted.
    pub(super) fn restore(&self) {
        let [image, copy] = [IMAGE, COPY].map(|name| self.folder.path().join(name));
        assert!(runs(Command::new("umount").arg(self.mounted())), "the disk is in use");
        fs::rename(&copy, &image).expect("there is a copy");
        assert!(mount(&image, &self.mounted()), "the copy cannot be mounted");
    }

    /// Takes all free space.
    ///
    /// # Panics
    /// When writing fails for another reason than a full disk.
    pub fn fill(&self) {
        let [filler, mut last] =
            FILLERS.map(|name| File::create(self.mounted().join(name)).expect("the disk can be written"));
        let (mut at, mut piece) = (0, BYTES);
        while piece >= LEAST {
            match fallocate(&filler, FallocateFlags::empty(), at, piece) {
                Ok(()) => at += piece,
                Err(rustix::io::Errno::NOSPC) => piece /= 2,
                Err(error) => panic!("the disk was to get full: {error}"),
            }
        }
        // The last bytes one by one, so that no small file finds room either.
        for piece in [&[0; 65536][..], &[0; 512], &[0]] {
            let error = loop {
                if let Err(error) = last.write_all(piece) {
                    break error;
                }
            };
            assert_eq!(error.kind(), ErrorKind::StorageFull, "the disk was to get full: {error}");
        }
    }

    /// Takes all free space but this.
    ///
    /// # Panics
    /// When the disk has less.
    pub fn leave(&self, bytes: u64) {
        let filler = File::create(self.mounted().join(FILLERS[0])).expect("the disk can be written");
        let disk = statvfs(self.mounted()).expect("the disk is mounted");
        let taken = (disk.f_bavail * disk.f_frsize).checked_sub(bytes).expect("the disk has more");
        fallocate(&filler, FallocateFlags::empty(), 0, taken).expect("there is room");
    }

    /// Frees the space again.
    ///
    /// # Panics
    /// When it was not taken.
    pub fn free(&self) {
        let fillers = FILLERS.map(|name| self.mounted().join(name));
        assert!(fillers[0].exists(), "space was taken");
        fillers
            .iter()
            .filter(|path| path.exists())
            .for_each(|path| fs::remove_file(path).expect("a filler can be deleted"));
    }

    fn mounted(&self) -> PathBuf {
        self.folder.path().join(MOUNTED)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, because the broker that has files there may end a little later.
        if !runs(Command::new("umount").arg("--lazy").arg(self.mounted())) {
            eprintln!("{} stays mounted", self.mounted().display());
        }
    }
}

fn mount(image: &Path, at: &Path) -> bool {
    runs(Command::new("mount").args(["-t", "ext4", "-o", OPTIONS]).args([image, at]))
}

/// Whether a command succeeds. It says nothing on the terminal.
fn runs(command: &mut Command) -> bool {
    command.output().is_ok_and(|done| done.status.success())
}
