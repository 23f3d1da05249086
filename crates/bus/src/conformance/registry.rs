//! Properties of the registry.

use tokio::sync::mpsc;

use super::Setup;
use super::fixtures::{model, unique, within};
use crate::{ModelState, RegistryEvent, WorkerEntry};

pub async fn a_watcher_sees_what_is_there_and_then_every_change(setup: &Setup) {
    let (worker, gateway) = (setup.connect().await, setup.connect().await);
    let there = entry("there");
    worker.announce(&there).await.expect("announced");
    let mut watch = Watch::open(setup).await;
    assert_eq!(watch.next(&there).await, RegistryEvent::Put(there.clone()));

    let later = entry("later");
    gateway.announce(&later).await.expect("announced");
    assert_eq!(watch.next(&later).await, RegistryEvent::Put(later.clone()));
    let failed = WorkerEntry { state: ModelState::Unavailable("no file 'ü'\n".to_owned()), ..there.clone() };
    worker.announce(&failed).await.expect("announced again");
    assert_eq!(watch.next(&there).await, RegistryEvent::Put(failed.clone()));
    worker.withdraw(&there).await.expect("withdrawn");
    assert_eq!(watch.next(&there).await, RegistryEvent::Delete(there.key()));
    worker.withdraw(&there).await.expect("withdrawing what is not there is no error");

    // Who comes late sees what is there now.
    let mut late = Watch::open(setup).await;
    assert_eq!(late.next(&later).await, RegistryEvent::Put(later.clone()));
    let again = WorkerEntry { capacity: 1, ..there.clone() };
    worker.announce(&again).await.expect("announced anew");
    let mut event = late.next(&there).await;
    while event == RegistryEvent::Delete(there.key()) {
        event = late.next(&there).await; // a broker may remember that it was withdrawn
    }
    assert_eq!(event, RegistryEvent::Put(again));
}

/// A registry's events.
struct Watch(mpsc::Receiver<RegistryEvent>);

impl Watch {
    async fn open(setup: &Setup) -> Watch {
        let bus = setup.connect().await;
        Watch(within("a watch", bus.watch_registry()).await.expect("the registry can be watched"))
    }

    /// The next event about `entry`; others announce as well.
    async fn next(&mut self, entry: &WorkerEntry) -> RegistryEvent {
        loop {
            let event = within("an event of the registry", self.0.recv()).await.expect("the watch stays open");
            let key = match &event {
                RegistryEvent::Put(found) => found.key(),
                RegistryEvent::Delete(key) => key.clone(),
            };
            if key == entry.key() {
                return event;
            }
        }
    }
}

fn entry(name: &str) -> WorkerEntry {
    WorkerEntry {
        worker: unique("worker"),
        service: "model".to_owned(),
        host: "höst".to_owned(),
        model: model(name),
        state: ModelState::Ready,
        config: r#"{"name":"ü","max_batch_size":8}"#.to_owned(),
        capacity: 4,
        since: trireme_inference::UnixMicros(1),
    }
}
