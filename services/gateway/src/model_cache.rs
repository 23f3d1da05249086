//! Models of stages that are scaled to none (`--keep-models`). A request for such a model waits in its queue, where a scaler sees
//! it and starts a worker.
//!
//! A gateway that starts while a model has no worker does not find it in the registry. So gateways write how each model was last
//! served into the store of settings, and read that when they start. They also look after what scalers look at: the queue of a
//! model without workers, which a broker may have lost, and the bulk lane of every model, because a scaler takes a stream that is
//! missing for an error.
//!
//! Every gateway does this; doing it twice changes nothing. Not here: the removal of queues (`queues`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use trireme_bus::{Bucket, Bus, BusError, Change, Connection, LevelPolicy, QueueOptions, escape_token};
use trireme_inference::{Lane, ModelKey};
use trireme_model_repository::ModelConfig;
use trireme_runtime::{TaskSet, queue_levels};

use crate::registry::Registry;

/// How long a model is remembered that no worker serves, and how often it is written again while one does.
const MEMORY: Duration = Duration::from_secs(30 * 24 * 3600);
const WRITE_AGAIN: Duration = Duration::from_secs(24 * 3600);

/// How long a gateway that starts reads the store.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// How long to wait for further changes of the registry.
const SETTLE: Duration = Duration::from_millis(500);

/// How often everything is looked at without a change.
const LOOK: Duration = Duration::from_secs(60);

/// How a model was last served.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct CachedModel {
    model: String,
    /// The configuration of each version, as its workers wrote it into the registry.
    versions: BTreeMap<i64, String>,
}

struct ModelCache {
    bus: Arc<dyn Bus>,
    registry: Registry,
    /// The last entry that was written for each model, and its time.
    written: HashMap<String, (Bytes, Instant)>,
    /// The queues that were made, over which connection, and whether only their bulk lanes.
    made: HashMap<ModelKey, (Connection, bool)>,
}

/// The beginning of the keys of kept models in the store of settings.
fn prefix() -> String {
    escape_token("kept ")
}

/// Reads how models were last served into the registry.
pub async fn restore(bus: &dyn Bus, registry: &Registry) {
    let kept = match tokio::time::timeout(READ_LIMIT, read(bus)).await {
        Ok(Ok(kept)) => kept,
        Ok(Err(error)) => {
            return tracing::warn!(%error, "models without workers are not known: the store cannot be read");
        }
        Err(_) => return tracing::warn!("models without workers are not known: the store does not answer"),
    };
    let restored = kept.into_iter().map(|CachedModel { model, versions }| {
        let config = |(version, text): (i64, String)| match ModelConfig::from_json(&text) {
            Ok(config) => Some((version, Arc::new(config))),
            Err(error) => {
                tracing::warn!(model, version, %error, "ignored how a model was last served");
                None
            }
        };
        let versions = versions.into_iter().filter_map(config).collect();
        (model, versions)
    });
    registry.restore(restored.collect::<Vec<_>>());
}

async fn read(bus: &dyn Bus) -> Result<Vec<CachedModel>, BusError> {
    let (mut changes, mut kept, prefix) = (bus.watch(Bucket::Settings).await?, Vec::new(), prefix());
    while let Some(change) = changes.recv().await {
        match change {
            Change::Put(entry) if entry.key.starts_with(&prefix) => match serde_json::from_slice(&entry.value) {
                Ok(found) => kept.push(found),
                Err(error) => tracing::warn!(key = entry.key, %error, "ignored how a model was last served"),
            },
            Change::Put(_) | Change::Deleted { .. } => {}
            Change::Complete => break,
        }
    }
    Ok(kept)
}

/// Writes how models are served, and makes the queues that scalers look at, for as long as `tasks` runs.
pub fn look_after(bus: Arc<dyn Bus>, registry: Registry, tasks: &TaskSet) {
    let mut keeper = ModelCache { bus, registry, written: HashMap::new(), made: HashMap::new() };
    tasks.spawn_until_stop("kept models", async move { keeper.run().await });
}

// === impl ModelCache ===

impl ModelCache {
    async fn run(&mut self) {
        let (mut changes, mut connection) = (self.registry.changes(), self.bus.connection());
        loop {
            // Several gateways do not write at the same time.
            tokio::time::sleep(SETTLE.mul_f64(1.0 + fastrand::f64())).await;
            changes.mark_unchanged();
            let now = *connection.borrow_and_update();
            if matches!(now, Connection::Up(_)) {
                self.write().await;
                self.make_queues(now).await;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                changed = connection.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    async fn write(&mut self) {
        for (model, versions) in self.registry.texts() {
            let kept = CachedModel { model, versions };
            let Ok(value) = serde_json::to_vec(&kept).map(Bytes::from) else { continue };
            let is_there = |(written, at): &(Bytes, Instant)| *written == value && at.elapsed() < WRITE_AGAIN;
            if self.written.get(&kept.model).is_some_and(is_there) {
                continue;
            }
            let key = format!("{}{}", prefix(), escape_token(&kept.model));
            match self.bus.put(Bucket::Settings, &key, value.clone(), None, Some(MEMORY)).await {
                Ok(_) => drop(self.written.insert(kept.model, (value, Instant::now()))),
                Err(error) => {
                    tracing::debug!(model = kept.model, %error, "how a model is served could not be written");
                }
            }
        }
    }

    async fn make_queues(&mut self, connection: Connection) {
        let served = self.registry.served();
        self.made.retain(|model, _| served.iter().any(|(own, ..)| own == model));
        let Ok(settings) = self.bus.settings().await else { return };
        for (model, config, has_workers) in served {
            let made = self.made.get(&model);
            if made.is_some_and(|&(over, only_bulk)| over == connection && (has_workers || !only_bulk)) {
                continue;
            }
            // Workers look after the levels of live requests.
            let mut levels = if has_workers { BTreeMap::new() } else { queue_levels(&config) };
            levels.insert(Lane::Bulk.level(0), LevelPolicy::default());
            let options = QueueOptions { levels, ..settings.clone() };
            match self.bus.declare_queue(&model, &options).await {
                Ok(()) => drop(self.made.insert(model, (connection, has_workers))),
                Err(error) => tracing::debug!(%model, %error, "the queue of a model could not be made"),
            }
        }
    }
}
