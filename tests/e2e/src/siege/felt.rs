//! The measurements of honest clients.

use std::time::Duration;

/// The measurements of the honest clients of one kind.
#[derive(Clone, Debug, Default)]
pub struct Felt {
    /// How long each answer took.
    pub times: Vec<Duration>,
    /// The faults of requests without a right answer.
    pub lost: Vec<String>,
}

// === impl Felt ===

impl Felt {
    /// The time within which 99 % of the answers came.
    pub fn p99(&self) -> Duration {
        self.percentile(99)
    }

    fn percentile(&self, percent: usize) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(at).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_all_answers() {
        let felt = Felt { times: (1..=200).map(Duration::from_millis).collect(), lost: Vec::new() };
        assert_eq!((felt.percentile(50), felt.p99()), (Duration::from_millis(100), Duration::from_millis(198)));
    }
}
