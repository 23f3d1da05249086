//! Who serves what: the entries that workers publish and gateways watch.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use trireme_inference::{ModelKey, UnixMicros};

/// One worker's word about one model version it hosts. JSON in the bucket, so that a person can read it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// The worker: unique among all processes.
    pub worker: String,
    /// The service it is: `tokenizer`, `model`, `postprocess`.
    pub service: String,
    /// The host it runs on.
    pub host: String,
    /// The model version.
    pub model: ModelKey,
    /// Whether it takes work.
    pub state: ModelState,
    /// The model's configuration after auto-completion, as protobuf JSON.
    pub config: String,
    /// Requests it takes in at a time.
    pub capacity: usize,
    /// Since when that holds, by the worker's clock: of two words about the same, the later one counts. Renewals keep it.
    #[serde(default)]
    pub since: UnixMicros,
}

/// The state of a model version at a worker; Triton's words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE", tag = "state", content = "reason")]
pub enum ModelState {
    /// Takes work.
    Ready,
    /// Draining: takes no more work.
    Unloading,
    /// Could not be loaded, and why.
    Unavailable(String),
}

/// A change of the registry.
#[derive(Clone, Debug, PartialEq)]
pub enum RegistryEvent {
    /// An entry is there, or was renewed.
    Put(WorkerEntry),
    /// The entry under this key was taken back.
    Delete(String),
}

// === impl WorkerEntry ===

impl WorkerEntry {
    /// How long an entry counts without being renewed. Workers renew after a third of it.
    pub const TIME_TO_LIVE: Duration = Duration::from_secs(6);

    /// The entry's name in the registry.
    pub fn key(&self) -> String {
        let escape = crate::nats::escape_token;
        format!("{}.{}.{}", escape(&self.model.name), self.model.version, escape(&self.worker))
    }
}
