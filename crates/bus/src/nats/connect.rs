//! Connecting: who we are, visible retries that end, and a watch on the connection afterwards.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::{ConnectErrorKind, ConnectOptions, jetstream};
use tokio::sync::{Semaphore, watch};

use super::Nats;
use super::fence::Fence;
use super::work::chain;
use crate::{BusError, Connection};

/// How long closing may wait for what is buffered to go out.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a question to the broker may take, and how long the client may take to accept something to send.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest pause between attempts to connect again. Requests wait meanwhile.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// The broker is asked for a sign of life when it was silent for so long.
const PING_INTERVAL: Duration = Duration::from_secs(1);

/// A broker that leaves this many pings in a row unanswered counts as lost; the client's own number.
#[cfg(test)]
const PINGS: u32 = 3;

/// Pause between attempts to connect at start.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Messages of one subscription that wait to be looked at; the client drops what comes beyond and says so. For replies:
/// above what a gateway has in flight, unless answers come in many parts.
const SUBSCRIPTION_CAPACITY: usize = 16_384;

/// How to reach NATS.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// One or several server URLs, separated by commas: `nats://host:4222`.
    pub url: String,
    /// The name of this connection, shown by `nats server report connections`.
    pub name: String,
    /// The service this process is one of. Answers to its questions come to `_INBOX.<service>.>`, so that a server can
    /// keep other services from reading them.
    pub service: String,
    /// Whether this process makes streams, also those that others ask for: a gateway does.
    pub keeps_streams: bool,
    /// How long to go on trying before giving up.
    pub connect_timeout: Duration,
    /// Who we are.
    pub login: NatsLogin,
    /// What to trust and to show when the connection is encrypted.
    pub tls: NatsTls,
}

/// Who connects.
#[derive(Clone, Debug, Default)]
pub enum NatsLogin {
    /// Nobody in particular, or whom the URL names.
    #[default]
    Anonymous,
    /// A user whose password is the first line of a file.
    Password {
        /// The user's name.
        user: String,
        /// The file with the password.
        password_file: PathBuf,
    },
    /// Whom a credentials file (`.creds`) names.
    Credentials(PathBuf),
}

/// Files for an encrypted connection. Without any, encryption is up to the URL (`tls://`) and the server, and the
/// system's certificate authorities are trusted.
#[derive(Clone, Debug, Default)]
pub struct NatsTls {
    /// Certificate authorities to trust in place of the system's. Encryption is insisted on.
    pub ca: Option<PathBuf>,
    /// Our certificate and its key. Encryption is insisted on.
    pub certificate: Option<(PathBuf, PathBuf)>,
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
        let (refused, refusals) = watch::channel(String::new());
        let mut connect = ConnectOptions::new()
            .name(&options.name)
            .custom_inbox_prefix(format!("_INBOX.{}", super::escape_token(&options.service)))
            .ping_interval(PING_INTERVAL)
            .subscription_capacity(SUBSCRIPTION_CAPACITY)
            .reconnect_delay_callback(|attempts| RECONNECT_PAUSE.min(Duration::from_millis(1 << attempts.min(16))))
            .request_timeout(Some(REQUEST_TIMEOUT))
            .event_callback(move |event| {
                on_event(&state, &refused, &event);
                async {}
            });
        connect = options.login.apply(options.tls.apply(connect)?)?;
        let client = connect.connect(urls).await.map_err(|error| match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => BusError::Refused {
                action: "connecting",
                reason: format!("NATS at {} does not let {} in: {}", options.url, options.login, chain(&error)),
            },
            ConnectErrorKind::Tls | ConnectErrorKind::ServerParse => BusError::Refused {
                action: "connecting",
                reason: format!("NATS at {}: {}", options.url, chain(&error)),
            },
            _ => unreachable(chain(&error)),
        })?;
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
        let fence = Fence::open(&client, &connection, &options.service).await?;
        let nats = Nats {
            client,
            jetstream,
            connection,
            refusals,
            fence,
            keeps_streams: options.keeps_streams,
            cancelling: Arc::new(Semaphore::new(super::CANCELLING)),
            queues: Arc::default(),
            service: Arc::default(),
        };
        if options.keeps_streams {
            nats.keep_streams().await?;
        }
        Ok(nats)
    }
}

// === impl NatsLogin ===

impl NatsLogin {
    fn apply(&self, connect: ConnectOptions) -> Result<ConnectOptions, BusError> {
        match self {
            NatsLogin::Anonymous => Ok(connect),
            NatsLogin::Password { user, password_file } => {
                let text = read("the NATS password", password_file)?;
                match text.lines().next().filter(|line| !line.is_empty()) {
                    Some(password) => Ok(connect.user_and_password(user.clone(), password.to_owned())),
                    None => Err(unfit("the NATS password", password_file, "its first line is empty")),
                }
            }
            NatsLogin::Credentials(path) => {
                let text = read("NATS credentials", path)?;
                connect.credentials(&text).map_err(|error| unfit("NATS credentials", path, error))
            }
        }
    }
}

impl std::fmt::Display for NatsLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NatsLogin::Anonymous => f.write_str("a client without credentials"),
            NatsLogin::Password { user, .. } => write!(f, "user '{user}'"),
            NatsLogin::Credentials(path) => write!(f, "the user of '{}'", path.display()),
        }
    }
}

// === impl NatsTls ===

impl NatsTls {
    /// The client reads the files itself when it connects, but its errors do not name them.
    fn apply(&self, mut connect: ConnectOptions) -> Result<ConnectOptions, BusError> {
        if let Some(ca) = &self.ca {
            check_pem("the NATS certificate authority", ca, "CERTIFICATE-----")?;
            connect = connect.add_root_certificates(ca.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &self.certificate {
            check_pem("the NATS client certificate", certificate, "CERTIFICATE-----")?;
            check_pem("the NATS client key", key, "PRIVATE KEY-----")?;
            connect = connect.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        Ok(connect)
    }
}

fn check_pem(what: &'static str, path: &Path, label: &str) -> Result<(), BusError> {
    match read(what, path)?.contains(label) {
        true => Ok(()),
        false => Err(unfit(what, path, format!("expected a PEM file with a line that ends with '{label}'"))),
    }
}

fn read(what: &'static str, path: &Path) -> Result<String, BusError> {
    std::fs::read_to_string(path).map_err(|error| unfit(what, path, error))
}

fn unfit(what: &'static str, path: &Path, reason: impl std::fmt::Display) -> BusError {
    BusError::Refused {
        action: "connecting",
        reason: format!("{what} in '{}' cannot be used: {reason}", path.display()),
    }
}

/// Waits until the client has taken something to send, within limits: while the connection is down it takes what fits into
/// its channel, and then nothing until it is back.
pub async fn taken<T, E: std::fmt::Display>(sending: impl Future<Output = Result<T, E>>) -> Result<T, BusError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, sending).await {
        Ok(Ok(sent)) => Ok(sent),
        Ok(Err(error)) => Err(BusError::Unreachable(error.to_string())),
        Err(_) => Err(overdue()),
    }
}

/// As [`taken`], for what asks the broker several times.
pub async fn limited<T>(limit: Duration, asking: impl Future<Output = Result<T, BusError>>) -> Result<T, BusError> {
    tokio::time::timeout(limit, asking).await.unwrap_or_else(|_| Err(overdue()))
}

fn overdue() -> BusError {
    BusError::Unreachable("nothing can be sent right now".to_owned())
}

fn on_event(state: &watch::Sender<Connection>, refused: &watch::Sender<String>, event: &async_nats::Event) {
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
        Event::ServerError(error) => {
            tracing::warn!(%error, "NATS reported an error");
            refused.send_replace(error.to_string());
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorkerEntry;

    #[test]
    fn a_lost_broker_is_noticed_before_registry_entries_lapse() {
        let renewed = WorkerEntry::TIME_TO_LIVE / 3;
        assert!(PING_INTERVAL * PINGS < WorkerEntry::TIME_TO_LIVE - renewed);
    }
}
