//! Counts the deliveries that a worker holds, and can give them back to the bus when the thread that works on them
//! hangs.
//!
//! Not here: keeping deliveries alive. The bus does that until they are settled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use trireme_bus::{AckHandle, Acker};

/// Counts the deliveries that the worker holds. Clones are the same.
#[derive(Clone, Default)]
pub struct HeldDeliveries(Arc<AtomicUsize>);

/// Counts a delivery as held until this is dropped, or until the delivery is given back.
pub struct HeldGuard(Holding);

/// Can give a delivery back while an instance thread still works on it.
#[derive(Clone)]
pub struct Holding {
    handle: Arc<dyn AckHandle>,
    held: HeldDeliveries,
    counted: Arc<AtomicBool>,
}

// === impl HeldDeliveries ===

impl HeldDeliveries {
    /// Counts a delivery as held from now on.
    pub fn hold(&self, acker: &Acker) -> HeldGuard {
        self.0.fetch_add(1, Ordering::AcqRel);
        HeldGuard(Holding { handle: acker.handle(), held: self.clone(), counted: Arc::new(AtomicBool::new(true)) })
    }

    /// Number of deliveries that the worker holds.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }
}

// === impl HeldGuard ===

impl HeldGuard {
    /// The handle that can give the delivery back.
    pub fn holding(&self) -> Holding {
        self.0.clone()
    }
}

impl Drop for HeldGuard {
    fn drop(&mut self) {
        self.0.uncount();
    }
}

// === impl Holding ===

impl Holding {
    fn uncount(&self) -> bool {
        let counted = self.counted.swap(false, Ordering::AcqRel);
        if counted {
            self.held.0.fetch_sub(1, Ordering::AcqRel);
        }
        counted
    }
}

/// Gives back the deliveries of a thread that hangs, except those that were settled meanwhile. Giving all of them back
/// may take at most `limit`; the bus redelivers the others after `ack_wait`.
pub async fn give_back(deliveries: &[Holding], limit: Duration) {
    let giving = async {
        for delivery in deliveries {
            if delivery.uncount()
                && let Err(error) = delivery.handle.nak(Duration::ZERO).await
            {
                tracing::debug!(%error, "not given back; the bus delivers it again after ack_wait");
            }
        }
    };
    if tokio::time::timeout(limit, giving).await.is_err() {
        tracing::debug!("not all deliveries were given back; the bus delivers them again after ack_wait");
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use parking_lot::Mutex;
    use trireme_bus::BusError;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// Records how deliveries are settled. If `stuck`, settling never ends.
    #[derive(Default)]
    pub struct Recorder {
        pub seen: Mutex<Vec<&'static str>>,
        stuck: bool,
    }

    impl Recorder {
        async fn note(&self, what: &'static str) -> Result<(), BusError> {
            self.seen.lock().push(what);
            match self.stuck {
                true => std::future::pending().await,
                false => Ok(()),
            }
        }
    }

    #[async_trait]
    impl AckHandle for Recorder {
        async fn ack(&self) -> Result<(), BusError> {
            self.note("ack").await
        }
        async fn nak(&self, _: Duration) -> Result<(), BusError> {
            self.note("nak").await
        }
        fn abandon(&self) {
            self.seen.lock().push("abandon");
        }
    }

    #[tokio::test]
    async fn deliveries_of_a_holder_that_hangs_can_be_given_back_once() {
        let (held, recorder) = (HeldDeliveries::default(), Arc::new(Recorder::default()));
        let (hangs, works) = (Acker::new(recorder.clone()), Acker::new(recorder.clone()));
        let (hung, working) = (held.hold(&hangs), held.hold(&works));
        assert_eq!(held.count(), 2);
        give_back(&[hung.holding()], LIMIT).await;
        give_back(&[hung.holding()], LIMIT).await;
        assert_eq!((held.count(), recorder.seen.lock().as_slice()), (1, &["nak"][..]));
        let settled = working.holding();
        works.ack().await.unwrap();
        drop((hung, working));
        assert_eq!(held.count(), 0);
        give_back(&[settled], LIMIT).await;
        assert_eq!(recorder.seen.lock().as_slice(), ["nak", "ack"], "a settled delivery stays settled");
        hangs.ack().await.unwrap();
    }

    #[tokio::test]
    async fn a_bus_that_takes_nothing_holds_nobody_up() {
        let held = HeldDeliveries::default();
        let acker = Acker::new(Arc::new(Recorder { stuck: true, ..Recorder::default() }));
        let hung = held.hold(&acker);
        let giving = async { give_back(&[hung.holding()], Duration::from_millis(10)).await };
        tokio::time::timeout(LIMIT, giving).await.expect("it ends");
    }
}
