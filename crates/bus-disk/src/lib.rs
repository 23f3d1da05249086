//! The bus within one process, whose durable work outlives the process: queues, replies and topics are those of
//! [`InProcess`], and the stores of jobs, of their bytes and of usage are in a file.
//!
//! Not here: the other stores, which end with the process as its models do; what the records mean (`trireme-jobs`).

mod disk;

use std::path::Path;
use std::sync::Arc;

use trireme_bus::{BusError, InProcess, QueueOptions};

use self::disk::Disk;

/// A bus with these settings, and the stores of durable work in a file in `directory`, which is created if it is missing. The file is
/// closed when the last clone of the bus is dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let directory = tempfile::tempdir().expect("a temporary directory");
/// # let directory = directory.path();
/// use trireme_bus::{Bucket, Bus, QueueOptions};
///
/// let bus = trireme_bus_disk::open(&QueueOptions::default(), directory)?;
/// bus.put(Bucket::Jobs, "job-1", "waiting".into(), None, None).await?;
/// drop(bus);
///
/// let bus = trireme_bus_disk::open(&QueueOptions::default(), directory)?;
/// let kept = bus.get(Bucket::Jobs, "job-1").await?;
/// assert!(bus.keeps_jobs() && kept.is_some_and(|entry| entry.value == "waiting"));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The directory or the file cannot be made or read, or another process has the file open.
pub fn open(settings: &QueueOptions, directory: &Path) -> Result<InProcess, BusError> {
    Ok(InProcess::keeping(settings, Arc::new(Disk::open(directory)?)))
}
