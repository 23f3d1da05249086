//! How requests come into this worker: pulled from their model's queue as far as there is room, or handed over by an earlier
//! step in this process; checked, and put into the model's queue of the engine.

mod admit;
mod attempts;
mod bounds;
mod calls;
mod completion;
mod lateness;
mod pull;
mod queue_policy;
mod step_cache;

pub(crate) use admit::hand_over;
pub(crate) use bounds::watch_timeouts;
pub(crate) use calls::IdleModel;
pub(crate) use pull::{Current, pull};
pub(crate) use queue_policy::has_timeouts;
pub use queue_policy::levels as queue_levels;
