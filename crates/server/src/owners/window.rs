//! A sum over the last minute, exact to the second.

use std::time::Duration;

/// Seconds over which an amount counts. The second in which it was added counts besides, as a whole.
const SECONDS: u64 = 60;

/// The seconds that a window knows.
const SLOTS: usize = SECONDS as usize + 1;

/// Amounts of the last minute. An amount counts for 60 to 61 seconds, so no 60 seconds have more than the limit.
///
/// Times are given as the time since some fixed moment, and never go back.
#[derive(Clone, Debug)]
pub struct Window {
    slots: [u64; SLOTS],
    /// The second of the newest slot.
    now: u64,
    sum: u64,
}

// === impl Window ===

impl Default for Window {
    fn default() -> Self {
        Window { slots: [0; SLOTS], now: 0, sum: 0 }
    }
}

impl Window {
    /// Forgets amounts that are older than a minute.
    fn advance(&mut self, now: Duration) {
        let now = now.as_secs();
        if now.saturating_sub(self.now) >= SLOTS as u64 {
            (self.slots, self.sum) = ([0; SLOTS], 0);
        } else {
            for second in self.now + 1..=now {
                self.sum -= std::mem::take(&mut self.slots[slot(second)]);
            }
        }
        self.now = self.now.max(now);
    }

    /// The sum of the last minute.
    pub fn sum(&mut self, now: Duration) -> u64 {
        self.advance(now);
        self.sum
    }

    /// Adds an amount. Returns the second in which it counts.
    pub fn add(&mut self, now: Duration, amount: u64) -> u64 {
        self.advance(now);
        // A sum that saturates stays that of its slots.
        let amount = amount.min(u64::MAX - self.sum);
        self.slots[slot(self.now)] += amount;
        self.sum += amount;
        self.now
    }

    /// Takes back a part of an amount, by the second that `add` has returned; nothing if the second is forgotten. Returns how much.
    pub fn take_back(&mut self, second: u64, amount: u64) -> u64 {
        if second + SECONDS < self.now {
            return 0;
        }
        let taken = amount.min(self.slots[slot(second)]);
        self.slots[slot(second)] -= taken;
        self.sum -= taken;
        taken
    }

    /// Takes back a part of the newest amounts.
    pub fn take_back_newest(&mut self, now: Duration, mut amount: u64) {
        self.advance(now);
        for second in (self.now.saturating_sub(SECONDS)..=self.now).rev() {
            amount -= self.take_back(second, amount);
        }
    }

    /// The amounts of this one and another one, whose times count from the same moment.
    pub fn and(&mut self, other: &mut Window, now: Duration) -> Window {
        self.advance(now);
        other.advance(now);
        let mut both = self.clone();
        both.sum = both.sum.saturating_add(other.sum);
        for (slot, more) in both.slots.iter_mut().zip(other.slots) {
            *slot = slot.saturating_add(more);
        }
        both
    }

    /// After how long the sum has come down to `most`; zero if it has.
    pub fn until(&mut self, now: Duration, most: u64) -> Duration {
        self.advance(now);
        let mut left = self.sum;
        if left <= most {
            return Duration::ZERO;
        }
        let is_enough = |second: &u64| {
            left = left.saturating_sub(self.slots[slot(*second)]);
            left <= most
        };
        let last = (self.now.saturating_sub(SECONDS)..=self.now).find(is_enough).unwrap_or(self.now);
        Duration::from_secs(last + SECONDS + 1).saturating_sub(now)
    }
}

fn slot(second: u64) -> usize {
    (second % SLOTS as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn an_amount_counts_for_a_minute() {
        let mut window = Window::default();
        window.add(at(0.9), 5);
        window.add(at(30.0), 2);
        assert_eq!(window.sum(at(60.9)), 7);
        assert_eq!(window.sum(at(61.0)), 2);
        assert_eq!(window.sum(at(90.9)), 2);
        assert_eq!(window.sum(at(91.0)), 0);
        window.add(at(10_000.0), 3);
        assert_eq!((window.sum(at(10_060.0)), window.sum(at(1e9))), (3, 0));
    }

    #[test]
    fn it_says_when_there_is_room() {
        let mut window = Window::default();
        assert_eq!(window.until(at(0.5), 0), Duration::ZERO);
        window.add(at(1.0), 5);
        window.add(at(11.0), 5);
        assert_eq!(window.until(at(11.5), 10), Duration::ZERO);
        assert_eq!(window.until(at(11.5), 9), at(50.5), "the first five end at 62");
        assert_eq!(window.until(at(11.5), 4), at(60.5));
        assert_eq!(window.until(at(11.5), 0), at(60.5));
        assert_eq!(window.sum(at(61.9)), 10);
        assert_eq!(window.sum(at(62.0)), 5, "as it said");
    }

    #[test]
    fn what_was_too_much_is_taken_back_as_long_as_it_counts() {
        let mut window = Window::default();
        let second = window.add(at(5.0), 100);
        window.take_back(second, 60);
        assert_eq!(window.sum(at(6.0)), 40);
        window.take_back(second, 100);
        assert_eq!(window.sum(at(6.0)), 0);
        let second = window.add(at(7.0), 10);
        window.add(at(68.5), 3);
        window.take_back(second, 10);
        assert_eq!(window.sum(at(68.5)), 3, "the amount of a later second in the same place stays");
    }

    /// Against a list of all amounts.
    #[test]
    fn it_is_the_sum_of_the_last_minute() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut window, mut all, mut now) = (Window::default(), Vec::new(), 0);
        for _ in 0..2000 {
            let most = if random.u8(..) < 5 { 200 } else { 4 };
            now += random.u64(0..most);
            let counts = all.iter().filter(|&&(second, _): &&(u64, u64)| second + SECONDS >= now);
            let expected: u64 = counts.map(|&(_, amount)| amount).sum();
            assert_eq!(window.sum(Duration::from_secs(now)), expected, "at {now}");
            let amount = random.u64(0..50);
            window.add(Duration::from_secs(now), amount);
            all.push((now, amount));
        }
    }
}
