//! The bus's own tasks, and the pauses between their attempts.

use std::time::Duration;

/// The pause before a message is published again to a queue that is full or missing. `time` counts the pauses from 0:
/// the first is about 50 ms, and each is twice the last, up to about a second. The pause is random, so that waiting
/// processes do not all publish at once when a broker comes back.
///
/// ```
/// # use std::time::Duration;
/// use trireme_bus::queue_pause;
///
/// assert!(queue_pause(0) <= Duration::from_millis(75));
/// assert!(queue_pause(20) >= Duration::from_millis(500));
/// ```
pub fn queue_pause(time: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(1);
    (FIRST * 2u32.pow(time.min(10))).min(LONGEST).mul_f64(0.5 + fastrand::f64())
}

/// The pause before the first message in a waiting room is published again: 5 to 100 ms on average. It is the only one of its process
/// that looks for room, and other processes' messages take the room, too.
pub fn room_pause(time: u32) -> Duration {
    queue_pause(time) / 10
}

/// Starts one of the bus's own tasks. Each ends by itself when the value it serves is dropped, so no task is joined.
pub(crate) fn spawn(name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    use tracing::Instrument;
    #[allow(clippy::disallowed_methods, reason = "the one place where this crate starts tasks")]
    drop(tokio::spawn(task.instrument(tracing::debug_span!("bus", task = name))));
}
