//! The deliveries this worker has in hand. While it does, the bus must not give them to others: a ticker reports
//! progress on each of them every third of `ack_wait`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trireme_bus::{AckHandle, Acker, BusError};

use crate::TaskSet;

/// All deliveries in hand. Clones are the same set.
#[derive(Clone, Default)]
pub struct Held(Arc<Mutex<Slots>>);

/// A delivery's place among those held. No two deliveries ever have the same.
pub type Slot = u64;

#[derive(Default)]
struct Slots {
    by_number: HashMap<Slot, Entry>,
    next: Slot,
}

struct Entry {
    handle: Arc<dyn AckHandle>,
    since: Instant,
    /// Given back although its holder still has it.
    let_go: bool,
}

/// The right to settle a delivery that is kept alive until then.
pub struct HeldAcker {
    acker: Option<Acker>,
    held: Held,
    slot: Slot,
}

// === impl Held ===

impl Held {
    /// Starts to keep a delivery alive.
    pub fn hold(&self, acker: Acker) -> HeldAcker {
        let entry = Entry { handle: acker.handle(), since: Instant::now(), let_go: false };
        let mut slots = self.0.lock();
        let slot = slots.next;
        slots.next += 1;
        slots.by_number.insert(slot, entry);
        drop(slots);
        HeldAcker { acker: Some(acker), held: self.clone(), slot }
    }

    /// How many deliveries are in hand.
    pub fn count(&self) -> usize {
        self.0.lock().by_number.values().filter(|entry| !entry.let_go).count()
    }

    /// Gives deliveries back whose holder hangs, and keeps them alive no longer. Those that were settled meanwhile are none
    /// of its business. The bus may take `limit` for all of them; what it has not taken by then comes again after `ack_wait`.
    pub async fn let_go(&self, slots: &[Slot], limit: Duration) {
        let handles: Vec<_> = {
            let mut held = self.0.lock();
            let let_go = |slot: &Slot| {
                let entry = held.by_number.get_mut(slot)?;
                entry.let_go = true;
                Some(entry.handle.clone())
            };
            slots.iter().filter_map(let_go).collect()
        };
        let giving = async {
            for handle in handles {
                if let Err(error) = handle.nak(Duration::ZERO).await {
                    tracing::debug!(%error, "not given back; the bus delivers it again after ack_wait");
                }
            }
        };
        if tokio::time::timeout(limit, giving).await.is_err() {
            tracing::debug!("not all was given back; the bus delivers it again after ack_wait");
        }
    }

    /// Reports progress on everything in hand for longer than a third of `ack_wait`, for as long as `tasks` runs.
    pub fn keep_alive(&self, ack_wait: Duration, tasks: &TaskSet) {
        let held = self.clone();
        let stopping = tasks.stopping().clone();
        let period = ack_wait / 3;
        tasks.spawn("in-progress", async move {
            let mut ticks = tokio::time::interval(period);
            // A process that was stopped for a while must not make up for the ticks it missed.
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = stopping.cancelled() => return,
                }
                for handle in held.older_than(period / 2) {
                    if let Err(error) = handle.in_progress().await {
                        tracing::debug!(%error, "progress could not be reported");
                    }
                }
            }
        });
    }

    fn older_than(&self, age: Duration) -> Vec<Arc<dyn AckHandle>> {
        let slots = self.0.lock();
        let entries = slots.by_number.values().filter(|entry| !entry.let_go && entry.since.elapsed() >= age);
        entries.map(|entry| entry.handle.clone()).collect()
    }
}

// === impl HeldAcker ===

impl HeldAcker {
    /// Its place among those held.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// The work is done and handed on.
    pub async fn ack(mut self) -> Result<(), BusError> {
        self.release().ack().await
    }

    /// Deliver again after `delay`.
    pub async fn nak(mut self, delay: Duration) -> Result<(), BusError> {
        self.release().nak(delay).await
    }

    /// Never deliver again.
    pub async fn term(mut self, reason: &str) -> Result<(), BusError> {
        self.release().term(reason).await
    }

    fn release(&mut self) -> Acker {
        self.acker.take().expect("present until settled, and settling takes self")
    }
}

impl Drop for HeldAcker {
    fn drop(&mut self) {
        self.held.0.lock().by_number.remove(&self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[derive(Default)]
    struct Recorder(Mutex<Vec<&'static str>>);

    #[async_trait::async_trait]
    impl AckHandle for Recorder {
        async fn ack(&self) -> Result<(), BusError> {
            self.0.lock().push("ack");
            Ok(())
        }
        async fn nak(&self, _: Duration) -> Result<(), BusError> {
            self.0.lock().push("nak");
            Ok(())
        }
        async fn term(&self, _: &str) -> Result<(), BusError> {
            self.0.lock().push("term");
            Ok(())
        }
        async fn in_progress(&self) -> Result<(), BusError> {
            self.0.lock().push("in progress");
            Ok(())
        }
        fn abandon(&self) {
            self.0.lock().push("abandoned");
        }
    }

    #[tokio::test]
    async fn progress_is_reported_until_the_delivery_is_settled() {
        let tasks = TaskSet::new();
        let held = Held::default();
        let recorder = Arc::new(Recorder::default());
        held.keep_alive(Duration::from_millis(30), &tasks);
        let acker = held.hold(Acker::new(recorder.clone()));
        let reported = async {
            while recorder.0.lock().len() < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), reported).await.expect("in progress at least twice");
        assert_eq!(held.count(), 1);
        acker.ack().await.unwrap();
        assert_eq!(held.count(), 0);
        let seen = recorder.0.lock().len();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(recorder.0.lock().len(), seen, "nothing after the ack");
        tasks.join().await;
    }

    #[tokio::test]
    async fn what_a_hung_holder_has_can_be_given_back() {
        let held = Held::default();
        let recorder = Arc::new(Recorder::default());
        let (hung, other) = (held.hold(Acker::new(recorder.clone())), held.hold(Acker::new(recorder.clone())));
        held.let_go(&[hung.slot()], LIMIT).await;
        assert_eq!((held.count(), held.older_than(Duration::ZERO).len()), (1, 1));
        assert_eq!(*recorder.0.lock(), ["nak"]);
        // Its holder has come back after all.
        hung.ack().await.unwrap();
        other.ack().await.unwrap();
        assert_eq!(held.count(), 0);
    }

    #[tokio::test]
    async fn what_took_the_place_of_a_settled_delivery_is_not_given_back() {
        let held = Held::default();
        let recorder = Arc::new(Recorder::default());
        let settled = held.hold(Acker::new(recorder.clone()));
        let slot = settled.slot();
        settled.ack().await.unwrap();
        let _next = held.hold(Acker::new(recorder.clone()));
        held.let_go(&[slot], LIMIT).await;
        assert_eq!(*recorder.0.lock(), ["ack"]);
        assert_eq!((held.count(), held.older_than(Duration::ZERO).len()), (1, 1));
    }

    #[tokio::test]
    async fn a_bus_that_takes_nothing_holds_nobody_up() {
        struct Stuck;
        #[async_trait::async_trait]
        impl AckHandle for Stuck {
            async fn ack(&self) -> Result<(), BusError> {
                std::future::pending().await
            }
            async fn nak(&self, _: Duration) -> Result<(), BusError> {
                std::future::pending().await
            }
            async fn term(&self, _: &str) -> Result<(), BusError> {
                std::future::pending().await
            }
            async fn in_progress(&self) -> Result<(), BusError> {
                std::future::pending().await
            }
            fn abandon(&self) {}
        }
        let held = Held::default();
        let hung = held.hold(Acker::new(Arc::new(Stuck)));
        let let_go = async { held.let_go(&[hung.slot()], Duration::from_millis(10)).await };
        tokio::time::timeout(LIMIT, let_go).await.expect("it ends");
    }

    #[tokio::test]
    async fn letting_go_abandons() {
        let held = Held::default();
        let recorder = Arc::new(Recorder::default());
        drop(held.hold(Acker::new(recorder.clone())));
        assert_eq!(*recorder.0.lock(), ["abandoned"]);
        assert_eq!(held.count(), 0);
    }
}
