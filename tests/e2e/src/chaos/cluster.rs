//! The system under chaos: a broker, gateways and workers as processes, each with a network cable of its own.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use trireme_testkit::NatsServer;

use super::disk::SmallDisk;
use super::proxy::Proxy;
use crate::{ModelFolder, Process, Request, product};

/// How long a process may take to get ready. It takes about a second; machines that run tests can be busy.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// A worker's `ack_wait`: short, so that faults follow each other quickly.
pub const ACK_WAIT: Duration = Duration::from_secs(1);

/// What every worker is told. Faults come much more often than in life, so a request may meet many of them.
const WORKER_ARGUMENTS: [&str; 4] = ["--ack-wait-ms", "1000", "--max-deliver", "20"];

/// The deadline of requests: one that takes longer is lost.
const DEADLINE: Duration = Duration::from_secs(30);

/// The deadline when requests are meant to get lost: waiting for them takes that long.
const SHORT_DEADLINE: Duration = Duration::from_secs(8);

/// The parts of the system, with how many there are of each.
const REPLICAS: [(Role, usize); 4] =
    [(Role::Gateway, 2), (Role::Tokenizer, 2), (Role::Model, 3), (Role::Postprocess, 2)];

/// How many processes that makes; the gateways are the first two.
pub const MEMBERS: usize = 9;

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is a service's own name")]
pub enum Role {
    Gateway,
    Tokenizer,
    Model,
    Postprocess,
}

/// One process and its cable. A replacement takes the place of a process that ended.
pub struct Member {
    /// What it is.
    pub role: Role,
    /// Its number, never used again.
    number: usize,
    /// The process.
    pub process: Process,
    /// Between it and the broker.
    pub cable: Proxy,
    /// Where clients reach it, if it is a gateway.
    pub door: Option<Arc<Door>>,
}

/// A gateway as clients see it.
#[derive(Debug)]
pub struct Door {
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether it has been told to end, or killed: clients go elsewhere then, as a load balancer sends them.
    pub closing: AtomicBool,
}

/// The doors that are open: what a load balancer knows.
pub type Doors = Arc<Mutex<Vec<Arc<Door>>>>;

/// The system.
pub struct Cluster {
    /// The broker.
    pub broker: NatsServer,
    /// Where it keeps its files, if that is a small disk. Dropped after it.
    pub disk: Option<SmallDisk>,
    /// Everything else.
    pub members: Vec<Member>,
    /// Where clients go.
    pub doors: Doors,
    models: ModelFolder,
    folder: TempDir,
    started: usize,
    acknowledge_early: bool,
}

// === impl Role ===

impl Role {
    fn binary(self) -> &'static str {
        match self {
            Role::Gateway => "trireme-gateway",
            Role::Tokenizer => "trireme-tokenizer",
            Role::Model => "trireme-model",
            Role::Postprocess => "trireme-postprocess",
        }
    }
}

// === impl Cluster ===

impl Cluster {
    /// Starts everything and waits until it is ready. With `acknowledge_early` workers' cables acknowledge what passes; with
    /// a disk the queues are there.
    ///
    /// # Panics
    /// When it does not get ready.
    pub fn start(models: ModelFolder, acknowledge_early: bool, disk: Option<SmallDisk>) -> Cluster {
        let mut cluster = Cluster {
            broker: disk.as_ref().map_or_else(NatsServer::start, |disk| NatsServer::start_with_store(&disk.store())),
            disk,
            members: Vec::new(),
            doors: Doors::default(),
            models,
            folder: tempfile::Builder::new().prefix("trireme-chaos-").tempdir().expect("a temporary folder"),
            started: 0,
            acknowledge_early,
        };
        let roles = REPLICAS.iter().flat_map(|&(role, count)| std::iter::repeat_n(role, count));
        let members: Vec<_> = roles.map(|role| cluster.spawn(role)).collect();
        cluster.members = members;
        // Gateways, which come first, are ready when the workers are.
        for index in (0..cluster.members.len()).rev() {
            cluster.wait_ready(index);
        }
        cluster
    }

    /// The doors that clients may take now.
    pub fn doors(&self) -> Vec<Arc<Door>> {
        self.doors.lock().expect("no holder panics").clone()
    }

    /// Clients no longer come to this gateway; nothing for a worker.
    pub fn close_door(&self, index: usize) {
        if let Some(door) = &self.members[index].door {
            door.closing.store(true, Ordering::SeqCst);
            self.doors.lock().expect("no holder panics").retain(|open| !Arc::ptr_eq(open, door));
        }
    }

    /// Starts a process in place of one that has ended, and waits until it is ready.
    ///
    /// # Panics
    /// When it does not get ready.
    pub fn replace(&mut self, index: usize) {
        self.members[index] = self.spawn(self.members[index].role);
        self.wait_ready(index);
    }

    /// What is written on a member's door plate.
    pub fn name(&self, index: usize) -> String {
        let Member { role, number, .. } = &self.members[index];
        format!("{role:?}-{number}").to_lowercase()
    }

    /// Every process by name, the broker included, with its process id.
    pub fn processes(&self) -> impl Iterator<Item = (String, u32)> {
        let broker = self.broker.process_id().map(|id| ("nats-server".to_owned(), id));
        let members = self.members.iter().enumerate();
        broker.into_iter().chain(members.map(|(index, member)| (self.name(index), member.process.id())))
    }

    /// Members that have ended, though nobody told them to.
    pub fn crashed(&mut self) -> Vec<String> {
        let indices: Vec<_> = (0..self.members.len()).collect();
        let ended = indices.into_iter().filter(|&index| self.members[index].process.exited().is_some());
        let ended: Vec<_> = ended.collect();
        ended
            .into_iter()
            .map(|index| format!("{}: {}", self.name(index), self.members[index].process.log_tail()))
            .collect()
    }

    /// Starts a process of this role; does not wait for it.
    pub fn spawn(&mut self, role: Role) -> Member {
        let number = self.started;
        self.started += 1;
        let cable = Proxy::start(&self.broker.url());
        let mut command = product(role.binary());
        command.args(["--nats-url", &cable.url(), "--model-repository"]).arg(self.models.path());
        match role {
            Role::Gateway => {
                let deadline = if self.acknowledge_early { SHORT_DEADLINE } else { DEADLINE };
                command.args(["--default-timeout-ms", &deadline.as_millis().to_string()])
            }
            _ if self.disk.is_some() => command.args(WORKER_ARGUMENTS).args(["--queue-storage", "file"]),
            _ => command.args(WORKER_ARGUMENTS),
        };
        if self.acknowledge_early && role != Role::Gateway {
            cable.acknowledge_early();
        }
        let process = Process::start(&format!("{}-{number}", role.binary()), &mut command, self.folder.path());
        Member { role, number, process, cable, door: None }
    }

    /// Waits until a member is ready; a gateway opens its door then.
    ///
    /// # Panics
    /// When it does not get ready.
    pub fn wait_ready(&mut self, index: usize) {
        let member = &mut self.members[index];
        let message = if member.role == Role::Gateway { "HTTP listener" } else { "ready" };
        let give_up = Instant::now() + READY_LIMIT;
        let event = loop {
            if let Some(event) = member.process.events().into_iter().find(|event| event["message"] == message) {
                break event;
            }
            let log = member.process.log_tail();
            assert!(member.process.exited().is_none(), "a {:?} ended before it was ready:\n{log}", member.role);
            assert!(Instant::now() < give_up, "a {:?} does not get ready:\n{log}", member.role);
            std::thread::sleep(Duration::from_millis(20));
        };
        if member.role == Role::Gateway {
            let address = event["address"].as_str().and_then(|address| address.parse().ok());
            let address = address.expect("a gateway logs where it listens");
            // What a load balancer does: it sends nobody there before the probe says so.
            let ready = || Request::get("/v2/health/ready").send(address).is_ok_and(|answer| answer.status == 200);
            while !ready() {
                assert!(Instant::now() < give_up, "a gateway does not get ready:\n{}", member.process.log_tail());
                std::thread::sleep(Duration::from_millis(20));
            }
            let door = Arc::new(Door { address, closing: AtomicBool::new(false) });
            member.door = Some(door.clone());
            self.doors.lock().expect("no holder panics").push(door);
        }
    }
}
