//! A port and the layers before its routes, for HTTP and gRPC alike: connections and their limits, TLS, the time that a body may take, the
//! bytes of all requests, keys and restrictions, and limits of owners.
//!
//! A request passes `connections` (accepted, limited, TLS), `body` (its pauses are limited, and its size once it is inflated), `access` (key,
//! lane, restriction) and holds its bytes of the `budget` until its answer is sent, in the [`Intake`]. Before that it passes the [`Stack`], whose
//! layers are in one list: request id and access log, and over HTTP cross-origin rules and the path of a proxy.
//!
//! Not here: routes, and the formats of their requests and answers.

pub mod access;
mod answer_headers;
pub mod body;
pub mod budget;
pub mod connections;
mod context;
pub mod http;
mod intake;
pub mod owners;
mod request_times;
mod stack;
mod traffic;

pub use answer_headers::answer_headers;
pub use context::{Port, REQUEST_ID, RequestContext};
pub use intake::{Intake, Transport};
pub use request_times::RequestTimes;
pub use stack::{HttpLayers, Stack};
pub use traffic::Traffic;
