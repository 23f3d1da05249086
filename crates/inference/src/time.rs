//! Points in time that travel between hosts.

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

/// This host's clock at its first use. From then on the monotonic clock counts, so setting the host's clock moves no
/// deadline.
static BEGINNING: LazyLock<(SystemTime, Instant)> = LazyLock::new(|| (SystemTime::now(), Instant::now()));

/// Microseconds by which this host's clock is behind the broker's clock, which all processes use.
static OFFSET: AtomicI64 = AtomicI64::new(0);

/// A point in time in microseconds since the Unix epoch: the form in which deadlines and send times travel. It is the
/// message broker's time; each process knows the offset of its own clock ([`UnixMicros::set_clock_offset`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMicros(pub u64);

// === impl UnixMicros ===

impl UnixMicros {
    /// Later than any request's deadline: no deadline.
    pub const NEVER: UnixMicros = UnixMicros(u64::MAX);

    /// The broker's time: this host's clock and its offset.
    pub fn now() -> UnixMicros {
        UnixMicros(UnixMicros::of_host().0.saturating_add_signed(OFFSET.load(Ordering::Relaxed)))
    }

    /// This host's clock.
    pub fn of_host() -> UnixMicros {
        let (beginning, since) = *BEGINNING;
        let since_epoch = beginning.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default() + since.elapsed();
        UnixMicros(since_epoch.as_micros() as u64)
    }

    /// Sets by how many microseconds this host's clock is behind the broker's clock; negative if it is ahead. There is
    /// one offset for the process.
    pub fn set_clock_offset(micros: i64) {
        OFFSET.store(micros, Ordering::Relaxed);
    }

    /// The offset last set by [`UnixMicros::set_clock_offset`].
    pub fn clock_offset() -> i64 {
        OFFSET.load(Ordering::Relaxed)
    }

    /// Time from `earlier` to this; zero when `earlier` is later (clocks of two hosts may disagree).
    pub fn since(self, earlier: UnixMicros) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// Time left until this point as seen from `now`; `None` once it has passed.
    pub fn remaining(self, now: UnixMicros) -> Option<Duration> {
        (self > now).then(|| self.since(now))
    }

    /// This point moved by `duration` into the future.
    pub fn after(self, duration: Duration) -> UnixMicros {
        UnixMicros(self.0.saturating_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)))
    }
}

impl From<UnixMicros> for SystemTime {
    /// A time that `SystemTime` cannot represent becomes the Unix epoch.
    fn from(time: UnixMicros) -> SystemTime {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(time.0)).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl fmt::Display for UnixMicros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
