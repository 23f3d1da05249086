//! Properties of the registry.

use super::setup::Setup;
use trireme_bus::fixtures::{model, unique, within};
use trireme_bus::{ModelState, RegistryEvent, RegistryEvents, WorkerEntry};

pub async fn a_watcher_sees_what_is_there_and_then_every_change(setup: &Setup) {
    let (worker, gateway) = (setup.connect().await, setup.connect().await);
    let there = entry("there");
    worker.announce(&there).await.expect("announced");
    let mut watch = Watch::open(setup).await;
    assert_eq!(put(watch.next(&there).await).0, there);

    let later = entry("later");
    gateway.announce(&later).await.expect("announced");
    let (found, revision) = put(watch.next(&later).await);
    assert_eq!(found, later);
    let failed = WorkerEntry { state: ModelState::Unavailable("no file 'ü'\n".to_owned()), ..there.clone() };
    worker.announce(&failed).await.expect("announced again");
    let (found, later_revision) = put(watch.next(&there).await);
    assert_eq!(found, failed);
    assert!(later_revision > revision, "revisions grow with every change");
    worker.withdraw(&there.key()).await.expect("withdrawn");
    assert_eq!(watch.next(&there).await, RegistryEvent::Delete(there.key()));
    worker.withdraw(&there.key()).await.expect("withdrawing what is not there is no error");

    // A late watcher sees the present entries.
    let mut late = Watch::open(setup).await;
    assert_eq!(put(late.next(&later).await), (later.clone(), revision));
    let again = WorkerEntry { capacity: 1, ..there.clone() };
    worker.announce(&again).await.expect("announced anew");
    let mut event = late.next(&there).await;
    while event == RegistryEvent::Delete(there.key()) {
        event = late.next(&there).await; // a broker may remember that it was withdrawn
    }
    assert_eq!(put(event).0, again);
    an_entry_is_taken_back_for_a_worker_as_it_was_seen(setup).await;
}

/// A gateway deletes the last entry of a worker that is gone, but not an entry that the worker wrote later.
async fn an_entry_is_taken_back_for_a_worker_as_it_was_seen(setup: &Setup) {
    let (worker, gateway) = (setup.connect().await, setup.connect().await);
    let first = entry("gone");
    worker.announce(&first).await.expect("announced");
    let mut watch = Watch::open(setup).await;
    let (_, seen) = put(watch.next(&first).await);
    let second = WorkerEntry { capacity: 1, ..first.clone() };
    worker.announce(&second).await.expect("announced again");
    let (_, revision) = put(watch.next(&first).await);
    let found = gateway.withdraw_for(&first.key(), Some(seen)).await.expect("the store answers");
    assert_eq!(found, Some((second, revision)), "it was written again meanwhile");
    assert_eq!(gateway.withdraw_for(&first.key(), Some(revision)).await.expect("the store answers"), None);
    assert_eq!(watch.next(&first).await, RegistryEvent::Delete(first.key()));
    for revision in [Some(revision), None] {
        let found = gateway.withdraw_for(&first.key(), revision).await;
        assert_eq!(found.expect("what is gone already is no error"), None);
    }
}

#[track_caller]
fn put(event: RegistryEvent) -> (WorkerEntry, u64) {
    match event {
        RegistryEvent::Put(entry, revision) => (entry, revision),
        other => panic!("expected an entry, found {other:?}"),
    }
}

/// A registry's events.
struct Watch(RegistryEvents);

impl Watch {
    async fn open(setup: &Setup) -> Watch {
        let bus = setup.connect().await;
        Watch(within("a watch", bus.watch_registry()).await.expect("the registry can be watched"))
    }

    /// The next event about `entry`; other tests announce entries as well.
    async fn next(&mut self, entry: &WorkerEntry) -> RegistryEvent {
        loop {
            let event = within("an event of the registry", self.0.recv()).await.expect("the watch stays open");
            let key = match &event {
                RegistryEvent::Put(found, _) => found.key(),
                RegistryEvent::Delete(key) => key.clone(),
                RegistryEvent::Chosen(..) | RegistryEvent::Complete => continue,
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
        bulk: true,
        content: None,
        since: trireme_inference::UnixMicros(1),
    }
}
