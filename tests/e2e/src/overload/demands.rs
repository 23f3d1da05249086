//! Checks whether the levels of a scene reach the demanded figures, compared with the system's known capacity and with
//! its best goodput.

use std::fmt;
use std::time::Duration;

use super::{Level, millis};

/// The figures that the levels of a scene have to reach.
#[derive(Clone, Copy, Debug)]
pub struct Demands {
    /// Least best goodput, as a share of the capacity. It is checked if a load of at least the capacity was offered.
    pub of_capacity: f64,
    /// Least goodput under any overload, as a share of the best goodput.
    pub of_best: f64,
    /// The most time that 99 % of refusals may take since they were sent.
    pub refusal: Duration,
    /// How many times the median 99 % of results may take under any overload: requests that were accepted are served in turn.
    pub of_median: f64,
    /// How long after its deadline a request may be answered that its time has run out; 99 % have to be faster.
    pub overdue: Duration,
}

/// Summary of a scene's levels.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// The best goodput as a share of the capacity; `None` if a load of the capacity was never offered.
    of_capacity: Option<f64>,
    /// The worst goodput under overload as a share of the best; 1 without overload.
    of_best: f64,
    /// The longest 99th percentile of refusals under overload, since they were sent and since they were due; `None`
    /// without refusals.
    refusal: Option<[Duration; 2]>,
    /// The highest ratio of a 99th percentile to the median of results under overload; `None` without overload.
    of_median: Option<f64>,
    /// The longest 99th percentile under overload of how long after their deadline requests were answered that their
    /// time has run out; `None` without such answers.
    overdue: Option<Duration>,
    /// Number of answers that are neither a result, a refusal nor a timeout.
    other: usize,
}

// === impl Summary ===

impl Summary {
    /// Summarises levels.
    pub fn of(levels: &[Level]) -> Summary {
        let overloaded = || levels.iter().filter(|level| level.load > 1.0);
        let refusal = |level: &Level| (level.refused > 0.0).then_some([level.refusal.sent[1], level.refusal.due[1]]);
        let overdue = |level: &Level| (level.expired > 0.0).then_some(level.overdue[1]);
        let of_median = |level: &Level| level.result.due[1].as_secs_f64() / level.result.due[0].as_secs_f64();
        let best = levels.iter().map(|level| level.goodput).fold(0.0, f64::max);
        let worst = overloaded().map(|level| level.goodput).fold(best, f64::min);
        let full = levels.iter().find(|level| level.load >= 1.0);
        Summary {
            of_capacity: full.map(|level| best / level.scene.capacity()),
            of_best: worst / best.max(f64::MIN_POSITIVE),
            refusal: overloaded().filter_map(refusal).reduce(|[a, b], [c, d]| [a.max(c), b.max(d)]),
            of_median: overloaded().filter(|level| level.goodput > 0.0).map(of_median).reduce(f64::max),
            overdue: overloaded().filter_map(overdue).max(),
            other: levels.iter().map(|level| level.other).sum(),
        }
    }

    /// The demands that are not met, as texts.
    pub fn shortfalls(&self, demands: &Demands) -> Vec<String> {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let mut found = Vec::new();
        if let Some(share) = self.of_capacity.filter(|share| *share < demands.of_capacity) {
            let demanded = percent(demands.of_capacity);
            found.push(format!("the best goodput is {} of what the system can do, not {demanded}", percent(share)));
        }
        if self.of_best < demands.of_best {
            let [of_best, demanded] = [self.of_best, demands.of_best].map(percent);
            found.push(format!("goodput falls to {of_best} of its best under overload, not {demanded}"));
        }
        if let Some(times) = self.of_median.filter(|times| *times > demands.of_median) {
            found.push(format!("99 % of results take {times:.1} times the median, not {:.1}", demands.of_median));
        }
        let times = [
            ("refusals take", self.refusal.map(|[sent, _]| sent), demands.refusal),
            ("timeouts are told late by", self.overdue, demands.overdue),
        ];
        for (what, time, demanded) in times {
            if let Some(time) = time.filter(|time| *time > demanded) {
                found.push(format!("{what} {:.1} ms, not {:.1}", millis(time), millis(demanded)));
            }
        }
        if self.other > 0 {
            found.push(format!("{} answers are neither a result nor 503", self.other));
        }
        found
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(share) = self.of_capacity {
            write!(f, "best goodput: {:.1} % of what the system can do; ", share * 100.0)?;
        }
        write!(f, "under overload: {:.1} % of the best at least", self.of_best * 100.0)?;
        if let Some([sent, due]) = self.refusal.map(|times| times.map(millis)) {
            write!(f, "; 99 % of refusals within {sent:.1} ms of being sent ({due:.1} of being due)")?;
        }
        if let Some(times) = self.of_median {
            write!(f, "; 99 % of results within {times:.1} times the median")?;
        }
        if let Some(overdue) = self.overdue.map(millis) {
            write!(f, "; 99 % of timeouts {overdue:.1} ms late at most")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bound, Call, End, Scene};
    use super::*;
    use crate::Mode;

    const DEMANDS: Demands = Demands {
        of_capacity: 0.9,
        of_best: 0.95,
        refusal: Duration::from_millis(10),
        of_median: 2.0,
        overdue: Duration::from_millis(100),
    };

    /// One second in which a system with a capacity of 150 requests gives `results` results and the other outcomes in
    /// `others`.
    fn level(load: f64, results: u64, others: &[Call]) -> Level {
        let bound = Bound::Deadline(Duration::from_secs(1));
        let scene = Scene { mode: Mode::AllInOne, pipeline: false, bound, run: Duration::from_millis(20) };
        let mut calls = vec![call(End::Good, 20, 20); results as usize];
        calls.extend(others);
        Level::of(scene, load, &calls, Duration::ZERO..Duration::from_secs(1))
    }

    fn call(end: End, due: u64, sent: u64) -> Call {
        let [due, sent] = [due, sent].map(Duration::from_millis);
        Call { end, at: Duration::from_millis(500), due, sent }
    }

    fn shortfalls(levels: &[Level]) -> String {
        Summary::of(levels).shortfalls(&DEMANDS).join("; ")
    }

    #[test]
    fn goodput_is_judged_against_what_the_system_can_do_and_against_its_best() {
        assert_eq!(shortfalls(&[level(1.0, 149, &[]), level(10.0, 145, &[])]), "");
        let weak = shortfalls(&[level(1.0, 90, &[]), level(10.0, 90, &[])]);
        assert_eq!(weak, "the best goodput is 60.0 % of what the system can do, not 90.0 %");
        let breaks_down = shortfalls(&[level(1.0, 150, &[]), level(10.0, 120, &[])]);
        assert_eq!(breaks_down, "goodput falls to 80.0 % of its best under overload, not 95.0 %");
        assert_eq!(shortfalls(&[level(0.25, 37, &[])]), "", "it was offered no more");
        let nothing = shortfalls(&[level(1.0, 0, &[]), level(2.0, 0, &[])]);
        assert!(nothing.contains("of what the system can do") && nothing.contains("of its best"), "{nothing}");
    }

    #[test]
    fn an_accepted_request_must_not_wait_much_longer_than_the_others() {
        let of = |slow| [level(1.0, 150, &[]), level(2.0, 147, &[call(End::Good, slow, slow); 3])];
        assert_eq!(shortfalls(&of(40)), "");
        assert_eq!(shortfalls(&of(200)), "99 % of results take 10.0 times the median, not 2.0");
    }

    #[test]
    fn refusals_are_judged_since_they_were_sent_and_told_both_ways() {
        let of = |due, sent| [level(1.0, 150, &[]), level(2.0, 150, &[call(End::Refused, due, sent)])];
        assert_eq!(shortfalls(&of(16, 2)), "", "how late the harness was is its own affair");
        assert_eq!(shortfalls(&of(16, 12)), "refusals take 12.0 ms, not 10.0");
        let text = Summary::of(&of(16, 2)).to_string();
        assert!(text.contains("within 2.0 ms of being sent (16.0 of being due)"), "{text}");
    }

    #[test]
    fn timeouts_have_to_be_told_in_time_and_late_results_are_of_no_use() {
        let of = |end, sent| [level(1.0, 150, &[]), level(2.0, 150, &[call(end, sent, sent)])];
        assert_eq!(shortfalls(&of(End::Expired, 1050)), "");
        assert_eq!(shortfalls(&of(End::Expired, 3000)), "timeouts are told late by 2000.0 ms, not 100.0");
        let [_, late] = of(End::Late, 3000);
        assert_eq!((late.goodput, late.late), (150.0, 1.0));
        let timeout = Duration::from_secs(1);
        let in_time = |bound: Bound| [1.0, 1.1, 1.2].map(|took| bound.is_in_time(Duration::from_secs_f64(took)));
        assert_eq!(in_time(Bound::Deadline(timeout)), [true, true, false]);
        assert_eq!(in_time(Bound::Queue), [true, true, true]);
        assert_eq!(shortfalls(&of(End::Other, 1)), "1 answers are neither a result nor 503");
    }
}
