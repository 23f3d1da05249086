//! The NATS service API: `nats micro ls` and `nats micro info` show every process with what it is.

use std::collections::HashMap;

use super::Nats;
use crate::BusError;

/// Answers `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS` for this process, for as long as the connection lives.
pub async fn advertise(nats: &Nats, service: &str, metadata: HashMap<String, String>) -> Result<(), BusError> {
    use async_nats::service::ServiceExt;
    let started = nats
        .client
        .service_builder()
        .description("Trireme")
        .metadata(metadata)
        .start(format!("trireme-{service}"), env!("CARGO_PKG_VERSION"))
        .await
        .map_err(|error| BusError::Refused { action: "joining the NATS service API", reason: error.to_string() })?;
    *nats.service.lock() = Some(started);
    Ok(())
}
