//! The server that is attacked.

use std::net::SocketAddr;

/// Where clients find the server.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// HTTP.
    pub http: SocketAddr,
    /// gRPC.
    pub grpc: SocketAddr,
}
