//! The pull requests that the broker holds for one puller: how many messages they may still bring. Pure.
//!
//! A delivered message does not tell which request it serves, so it counts for the oldest. The broker serves its open
//! requests in turn, so single counts may be wrong; the sum is right, because the end of a request says how many
//! messages it did not get.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a pull request stays with the broker at most. Short enough that one that got lost does not starve a worker, and that
/// a worker that leaves can wait for the end of the last one.
pub const PULL_EXPIRES: Duration = Duration::from_secs(1);

/// How much longer than that its end is awaited before it counts as lost.
const EXPIRY_SLACK: Duration = Duration::from_secs(1);

/// Open pull requests, oldest first.
#[derive(Debug, Default)]
pub struct Pulls {
    open: VecDeque<Pull>,
    made: u64,
}

#[derive(Debug)]
struct Pull {
    number: u64,
    outstanding: usize,
    lost_after: Instant,
}

// === impl Pulls ===

impl Pulls {
    /// How many more messages to ask for when there is room for `room`: those not asked for yet, once they are worth a
    /// request. 0 is none.
    pub fn missing(&self, room: usize) -> usize {
        let outstanding = self.outstanding();
        let missing = room.saturating_sub(outstanding);
        match outstanding > 0 && missing < room.div_ceil(4) {
            true => 0,
            false => missing,
        }
    }

    /// The number of the request that is made next.
    pub fn upcoming(&self) -> u64 {
        self.made + 1
    }

    /// Notes a request for `count` messages, made now. Returns its number.
    pub fn ask(&mut self, count: usize, now: Instant) -> u64 {
        self.made += 1;
        let lost_after = now + PULL_EXPIRES + EXPIRY_SLACK;
        self.open.push_back(Pull { number: self.made, outstanding: count, lost_after });
        self.made
    }

    /// A message came.
    pub fn delivered(&mut self) {
        self.discount(1);
    }

    /// Whether request `number` is open.
    pub fn is_open(&self, number: u64) -> bool {
        self.open.iter().any(|pull| pull.number == number)
    }

    /// The broker ended request `number`, `unserved` messages short; when it does not say how many, all that are open.
    pub fn ended(&mut self, number: u64, unserved: Option<usize>) {
        let position = self.open.iter().position(|pull| pull.number == number);
        let counted = position.map_or(0, |position| self.open[position].outstanding);
        let unserved = unserved.unwrap_or(counted);
        let Some(position) = position else { return self.discount(unserved) };
        if unserved < counted {
            // Messages that served it were counted for older requests: those are still owed as many. Where none is
            // left in the books, this entry stands in for them until it counts as lost.
            let owed = counted - unserved;
            match (0..self.open.len()).find(|&other| other != position) {
                Some(other) => self.open[other].outstanding += owed,
                None => return self.open[position].outstanding = owed,
            }
        }
        self.open.remove(position);
        self.discount(unserved.saturating_sub(counted));
    }

    /// Forgets requests whose end got lost.
    pub fn forget_lost(&mut self, now: Instant) {
        self.open.retain(|pull| pull.lost_after > now);
    }

    /// When the next request counts as lost.
    pub fn next_loss(&self) -> Option<Instant> {
        self.open.iter().map(|pull| pull.lost_after).min()
    }

    /// Forgets all: the broker knows nothing of them any more.
    pub fn clear(&mut self) {
        self.open.clear();
    }

    /// How many messages may still come.
    pub fn outstanding(&self) -> usize {
        self.open.iter().map(|pull| pull.outstanding).sum()
    }

    fn discount(&mut self, mut count: usize) {
        while let Some(pull) = self.open.front_mut() {
            let taken = count.min(pull.outstanding);
            pull.outstanding -= taken;
            count -= taken;
            if pull.outstanding > 0 {
                return;
            }
            self.open.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_room_that_is_not_asked_for_and_worth_it_is_asked_for() {
        let mut pulls = Pulls::default();
        assert_eq!(pulls.missing(8), 8);
        pulls.ask(8, Instant::now());
        assert_eq!(pulls.missing(8), 0);
        assert_eq!(pulls.missing(9), 0, "one more is not worth a request");
        pulls.delivered();
        assert_eq!(pulls.missing(8), 0);
        pulls.delivered();
        assert_eq!(pulls.missing(8), 2);
        assert_eq!(pulls.missing(6), 0);
    }

    #[test]
    fn a_request_that_ends_short_is_no_longer_counted() {
        let mut pulls = Pulls::default();
        let number = pulls.ask(5, Instant::now());
        pulls.delivered();
        pulls.ended(number, Some(4));
        assert_eq!(pulls.missing(5), 5);
        let number = pulls.ask(5, Instant::now());
        pulls.ended(number, None);
        assert_eq!(pulls.missing(5), 5);
    }

    #[test]
    fn a_request_whose_end_got_lost_is_forgotten() {
        let mut pulls = Pulls::default();
        let now = Instant::now();
        pulls.ask(1, now);
        let lost = pulls.next_loss().unwrap();
        assert!(lost > now + PULL_EXPIRES);
        pulls.forget_lost(lost - Duration::from_millis(1));
        assert_eq!(pulls.missing(1), 0);
        pulls.forget_lost(lost);
        assert_eq!((pulls.missing(1), pulls.next_loss()), (1, None));
    }

    proptest! {
        /// A broker that serves any open request next, and ends any of them early.
        #[test]
        fn the_sum_is_right_whichever_request_is_served(steps in prop::collection::vec((0u8..3, 1usize..5), 0..60)) {
            let (mut pulls, mut broker) = (Pulls::default(), Vec::<(u64, usize)>::new());
            for (kind, choice) in steps {
                let chosen = choice % broker.len().max(1);
                match kind {
                    0 => broker.push((pulls.ask(choice, Instant::now()), choice)),
                    1 if !broker.is_empty() => {
                        pulls.delivered();
                        broker[chosen].1 -= 1;
                        broker.retain(|(_, left)| *left > 0);
                    }
                    2 if !broker.is_empty() => {
                        let (number, left) = broker.remove(chosen);
                        pulls.ended(number, Some(left));
                    }
                    _ => {}
                }
                prop_assert_eq!(pulls.outstanding(), broker.iter().map(|(_, left)| left).sum::<usize>());
            }
        }
    }
}
