//! The system under chaos: a broker, gateways and workers as processes, each with a network cable of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use trireme_testkit::NatsServer;

use super::disk::SmallDisk;
use super::member::{Door, DoorState, Doors, Member, Role};
use super::models::{MAX_PAYLOAD, models};
use super::proxy::Proxy;
use crate::{ModelFolder, Process, Request, product};

/// How long a process may take to get ready. It takes about a second; machines that run tests can be busy.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// A worker's `ack_wait`: short, so that faults follow each other quickly.
pub(super) const ACK_WAIT: Duration = Duration::from_secs(1);

/// The parts of the system, in order; gateways come first.
const MEMBERS: [Role; 9] = {
    use Role::*;
    [Gateway, Gateway, Tokenizer, Tokenizer, Model, Model, Model, Postprocess, Postprocess]
};

/// The same, with stages that share a process.
const MEMBERS_THAT_HAND_OVER: [Role; 9] = {
    use Role::*;
    [Gateway, Gateway, Tokenizer, Tokenizer, Model, Both, Both, Both, Postprocess]
};

/// How many processes that makes.
pub(super) const MEMBER_COUNT: usize = MEMBERS.len();

/// What the system is to be like.
pub(super) struct Shape {
    /// The deadline that gateways give requests.
    pub deadline: Duration,
    /// Whether workers' cables acknowledge what passes.
    pub acknowledge_early: bool,
    /// Whether some workers host two stages.
    pub hand_over: bool,
    /// Where queues are kept; in memory without it.
    pub disk: Option<SmallDisk>,
}

/// The system.
pub(super) struct Cluster {
    pub broker: NatsServer,
    /// Everything else.
    pub members: Vec<Member>,
    /// Where clients go.
    pub doors: Doors,
    /// A member that shall take the place of another, with that one's index.
    pub arriving: Vec<(usize, Member)>,
    pub shape: Shape,
    models: ModelFolder,
    folder: TempDir,
    started: usize,
}

// === impl Cluster ===

impl Cluster {
    /// Starts everything and waits until it is ready.
    ///
    /// # Panics
    /// When it does not get ready.
    pub fn start(shape: Shape) -> Cluster {
        let mut cluster = Cluster {
            broker: start_broker(shape.disk.as_ref()),
            members: Vec::new(),
            doors: Doors::default(),
            arriving: Vec::new(),
            models: models(),
            folder: tempfile::Builder::new().prefix("trireme-chaos-").tempdir().expect("a temporary folder"),
            started: 0,
            shape,
        };
        let roles = if cluster.shape.hand_over { MEMBERS_THAT_HAND_OVER } else { MEMBERS };
        cluster.members = roles.into_iter().map(|role| cluster.spawn(role)).collect();
        // Gateways, which come first, are ready when the workers are.
        for index in (0..cluster.members.len()).rev() {
            cluster.wait_ready(index);
        }
        cluster
    }

    /// Clients no longer come to this gateway, for this reason; nothing for a worker.
    pub fn close_door(&self, index: usize, state: DoorState) {
        if let Some(door) = &self.members[index].door {
            door.set(state);
            self.doors.lock().expect("no holder panics").retain(|open| !Arc::ptr_eq(open, door));
        }
    }

    /// Starts a process in place of one that has ended; does not wait for it.
    pub fn replace(&mut self, index: usize) {
        self.members[index] = self.spawn(self.members[index].role);
    }

    /// Halts the broker, as a host that hangs does, or lets it go on.
    pub fn signal_broker(&self, signal: Signal) {
        let id = self.broker.process_id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        kill_process(id.expect("the broker runs"), signal).expect("a child can be signalled");
    }

    /// Every process by name, the broker included, with its process id and what tells its metrics, where it has that.
    pub fn processes(&self) -> impl Iterator<Item = (String, u32, Option<&Member>)> {
        let broker = self.broker.process_id().map(|id| ("nats-server".to_owned(), id, None));
        let members = self.members.iter().map(|member| (member.name(), member.process.id(), Some(member)));
        broker.into_iter().chain(members)
    }

    /// # Panics
    /// When a member has ended, though nobody told it to.
    pub fn assert_alive(&mut self) {
        let ended = self.members.iter_mut().filter_map(|member| {
            let status = member.process.exited()?;
            Some(format!("{} ({status}): {}", member.name(), member.process.log_tail()))
        });
        let ended: Vec<String> = ended.collect();
        assert!(ended.is_empty(), "ended by themselves:\n{}", ended.join("\n"));
    }

    /// Starts a process of this role; does not wait for it.
    pub fn spawn(&mut self, role: Role) -> Member {
        let number = self.started;
        self.started += 1;
        let cable = Proxy::start(&self.broker.url());
        let mut command = product(role.binary());
        command.args(role.arguments()).args(["--admin-address", "127.0.0.1:0", "--nats-url", &cable.url()]);
        command.arg("--model-repository").arg(self.models.path());
        if role == Role::Gateway {
            command.args(["--default-timeout-ms", &self.shape.deadline.as_millis().to_string()]);
        } else {
            command.args(["--ack-wait-ms", &ACK_WAIT.as_millis().to_string()]);
            if self.shape.disk.is_some() {
                command.args(["--queue-storage", "file"]);
            }
            if self.shape.acknowledge_early {
                cable.acknowledge_early();
            }
        }
        let process = Process::start(&format!("{}-{number}", role.binary()), &mut command, self.folder.path());
        Member { role, number, process, cable, door: None }
    }

    /// Waits until a member is ready; a gateway opens its door then. One that cannot start because the broker's disk is full
    /// is started again, as a platform does.
    ///
    /// # Panics
    /// When it does not get ready.
    pub fn wait_ready(&mut self, index: usize) {
        let give_up = Instant::now() + READY_LIMIT;
        let message = |role| if role == Role::Gateway { "metrics listener" } else { "ready" };
        while self.members[index].process.count(message(self.members[index].role)) == 0 {
            let Member { role, process, .. } = &mut self.members[index];
            let (ended, log) = (process.exited().is_some(), process.log_tail());
            assert!(Instant::now() < give_up, "a {role:?} does not get ready:\n{log}");
            if ended {
                assert!(log.contains("no space left on device"), "a {role:?} ended before it was ready:\n{log}");
                self.replace(index);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let member = &mut self.members[index];
        if member.role == Role::Gateway {
            let listener = |name: &str| member.address(name).expect("a gateway logs where it listens");
            let (address, grpc) = (listener("HTTP listener"), listener("gRPC listener"));
            // What a load balancer does: it sends nobody there before the probe says so.
            let ready = || Request::get("/v2/health/ready").send(address).is_ok_and(|answer| answer.status == 200);
            while !ready() {
                assert!(Instant::now() < give_up, "a gateway does not get ready:\n{}", member.process.log_tail());
                std::thread::sleep(Duration::from_millis(20));
            }
            let door = Arc::new(Door::open(address, grpc));
            member.door = Some(door.clone());
            self.doors.lock().expect("no holder panics").push(door);
        }
    }
}

/// A broker that takes small messages only, with its files on the disk, if there is one.
fn start_broker(disk: Option<&SmallDisk>) -> NatsServer {
    let store = disk.map_or_else(|| "STORE".to_owned(), |disk| disk.store().display().to_string());
    let jetstream = format!("store_dir: \"{store}\", max_memory_store: 64GB, max_file_store: 64GB");
    let config = format!("max_payload: {MAX_PAYLOAD}\njetstream {{ {jetstream} }}\n");
    NatsServer::start_with_files(&[("nats.conf", &config)])
}
