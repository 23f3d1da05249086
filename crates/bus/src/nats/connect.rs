//! Connecting: logged retries with a limit, and a watch on the connection afterwards.
//!
//! Not here: addresses (`address`) and logins (`login`).

use std::collections::BTreeMap;
use std::error::Error;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use async_nats::jetstream::context::AccountErrorKind;
use async_nats::{ConnectError, ConnectErrorKind, ConnectOptions, ServerAddr, jetstream};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use trireme_inference::Backoff;

use super::address::NatsUrl;
use super::buckets;
use super::connection::{Changing, Nats};
use super::errors::{chain, failure, is_not_found, is_permission};
use super::limits::REQUEST_TIMEOUT;
use super::login::{NatsLogin, NatsTls};
use super::remedies::with_remedy;
use super::streams::Needed;
use super::subjects::{DeploymentName, Names, is_token};
use crate::{Bucket, Bus, BusError, Change, Connection, QueueOptions, Reopening};

/// The pauses between attempts to reconnect. Requests wait meanwhile.
const RECONNECTS: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(500));

/// The client pings a broker that was silent for this long. If three pings in a row go unanswered, which is a constant
/// of the client, the connection counts as lost. That is well before a silent process counts as gone
/// ([`Heartbeat::TIME_TO_LIVE`](crate::Heartbeat::TIME_TO_LIVE)).
///
/// Whatever arrives delays the ping. It is longer than the time between two pulses, so a connection on which pulses arrive is not
/// pinged: a ping waits behind all that is being sent, and a full connection to a live broker would count as lost.
const PING_INTERVAL: Duration = Duration::from_millis(1500);

/// Pause between attempts to connect at start.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// How long an address that was silent may take to accept another connection.
const LISTENS: Duration = Duration::from_secs(1);

/// How many times a gateway tries to make all streams as new settings have them, about a second apart.
const MAKE_ALL: u32 = 60;

/// Messages of one subscription that may wait to be read; the client drops any more and reports that. For replies the
/// number is above the requests that a gateway has in flight, unless answers come in many parts.
pub(super) const SUBSCRIPTION_CAPACITY: usize = 16_384;

/// Messages on topics that may wait to be sent.
const SAYING: usize = 1024;

/// How to reach NATS.
///
/// A gateway connects, and writes the settings of the deployment:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), trireme_bus::BusError> {
/// # let server = trireme_testkit::NatsServer::start();
/// # use std::time::Duration;
/// use trireme_bus::{Bus, Deployment, Nats, NatsOptions, QueueOptions};
///
/// let queue = QueueOptions { max_attempts: 5, ..QueueOptions::default() };
/// let options = NatsOptions {
///     url: server.url().as_str().into(),
///     service: "gateway".to_owned(),
///     deployment: Some(Deployment { queue, ..Deployment::default() }),
///     connect_timeout: Duration::from_secs(5),
///     ..NatsOptions::default()
/// };
/// let bus: &dyn Bus = &Nats::connect(&options).await?;
/// assert_eq!(bus.settings().await?.max_attempts, 5);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct NatsOptions {
    /// The servers, and perhaps the login.
    pub url: NatsUrl,
    /// The name of the deployment, if it shares the broker with others.
    pub deployment_name: DeploymentName,
    /// The JetStream domain, if streams are not in the broker's own.
    pub domain: Option<String>,
    /// The first tokens of inboxes in place of `_INBOX`, the same for all processes of a deployment.
    pub inbox_prefix: Option<String>,
    /// The name of this connection, shown by `nats server report connections`.
    pub name: String,
    /// The service of this process. Answers to its questions come to `_INBOX.<service>.>`, or to
    /// `_INBOX.trireme-<deployment>.<service>.>`, so that a server can keep other services from reading them.
    pub service: String,
    /// The wanted deployment, if this process is a gateway; the first gateway writes it to the settings. `None` for
    /// other processes. Gateways create streams, for stages too.
    pub deployment: Option<Deployment>,
    /// How long to retry the connection at start.
    pub connect_timeout: Duration,
    /// The login.
    pub login: NatsLogin,
    /// Certificates for an encrypted connection.
    pub tls: NatsTls,
}

/// How to reach the servers once more.
#[derive(Clone)]
pub struct Way {
    servers: Vec<ServerAddr>,
    connect: ConnectOptions,
    /// The JetStream domain, if streams are not in the broker's own.
    domain: Option<String>,
}

/// The wanted settings of a deployment.
#[derive(Clone, Debug, Default)]
pub struct Deployment {
    /// Settings of its queues.
    pub queue: QueueOptions,
    /// Copies that the brokers keep of each stream. By default three on a cluster, and one on a single broker.
    pub replicas: Option<usize>,
    /// Bytes that stores hold at most, by their names ([`STORES`](super::STORES)). Not a setting: a gateway applies it when it starts.
    pub store_bytes: BTreeMap<&'static str, u64>,
}

/// Whether a program takes connections at this address; `false` for several addresses.
async fn is_taken(servers: &[ServerAddr]) -> bool {
    let [server] = servers else { return false };
    let connecting = TcpStream::connect((server.host(), server.port()));
    tokio::time::timeout(LISTENS, connecting).await.is_ok_and(|connected| connected.is_ok())
}

impl Nats {
    /// Connects. Failed attempts are logged and retried until `connect_timeout` has passed. Errors when the server
    /// cannot be reached, has no JetStream, or is too old.
    pub fn connect(options: &NatsOptions) -> BoxFuture<'_, Result<Nats, BusError>> {
        Box::pin(async move {
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
                // The last attempt's error is returned.
                if left >= RETRY_PAUSE {
                    tracing::warn!(url = %options.url, %error, "NATS is not there yet; trying for another {} s", left.as_secs());
                }
                tokio::time::sleep(RETRY_PAUSE.min(left)).await;
            }
        })
    }

    async fn try_connect(options: &NatsOptions) -> Result<Nats, BusError> {
        let refused = |reason: String| BusError::Refused { action: "connecting", reason };
        let (servers, in_url) = options.url.parse().map_err(refused)?;
        let who = in_url.as_ref().map_or_else(|| options.login.to_string(), ToString::to_string);
        let unreachable = |reason: String| BusError::Unreachable(format!("NATS at {}: {reason}", options.url));

        let names = Names::of(&options.deployment_name);
        let prefix = options.inbox_prefix.as_deref().unwrap_or("_INBOX");
        for (flag, value) in
            [("--nats-inbox-prefix", Some(prefix)), ("--nats-jetstream-domain", options.domain.as_deref())]
        {
            if let Some(value) = value.filter(|value| !value.split('.').all(is_token)) {
                return Err(refused(format!(
                    "{flag} is '{value}', expected letters, digits, '-', '_' and dots between them"
                )));
            }
        }

        let (state, mut connection) = watch::channel(Connection::Down);
        let (complained, refusals) = watch::channel(String::new());
        let connect = options.login.options(in_url)?;
        let connect = options
            .tls
            .apply(connect)?
            .name(&options.name)
            .custom_inbox_prefix(names.inboxes(prefix, &options.service))
            .ping_interval(PING_INTERVAL)
            .subscription_capacity(SUBSCRIPTION_CAPACITY)
            .reconnect_delay_callback(|attempts| RECONNECTS.after(u32::try_from(attempts).unwrap_or(u32::MAX)))
            .request_timeout(Some(REQUEST_TIMEOUT));
        let complaints = complained.clone();
        let aside = connect.clone().name(format!("{} (pulse)", options.name)).event_callback(move |event| {
            if let async_nats::Event::ServerError(error) = &event {
                complaints.send_replace(error.to_string());
            }
            async {}
        });
        let way = Way { servers: servers.clone(), connect: aside, domain: options.domain.clone() };
        let connect = connect.event_callback(move |event| {
            on_event(&state, &complained, &event);
            async {}
        });
        let connected = connect.connect(servers.clone()).await;
        let timed_out = matches!(&connected, Err(error) if error.kind() == ConnectErrorKind::TimedOut);
        // A nats-server greets at once. A server that is not reached at all may still come.
        let is_silent = timed_out && is_taken(&servers).await;
        let client = connected.map_err(|error| match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                refused(format!("NATS at {} does not let {who} in: {}", options.url, with_remedy(chain(&error), options.tls.first)))
            }
            ConnectErrorKind::Tls | ConnectErrorKind::ServerParse => {
                refused(format!("NATS at {}: {}", options.url, with_remedy(chain(&error), options.tls.first)))
            }
            _ if is_for_good(&error) => refused(format!("NATS at {}: {}", options.url, with_remedy(chain(&error), options.tls.first))),
            _ if is_silent => refused(format!(
                "NATS at {}: a program takes connections there and does not greet as nats-server does: name the address of the broker by \
                 --nats-url, or restart a broker that hangs",
                options.url
            )),
            _ => unreachable(with_remedy(chain(&error), options.tls.first)),
        })?;
        // The event that reports the connection is asynchronous. Without this wait, a new bus could report `Down` for a
        // moment.
        let up = connection.wait_for(|state| matches!(state, Connection::Up(_)));
        let up = tokio::time::timeout(REQUEST_TIMEOUT, up).await;
        up.map(drop).map_err(|_| unreachable("connected, but not told so".to_owned()))?;
        let version = client.server_info().version;
        if !client.is_server_compatible(2, 11, 0) {
            return Err(refused(format!("nats-server {version} is too old, 2.11 or newer is needed")));
        }
        let jetstream = jetstream_of(&client, options.domain.as_deref());
        let api = options.domain.as_ref().map_or("$JS.API".to_owned(), |domain| format!("$JS.{domain}.API"));
        let mut complaints = refusals.clone();
        let account = tokio::select! {
            account = jetstream.query_account() => account.map_err(|error| match failure("using JetStream", &error) {
                // A cluster that has just started still elects its leader.
                BusError::Unreachable(reason) if error.kind() != AccountErrorKind::JetStreamUnavailable => {
                    unreachable(reason)
                }
                _ => BusError::Refused {
                    action: "using JetStream",
                    reason: format!(
                        "{error}; start nats-server with -js, or name the domain that has JetStream with --nats-jetstream-domain"
                    ),
                },
            })?,
            // Without a permission there is no answer.
            Ok(complaint) = complaints.wait_for(|complaint| is_permission(complaint)) => {
                let reason = format!("{}; docs/deployment.md has the permissions that {who} needs", *complaint);
                return Err(BusError::Refused { action: "using JetStream", reason });
            }
        };
        let max_payload = client.max_payload();
        tracing::info!(url = %options.url, version, max_payload, "connected to NATS");
        let (faults, fault) = watch::channel(None);
        let nats = Nats {
            client,
            jetstream,
            connection: Changing::new(connection),
            fault: Changing::new(fault),
            refusals: Changing::new(refusals),
            deployment: options.deployment_name.as_str().into(),
            names,
            account: Arc::new(Mutex::new(account)),
            api: api.into(),
            inboxes: format!("{prefix}.").into(),
            makes_streams: options.deployment.is_some(),
            store_bytes: Arc::new(
                options.deployment.as_ref().map(|wanted| wanted.store_bytes.clone()).unwrap_or_default(),
            ),
            saying: Arc::new(Semaphore::new(SAYING)),
            held: Arc::default(),
            ack_wait: Arc::new(AtomicU64::new(2000)),
            queues: Arc::default(),
            settings: Arc::default(),
            bulk_lanes: Arc::default(),
            groups: Arc::default(),
            out_of_reach: Arc::default(),
            closed: Arc::default(),
        };
        if let Some(wanted) = &options.deployment {
            nats.found_deployment(wanted).await?;
            nats.keep_stores();
            nats.follow_settings().await?;
        }
        nats.keep_alive();
        nats.set_clock().await;
        nats.follow_clock();
        nats.follow_pulse(faults, way).await?;
        Ok(nats)
    }

    /// Reads the deployment's settings, or writes them if this is the first gateway, and creates the streams of the
    /// stores and claims.
    async fn found_deployment(&self, wanted: &Deployment) -> Result<(), BusError> {
        let is_cluster = self.is_clustered();
        let replicas = wanted.replicas.unwrap_or(if is_cluster { 3 } else { 1 });
        let wanted = QueueOptions { replicas, ..wanted.queue.clone() };
        let bus = self as &dyn Bus;
        let found = match self.jetstream.get_stream(buckets::stream(&self.names, Bucket::Settings)).await {
            Ok(_) => bus.find_settings().await?,
            Err(error) if is_not_found(&error) => None,
            // Without the settings, the number of copies of the streams is unknown.
            Err(error) => return Err(failure("looking for the deployment's settings", &error)),
        };
        self.take_settings(found.unwrap_or_else(|| wanted.clone()));
        self.make(Needed::Bucket(Bucket::Settings)).await.map_err(|error| match &error {
            // This passes when the brokers of a cluster start one after the other.
            BusError::Refused { action, reason } if is_cluster && !is_permission(reason) => BusError::Unreachable(format!(
                "{action}: {reason}; {replicas} copies of each stream need {replicas} brokers with JetStream: start them, \
                 or set --queue-replicas 1"
            )),
            _ => error,
        })?;
        let settings = bus.init_settings(&wanted).await?;
        if settings != wanted {
            tracing::warn!(
                ?settings, flags = ?wanted,
                "this deployment has other settings than the flags of this gateway; those that it has hold, and \
                 `trireme settings` changes them"
            );
        }
        self.take_settings(settings);
        self.make_all().await
    }

    /// Replaces the settings; returns the previous ones.
    fn take_settings(&self, settings: QueueOptions) -> Option<QueueOptions> {
        self.set_ack_wait(settings.ack_wait);
        self.forget_bulk_lanes();
        self.settings.lock().replace(settings)
    }

    /// Creates the streams of the stores and claims. Dead letters come last, because they take most of a small disk and need it least.
    async fn make_all(&self) -> Result<(), BusError> {
        let needed = Needed::stores().filter(|needed| !matches!(needed, Needed::Bucket(Bucket::Dead)));
        let made = futures_util::future::join_all(needed.map(|needed| self.make(needed))).await;
        made.into_iter().collect::<Result<(), _>>()?;
        self.make(Needed::Bucket(Bucket::Dead)).await
    }

    /// Follows changes of the deployment's settings. If the broker loses the settings, writes them again.
    async fn follow_settings(&self) -> Result<(), BusError> {
        let mut changes = self.watch_bucket(Bucket::Settings);
        let nats = self.clone();
        crate::spawn("nats settings", async move {
            let mut are_there = false;
            while let Some(change) = changes.recv().await {
                let settings = match change {
                    Change::Put(entry) => crate::settings::of(&entry),
                    Change::Deleted { .. } => None,
                    Change::Complete => {
                        if !std::mem::take(&mut are_there) {
                            nats.write_settings_again().await;
                        }
                        continue;
                    }
                };
                let Some(settings) = settings else { continue };
                are_there = true;
                let before = nats.take_settings(settings.clone());
                if before.as_ref() != Some(&settings) {
                    tracing::info!(?settings, "the deployment's settings have changed");
                    nats.make_all_or_warn().await;
                }
            }
        });
        Ok(())
    }

    async fn write_settings_again(&self) {
        let Some(settings) = self.settings.lock().clone() else { return };
        tracing::warn!("the broker has lost the deployment's settings; they are written again");
        if let Err(error) = (self as &dyn Bus).init_settings(&settings).await {
            tracing::warn!(%error, "the deployment's settings could not be written again");
        }
        self.make_all_or_warn().await;
    }

    /// Makes all streams as the settings have them. A cluster that has just elected a leader refuses some for a while, so
    /// this tries again, up to [`MAKE_ALL`] times.
    pub(super) async fn make_all_or_warn(&self) {
        let mut attempts = Reopening::default();
        for _ in 0..MAKE_ALL {
            let Err(error) = self.make_all().await else { return };
            if self.is_closed() {
                return;
            }
            let pause = attempts
                .broke(&format_args!("streams could not be made as the deployment's settings have them: {error}"));
            tokio::time::sleep(pause).await;
        }
    }
}

// === impl Way ===

impl Way {
    /// A connection beside the one that everything else shares.
    pub(super) async fn connect(&self) -> Result<(async_nats::Client, jetstream::Context), ConnectError> {
        let client = self.connect.clone().connect(self.servers.clone()).await?;
        let jetstream = jetstream_of(&client, self.domain.as_deref());
        Ok((client, jetstream))
    }
}

fn jetstream_of(client: &async_nats::Client, domain: Option<&str>) -> jetstream::Context {
    let jetstream = jetstream::context::ContextBuilder::new().timeout(REQUEST_TIMEOUT);
    match domain {
        Some(domain) => jetstream.domain(domain).build(client.clone()),
        None => jetstream.build(client.clone()),
    }
}

/// Whether waiting does not mend a fault: what answers is no NATS server, or the two do not agree about encryption.
fn is_for_good(error: &ConnectError) -> bool {
    kinds(error).iter().any(|kind| matches!(kind, ErrorKind::InvalidData | ErrorKind::InvalidInput))
}

/// The kinds of the errors of the system behind an error.
fn kinds(error: &ConnectError) -> Vec<ErrorKind> {
    let causes = std::iter::successors(error.source(), |error| (*error).source());
    causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind).collect()
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

/// Numbers connections across all of the process's NATS buses. Each number is used once; their order does not matter.
fn next_generation() -> u64 {
    static GENERATION: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    GENERATION.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}
