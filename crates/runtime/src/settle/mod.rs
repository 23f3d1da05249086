//! How a request ends in this worker: its result goes to the next step, to the next queue or to its gateway, or an error is
//! answered, tried again or given up. Only then is its delivery settled.

mod attempts;
mod counts;
mod disposition;
mod parts;
mod results;

pub(crate) use attempts::GIVE_BACK_PAUSE;
pub(crate) use parts::{PartSender, start as start_parts};
pub(crate) use results::given_up;
