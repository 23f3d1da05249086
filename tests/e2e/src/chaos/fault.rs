//! What goes wrong, and how it is put right again.
//!
//! Not here: which faults a run has (`draw`).

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::cluster::Cluster;
use super::member::DoorState;

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
    /// SIGSTOP to the broker, then SIGCONT: everybody hears nothing, and nothing is lost.
    Halt(Duration),
    /// The broker's disk gets full and stays so for a while. Then there is room again, and the broker is started again:
    /// one whose disk was full serves no streams before that.
    FullDisk(Duration),
}

/// Lets faults of different targets happen at once, and puts everything right again: what was taken away comes back, each
/// after its time, and then processes that ended have been replaced.
///
/// # Panics
/// When a process that was told to stop does not, or says that it failed, or a replacement does not get ready.
pub(super) fn strike(faults: &[Fault], cluster: &mut Cluster) {
    let begun = Instant::now();
    faults.iter().for_each(|fault| fault.begin(cluster));
    let mut by_end: Vec<&Fault> = faults.iter().collect();
    by_end.sort_by_key(|fault| fault.lasts());
    for fault in by_end {
        // A slow member is slow by what is done to it meanwhile.
        fault.go_on(cluster, begun + fault.lasts());
        fault.end(cluster);
    }
    faults.iter().for_each(|fault| fault.settle(cluster));
}

// === impl Fault ===

impl Fault {
    /// The member that it hits; `None` for the broker.
    pub fn target(&self) -> Option<usize> {
        match *self {
            Fault::Kill(member, _)
            | Fault::Terminate(member)
            | Fault::Roll(member)
            | Fault::Pause(member, _)
            | Fault::Slow(member, _)
            | Fault::Cut(member, _)
            | Fault::Reset(member)
            | Fault::Unplug(member, _) => Some(member),
            Fault::Broker(_) | Fault::Halt(_) | Fault::FullDisk(_) => None,
        }
    }

    /// How long it stays before it is put right.
    pub(super) fn lasts(&self) -> Duration {
        match *self {
            Fault::Terminate(_) | Fault::Roll(_) | Fault::Reset(_) => Duration::ZERO,
            Fault::Kill(_, time)
            | Fault::Pause(_, time)
            | Fault::Slow(_, time)
            | Fault::Cut(_, time)
            | Fault::Unplug(_, time)
            | Fault::Broker(time)
            | Fault::Halt(time)
            | Fault::FullDisk(time) => time,
        }
    }

    fn verb(&self) -> &'static str {
        match self {
            Fault::Kill(..) => "kill",
            Fault::Terminate(_) => "terminate",
            Fault::Roll(_) => "roll",
            Fault::Pause(..) => "pause",
            Fault::Slow(..) => "slow",
            Fault::Cut(..) => "cut",
            Fault::Reset(_) => "reset",
            Fault::Unplug(..) => "unplug",
            Fault::Broker(_) => "kill broker",
            Fault::Halt(_) => "halt broker",
            Fault::FullDisk(_) => "fill disk",
        }
    }

    /// The kind, and what sort of process it hits, for the report.
    pub(super) fn kind(&self, cluster: &Cluster) -> String {
        let role = self.target().map(|member| format!(" {}", cluster.members[member].role.name()));
        format!("{}{}", self.verb(), role.unwrap_or_default())
    }

    /// What happens to whom, and for how long.
    pub(super) fn describe(&self, cluster: &Cluster) -> String {
        let member = self.target().map(|member| format!(" {}", cluster.members[member].name())).unwrap_or_default();
        let time = Some(self.lasts()).filter(|time| !time.is_zero());
        let time = time.map(|time| format!(" for {} ms", time.as_millis())).unwrap_or_default();
        format!("{}{member}{time}", self.verb())
    }

    fn begin(&self, cluster: &mut Cluster) {
        match *self {
            Fault::Kill(member, _) => {
                cluster.close_door(member, DoorState::Killed);
                cluster.members[member].process.kill();
            }
            Fault::Terminate(member) => {
                cluster.close_door(member, DoorState::Stopping);
                cluster.members[member].process.terminate();
            }
            Fault::Roll(member) => {
                let new = cluster.spawn(cluster.members[member].role);
                cluster.arriving.push((member, new));
            }
            Fault::Pause(member, _) => cluster.members[member].process.pause(),
            Fault::Slow(..) => {}
            Fault::Cut(member, _) => cluster.members[member].cable.cut(),
            Fault::Reset(member) => cluster.members[member].cable.reset(),
            Fault::Unplug(member, _) => cluster.members[member].cable.unplug(),
            Fault::Broker(_) => cluster.broker.kill(),
            Fault::Halt(_) => cluster.signal_broker(Signal::STOP),
            Fault::FullDisk(_) => cluster.shape.disk.as_ref().expect("this fault needs a small disk").fill(),
        }
    }

    /// Waits until `end`.
    fn go_on(&self, cluster: &Cluster, end: Instant) {
        const PIECE: Duration = Duration::from_millis(20);
        while let Fault::Slow(member, _) = *self
            && Instant::now() < end
        {
            let process = &cluster.members[member].process;
            process.pause();
            std::thread::sleep(PIECE * 9 / 10);
            process.resume();
            std::thread::sleep(PIECE / 10);
        }
        std::thread::sleep(end.saturating_duration_since(Instant::now()));
    }

    /// What was taken away comes back.
    fn end(&self, cluster: &mut Cluster) {
        match *self {
            Fault::Kill(member, _) => cluster.replace(member),
            Fault::Pause(member, _) => cluster.members[member].process.resume(),
            Fault::Cut(member, _) => cluster.members[member].cable.mend(),
            Fault::Unplug(member, _) => cluster.members[member].cable.plug_in(),
            Fault::Broker(_) => cluster.broker.restart(),
            Fault::Halt(_) => cluster.signal_broker(Signal::CONT),
            Fault::FullDisk(_) => {
                cluster.shape.disk.as_ref().expect("this fault needs a small disk").free();
                cluster.broker.stop();
                cluster.broker.restart();
            }
            Fault::Terminate(_) | Fault::Roll(_) | Fault::Slow(..) | Fault::Reset(_) => {}
        }
    }

    /// What a platform does then: processes that ended are replaced, and whoever is new is ready.
    fn settle(&self, cluster: &mut Cluster) {
        match *self {
            Fault::Kill(member, _) => cluster.wait_ready(member),
            Fault::Terminate(member) => {
                wait_end(cluster, member);
                cluster.replace(member);
                cluster.wait_ready(member);
            }
            Fault::Roll(member) => {
                let place = cluster.arriving.iter().position(|(place, _)| *place == member).expect("it was started");
                let (_, new) = cluster.arriving.remove(place);
                let old = std::mem::replace(&mut cluster.members[member], new);
                cluster.wait_ready(member);
                cluster.members.push(old);
                let last = cluster.members.len() - 1;
                cluster.close_door(last, DoorState::Stopping);
                cluster.members[last].process.terminate();
                wait_end(cluster, last);
                cluster.members.pop();
            }
            _ => {}
        }
    }
}

fn wait_end(cluster: &mut Cluster, member: usize) {
    let process = &mut cluster.members[member].process;
    let status = process.wait_exit(EXIT_LIMIT);
    assert!(status.success(), "{} ended with {status} when told to stop:\n{}", process.name(), process.log_tail());
}
