//! A worker's entry, and whether the store and the worker have it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trireme_bus::WorkerEntry;
use trireme_inference::UnixMicros;
use trireme_model_repository::ModelConfig;

/// How long after a failed try the deletion of a lost worker's entry is tried again.
const LAPSE_AGAIN: Duration = Duration::from_secs(2);

/// A worker's entry.
pub struct Live {
    /// The entry without `config`, which is in the field below.
    pub entry: WorkerEntry,
    pub config: Arc<Config>,
    /// The revision in the store, as far as known.
    pub revision: Option<u64>,
    /// When the bus last brought it, and during which reading of the store.
    pub brought: Instant,
    pub pass: u64,
    pub standing: Standing,
    pub deletion: Deletion,
}

/// Whether the store and the worker have an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A worker's answer brought it, and the bus has not yet: until then, entries from the bus are older.
    Ahead,
    /// The store has it in this form.
    Stored,
    /// The store has lost it; its worker has to write it again.
    Lost,
    /// The worker does not have it any more: an earlier worker of the same name wrote it.
    Stale,
}

/// How far the deletion of an entry from the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    NotBegun,
    UnderWay,
    /// It failed at this time.
    Failed(Instant),
}

/// An entry's `config`. Workers with the same one share it.
pub struct Config {
    pub text: String,
    pub model: Arc<ModelConfig>,
}

// === impl Live ===

impl Live {
    /// The entry as the worker wrote it.
    pub fn whole(&self) -> WorkerEntry {
        WorkerEntry { config: self.config.text.clone(), ..self.entry.clone() }
    }

    pub fn entry(&self) -> &WorkerEntry {
        &self.entry
    }

    /// Whether the store has the entry in this form.
    pub fn is_stored(&self) -> bool {
        self.standing == Standing::Stored
    }
}

// === impl Standing ===

impl Standing {
    /// Of an entry that came by the bus or ahead of it, where this was known of its key before.
    pub fn of(is_by_bus: bool, before: Option<&Live>, since: UnixMicros) -> Standing {
        // An entry that the bus has already brought is not ahead of the bus.
        match is_by_bus || before.is_some_and(|live| live.standing != Standing::Ahead && live.entry.since >= since) {
            true => Standing::Stored,
            false => Standing::Ahead,
        }
    }

    /// After a whole reading of the store, which brought the entry or did not.
    pub fn after_reading(self, is_brought: bool) -> Standing {
        match self {
            Standing::Stored if !is_brought => Standing::Lost,
            other => other,
        }
    }

    /// After a worker has written all of its entries anew, this one or not.
    pub fn after_writing(self, is_written: bool) -> Standing {
        match self {
            Standing::Ahead => Standing::Ahead,
            _ if is_written => Standing::Stored,
            _ => Standing::Stale,
        }
    }
}

// === impl Deletion ===

impl Deletion {
    /// Whether it is time to begin it, or to try it again.
    pub fn is_due(self, now: Instant) -> bool {
        match self {
            Deletion::NotBegun => true,
            Deletion::UnderWay => false,
            Deletion::Failed(at) => now.saturating_duration_since(at) >= LAPSE_AGAIN,
        }
    }
}
