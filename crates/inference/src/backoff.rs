//! Pauses between attempts: the one place that knows how they grow.

use std::time::Duration;

/// The pauses between attempts at something that fails: each is twice the one before, up to a longest one.
///
/// ```
/// use std::time::Duration;
/// use trireme_inference::Backoff;
///
/// const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// assert_eq!([0, 1, 2, 3, 100].map(|failures| PAUSES.after(failures).as_millis()), [0, 100, 200, 400, 1000]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

// === impl Backoff ===

impl Backoff {
    /// Pauses from `first`, the one after the first failure, to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest }
    }

    /// The pause after so many failures in a row; none without a failure.
    pub fn after(self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            _ => self.first.saturating_mul(2u32.saturating_pow(failures - 1)).min(self.longest),
        }
    }

    /// The same, from half of its length to one and a half at random: processes that failed together do not try again together.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use trireme_inference::Backoff;
    /// const PAUSES: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));
    /// assert!((1000..3000).contains(&PAUSES.scattered_after(1).as_millis()));
    /// ```
    pub fn scattered_after(self, failures: u32) -> Duration {
        self.after(failures).mul_f64(0.5 + fastrand::f64())
    }

    /// The longest pause.
    pub const fn longest(self) -> Duration {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_never_overflow() {
        let pauses = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        let grown = [1, 2, 3, 4, 5, 6, 7, 8, u32::MAX].map(|failures| pauses.after(failures).as_millis());
        assert_eq!(grown, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(pauses.after(0), Duration::ZERO);
        let seconds = (0..1000).map(|_| pauses.scattered_after(2).as_secs_f64());
        let (least, most) = seconds.fold((f64::MAX, 0.0), |(least, most), one| (one.min(least), one.max(most)));
        assert!((0.5..0.6).contains(&least) && (1.4..1.5).contains(&most), "{least} to {most}");
    }
}
