//! Counts by lane: how much work requests were, and how near their deadlines were when their runs began.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The executed requests of a lane and their model time, from which the model time of waiting requests is estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneWork {
    /// Number of requests.
    pub requests: u64,
    /// Their tokens without padding; their rows for a model without tokens.
    pub tokens: u64,
    /// The time of an instance that they took, in nanoseconds: of a batch the part of their rows.
    pub ns: u64,
}

/// A histogram of the part of their granted time that requests had left when their runs began.
///
/// ```
/// # use std::time::Duration;
/// use trireme_inference::TimeLeft;
///
/// let mut left = TimeLeft::default();
/// left.record(Duration::from_secs(3), Duration::from_secs(10));
/// left.record(Duration::from_secs(9), Duration::from_secs(10));
/// assert_eq!((left.count(), left.sum()), (2, 1.2));
/// assert_eq!(left.buckets().nth(2), Some((0.3, 1)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeLeft {
    /// Number of requests by tenths: those of at most 0.1 first.
    tenths: [u64; 10],
    /// The sum of the parts, in millionths.
    millionths: u64,
}

// === impl LaneWork ===

impl LaneWork {
    /// Adds other work.
    pub fn add(&mut self, other: LaneWork) {
        self.requests += other.requests;
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.ns = self.ns.saturating_add(other.ns);
    }

    /// The work since `earlier`, an earlier state of this count.
    pub fn since(self, earlier: LaneWork) -> LaneWork {
        LaneWork {
            requests: self.requests.saturating_sub(earlier.requests),
            tokens: self.tokens.saturating_sub(earlier.tokens),
            ns: self.ns.saturating_sub(earlier.ns),
        }
    }
}

// === impl TimeLeft ===

impl TimeLeft {
    /// Counts a request whose run begins while `left` of the time that it was `granted` is left.
    pub fn record(&mut self, left: Duration, granted: Duration) {
        const WHOLE: u128 = 1_000_000;
        let part = left.as_nanos().saturating_mul(WHOLE).checked_div(granted.as_nanos()).unwrap_or_default();
        let part = part.min(WHOLE) as u64;
        self.tenths[(part.saturating_sub(1) / 100_000) as usize] += 1;
        self.millionths += part;
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &TimeLeft) {
        self.tenths.iter_mut().zip(other.tenths).for_each(|(sum, more)| *sum += more);
        self.millionths = self.millionths.saturating_add(other.millionths);
    }

    /// Number of requests.
    pub fn count(&self) -> u64 {
        self.tenths.iter().sum()
    }

    /// The sum of the parts, each from 0 to 1.
    pub fn sum(&self) -> f64 {
        self.millionths as f64 / 1e6
    }

    /// The upper bounds 0.1 to 1, and the number of requests up to each.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> {
        self.tenths.iter().enumerate().scan(0, |at_most, (tenth, count)| {
            *at_most += count;
            Some(((tenth + 1) as f64 / 10.0, *at_most))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_by_the_part_of_its_time_that_is_left() {
        let (second, mut left) = (Duration::from_secs(1), TimeLeft::default());
        for (remaining, granted) in [(0, 0), (0, 10), (1, 10), (2, 10), (10, 10), (11, 10)] {
            left.record(second * remaining, second * granted);
        }
        let counts: Vec<_> = left.buckets().map(|(_, count)| count).collect();
        assert_eq!(counts, [3, 4, 4, 4, 4, 4, 4, 4, 4, 6], "an upper bound belongs to its bucket");
        assert_eq!((left.count(), left.sum()), (6, 2.3));
        left.record(Duration::MAX, Duration::MAX);
        assert_eq!(left.count(), 7);
        let mut twice = left;
        twice.add(&left);
        assert_eq!((twice.count(), twice.sum()), (14, 6.6));
    }
}
