//! The brokers of the system: a single one, or a cluster of three.

use trireme_testkit::{NatsCluster, NatsServer};

use super::admin::Admin;
use super::disk::SmallDisk;
use super::models::MAX_PAYLOAD;

/// The brokers of a system. Their `max_payload` is small.
pub(super) enum Brokers {
    One(NatsServer),
    Three(NatsCluster),
}

// === impl Brokers ===

impl Brokers {
    /// One broker, with its files on `disk` if there is one.
    pub fn one(disk: Option<&SmallDisk>) -> Brokers {
        let store = disk.map_or_else(|| "STORE".to_owned(), |disk| disk.store().display().to_string());
        let jetstream = format!("store_dir: \"{store}\", max_memory_store: 64GB, max_file_store: 64GB");
        let config = format!("max_payload: {MAX_PAYLOAD}\njetstream {{ {jetstream} }}\n");
        Brokers::One(NatsServer::start_with_files(&[("nats.conf", &config)]))
    }

    /// A cluster of three.
    pub fn three() -> Brokers {
        Brokers::Three(NatsCluster::start_with(&format!("max_payload: {MAX_PAYLOAD}\n")))
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

    /// Whether all of them run and their streams are in sync.
    pub fn are_whole(&self) -> bool {
        match self {
            Brokers::One(broker) => broker.is_running(),
            Brokers::Three(cluster) => cluster.is_whole(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wait_until;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_fault_can_be_aimed_at_the_leader_of_a_stream() {
        let mut brokers = Brokers::three();
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
