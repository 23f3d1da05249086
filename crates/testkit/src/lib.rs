//! Shared by the tests of several crates: a real nats-server or a cluster of three for one test, a server with the hub's
//! routes, and comparisons of floating-point numbers.
//!
//! A dev-dependency only. It panics where a library would return an error, because tests need nothing more than a panic
//! with a clear text.
//!
//! The hub is the one service that cannot run here; [`HubServer`] stands in for it.
//!
//! Not here: fake buses or backends (the in-process bus is one of two implementations, not a mock), and test data of a
//! single crate (it is beside that crate's tests).

mod hub;
mod nats_cluster;
mod nats_server;
mod note;
mod port;
mod relay;
mod tolerance;

pub use hub::{HUB_COMMIT, HubFault, HubServer};
pub use nats_cluster::{NatsCluster, Recovery};
pub use nats_server::NatsServer;
pub use note::{Note, note};
pub use port::quiet_port;
pub use tolerance::{assert_close, cosine};
