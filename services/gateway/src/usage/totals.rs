//! Counts since the process began, for metrics: of a bounded number of owners.

use std::collections::HashSet;

use trireme_inference::Name;

use super::counts::{Counts, Key, Table, Used};

/// Owners with metrics of their own: the first ones that have asked for something.
const MOST_OWNERS: usize = 50;

/// The name of all others in metrics.
const OTHER: &str = "other";

/// The counts.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    owners: HashSet<Name>,
    table: Table,
}

// === impl Totals ===

impl Totals {
    /// Counts a request.
    pub fn add(&mut self, used: &Used<'_>, counts: &Counts) {
        if self.owners.len() < MOST_OWNERS && !self.owners.contains(used.owner) {
            self.owners.insert(used.owner.into());
        }
        let owner = self.owners.get(used.owner).cloned().unwrap_or_else(|| OTHER.into());
        let key = Key { owner, model: used.model.into(), lane: used.lane().into() };
        self.table.entry(key).or_default().add(counts);
    }

    /// The labels of each series, and its counts.
    pub fn series(&self) -> impl Iterator<Item = ([(&str, &str); 3], &Counts)> {
        self.table.iter().map(|(Key { owner, model, lane }, counts)| {
            ([("lane", lane.as_str()), ("model", model.as_str()), ("owner", owner.as_str())], counts)
        })
    }
}

#[cfg(test)]
mod tests {
    use trireme_inference::Lane;

    use super::*;

    #[test]
    fn owners_have_a_bound() {
        let mut totals = Totals::default();
        let counts = Counts { tokens: 1, ..Counts::default() };
        for round in 0..2 {
            for owner in 0..MOST_OWNERS + 10 {
                let owner = owner.to_string();
                totals.add(&Used { owner: &owner, model: "m", lane: Lane::Live }, &counts);
            }
            let of =
                |name: &str| totals.series().find(|(labels, _)| labels[2].1 == name).map(|(_, counts)| counts.tokens);
            assert_eq!(totals.series().count(), MOST_OWNERS + 1);
            assert_eq!((of(OTHER), of("0")), (Some(10 * (round + 1)), Some(round + 1)));
        }
    }
}
