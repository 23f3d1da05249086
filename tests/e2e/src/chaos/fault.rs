//! The faults: the effect of each, and how it is undone.
//!
//! Not here: which faults a run has (`draw`).

use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::cluster::Cluster;
use super::data::Harm;
use super::disk::SmallDisk;
use super::member::{DoorState, Role};
use super::nodes::NodeFault;
use super::shape::Shape;
use crate::children;

/// How long a process may take to stop. Its own limit is 30 s.
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
    /// The network cable is cut for a while; neither side gets an error.
    Cut(usize, Duration),
    /// Connections to the broker are reset; both sides get an error.
    Reset(usize),
    /// The same, and new connections are refused for a while.
    Unplug(usize, Duration),
    /// SIGKILL to every process of a model in Python, in all workers that host some; the workers start others.
    Children,
    /// SIGKILL to the broker, with everything in its memory, and a restart after a while.
    Broker(Duration),
    /// SIGSTOP to the broker, then SIGCONT: no messages pass for a while, and none are lost.
    Halt(Duration),
    /// The broker's disk is full for a while. Then there is room again, and the broker is restarted: after its disk was
    /// full, it serves no streams before a restart.
    FullDisk(Duration),
    /// All brokers lose power at one time, and with it the bytes that they had not synced to their disk; they start again after a while.
    PowerCut(Duration),
    /// A fault of the nodes of a cluster of brokers.
    Node(NodeFault),
    /// A fault of the brokers' data, some of which is restored after a while.
    Data(Harm, Duration),
}

/// Injects faults of different targets at once, and undoes all of them: each ends after its own time, and then
/// processes that ended are replaced.
///
/// # Panics
/// When a process has ended by itself, before or meanwhile; when a process does not end after SIGTERM, or ends with an
/// error; or when a replacement does not become ready.
pub(super) fn strike(faults: &[Fault], cluster: &mut Cluster) {
    // A replacement would hide that a process has ended by itself.
    cluster.assert_alive();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for fault in faults {
            fault.begin(cluster);
            if let Fault::Slow(member, time) = *fault {
                let process = cluster.members[member].process.id();
                scope.spawn(move || slow(process, begun + time));
            }
        }
        let mut by_end: Vec<&Fault> = faults.iter().collect();
        by_end.sort_by_key(|fault| fault.lasts());
        for fault in by_end {
            std::thread::sleep((begun + fault.lasts()).saturating_duration_since(Instant::now()));
            fault.end(cluster);
        }
    });
    faults.iter().for_each(|fault| fault.settle(cluster));
    cluster.assert_alive();
}

/// Gives a process little CPU time until `until`.
fn slow(process: u32, until: Instant) {
    const PIECE: Duration = Duration::from_millis(20);
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a child has a process id");
    let signal = |signal| kill_process(process, signal).expect("a child that was not waited for can be signalled");
    while Instant::now() < until {
        signal(Signal::STOP);
        std::thread::sleep(PIECE * 9 / 10);
        signal(Signal::CONT);
        std::thread::sleep(PIECE / 10);
    }
}

// === impl Fault ===

impl Fault {
    /// The member that it hits; `None` for brokers.
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
            Fault::Children
            | Fault::Broker(_)
            | Fault::Halt(_)
            | Fault::FullDisk(_)
            | Fault::PowerCut(_)
            | Fault::Node(_)
            | Fault::Data(..) => None,
        }
    }

    /// How long the fault lasts before it is undone.
    pub(super) fn lasts(&self) -> Duration {
        match *self {
            Fault::Terminate(_) | Fault::Roll(_) | Fault::Reset(_) | Fault::Children => Duration::ZERO,
            Fault::Kill(_, time)
            | Fault::Pause(_, time)
            | Fault::Slow(_, time)
            | Fault::Cut(_, time)
            | Fault::Unplug(_, time)
            | Fault::Broker(time)
            | Fault::Halt(time)
            | Fault::FullDisk(time)
            | Fault::PowerCut(time)
            | Fault::Data(_, time) => time,
            Fault::Node(fault) => fault.lasts,
        }
    }

    /// The name of the fault.
    pub(super) fn verb(&self) -> &'static str {
        match self {
            Fault::Kill(..) => "kill",
            Fault::Terminate(_) => "terminate",
            Fault::Roll(_) => "roll",
            Fault::Pause(..) => "pause",
            Fault::Slow(..) => "slow",
            Fault::Cut(..) => "cut",
            Fault::Reset(_) => "reset",
            Fault::Unplug(..) => "unplug",
            Fault::Children => "kill children",
            Fault::Broker(_) => "kill broker",
            Fault::Halt(_) => "halt broker",
            Fault::FullDisk(_) => "fill disk",
            Fault::PowerCut(_) => "cut power",
            Fault::Node(fault) => fault.trouble.verb(),
            Fault::Data(harm, _) => harm.verb(),
        }
    }

    /// Chooses the target of the fault, if it depends on the current state.
    pub(super) fn aim(&self, cluster: &mut Cluster) {
        if let Fault::Node(fault) = self {
            cluster.victim = fault.aim.node(cluster);
        }
    }

    /// The fault's name and the kind of process that it hits, for the report.
    pub(super) fn kind(&self, cluster: &Cluster) -> String {
        if let Fault::Node(fault) = self {
            return fault.kind();
        }
        let role = self.target().map(|member| format!(" {}", cluster.members[member].role.name()));
        format!("{}{}", self.verb(), role.unwrap_or_default())
    }

    /// The fault, its target and its duration.
    pub(super) fn describe(&self, cluster: &Cluster) -> String {
        let member = self.target().map(|member| format!(" {}", cluster.members[member].name())).unwrap_or_default();
        let node = match self {
            Fault::Node(fault) => format!(": n{}, {}", cluster.victim, fault.kind()),
            _ => String::new(),
        };
        let time = Some(self.lasts()).filter(|time| !time.is_zero());
        let time = time.map(|time| format!(" for {} ms", time.as_millis())).unwrap_or_default();
        format!("{}{member}{time}{node}", self.verb())
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
                let new = cluster.spawn(member);
                cluster.arriving.push((member, new));
            }
            Fault::Pause(member, _) => cluster.members[member].process.pause(),
            Fault::Slow(..) => {}
            Fault::Cut(member, _) => cluster.members[member].cable.cut(),
            Fault::Reset(member) => cluster.members[member].cable.reset(),
            Fault::Unplug(member, _) => cluster.members[member].cable.unplug(),
            Fault::Children => {
                for member in cluster.members.iter().filter(|member| member.role == Role::Python) {
                    for child in children(member.process.id()) {
                        // It may have ended by itself.
                        let _ = kill_process(child, Signal::KILL);
                    }
                }
            }
            Fault::Broker(_) => cluster.brokers.only().kill(),
            Fault::Halt(_) => cluster.signal_broker(0, Signal::STOP),
            Fault::FullDisk(_) => disk(&cluster.shape).fill(),
            Fault::PowerCut(_) => cluster.brokers.cut_power(disk(&cluster.shape)),
            Fault::Node(fault) => fault.begin(cluster.victim, cluster),
            Fault::Data(harm, _) => {
                let waiting;
                (cluster.copy, waiting) = harm.begin(&mut cluster.brokers.admin());
                cluster.harmed.push(waiting);
            }
        }
    }

    /// Undoes the fault.
    fn end(&self, cluster: &mut Cluster) {
        match *self {
            Fault::Kill(member, _) => cluster.replace(member),
            Fault::Pause(member, _) => cluster.members[member].process.resume(),
            Fault::Cut(member, _) => cluster.members[member].cable.mend(),
            Fault::Unplug(member, _) => cluster.members[member].cable.plug_in(),
            Fault::Broker(_) => cluster.brokers.only().restart(),
            Fault::Halt(_) => cluster.signal_broker(0, Signal::CONT),
            Fault::FullDisk(_) => {
                disk(&cluster.shape).free();
                cluster.brokers.only().stop();
                cluster.brokers.only().restart();
            }
            Fault::PowerCut(_) => cluster.brokers.restore_power(disk(&cluster.shape)),
            Fault::Node(fault) => fault.end(cluster.victim, cluster),
            Fault::Data(..) => {
                if let Some(copy) = cluster.copy.take() {
                    Harm::end(&mut cluster.brokers.admin(), &copy);
                }
            }
            Fault::Terminate(_) | Fault::Roll(_) | Fault::Slow(..) | Fault::Reset(_) | Fault::Children => {}
        }
    }

    /// Acts as an orchestrator does after the fault: replaces processes that ended, and waits until they are ready.
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
            Fault::Node(fault) => fault.settle(cluster.victim, cluster),
            _ => {}
        }
    }
}

/// The disk of the brokers.
fn disk(shape: &Shape) -> &SmallDisk {
    shape.disk.as_ref().expect("this fault needs a small disk")
}

fn wait_end(cluster: &mut Cluster, member: usize) {
    let process = &mut cluster.members[member].process;
    let status = process.wait_exit(EXIT_LIMIT);
    assert!(status.success(), "{} ended with {status} when told to stop:\n{}", process.name(), process.log_tail());
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::Process;

    fn state(process: u32) -> String {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it is there");
        status.lines().find_map(|line| line.strip_prefix("State:")).expect("a process has a state").trim().to_owned()
    }

    #[test]
    fn a_process_is_slow_beside_everything_else_and_goes_on_afterwards() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let process = Process::start("sleep", Command::new("sleep").arg("60"), folder.path());
        let (id, until) = (process.id(), Instant::now() + Duration::from_millis(400));
        std::thread::scope(|scope| {
            scope.spawn(move || slow(id, until));
            let mut stopped = 0;
            while Instant::now() < until - Duration::from_millis(50) {
                stopped += usize::from(state(id).starts_with('T'));
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(stopped > 5, "it was seen stopped {stopped} times");
        });
        assert!(!state(id).starts_with('T'), "{}", state(id));
    }

    /// A replacement would hide that the process had ended.
    #[test]
    #[should_panic(expected = "ended by themselves")]
    fn a_process_that_ended_by_itself_is_noticed_before_it_is_killed() {
        let mut cluster = Cluster::start(Shape::new(Duration::from_secs(60)));
        let victim = cluster.members.len() - 1;
        cluster.members[victim].process.terminate();
        while cluster.members[victim].process.exited().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        strike(&[Fault::Kill(victim, Duration::ZERO)], &mut cluster);
    }
}
