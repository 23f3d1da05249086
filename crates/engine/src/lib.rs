//! The engine: from a checked request to its result.
//!
//! A backend loads a model version ([`load_version`], [`LoadedModel`]). A [`Model`] has its queue, and one OS thread per
//! instance ([`Model::start`]). A request enters by [`Model::enter`]. A guest ([`Guests`]) executes a short one at once; of
//! the others the threads form batches by the model's [`BatchPolicy`] and execute them, or an instance works on them step by
//! step ([`StepwiseInstance`]). A request that is too large for one run is divided ([`Division`]), and others run between its runs. Each result goes to the request's [`Completion`]. Executions that hang and instances that
//! became unreliable are noticed by [`Model::watch_executions`] and [`Model::watch_canary`].
//!
//! Invariants:
//! - Each request that enters the queue is completed, failed or given back exactly once.
//! - The code that decides (`batching`, `dynamic_batching`, `intake`) is pure: tasks, threads and clocks are around it.
//!
//! Not here: where requests come from and where results go (`runtime`), and the backends (`services/*`).

mod activity;
mod backend;
mod background;
mod batching;
mod calls;
mod canary;
mod cancel;
mod completion;
mod division;
mod dynamic_batching;
mod execute;
mod guests;
mod instance;
mod intake;
mod load;
mod model;
mod outage;
mod queue;
mod request;
mod runs;
mod statistics;
mod stepwise;
mod threads;
pub mod warmup;
mod watch;
mod watchdog;

pub use activity::doing;
pub use backend::{
    Backend, BackgroundInstance, CPU_INSTEAD, Instance, LoadError, LoadedModel, ModelSource, SequenceSupport,
    in_background, one_line,
};
pub use batching::{Appetite, BatchPolicy, Candidate, Decision, Description, OneAtATime};
pub use calls::{Answered, Caller, Calls, IdleCalls, Nested, NestedResponse, Origin};
pub use canary::Canary;
pub use cancel::{CancelFlag, cancelled_by_client, expired, refused, unwanted};
pub use completion::{Completion, SendParts};
pub use division::Division;
pub use dynamic_batching::{DynamicBatcher, policy};
pub use guests::{Guests, SHORT_RUN};
pub use instance::{ModelInstance, Outage, Progress, StepwiseInstance, Stop, Ticket, one_response};
pub use intake::{Intake, Room, RunId, allowance, most_in_hand};
pub use load::{LoadOptions, Loaded, backend_of, instead, load_version, load_watched, stage};
pub use model::{Model, Threads, Work};
pub use outage::all_out;
pub use queue::{Permit, Seat, WorkQueue};
pub use request::{ExecuteRequest, ExecuteResponse, ExecuteTiming};
pub use statistics::{ModelSnapshot, ModelStatistics, QueueLoad};
pub use threads::{Promise, ThreadLimits, on_thread, promise, spawn, with_limits};
pub use watchdog::Executions;
