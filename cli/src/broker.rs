//! The broker, for tools that work on a deployment over NATS.

use std::sync::Arc;

use anyhow::anyhow;
use trireme_bus::{Bus, BusError};
use trireme_runtime::service::NatsArgs;

/// Seconds for which a tool goes on trying to reach the broker: a person waits for it.
pub const CONNECT_TIMEOUT_SECS: &str = "3";

/// Connects as an operator's tool called `name`. The error of a broker that is not there says what the command needs.
pub async fn connect(nats: &NatsArgs, name: &str) -> anyhow::Result<Arc<dyn Bus>> {
    nats.connect("admin", name).await.map_err(|error| match error {
        BusError::Unreachable(reason) => anyhow!(
            "no broker answers ({reason}): this command needs the NATS server of a deployment, at --nats-url; `trireme serve` has \
             none"
        ),
        error => error.into(),
    })
}
