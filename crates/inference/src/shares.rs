//! The order in which owners are served: whose request of a lane is next. Pure.
//!
//! Each owner has a *stand*: the cost of its served requests, divided by its weight. The waiting owner with the lowest stand is next. So two
//! owners that always wait get costs in the ratio of their weights, up to one request each. That is the share of a deficit round robin whose
//! rounds are as short as they can be.
//!
//! Idle time is not saved up. An owner that begins to wait has at least the stand of the owner that was served last, so it gets its share from
//! then on, and none for the time before. An owner alone is always next.
//!
//! Not here: the order of one owner's requests, and which of them run together.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use serde::{Deserialize, Serialize};

use crate::Name;

/// The most stands that are kept. Beyond it all owners begin anew.
const MOST: usize = 1024;

/// The owner of a request, as far as the order of requests depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The name of the owner of a key; empty where no key is asked for.
    pub name: Name,
    /// The owner's part beside the weights of the other owners that wait, at least 1.
    pub weight: u32,
}

/// The stands of owners in one lane of one queue.
///
/// ```
/// use trireme_inference::{Owner, Shares};
///
/// let (small, large) = (Owner::new("small", 1), Owner::new("large", 4));
/// let mut shares = Shares::default();
/// let mut served = [0, 0];
/// for _ in 0..100 {
///     // Both always wait, with requests of 10 tokens.
///     let next = shares.next([&small, &large]).expect("somebody waits");
///     let owner = [&small, &large][next];
///     shares.serve([&small, &large], [(owner, 10.0)]);
///     served[next] += 1;
/// }
/// assert_eq!(served, [20, 80]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Shares {
    stands: HashMap<Name, f64>,
    /// The lowest stand of an owner that begins to wait now.
    now: f64,
}

/// A waiting owner in the order of stands.
struct Stand {
    at: f64,
    /// Its place in the list of owners.
    owner: usize,
}

// === impl Owner ===

impl Owner {
    /// An owner with this weight; 0 counts as 1.
    pub fn new(name: impl Into<Name>, weight: u32) -> Owner {
        Owner { name: name.into(), weight: weight.max(1) }
    }
}

impl Default for Owner {
    fn default() -> Owner {
        Owner::new(Name::default(), 1)
    }
}

// === impl Shares ===

impl Shares {
    fn stand(&self, owner: &Owner) -> f64 {
        self.stands.get(&owner.name).map_or(self.now, |stand| stand.max(self.now))
    }

    /// The place in `waiting` of the owner whose turn it is; of two with equal stands the first one. `None` if nobody waits.
    pub fn next<'a>(&self, waiting: impl IntoIterator<Item = &'a Owner>) -> Option<usize> {
        let stands = waiting.into_iter().enumerate().map(|(owner, waits)| Stand { at: self.stand(waits), owner });
        // The greatest of a heap is the lowest stand.
        stands.max().map(|stand| stand.owner)
    }

    /// The owners of `waiting` in the order of their turns, as places: so many of them go before the one that asks.
    pub fn ranked<'a>(&self, waiting: impl IntoIterator<Item = &'a Owner>) -> Vec<usize> {
        let stands = waiting.into_iter().enumerate().map(|(owner, waits)| Stand { at: self.stand(waits), owner });
        let mut stands: Vec<_> = stands.collect();
        stands.sort_by(|one, other| other.cmp(one));
        stands.into_iter().map(|stand| stand.owner).collect()
    }

    /// Requests of these owners with these costs are served together, while the owners of `waiting` wait, their own among them or not.
    pub fn serve<'a>(
        &mut self,
        waiting: impl IntoIterator<Item = &'a Owner>,
        served: impl IntoIterator<Item = (&'a Owner, f64), IntoIter: Clone>,
    ) {
        let served = served.into_iter();
        let owners = waiting.into_iter().chain(served.clone().map(|(owner, _)| owner));
        let lowest = owners.map(|owner| self.stand(owner)).reduce(f64::min);
        self.now = self.now.max(lowest.unwrap_or(self.now));
        for (owner, cost) in served {
            self.add(owner, cost);
        }
        // Everybody else begins at `now` anyway.
        let now = self.now;
        self.stands.retain(|_, stand| *stand > now);
        if self.stands.len() > MOST {
            self.now = self.stands.drain().fold(now, |most, (_, stand)| most.max(stand));
        }
    }

    /// More of a served request's cost is known, or less where this is negative.
    pub fn add(&mut self, owner: &Owner, cost: f64) {
        let stand = self.stand(owner) + cost / f64::from(owner.weight.max(1));
        match self.stands.get_mut(&owner.name) {
            Some(own) => *own = stand,
            None => drop(self.stands.insert(owner.name.clone(), stand)),
        }
    }

    /// The requests that are next, until `enough` says so of those so far: places in `waiting`, whose order is that of each owner's requests.
    /// At least one if there are any. Requests of owners that are further than `lead` ahead of the first are not among them. Nothing is served
    /// by this.
    pub fn first<'a>(
        &self,
        waiting: impl IntoIterator<Item = (&'a Owner, f64)>,
        lead: f64,
        mut enough: impl FnMut(usize) -> bool,
    ) -> Vec<usize> {
        let mut places: HashMap<&Name, usize> = HashMap::new();
        // For each owner its requests, the last one first, with their costs over its weight.
        let mut owners: Vec<Vec<(usize, f64)>> = Vec::new();
        let mut heap = BinaryHeap::new();
        for (index, (owner, cost)) in waiting.into_iter().enumerate() {
            let place = *places.entry(&owner.name).or_insert_with(|| {
                heap.push(Stand { at: self.stand(owner), owner: owners.len() });
                owners.push(Vec::new());
                owners.len() - 1
            });
            owners[place].push((index, cost / f64::from(owner.weight.max(1))));
        }
        owners.iter_mut().for_each(|requests| requests.reverse());
        let mut first = Vec::new();
        let last = heap.peek().map_or(0.0, |stand| stand.at + lead);
        while let Some(Stand { at, owner }) = heap.pop() {
            // All others are at least as far ahead.
            if at > last {
                break;
            }
            let Some((index, cost)) = owners[owner].pop() else { continue };
            first.push(index);
            if enough(index) {
                break;
            }
            heap.push(Stand { at: at + cost, owner });
        }
        first
    }
}

// === impl Stand ===

impl Ord for Stand {
    /// The lowest stand is the greatest; of equal ones the one that came first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.owner.cmp(&self.owner))
    }
}

impl PartialOrd for Stand {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Stand {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Stand {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Serves requests for so much cost while all these owners wait. `cost` gives the cost of an owner's next request. Returns each one's sum.
    fn served(shares: &mut Shares, owners: &[Owner], most: f64, mut cost: impl FnMut(usize) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; owners.len()];
        while sums.iter().sum::<f64>() < most {
            let next = shares.next(owners).unwrap();
            let cost = cost(next);
            shares.serve(owners, [(&owners[next], cost)]);
            sums[next] += cost;
        }
        sums
    }

    /// Jain's index: 1 when all have the same, 1/n when one has all.
    fn jain(sums: &[f64]) -> f64 {
        sums.iter().sum::<f64>().powi(2) / (sums.len() as f64 * sums.iter().map(|sum| sum * sum).sum::<f64>())
    }

    fn owners(weights: &[u32]) -> Vec<Owner> {
        weights.iter().enumerate().map(|(number, &weight)| Owner::new(format!("owner {number}"), weight)).collect()
    }

    /// A minute of a model that serves 10 000 tokens in a second, for owners with requests from 1 to 500 tokens.
    #[test]
    fn ten_equal_owners_get_the_same_over_a_minute() {
        let mut random = fastrand::Rng::with_seed(3);
        let sums = served(&mut Shares::default(), &owners(&[1; 10]), 600_000.0, |owner| {
            1.0 + random.u64(0..50 * (owner as u64 + 1)) as f64
        });
        assert!(jain(&sums) > 0.999, "{sums:?}");
    }

    #[test]
    fn an_owner_alone_is_always_next_and_its_past_is_not_held_against_it() {
        let (mut shares, owners) = (Shares::default(), owners(&[1, 1]));
        for _ in 0..100 {
            assert_eq!(shares.next(&owners[..1]), Some(0));
            shares.serve(&owners[..1], [(&owners[0], 1000.0)]);
        }
        // From now on both wait.
        let sums = served(&mut shares, &owners, 10_000.0, |_| 10.0);
        assert!(sums[0] >= 4_000.0 && sums[1] >= 4_000.0, "{sums:?}");
    }

    #[test]
    fn stands_of_owners_that_wait_no_more_are_forgotten() {
        let (mut shares, owners) = (Shares::default(), owners(&[1, 1]));
        shares.serve(&owners, [(&owners[0], 10.0)]);
        for _ in 0..20 {
            shares.serve(&owners[1..], [(&owners[1], 1.0)]);
        }
        assert!(!shares.stands.contains_key(&owners[0].name));
    }

    #[test]
    fn stands_are_bounded() {
        let mut shares = Shares::default();
        for number in 0..10_000 {
            let owner = Owner::new(format!("owner {number}"), 1);
            shares.serve([&owner], [(&owner, 1.0)]);
        }
        assert!(shares.stands.len() <= MOST, "{}", shares.stands.len());
    }

    proptest! {
        /// Whatever the costs: no two owners that always wait differ by more than the most costly request of each, over their weights.
        #[test]
        fn owners_that_wait_get_costs_by_their_weights(
            weights in proptest::collection::vec(1u32..9, 2..8),
            costs in proptest::collection::vec(1u32..1000, 50..200),
            others in 0u32..5000,
        ) {
            let owners = owners(&weights);
            let (mut shares, mut next) = (Shares::default(), costs.iter().cycle());
            // The first owner was alone for a while.
            shares.serve(&owners[..1], [(&owners[0], others.into())]);
            shares.serve(&owners[..1], [(&owners[0], others.into())]);
            let ahead = shares.stand(&owners[0]) - shares.now;
            let sums = served(&mut shares, &owners, 200_000.0, |_| f64::from(*next.next().unwrap()));
            let by_weight: Vec<f64> =
                sums.iter().zip(&weights).map(|(sum, weight)| sum / f64::from(*weight)).collect();
            for (index, one) in by_weight.iter().enumerate() {
                for other in &by_weight {
                    let most = 1000.0 + if index == 0 { 0.0 } else { ahead };
                    prop_assert!(one - other <= most + 1e-6, "{by_weight:?}, ahead {ahead}");
                }
            }
        }

        /// The first requests are those that one by one would be served, and an owner's own keep their order.
        #[test]
        fn what_is_first_is_what_would_be_served(
            waiting in proptest::collection::vec((0usize..4, 1u32..100), 1..60),
            before in proptest::collection::vec((0usize..4, 1u32..100), 0..20),
            most in 1usize..70,
        ) {
            let owners = owners(&[1, 2, 3, 7]);
            let mut shares = Shares::default();
            for (owner, cost) in before {
                shares.serve(&owners, [(&owners[owner], cost.into())]);
            }
            let mut count = 0;
            let asked = waiting.iter().map(|(owner, cost)| (&owners[*owner], f64::from(*cost)));
            let first = shares.first(asked, f64::INFINITY, |_| {
                count += 1;
                count == most
            });
            prop_assert_eq!(first.len(), most.min(waiting.len()));
            let mut left: Vec<usize> = (0..waiting.len()).collect();
            for index in first {
                let place = shares.next(left.iter().map(|&index| &owners[waiting[index].0])).unwrap();
                let next = left[place];
                let oldest = left.iter().copied().find(|&other| waiting[other].0 == waiting[next].0).unwrap();
                // Owners with equal stands may come in either order.
                let (own, its) = (shares.stand(&owners[waiting[index].0]), shares.stand(&owners[waiting[next].0]));
                prop_assert!(index == oldest || (own - its).abs() < 1e-9, "{index} before {oldest}");
                shares.add(&owners[waiting[index].0], waiting[index].1.into());
                left.retain(|&other| other != index);
            }
        }
    }
}
