//! The wanted state of models: the process's copy of the store, and how gateways write the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use trireme_bus::{Bucket, Bus, BusError, escape_token, queue_pause};

use super::message::{self, ModelChange, Override};

/// How long to wait until this process has carried out a change that is in the store.
const ON_ITS_WAY: Duration = Duration::from_secs(5);

/// How often a gateway tries to write a change. A try fails when another gateway writes the same key at that moment.
const TRIES: u32 = 20;

/// The last change of each model that a process knows. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<watch::Sender<BTreeMap<String, ModelChange>>>);

// === impl Memory ===

impl Memory {
    /// The last change of a model.
    pub fn get(&self, model: &str) -> Option<ModelChange> {
        self.0.borrow().get(model).cloned()
    }

    /// The last change of each model.
    pub fn changes(&self) -> Vec<ModelChange> {
        self.0.borrow().values().cloned().collect()
    }

    pub(super) fn keep(&self, change: ModelChange) {
        self.0.send_modify(|changes| drop(changes.insert(change.model.clone(), change)));
    }

    /// The number of the last change of a model; 0 where there is none.
    pub(super) fn number(&self, model: &str) -> u64 {
        self.0.borrow().get(model).map_or(0, |change| change.number)
    }

    /// Waits for a limited time until the process has carried out the change with this number, or a later one.
    pub(super) async fn reach(&self, model: &str, number: u64) {
        let mut changes = self.0.subscribe();
        let reached = changes.wait_for(|changes| changes.get(model).map_or(0, |change| change.number) >= number);
        if tokio::time::timeout(ON_ITS_WAY, reached).await.is_err() {
            tracing::warn!(model, "what is wanted of the model is in the store, and has not come here yet");
        }
    }
}

/// Writes a model's wanted state to the store after all participants carried the command out. Returns when this process
/// knows the change, too.
pub async fn write_wanted(
    bus: &dyn Bus,
    memory: &Memory,
    model: &str,
    wanted: Option<Override>,
    implied: bool,
) -> Result<(), BusError> {
    let mut change = ModelChange { model: model.to_owned(), wanted, implied, number: 0 };
    for time in 0..TRIES {
        let (expect, number) = stored(bus, model).await?;
        change.number = number.max(memory.number(model)) + 1;
        match put(bus, &change, expect).await {
            Err(BusError::Conflict { .. }) => tokio::time::sleep(queue_pause(time)).await,
            Err(error) => return Err(error),
            Ok(()) => {
                memory.reach(model, change.number).await;
                return Ok(());
            }
        }
    }
    Err(BusError::Conflict { key: escape_token(model) })
}

/// Writes a change again, unless the store has this change or a later one.
pub(super) async fn restore(bus: &dyn Bus, change: &ModelChange) {
    let model = &change.model;
    for time in 0..TRIES {
        let written = match stored(bus, model).await {
            Ok((_, number)) if number >= change.number => return,
            Ok((expect, _)) => put(bus, change, expect).await,
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => return tracing::warn!(model, "the store had lost what is wanted of the model; wrote it again"),
            // Another gateway wrote the key first.
            Err(BusError::Conflict { .. }) => {}
            Err(error) => {
                tracing::warn!(model, %error, "what is wanted of the model is not in the store; trying again")
            }
        }
        tokio::time::sleep(queue_pause(time)).await;
    }
    tracing::error!(model, "the store has lost what is wanted of the model, which could not be written again");
}

/// The revision and the number of the change of a model in the store; zeros if there is none. If the store has lost
/// parts of the value, the revision is `None`: the value may be overwritten whatever its revision is.
async fn stored(bus: &dyn Bus, model: &str) -> Result<(Option<u64>, u64), BusError> {
    match bus.get(Bucket::Models, &escape_token(model)).await {
        Ok(Some(entry)) => Ok((Some(entry.revision), ModelChange::read(&entry).map_or(0, |change| change.number))),
        Ok(None) => Ok((Some(0), 0)),
        Err(BusError::Refused { .. }) => Ok((None, 0)),
        Err(error) => Err(error),
    }
}

async fn put(bus: &dyn Bus, change: &ModelChange, expect: Option<u64>) -> Result<(), BusError> {
    let (key, value) = (escape_token(&change.model), message::encode(change));
    bus.put(Bucket::Models, &key, value, expect, None).await.map(drop)
}
