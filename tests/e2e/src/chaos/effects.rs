//! Which requests were under way during each fault, and how long they took to recover.

use std::time::Duration;

use super::struck::Struck;
use super::tally::{Answered, Tally, What};

/// The longest time that a request usually takes without a fault, on a busy machine.
pub(super) const USUAL: Duration = Duration::from_secs(1);

/// The effect of one fault.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Effect {
    /// Requests that were under way at some time between the beginning of the fault and the calm after it.
    pub requests: usize,
    /// Number of them that were answered with the error that they cannot be served right now.
    pub refused: usize,
    /// Number of them with another complaint.
    pub failed: usize,
    /// The longest time that a request took among them.
    pub slowest: Duration,
    /// Time from the fault's end to the last answer among them that was slower than usual, or wrong.
    pub recovered: Duration,
    /// Time from the fault's end until the brokers were in sync again.
    pub whole: Option<Duration>,
}

/// The effect of each fault, in their order. A request counts for the first fault during which it was under way.
pub(super) fn effects(tally: &Tally, struck: &[Struck]) -> Vec<Effect> {
    let whole = |one: &Struck| one.whole.map(|whole| whole.saturating_sub(one.ended));
    let mut effects: Vec<Effect> = struck.iter().map(|one| Effect { whole: whole(one), ..Effect::default() }).collect();
    let right = tally.right.iter().map(|when| (when, None));
    for (when, what) in right.chain(tally.complaints.iter().map(|one| (&one.when, Some(one.what)))) {
        let met = |one: &Struck| when.answered > one.begun && when.sent < one.calm;
        let Some(number) = struck.iter().position(met) else { continue };
        let (effect, took) = (&mut effects[number], when.answered - when.sent);
        effect.requests += 1;
        effect.refused += usize::from(what == Some(What::Refused));
        effect.failed += usize::from(what.is_some_and(|what| what != What::Refused));
        effect.slowest = effect.slowest.max(took);
        if took > USUAL || what.is_some() {
            effect.recovered = effect.recovered.max(when.answered.saturating_sub(struck[number].ended));
        }
    }
    effects
}

/// The requests that were answered rightly but too late: more than `prompt` after they were sent, and after the end of
/// the last fault that began before they were due. `struck` is in the order of the faults' beginnings.
pub(super) fn tardy(tally: &Tally, struck: &[Struck], prompt: Duration) -> Vec<String> {
    let is_tardy = |when: &&Answered| {
        // A fault does not count if it begins after the request should have been answered.
        let allow = |until: Duration, one: &Struck| match one.begun < until && one.ended > when.sent {
            true => until.max(one.ended + prompt),
            false => until,
        };
        when.answered > struck.iter().fold(when.sent + prompt, allow)
    };
    let describe = |when: &Answered| {
        let before = struck.iter().rfind(|one| one.begun < when.answered);
        let kind = before.map_or("no fault", |one| &one.kind);
        let ended = before.map_or(Duration::ZERO, |one| when.answered.saturating_sub(one.ended));
        let (took, ended) = ((when.answered - when.sent).as_secs_f64(), ended.as_secs_f64());
        format!("after {took:.1} s, {ended:.1} s after the end of: {kind}")
    };
    tally.right.iter().filter(is_tardy).map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tally::Complaint;
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn struck(begun: u64, ended: u64, calm: u64) -> Struck {
        let [begun, ended, calm] = [begun, ended, calm].map(seconds);
        Struck { kind: "kill node (any)".to_owned(), count: 1, begun, ended, calm, whole: Some(calm) }
    }

    fn when(sent: u64, answered: u64) -> Answered {
        Answered { sent: seconds(sent), answered: seconds(answered) }
    }

    #[test]
    fn requests_are_counted_with_the_first_fault_they_met() {
        let struck = [struck(10, 12, 16), struck(20, 22, 23)];
        let right = vec![when(8, 9), when(9, 11), when(11, 15), when(15, 25), when(17, 21), when(30, 31)];
        let refused = Complaint { what: What::Refused, when: when(10, 14), text: String::new() };
        let lost = Complaint { what: What::Lost, when: when(20, 80), text: String::new() };
        let tally = Tally { right, complaints: vec![refused, lost], ..Tally::default() };
        let effect = |requests, refused, failed, slowest, recovered, whole| Effect {
            requests,
            refused,
            failed,
            slowest: seconds(slowest),
            recovered: seconds(recovered),
            whole: Some(seconds(whole)),
        };
        assert_eq!(effects(&tally, &struck), [effect(4, 1, 0, 10, 13, 4), effect(2, 0, 1, 60, 58, 1)]);
    }

    #[test]
    fn a_request_may_take_as_long_as_the_faults_that_it_meets_and_a_while() {
        let struck = [struck(10, 12, 16), struck(20, 22, 23)];
        let tardy = |sent, answered| {
            let tally = Tally { right: vec![when(sent, answered)], ..Tally::default() };
            tardy(&tally, &struck, seconds(10)).len()
        };
        assert_eq!([tardy(1, 11), tardy(1, 12)], [0, 0], "it met a fault that had not ended");
        assert_eq!([tardy(1, 32), tardy(1, 33)], [0, 1], "the second one counts, too");
        assert_eq!([tardy(9, 19), tardy(13, 19)], [0, 0]);
        assert_eq!(
            [tardy(1, 22), tardy(1, 23), tardy(1, 33)],
            [0, 0, 1],
            "each excuses what comes while it is waited for"
        );
        let late = [self::struck(10, 12, 16), self::struck(30, 42, 43)];
        let tally = Tally { right: vec![when(9, 43)], ..Tally::default() };
        assert_eq!(super::tardy(&tally, &late, seconds(10)).len(), 1, "it was due before the second one");
        assert_eq!([tardy(30, 40), tardy(30, 41)], [0, 1], "it met none");
    }
}
