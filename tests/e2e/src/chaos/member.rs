//! One process of the system under chaos, its network cable, and its door.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};

use super::proxy::Proxy;
use crate::Process;

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Gateway,
    Tokenizer,
    Model,
    Postprocess,
    /// Model and postprocess in one process: what one gives reaches the other without the broker.
    Both,
}

/// One process and its cable. A replacement takes the place of a process that ended.
pub(super) struct Member {
    pub role: Role,
    /// Its number, never used again.
    pub number: usize,
    pub process: Process,
    /// Between it and the broker.
    pub cable: Proxy,
    /// Where clients reach it, if it is a gateway that is ready.
    pub door: Option<Arc<Door>>,
}

/// Connections to a gateway that clients keep: so few that there are soon as many as ever.
const KEPT: usize = 4;

/// A gateway as clients see it.
#[derive(Debug)]
pub(super) struct Door {
    pub http: SocketAddr,
    pub grpc: SocketAddr,
    state: Mutex<DoorState>,
    /// HTTP connections that have had an answer and wait for another request.
    kept: Mutex<Vec<TcpStream>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DoorState {
    Open,
    /// It was told to stop: it answers what it has taken.
    Stopping,
    /// Nothing comes from it any more.
    Killed,
}

/// The doors that are open: what a load balancer knows.
pub(super) type Doors = Arc<Mutex<Vec<Arc<Door>>>>;

// === impl Role ===

impl Role {
    pub fn binary(self) -> &'static str {
        match self {
            Role::Gateway => "trireme-gateway",
            Role::Tokenizer => "trireme-tokenizer",
            Role::Model => "trireme-model",
            Role::Postprocess => "trireme-postprocess",
            Role::Both => "trireme",
        }
    }

    /// What the binary is told first.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
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
            Role::Both => "model+postprocess",
        }
    }
}

// === impl Member ===

impl Member {
    pub fn name(&self) -> String {
        format!("{}-{}", self.role.name(), self.number)
    }

    /// Where one of its listeners is, by the line that it logs; `None` while there is none.
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

    /// Says what is going to happen to the gateway, before it does.
    pub fn set(&self, state: DoorState) {
        *self.state.lock().expect("no holder panics") = state;
    }

    /// A connection that was kept, if there is one.
    pub fn reuse(&self) -> Option<TcpStream> {
        self.kept.lock().expect("no holder panics").pop()
    }

    /// Keeps a connection for another request, unless there are enough.
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
