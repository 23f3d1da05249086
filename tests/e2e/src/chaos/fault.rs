//! What goes wrong, one thing at a time.

use std::time::Duration;

use super::cluster::{ACK_WAIT, Cluster};

/// How long a process that was told to stop may take. Its own limit is 30 s.
const EXIT_LIMIT: Duration = Duration::from_secs(35);

/// A fault. Members are named by their index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// SIGKILL, and a replacement after a while.
    Kill(usize, Duration),
    /// SIGTERM, and a replacement when it has ended.
    Terminate(usize),
    /// SIGTERM after the replacement is ready: one step of a rolling update.
    Roll(usize),
    /// SIGSTOP for longer than `ack_wait`, then SIGCONT.
    Pause(usize, Duration),
    /// Stopped and continued in quick succession: a process that gets little CPU time.
    Slow(usize, Duration),
    /// The network cable pulled out for a while; nobody is told.
    Cut(usize, Duration),
    /// Connections to the broker reset; everybody is told.
    Reset(usize),
    /// The same, and no new one for a while.
    Unplug(usize, Duration),
    /// SIGKILL to the broker, with everything in its memory, and a restart after a while.
    Broker(Duration),
    /// The broker's disk gets full and stays so for a while. Then there is room again, and the broker is started again:
    /// one whose disk was full serves no streams before that.
    FullDisk(Duration),
}

/// The kinds that need nothing else, each as often as it is to be drawn.
const KINDS: [Kind; 25] = {
    use Kind::*;
    [
        Kill, Kill, Kill, Kill, Kill, Kill, Terminate, Terminate, Terminate, Roll, Roll, Pause, Pause, Pause, Slow,
        Slow, Cut, Cut, Cut, Reset, Reset, Unplug, Unplug, Unplug, Broker,
    ]
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Kill,
    Terminate,
    Roll,
    Pause,
    Slow,
    Cut,
    Reset,
    Unplug,
    Broker,
    FullDisk,
}

// === impl Fault ===

impl Fault {
    /// Draws so many faults for so many members: each kind as often as [`KINDS`] has it before any comes again, so that
    /// short runs see every kind, too. With a small disk that gets full as often as the broker is killed.
    pub fn draw(random: &mut fastrand::Rng, count: usize, members: usize, disk: bool) -> Vec<Fault> {
        let mut kinds = Vec::with_capacity(count);
        let mut every = KINDS.to_vec();
        every.dedup();
        every.extend(disk.then_some(Kind::FullDisk));
        while kinds.len() < count {
            random.shuffle(&mut every);
            kinds.append(&mut every);
            every.extend(KINDS);
            every.extend(disk.then_some(Kind::FullDisk));
        }
        kinds.truncate(count);
        kinds.into_iter().map(|kind| Fault::of_kind(kind, random, members)).collect()
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
            Kind::Reset => Fault::Reset(member),
            Kind::Unplug => Fault::Unplug(member, millis(50, 1500)),
            Kind::Broker => Fault::Broker(millis(100, 2500)),
            Kind::FullDisk => Fault::FullDisk(millis(500, 3000)),
        }
    }

    /// The kind and whom it hits, for the report.
    pub fn describe(&self, cluster: &Cluster) -> String {
        let name = |&member: &usize| cluster.name(member);
        match self {
            Fault::Kill(member, _) => format!("kill {}", name(member)),
            Fault::Terminate(member) => format!("terminate {}", name(member)),
            Fault::Roll(member) => format!("roll {}", name(member)),
            Fault::Pause(member, time) => format!("pause {} for {} ms", name(member), time.as_millis()),
            Fault::Slow(member, time) => format!("slow {} for {} ms", name(member), time.as_millis()),
            Fault::Cut(member, time) => format!("cut {} for {} ms", name(member), time.as_millis()),
            Fault::Reset(member) => format!("reset {}", name(member)),
            Fault::Unplug(member, time) => format!("unplug {} for {} ms", name(member), time.as_millis()),
            Fault::Broker(time) => format!("broker away for {} ms", time.as_millis()),
            Fault::FullDisk(time) => format!("disk full for {} ms", time.as_millis()),
        }
    }

    /// Makes it happen, and puts right again what a platform would: processes that ended are replaced.
    ///
    /// # Panics
    /// When a process that was told to stop does not, or says that it failed, or a replacement does not get ready.
    pub fn strike(&self, cluster: &mut Cluster) {
        match *self {
            Fault::Kill(member, away) => {
                cluster.close_door(member);
                cluster.members[member].process.kill();
                std::thread::sleep(away);
                cluster.replace(member);
            }
            Fault::Terminate(member) => {
                cluster.close_door(member);
                end(cluster, member);
                cluster.replace(member);
            }
            Fault::Roll(member) => {
                let role = cluster.members[member].role;
                let new = cluster.spawn(role);
                let old = std::mem::replace(&mut cluster.members[member], new);
                cluster.wait_ready(member);
                cluster.members.push(old);
                let last = cluster.members.len() - 1;
                cluster.close_door(last);
                end(cluster, last);
                cluster.members.pop();
            }
            Fault::Pause(member, time) => {
                cluster.members[member].process.pause();
                std::thread::sleep(time);
                cluster.members[member].process.resume();
            }
            Fault::Slow(member, time) => {
                const PIECE: Duration = Duration::from_millis(20);
                let process = &cluster.members[member].process;
                for _ in 0..time.as_millis() / PIECE.as_millis() {
                    process.pause();
                    std::thread::sleep(PIECE * 9 / 10);
                    process.resume();
                    std::thread::sleep(PIECE / 10);
                }
            }
            Fault::Cut(member, time) => {
                cluster.members[member].cable.cut();
                std::thread::sleep(time);
                cluster.members[member].cable.mend();
            }
            Fault::Reset(member) => cluster.members[member].cable.reset(),
            Fault::Unplug(member, time) => {
                cluster.members[member].cable.unplug();
                std::thread::sleep(time);
                cluster.members[member].cable.plug_in();
            }
            Fault::Broker(away) => {
                cluster.broker.kill();
                std::thread::sleep(away);
                cluster.broker.restart();
            }
            Fault::FullDisk(full) => {
                let disk = cluster.disk.as_ref().expect("this fault needs a small disk");
                disk.fill();
                std::thread::sleep(full);
                disk.free();
                cluster.broker.stop();
                cluster.broker.restart();
            }
        }
    }
}

fn end(cluster: &mut Cluster, member: usize) {
    let process = &mut cluster.members[member].process;
    process.terminate();
    let status = process.wait_exit(EXIT_LIMIT);
    assert!(status.success(), "{} ended with {status} when told to stop:\n{}", process.name(), process.log_tail());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_drawn_soon_and_a_seed_draws_the_same() {
        let draw = |seed, count| Fault::draw(&mut fastrand::Rng::with_seed(seed), count, 9, false);
        assert_eq!(draw(1, 500), draw(1, 500));
        assert_ne!(draw(1, 500), draw(2, 500));
        for count in [9, 100] {
            let faults = draw(3, count);
            assert_eq!(faults.len(), count);
            let kinds: std::collections::HashSet<_> = faults.iter().map(std::mem::discriminant).collect();
            assert_eq!(kinds.len(), 9);
        }
        let with_disk = Fault::draw(&mut fastrand::Rng::with_seed(1), 10, 9, true);
        assert!(with_disk.iter().any(|fault| matches!(fault, Fault::FullDisk(_))), "{with_disk:?}");
    }
}
