//! Which faults a run has, drawn from a seed.

use std::time::Duration;

use super::cluster::ACK_WAIT;
use super::fault::Fault;

/// The kinds, with how often each is drawn.
const KINDS: [(Kind, usize); 12] = [
    (Kind::Kill, 12),
    (Kind::Terminate, 6),
    (Kind::Roll, 4),
    (Kind::Pause, 6),
    (Kind::Slow, 4),
    (Kind::Cut, 6),
    (Kind::Reset, 4),
    (Kind::Unplug, 6),
    (Kind::Broker, 2),
    (Kind::Halt, 1),
    (Kind::LongCut, 1),
    (Kind::FullDisk, 2),
];

/// The longest that a fault lasts.
pub(super) const LONGEST: Duration = Duration::from_secs(20);

/// The longest that a process is halted, or gets little CPU time.
pub(super) const LONGEST_HALT: Duration = ACK_WAIT.saturating_add(Duration::from_millis(1500));

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Kill,
    Terminate,
    Roll,
    Pause,
    Slow,
    Cut,
    /// For so long that everybody finds out. It costs time, so it is left to longer runs.
    LongCut,
    Reset,
    Unplug,
    Broker,
    Halt,
    FullDisk,
}

/// Draws so many faults for so many members: each kind once, but for the longest, and then as often as [`KINDS`] has it
/// before any comes again, so that short runs see every kind, too. The disk gets full if there is one.
pub(super) fn draw(random: &mut fastrand::Rng, count: usize, members: usize, disk: bool) -> Vec<Fault> {
    let possible = || KINDS.into_iter().filter(|(kind, _)| disk || *kind != Kind::FullDisk);
    let mut some: Vec<Kind> = possible().map(|(kind, _)| kind).filter(|kind| *kind != Kind::LongCut).collect();
    let mut kinds = Vec::with_capacity(count);
    while kinds.len() < count {
        random.shuffle(&mut some);
        kinds.append(&mut some);
        some.extend(possible().flat_map(|(kind, often)| std::iter::repeat_n(kind, often)));
    }
    kinds.truncate(count);
    kinds.into_iter().map(|kind| of_kind(kind, random, members)).collect()
}

/// Puts faults into the order they happen in: a `share` of them together with the next one, if that hits another target.
pub(super) fn overlap(random: &mut fastrand::Rng, faults: Vec<Fault>, share: f64) -> Vec<Vec<Fault>> {
    let mut rounds: Vec<Vec<Fault>> = Vec::new();
    for fault in faults {
        match rounds.last_mut() {
            Some(last) if last.len() == 1 && last[0].target() != fault.target() && random.f64() < share => {
                last.push(fault)
            }
            _ => rounds.push(vec![fault]),
        }
    }
    rounds
}

fn of_kind(kind: Kind, random: &mut fastrand::Rng, members: usize) -> Fault {
    let member = random.usize(..members);
    let mut millis = |from: u64, to: u64| Duration::from_millis(random.u64(from..to));
    match kind {
        Kind::Kill => Fault::Kill(member, millis(0, 500)),
        Kind::Terminate => Fault::Terminate(member),
        Kind::Roll => Fault::Roll(member),
        Kind::Pause => Fault::Pause(member, ACK_WAIT + millis(200, 1500)),
        Kind::Slow => Fault::Slow(member, millis(300, 1200)),
        Kind::Cut => Fault::Cut(member, millis(100, 3000)),
        Kind::LongCut => Fault::Cut(member, millis(5000, 20_000)),
        Kind::Reset => Fault::Reset(member),
        Kind::Unplug => Fault::Unplug(member, millis(50, 1500)),
        Kind::Broker => Fault::Broker(millis(100, 2500)),
        Kind::Halt => Fault::Halt(millis(500, 9000)),
        Kind::FullDisk => Fault::FullDisk(millis(500, 3000)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::mem::discriminant;

    use super::*;

    #[test]
    fn every_kind_is_drawn_soon_and_a_seed_draws_the_same() {
        let draw = |seed, count| draw(&mut fastrand::Rng::with_seed(seed), count, 9, false);
        assert_eq!(draw(1, 500), draw(1, 500));
        assert_ne!(draw(1, 500), draw(2, 500));
        for count in [10, 100] {
            let faults = draw(3, count);
            assert_eq!(faults.len(), count);
            assert_eq!(faults.iter().map(discriminant).collect::<HashSet<_>>().len(), 10);
        }
        let with_disk = super::draw(&mut fastrand::Rng::with_seed(1), 11, 9, true);
        assert!(with_disk.iter().any(|fault| matches!(fault, Fault::FullDisk(_))), "{with_disk:?}");
    }

    #[test]
    fn no_fault_lasts_longer_than_is_said() {
        for fault in draw(&mut fastrand::Rng::with_seed(1), 1000, 9, true) {
            let is_halt = matches!(fault, Fault::Pause(..) | Fault::Slow(..));
            assert!(fault.lasts() <= if is_halt { LONGEST_HALT } else { LONGEST }, "{fault:?}");
        }
    }

    #[test]
    fn faults_that_overlap_hit_different_targets() {
        let mut random = fastrand::Rng::with_seed(1);
        let faults = draw(&mut random, 300, 9, true);
        let rounds = overlap(&mut random, faults.clone(), 0.3);
        assert_eq!(rounds.concat(), faults);
        let pairs: Vec<_> = rounds.iter().filter(|round| round.len() == 2).collect();
        assert!(pairs.len() > 30, "{} pairs", pairs.len());
        assert!(pairs.iter().all(|pair| pair[0].target() != pair[1].target()));
        let alone = overlap(&mut random, faults, 0.0);
        assert!(alone.iter().all(|round| round.len() == 1));
    }
}
