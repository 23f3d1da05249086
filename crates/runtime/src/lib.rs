//! The worker: all that a service does around the engine.
//!
//! A service is a list of [`Backend`]s and a call of [`service::run`]. The worker loads models, pulls work from the bus
//! (`intake`), has the engine execute it (`trireme_engine`), sends results on and acknowledges deliveries (`settle`),
//! announces the models that it hosts, and drains (`lifecycle`).
//!
//! Invariants:
//! - A delivery is settled exactly once, and only after the work has left this process or was answered.
//! - Everything is bounded: the requests that a worker holds by permits, waiting by deadlines and timeouts.
//! - The code that decides (`disposition`, `queue_policy`, `lateness`) is pure; tasks and clocks are around it.
//!
//! Not here: batches and instances (`engine`), wire forms and queues (`bus`), the backends (`services/*`), clients
//! (`services/gateway`).

pub mod faults;
mod heap;
mod host;
mod hosted;
mod intake;
mod lifecycle;
mod nats_args;
mod observe;
mod pid1;
mod queue_args;
pub mod response_cache;
pub mod service;
mod settle;
mod signals;

pub use intake::queue_levels;
pub use lifecycle::control_mode::{ControlArgs, ControlMode, ControlOptions};
pub use lifecycle::folder_args::FolderArgs;
pub use lifecycle::model_args::{ModelArgs, folder_to_export, local_folder, name_and_model};
pub use lifecycle::{
    LAST_WORDS, OtherContent, StartError, Worker, WorkerOptions, find_model, model_control, read_again,
};
pub use observe::admin::{Admin, Health};
pub use observe::certificates::ShownCertificate;
pub use observe::statistics::{Snapshot, Statistics};
pub use observe::{statistics, tap};
pub use trireme_engine::{
    Appetite, Backend, BatchPolicy, Calls, CancelFlag, Candidate, Decision, Description, DynamicBatcher,
    ExecuteRequest, ExecuteResponse, ExecuteTiming, Instance, LoadError, LoadOptions, LoadedModel, ModelInstance,
    ModelSnapshot, ModelSource, ModelStatistics, Nested, OneAtATime, Outage, Progress, QueueLoad, SequenceSupport,
    StepwiseInstance, Stop, Ticket, backend_of, doing, instead, load_version, one_response,
};
pub use trireme_model_source::is_remote;
pub use trireme_tasks::TaskSet;
