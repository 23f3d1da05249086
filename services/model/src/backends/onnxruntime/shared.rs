//! The session of an instance: its own, or one that the instances on a GPU share, so that the device has one copy of the
//! weights.
//!
//! Instances run a shared session in turn. Meanwhile the others gather and pad their inputs or copy and divide their outputs,
//! so the device has the next run as soon as one ends. Runs are not made at the same time, though ONNX Runtime allows it: its
//! CUDA provider may give memory to one run that another run still uses (docs/adr/0032-accelerators.md).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use ort::session::Session;
use ort::value::DynValue;
use parking_lot::Mutex;
use trireme_inference::Name;

use super::accelerators::InstanceDevice;

/// The session of an instance.
pub enum InstanceSession {
    /// The instance's own.
    Own(Session),
    /// The session of all instances on one device.
    Shared(Arc<Mutex<Session>>),
}

/// A run's outputs and times.
pub struct Ran {
    /// The outputs.
    pub outputs: Vec<(Name, DynValue)>,
    /// When its turn came.
    pub began: Instant,
    /// When it ended.
    pub ended: Instant,
}

// === impl InstanceSession ===

impl InstanceSession {
    /// The session for an instance at `place`. With `shared` it is the one of its place there, if there is one already. Otherwise
    /// `make` makes it.
    pub fn at<E>(
        place: InstanceDevice,
        shared: Option<&mut HashMap<InstanceDevice, Arc<Mutex<Session>>>>,
        make: impl FnOnce() -> Result<Session, E>,
    ) -> Result<InstanceSession, E> {
        let Some(shared) = shared else { return make().map(InstanceSession::Own) };
        if let Some(session) = shared.get(&place) {
            return Ok(InstanceSession::Shared(session.clone()));
        }
        let session = Arc::new(Mutex::new(make()?));
        shared.insert(place, session.clone());
        Ok(InstanceSession::Shared(session))
    }

    /// The session, if it is the instance's own.
    pub fn into_own(self) -> Option<Session> {
        match self {
            InstanceSession::Own(session) => Some(session),
            InstanceSession::Shared(_) => None,
        }
    }

    /// Uses the session when no other instance does.
    pub fn with<T>(&mut self, task: impl FnOnce(&mut Session) -> T) -> T {
        match self {
            InstanceSession::Own(session) => task(session),
            InstanceSession::Shared(session) => task(&mut session.lock()),
        }
    }

    /// Runs the session when no other instance does. `run` returns its outputs.
    pub fn run(&mut self, run: impl FnOnce(&mut Session) -> ort::Result<Vec<(Name, DynValue)>>) -> ort::Result<Ran> {
        self.with(|session| {
            let began = Instant::now();
            Ok(Ran { outputs: run(session)?, began, ended: Instant::now() })
        })
    }
}
