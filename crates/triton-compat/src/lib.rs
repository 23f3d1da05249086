//! Triton's features beside inference that the gateway has for Triton's clients: trace files, regions of shared memory, and flags of its launch
//! scripts. Each part is alone; none of them knows the gateway.
//!
//! Not here: the protocol's messages (`protocol`), which requests are traced and where their tensors lie (the gateway's `handlers`), sequences,
//! whose order the gateway's dispatcher keeps.

mod flags;
pub mod shared_memory;
pub mod traces;

pub use flags::TritonFlags;
