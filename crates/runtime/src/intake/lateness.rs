//! Estimates whether a request can still be answered before its deadline, from the expected duration of a run of its
//! step. Pure.
//!
//! If requests wait in a queue until their deadline, the oldest ones have almost no time left. A worker that executed
//! them, because their deadline has not passed yet, would finish each of them too late. So a worker drops a request
//! that cannot be answered in time before it executes it, and uses the time for one that can.
//!
//! The time left has to be enough for the run, for a run of equal length at each later step (nothing is known of those
//! here), and for the messages between the steps and back. When a request arrives, the time has to be enough also for
//! its wait here, and for one more run, because the duration of runs varies. Asking for too much at that point costs
//! nothing: a request that is dropped a little too early makes room for another one. When a request is about to be
//! executed there is no other one, and the instance would idle until one came, so the check does not ask for the
//! additional run any more. Later steps that take longer than this step are not considered.
//!
//! All of this is an estimate and may be wrong. So a request is executed whatever the estimate while it has waited for
//! less than a quarter of the time that it had when it was sent to its queue. These requests correct an estimate that
//! is much too high, for example after one slow run.
//!
//! Not here: how long runs take (`intake`), deadlines that have passed (`hosted`).

use std::time::Duration;

use trireme_bus::WorkMessage;
use trireme_inference::UnixMicros;

/// One part in this many of a request's time is reserved for its messages and for delays on their way.
const WAYS: u32 = 10;

/// A request that has waited for less than one part in this many of its time is always executed.
const TRIED: u32 = 4;

/// Whether a request that arrives now cannot be answered before its deadline, if its run takes `run` and begins after
/// `wait`.
pub(crate) fn comes_too_late(message: &WorkMessage, run: Duration, wait: Duration, now: UnixMicros) -> bool {
    is_too_late(message, run, wait.saturating_add(run), now)
}

/// Whether a request whose run begins now and takes `run` cannot be answered before its deadline.
pub(crate) fn begins_too_late(message: &WorkMessage, run: Duration, now: UnixMicros) -> bool {
    is_too_late(message, run, Duration::ZERO, now)
}

fn is_too_late(message: &WorkMessage, run: Duration, before: Duration, now: UnixMicros) -> bool {
    let steps = u32::try_from(message.route.remaining().len()).unwrap_or(u32::MAX);
    is_over(message.deadline.since(now), message.deadline.since(message.sent_at), steps, run, before)
}

/// `left` is the time until the deadline, `had` is the whole time from when the request was sent to its queue, `before`
/// is the time that passes before the run.
fn is_over(left: Duration, had: Duration, steps: u32, run: Duration, before: Duration) -> bool {
    let needs = before.saturating_add(run.saturating_mul(steps)).saturating_add(had / WAYS);
    left < needs && had.saturating_sub(left) >= had / TRIED
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use trireme_bus::fixtures::message;
    use trireme_inference::ModelKey;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_has_waited_and_cannot_end_is_late() {
        let over = |left: u32, steps| is_over(MS * left, MS * 1000, steps, MS * 20, Duration::ZERO);
        assert!(over(119, 1) && !over(120, 1), "a run and the ways");
        assert!(over(159, 3) && !over(160, 3), "later steps take time as well");
        assert!(is_over(MS * 139, MS * 1000, 1, MS * 20, MS * 20), "it would not begin at once");
    }

    #[test]
    fn what_was_in_time_when_it_came_has_a_run_to_spare_when_it_begins() {
        let (sent_at, model) = (UnixMicros::now(), ModelKey { name: "any".into(), version: 1 });
        let message = WorkMessage { sent_at, deadline: sent_at.after(MS * 1000), ..message(&model, 1) };
        let (run, at_left) = (MS * 20, |left: u32| sent_at.after(MS * (1000 - left)));
        let comes = |left| !comes_too_late(&message, run, run, at_left(left));
        assert!(comes(160) && !comes(159), "a run until it begins, two runs and the ways");
        let begins = |left| !begins_too_late(&message, run, at_left(left));
        assert!(begins(139), "what came with 160 left, and began a moment later than expected");
        assert!(begins(120) && !begins(119), "but not any longer");
    }

    #[test]
    fn what_comes_is_tried_whatever_is_expected() {
        let slow = MS * 5000;
        assert!(!is_over(MS * 760, MS * 1000, 1, slow, slow), "it has not waited yet");
        assert!(is_over(MS * 750, MS * 1000, 1, slow, slow));
        assert!(!is_over(Duration::MAX, Duration::MAX, u32::MAX, Duration::MAX, Duration::MAX));
    }

    /// Simulates one server that takes the oldest request of a queue. Requests arrive evenly, at `load` times the
    /// server's capacity, each with a second until its deadline. Returns the share of the capacity whose answers are in
    /// time.
    fn goodput(load: f64, judge: impl Fn(Duration) -> bool) -> f64 {
        let (run, had, until) = (MS * 20, MS * 1000, Duration::from_secs(80));
        let (mut queue, mut now, mut good, mut came) = (VecDeque::new(), Duration::ZERO, 0, 0u32);
        while now < until {
            while run.div_f64(load) * came <= now {
                queue.push_back(run.div_f64(load) * came);
                came += 1;
            }
            match queue.pop_front() {
                None => now = run.div_f64(load) * came,
                Some(came) if judge((came + had).saturating_sub(now)) => {}
                Some(came) => {
                    now += run;
                    // The answer still has to travel, and the first half is left out because the queue is empty at the
                    // beginning.
                    good += u32::from(now + MS < came + had && now > until / 2);
                }
            }
        }
        f64::from(good) * run.as_secs_f64() / (until / 2).as_secs_f64()
    }

    #[test]
    fn goodput_holds_where_the_deadline_bounds_the_queue() {
        for load in [1.05, 2.0, 10.0] {
            let kept = goodput(load, |left| is_over(left, MS * 1000, 1, MS * 20, MS * 20));
            assert!(kept > 0.95, "{kept} at {load}");
            let expired = goodput(load, |left| left.is_zero());
            assert!(expired < 0.5, "{expired} at {load}: otherwise there would be no need for this");
        }
    }
}
