//! Faults of the nodes of a cluster of brokers, and how they are undone.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use trireme_testkit::{NatsCluster, Recovery};

use super::cluster::Cluster;
use super::settings;

/// How long the cluster may take to be in sync between two nodes that are restarted.
const WHOLE_LIMIT: Duration = Duration::from_secs(60);

/// Time between two checks of that.
const LOOK: Duration = Duration::from_millis(100);

/// A fault of one node, or of the nodes named with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeFault {
    /// The kind of fault.
    pub trouble: Trouble,
    /// The target.
    pub aim: Aim,
    /// How long the fault lasts before it is undone.
    pub lasts: Duration,
}

/// A kind of fault of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trouble {
    /// SIGKILL, and a restart after a while, with the files it had.
    Kill,
    /// SIGKILL, and after a while an empty node of the same name.
    Replace,
    /// SIGSTOP, then SIGCONT.
    Halt,
    /// An orderly restart: its clients are sent to the others first.
    Restart,
    /// Orderly restarts of all nodes, one after the other, the next when the cluster is in sync again.
    RestartEach,
    /// Cut off from the other two nodes; clients still reach it and get no error.
    Partition,
    /// Cut off from the other nodes and from clients.
    Isolate,
    /// SIGKILL to this node and the next: too few nodes are left for a quorum. Both are restarted.
    KillTwo,
}

/// How the target of a fault is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// The node of this number.
    Node(usize),
    /// The node that leads the cluster at that time.
    Leader,
    /// The node that leads the stream of workers and their models.
    Registry,
    /// The node that leads the stream of large bodies.
    Claims,
    /// The node that leads the stream with the most work.
    Work,
}

// === impl Aim ===

impl Aim {
    /// The node at this time; any node if there is no leader.
    pub(super) fn node(self, cluster: &mut Cluster) -> usize {
        let stream = match self {
            Aim::Node(node) => return node,
            Aim::Leader => None,
            Aim::Registry => Some(settings::REGISTRY.to_owned()),
            Aim::Claims => Some(settings::CLAIMS.to_owned()),
            Aim::Work => cluster.brokers.admin().busiest(),
        };
        let brokers = cluster.brokers.cluster();
        let led = stream.and_then(|stream| brokers.leader_of(&stream));
        led.or_else(|| brokers.leader()).unwrap_or(0)
    }

    fn name(self) -> &'static str {
        match self {
            Aim::Node(_) => "any",
            Aim::Leader => "leader",
            Aim::Registry => "registry",
            Aim::Claims => "claims",
            Aim::Work => "work",
        }
    }
}

// === impl NodeFault ===

impl NodeFault {
    /// The fault and the choice of its target, for the report.
    pub(super) fn kind(&self) -> String {
        let NodeFault { trouble, aim, lasts } = self;
        match trouble {
            Trouble::Halt if *lasts >= Duration::from_secs(10) => format!("halt node for long ({})", aim.name()),
            Trouble::RestartEach => trouble.verb().to_owned(),
            _ => format!("{} ({})", trouble.verb(), aim.name()),
        }
    }

    /// `victim` is the node that the fault was aimed at.
    pub(super) fn begin(&self, victim: usize, cluster: &mut Cluster) {
        match self.trouble {
            Trouble::Kill | Trouble::Replace => cluster.brokers.cluster().kill(victim),
            Trouble::KillTwo => victims(victim).for_each(|node| cluster.brokers.cluster().kill(node)),
            Trouble::Halt => cluster.signal_broker(victim, Signal::STOP),
            Trouble::Partition => cluster.brokers.cluster().cut_off(victim),
            Trouble::Isolate => {
                cluster.brokers.cluster().cut_off(victim);
                cluster.cut_off = Some(victim);
                cluster.members.iter().for_each(|member| member.cable.to(victim).cut());
            }
            Trouble::Restart | Trouble::RestartEach => {}
        }
    }

    pub(super) fn end(&self, victim: usize, cluster: &mut Cluster) {
        match self.trouble {
            Trouble::Kill => cluster.brokers.cluster().restart(victim),
            Trouble::Replace => cluster.brokers.cluster().restart_empty(victim),
            Trouble::KillTwo => victims(victim).for_each(|node| cluster.brokers.cluster().restart(node)),
            Trouble::Halt => cluster.signal_broker(victim, Signal::CONT),
            Trouble::Partition => cluster.brokers.cluster().rejoin(victim),
            Trouble::Isolate => {
                cluster.brokers.cluster().rejoin(victim);
                cluster.cut_off = None;
                let members = cluster.members.iter().chain(cluster.arriving.iter().map(|(_, member)| member));
                members.for_each(|member| member.cable.to(victim).mend());
            }
            Trouble::Restart | Trouble::RestartEach => {}
        }
    }

    /// Restarts, which take as long as they take.
    pub(super) fn settle(&self, victim: usize, cluster: &mut Cluster) {
        let nodes = match self.trouble {
            Trouble::Restart => 1,
            Trouble::RestartEach => NatsCluster::NODES,
            _ => 0,
        };
        for node in (0..nodes).map(|number| (victim + number) % NatsCluster::NODES) {
            let brokers = cluster.brokers.cluster();
            brokers.retire(node);
            brokers.restart(node);
            let (mut recovery, give_up) = (Recovery::default(), Instant::now() + WHOLE_LIMIT);
            while nodes > 1 && !brokers.has_recovered(&mut recovery) && Instant::now() < give_up {
                std::thread::sleep(LOOK);
            }
        }
    }
}

fn victims(first: usize) -> impl Iterator<Item = usize> {
    [first, (first + 1) % NatsCluster::NODES].into_iter()
}

// === impl Trouble ===

impl Trouble {
    pub(super) fn verb(self) -> &'static str {
        match self {
            Trouble::Kill => "kill node",
            Trouble::Replace => "replace node by empty",
            Trouble::Halt => "halt node",
            Trouble::Restart => "restart node",
            Trouble::RestartEach => "restart each node",
            Trouble::Partition => "partition node",
            Trouble::Isolate => "isolate node",
            Trouble::KillTwo => "kill two nodes",
        }
    }
}
