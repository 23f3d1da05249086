//! Draws the faults of a run from a seed.

use std::time::Duration;

use trireme_testkit::NatsCluster;

use super::data::Harm;
use super::fault::Fault;
use super::nodes::{Aim, NodeFault, Trouble};
use super::settings::ACK_WAIT;

/// The kinds of faults for every system, with the weight of each.
const KINDS: [(Kind, usize); 10] = [
    (Kind::Kill, 12),
    (Kind::Terminate, 6),
    (Kind::Roll, 4),
    (Kind::Pause, 6),
    (Kind::Slow, 4),
    (Kind::Cut, 6),
    (Kind::Reset, 4),
    (Kind::Unplug, 6),
    (Kind::LongCut, 1),
    (Kind::Children, 6),
];

/// The kinds for a system with a single broker.
const KINDS_OF_ONE: [(Kind, usize); 2] = [(Kind::Broker, 2), (Kind::Halt, 1)];

/// The kinds for brokers with a disk of their own, with the weights beside one broker.
const KINDS_OF_DISK: [(Kind, usize); 2] = [(Kind::FullDisk, 2), (Kind::PowerCut, 2)];

/// The kinds for a system with a cluster of brokers.
const KINDS_OF_THREE: [(Kind, usize); 14] = [
    (Kind::Node(Trouble::Kill), 10),
    (Kind::Node(Trouble::Replace), 4),
    (Kind::Node(Trouble::Halt), 6),
    (Kind::LongHalt, 1),
    (Kind::Node(Trouble::Restart), 4),
    (Kind::Node(Trouble::RestartEach), 1),
    (Kind::Node(Trouble::Partition), 6),
    (Kind::Node(Trouble::Isolate), 4),
    (Kind::Node(Trouble::KillTwo), 2),
    (Kind::Data(Harm::Empty), 3),
    (Kind::Data(Harm::Delete), 2),
    (Kind::Data(Harm::Remake), 2),
    (Kind::Data(Harm::LoseNewest), 3),
    (Kind::Data(Harm::RollBack), 3),
];

/// How long two of three nodes are down.
const TWO_AWAY: Duration = Duration::from_secs(12);

/// The longest duration of a fault.
pub(super) const LONGEST: Duration = Duration::from_secs(20);

/// The longest time that a process is halted, or gets little CPU time.
pub(super) const LONGEST_HALT: Duration = ACK_WAIT.saturating_add(Duration::from_millis(1500));

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Kill,
    Terminate,
    Roll,
    Pause,
    Slow,
    Cut,
    /// Long enough for all timeouts to run out. It takes long, so only longer runs have it.
    LongCut,
    Reset,
    Unplug,
    Children,
    Broker,
    Halt,
    FullDisk,
    /// All brokers at once; it needs a disk of their own.
    PowerCut,
    Node(Trouble),
    /// A node is halted long enough for the other nodes and clients to treat it as dead.
    LongHalt,
    Data(Harm),
}

/// The brokers of a system, as far as the possible faults depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Middle {
    One,
    /// One, with its files on a small disk.
    OneOnDisk,
    Three,
    /// Three, with their files on a small disk that is one for all.
    ThreeOnDisk,
}

/// Draws `count` faults for this many members. Each kind, except for the long cut, comes once at first, so that short
/// runs have every kind. After that, each kind comes as often as its weight before any comes again. The disk is filled
/// if there is one. With `only`, kinds whose names do not begin with it are left out.
///
/// # Panics
/// When no kind is left.
pub(super) fn draw(
    random: &mut fastrand::Rng,
    count: usize,
    members: usize,
    middle: Middle,
    only: Option<&str>,
) -> Vec<Fault> {
    let of_brokers = match middle {
        Middle::One => KINDS_OF_ONE.to_vec(),
        Middle::OneOnDisk => [&KINDS_OF_ONE[..], &KINDS_OF_DISK].concat(),
        Middle::Three => KINDS_OF_THREE.to_vec(),
        Middle::ThreeOnDisk => [&KINDS_OF_THREE[..], &[(Kind::PowerCut, 4)]].concat(),
    };
    let is_wanted =
        |kind: Kind| only.is_none_or(|only| of_kind(kind, &mut fastrand::Rng::new(), members).verb().starts_with(only));
    let kinds: Vec<_> = KINDS.into_iter().chain(of_brokers).filter(|(kind, _)| is_wanted(*kind)).collect();
    assert!(!kinds.is_empty(), "no fault is called {}", only.unwrap_or_default());
    let possible = || kinds.iter().copied();
    let mut some: Vec<Kind> = possible().map(|(kind, _)| kind).filter(|kind| *kind != Kind::LongCut).collect();
    let mut drawn = Vec::with_capacity(count);
    while drawn.len() < count {
        random.shuffle(&mut some);
        drawn.append(&mut some);
        some.extend(possible().flat_map(|(kind, often)| std::iter::repeat_n(kind, often)));
    }
    drawn.truncate(count);
    drawn.into_iter().map(|kind| of_kind(kind, random, members)).collect()
}

/// Puts the faults into rounds: a `share` of them happens together with the next one, if that hits another target.
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
        Kind::Children => Fault::Children,
        Kind::Broker => Fault::Broker(millis(100, 2500)),
        Kind::Halt => Fault::Halt(millis(500, 9000)),
        Kind::FullDisk => Fault::FullDisk(millis(500, 3000)),
        Kind::PowerCut => Fault::PowerCut(millis(100, 3000)),
        Kind::Data(harm) => Fault::Data(harm, millis(500, 3000)),
        Kind::LongHalt => node(Trouble::Halt, millis(15_000, 20_000), random),
        Kind::Node(trouble) => {
            let lasts = match trouble {
                Trouble::Restart | Trouble::RestartEach => Duration::ZERO,
                Trouble::Halt => millis(1500, 3000),
                Trouble::Kill | Trouble::Replace => millis(200, 8000),
                Trouble::Partition | Trouble::Isolate => millis(1000, 15_000),
                Trouble::KillTwo => TWO_AWAY,
            };
            node(trouble, lasts, random)
        }
    }
}

/// A fault that is aimed at any node, or at a node that leads something.
fn node(trouble: Trouble, lasts: Duration, random: &mut fastrand::Rng) -> Fault {
    let any = Aim::Node(random.usize(..NatsCluster::NODES));
    let aim = [any, any, Aim::Leader, Aim::Registry, Aim::Claims, Aim::Work][random.usize(..6)];
    Fault::Node(NodeFault { trouble, aim, lasts })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::mem::discriminant;

    use super::*;

    #[test]
    fn every_kind_is_drawn_soon_and_a_seed_draws_the_same() {
        let draw = |seed, count| draw(&mut fastrand::Rng::with_seed(seed), count, 9, Middle::One, None);
        assert_eq!(draw(1, 500), draw(1, 500));
        assert_ne!(draw(1, 500), draw(2, 500));
        for count in [11, 100] {
            let faults = draw(3, count);
            assert_eq!(faults.len(), count);
            assert_eq!(faults.iter().map(discriminant).collect::<HashSet<_>>().len(), 11);
        }
        let with_disk = super::draw(&mut fastrand::Rng::with_seed(1), 13, 9, Middle::OneOnDisk, None);
        assert!(with_disk.iter().any(|fault| matches!(fault, Fault::FullDisk(_))), "{with_disk:?}");
        assert!(with_disk.iter().any(|fault| matches!(fault, Fault::PowerCut(_))), "{with_disk:?}");
    }

    #[test]
    fn a_cluster_has_faults_of_its_own() {
        let faults = draw(&mut fastrand::Rng::with_seed(1), 22, 9, Middle::Three, None);
        let troubles = faults.iter().filter_map(|fault| match fault {
            Fault::Node(fault) => Some(fault.trouble),
            _ => None,
        });
        assert_eq!(troubles.collect::<HashSet<_>>().len(), 8, "{faults:?}");
        let harms = faults.iter().filter_map(|fault| match fault {
            Fault::Data(harm, _) => Some(harm),
            _ => None,
        });
        assert_eq!(harms.collect::<HashSet<_>>().len(), 5, "{faults:?}");
        assert!(!faults.iter().any(|fault| matches!(fault, Fault::Broker(_) | Fault::Halt(_))), "{faults:?}");
    }

    #[test]
    fn kinds_can_be_left_out() {
        let random = &mut fastrand::Rng::with_seed(1);
        let verbs = draw(random, 100, 9, Middle::Three, Some("kill")).iter().map(Fault::verb).collect::<HashSet<_>>();
        assert_eq!(verbs, HashSet::from(["kill", "kill children", "kill node", "kill two nodes"]));
    }

    #[test]
    fn no_fault_lasts_longer_than_is_said() {
        for middle in [Middle::OneOnDisk, Middle::ThreeOnDisk] {
            for fault in draw(&mut fastrand::Rng::with_seed(1), 1000, 9, middle, None) {
                let is_halt = matches!(fault, Fault::Pause(..) | Fault::Slow(..));
                assert!(fault.lasts() <= if is_halt { LONGEST_HALT } else { LONGEST }, "{fault:?}");
            }
        }
    }

    #[test]
    fn faults_that_overlap_hit_different_targets() {
        for middle in [Middle::OneOnDisk, Middle::ThreeOnDisk] {
            let mut random = fastrand::Rng::with_seed(1);
            let faults = draw(&mut random, 300, 9, middle, None);
            let rounds = overlap(&mut random, faults.clone(), 0.3);
            assert_eq!(rounds.concat(), faults);
            let pairs: Vec<_> = rounds.iter().filter(|round| round.len() == 2).collect();
            assert!(pairs.len() > 30, "{} pairs", pairs.len());
            assert!(pairs.iter().all(|pair| pair[0].target() != pair[1].target()));
            let alone = overlap(&mut random, faults, 0.0);
            assert!(alone.iter().all(|round| round.len() == 1));
        }
    }
}
