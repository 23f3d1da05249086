//! Streams that are out of reach, and for how long.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Failures to reach a stream that are further apart than this count as different absences.
const LOOK_WITHIN: Duration = Duration::from_secs(15);

/// Streams that are out of reach, by name.
#[derive(Default)]
pub struct OutOfReach(Mutex<HashMap<String, Absence>>);

/// A period in which every attempt to reach a stream failed.
#[derive(Clone, Copy)]
struct Absence {
    first: Instant,
    last: Instant,
}

// === impl OutOfReach ===

impl OutOfReach {
    /// Counts a failure to reach a stream; returns how long every attempt has failed.
    pub fn note(&self, name: &str, now: Instant) -> Duration {
        let mut absences = self.0.lock();
        let absence = absences.entry(name.to_owned()).or_insert(Absence { first: now, last: now });
        if now.duration_since(absence.last) > LOOK_WITHIN {
            // There were no attempts for a while, so this may be another absence.
            absence.first = now;
        }
        absence.last = now;
        now.duration_since(absence.first)
    }

    /// Counts a success, or that the stream does not exist.
    pub fn end(&self, name: &str) {
        self.0.lock().remove(name);
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
}
