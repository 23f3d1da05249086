//! Counts, and the hours that they belong to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trireme_inference::{Lane, Name, UnixMicros};

/// Most owners, models and lanes of an hour. Further ones are counted together.
const MOST_KEYS: usize = 2000;

/// The owner of counts that belong to nobody in particular, because there are too many owners.
pub const OTHERS: &str = "(others)";

/// Most hours whose counts wait for a store that takes none. The counts of older ones are then those of a later hour.
const MOST_HOURS: usize = 100;

/// Microseconds of an hour.
const MICROS: u64 = 3_600_000_000;

/// An hour, counted from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hour(pub u64);

/// The owner, the model and the lane of counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub owner: Name,
    pub model: Name,
    pub lane: Name,
}

/// Counts by owner, model and lane.
pub type Table = BTreeMap<Key, Counts>;

/// The counts of an owner, a model and a lane from one hour on.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The first hour.
    pub start: u64,
    /// The owner, the model and the lane.
    pub key: Key,
    /// The counts.
    pub counts: Counts,
}

/// The owner, the model and the lane of a request.
#[derive(Clone, Copy, Debug)]
pub struct Used<'a> {
    /// The name of the owner.
    pub owner: &'a str,
    /// The model that was asked for.
    pub model: &'a str,
    /// The lane.
    pub lane: Lane,
}

/// Amounts of usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Requests that have begun.
    pub requests: u64,
    /// Requests of those that have failed, or whose client has left.
    pub errors: u64,
    /// Requests that a limit of the owner has refused; they have not begun.
    pub refused: u64,
    /// Requests for which nothing was computed: the response cache had the answer, whose tokens are then 0, or the text cache had each text.
    pub cached: u64,
    /// Rows of requests that were answered.
    pub rows: u64,
    /// Tokens of requests that were answered.
    pub tokens: u64,
    /// The part of those tokens that is of texts which the text cache had.
    pub cached_tokens: u64,
    /// Model time of requests that were answered, in microseconds: of a batch the part of their rows.
    pub compute_us: u64,
}

/// The counts of this process that are not written, or may grow.
#[derive(Debug, Default)]
pub struct Hours(BTreeMap<Hour, OneHour>);

#[derive(Debug, Default)]
struct OneHour {
    table: Table,
    has_changed: bool,
}

// === impl Hour ===

impl Hour {
    /// The hour of a time.
    pub fn of(time: UnixMicros) -> Hour {
        Hour(time.0 / MICROS)
    }
}

// === impl Used ===

impl Used<'_> {
    /// The name of the lane.
    pub fn lane(&self) -> &'static str {
        Lane::ALL.into_iter().find(|(lane, _)| *lane == self.lane).map_or("", |(_, name)| name)
    }
}

// === impl Counts ===

impl Counts {
    /// Adds others.
    pub fn add(&mut self, other: &Counts) {
        let Counts { requests, errors, refused, cached, rows, tokens, cached_tokens, compute_us } = self;
        for (own, other) in [
            (requests, other.requests),
            (errors, other.errors),
            (refused, other.refused),
            (cached, other.cached),
            (rows, other.rows),
            (tokens, other.tokens),
            (cached_tokens, other.cached_tokens),
            (compute_us, other.compute_us),
        ] {
            *own = own.saturating_add(other);
        }
    }
}

// === impl Hours ===

impl Hours {
    /// Counts a request that has ended in this hour.
    pub fn add(&mut self, hour: Hour, used: &Used<'_>, counts: &Counts) {
        let OneHour { table, has_changed } = self.0.entry(hour).or_default();
        *has_changed = true;
        let key = |owner: &str| Key { owner: owner.into(), model: used.model.into(), lane: used.lane().into() };
        let own = key(used.owner);
        let key = if table.len() < MOST_KEYS || table.contains_key(&own) { own } else { key(OTHERS) };
        table.entry(key).or_default().add(counts);
        while self.0.len() > MOST_HOURS
            && let Some((_, oldest)) = self.0.pop_first()
            && let Some(mut next) = self.0.first_entry()
        {
            let next = next.get_mut();
            next.has_changed = true;
            oldest.table.into_iter().for_each(|(key, counts)| next.table.entry(key).or_default().add(&counts));
        }
    }

    /// The hours to write.
    pub fn changed(&self) -> Vec<(Hour, Table)> {
        let changed = self.0.iter().filter(|(_, one)| one.has_changed);
        changed.map(|(&hour, one)| (hour, one.table.clone())).collect()
    }

    /// Notes that the store has `table` for this hour. The counts of an hour that is over are then forgotten.
    pub fn written(&mut self, hour: Hour, table: &Table, now: Hour) {
        let Some(one) = self.0.get_mut(&hour) else { return };
        one.has_changed = one.table != *table;
        // A clock may have been set back: a record is forgotten when it can no longer grow.
        if !one.has_changed && hour.0 + 1 < now.0 {
            self.0.remove(&hour);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: Used<'static> = Used { owner: "alice", model: "m", lane: Lane::Live };

    fn tokens(tokens: u64) -> Counts {
        Counts { tokens, requests: 1, ..Counts::default() }
    }

    #[test]
    fn counts_of_an_hour_are_written_until_it_is_over() {
        let mut hours = Hours::default();
        hours.add(Hour(5), &USED, &tokens(3));
        let first = hours.changed();
        assert_eq!((first.len(), first[0].0), (1, Hour(5)));
        // Meanwhile there is more.
        hours.add(Hour(5), &USED, &tokens(4));
        hours.written(Hour(5), &first[0].1, Hour(5));
        let second = hours.changed();
        let counts: Vec<_> = second[0].1.values().collect();
        assert_eq!(
            counts,
            [&Counts { tokens: 7, requests: 2, ..Counts::default() }],
            "a record is replaced by a larger one"
        );
        hours.written(Hour(5), &second[0].1, Hour(5));
        assert!(hours.changed().is_empty());
        hours.add(Hour(5), &USED, &tokens(1));
        assert_eq!(hours.changed()[0].1.values().next().unwrap().tokens, 8);
        let third = hours.changed();
        hours.written(Hour(5), &third[0].1, Hour(7));
        assert!(hours.0.is_empty());
    }

    #[test]
    fn too_many_owners_and_hours_are_counted_together() {
        let mut hours = Hours::default();
        for owner in 0..MOST_KEYS + 5 {
            hours.add(Hour(1), &Used { owner: &owner.to_string(), ..USED }, &tokens(1));
        }
        hours.add(Hour(1), &Used { owner: "0", ..USED }, &tokens(1));
        let table = &hours.changed()[0].1;
        assert_eq!(table.len(), MOST_KEYS + 1);
        let of = |owner: &str| table.iter().find(|(key, _)| key.owner.as_str() == owner).unwrap().1.tokens;
        assert_eq!((of(OTHERS), of("0")), (5, 2));
        let mut hours = Hours::default();
        for hour in 0..MOST_HOURS as u64 + 10 {
            hours.add(Hour(hour), &USED, &tokens(1));
        }
        let changed = hours.changed();
        assert_eq!(changed.len(), MOST_HOURS);
        assert_eq!(changed.iter().flat_map(|(_, table)| table.values()).map(|counts| counts.tokens).sum::<u64>(), 110);
    }
}
