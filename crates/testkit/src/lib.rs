//! What tests of several crates share: a real nats-server of their own, and comparisons of floating-point numbers.
//!
//! A dev-dependency only. It panics where a library would return an error: its callers are tests, and a panic with a clear
//! text is what they need.
//!
//! Not here: fake buses or backends (the in-process bus is one implementation among two, not a mock), test data of a
//! single crate (it lies beside that crate's tests).

mod nats_server;
mod port;
mod tolerance;

pub use nats_server::NatsServer;
pub use port::quiet_port;
pub use tolerance::{assert_close, cosine};
