//! The unit of times in records.

use trireme_inference::UnixMicros;

/// Seconds since 1970, by the clock that all processes of a deployment use.
pub fn now() -> u64 {
    seconds(UnixMicros::now())
}

/// Seconds since 1970.
pub(crate) fn seconds(time: UnixMicros) -> u64 {
    time.0 / 1_000_000
}
