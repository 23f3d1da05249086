//! The deliveries in this process: they are kept alive until they are settled.
//!
//! A task reports progress on each delivery every third of `ack_wait`. The broker gives a delivery without reports to
//! another worker.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::Subject;
use bytes::Bytes;
use parking_lot::Mutex;

use super::limits::taken;

/// The deliveries that a connection keeps alive, with the subject that settles each. Clones share them.
#[derive(Clone)]
pub struct Deliveries(Arc<KeptAlive>);

struct KeptAlive {
    /// The time is when the delivery began.
    by_number: Mutex<HashMap<u64, (Subject, Instant)>>,
    next: AtomicU64,
    /// Milliseconds after which the broker gives a delivery without a progress report to another worker.
    ack_wait: AtomicU64,
}

/// Keeps a delivery alive until it is dropped.
pub struct Alive {
    deliveries: Deliveries,
    number: u64,
}

// === impl Deliveries ===

impl Deliveries {
    /// Starts to keep deliveries alive, until the last clone of the connection is dropped.
    pub fn open(client: async_nats::Client) -> Deliveries {
        let kept = KeptAlive { by_number: Mutex::default(), next: AtomicU64::new(0), ack_wait: AtomicU64::new(2000) };
        let deliveries = Deliveries(Arc::new(kept));
        let kept = Arc::downgrade(&deliveries.0);
        crate::spawn("nats progress", async move {
            loop {
                let Some(period) = kept.upgrade().map(|kept| kept.period()) else { return };
                tokio::time::sleep(period).await;
                let Some(subjects) = kept.upgrade().map(|kept| kept.older_than(period / 2)) else { return };
                if client.connection_state() != async_nats::connection::State::Connected {
                    // Reports made without a connection would only delay other messages when it is back.
                    continue;
                }
                for subject in subjects {
                    let _ = taken(client.publish(subject, Bytes::from_static(b"+WPI"))).await;
                }
            }
        });
        deliveries
    }

    /// Sets how long this process's queues wait for a progress report.
    pub fn set_ack_wait(&self, ack_wait: Duration) {
        self.0.ack_wait.store(ack_wait.as_millis() as u64, Ordering::Relaxed);
    }

    /// Keeps a delivery alive.
    pub fn keep(&self, subject: Subject) -> Alive {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.0.by_number.lock().insert(number, (subject, Instant::now()));
        Alive { deliveries: self.clone(), number }
    }
}

impl KeptAlive {
    fn period(&self) -> Duration {
        Duration::from_millis(self.ack_wait.load(Ordering::Relaxed)) / 3
    }

    fn older_than(&self, age: Duration) -> Vec<Subject> {
        let kept = self.by_number.lock();
        kept.values().filter(|(_, since)| since.elapsed() >= age).map(|(subject, _)| subject.clone()).collect()
    }
}

// === impl Alive ===

impl Alive {
    /// Stops keeping the delivery alive.
    pub fn end(&self) {
        self.deliveries.0.by_number.lock().remove(&self.number);
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.end();
    }
}
