//! The brokers of the system: a single one, or a cluster of three.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use trireme_testkit::{NatsCluster, NatsServer, Recovery};

use super::admin::Admin;
use super::disk::SmallDisk;
use super::models::MAX_PAYLOAD;

/// How long a broker may take to halt: its threads first end their writes to the disk.
const HALT_LIMIT: Duration = Duration::from_secs(10);

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// The brokers of a system. Their `max_payload` is small.
pub(super) enum Brokers {
    One(NatsServer),
    Three(NatsCluster),
}

// === impl Brokers ===

impl Brokers {
    /// One broker, with its files on `disk` if there is one.
    pub fn one(disk: Option<&SmallDisk>) -> Brokers {
        let sync = disk.map_or("", SmallDisk::sync);
        let jetstream = format!("store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 64GB {sync}");
        let config = format!("max_payload: {MAX_PAYLOAD}\njetstream {{ {jetstream} }}\n");
        Brokers::One(NatsServer::start_in(&[("nats.conf", &config)], disk.map(SmallDisk::store).as_deref()))
    }

    /// A cluster of three, with its files on `disk` if there is one.
    pub fn three(disk: Option<&SmallDisk>) -> Brokers {
        let (sync, stores) = (disk.map_or("", SmallDisk::sync), disk.map(SmallDisk::store));
        if let Some(stores) = &stores {
            std::fs::create_dir_all(stores).expect("the disk can be written");
        }
        let settings = format!("max_payload: {MAX_PAYLOAD}\n");
        Brokers::Three(NatsCluster::start_with(&settings, sync, stores.as_deref()))
    }

    /// Ends all brokers as a power cut does: at one time, and with the bytes that `disk` has at that time.
    ///
    /// # Panics
    /// When a process cannot be halted, or the disk cannot be copied.
    pub fn cut_power(&mut self, disk: &SmallDisk) {
        // Halted, so that no broker confirms anything after the copy was begun.
        let processes: Vec<u32> = self.all().filter_map(|(_, broker)| broker.process_id()).collect();
        for process in &processes {
            signal(*process, Signal::STOP);
        }
        processes.iter().for_each(|process| wait_halted(*process));
        disk.copy();
        match self {
            Brokers::One(broker) => broker.kill(),
            Brokers::Three(cluster) => (0..NatsCluster::NODES).for_each(|node| cluster.kill(node)),
        }
    }

    /// Starts all brokers again, with the disk as it was copied.
    ///
    /// # Panics
    /// When the disk cannot be mounted, or a broker does not start.
    pub fn restore_power(&mut self, disk: &SmallDisk) {
        disk.restore();
        match self {
            Brokers::One(broker) => broker.restart(),
            Brokers::Three(cluster) => cluster.restart_all(),
        }
    }

    /// The only broker.
    ///
    /// # Panics
    /// When there are three.
    pub fn only(&mut self) -> &mut NatsServer {
        match self {
            Brokers::One(broker) => broker,
            Brokers::Three(_) => panic!("this fault is one of a single broker"),
        }
    }

    /// The cluster.
    ///
    /// # Panics
    /// When there is a single broker.
    pub fn cluster(&mut self) -> &mut NatsCluster {
        match self {
            Brokers::One(_) => panic!("this fault needs three brokers"),
            Brokers::Three(cluster) => cluster,
        }
    }

    /// Each broker, with its name.
    pub fn all(&self) -> impl Iterator<Item = (String, &NatsServer)> {
        let (one, three) = match self {
            Brokers::One(broker) => (Some(("nats-server".to_owned(), broker)), None),
            Brokers::Three(cluster) => (None, Some(cluster)),
        };
        let name = |node| format!("nats-server {}", NatsCluster::name(node));
        let nodes = three
            .into_iter()
            .flat_map(move |cluster| (0..NatsCluster::NODES).map(move |node| (name(node), cluster.node(node))));
        one.into_iter().chain(nodes)
    }

    /// The URLs of all brokers.
    pub fn urls(&self) -> Vec<String> {
        self.all().map(|(_, broker)| broker.url()).collect()
    }

    /// An administrator of these brokers.
    pub fn admin(&self) -> Admin {
        Admin::new(self.urls())
    }

    /// Whether all of them run, and each replica of their streams has been in sync at one of the looks with this
    /// `recovery`.
    pub fn have_recovered(&self, recovery: &mut Recovery) -> bool {
        match self {
            Brokers::One(broker) => broker.is_running(),
            Brokers::Three(cluster) => cluster.has_recovered(recovery),
        }
    }
}

/// Sends a signal to a process.
///
/// # Panics
/// When there is no such process.
pub(super) fn signal(process: u32, signal: Signal) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a child has a process id");
    kill_process(process, signal).expect("a child can be signalled");
}

/// Waits until every thread of a process has stopped.
fn wait_halted(process: u32) {
    let is_halted = |task: PathBuf| {
        // A thread that has ended meanwhile has no file any more.
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, state)| state.trim_start().starts_with('T'))
    };
    let give_up = Instant::now() + HALT_LIMIT;
    loop {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).expect("a child has threads");
        if tasks.flatten().all(|task| is_halted(task.path())) {
            return;
        }
        assert!(Instant::now() < give_up, "process {process} is not halted after {HALT_LIMIT:?}");
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait_until;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_fault_can_be_aimed_at_the_leader_of_a_stream() {
        let mut brokers = Brokers::three(None);
        let mut admin = brokers.admin();
        admin.make("trireme_work_m_1", "trireme.work.m.>", NatsCluster::NODES);
        assert_eq!(admin.busiest().as_deref(), Some("trireme_work_m_1"));
        let cluster = brokers.cluster();
        let first = wait_until("the stream has a leader", LIMIT, || cluster.leader_of("trireme_work_m_1"));
        cluster.kill(first);
        let second = wait_until("another one leads", LIMIT, || cluster.leader_of("trireme_work_m_1"));
        assert_ne!(first, second);
        assert!(!cluster.is_whole());
        assert!(admin.copy("trireme_work_m_1").is_some(), "an administrator goes where somebody is");
        cluster.restart_empty(first);
        wait_until("the empty node has what the others have", LIMIT, || cluster.is_whole().then_some(()));
        assert_eq!(cluster.leader_of("no_such_stream"), None);
    }
}
