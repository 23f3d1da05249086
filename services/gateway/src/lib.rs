//! The gateway: v2 requests in, messages out, and back.
//!
//! A request passes through `http::routes` (bytes to an [`trireme_inference::InferRequest`]), `handlers` (which model, is
//! the input right, which route), `dispatch` (publish, hold, wait) and back. `registry` knows what is served.
//!
//! Invariants:
//! - Every request is answered: by the pipeline, or at its deadline.
//! - The gateway keeps no state that another gateway would need; any number of them run side by side.
//!
//! Not here: wire formats (`protocol`), what configurations mean (`model-repository`), queues (`bus`).

mod dispatch;
mod handlers;
mod http;
mod registry;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio_util::sync::CancellationToken;
use trireme_bus::Bus;
use trireme_model_repository::Repository;
use trireme_runtime::service::{self, NatsArgs};
use trireme_runtime::{Health, TaskSet};
use trireme_telemetry::TelemetryArgs;

use dispatch::Dispatcher;
use handlers::Handlers;
use http::{HttpListener, HttpOptions};
use registry::Registry;

/// Flags about listening and requests; Triton's names where it has them.
#[derive(Args, Clone, Debug)]
pub struct GatewayArgs {
    /// Address to listen on for HTTP
    #[arg(long, env = "TRIREME_HTTP_ADDRESS", value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub http_address: IpAddr,

    /// Port to listen on for HTTP; 0 takes a free one
    #[arg(long, env = "TRIREME_HTTP_PORT", value_name = "PORT", default_value_t = 8000)]
    pub http_port: u16,

    /// Largest request body over HTTP, in bytes
    #[arg(long, env = "TRIREME_HTTP_MAX_INPUT_SIZE", value_name = "BYTES", default_value_t = 64 << 20)]
    pub http_max_input_size: usize,

    /// Milliseconds that a request may take when it names no timeout of its own
    #[arg(long, env = "TRIREME_DEFAULT_TIMEOUT_MS", value_name = "MILLISECONDS", default_value_t = 60_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub default_timeout_ms: u64,

    /// Most requests in flight; one more is refused
    #[arg(long, env = "TRIREME_MAX_IN_FLIGHT", value_name = "COUNT", default_value_t = 10_000)]
    pub max_in_flight: usize,
}

/// Flags of the gateway service.
#[derive(Args, Clone, Debug)]
pub struct GatewayServiceArgs {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub gateway: GatewayArgs,

    /// Model repository to read ensembles from; may be given several times
    #[arg(long, alias = "model-store", env = "TRIREME_MODEL_REPOSITORY", value_name = "DIR", value_delimiter = ',')]
    pub model_repository: Vec<PathBuf>,

    /// Seconds to finish requests in flight when told to stop
    #[arg(long, env = "TRIREME_EXIT_TIMEOUT_SECS", value_name = "SECONDS", default_value_t = 30)]
    pub exit_timeout_secs: u64,

    #[command(flatten)]
    #[allow(missing_docs)]
    pub nats: NatsArgs,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub telemetry: TelemetryArgs,
}

/// A running gateway.
pub struct Gateway {
    /// Where it listens for HTTP.
    pub http_address: SocketAddr,
    handlers: Arc<Handlers>,
    tasks: TaskSet,
    stop: CancellationToken,
    serving: TaskSet,
}

// === impl Gateway ===

impl Gateway {
    /// Takes its ports, follows the registry, and serves. Requests for models that no worker serves yet are refused
    /// until one does. Drained by [`Gateway::drain`].
    pub async fn start(
        bus: Arc<dyn Bus>,
        name: &str,
        repository: Repository,
        args: &GatewayArgs,
        exit_timeout: Duration,
    ) -> anyhow::Result<Gateway> {
        let http = HttpOptions {
            address: SocketAddr::new(args.http_address, args.http_port),
            max_input_size: args.http_max_input_size,
        };
        let listener = HttpListener::bind(&http).await?;
        let http_address = listener.address;

        let tasks = TaskSet::new();
        let registry = Registry::follow(bus.as_ref(), repository, &tasks).await?;
        let dispatcher = Dispatcher::open(bus, name, args.max_in_flight, &tasks).await?;
        let health = Health::default();
        health.set_ready(true);
        let default_timeout = Duration::from_millis(args.default_timeout_ms);
        let handlers = Arc::new(Handlers { registry, dispatcher, health, default_timeout });

        let stop = CancellationToken::new();
        let serving = TaskSet::new();
        let (shared, raised) = (handlers.clone(), stop.clone());
        serving.spawn("http", async move { listener.serve(shared, &http, raised, exit_timeout).await });
        tracing::info!(address = %http_address, "HTTP listener");
        Ok(Gateway { http_address, handlers, tasks, stop, serving })
    }

    /// Waits until every known model is ready, for `timeout` at most. Otherwise says which are not, and why.
    pub async fn until_ready(&self, timeout: Duration) -> Result<(), String> {
        self.handlers.registry.until_ready(timeout).await
    }

    /// Waits until one of the gateway's tasks dies, which a process should not outlive.
    pub async fn failed(&self) -> &'static str {
        tokio::select! {
            task = self.tasks.failed() => task,
            task = self.serving.failed() => task,
        }
    }

    /// Stops: says not ready, takes no more connections, finishes the requests in flight.
    pub async fn drain(self) {
        self.handlers.health.set_ready(false);
        self.stop.cancel();
        self.serving.join().await;
        self.tasks.join().await;
    }
}

/// Runs the gateway service to its end: SIGTERM or SIGINT drains it.
pub fn run(args: &GatewayServiceArgs) -> ExitCode {
    service::block_on("gateway", &args.telemetry, async {
        let shutdown = service::shutdown_signal()?;
        let repository = open_repository(&args.model_repository)?;
        if args.model_repository.is_empty() {
            tracing::warn!("no --model-repository: ensembles are not known, models are served as workers have them");
        }
        let name = service::process_name("gateway");
        let Some(bus) = service::or_shutdown(&shutdown, args.nats.connect(&name)).await? else { return Ok(()) };
        let exit_timeout = Duration::from_secs(args.exit_timeout_secs);
        let gateway = Gateway::start(bus.clone(), &name, repository, &args.gateway, exit_timeout).await?;
        let outcome = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            task = gateway.failed() => Err(anyhow::anyhow!("task '{task}' died")),
        };
        tracing::info!("draining");
        gateway.drain().await;
        bus.close().await;
        tracing::info!("stopped");
        outcome
    })
}

/// Reads model repositories; every fault of them in one error. No paths give an empty repository.
pub fn open_repository(paths: &[PathBuf]) -> anyhow::Result<Repository> {
    Repository::open(paths).map_err(|faults| {
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        anyhow::anyhow!("model repository: {}", faults.join("; "))
    })
}
