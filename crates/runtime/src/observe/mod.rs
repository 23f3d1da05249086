//! The views of a process: its statistics and metrics, its admin listener, taps.

pub(crate) mod admin;
pub(crate) mod admin_args;
pub(crate) mod certificates;
pub mod statistics;
pub mod tap;
