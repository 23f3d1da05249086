//! Batching: which requests run together, and how their tensors are joined and split ([`merge`]).
//!
//! There are four policies. [`LengthBatcher`] is for models that declare their inputs as paddable ([`Declaration`]):
//! it puts texts of similar length together. [`PackedBatcher`] is for such models whose graph takes texts of any lengths: it runs them in
//! the order of arrival. [`DynamicBatcher`](trireme_engine::DynamicBatcher) is Triton's dynamic batcher, for requests of equal
//! shapes. Models without either run each request alone. All are pure; the engine has the queue
//! and the threads.

pub mod apart;
mod arrival;
pub mod cost;
mod declaration;
mod length;
pub mod merge;
pub mod packing;
mod padding;
#[cfg(test)]
mod simulator;
pub mod spans;

pub use arrival::PackedBatcher;
pub use declaration::Declaration;
pub use length::{LengthBatcher, USUAL_LENGTH};
pub use padding::{Padded, PaddedInput, Padding, Steps, UnpaddedOutput};
pub use trireme_engine::policy;
