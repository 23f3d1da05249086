//! One process of the system under chaos, with its network cable and, for a gateway, its door.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use super::cable::Cable;
use super::clock::Clock;
use crate::Process;

/// The service that a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Gateway,
    Tokenizer,
    Model,
    Postprocess,
    /// Models in Python: each instance a child process.
    Python,
    /// Model and postprocess in one process: results of one go to the other without the broker.
    Both,
}

/// One process and its cable. A replacement takes the place of a process that ended.
pub(super) struct Member {
    pub role: Role,
    /// Its number; numbers are not used again.
    pub number: usize,
    pub process: Process,
    /// The cable between it and the brokers.
    pub cable: Cable,
    /// Its address for clients, if it is a gateway that is ready.
    pub door: Option<Arc<Door>>,
    /// Its clock.
    pub _clock: Clock,
}

/// Connections to a gateway that clients keep. There are few, so that after a restart they are soon all in use again.
const KEPT: usize = 4;

/// A gateway as clients see it.
#[derive(Debug)]
pub(super) struct Door {
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    state: Mutex<DoorState>,
    /// Idle HTTP connections that have had an answer.
    kept: Mutex<Vec<TcpStream>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DoorState {
    Open,
    /// It gets SIGTERM: it answers the requests that it has accepted.
    Stopping,
    /// It was killed and answers nothing any more.
    Killed,
}

/// The doors that are open, as a load balancer knows them.
pub(super) type Doors = Arc<Mutex<Vec<Arc<Door>>>>;

// === impl Role ===

impl Role {
    pub fn binary(self) -> &'static str {
        match self {
            Role::Gateway => "trireme-gateway",
            Role::Tokenizer => "trireme-tokenizer",
            Role::Model => "trireme-model",
            Role::Postprocess => "trireme-postprocess",
            Role::Python => "trireme-python",
            Role::Both => "trireme",
        }
    }

    /// The first arguments of the binary.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Role::Python => &["--allow-python"],
            Role::Both => &["worker", "--stages", "model,postprocess"],
            _ => &[],
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Role::Gateway => "gateway",
            Role::Tokenizer => "tokenizer",
            Role::Model => "model",
            Role::Postprocess => "postprocess",
            Role::Python => "python",
            Role::Both => "model+postprocess",
        }
    }
}

// === impl Member ===

impl Member {
    pub fn name(&self) -> String {
        format!("{}-{}", self.role.name(), self.number)
    }

    /// The address of one of its listeners, from its log; `None` if it has not been logged.
    pub fn address(&self, listener: &str) -> Option<SocketAddr> {
        let events = self.process.events();
        let listening = events.iter().find(|event| event["message"] == listener)?;
        listening["address"].as_str()?.parse().ok()
    }
}

// === impl Door ===

impl Door {
    pub fn open(http: SocketAddr, grpc: SocketAddr) -> Door {
        Door { http, grpc, state: Mutex::new(DoorState::Open), kept: Mutex::default() }
    }

    /// Notes the gateway's next state before it changes.
    pub fn set(&self, state: DoorState) {
        *self.state.lock().expect("no holder panics") = state;
    }

    /// A kept connection, if there is one.
    pub fn reuse(&self) -> Option<TcpStream> {
        self.kept.lock().expect("no holder panics").pop()
    }

    /// Keeps a connection for another request, unless enough are kept.
    pub fn keep(&self, connection: TcpStream) {
        let mut kept = self.kept.lock().expect("no holder panics");
        if kept.len() < KEPT {
            kept.push(connection);
        }
    }

    pub fn state(&self) -> DoorState {
        *self.state.lock().expect("no holder panics")
    }
}
