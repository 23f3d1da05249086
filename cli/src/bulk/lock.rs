//! One run at a time writes an output on this machine.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::place::Place;

/// The file that is locked. It is in the folder of the parts, because beside the output another program may have a file of this name.
pub const LOCK: &str = "bulk.lock";

/// How often the folder is made anew that another run removes.
const ATTEMPTS: usize = 100;

/// The lock of an output. It ends with this value, and with the process in any case.
pub struct Lock {
    file: File,
    folder: PathBuf,
}

// === impl Lock ===

impl Lock {
    /// Takes the lock of an output whose parts are in `folder`. There is none where the output is in an object store.
    pub fn take(output: &Place, folder: &Place) -> anyhow::Result<Option<Lock>> {
        let Place::Local(folder) = folder else { return Ok(None) };
        let path = folder.join(LOCK);
        for attempt in 1..=ATTEMPTS {
            let open = || File::options().create(true).truncate(false).write(true).open(&path);
            let file = match fs::create_dir_all(folder).and_then(|()| open()) {
                // A run that ends removes the folder.
                Err(error) if error.kind() == ErrorKind::NotFound && attempt < ATTEMPTS => continue,
                file => file.with_context(|| format!("cannot write {output}: its parts go to {}", folder.display()))?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => bail!(
                    "another run of trireme bulk writes {output} (it holds {}): wait for its end, or choose another OUT",
                    path.display()
                ),
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
            // A run that ended meanwhile has removed the file that this one has locked.
            let inode = |found: std::io::Result<fs::Metadata>| found.map(|found| found.ino()).ok();
            if inode(fs::metadata(&path)) == inode(file.metadata()) {
                return Ok(Some(Lock { file, folder: folder.clone() }));
            }
        }
        bail!("cannot lock {}", path.display())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is removed while it is locked. If it stays, it hinders no later run. The folder stays where it has parts.
        let _ = fs::remove_file(self.folder.join(LOCK));
        let _ = fs::remove_dir(&self.folder);
        let _ = self.file.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_run_at_a_time_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let output = Place::Local(folder.path().join("new/out.jsonl"));
        let take = || Lock::take(&output, &output.with(".parts").unwrap());
        let first = take().unwrap();
        let refused = take().err().unwrap().to_string();
        assert!(refused.contains("another run of trireme bulk") && refused.contains("bulk.lock"), "{refused}");
        drop(first);
        let again = take().unwrap();
        assert!(again.is_some());
        drop(again);
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 0, "it leaves nothing");
    }
}
