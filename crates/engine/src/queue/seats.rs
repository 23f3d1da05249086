//! The owners of the requests that wait in a lane, and which requests the batch policy sees.
//!
//! While all waiting requests are of one owner, the policy sees all of them, and nothing is counted. While several owners wait, it sees the
//! requests whose turn it is ([`Shares`]): enough for two of its largest batches, so that it can still put requests together that fit. It may
//! run any of these, and begins with the first. Costs are counted for the requests that run, so an owner whose requests are passed over comes
//! first in the next batches.
//!
//! A policy may prefer requests of an owner that is ahead of the others. It sees no more of them when that owner is two batches ahead.
//!
//! An owner's own requests have their turns by priority, then by deadline, then by age.

use std::time::{Duration, Instant};

use trireme_inference::{Name, Owner, Shares, UnixMicros};

use crate::batching::{Candidate, Description};

/// How long costs are counted after several owners have waited.
const CONTEST: Duration = Duration::from_secs(60);

/// Fewest live requests that a worker may hold while several owners have requests.
const HELD: usize = 512;

/// How many of the policy's largest batches it sees, where its batches have several rows.
const BATCHES: u32 = 2;

/// The owner and the deadline of a waiting request.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The owner of the request.
    pub owner: Owner,
    /// When it has to be answered.
    pub deadline: UnixMicros,
}

/// The seats of a lane's requests, in the order of the requests.
#[derive(Default)]
pub(super) struct Seats {
    seats: Vec<Seat>,
    /// Whether they are of several owners.
    mixed: bool,
    /// The owner of the last request.
    last: Option<Name>,
    shares: Shares,
    /// Until when costs are counted.
    contested: Option<Instant>,
}

// === impl Seat ===

impl Default for Seat {
    fn default() -> Seat {
        Seat { owner: Owner::default(), deadline: UnixMicros::NEVER }
    }
}

// === impl Seats ===

impl Seats {
    /// Adds a request behind all others. If several owners have requests now, returns until when that counts: their requests wait together,
    /// or this one waits for a run (`busy`) and the previous one was another owner's. A worker that holds only the next request would never
    /// see two owners wait.
    pub fn push(&mut self, seat: Seat, busy: bool, now: Instant) -> Option<Instant> {
        self.mixed = self.mixed || self.seats.first().is_some_and(|first| first.owner.name != seat.owner.name);
        let follows_another = self.last.as_ref().is_some_and(|last| *last != seat.owner.name);
        if self.last.is_none() || follows_another {
            self.last = Some(seat.owner.name.clone());
        }
        self.seats.push(seat);
        let several = self.mixed || (busy && follows_another);
        if several {
            self.contested = Some(now + CONTEST);
        }
        self.contested.filter(|_| several)
    }

    /// Adds a request that is taken out at once.
    pub fn push_front(&mut self) {
        self.seats.insert(0, Seat::default());
    }

    /// Removes requests.
    pub fn remove(&mut self, indices: &[usize]) {
        match *indices {
            [index] => drop(self.seats.remove(index)),
            _ if indices.iter().copied().eq(0..indices.len()) => drop(self.seats.drain(..indices.len())),
            _ => {
                let mut gone = vec![false; self.seats.len()];
                indices.iter().for_each(|&index| gone[index] = true);
                let mut gone = gone.into_iter();
                self.seats.retain(|_| !gone.next().unwrap_or_default());
            }
        }
        if self.mixed {
            let mut names = self.seats.iter().map(|seat| &seat.owner.name);
            let first = names.next();
            self.mixed = first.is_some_and(|first| names.any(|name| name != first));
        }
    }

    /// The most requests of the lane that a worker holds which usually holds so many.
    pub fn most(&self, usual: usize) -> usize {
        if self.contested.is_some() { usual.max(HELD) } else { usual }
    }

    /// Counts requests that are executed now, before they are removed.
    pub fn serve(&mut self, indices: &[usize], candidates: &[Candidate], now: Instant) {
        if !self.mixed && self.contested.is_none_or(|until| until < now) {
            if self.contested.take().is_some() {
                self.shares = Shares::default();
            }
            return;
        }
        let seats = &self.seats;
        let served = indices.iter().map(|&index| (&seats[index].owner, cost(&candidates[index].description)));
        self.shares.serve(seats.iter().map(|seat| &seat.owner), served);
    }

    /// The requests that a policy sees whose largest batch has so many rows, in the order of their turns; `None` if it sees all of them, in
    /// the order of their arrival.
    pub fn view(&self, candidates: &[Candidate], max_rows: u32) -> Option<Vec<usize>> {
        if !self.mixed {
            return None;
        }
        let most = if max_rows > 1 { max_rows.saturating_mul(BATCHES) } else { 1 };
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|&index| (candidates[index].priority, self.seats[index].deadline));
        let costs = || candidates.iter().map(|candidate| cost(&candidate.description));
        let lead = f64::from(most) * costs().sum::<f64>() / candidates.len().max(1) as f64;
        let waiting = order.iter().map(|&index| (&self.seats[index].owner, cost(&candidates[index].description)));
        let mut rows = 0u32;
        let first = self.shares.first(waiting, lead, |place| {
            rows = rows.saturating_add(candidates[order[place]].description.rows.max(1));
            rows >= most
        });
        let mut view: Vec<usize> = first.into_iter().map(|place| order[place]).collect();
        // A policy prefers the highest level, which may be another owner's.
        let level = view.first().map(|&index| candidates[index].priority);
        view.retain(|&index| Some(candidates[index].priority) == level);
        Some(view)
    }
}

/// The cost of a request.
fn cost(description: &Description) -> f64 {
    description.tokens() as f64
}

#[cfg(test)]
mod tests;
