//! The bus over NATS JetStream: a work-queue stream for each level of a model version's queue, a stream for each store,
//! and replies and topics over core NATS. Needs nats-server 2.11 or newer with JetStream enabled.
//!
//! The only user of `async-nats`. Each file is one part of the surface, from the bottom:
//! - the [`connection`] that all parts share; [`connect`], with [`address`] and [`login`]; the time [`limits`] of requests;
//! - queues: [`work`] publishes; a worker's [`consumer`] pulls, [`pulls`] counts its requests, and [`deliveries`] reads the messages
//!   and keeps them alive until they are settled; [`bulk`] for the bulk lanes;
//! - [`replies`] and [`topics`];
//! - [`store`], with [`reads`], and with [`groups`] and [`batches`] for records that are written at the same time;
//! - [`streams`] (creating streams), with [`queues`] for those of work, and [`buckets`] (their configurations), fitted into
//!   the limits of an [`account`], which [`examine`] shows before; [`reach`] counts how
//!   long one is out of reach;
//! - the broker's [`clock`] and [`pulse`].
//!
//! Bodies that travel by claim are in [`claims`], names on the wire in [`subjects`], headers in [`headers`], and
//! the meaning of the broker's errors in [`errors`].

mod account;
mod address;
mod batches;
mod buckets;
mod bulk;
mod bus;
mod claims;
mod clock;
mod connect;
mod connection;
mod consumer;
mod deliveries;
mod errors;
mod examine;
mod groups;
mod headers;
mod limits;
mod login;
mod pulls;
mod pulse;
mod queues;
mod reach;
mod reads;
mod remedies;
mod replies;
mod store;
mod streams;
mod subjects;
mod topics;
mod work;

pub use address::NatsUrl;
pub use connect::{Deployment, NatsOptions};
pub use connection::Nats;
pub use examine::{Counted, Examination, NeededStream};
pub use login::{NatsLogin, NatsTls};
pub use streams::STORES;
pub use subjects::DeploymentName;
