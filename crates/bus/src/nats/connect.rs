//! Connecting: visible retries that end, and a watch on the connection afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use tokio::sync::watch;

use super::Nats;
use crate::{BusError, Connection};

/// How long closing may wait for what is buffered to go out.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a question to the broker may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A peer that is silently gone is noticed within two of these.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// Pause between attempts to connect at start.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How to reach NATS.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// One or several server URLs, separated by commas: `nats://host:4222`.
    pub url: String,
    /// The name of this connection, shown by `nats server report connections`.
    pub name: String,
    /// How long to go on trying before giving up.
    pub connect_timeout: Duration,
    /// A credentials file (`.creds`), if the server asks for one.
    pub credentials: Option<std::path::PathBuf>,
}

impl Nats {
    /// Connects, trying again until `connect_timeout` has passed; every failed attempt is logged. Errors when the server
    /// cannot be reached, has no JetStream, or is too old.
    pub async fn connect(options: &NatsOptions) -> Result<Nats, BusError> {
        let give_up = Instant::now() + options.connect_timeout;
        loop {
            let error = match Nats::try_connect(options).await {
                Ok(nats) => return Ok(nats),
                Err(error) => error,
            };
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() || !matches!(error, BusError::Unreachable(_)) {
                return Err(error);
            }
            tracing::warn!(url = options.url, %error, "NATS is not there yet; trying for another {} s", left.as_secs());
            tokio::time::sleep(RETRY_PAUSE.min(left)).await;
        }
    }

    async fn try_connect(options: &NatsOptions) -> Result<Nats, BusError> {
        let urls: Vec<&str> = options.url.split(',').map(str::trim).filter(|url| !url.is_empty()).collect();
        let unreachable = |reason: String| BusError::Unreachable(format!("NATS at {}: {reason}", options.url));

        let (state, mut connection) = watch::channel(Connection::Down);
        let mut connect = async_nats::ConnectOptions::new()
            .name(&options.name)
            .ping_interval(PING_INTERVAL)
            .request_timeout(Some(REQUEST_TIMEOUT))
            .event_callback(move |event| {
                on_event(&state, &event);
                async {}
            });
        if let Some(path) = &options.credentials {
            let credentials = std::fs::read_to_string(path).and_then(|text| connect.credentials(&text));
            connect = credentials.map_err(|error| BusError::Refused {
                action: "reading credentials",
                reason: format!("{}: {error}", path.display()),
            })?;
        }
        let client = connect.connect(urls).await.map_err(|error| unreachable(error.to_string()))?;
        // Told by an event that is on its way: without it a new bus would say for a moment that it is down.
        let up = connection.wait_for(|state| matches!(state, Connection::Up(_)));
        let up = tokio::time::timeout(REQUEST_TIMEOUT, up).await;
        up.map(drop).map_err(|_| unreachable("connected, but not told so".to_owned()))?;
        let version = client.server_info().version;
        if !client.is_server_compatible(2, 11, 0) {
            return Err(BusError::Refused {
                action: "connecting",
                reason: format!("nats-server {version} is too old, 2.11 or newer is needed"),
            });
        }
        let jetstream = jetstream::context::ContextBuilder::new().timeout(REQUEST_TIMEOUT).build(client.clone());
        jetstream.query_account().await.map_err(|error| BusError::Refused {
            action: "using JetStream",
            reason: format!("{error}; start nats-server with -js"),
        })?;
        let max_payload = client.server_info().max_payload;
        tracing::info!(url = options.url, version, max_payload, "connected to NATS");
        Ok(Nats { client, jetstream, connection, service: Arc::default() })
    }
}

fn on_event(state: &watch::Sender<Connection>, event: &async_nats::Event) {
    use async_nats::Event;
    match event {
        Event::Connected => drop(state.send_replace(Connection::Up(next_generation()))),
        Event::Disconnected => {
            tracing::warn!("NATS connection lost; reconnecting");
            state.send_replace(Connection::Down);
        }
        Event::SlowConsumer(subscription) => {
            tracing::error!(subscription, "messages from NATS were dropped: this process reads too slowly");
        }
        Event::ServerError(error) => tracing::warn!(%error, "NATS reported an error"),
        Event::ClientError(error) => tracing::warn!(%error, "NATS client error"),
        Event::LameDuckMode => tracing::info!("NATS server is about to shut down"),
        Event::Draining | Event::Closed => {}
    }
}

/// Numbers connections across all of the process's NATS buses; only that they differ matters.
fn next_generation() -> u64 {
    static GENERATION: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    GENERATION.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
