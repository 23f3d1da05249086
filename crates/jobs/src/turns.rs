//! The calls of a job, and their order: calls wait for room at their destination, and calls that were refused for the end of their
//! own pause. So a call that is refused again and again keeps no other one from its turn.
//!
//! Pure but for the shared pace: time is passed in.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

use trireme_inference::{Name, Owner};

use crate::pace::{Paces, REFUSED, Share, Slot};

/// The calls of a job that are not in flight.
pub(crate) struct Turns<T> {
    paces: Paces,
    lines: HashMap<(Name, Name), Line<T>>,
    /// Refused calls by the end of their pauses. The number tells those of one moment apart.
    refused: BTreeMap<(Instant, u64), Turn<T>>,
    next: u64,
}

/// The calls of one owner to one destination.
struct Line<T> {
    share: Share,
    turns: VecDeque<Waiting<T>>,
}

/// A call in its line. A hundred thousand may wait, so it has nothing that its line has.
struct Waiting<T> {
    item: T,
    bytes: u32,
    /// How often it was refused.
    refusals: u32,
}

/// A call and its destination.
pub(crate) struct Turn<T> {
    pub item: T,
    pub destination: Name,
    /// The owner of the call.
    pub owner: Owner,
    /// The bytes of its body, which are its part of what its owner is served. Those beyond `u32` are not counted.
    pub bytes: u32,
    /// How often it was refused.
    refusals: u32,
}

/// Ends at a time; without one never.
pub(crate) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

// === impl Turns ===

impl<T> Turns<T> {
    pub fn new(paces: &Paces) -> Turns<T> {
        Turns { paces: paces.clone(), lines: HashMap::new(), refused: BTreeMap::new(), next: 0 }
    }

    /// Adds a call behind its owner's others to the same destination. It costs its bytes.
    pub fn push(&mut self, destination: Name, owner: Owner, bytes: u64, item: T) {
        let bytes = u32::try_from(bytes.max(1)).unwrap_or(u32::MAX);
        self.wait(Turn { item, destination, owner, bytes, refusals: 0 });
    }

    /// Adds a call that was refused: it waits for its pause first, which is longer each time.
    pub fn push_refused(&mut self, turn: Turn<T>, now: Instant) {
        self.next += 1;
        let turn = Turn { refusals: turn.refusals.saturating_add(1), ..turn };
        self.refused.insert((now + REFUSED.scattered_after(turn.refusals), self.next), turn);
    }

    fn wait(&mut self, turn: Turn<T>) {
        let Turn { item, destination, owner, bytes, refusals } = turn;
        let paces = &self.paces;
        let line = self.lines.entry((destination, owner.name.clone())).or_insert_with_key(|(destination, _)| Line {
            share: paces.share(destination, &owner),
            turns: VecDeque::new(),
        });
        line.share.weighs(owner.weight);
        line.turns.push_back(Waiting { item, bytes, refusals });
    }

    /// Takes the next call that may begin now. It is in flight until its slot is dropped.
    pub fn begin(&mut self, now: Instant) -> Option<(Turn<T>, Slot)> {
        while let Some(first) = self.refused.first_entry().filter(|first| first.key().0 <= now) {
            let turn = first.remove();
            self.wait(turn);
        }
        self.lines.retain(|_, line| {
            if line.turns.is_empty() {
                line.share.wants_none();
            }
            !line.turns.is_empty() || line.share.running() > 0
        });
        self.lines.iter_mut().find_map(|((destination, _), line)| {
            let slot = line.share.begin(line.turns.front()?.bytes.into(), now)?;
            let Waiting { item, bytes, refusals } = line.turns.pop_front()?;
            let (destination, owner) = (destination.clone(), line.share.owner().clone());
            Some((Turn { item, destination, owner, bytes, refusals }, slot))
        })
    }

    /// When a call may begin though none has ended: a pause or a rest is over.
    pub fn next_at(&self, now: Instant) -> Option<Instant> {
        let paused = self.refused.first_key_value().map(|((at, _), _)| *at);
        let waiting = self.lines.values().filter(|line| !line.turns.is_empty());
        waiting.filter_map(|line| line.share.rests_until(now)).chain(paused).min()
    }

    /// Calls that wait for room, those in a pause not among them.
    pub fn waiting(&self) -> usize {
        self.lines.values().map(|line| line.turns.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_call_that_is_always_refused_keeps_no_other_one_from_its_turn() {
        let (mut turns, mut now) = (Turns::new(&Paces::new(8)), Instant::now());
        let (one, other) = (Name::from("one"), Name::from("other"));
        turns.push(one.clone(), Owner::default(), 1, "stuck");
        (0..50).for_each(|_| turns.push(one.clone(), Owner::default(), 1, "fine"));
        turns.push(other.clone(), Owner::default(), 1, "stuck");
        (0..50).for_each(|_| turns.push(other.clone(), Owner::default(), 1, "fine"));
        let (mut fine, mut tries, began) = (0, 0, now);
        while fine < 100 {
            while let Some((turn, slot)) = turns.begin(now) {
                if turn.item == "fine" {
                    slot.answered();
                    fine += 1;
                    // A call takes a moment.
                    now += Duration::from_millis(1);
                } else {
                    slot.refused(now);
                    tries += 1;
                    turns.push_refused(turn, now);
                }
            }
            if fine < 100 {
                now = turns.next_at(now).expect("a call waits");
            }
        }
        assert!(now - began < Duration::from_secs(1), "{:?}", now - began);
        assert!(tries < 10, "{tries}");
    }

    #[test]
    fn a_refused_call_waits_longer_each_time_and_holds_no_slot() {
        let (mut turns, mut now) = (Turns::new(&Paces::new(1)), Instant::now());
        turns.push(Name::from("m"), Owner::default(), 1, ());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let (turn, slot) = turns.begin(now).expect("its turn");
            drop(slot);
            turns.push_refused(turn, now);
            assert!(turns.begin(now).is_none());
            let at = turns.next_at(now).expect("the end of its pause");
            pauses.push(at - now);
            now = at;
        }
        assert!(pauses[0] < REFUSED.after(1) * 2 && pauses[7] >= REFUSED.longest() / 2, "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause < REFUSED.longest() * 3 / 2), "{pauses:?}");
    }

    #[test]
    fn calls_to_one_destination_begin_in_their_order_and_lines_without_calls_go() {
        let paces = Paces::new(64);
        let (mut turns, now) = (Turns::new(&paces), Instant::now());
        (0..3).for_each(|number| turns.push(Name::from("m"), Owner::default(), 1, number));
        let begun: Vec<_> = std::iter::from_fn(|| turns.begin(now)).map(|(turn, _)| turn.item).collect();
        assert_eq!(begun, [0, 1, 2]);
        assert!(turns.begin(now).is_none() && turns.lines.is_empty());
    }
}
