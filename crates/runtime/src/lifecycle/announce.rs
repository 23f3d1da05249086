//! Writes the worker's entries to the registry. An entry is written when it changes, and a write that fails is repeated.
//!
//! One task writes, in the order of the changes: when one version of a model takes over from another, the registry has a ready
//! one at any time. The worker writes all its entries again when a gateway asks for them, and after its connection was lost.
//!
//! Not here: heartbeats, which the process sends (`statistics::heartbeat`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use trireme_bus::{Bus, BusError, Connection, WorkerEntry};
use trireme_inference::Backoff;
use trireme_tasks::TaskSet;

/// The pauses before a failed write is repeated.
const WRITE_AGAIN: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(4));

/// Bounds of the random delay between a gateway's question and the worker's writes, so that the workers of a deployment do
/// not all write at once.
const AGAIN_SOONEST: Duration = Duration::from_millis(50);
const AGAIN_LATEST: Duration = Duration::from_millis(500);

/// The shortest time between two times that the worker writes all its entries.
const AGAIN_PERIOD: Duration = Duration::from_secs(2);

/// Keeps the worker's entries in the registry.
pub(crate) struct Announcer {
    bus: Arc<dyn Bus>,
    entries: Mutex<Entries>,
    /// Notified when there is an entry to write.
    changed: Notify,
}

/// The worker's entries, and the keys whose value in the registry may be another one.
#[derive(Default)]
struct Entries {
    current: BTreeMap<String, WorkerEntry>,
    /// In the order of the changes.
    unwritten: VecDeque<Unwritten>,
}

struct Unwritten {
    key: String,
    /// Callers that wait for the outcome of the next attempt.
    callers: Vec<oneshot::Sender<Result<(), BusError>>>,
}

// === impl Announcer ===

impl Announcer {
    /// Starts to write, and to listen for gateways that ask for the entries, until `tasks` stop.
    pub async fn start(worker: &str, bus: Arc<dyn Bus>, tasks: &TaskSet) -> Result<Arc<Announcer>, BusError> {
        let mut asked = bus.asked_to_announce().await?;
        let mut connection = bus.connection();
        connection.borrow_and_update();
        let announcer = Arc::new(Announcer { bus, entries: Mutex::default(), changed: Notify::new() });
        let this = announcer.clone();
        tasks.spawn_until_stop("announcements", async move { this.write().await });
        let (this, worker) = (announcer.clone(), worker.to_owned());
        tasks.spawn_until_stop("announcements again", async move {
            let (mut last, mut due) = (None::<Instant>, None::<Instant>);
            loop {
                tokio::select! {
                    name = asked.recv() => match name {
                        Some(name) if name == worker => {}
                        Some(_) => continue,
                        None => return,
                    },
                    // A broker that was away may have lost the entries.
                    Ok(()) = connection.changed() => if *connection.borrow_and_update() == Connection::Down { continue },
                    () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                        this.write_all_again();
                        (last, due) = (Some(Instant::now()), None);
                        continue;
                    }
                }
                let soon = Instant::now() + AGAIN_SOONEST + (AGAIN_LATEST - AGAIN_SOONEST).mul_f64(fastrand::f64());
                due = due.or(Some(last.map_or(soon, |last| soon.max(last + AGAIN_PERIOD))));
            }
        });
        Ok(announcer)
    }

    /// Writes an entry and waits for the outcome of the first attempt. After an error the announcer goes on trying.
    pub async fn announce(&self, entry: &WorkerEntry) -> Result<(), BusError> {
        self.change(entry.key(), Some(entry)).await
    }

    /// Writes several entries, as [`Announcer::announce`].
    pub async fn announce_all(&self, entries: &[WorkerEntry]) -> Vec<Result<(), BusError>> {
        join_all(entries.iter().map(|entry| self.announce(entry))).await
    }

    /// Deletes an entry. Waits likewise.
    pub async fn withdraw(&self, entry: &WorkerEntry) -> Result<(), BusError> {
        self.change(entry.key(), None).await
    }

    /// Gives up an entry that the bus has refused. The entry that was there `before` holds on.
    pub fn forget(&self, refused: &WorkerEntry, before: Option<WorkerEntry>) {
        let (key, mut entries) = (refused.key(), self.entries.lock());
        entries.unwritten.retain(|unwritten| unwritten.key != key);
        match before {
            Some(before) => drop(entries.current.insert(key, before)),
            None => drop(entries.current.remove(&key)),
        }
    }

    /// The number of entries, and the sum of their `since`.
    pub fn count(&self) -> (u32, u64) {
        let entries = self.entries.lock();
        let sum = entries.current.values().fold(0u64, |sum, entry| sum.wrapping_add(entry.since.0));
        (u32::try_from(entries.current.len()).unwrap_or(u32::MAX), sum)
    }

    fn write_all_again(&self) {
        let mut entries = self.entries.lock();
        let keys: Vec<_> = entries.current.keys().cloned().collect();
        keys.into_iter().for_each(|key| entries.mark(key, None));
        self.changed.notify_one();
    }

    async fn change(&self, key: String, entry: Option<&WorkerEntry>) -> Result<(), BusError> {
        let (caller, outcome) = oneshot::channel();
        self.entries.lock().change(key, entry, Some(caller));
        self.changed.notify_one();
        outcome.await.unwrap_or_else(|_| Err(BusError::Unreachable("the worker is stopping".to_owned())))
    }

    async fn write(&self) {
        let mut failures = 0;
        loop {
            let next = self.entries.lock().next();
            let Some((key, entry)) = next else {
                self.changed.notified().await;
                continue;
            };
            let written = match &entry {
                Some(entry) => self.bus.announce(entry).await,
                None => self.bus.withdraw(&key).await,
            };
            match written {
                Ok(()) => {
                    failures = 0;
                    self.entries.lock().written(&key, entry.as_ref());
                }
                Err(error) => {
                    tracing::debug!(key, %error, "an entry could not be written to the registry; trying on");
                    self.entries.lock().failed(&key, error);
                    failures += 1;
                    // A caller of `announce` waits for an attempt of its own.
                    let pause = WRITE_AGAIN.scattered_after(failures);
                    let _ = tokio::time::timeout(pause, self.changed.notified()).await;
                }
            }
        }
    }
}

// === impl Entries ===

impl Entries {
    /// Takes in a new value; `None` removes the entry.
    fn change(
        &mut self,
        key: String,
        entry: Option<&WorkerEntry>,
        caller: Option<oneshot::Sender<Result<(), BusError>>>,
    ) {
        match entry {
            Some(entry) => drop(self.current.insert(key.clone(), entry.clone())),
            None => drop(self.current.remove(&key)),
        }
        self.mark(key, caller);
    }

    /// Notes that a key's value has to be written.
    fn mark(&mut self, key: String, caller: Option<oneshot::Sender<Result<(), BusError>>>) {
        match self.unwritten.iter_mut().find(|unwritten| unwritten.key == key) {
            Some(unwritten) => unwritten.callers.extend(caller),
            None => self.unwritten.push_back(Unwritten { key, callers: caller.into_iter().collect() }),
        }
    }

    /// The key that is to be written next, and its value.
    fn next(&self) -> Option<(String, Option<WorkerEntry>)> {
        let key = &self.unwritten.front()?.key;
        Some((key.clone(), self.current.get(key).cloned()))
    }

    /// Takes in that `entry` was written. The value may have changed meanwhile, and the key may have been given up.
    fn written(&mut self, key: &str, entry: Option<&WorkerEntry>) {
        if self.current.get(key) == entry && self.unwritten.front().is_some_and(|first| first.key == key) {
            let written = self.unwritten.pop_front().expect("there is a first one");
            written.callers.into_iter().for_each(|caller| drop(caller.send(Ok(()))));
        }
    }

    /// Takes in that the first key could not be written. A key that the bus refuses goes behind the others; an error of the
    /// connection holds for all of them.
    fn failed(&mut self, key: &str, error: BusError) {
        let is_refused = !matches!(error, BusError::Unreachable(_));
        let reason = error.to_string();
        let Some(first) = self.unwritten.front_mut().filter(|first| first.key == key) else { return };
        if let Some(caller) = first.callers.pop() {
            let _ = caller.send(Err(error));
        }
        for unwritten in self.unwritten.iter_mut().take(if is_refused { 1 } else { usize::MAX }) {
            for caller in unwritten.callers.drain(..) {
                let _ = caller.send(Err(BusError::Unreachable(reason.clone())));
            }
        }
        if is_refused {
            self.unwritten.rotate_left(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trireme_bus::ModelState;
    use trireme_inference::{ModelKey, UnixMicros};

    fn entry(version: i64, state: ModelState, since: u64) -> WorkerEntry {
        WorkerEntry {
            worker: "w".to_owned(),
            service: "model".to_owned(),
            host: "h".to_owned(),
            model: ModelKey { name: "m".into(), version },
            state,
            config: String::new(),
            capacity: 1,
            bulk: true,
            content: None,
            since: UnixMicros(since),
        }
    }

    /// The version whose entry is to be written next.
    fn next(entries: &Entries) -> Option<i64> {
        entries.next().map(|(_, entry)| entry.expect("no entry is deleted").model.version)
    }

    #[test]
    fn entries_are_written_in_the_order_of_their_changes_until_they_are_written() {
        let mut entries = Entries::default();
        let (new, old) = (entry(2, ModelState::Ready, 1), entry(1, ModelState::Unloading, 2));
        [&new, &old].into_iter().for_each(|entry| entries.change(entry.key(), Some(entry), None));
        assert_eq!(next(&entries), Some(2));
        entries.failed(&new.key(), BusError::Unreachable("lost".to_owned()));
        assert_eq!(next(&entries), Some(2), "the order holds on");
        entries.failed(&new.key(), BusError::Refused { action: "writing", reason: "no".to_owned() });
        assert_eq!(next(&entries), Some(1), "a refusal concerns one entry");
        entries.written(&old.key(), Some(&old));
        assert_eq!(next(&entries), Some(2));
        entries.written(&new.key(), Some(&new));
        assert_eq!(next(&entries), None);
    }

    #[test]
    fn changes_during_a_write_are_written_as_well() {
        let mut entries = Entries::default();
        let (ready, unloading) = (entry(1, ModelState::Ready, 1), entry(1, ModelState::Unloading, 2));
        entries.change(ready.key(), Some(&ready), None);
        entries.change(ready.key(), Some(&unloading), None);
        entries.written(&ready.key(), Some(&ready));
        assert_eq!(entries.next(), Some((ready.key(), Some(unloading.clone()))));
        entries.change(ready.key(), None, None);
        entries.written(&ready.key(), Some(&unloading));
        assert_eq!(entries.next(), Some((ready.key(), None)));
        entries.written(&ready.key(), None);
        assert_eq!(entries.next(), None);
    }

    #[test]
    fn callers_hear_of_the_next_attempt() {
        let mut entries = Entries::default();
        let mut outcomes: Vec<_> = (1..=2)
            .map(|version| {
                let (entry, (caller, outcome)) = (entry(version, ModelState::Ready, 1), oneshot::channel());
                entries.change(entry.key(), Some(&entry), Some(caller));
                outcome
            })
            .collect();
        entries.failed(&entry(1, ModelState::Ready, 1).key(), BusError::Unreachable("lost".to_owned()));
        for outcome in &mut outcomes {
            let error = outcome.try_recv().expect("it was sent").unwrap_err();
            assert!(matches!(error, BusError::Unreachable(_)), "{error}");
        }
    }
}
