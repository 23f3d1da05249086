//! The worker harness: all that a service does apart from executing its models.
//!
//! A service is a list of [`Backend`]s and a call of [`service::run`]. The harness loads models, pulls work from the
//! bus, forms batches by each model's [`BatchPolicy`] and executes them on one OS thread per instance. It sends results
//! on, acknowledges deliveries, announces the models that it hosts, and drains.
//!
//! Invariants:
//! - A delivery is settled exactly once, and only after the work has left this process or was answered.
//! - Everything is bounded: the requests that a worker holds by permits, waiting by deadlines and timeouts.
//! - The code that decides (`disposition`, batch policies) is pure; tasks, threads and clocks are around it.
//!
//! Not here: wire forms and queues (`bus`), the backends (`services/*`), clients (`services/gateway`).

mod activity;
mod admin;
mod admin_args;
mod announce;
mod backend;
mod batching;
mod calls;
mod canary;
mod cancel;
pub mod control;
mod control_mode;
mod disposition;
mod drain;
mod dynamic_batching;
mod execute;
pub mod faults;
mod held;
mod hosted;
mod intake;
mod lateness;
mod limits;
mod load;
mod model_args;
mod models;
mod nats_args;
mod outage;
mod parts;
mod queue;
mod queue_args;
mod queue_policy;
pub mod response_cache;
pub mod service;
mod settle;
pub mod statistics;
mod step_cache;
mod stepwise;
mod steward;
mod suspects;
pub mod tap;
mod task_set;
mod watchdog;
mod worker;

pub use activity::doing;
pub use admin::{Admin, Health};
pub use backend::{
    Backend, ExecuteRequest, ExecuteResponse, ExecuteTiming, Instance, LoadError, LoadedModel, ModelInstance,
    ModelSource, Outage, Progress, SequenceSupport, StepwiseInstance, Stop, Ticket,
};
pub use batching::{Appetite, BatchPolicy, Candidate, Decision, Description, OneAtATime};
pub use calls::{Calls, Nested};
pub use cancel::CancelFlag;
pub use control_mode::{ControlArgs, ControlMode, ControlOptions};
pub use drain::LAST_WORDS;
pub use dynamic_batching::DynamicBatcher;
pub use intake::{Intake, Room, RunId};
pub use load::{Loaded, backend_of, instead, load_version};
pub use model_args::{ModelArgs, local_folder, precision_parser};
pub use parts::one_response;
pub use queue_policy::levels as queue_levels;
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
