//! One run at a time writes an output on this machine.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, bail};

use super::place::Place;

/// A lock on the file `OUT.lock`, which ends with this value, and with the process in any case.
pub struct Lock {
    file: File,
    path: PathBuf,
}

// === impl Lock ===

impl Lock {
    /// Takes the lock of an output. There is none where the output is in an object store.
    pub fn take(output: &Place) -> anyhow::Result<Option<Lock>> {
        let Place::Local(path) = output.with(".lock")? else { return Ok(None) };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot write {}", folder.display()))?;
        }
        loop {
            let open = File::options().create(true).truncate(false).write(true).open(&path);
            let file = open.with_context(|| format!("cannot write {}", path.display()))?;
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
                return Ok(Some(Lock { file, path }));
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is removed while it is locked. If it stays, it hinders no later run.
        let _ = fs::remove_file(&self.path);
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
        let first = Lock::take(&output).unwrap();
        let refused = Lock::take(&output).err().unwrap().to_string();
        assert!(refused.contains("another run of trireme bulk") && refused.contains("out.jsonl.lock"), "{refused}");
        drop(first);
        let again = Lock::take(&output).unwrap();
        assert!(again.is_some());
        drop(again);
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 0, "it leaves nothing");
    }
}
