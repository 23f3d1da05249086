//! One process at a time downloads a model into a cache; the others wait, and find it there.

use std::fs::{File, TryLockError, create_dir_all};
use std::path::Path;
use std::time::Duration;

use crate::FetchError;

/// How often a lock that another process holds is tried.
const TRY_EVERY: Duration = Duration::from_millis(200);

/// How many tries pass between two log lines.
const TRIES_PER_LINE: u32 = 25;

/// A lock on a file, which ends with this value, and with the process in any case.
pub(crate) struct Lock {
    _file: File,
}

// === impl Lock ===

impl Lock {
    /// Waits for the lock at `path`, which is made where there is none.
    pub(crate) async fn take(path: &Path, word: &str) -> Result<Lock, FetchError> {
        if let Some(parent) = path.parent() {
            create_dir_all(parent).map_err(FetchError::io(parent))?;
        }
        let open = File::options().create(true).truncate(false).write(true).open(path);
        let file = open.map_err(FetchError::io(path))?;
        let mut tries = 0u32;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(TryLockError::Error(error)) => return Err(FetchError::io(path)(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            if tries.is_multiple_of(TRIES_PER_LINE) {
                tracing::info!(model = word, lock = %path.display(), "waiting for another process that downloads this model");
            }
            tries += 1;
            tokio::time::sleep(TRY_EVERY).await;
        }
    }
}
