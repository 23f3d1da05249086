//! Streams that no broker leads: for how long, and when it is time to look at them again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

/// Looks that found no leader and are further apart than this count as different absences.
const LOOK_WITHIN: Duration = Duration::from_secs(15);

/// How long a process waits after a look at a stream before it looks again. Brokers that elect a leader answer late or not at
/// all, and each question delays the election.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Streams without a leader, by name.
#[derive(Default)]
pub struct OutOfReach {
    absences: Mutex<HashMap<String, Absence>>,
    /// The latest looks.
    looks: Mutex<HashMap<String, Instant>>,
    /// Held by the task that watches all streams.
    watch: Arc<tokio::sync::Mutex<()>>,
}

/// A period in which every look found that no broker leads a stream.
#[derive(Clone, Copy)]
struct Absence {
    first: Instant,
    last: Instant,
}

// === impl OutOfReach ===

impl OutOfReach {
    /// Whether it is time to look at a stream. The caller then does: others are not due before the next second.
    pub fn is_due(&self, name: &str, now: Instant) -> bool {
        let mut looks = self.looks.lock();
        looks.retain(|_, last| now.duration_since(*last) < LOOK_AGAIN);
        if looks.contains_key(name) {
            return false;
        }
        looks.insert(name.to_owned(), now);
        true
    }

    /// Begins to watch all streams, until the value is dropped; `None` while another one exists.
    pub fn watch(&self) -> Option<OwnedMutexGuard<()>> {
        self.watch.clone().try_lock_owned().ok()
    }

    /// Counts a look that found no leader; returns for how long every look has found none.
    pub fn note(&self, name: &str, now: Instant) -> Duration {
        let mut absences = self.absences.lock();
        let absence = absences.entry(name.to_owned()).or_insert(Absence { first: now, last: now });
        if now.duration_since(absence.last) > LOOK_WITHIN {
            // There were no looks for a while, so this may be another absence.
            absence.first = now;
        }
        absence.last = now;
        now.duration_since(absence.first)
    }

    /// The stream has a leader, or does not exist.
    pub fn end(&self, name: &str) {
        self.absences.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stream_that_is_out_of_reach_at_every_look_is_gone() {
        let (absences, start) = (OutOfReach::default(), Instant::now());
        let after = |seconds| absences.note("s", start + Duration::from_secs(seconds)).as_secs();
        assert_eq!([after(0), after(10), after(20), after(31)], [0, 10, 20, 31]);
        assert_eq!([after(60), after(70)], [0, 10], "nobody looked meanwhile");
        assert_eq!(absences.note("t", start).as_secs(), 0, "another stream");
        absences.end("s");
        assert_eq!(after(71), 0);
    }

    #[test]
    fn a_stream_is_looked_at_once_a_second() {
        let (streams, start) = (OutOfReach::default(), Instant::now());
        let is_due = |name, after| streams.is_due(name, start + Duration::from_millis(after));
        assert_eq!([0, 1, 999, 1000, 1001].map(|after| is_due("s", after)), [true, false, false, true, false]);
        assert!(is_due("t", 1002), "another stream");
    }

    #[test]
    fn streams_are_watched_once_at_a_time() {
        let streams = OutOfReach::default();
        let watch = streams.watch();
        assert!(watch.is_some() && streams.watch().is_none());
        drop(watch);
        assert!(streams.watch().is_some());
    }
}
