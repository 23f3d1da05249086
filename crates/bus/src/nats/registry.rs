//! The registry in a key-value bucket. Entries lapse when they are not renewed, and the bucket is made anew by whoever
//! needs it when the broker has lost it.

use std::time::Duration;

use async_nats::jetstream::kv;
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::streams::Needed;
use super::work::failure;
use super::{Nats, WATCH_BACKLOG, subjects};
use crate::envelope::MAX_NAME;
use crate::registry::{RegistryEvent, WorkerEntry};
use crate::{BusError, Connection};

/// Pause before a watch that broke is opened again.
const REOPEN_PAUSE: Duration = Duration::from_millis(500);

/// Puts the entry into the bucket, which is made when it is not there.
pub async fn announce(nats: &Nats, entry: &WorkerEntry) -> Result<(), BusError> {
    let value = serde_json::to_vec(entry)
        .map_err(|error| BusError::Refused { action: "announcing a worker", reason: error.to_string() })?;
    let put = bucket(nats).await?.put(entry.key(), value.into()).await;
    put.map(drop).map_err(|error| failure("announcing a worker", &error))
}

/// Deletes the entry.
pub async fn withdraw(nats: &Nats, entry: &WorkerEntry) -> Result<(), BusError> {
    let deleted = bucket(nats).await?.delete(entry.key()).await;
    deleted.map_err(|error| failure("withdrawing a worker", &error))
}

/// Follows the bucket for as long as the receiver is there.
pub fn watch(nats: Nats) -> mpsc::Receiver<RegistryEvent> {
    let (events, receiver) = mpsc::channel(WATCH_BACKLOG);
    crate::spawn("nats registry watch", async move {
        while !events.is_closed() {
            if let Err(error) = follow(&nats, &events).await {
                tracing::warn!(%error, "registry watch broke; opening it again");
            }
            tokio::select! {
                () = tokio::time::sleep(REOPEN_PAUSE) => {}
                () = events.closed() => {}
            }
        }
    });
    receiver
}

/// One watch, until it breaks or the connection is made anew: entries come again then, which does no harm.
async fn follow(nats: &Nats, events: &mpsc::Sender<RegistryEvent>) -> Result<(), BusError> {
    let mut connection = nats.connection.clone();
    connection.borrow_and_update();
    let bucket = bucket(nats).await?;
    let mut watch = bucket.watch_with_history(">").await.map_err(|error| failure("watching the registry", &error))?;
    loop {
        let entry = tokio::select! {
            entry = watch.next() => entry,
            changed = connection.changed() => match changed {
                Ok(()) if matches!(*connection.borrow_and_update(), Connection::Up(_)) => return Ok(()),
                Ok(()) => continue,
                Err(_) => return Ok(()),
            },
            () = events.closed() => return Ok(()),
        };
        let Some(entry) = entry else { return Ok(()) };
        let entry = entry.map_err(|error| failure("watching the registry", &error))?;
        let event = match entry.operation {
            kv::Operation::Put => match read(&entry.key, &entry.value) {
                Ok(worker) => RegistryEvent::Put(worker),
                Err(error) => {
                    tracing::warn!(key = entry.key, %error, "ignored a malformed registry entry");
                    continue;
                }
            },
            kv::Operation::Delete | kv::Operation::Purge => RegistryEvent::Delete(entry.key),
        };
        if events.send(event).await.is_err() {
            return Ok(());
        }
    }
}

/// The entry under a key. It has to be what the key says: who may write one key is held to it by the broker.
fn read(key: &str, value: &[u8]) -> Result<WorkerEntry, String> {
    let entry: WorkerEntry = serde_json::from_slice(value).map_err(|error| error.to_string())?;
    if entry.key() != key {
        return Err(format!("it is of model '{}' and worker '{}'", entry.model, entry.worker));
    }
    let longest = [&entry.model.name, &entry.worker].map(|name| name.len()).into_iter().max().unwrap_or_default();
    if longest > MAX_NAME {
        return Err(format!("it holds a name of {longest} bytes, expected {MAX_NAME} at most"));
    }
    Ok(entry)
}

async fn bucket(nats: &Nats) -> Result<kv::Store, BusError> {
    if let Ok(bucket) = nats.jetstream.get_key_value(subjects::REGISTRY_BUCKET).await {
        return Ok(bucket);
    }
    nats.need(Needed::Registry).await?;
    let bucket = nats.jetstream.get_key_value(subjects::REGISTRY_BUCKET).await;
    bucket.map_err(|error| failure("opening the registry", &error))
}

#[cfg(test)]
mod tests {
    use trireme_inference::{ModelKey, UnixMicros};

    use super::*;
    use crate::ModelState;

    #[test]
    fn an_entry_is_what_its_key_says() {
        let entry = |name: &str, worker: &str| WorkerEntry {
            worker: worker.to_owned(),
            service: "model".to_owned(),
            host: "h".to_owned(),
            model: ModelKey { name: name.to_owned(), version: 1 },
            state: ModelState::Ready,
            config: String::new(),
            capacity: 1,
            since: UnixMicros(1),
        };
        let bytes = |entry: &WorkerEntry| serde_json::to_vec(entry).unwrap();
        let honest = entry("a.b", "w");
        assert_eq!(read("a=2Eb.1.w", &bytes(&honest)), Ok(honest.clone()));
        assert_eq!(read("other.1.w", &bytes(&honest)).unwrap_err(), "it is of model 'a.b:1' and worker 'w'");
        assert!(read("a=2Eb.2.w", &bytes(&honest)).is_err());
        assert!(read("a=2Eb.1.v", &bytes(&honest)).is_err());
        for long in [entry(&"m".repeat(257), "w"), entry("m", &"w".repeat(257))] {
            let error = read(&long.key(), &bytes(&long)).unwrap_err();
            assert_eq!(error, "it holds a name of 257 bytes, expected 256 at most");
        }
    }
}
