//! Summaries cover the last minute, while counters cover all time since the start; this keeps the totals of a minute ago. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use trireme_inference::{Counters, ModelKey};

use super::sources::Totals;

/// How far back a summary looks.
const WINDOW: Duration = Duration::from_secs(60);

/// How often totals are kept for later comparison.
const STEP: Duration = Duration::from_secs(12);

/// Totals of the last minute, oldest first.
#[derive(Debug, Default)]
pub struct Windows(VecDeque<(Instant, Totals)>);

// === impl Windows ===

impl Windows {
    /// Takes in the totals as they are now.
    pub fn advance(&mut self, now: Instant, totals: &Totals) {
        // The youngest entry that is old enough is the one to compare with; older ones are dropped.
        while self.0.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= WINDOW) {
            self.0.pop_front();
        }
        if self.0.back().is_none_or(|(at, _)| now.saturating_duration_since(*at) >= STEP) {
            self.0.push_back((now, totals.clone()));
        }
    }

    /// A model version's counts when the last minute began; `None` where they are not known.
    pub fn before(&self, now: Instant, key: &ModelKey) -> Option<&Counters> {
        self.minute_ago(now)?.get(key).map(|total| &total.counters)
    }

    /// Whether nobody looked a minute ago, so that summaries cover all time since the start.
    pub fn begin_at_the_start(&self, now: Instant) -> bool {
        self.minute_ago(now).is_none()
    }

    fn minute_ago(&self, now: Instant) -> Option<&Totals> {
        let (_, totals) = self.0.front().filter(|(at, _)| now.saturating_duration_since(*at) >= WINDOW)?;
        Some(totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Total;

    #[test]
    fn a_minute_is_looked_back() {
        let (mut windows, start) = (Windows::default(), Instant::now());
        let key = ModelKey { name: "m".into(), version: 1 };
        let totals = |inferences| {
            let counters = Counters { inferences, ..Counters::default() };
            Totals::from([(key.clone(), Total { counters, ..Total::default() })])
        };
        let at = |seconds| start + Duration::from_secs(seconds);
        for seconds in (0..=600).step_by(5) {
            windows.advance(at(seconds), &totals(seconds));
            let before = windows.before(at(seconds), &key).map(|counters| counters.inferences);
            assert_eq!(windows.begin_at_the_start(at(seconds)), seconds < 60);
            match seconds {
                0..60 => assert_eq!(before, None),
                _ => assert!(
                    (60..60 + 2 * STEP.as_secs()).contains(&(seconds - before.unwrap())),
                    "{seconds} {before:?}"
                ),
            }
        }
        assert!(windows.0.len() <= 7);
    }
}
