//! The system under chaos: brokers, gateways and workers as processes, each member with a network cable of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::admin::Copy;
use super::brokers::{self, Brokers};
use super::cable::Cable;
use super::clock::Clock;
use super::member::{Door, DoorState, Doors, Member, Role};
use super::models::models;
use super::settings;
use super::shape::Shape;
use crate::{ModelFolder, Process, Request, product, python};

/// How long a process may take to become ready. It usually takes about a second, but test machines can be busy.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// The parts of the system, in order; gateways come first.
const MEMBERS: [Role; 11] = {
    use Role::*;
    [Gateway, Gateway, Tokenizer, Tokenizer, Model, Model, Model, Postprocess, Postprocess, Python, Python]
};

/// The same with stages that share a process.
const MEMBERS_THAT_HAND_OVER: [Role; 11] = {
    use Role::*;
    [Gateway, Gateway, Tokenizer, Tokenizer, Model, Both, Both, Both, Postprocess, Python, Python]
};

/// The number of processes.
pub(super) const MEMBER_COUNT: usize = MEMBERS.len();

/// The system.
pub(super) struct Cluster {
    pub brokers: Brokers,
    /// Gateways and workers.
    pub members: Vec<Member>,
    /// The gateways that clients may use.
    pub doors: Doors,
    /// Members that will replace others, with the index of the member that each replaces.
    pub arriving: Vec<(usize, Member)>,
    pub shape: Shape,
    /// The node that the last node fault was aimed at.
    pub victim: usize,
    /// The node that members cannot reach.
    pub cut_off: Option<usize>,
    /// The stream to restore after a fault of data.
    pub copy: Option<Copy>,
    /// How many messages waited in the stream at each fault of data.
    pub harmed: Vec<u64>,
    models: ModelFolder,
    folder: TempDir,
    started: usize,
}

// === impl Shape ===

impl Shape {
    /// A single broker with everything in memory, and no options.
    pub fn new(deadline: Duration) -> Shape {
        let (acknowledge_early, hand_over, disk, brokers, files, clocks) = (false, false, None, 1, false, None);
        Shape { deadline, acknowledge_early, hand_over, disk, brokers, files, clocks }
    }

    fn roles(&self) -> [Role; MEMBER_COUNT] {
        if self.hand_over { MEMBERS_THAT_HAND_OVER } else { MEMBERS }
    }
}

// === impl Cluster ===

impl Cluster {
    /// Starts all processes and waits until they are ready.
    ///
    /// # Panics
    /// When a process does not become ready.
    pub fn start(shape: Shape) -> Cluster {
        let mut cluster = Cluster {
            brokers: match shape.brokers {
                1 => Brokers::one(shape.disk.as_ref()),
                _ => Brokers::three(shape.disk.as_ref()),
            },
            members: Vec::new(),
            doors: Doors::default(),
            arriving: Vec::new(),
            victim: 0,
            cut_off: None,
            copy: None,
            harmed: Vec::new(),
            models: models(),
            folder: tempfile::Builder::new().prefix("trireme-chaos-").tempdir().expect("a temporary folder"),
            started: 0,
            shape,
        };
        cluster.members = (0..MEMBER_COUNT).map(|place| cluster.spawn(place)).collect();
        // Gateways come first and are ready only when the workers are.
        for index in (0..cluster.members.len()).rev() {
            cluster.wait_ready(index);
        }
        cluster
    }

    /// Removes a gateway from the load balancer, with the reason; does nothing for a worker.
    pub fn close_door(&self, index: usize, state: DoorState) {
        if let Some(door) = &self.members[index].door {
            door.set(state);
            self.doors.lock().expect("no holder panics").retain(|open| !Arc::ptr_eq(open, door));
        }
    }

    /// Starts a process in place of one that has ended; does not wait for it.
    pub fn replace(&mut self, index: usize) {
        self.members[index] = self.spawn(index);
    }

    /// Sends a signal to a broker: SIGSTOP halts it, like a host that hangs; SIGCONT resumes it.
    pub fn signal_broker(&self, number: usize, signal: Signal) {
        let (_, broker) = self.brokers.all().nth(number).expect("there are so many brokers");
        brokers::signal(broker.process_id().expect("the broker runs"), signal);
    }

    /// Every process by name, brokers included, with its process id and, if it has metrics, its member.
    pub fn processes(&self) -> impl Iterator<Item = (String, u32, Option<&Member>)> {
        let brokers = self.brokers.all().filter_map(|(name, broker)| Some((name, broker.process_id()?, None)));
        let members = self.members.iter().map(|member| (member.name(), member.process.id(), Some(member)));
        brokers.chain(members)
    }

    /// # Panics
    /// When a member has ended by itself.
    pub fn assert_alive(&mut self) {
        let ended = self.members.iter_mut().filter_map(|member| {
            let status = member.process.exited()?;
            Some(format!("{} ({status}): {}", member.name(), member.process.log_tail()))
        });
        let ended: Vec<String> = ended.collect();
        assert!(ended.is_empty(), "ended by themselves:\n{}", ended.join("\n"));
    }

    /// Starts a process for this place among the members; does not wait for it.
    pub fn spawn(&mut self, place: usize) -> Member {
        let (role, number) = (self.shape.roles()[place], self.started);
        self.started += 1;
        let cable = Cable::start(&self.brokers.urls());
        if let Some(broker) = self.cut_off {
            cable.to(broker).cut();
        }
        let mut command = product(role.binary());
        if role == Role::Python {
            command.arg("--python").arg(python());
        }
        command.args(role.arguments()).args(["--admin-address", "127.0.0.1:0", "--nats-url", &cable.urls()]);
        command.arg("--model-repository").arg(self.models.path());
        command.args(settings::arguments(role, &self.shape));
        if role != Role::Gateway && self.shape.acknowledge_early {
            cable.acknowledge_early();
        }
        let clocks = self.shape.clocks.as_ref();
        clocks.inspect(|clocks| clocks.set(place, &mut command));
        let process = Process::start(&format!("{}-{number}", role.binary()), &mut command, self.folder.path());
        let clock = clocks.map_or_else(Clock::right, |_| Clock::wrong(process.id()));
        Member { role, number, process, cable, door: None, _clock: clock }
    }

    /// Waits until a member is ready; then a gateway opens its door. A member that cannot start because the broker's
    /// disk is full is started again, as an orchestrator does.
    ///
    /// # Panics
    /// When it does not become ready.
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
            // Like a load balancer: no clients before the readiness probe succeeds.
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
