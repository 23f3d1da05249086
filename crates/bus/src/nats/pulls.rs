//! The pull requests that the broker holds for one consumer, and how many messages they may still bring. Without I/O.
//!
//! A delivered message does not say which request it serves, so it is counted for the oldest. The broker serves its
//! open requests in turn, so single counts may be wrong. The sum is right, because the end of a request says how many
//! messages are missing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a pull request of a busy worker stays with the broker. It is short, so that a lost request does not starve the
/// worker for long, and so that a worker that stops can wait for the end of its last request. Each request that ends
/// without a message doubles the time of the next one, because idle workers cause most of a broker's load in a large
/// deployment.
pub const PULL_EXPIRES: Duration = Duration::from_secs(1);

/// The longest time that a pull request stays with the broker.
const LONGEST_EXPIRES: Duration = Duration::from_secs(30);

/// How often a cluster confirms that it still holds a pull request. When the node that leads a consumer dies, no other
/// node knows the requests that it held, or says so. A broker that stands alone is not asked for heartbeats: when it loses
/// the requests, the worker's connection ends, or the broker says that the consumer is gone.
const HEARTBEAT: Duration = Duration::from_secs(4);

/// How much later its end or its next heartbeat may arrive before the request counts as lost.
const LOSS_SLACK: Duration = Duration::from_secs(1);

/// Open pull requests, oldest first.
#[derive(Debug)]
pub struct Pulls {
    open: VecDeque<Pull>,
    made: u64,
    expires: Duration,
}

#[derive(Debug)]
struct Pull {
    number: u64,
    outstanding: usize,
    lost_after: Instant,
}

// === impl Pulls ===

impl Default for Pulls {
    fn default() -> Self {
        Pulls { open: VecDeque::new(), made: 0, expires: PULL_EXPIRES }
    }
}

impl Pulls {
    /// How long the broker has to keep the next request.
    pub fn expires(&self) -> Duration {
        self.expires
    }

    /// How often a cluster has to confirm the next request. `None` if the request ends too soon for that: JetStream refuses
    /// heartbeats that are further apart than half of `expires`.
    pub fn heartbeat(&self) -> Option<Duration> {
        (self.expires >= HEARTBEAT * 2).then_some(HEARTBEAT)
    }

    /// How many more messages to ask for if there is room for `room`. Returns 0 if too few are missing to be worth a
    /// request.
    pub fn missing(&self, room: usize) -> usize {
        let outstanding = self.outstanding();
        let missing = room.saturating_sub(outstanding);
        match outstanding > 0 && missing < room.div_ceil(2) {
            true => 0,
            false => missing,
        }
    }

    /// The number of the next request.
    pub fn upcoming(&self) -> u64 {
        self.made + 1
    }

    /// Adds a request for `count` messages, made now. Its end or its first heartbeat comes `within` this time. Returns its
    /// number.
    pub fn ask(&mut self, count: usize, within: Duration, now: Instant) -> u64 {
        self.made += 1;
        let lost_after = now + within + LOSS_SLACK;
        self.open.push_back(Pull { number: self.made, outstanding: count, lost_after });
        self.made
    }

    /// Counts a message that came.
    pub fn delivered(&mut self) {
        self.expires = PULL_EXPIRES;
        self.discount(1);
    }

    /// Whether request `number` is open.
    pub fn is_open(&self, number: u64) -> bool {
        self.open.iter().any(|pull| pull.number == number)
    }

    /// Counts the end of request `number`, which `unserved` messages did not reach. `None` means all that were still
    /// open.
    pub fn ended(&mut self, number: u64, unserved: Option<usize>) {
        let position = self.open.iter().position(|pull| pull.number == number);
        let counted = position.map_or(0, |position| self.open[position].outstanding);
        let unserved = unserved.unwrap_or(counted);
        let Some(position) = position else { return self.discount(unserved) };
        if unserved < counted {
            // Messages that served this request were counted for older ones, so those still expect as many. If there is
            // no other request, this entry stays for them until it counts as lost.
            let owed = counted - unserved;
            match (0..self.open.len()).find(|&other| other != position) {
                Some(other) => self.open[other].outstanding += owed,
                None => return self.open[position].outstanding = owed,
            }
        }
        self.open.remove(position);
        self.discount(unserved.saturating_sub(counted));
    }

    /// The time of a request ended before a message came.
    pub fn expired(&mut self) {
        self.expires = (self.expires * 2).min(LONGEST_EXPIRES);
    }

    /// The broker confirmed request `number` by a heartbeat.
    pub fn confirmed(&mut self, number: u64, now: Instant) {
        if let Some(pull) = self.open.iter_mut().find(|pull| pull.number == number) {
            pull.lost_after = now + HEARTBEAT + LOSS_SLACK;
        }
    }

    /// Forgets requests whose end got lost.
    pub fn forget_lost(&mut self, now: Instant) {
        self.open.retain(|pull| pull.lost_after > now);
    }

    /// When the next request counts as lost.
    pub fn next_loss(&self) -> Option<Instant> {
        self.open.iter().map(|pull| pull.lost_after).min()
    }

    /// Forgets all requests, because the broker has forgotten them.
    pub fn clear(&mut self) {
        self.open.clear();
        self.expires = PULL_EXPIRES;
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
        pulls.ask(8, PULL_EXPIRES, Instant::now());
        assert_eq!(pulls.missing(8), 0);
        assert_eq!(pulls.missing(9), 0, "one more is not worth a request");
        (0..3).for_each(|_| pulls.delivered());
        assert_eq!(pulls.missing(8), 0);
        pulls.delivered();
        assert_eq!(pulls.missing(8), 4);
        assert_eq!(pulls.missing(4), 0);
    }

    #[test]
    fn a_request_that_ends_short_is_no_longer_counted() {
        let mut pulls = Pulls::default();
        let number = pulls.ask(5, PULL_EXPIRES, Instant::now());
        pulls.delivered();
        pulls.ended(number, Some(4));
        assert_eq!(pulls.missing(5), 5);
        let number = pulls.ask(5, PULL_EXPIRES, Instant::now());
        pulls.ended(number, None);
        assert_eq!(pulls.missing(5), 5);
    }

    #[test]
    fn a_request_whose_end_got_lost_is_forgotten() {
        let mut pulls = Pulls::default();
        let now = Instant::now();
        pulls.ask(1, PULL_EXPIRES, now);
        let lost = pulls.next_loss().unwrap();
        assert!(lost > now + PULL_EXPIRES);
        pulls.forget_lost(lost - Duration::from_millis(1));
        assert_eq!(pulls.missing(1), 0);
        pulls.forget_lost(lost);
        assert_eq!((pulls.missing(1), pulls.next_loss()), (1, None));
    }

    #[test]
    fn an_idle_worker_asks_less_and_less_often() {
        let mut pulls = Pulls::default();
        let mut next = || {
            let number = pulls.ask(1, pulls.expires(), Instant::now());
            let asked = (pulls.expires().as_secs(), pulls.heartbeat().map(|apart| apart.as_secs()));
            pulls.ended(number, Some(1));
            pulls.expired();
            asked
        };
        let beat = Some(HEARTBEAT.as_secs());
        assert_eq!(
            [(); 7].map(|()| next()),
            [(1, None), (2, None), (4, None), (8, beat), (16, beat), (30, beat), (30, beat)]
        );
        pulls.delivered();
        assert_eq!((pulls.expires(), pulls.heartbeat()), (PULL_EXPIRES, None));
    }

    #[test]
    fn a_request_without_heartbeats_is_forgotten_long_before_its_end() {
        let mut pulls = Pulls::default();
        let now = Instant::now();
        let number = pulls.ask(1, HEARTBEAT, now);
        pulls.confirmed(number, now + HEARTBEAT);
        pulls.confirmed(number + 1, now + HEARTBEAT * 2);
        assert_eq!(pulls.next_loss(), Some(now + HEARTBEAT * 2 + LOSS_SLACK));
        pulls.forget_lost(now + HEARTBEAT * 2 + LOSS_SLACK);
        assert_eq!(pulls.missing(1), 1);
    }

    proptest! {
        /// The broker may serve any open request next, and end any of them early.
        #[test]
        fn the_sum_is_right_whichever_request_is_served(steps in prop::collection::vec((0u8..3, 1usize..5), 0..60)) {
            let (mut pulls, mut broker) = (Pulls::default(), Vec::<(u64, usize)>::new());
            for (kind, choice) in steps {
                let chosen = choice % broker.len().max(1);
                match kind {
                    0 => broker.push((pulls.ask(choice, PULL_EXPIRES, Instant::now()), choice)),
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
