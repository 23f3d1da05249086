//! An amount of an owner within a minute: this gateway's, and the amounts that the others have sent.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::window::Window;

/// An amount that a gateway has admitted, as it sends it to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// The amount since the gateway began, without the parts that it has taken back.
    pub total: u64,
    /// The part of the last minute.
    pub recent: u64,
}

/// How much a gateway has admitted of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// The name of the owner.
    pub owner: String,
    /// Its requests.
    pub requests: Amount,
    /// Their tokens, with the ones that are reserved for running requests.
    pub tokens: Amount,
}

/// An amount within a minute, at all gateways.
#[derive(Debug, Default)]
pub(super) struct Rate {
    own: Window,
    /// The other gateways' amounts, each in the second in which it arrived.
    others: Window,
    /// This gateway's [`Amount::total`]. It wraps around.
    total: u64,
}

// === impl Rate ===

impl Rate {
    /// The sum of the last minute.
    pub fn sum(&mut self, now: Duration) -> u64 {
        self.own.sum(now).saturating_add(self.others.sum(now))
    }

    /// After how long the sum has come down to `most`, if nothing more is admitted; zero if it has.
    pub fn until(&mut self, now: Duration, most: u64) -> Duration {
        self.own.and(&mut self.others, now).until(now, most)
    }

    /// Admits an amount here. Returns the second in which it counts.
    pub fn add(&mut self, now: Duration, amount: u64) -> u64 {
        self.total = self.total.wrapping_add(amount);
        self.own.add(now, amount)
    }

    /// Takes back a part of what [`Rate::add`] has admitted in that second.
    pub fn take_back(&mut self, second: u64, amount: u64) {
        self.total = self.total.wrapping_sub(self.own.take_back(second, amount));
    }

    /// This gateway's amount, for the others.
    pub fn told(&mut self, now: Duration) -> Amount {
        Amount { total: self.total, recent: self.own.sum(now) }
    }

    /// Takes in another gateway's amount; `before` is the total that it sent last. Of the difference, amounts older than a minute do not
    /// count.
    pub fn hear(&mut self, now: Duration, before: Option<u64>, told: Amount) {
        let more = before.map(|before| told.total.wrapping_sub(before).cast_signed());
        match more {
            None => drop(self.others.add(now, told.recent)),
            Some(more @ 0..) => drop(self.others.add(now, more.unsigned_abs().min(told.recent))),
            Some(less) => self.others.take_back_newest(now, less.unsigned_abs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn amounts_of_all_gateways_count_for_a_minute() {
        let (mut here, mut there) = (Rate::default(), Rate::default());
        here.add(at(1), 3);
        there.add(at(2), 4);
        let told = there.told(at(2));
        assert_eq!(told, Amount { total: 4, recent: 4 });
        here.hear(at(3), None, told);
        here.hear(at(4), Some(told.total), told);
        assert_eq!(here.sum(at(4)), 7, "what is told again counts once");
        there.add(at(10), 5);
        here.hear(at(10), Some(4), there.told(at(10)));
        assert_eq!(here.sum(at(10)), 12);
        assert_eq!(here.until(at(10), 11), at(52), "the first three end at 62");
        assert_eq!(here.until(at(10), 8), at(54), "then the four that were told in second 3");
        assert_eq!(here.until(at(10), 0), at(61));
        // The other gateway has been killed.
        assert_eq!((here.sum(at(63)), here.sum(at(64)), here.sum(at(71))), (9, 5, 0));
    }

    #[test]
    fn what_is_taken_back_is_taken_back_everywhere() {
        let (mut here, mut there) = (Rate::default(), Rate::default());
        let second = there.add(at(1), 100);
        here.hear(at(1), None, there.told(at(1)));
        there.take_back(second, 70);
        here.add(at(2), 5);
        here.hear(at(2), Some(100), there.told(at(2)));
        assert_eq!((here.sum(at(2)), there.sum(at(2))), (35, 30));
        // Only the 30 that the second still holds are taken back.
        there.take_back(second, 100);
        here.hear(at(3), Some(30), there.told(at(3)));
        assert_eq!((here.sum(at(3)), there.told(at(3)).total), (5, 0));
    }

    #[test]
    fn what_was_told_long_after_it_was_admitted_does_not_count() {
        let (mut here, mut there) = (Rate::default(), Rate::default());
        here.hear(at(0), None, there.told(at(0)));
        there.add(at(1), 50);
        there.add(at(100), 2);
        // Nothing was heard of it for two minutes.
        here.hear(at(101), Some(0), there.told(at(101)));
        assert_eq!(here.sum(at(101)), 2);
        let mut late = Rate::default();
        late.hear(at(101), None, there.told(at(101)));
        assert_eq!(late.sum(at(101)), 2, "a gateway that begins");
    }
}
