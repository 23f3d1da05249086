//! The session of an instance: its own, or one that the instances on a GPU share, so that the device has one copy of the
//! weights.
//!
//! Instances run a shared session in turn. Meanwhile the others gather and pad their inputs or copy and divide their outputs,
//! so the device has the next run as soon as one ends. Runs are not made at the same time, though ONNX Runtime allows it: its
//! CUDA provider may give memory to one run that another run still uses (docs/adr/0032-accelerators.md).

use std::sync::Arc;
use std::time::Instant;

use ort::session::Session;
use ort::value::DynValue;
use parking_lot::Mutex;
use trireme_inference::Name;

/// The session of an instance.
pub enum Held {
    /// The instance's own.
    Own(Session),
    /// That of the instances on one device.
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

// === impl Held ===

impl Held {
    /// Uses the session when no other instance does.
    pub fn with<T>(&mut self, task: impl FnOnce(&mut Session) -> T) -> T {
        match self {
            Held::Own(session) => task(session),
            Held::Shared(session) => task(&mut session.lock()),
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
