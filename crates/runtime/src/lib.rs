//! The stage-worker harness: everything a service does apart from executing its models.
//!
//! A service is a list of [`Backend`]s and a call of [`service::run`]. The harness loads models, pulls work from the bus,
//! forms batches by each model's [`BatchPolicy`], executes them on one OS thread per instance, hands results on,
//! acknowledges, keeps the registry entry alive, and drains.
//!
//! Invariants:
//! - A delivery is settled exactly once, and only after the work has left this process or was answered.
//! - Everything is bounded: work in hand by permits, waiting by deadlines and timeouts.
//! - What decides (`disposition`, batch policies) is pure; tasks, threads and clocks live around it.
//!
//! Not here: wire forms and queues (`bus`), what models compute (`services/*`), clients (`services/gateway`).

mod admin;
mod admin_args;
mod backend;
mod batching;
mod canary;
mod cancel;
pub mod control;
mod control_mode;
mod disposition;
mod drain;
mod execute;
mod held;
mod hosted;
mod intake;
mod lateness;
mod limits;
mod load;
mod models;
mod nats_args;
mod parts;
mod queue;
mod queue_policy;
pub mod service;
mod settle;
pub mod statistics;
mod stepwise;
mod steward;
mod suspects;
pub mod tap;
mod task_set;
mod watchdog;
mod worker;

pub use admin::{Admin, Health};
pub use backend::{
    Backend, ExecuteRequest, ExecuteResponse, ExecuteTiming, Instance, LoadError, LoadedModel, ModelInstance,
    ModelSource, Progress, StepwiseInstance, Stop, Ticket,
};
pub use batching::{Appetite, BatchPolicy, Candidate, Decision, Description, OneAtATime};
pub use cancel::CancelFlag;
pub use control_mode::{ControlArgs, ControlMode, ControlOptions};
pub use drain::LAST_WORDS;
pub use intake::{Intake, Room, RunId};
pub use load::{backend_of, load_version};
pub use parts::one_response;
pub use statistics::{ModelSnapshot, ModelStatistics, QueueLoad, Snapshot, Statistics};
pub use task_set::TaskSet;
pub use worker::{StartError, Worker, WorkerOptions};

/// This host's name, or `unknown-host`.
pub(crate) fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unknown-host".to_owned(),
        name => name.to_owned(),
    }
}
