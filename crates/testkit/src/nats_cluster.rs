//! A cluster of three nats-servers with JetStream for one test, whose nodes and network can fail.
//!
//! There is a relay for each direction between two nodes, so that a test can cut a node off from the others while
//! clients still reach it. Network namespaces could drop packets in the same way, but they need root and a bridge that
//! the test is on, and they remain when a test is killed. To a server the two look alike: its connections are silent.
//! Nodes announce no addresses, to clients or to each other, that bypass the relays.
//!
//! Not here: faults between clients and the nodes (tests use their own proxies).

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::NatsServer;
use crate::relay::Relay;

/// Number of nodes in a cluster.
const NODES: usize = 3;

/// How long the nodes may take to elect a leader. It takes seconds, but machines that run tests can be busy.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a node may take to answer a monitoring request.
const PATIENCE: Duration = Duration::from_secs(1);

/// Pause between two checks of the nodes.
const LOOK: Duration = Duration::from_millis(50);

/// Three servers. On drop they are killed and their files are deleted.
pub struct NatsCluster {
    nodes: Vec<NatsServer>,
    routes: Vec<ClusterRoute>,
}

/// The recovery of a cluster since a fault ended, as repeated checks have found it; see [`NatsCluster::has_recovered`].
#[derive(Default)]
pub struct Recovery {
    /// The replicas that have been current: the stream, whose name is empty for the cluster's own log, and the node.
    current: HashSet<(String, String)>,
}

/// The route from one node to another.
struct ClusterRoute {
    from: usize,
    to: usize,
    relay: Relay,
}

// === impl NatsCluster ===

impl NatsCluster {
    /// Number of nodes in a cluster. Nodes are numbered from 0.
    pub const NODES: usize = NODES;

    /// Starts three nodes and returns once they have elected a leader.
    ///
    /// # Panics
    /// When there is no nats-server binary, or a node does not start, or the nodes elect no leader.
    pub fn start() -> NatsCluster {
        NatsCluster::start_with("max_payload: 8MB\n", "", None)
    }

    /// Starts a cluster with these lines in each node's configuration, and these in its `jetstream` block. Each node has a folder of its
    /// own for streams in `stores`, if that is given.
    ///
    /// # Panics
    /// As [`NatsCluster::start`].
    pub fn start_with(settings: &str, jetstream: &str, stores: Option<&Path>) -> NatsCluster {
        let pairs = (0..NODES).flat_map(|from| (0..NODES).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let routes: Vec<ClusterRoute> =
            pairs.map(|(from, to)| ClusterRoute { from, to, relay: Relay::start() }).collect();
        let start = |node| {
            let config = format!("{settings}{}", config(node, jetstream, &routes));
            let store = stores.map(|stores| stores.join(NatsCluster::name(node)));
            NatsServer::start_in(&[("nats.conf", &config)], store.as_deref())
        };
        let nodes = (0..NODES).map(start).collect();
        let cluster = NatsCluster { nodes, routes };
        (0..NODES).for_each(|node| cluster.connect(node));
        let give_up = Instant::now() + START_TIMEOUT;
        while !(cluster.is_whole() && cluster.takes_streams()) {
            let logs = || cluster.nodes.iter().map(NatsServer::log).collect::<Vec<_>>().join("\n---\n");
            assert!(Instant::now() < give_up, "three nats-servers found no leader; they say:\n{}", logs());
            std::thread::sleep(LOOK);
        }
        cluster
    }

    /// The URLs for clients: those of all nodes, separated by commas. They stay the same over restarts.
    pub fn urls(&self) -> String {
        self.nodes.iter().map(NatsServer::url).collect::<Vec<_>>().join(",")
    }

    /// One node, for actions on its own process: [`NatsServer::url`], [`NatsServer::pause`].
    pub fn node(&self, node: usize) -> &NatsServer {
        &self.nodes[node]
    }

    /// The name that a node has in the cluster.
    pub fn name(node: usize) -> String {
        format!("n{node}")
    }

    /// Kills a node as a crash would (SIGKILL).
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Stops a node as an operator does, who first moves its clients to other nodes. Waits some seconds until it has
    /// exited.
    pub fn retire(&mut self, node: usize) {
        self.nodes[node].retire();
    }

    /// Starts a node again with its files, killing it first if it runs.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].restart();
        self.connect(node);
    }

    /// Starts all nodes again with their files. Nodes do not wait for each other.
    pub fn restart_all(&mut self) {
        for node in 0..NODES {
            self.restart(node);
        }
    }

    /// Starts a node again under the same name, without any of its files.
    pub fn restart_empty(&mut self, node: usize) {
        self.nodes[node].restart_empty();
        self.connect(node);
    }

    /// Cuts a node off from the other two; clients reach it as before.
    pub fn cut_off(&self, node: usize) {
        self.routes_of(node).for_each(Relay::cut);
    }

    /// Ends [`NatsCluster::cut_off`].
    pub fn rejoin(&self, node: usize) {
        self.routes_of(node).for_each(Relay::mend);
    }

    /// The node that most of the nodes see as the cluster's leader; `None` while there is no leader.
    pub fn leader(&self) -> Option<usize> {
        let seen = (0..NODES).filter_map(|node| self.jetstream(node, "")).collect::<Vec<_>>();
        let leads = |node: &usize| {
            let name = NatsCluster::name(*node);
            seen.iter().filter(|seen| seen["meta_cluster"]["leader"] == name.as_str()).count() > NODES / 2
        };
        (0..NODES).find(leads)
    }

    /// The node that claims to lead a stream; `None` while no node does, or if the stream does not exist.
    pub fn leader_of(&self, stream: &str) -> Option<usize> {
        (0..NODES).find(|&node| {
            let name = NatsCluster::name(node);
            let streams = self.streams(node).unwrap_or_default();
            streams.iter().any(|one| one["name"] == stream && one["cluster"]["leader"] == name.as_str())
        })
    }

    /// Whether all nodes run and agree on a leader, and every stream has a leader whose replicas are current, all at one
    /// moment.
    pub fn is_whole(&self) -> bool {
        self.has_recovered(&mut Recovery::default())
    }

    /// Whether all nodes run and agree on a leader, every stream has a leader, and each of its replicas was current at
    /// this look or at an earlier one with the same `recovery`. Under load there may be no moment at which all replicas
    /// of all streams are current.
    pub fn has_recovered(&self, recovery: &mut Recovery) -> bool {
        let Some(leader) = self.leader() else { return false };
        let all = (0..NODES).map(|node| Some((self.jetstream(node, "")?, self.streams(node)?))).collect();
        let Some(all): Option<Vec<_>> = all else { return false };
        let meta = &all[leader].0["meta_cluster"];
        let mut led = HashSet::new();
        for (node, (_, streams)) in all.iter().enumerate() {
            let name = NatsCluster::name(node);
            for stream in streams.iter().filter(|stream| stream["cluster"]["leader"] == name.as_str()) {
                let stream_name = stream["name"].as_str().unwrap_or_default();
                if recovery.have_been_current(stream_name, &stream["cluster"], 0) {
                    led.insert(stream_name);
                }
            }
        }
        let is_led = |stream: &Value| stream["name"].as_str().is_some_and(|name| led.contains(name));
        recovery.have_been_current("", meta, NODES - 1) && all.iter().flat_map(|(_, streams)| streams).all(is_led)
    }

    /// Whether a stream with a replica on each node can be created. Right after an election, the leader may not know
    /// yet how much room each node has. The stream is deleted again.
    fn takes_streams(&self) -> bool {
        let asked = |request: &str, body: &str| -> Option<String> {
            let address = self.nodes[0].url().trim_start_matches("nats://").to_owned();
            let mut stream = TcpStream::connect(address).ok()?;
            stream.set_read_timeout(Some(PATIENCE)).ok()?;
            let (login, inbox) = (r#"CONNECT {"verbose":false}"#, "_INBOX.testkit");
            let question = format!("PUB $JS.API.STREAM.{request}.probe {inbox} {}\r\n{body}\r\n", body.len());
            write!(stream, "{login}\r\nSUB {inbox} 1\r\n{question}").ok()?;
            let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
            lines.find(|line| line.starts_with("MSG"))?;
            lines.next()
        };
        let config = r#"{"name":"probe","subjects":["testkit.probe"],"storage":"memory","num_replicas":3}"#;
        let is_made = asked("CREATE", config).is_some_and(|answer| !answer.contains("\"error\""));
        // A stream whose creation was confirmed too late must be deleted too.
        let is_gone = asked("DELETE", "").is_some_and(|answer| answer.contains("true") || answer.contains("not found"));
        is_made && is_gone
    }

    /// Points the relays to a node's port for routes. A node gets a new port at each start, because another process may
    /// have taken the old one meanwhile.
    fn connect(&self, node: usize) {
        let port = self.nodes[node].ports().cluster.expect("a node of a cluster listens for routes");
        self.routes.iter().filter(|route| route.to == node).for_each(|route| route.relay.lead_to(port));
    }

    fn routes_of(&self, node: usize) -> impl Iterator<Item = &Relay> {
        self.routes.iter().filter(move |route| route.from == node || route.to == node).map(|route| &route.relay)
    }

    /// The streams that a node reports; `None` if it does not answer.
    fn streams(&self, node: usize) -> Option<Vec<Value>> {
        let told = self.jetstream(node, "?streams=true")?;
        let accounts = told["account_details"].as_array().cloned().unwrap_or_default();
        Some(accounts.iter().filter_map(|account| account["stream_detail"].as_array().cloned()).flatten().collect())
    }

    /// A node's report about its JetStream, over HTTP.
    fn jetstream(&self, node: usize, query: &str) -> Option<Value> {
        let node = &self.nodes[node];
        let port = node.ports().monitoring.filter(|_| node.is_running())?;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        write!(stream, "GET /jsz{query} HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }
}

// === impl Recovery ===

impl Recovery {
    /// Notes the replicas of a stream that are as current as their leader. Returns whether there are at least `least`
    /// replicas, none of them offline, and all have been current.
    fn have_been_current(&mut self, stream: &str, cluster: &Value, least: usize) -> bool {
        let replicas = cluster["replicas"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut all = replicas.len() >= least;
        for replica in replicas {
            let is_online = replica["offline"] != true;
            let of = (stream.to_owned(), replica["name"].as_str().unwrap_or_default().to_owned());
            if is_online && replica["current"] == true {
                self.current.insert(of);
            } else {
                all &= is_online && self.current.contains(&of);
            }
        }
        all
    }
}

/// A node's part of the configuration. The address it advertises to other nodes leads nowhere, so that they use the
/// configured routes.
fn config(node: usize, jetstream: &str, routes: &[ClusterRoute]) -> String {
    let urls =
        routes.iter().filter(|route| route.from == node).map(|route| format!("nats://{}", route.relay.address()));
    format!(
        "server_name: {}
http: \"127.0.0.1:-1\"
lame_duck_grace_period: \"1s\"
lame_duck_duration: \"30s\"
jetstream {{ store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 64GB {jetstream} }}
cluster {{
  name: trireme
  listen: \"127.0.0.1:-1\"
  cluster_advertise: \"127.0.0.1:1\"
  no_advertise: true
  routes: [{}]
}}
",
        NatsCluster::name(node),
        urls.collect::<Vec<_>>().join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[track_caller]
    fn wait(what: &str, mut holds: impl FnMut() -> bool) {
        let give_up = Instant::now() + LIMIT;
        while !holds() {
            assert!(Instant::now() < give_up, "waited in vain: {what}");
            std::thread::sleep(LOOK);
        }
    }

    /// Whether the other nodes have elected a leader that is not `one`.
    fn leader_without(cluster: &NatsCluster, one: usize) -> bool {
        cluster.leader().is_some_and(|leader| leader != one)
    }

    #[test]
    fn replicas_may_be_current_one_after_the_other() {
        let replicas = |first: bool, second: bool, offline: bool| {
            serde_json::json!({"replicas": [
                {"name": "n1", "current": first},
                {"name": "n2", "current": second, "offline": offline},
            ]})
        };
        let mut recovery = Recovery::default();
        assert!(!recovery.have_been_current("s", &replicas(true, false, false), 2));
        assert!(!recovery.have_been_current("another", &replicas(false, true, false), 2));
        assert!(recovery.have_been_current("s", &replicas(false, true, false), 2));
        assert!(recovery.have_been_current("s", &replicas(false, false, false), 2));
        assert!(!recovery.have_been_current("s", &replicas(true, true, true), 2), "one is offline");
        assert!(!recovery.have_been_current("s", &replicas(true, true, false), 3), "one is missing");
    }

    #[test]
    fn a_cluster_gets_over_the_loss_of_each_sort() {
        let mut cluster = NatsCluster::start();
        assert_eq!(cluster.urls().split(',').count(), NODES);
        // `start` creates a stream to see whether it can, and a node may list it for a moment after its deletion.
        wait("no streams", || cluster.streams(0).is_some_and(|streams| streams.is_empty()));
        let urls = cluster.urls();

        let leader = cluster.leader().expect("it has started");
        cluster.kill(leader);
        wait("the others choose one", || leader_without(&cluster, leader));
        cluster.restart_empty(leader);
        wait("the empty one is taken in", || cluster.is_whole());

        let leader = cluster.leader().expect("it is whole");
        cluster.cut_off(leader);
        wait("the others choose one", || leader_without(&cluster, leader));
        assert!(cluster.jetstream(leader, "").is_some(), "who asks it directly is answered");
        cluster.rejoin(leader);
        wait("it is taken in again", || cluster.is_whole());

        let leader = cluster.leader().expect("it is whole");
        cluster.node(leader).pause();
        wait("the others choose one", || leader_without(&cluster, leader));
        cluster.node(leader).resume();
        wait("it goes on", || cluster.is_whole());

        let leader = cluster.leader().expect("it is whole");
        cluster.retire(leader);
        assert!(leader_without(&cluster, leader), "it had given that up");
        cluster.restart(leader);
        wait("it is back", || cluster.is_whole());
        assert_eq!(cluster.urls(), urls);
    }
}
