//! HTTP before and behind the routes: the layers that every request passes, bodies in, answers and errors out, and the document of the routes.
//!
//! Not here: which routes there are.

pub mod access_log;
pub mod body;
pub mod coding;
pub mod cors;
pub mod describe;
mod document;
pub mod endpoint;
pub(crate) mod host;
mod incoming;
pub mod json;
mod log_writer;
pub mod paths;
pub mod query;
pub mod response;
pub mod route;
pub mod schema;
pub mod shapes;

#[cfg(test)]
mod tests;

pub use document::document;
pub use incoming::HttpTransport;
pub use log_writer::{LogThread, LogWriter};
