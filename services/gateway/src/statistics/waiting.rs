//! How much work waits for a model: the tokens of its waiting requests, over the tokens that its instances ran in a second. Pure.
//!
//! Workers tell the tokens of the requests that wait in them. On the bus only messages are counted, and each counts as the mean
//! request of its lane. The work that was measured is that of the last minute or, where no request ran in it, of all time. So the
//! numbers hold while a model has no worker.

use std::time::Duration;

use trireme_inference::{Counters, LaneWork};

use super::sources::Total;

/// A message's time while no run of its model has been measured.
const UNMEASURED: Duration = Duration::from_secs(1);

// === impl Total ===

impl Total {
    /// The time of an instance that the waiting requests take, by lane. `queued` are the messages on the bus by lane, `before` the
    /// counters of a minute ago.
    pub fn waiting_time(&self, queued: [u64; 2], before: Option<&Counters>) -> [Duration; 2] {
        let ever = self.counters.work;
        let lately = before.map(|before| [0, 1].map(|lane: usize| ever[lane].since(before.work[lane])));
        let of_both = |work: [LaneWork; 2]| {
            let [mut live, bulk] = work;
            live.add(bulk);
            live
        };
        let lately = lately.filter(|work| of_both(*work).requests > 0).unwrap_or(ever);
        let all = of_both(lately);
        [0, 1].map(|lane: usize| {
            if all.requests == 0 {
                return UNMEASURED.saturating_mul(u32::try_from(queued[lane]).unwrap_or(u32::MAX));
            }
            let alike = [lately[lane], ever[lane]].into_iter().find(|work| work.requests > 0).unwrap_or(all);
            let tokens = self.load.waiting_tokens[lane] as f64
                + queued[lane] as f64 * alike.tokens as f64 / alike.requests as f64;
            let seconds = tokens * all.ns as f64 / 1e9 / all.tokens.max(1) as f64;
            Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use trireme_runtime::QueueLoad;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn work(requests: u64, tokens: u64, millis: u64) -> LaneWork {
        LaneWork { requests, tokens, ns: millis * 1_000_000 }
    }

    fn total(work: [LaneWork; 2], waiting_tokens: [u64; 2]) -> Total {
        let load = QueueLoad { waiting_tokens, ..QueueLoad::default() };
        Total { counters: Counters { work, ..Counters::default() }, load, ..Total::default() }
    }

    #[test]
    fn waiting_tokens_take_as_long_as_those_that_ran() {
        // 1000 tokens a second; live requests have 10 tokens, bulk ones 100.
        let total = total([work(10, 100, 100), work(9, 900, 900)], [50, 200]);
        assert_eq!(total.waiting_time([0, 0], None), [MS * 50, MS * 200], "in workers");
        assert_eq!(total.waiting_time([3, 3], None), [MS * 80, MS * 500], "a message is as large as its lane's");
    }

    #[test]
    fn the_last_minute_counts_while_requests_ran_in_it() {
        let total = total([work(20, 200, 1100), work(0, 0, 0)], [0, 0]);
        let before = Counters { work: [work(10, 100, 1000), work(0, 0, 0)], ..Counters::default() };
        assert_eq!(total.waiting_time([10, 10], Some(&before)), [MS * 100, MS * 100], "the pace of the last minute");
        assert_eq!(
            total.waiting_time([10, 0], Some(&total.counters)),
            [MS * 550, Duration::ZERO],
            "an idle minute: of all time"
        );
    }

    #[test]
    fn a_queue_that_was_never_served_has_work() {
        let none = Total::default();
        assert_eq!(none.waiting_time([2, 0], None), [MS * 2000, Duration::ZERO]);
        assert_eq!(none.waiting_time([u64::MAX, 0], None)[0], UNMEASURED * u32::MAX);
        // Runs of no time at all.
        assert_eq!(total([work(1, 0, 0), work(0, 0, 0)], [0, 0]).waiting_time([5, 0], None), [Duration::ZERO; 2]);
    }
}
