//! Counts of durations in a histogram. All histograms have the same bounds, so those of several processes can be added, and those
//! bounds are the ones of the metrics: the buckets of a crate (hdrhistogram) would only come near them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Bounds within one power of ten. They include 1, 2.5 and 5, which people read from graphs.
const STEPS: [u64; 10] = [100, 120, 150, 200, 250, 300, 400, 500, 600, 800];

/// Powers of ten covered by the bounds: from 1 µs to 1000 s.
const DECADES: usize = 9;

/// Number of bounds. Longer durations are counted too.
const BOUNDS: usize = STEPS.len() * DECADES;

/// Upper bounds in nanoseconds, ascending.
const fn bounds() -> [u64; BOUNDS] {
    let mut bounds = [0; BOUNDS];
    let mut decade = 10;
    let mut i = 0;
    while i < BOUNDS {
        bounds[i] = STEPS[i % STEPS.len()] * decade;
        if i % STEPS.len() == STEPS.len() - 1 {
            decade *= 10;
        }
        i += 1;
    }
    bounds
}

static UPPER: [u64; BOUNDS] = bounds();

/// A histogram of durations. Recording one takes a search among fixed bounds and three additions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// The number of durations.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub ns: u64,
    /// The number of durations at or below each bound and above the one before. Trailing zeros are left out.
    buckets: Vec<u64>,
}

// === impl Latencies ===

impl Latencies {
    /// Counts a duration.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.count += 1;
        self.ns = self.ns.saturating_add(ns);
        let bucket = UPPER.partition_point(|upper| *upper < ns);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Latencies) {
        self.count += other.count;
        self.ns = self.ns.saturating_add(other.ns);
        for (bucket, count) in other.buckets.iter().enumerate() {
            // The histogram comes from another process, so what lies above the last bound counts as one bucket.
            let bucket = bucket.min(BOUNDS);
            if self.buckets.len() <= bucket {
                self.buckets.resize(bucket + 1, 0);
            }
            self.buckets[bucket] += count;
        }
    }

    /// The durations counted since `earlier`, an earlier state of this histogram.
    pub fn since(&self, earlier: &Latencies) -> Latencies {
        let before = |bucket: usize| earlier.buckets.get(bucket).copied().unwrap_or_default();
        let buckets = self.buckets.iter().enumerate().map(|(i, count)| count.saturating_sub(before(i))).collect();
        Latencies { count: self.count.saturating_sub(earlier.count), ns: self.ns.saturating_sub(earlier.ns), buckets }
    }

    /// The number of durations up to `bound`. It is rounded down to one of the histogram's bounds, of which there are
    /// about three for each doubling.
    pub fn at_most(&self, bound: Duration) -> u64 {
        let ns = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        let known = UPPER.partition_point(|upper| *upper <= ns);
        self.buckets.iter().take(known).sum()
    }

    /// The duration that this share of all durations does not exceed, interpolated between bounds. `None` if there are
    /// none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let rank = share.clamp(0.0, 1.0) * self.count as f64;
        let mut below = 0;
        for (bucket, &count) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            if (below + count) as f64 >= rank {
                let lower = bucket.checked_sub(1).map_or(0, |before| UPPER[before]);
                let upper = UPPER.get(bucket).copied().unwrap_or(lower);
                let part = (rank - below as f64) / count as f64;
                return Some(Duration::from_nanos(lower + ((upper - lower) as f64 * part) as u64));
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(micros: &[u64]) -> Latencies {
        let mut latencies = Latencies::default();
        micros.iter().for_each(|micros| latencies.record(Duration::from_micros(*micros)));
        latencies
    }

    #[test]
    fn bounds_ascend_and_include_their_upper_end() {
        assert!(UPPER.is_sorted() && UPPER[0] == 1000 && *UPPER.last().unwrap() == 800_000_000_000);
        let latencies = of(&[1, 100, 101, 5_000, 2_000_000, 5_000_000_000]);
        let at_most = |micros| latencies.at_most(Duration::from_micros(micros));
        assert_eq!([at_most(0), at_most(1), at_most(100), at_most(120), at_most(5_000)], [0, 1, 2, 3, 4]);
        assert_eq!((at_most(800_000_000), latencies.count), (5, 6), "what is longer than any bound still counts");
        assert_eq!(at_most(119), 2, "a bound that is none is rounded down");
    }

    #[test]
    fn quantiles_lie_within_a_bucket_of_the_truth() {
        let latencies = of(&(1..=1000).map(|n| n * 10).collect::<Vec<_>>());
        for share in [0.01, 0.5, 0.9, 0.99, 1.0] {
            let found = latencies.quantile(share).unwrap().as_secs_f64();
            let truth = share * 0.01;
            assert!((found / truth - 1.0).abs() < 0.2, "{share}: {found} for {truth}");
        }
        assert_eq!(Latencies::default().quantile(0.5), None);
    }

    #[test]
    fn histograms_add_up_and_come_apart_again() {
        let (one, two) = (of(&[3, 70, 9_000]), of(&[1, 80_000]));
        let mut sum = one.clone();
        sum.add(&two);
        assert_eq!(sum, of(&[3, 70, 9_000, 1, 80_000]));
        assert_eq!(sum.since(&one).count, 2);
        assert_eq!(sum.since(&one).at_most(Duration::from_micros(1)), 1);
    }
}
