//! `grpc.health.v1.Health`, which orchestrators probe.

use futures_util::stream::Empty;
use tonic::{Request, Response, Status};
use trireme_protocol::grpc::health::health_check_response::ServingStatus;
use trireme_protocol::grpc::health::health_server::Health;
use trireme_protocol::grpc::health::{HealthCheckRequest, HealthCheckResponse};

use crate::handlers::SharedHandlers;

/// Answers health checks.
pub struct HealthService {
    pub handlers: SharedHandlers,
}

// === impl HealthService ===

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = Empty<Result<HealthCheckResponse, Status>>;

    /// Whether the server is ready, whatever service is asked for. A server that is stopping is not.
    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let status = match self.handlers.server_ready() {
            Ok(true) => ServingStatus::Serving,
            Ok(false) | Err(_) => ServingStatus::NotServing,
        };
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("grpc.health.v1.Health/Watch is not offered by this server; use Check"))
    }
}
