//! Maintenance of queues by gateways. They remove the queues of versions that no worker serves any more. For queues
//! with a limit on waiting messages, they write to the stream how many messages workers hold besides.
//!
//! Every gateway does this; doing it twice changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use trireme_bus::{Bus, BusError, LevelPolicy, QueueOptions};
use trireme_inference::ModelKey;
use trireme_runtime::{TaskSet, queue_levels};

use crate::registry::Registry;

/// Average time between two looks for unneeded queues.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
const LOOK_JITTER: f64 = 0.2;

/// How long to wait for further changes of the workers' capacities before they are written.
const SETTLE: Duration = Duration::from_millis(500);

/// Pause before a failed write is repeated.
const TELL_AGAIN: Duration = Duration::from_secs(2);

/// Of 256 queues, how many are written again after each look for unneeded queues.
const TOLD_AGAIN: u8 = 25;

/// For each queue with a limit on waiting messages: the number of messages that workers hold, as last written.
type Told = BTreeMap<ModelKey, u64>;

/// A queue whose settings have to be written: its levels, and the number of messages that all workers hold together.
type Untold = (ModelKey, BTreeMap<u32, LevelPolicy>, u64);

/// Maintains the queues for as long as `tasks` runs.
pub fn look_after(bus: Arc<dyn Bus>, registry: Registry, tasks: &TaskSet) {
    let mut this = Queues { bus, registry, unneeded: BTreeSet::new(), told: Told::new(), is_refused: false };
    tasks.spawn_until_stop("queues", async move { this.run().await });
}

struct Queues {
    bus: Arc<dyn Bus>,
    registry: Registry,
    /// Queues that were unneeded at the last look.
    unneeded: BTreeSet<ModelKey>,
    told: Told,
    /// Whether it was logged that queues cannot be removed.
    is_refused: bool,
}

// === impl Queues ===

impl Queues {
    async fn run(&mut self) {
        let mut changes = self.registry.changes();
        let mut look = tokio::time::Instant::now() + look_period();
        let mut again = None;
        loop {
            let untold = async {
                match again {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = changes.changed() => match changed {
                    Ok(()) => {
                        tokio::time::sleep(SETTLE.mul_f64(1.0 + fastrand::f64())).await;
                        changes.mark_unchanged();
                    }
                    Err(_) => return,
                },
                () = untold => {}
                () = tokio::time::sleep_until(look) => {
                    look = tokio::time::Instant::now() + look_period();
                    self.remove_unneeded().await;
                    // A worker that had a lost queue created again knew only its own capacity.
                    self.told.retain(|_, _| fastrand::u8(..) > TOLD_AGAIN);
                }
            }
            let is_told = self.publish().await;
            again = (!is_told).then(|| tokio::time::Instant::now() + TELL_AGAIN);
        }
    }

    /// Removes the queues that are unneeded now and were unneeded at the last look.
    async fn remove_unneeded(&mut self) {
        let Some(named) = self.registry.capacities() else { return };
        let there = match self.bus.queues().await {
            Ok(there) => there,
            Err(error) => return self.not_removed(&error),
        };
        let is_needed = |model: &ModelKey| named.contains_key(model) || self.registry.keeps(model);
        let (to_remove, unneeded) = to_remove(there, is_needed, &self.unneeded);
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

    /// Writes the number of messages that workers hold to the queues for which it has changed. Returns whether all
    /// writes succeeded.
    async fn publish(&mut self) -> bool {
        let Some(capacities) = self.registry.capacities() else { return true };
        let catalog = self.registry.catalog();
        let levels = |model: &ModelKey| {
            let (_, served) = catalog.find(&model.name, Some(model.version)).ok()?;
            Some(queue_levels(&served.config))
        };
        self.told.retain(|model, _| capacities.contains_key(model));
        let untold = untold(&capacities, levels, &self.told);
        if untold.is_empty() {
            return true;
        }
        let Ok(settings) = self.bus.settings().await else { return false };
        let mut is_told = true;
        for (model, levels, in_hand) in untold {
            let options = QueueOptions { levels, in_hand, ..settings.clone() };
            match self.bus.declare_queue(&model, &options).await {
                Ok(()) => drop(self.told.insert(model, in_hand)),
                Err(error) => {
                    tracing::debug!(%model, %error, "the number of messages that workers hold could not be written to a queue's limit");
                    is_told = false;
                }
            }
        }
        is_told
    }
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

/// The queues with a limit on waiting messages for which the written number differs from the number that workers hold
/// now.
fn untold(
    capacities: &BTreeMap<ModelKey, u64>,
    levels: impl Fn(&ModelKey) -> Option<BTreeMap<u32, LevelPolicy>>,
    told: &Told,
) -> Vec<Untold> {
    let changed = capacities.iter().filter(|&(model, in_hand)| told.get(model) != Some(in_hand));
    let with_levels = changed.filter_map(|(model, &in_hand)| Some((model.clone(), levels(model)?, in_hand)));
    with_levels.filter(|(_, levels, _)| levels.values().any(|level| level.max_waiting.is_some())).collect()
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn queues_with_a_limit_are_told_when_what_workers_take_in_changes() {
        let limited = BTreeMap::from([(0, LevelPolicy { max_waiting: Some(3), timeout: None })]);
        let levels = |model: &ModelKey| match model.name.as_str() {
            "limited" => Some(limited.clone()),
            "free" => Some(BTreeMap::from([(0, LevelPolicy::default())])),
            _ => None,
        };
        let capacities = BTreeMap::from([(key("limited"), 8), (key("free"), 8), (key("unready"), 8)]);
        let expected = [(key("limited"), limited.clone(), 8)];
        assert_eq!(untold(&capacities, levels, &Told::new()), expected);
        assert_eq!(untold(&capacities, levels, &Told::from([(key("limited"), 8)])), []);
        assert_eq!(untold(&capacities, levels, &Told::from([(key("limited"), 4)])), expected);
    }
}
