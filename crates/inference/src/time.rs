//! Points in time that travel between hosts.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// A point in time in microseconds since the Unix epoch: the form in which deadlines and send times travel. Hosts of one
/// deployment need clocks that agree to well under the request timeout (NTP is enough).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixMicros(pub u64);

// === impl UnixMicros ===

impl UnixMicros {
    /// Further away than any request lives: no deadline.
    pub const NEVER: UnixMicros = UnixMicros(u64::MAX);

    /// This host's clock.
    pub fn now() -> UnixMicros {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        UnixMicros(since_epoch.as_micros() as u64)
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
    /// A time that the clock cannot have becomes its beginning.
    fn from(time: UnixMicros) -> SystemTime {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(time.0)).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

impl fmt::Display for UnixMicros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
