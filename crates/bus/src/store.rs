//! Last-value stores: values under keys that outlive the process that wrote them, each with a revision.
//!
//! A store keeps the last value of each key. A key is one or several tokens joined by `.`; [`Bucket::tokens`] says how
//! many. Tokens are made by [`escape_token`](crate::escape_token). A revision is a number that grows with every change
//! in the bucket, whichever process makes it: of two changes, the one with the higher revision is the later one,
//! whatever clocks say.
//!
//! Not here: the meaning of the values (`settings`, `registry`, `attempts`, `dead`, `sequences`; model control in the
//! runtime; durable work in `trireme-jobs`; usage in the gateway).
//!
//! A write may name the revision that it replaces:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), trireme_bus::BusError> {
//! use trireme_bus::{Bucket, Bus, BusError, InProcess};
//!
//! let bus = InProcess::default();
//! let first = bus.put(Bucket::Models, "encoder", "loaded".into(), Some(0), None).await?;
//! bus.put(Bucket::Models, "encoder", "unloaded".into(), Some(first), None).await?;
//! let late = bus.put(Bucket::Models, "encoder", "loaded".into(), Some(first), None).await;
//! assert!(matches!(late, Err(BusError::Conflict { .. })));
//! let entry = bus.get(Bucket::Models, "encoder").await?;
//! assert!(entry.is_some_and(|entry| entry.value == "unloaded" && entry.revision > first));
//! # Ok(())
//! # }
//! ```

use bytes::Bytes;
use trireme_inference::UnixMicros;

/// The stores of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// The deployment's settings, under one key.
    Settings,
    /// Which worker hosts which model version: `<model>.<version>.<worker>`.
    Registry,
    /// Which models were loaded or unloaded by a request: `<model>`.
    Models,
    /// How many times messages were begun: `<message>`.
    Attempts,
    /// Messages that a worker has given up: `<model>.<version>.<message>`.
    Dead,
    /// The states of sequences: `<model>.<version>.<correlation id>`.
    Sequences,
    /// Durable requests, batches and files: `<id>`.
    Jobs,
    /// The bytes of durable requests, batches and files: `<object>.<part>`.
    Objects,
    /// Usage of owners: `<hour>.<gateway>`.
    Usage,
}

/// A value in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Bytes,
    /// The revision of this value.
    pub revision: u64,
    /// When it was written, by the clock of the bus.
    pub at: UnixMicros,
}

/// An event of a watch on a store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # use trireme_bus::{Bucket, Bus, Change, InProcess};
/// # let bus = InProcess::default();
/// bus.put(Bucket::Models, "encoder", "loaded".into(), None, None).await?;
/// let mut changes = bus.watch(Bucket::Models).await?;
/// assert!(matches!(changes.recv().await, Some(Change::Put(entry)) if entry.value == "loaded"));
/// assert_eq!(changes.recv().await, Some(Change::Complete));
///
/// bus.delete(Bucket::Models, "encoder", None).await?;
/// assert!(matches!(changes.recv().await, Some(Change::Deleted { key, .. }) if key == "encoder"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A value was written, or existed when the watch began.
    Put(Entry),
    /// The value of a key was deleted.
    Deleted {
        /// The key.
        key: String,
        /// The revision of the deletion.
        revision: u64,
    },
    /// All values that existed when the watch began have been sent. A watch that has to start again, because the bus
    /// was unreachable or the store was created again, sends all values and this event again.
    Complete,
}

// === impl Bucket ===

impl Bucket {
    /// All buckets.
    pub const ALL: [Bucket; 9] = [
        Bucket::Settings,
        Bucket::Registry,
        Bucket::Models,
        Bucket::Attempts,
        Bucket::Dead,
        Bucket::Sequences,
        Bucket::Jobs,
        Bucket::Objects,
        Bucket::Usage,
    ];

    /// The bucket's name.
    pub fn name(self) -> &'static str {
        match self {
            Bucket::Settings => "settings",
            Bucket::Registry => "registry",
            Bucket::Models => "models",
            Bucket::Attempts => "attempts",
            Bucket::Dead => "dead",
            Bucket::Sequences => "sequences",
            Bucket::Jobs => "jobs",
            Bucket::Objects => "objects",
            Bucket::Usage => "usage",
        }
    }

    /// Whether its values outlive the process of a bus that keeps jobs ([`Bus::keeps_jobs`](crate::Bus::keeps_jobs)).
    pub(crate) fn is_durable(self) -> bool {
        matches!(self, Bucket::Jobs | Bucket::Objects | Bucket::Usage)
    }

    /// The number of tokens in its keys.
    pub fn tokens(self) -> usize {
        match self {
            Bucket::Settings | Bucket::Models | Bucket::Attempts | Bucket::Jobs => 1,
            Bucket::Objects | Bucket::Usage => 2,
            Bucket::Registry | Bucket::Dead | Bucket::Sequences => 3,
        }
    }
}
