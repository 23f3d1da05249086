//! Makes the queues that workers need, and removes those that none needs.
//!
//! The registry says which queues there have to be: one for each model version that a worker serves or is about to serve. A gateway compares
//! them with the queues that it has made and with those of the broker, whenever the registry or the connection changes, and every few seconds. So a
//! queue that was removed by hand, or lost with its broker, is made again without a request for it. For queues with a limit on waiting
//! messages the limit adds the messages that workers hold.
//!
//! Every gateway does this; doing it twice changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;
use trireme_bus::{Bus, BusError, Connection, QueueOptions};
use trireme_inference::ModelKey;
use trireme_runtime::TaskSet;

use crate::registry::{Registry, WantedQueue};

/// Average time between two looks at the broker's queues.
const LOOK_PERIOD: Duration = Duration::from_secs(2);
const LOOK_JITTER: f64 = 0.2;

/// After so many looks, unneeded queues are removed, and some of the others are made once more, which undoes changes by hand.
const LOOKS_A_ROUND: u32 = 30;

/// Of 256 queues, how many are made once more in a round.
const MADE_AGAIN: u8 = 64;

/// How long to wait for further changes of the workers' capacities before they are written.
const FURTHER_CHANGES: Duration = Duration::from_millis(500);

/// Pause before a queue is tried again that could not be made.
const MAKE_AGAIN: Duration = Duration::from_secs(2);

/// Queues that are made at a time.
const MAKING: usize = 16;

/// Looks after the queues for as long as `tasks` runs.
pub fn look_after(bus: Arc<dyn Bus>, registry: Registry, tasks: &TaskSet) {
    let mut this = Queues {
        bus,
        registry,
        made: BTreeMap::new(),
        in_making: BTreeSet::new(),
        making: FuturesUnordered::new(),
        due: BTreeMap::new(),
        unneeded: BTreeSet::new(),
        is_refused: false,
    };
    tasks.spawn_until_stop("queues", async move { this.run().await });
}

type Made = (ModelKey, WantedQueue, Result<(), BusError>);

struct Queues {
    bus: Arc<dyn Bus>,
    registry: Registry,
    /// The queues as this gateway has made them.
    made: BTreeMap<ModelKey, WantedQueue>,
    /// The queues that it is making.
    in_making: BTreeSet<ModelKey>,
    making: FuturesUnordered<BoxFuture<'static, Made>>,
    /// When a queue is to be made that is not as it should be.
    due: BTreeMap<ModelKey, Instant>,
    /// Queues that were unneeded at the last round.
    unneeded: BTreeSet<ModelKey>,
    /// Whether it was logged that queues cannot be removed.
    is_refused: bool,
}

// === impl Queues ===

impl Queues {
    async fn run(&mut self) {
        let mut changes = self.registry.changes();
        let mut connection = self.bus.connection();
        let (mut look, mut looks) = (Instant::now() + look_period(), 0);
        loop {
            let now = Instant::now();
            let next = self.due.values().copied().filter(|due| *due > now).min();
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                // A broker that was away may have lost all queues.
                Ok(()) = connection.changed() => look = now,
                () = tokio::time::sleep_until(look) => {
                    looks += 1;
                    look = Instant::now() + look_period();
                    if *connection.borrow_and_update() != Connection::Down {
                        tokio::select! {
                            () = self.look(looks % LOOKS_A_ROUND == 0) => {}
                            Ok(()) = connection.changed() => look = now,
                        }
                    }
                }
                Some(made) = self.making.next() => self.note(made),
                () = tokio::time::sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            }
            self.make();
        }
    }

    /// Begins to make the queues that are not as they should be.
    fn make(&mut self) {
        let Some(wanted) = self.registry.queues() else { return };
        self.made.retain(|model, _| wanted.contains_key(model));
        self.due.retain(|model, _| wanted.contains_key(model));
        let now = Instant::now();
        for (model, wanted) in wanted {
            let made = self.made.get(&model);
            if made == Some(&wanted) || self.in_making.contains(&model) {
                continue;
            }
            let pause = match made {
                Some(made) if made.levels == wanted.levels => FURTHER_CHANGES.mul_f64(1.0 + fastrand::f64()),
                _ => Duration::ZERO,
            };
            let due = *self.due.entry(model.clone()).or_insert(now + pause);
            if due <= now && self.in_making.len() < MAKING {
                self.in_making.insert(model.clone());
                let bus = self.bus.clone();
                self.making.push(Box::pin(async move {
                    let made = make(bus.as_ref(), &model, &wanted).await;
                    (model, wanted, made)
                }));
            }
        }
    }

    fn note(&mut self, (model, wanted, made): Made) {
        self.in_making.remove(&model);
        match made {
            Ok(()) => {
                self.due.remove(&model);
                self.made.insert(model, wanted);
            }
            Err(error) => {
                tracing::debug!(%model, %error, "a queue could not be made; trying on");
                self.due.insert(model, Instant::now() + MAKE_AGAIN.mul_f64(0.5 + fastrand::f64()));
            }
        }
    }

    /// Looks which queues there are. In a round, removes those that are unneeded now and were unneeded at the last one.
    async fn look(&mut self, is_round: bool) {
        let there = match self.bus.queues().await {
            Ok(there) => there,
            Err(error) => return self.not_removed(&error),
        };
        self.made.retain(|model, made| {
            there.get(model).is_some_and(|levels| made.levels.keys().all(|level| levels.contains(level)))
        });
        if !is_round {
            return;
        }
        self.made.retain(|_, _| fastrand::u8(..) >= MADE_AGAIN);
        let Some(wanted) = self.registry.queues() else { return };
        let is_needed = |model: &ModelKey| wanted.contains_key(model) || self.registry.keeps(model);
        let (to_remove, unneeded) = to_remove(there.into_keys().collect(), is_needed, &self.unneeded);
        self.unneeded = unneeded;
        for model in to_remove {
            match self.bus.remove_queue(&model).await {
                Ok(true) => tracing::info!(%model, "removed the queue of a model version that no worker serves"),
                Ok(false) => {}
                Err(error) => self.not_removed(&error),
            }
        }
    }

    fn not_removed(&mut self, error: &BusError) {
        if !std::mem::replace(&mut self.is_refused, true) {
            tracing::debug!(%error, "unneeded queues could not be removed");
        }
    }
}

async fn make(bus: &dyn Bus, model: &ModelKey, WantedQueue { levels, in_hand }: &WantedQueue) -> Result<(), BusError> {
    let options = QueueOptions { levels: levels.clone(), in_hand: *in_hand, ..bus.settings().await? };
    bus.declare_queue(model, &options).await
}

fn look_period() -> Duration {
    LOOK_PERIOD.mul_f64(1.0 - LOOK_JITTER + 2.0 * LOOK_JITTER * fastrand::f64())
}

/// The queues to remove, and those that are unneeded now. An unneeded queue may belong to a worker that is about to
/// announce itself, so it is removed only after two looks.
fn to_remove(
    there: Vec<ModelKey>,
    is_needed: impl Fn(&ModelKey) -> bool,
    before: &BTreeSet<ModelKey>,
) -> (Vec<ModelKey>, BTreeSet<ModelKey>) {
    let unneeded: BTreeSet<_> = there.into_iter().filter(|model| !is_needed(model)).collect();
    (unneeded.intersection(before).cloned().collect(), unneeded)
}

#[cfg(test)]
mod tests {
    use trireme_bus::fixtures::message;
    use trireme_bus::{InProcess, ModelState, WorkerEntry};
    use trireme_inference::UnixMicros;
    use trireme_model_repository::Repository;
    use trireme_runtime::ControlOptions;

    use super::*;

    fn key(name: &str) -> ModelKey {
        ModelKey { name: name.into(), version: 1 }
    }

    #[test]
    fn a_queue_is_removed_that_nobody_needs_twice() {
        let there = || vec![key("served"), key("gone"), key("new")];
        let is_needed = |model: &ModelKey| *model == key("served");
        let (first, unneeded) = to_remove(vec![key("served"), key("gone")], is_needed, &BTreeSet::new());
        assert!(first.is_empty(), "its worker may be about to announce itself");
        let (second, unneeded) = to_remove(there(), is_needed, &unneeded);
        assert_eq!(second, [key("gone")]);
        let back = |model: &ModelKey| *model != key("gone");
        let (third, unneeded) = to_remove(there(), back, &unneeded);
        assert_eq!(third, [key("gone")], "what could not be removed is tried again, what came back is left");
        assert_eq!(unneeded, BTreeSet::from([key("gone")]));
    }

    #[tokio::test(start_paused = true)]
    async fn queues_follow_the_registry_and_are_made_again_when_they_are_gone() {
        let (bus, tasks) = (InProcess::default(), TaskSet::new());
        let shared: Arc<dyn Bus> = Arc::new(bus.clone());
        let control = ControlOptions::default();
        let registry = Registry::follow(shared.clone(), "g", Repository::default(), &control, false, &tasks);
        let registry = registry.await.expect("in process nothing refuses");
        look_after(shared.clone(), registry, &tasks);
        let config = r#"{"name":"m","backend":"identity","max_batch_size":8,"dynamic_batching":{"default_queue_policy":{"max_queue_size":3}}}"#;
        let entry = WorkerEntry {
            worker: "w".to_owned(),
            service: "model".to_owned(),
            host: "h".to_owned(),
            model: key("m"),
            state: ModelState::Loading("waiting for its queue".to_owned()),
            config: config.to_owned(),
            capacity: 2,
            bulk: true,
            content: None,
            since: UnixMicros(7),
        };
        let there = async || shared.queues().await.expect("in process nothing refuses").contains_key(&key("m"));
        let until_there = async || {
            tokio::time::timeout(LOOK_PERIOD * 2, async {
                while !there().await {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            })
            .await
            .expect("it is made");
        };
        assert!(!there().await, "nobody needs it");
        shared.announce(&entry).await.expect("in process nothing refuses");
        until_there().await;
        assert!(shared.remove_queue(&key("m")).await.expect("it is empty"));
        until_there().await;
        let mut taken = 0;
        while bus.publish(&message(&key("m"), taken)).await.is_ok() {
            taken += 1;
        }
        assert_eq!(taken, 3, "the limit is that of the entry's configuration");
        tasks.join().await;
    }
}
