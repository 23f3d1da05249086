//! The broker: one nats-server or a cluster of three, with the figures of their monitoring endpoints.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::Value;
use trireme_testkit::{NatsServer, quiet_port};

use crate::{Request, wait_until};

/// Servers of a cluster.
const SERVERS: usize = 3;

/// Number of a server's warnings and errors that are shown.
const SHOWN: usize = 3;

/// Each queue reserves its `max_bytes` of the memory limit, so the limit has to be large enough for a thousand queues
/// of default size. The server allocates nothing for it.
const JETSTREAM: &str =
    "max_payload: 8MB\njetstream { store_dir: \"STORE\", max_memory_store: 1TB, max_file_store: 1TB }\n";

/// A broker, or a cluster. All servers are killed when it is dropped.
pub struct Broker {
    servers: Vec<NatsServer>,
    /// Each server's monitoring address.
    monitors: Vec<SocketAddr>,
}

/// Traffic of the servers since they were started, summed over all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Messages received.
    pub messages_in: f64,
    /// Messages sent: each counts once for every subscriber.
    pub messages_out: f64,
    /// Bytes received.
    pub bytes_in: f64,
    /// Bytes sent.
    pub bytes_out: f64,
    /// Current number of client connections.
    pub connections: f64,
    /// Connections that were closed because they read too slowly.
    pub slow_consumers: f64,
}

/// The state of JetStream on one server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stored {
    /// Streams.
    pub streams: f64,
    /// Consumers.
    pub consumers: f64,
    /// Memory that streams have reserved, in bytes.
    pub reserved: f64,
    /// The sequence number of the last message that one of the work queues has taken in.
    pub last_work: f64,
    /// The sequence number of the first message that the queue still has, or of the next one if it is empty.
    pub first_work: f64,
    /// Pull requests that wait at the queues' consumers.
    pub pulls_waiting: f64,
}

// === impl Broker ===

impl Broker {
    /// One server.
    pub fn single() -> Broker {
        let monitor = quiet_port();
        Broker { servers: vec![start(&listen(monitor))], monitors: vec![address(monitor)] }
    }

    /// Three servers with routes to each other. Waits until they have a leader, for `limit` at most.
    ///
    /// This is a minimal cluster with monitoring endpoints.
    pub fn cluster(limit: Duration) -> Broker {
        let routes: Vec<u16> = (0..SERVERS).map(|_| quiet_port()).collect();
        let monitors: Vec<u16> = (0..SERVERS).map(|_| quiet_port()).collect();
        let known: Vec<String> = routes.iter().map(|port| format!("\"nats-route://127.0.0.1:{port}\"")).collect();
        let start_one = |(number, (route, monitor)): (usize, (&u16, &u16))| {
            let mut config = listen(*monitor);
            let _ = writeln!(
                config,
                "server_name: scale-{number}\ncluster {{ name: scale, listen: \"127.0.0.1:{route}\", routes: [{}] }}",
                known.join(", ")
            );
            start(&config)
        };
        let servers = routes.iter().zip(&monitors).enumerate().map(start_one).collect();
        let broker = Broker { servers, monitors: monitors.into_iter().map(address).collect() };
        wait_until("the cluster of brokers has a leader", limit, || broker.has_leader().then_some(()));
        broker
    }

    fn has_leader(&self) -> bool {
        self.monitors.iter().all(|monitor| {
            ask(*monitor, "/jsz").is_some_and(|jetstream| {
                let cluster = &jetstream["meta_cluster"];
                cluster["leader"].as_str().is_some_and(|leader| !leader.is_empty())
                    && cluster["cluster_size"] == SERVERS
            })
        })
    }

    /// The URLs of all servers, separated by commas.
    pub fn url(&self) -> String {
        self.servers.iter().map(NatsServer::url).collect::<Vec<_>>().join(",")
    }

    /// The ids of the servers' processes.
    pub fn processes(&self) -> Vec<u32> {
        self.servers.iter().filter_map(NatsServer::process_id).collect()
    }

    /// Number of warnings and errors that the servers have logged since their last start.
    pub fn complaints(&self) -> usize {
        self.servers.iter().map(|server| server.log().lines().filter(complains).count()).sum()
    }

    /// Prints some of the latest warnings and errors of each server.
    pub fn show_complaints(&self) {
        for log in self.servers.iter().map(NatsServer::log) {
            log.lines().rev().filter(complains).take(SHOWN).for_each(|line| println!("  the broker logged: {line}"));
        }
    }

    /// Kills the first server, like a crash, and starts it again.
    pub fn restart(&mut self) {
        self.servers[0].restart();
    }

    /// The servers' monitoring addresses.
    pub fn monitors(&self) -> &[SocketAddr] {
        &self.monitors
    }

    /// The state of the first server's JetStream.
    pub fn stored(&self) -> Option<Stored> {
        stored(self.monitors[0])
    }
}

fn complains(line: &&str) -> bool {
    line.contains("[WRN]") || line.contains("[ERR]")
}

fn start(config: &str) -> NatsServer {
    NatsServer::start_with_files(&[("nats.conf", config)])
}

fn listen(monitor: u16) -> String {
    format!("http: \"127.0.0.1:{monitor}\"\n{JETSTREAM}")
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn ask(monitor: SocketAddr, path: &str) -> Option<Value> {
    let answer = Request::get(path).send(monitor).ok()?;
    serde_json::from_slice(&answer.body).ok()
}

/// The traffic of the servers with these monitoring addresses, summed.
pub fn traffic(monitors: &[SocketAddr]) -> Option<Traffic> {
    let mut all = Traffic::default();
    for monitor in monitors {
        let told = ask(*monitor, "/varz")?;
        let number = |name: &str| told[name].as_f64().unwrap_or(0.0);
        all.messages_in += number("in_msgs");
        all.messages_out += number("out_msgs");
        all.bytes_in += number("in_bytes");
        all.bytes_out += number("out_bytes");
        all.connections += number("connections");
        all.slow_consumers += number("slow_consumers");
    }
    Some(all)
}

/// The state of JetStream at the server with this monitoring address.
pub fn stored(monitor: SocketAddr) -> Option<Stored> {
    let told = ask(monitor, "/jsz?streams=true&consumers=true")?;
    let number = |name: &str| told[name].as_f64().unwrap_or(0.0);
    let accounts = told["account_details"].as_array().into_iter().flatten();
    let streams = accounts.flat_map(|account| account["stream_detail"].as_array().into_iter().flatten());
    let of_work = streams.filter(|stream| stream["name"].as_str().is_some_and(|name| name.starts_with("trireme_work")));
    let (mut last_work, mut first_work, mut pulls_waiting) = (0.0, 0.0, 0.0);
    for stream in of_work {
        last_work = stream["state"]["last_seq"].as_f64().unwrap_or(0.0);
        first_work = stream["state"]["first_seq"].as_f64().unwrap_or(0.0);
        let consumers = stream["consumer_detail"].as_array().into_iter().flatten();
        pulls_waiting += consumers.filter_map(|consumer| consumer["num_waiting"].as_f64()).sum::<f64>();
    }
    let (streams, consumers) = (number("streams"), number("consumers"));
    let reserved = number("reserved_memory");
    Some(Stored { streams, consumers, reserved, last_work, first_work, pulls_waiting })
}
