//! The gateway: v2 requests in, messages out, and back.
//!
//! A request passes through `http::routes` or `grpc` (bytes to an [`trireme_inference::InferRequest`]), `handlers` (finds the
//! model, checks the input, makes the route), `dispatch` (publishes, waits) and back. `registry` knows the models that are
//! served.
//!
//! Invariants:
//! - Every request is answered: by the pipeline, or at its deadline.
//! - The gateway keeps no state that another gateway would need; any number of them run side by side.
//!
//! Not here: ports and the layers before routes (`server`), the shapes of other servers' clients (`dialects`), operations on texts
//! (`operations`), wire formats (`protocol`), configurations (`model-repository`), queues (`bus`).

mod calls;
mod contents;
mod counts;
mod dispatch;
mod embedder;
mod forward;
mod grpc;
mod handlers;
mod http;
mod limits;
mod metrics;
mod model_cache;
mod models;
mod queues;
mod registry;
mod reread;
mod rows;
mod statistics;
mod text_cache;
mod usage;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use trireme_bus::Bus;
use trireme_inference::ModelKey;
use trireme_runtime::response_cache::{CacheArgs, ResponseCache};
use trireme_runtime::service::{self, AdminArgs, BrokerArgs, NatsArgs, QueueArgs};
use trireme_runtime::statistics::report::follow_log_levels;
use trireme_runtime::{ControlArgs, Health, LAST_WORDS, ModelArgs, ShownCertificate, Statistics, TaskSet};
use trireme_server::access::Access;
use trireme_server::budget::Budget;
use trireme_server::connections::Pem;
use trireme_server::http::LogThread;
use trireme_telemetry::TelemetryArgs;
use trireme_triton_compat::shared_memory::SharedMemory;

use dispatch::{Dispatcher, RouteContents};
use grpc::GrpcListener;
use handlers::{Handlers, Tracing};
use http::{HttpListener, JobsSetup};
use metrics::MetricsListener;
use models::ModelControl;
use registry::Registry;
use reread::Rereading;
use statistics::Collector;
use text_cache::TextCacheArgs;
use usage::Usage;

pub use embedder::{Chunking, Embedded, Embedder};
pub use grpc::{CompressionLevel, GrpcArgs};
pub use http::{HttpArgs, JobArgs, Target, WebhookSecret};
pub use metrics::MetricsArgs;
pub use models::ModelOptions;
pub use trireme_dialects::TokenInput;
pub use trireme_server::access::{AccessArgs, ControlAccess, Given, Restriction, Secret};
pub use trireme_server::connections::ConnectionArgs;
pub use trireme_triton_compat::TritonFlags;
pub use trireme_triton_compat::traces::TraceArgs;

/// Flags about listening and requests; Triton's names where it has them.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "flattened groups of flags are documented at their types")]
pub struct GatewayArgs {
    #[command(flatten)]
    pub http: HttpArgs,
    #[command(flatten)]
    pub grpc: GrpcArgs,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    #[command(flatten)]
    pub access: AccessArgs,
    #[command(flatten)]
    pub connections: ConnectionArgs,
    #[command(flatten)]
    pub traces: TraceArgs,
    #[command(flatten)]
    pub jobs: JobArgs,

    /// Name of this server in its metadata; clients tell a Triton by it
    #[arg(help_heading = "Server")]
    #[arg(long, env = "TRIREME_ID", value_name = "NAME", default_value = "triton")]
    pub id: String,

    /// Whether the server is ready only when every known model is; if not, it is ready when the first one is, or when none
    /// of them can be loaded
    #[arg(help_heading = "Server")]
    #[arg(long, env = "TRIREME_STRICT_READINESS", value_name = "BOOL", default_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = ArgAction::Set)]
    pub strict_readiness: bool,

    /// Go on taking requests for models whose workers have all gone. They wait in the queue for a new worker, up to their deadline (for
    /// stages that are scaled to none)
    #[arg(help_heading = "Requests")]
    #[arg(long, env = "TRIREME_KEEP_MODELS", value_parser = clap::builder::FalseyValueParser::new())]
    pub keep_models: bool,

    /// Milliseconds that a request may take when it names no timeout of its own
    #[arg(help_heading = "Requests")]
    #[arg(long, env = "TRIREME_DEFAULT_TIMEOUT_MS", value_name = "MILLISECONDS", default_value_t = 60_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub default_timeout_ms: u64,

    /// Milliseconds that a request may ask for at most (`trireme_timeout_ms`, `Trireme-Timeout-Ms`); one that asks for more is refused.
    /// The deadline of a gRPC call (`grpc-timeout`) gives its request no more than that. The default timeout is always allowed
    #[arg(help_heading = "Requests")]
    #[arg(long, env = "TRIREME_MAX_TIMEOUT_MS", value_name = "MILLISECONDS", default_value_t = 3_600_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub max_timeout_ms: u64,

    /// Most requests in flight; one more is refused
    #[arg(help_heading = "Requests")]
    #[arg(long, env = "TRIREME_MAX_IN_FLIGHT", value_name = "COUNT", default_value_t = 10_000)]
    pub max_in_flight: usize,

    /// Most bytes of requests in flight, together, from their bodies until their answers are sent; one more request is refused.
    /// No request is larger
    #[arg(help_heading = "Requests")]
    #[arg(long, env = "TRIREME_MAX_BYTES_IN_FLIGHT", value_name = "BYTES", default_value_t = 1 << 30)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub max_bytes_in_flight: u64,

    #[command(flatten)]
    pub cache: CacheArgs,

    /// Compute identical requests that are in flight at the same time once, for models with `response_cache`; needs
    /// --cache-config
    #[arg(help_heading = "Response cache")]
    #[arg(long, env = "TRIREME_COALESCE_REQUESTS", value_parser = clap::builder::FalseyValueParser::new())]
    pub coalesce_requests: bool,

    #[command(flatten)]
    pub text_cache: TextCacheArgs,

    /// Whether clients on this host may have tensors in shared memory. They then name any object of /dev/shm that this process
    /// may open, so they have to be trusted as it is
    #[arg(help_heading = "Access and connections")]
    #[arg(long, env = "TRIREME_ALLOW_CLIENT_SHM", value_name = "BOOL", default_value = "false")]
    #[arg(value_parser = BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = ArgAction::Set)]
    pub allow_client_shm: bool,
}

/// Flags of the gateway service.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "flattened groups of flags are documented at their types")]
pub struct GatewayServiceArgs {
    #[command(flatten)]
    pub gateway: GatewayArgs,

    #[command(flatten)]
    pub models: ModelArgs,

    #[command(flatten)]
    pub control: ControlArgs,

    /// Seconds to finish requests in flight when stopping
    #[arg(help_heading = "Server")]
    #[arg(long, env = "TRIREME_EXIT_TIMEOUT_SECS", value_name = "SECONDS", default_value_t = 30)]
    pub exit_timeout_secs: u64,

    #[command(flatten)]
    pub admin: AdminArgs,
    #[command(flatten)]
    pub nats: NatsArgs,
    #[command(flatten)]
    pub queue: QueueArgs,
    #[command(flatten)]
    pub broker: BrokerArgs,
    #[command(flatten)]
    pub telemetry: TelemetryArgs,
    #[command(flatten)]
    pub triton: TritonFlags,
}

/// A running gateway.
pub struct Gateway {
    /// Where it listens for HTTP; `None` when it does not.
    pub http_address: Option<SocketAddr>,
    /// Where it listens for gRPC; `None` when it does not.
    pub grpc_address: Option<SocketAddr>,
    /// Where it listens for Prometheus; `None` when it does not.
    pub metrics_address: Option<SocketAddr>,
    handlers: Arc<Handlers>,
    tasks: TaskSet,
    stop: CancellationToken,
    serving: TaskSet,
    exit_timeout: Duration,
    rereading: Arc<Rereading>,
    /// Writes the access log.
    log_thread: Option<LogThread>,
}

// === impl Gateway ===

impl Gateway {
    /// Takes its ports, follows the registry, and serves. Requests for models that no worker serves yet are refused
    /// until one does. `statistics` are those of this process, under the name that replies come to. Drained by
    /// [`Gateway::drain`].
    pub fn start(
        bus: Arc<dyn Bus>,
        statistics: Statistics,
        models: ModelOptions,
        args: &GatewayArgs,
        exit_timeout: Duration,
    ) -> BoxFuture<'_, anyhow::Result<Gateway>> {
        Box::pin(async move {
            let repository = models.read()?;
            let access = Access::new(&args.access, &args.http.cors_origin)?;
            anyhow::ensure!(
                !args.coalesce_requests || args.cache.cache_config.is_some(),
                "--coalesce-requests needs a cache: give --cache-config local,size=BYTES"
            );
            let text_cache = args.text_cache.open()?;
            let webhooks = args.jobs.webhooks()?;
            let mut rereading = Rereading::default();
            rereading.access(&args.access, &access);
            if let Some(webhooks) = &webhooks {
                rereading.webhooks(&args.jobs, webhooks);
            }
            let http = HttpListener::bind(&args.http).await?;
            let http_address = http.as_ref().map(|listener| listener.address);
            let grpc = GrpcListener::bind(&args.grpc, args.http.idle_timeout()).await?;
            let grpc_address = grpc.as_ref().map(|listener| listener.address);
            if let Some(grpc) = &grpc {
                rereading.restricted(&args.grpc, &grpc.restricted);
            }
            let ports = [http.as_ref().and_then(HttpListener::tls), grpc.as_ref().and_then(|grpc| grpc.tls.as_ref())];
            let ports: Vec<_> = ports.into_iter().flatten().cloned().collect();
            ports.iter().for_each(|tls| rereading.tls(tls));
            for tls in ports {
                let Pem { flag, path } = tls.certificate().clone();
                statistics.shows(ShownCertificate { flag, path, expires: Box::new(move || tls.expires()) });
            }

            let metrics = MetricsListener::bind(&args.metrics, &args.http).await?;
            let metrics_address = metrics.as_ref().map(|listener| listener.address);

            let tasks = TaskSet::new();
            let watched = statistics.clone();
            tasks.spawn_until_stop("certificates", async move { match watched.watch_certificates().await {} });
            let (name, keep) = (statistics.process(), args.keep_models);
            let registry = Registry::follow(bus.clone(), name, repository, &models.control, keep, &tasks).await?;
            contents::answer_all(bus.clone(), registry.clone(), &tasks).await?;
            queues::look_after(bus.clone(), registry.clone(), &tasks);
            if keep {
                model_cache::restore(bus.as_ref(), &registry).await;
                model_cache::look_after(bus.clone(), registry.clone(), &tasks);
            }
            let models = ModelControl::start(bus.clone(), name, models, registry.clone(), &tasks).await?;
            let known = registry.clone();
            let contents: RouteContents = Arc::new(move |route| known.catalog().for_contents(route));
            let dispatcher = Dispatcher::open(bus.clone(), name, args.max_in_flight, contents, &tasks).await?;
            let collector = Collector::open(bus.clone(), statistics.clone(), registry.clone(), &tasks).await?;
            follow_log_levels(bus.as_ref(), statistics.process(), &tasks).await?;
            let health = Health::default();
            health.follow(bus.as_ref());
            // Before that it would refuse requests for models that are served.
            let (started, known) = (health.clone(), registry.clone());
            tasks.spawn("registry read", async move {
                known.until_read().await;
                started.set_ready();
            });
            let default_timeout = Duration::from_millis(args.default_timeout_ms);
            let dispatcher = Arc::new(dispatcher);
            let observed = Arc::downgrade(&dispatcher);
            collector.own().gateway(move || observed.upgrade().map_or(0, |dispatcher| dispatcher.in_flight() as u64));
            let deployment = bus.deployment().to_owned();
            let keeps_jobs = http.is_some() && args.jobs.allow_jobs && bus.keeps_jobs();
            let handlers = Arc::new(Handlers {
                registry,
                dispatcher,
                health,
                id: args.id.clone(),
                strict_readiness: args.strict_readiness,
                models,
                log_format: Mutex::new("default"),
                tracing: Tracing::new(&args.traces.config(trireme_telemetry::exports_spans()))?,
                jobs: Default::default(),
                counts: Default::default(),
                collector,
                last_status: Default::default(),
                keeps_jobs,
                deployment,
                usage: Usage::keep(bus.clone(), name, &tasks),
                access,
                default_timeout,
                max_timeout: default_timeout.max(Duration::from_millis(args.max_timeout_ms)),
                budget: Budget::new(args.max_bytes_in_flight),
                shared_memory: SharedMemory::default(),
                allow_client_shm: args.allow_client_shm,
                text_cache,
                cache: args.cache.cache_config.map(|config| ResponseCache::new(config, args.coalesce_requests)),
            });

            calls::serve(bus.as_ref(), handlers.clone(), &tasks).await?;
            limits::share(bus.clone(), name, handlers.access.owners(), &tasks).await?;
            let (log, log_thread) = http::open_access_log(&args.http);
            let (stop, serving, limits) = (CancellationToken::new(), TaskSet::new(), args.connections.limits());
            if let Some(listener) = http {
                tracing::info!(address = %listener.address, "HTTP listener");
                let (shared, raised, log) = (handlers.clone(), stop.clone(), log.clone());
                let (bus, own, options) = (bus.clone(), name.to_owned(), args.jobs.options(args.max_bytes_in_flight));
                let jobs_setup = keeps_jobs.then_some(JobsSetup { bus, own, options, webhooks });
                serving.spawn("http", async move {
                    listener.serve(shared, jobs_setup, log, limits, raised, exit_timeout).await
                });
            }
            if let Some(listener) = grpc {
                tracing::info!(address = %listener.address, "gRPC listener");
                let (shared, raised) = (handlers.clone(), stop.clone());
                serving.spawn("grpc", async move { listener.serve(shared, log, limits, raised, exit_timeout).await });
            }
            if let Some(listener) = metrics {
                tracing::info!(address = %listener.address, "metrics listener");
                let (shared, raised) = (handlers.clone(), stop.clone());
                serving.spawn("metrics", async move { listener.serve(shared, limits, raised, exit_timeout).await });
            }
            let rereading = Arc::new(rereading);
            let followed = rereading.clone();
            tasks.spawn("files read again", async move { followed.follow().await });
            Ok(Gateway {
                http_address,
                grpc_address,
                metrics_address,
                handlers,
                tasks,
                stop,
                serving,
                exit_timeout,
                rereading,
                log_thread,
            })
        })
    }

    /// Waits until every known model is ready, for `timeout` at most. The error names the others, with reasons.
    pub async fn until_ready(&self, timeout: Duration) -> Result<(), Vec<String>> {
        self.handlers.registry.until_ready(timeout).await
    }

    /// Says in the index which versions that are served have files with faults by now; those of earlier calls are forgotten.
    pub fn note_faults(&self, faulty: BTreeMap<ModelKey, String>) {
        self.handlers.registry.note_faults(faulty);
    }

    /// Tells whether a version of a model is ready.
    pub fn readiness(&self) -> impl Fn(&str, i64) -> bool + Send + 'static {
        let registry = self.handlers.registry.clone();
        move |model, version| registry.catalog().ready_versions(model).contains(&version)
    }

    /// Whether it takes requests, whichever models are ready.
    pub fn health(&self) -> &Health {
        &self.handlers.health
    }

    /// The state of the whole system, as `/v2/trireme/status` tells it.
    pub fn status(&self) -> BoxFuture<'_, Bytes> {
        Box::pin(self.handlers.status())
    }

    /// Embeds texts for this process itself, with or without listeners.
    pub fn embedder(&self) -> Embedder {
        Embedder::new(self.handlers.clone())
    }

    /// Reads keys, secrets and certificates again from their files.
    pub fn reread(&self) {
        self.rereading.read();
    }

    /// Waits until one of the gateway's tasks dies, which a process should not outlive.
    pub async fn failed(&self) -> &'static str {
        tokio::select! {
            task = self.tasks.failed() => task,
            task = self.serving.failed() => task,
        }
    }

    /// Stops: says not ready, takes no more connections, finishes the requests in flight. All of that within the exit
    /// timeout and [`LAST_WORDS`] at its end, whether or not the bus can be reached.
    pub fn drain(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.handlers.health.set_stopping();
            self.stop.cancel();
            // Listeners cut off requests that last longer, so little is left to do then.
            let served = tokio::time::timeout(self.exit_timeout + LAST_WORDS, self.serving.join());
            if served.await.is_err() {
                tracing::warn!("stopped before all connections were closed");
            }
            if let Some(thread) = self.log_thread {
                // The last lines are written when the last answers are dropped.
                let _ = tokio::time::timeout(LAST_WORDS, tokio::task::spawn_blocking(|| thread.join())).await;
            }
            let handlers = self.handlers.clone();
            let traces = tokio::task::spawn_blocking(move || handlers.tracing.finish());
            let last_words = async {
                if let Err(error) = self.handlers.usage.write().await {
                    tracing::warn!(%error, "the last usage could not be written");
                }
                self.handlers.collector.publish().await;
                self.tasks.join().await;
                // An error is a panic, which was logged.
                let _ = traces.await;
            };
            if tokio::time::timeout(LAST_WORDS, last_words).await.is_err() {
                self.tasks.stop();
            }
        })
    }
}

/// Runs the gateway service to its end: a signal to stop drains it.
pub fn run(args: &GatewayServiceArgs) -> ExitCode {
    if args.admin.healthcheck {
        return service::healthcheck(&args.admin);
    }
    service::block_on("gateway", &args.gateway.traces.telemetry(&args.telemetry), async {
        args.triton.warn();
        args.gateway.traces.warn();
        let shutdown = service::shutdown_signal()?;
        let Some(sources) = service::or_shutdown(&shutdown, args.models.open(args.control.exit_on_error)).await? else {
            return Ok(());
        };
        let models = ModelOptions { model_repository: sources.repositories.clone(), control: args.control.options()? };
        // Before waiting for the broker, so that faults of the repository are reported at once.
        let repository = models.read()?;
        models.log_faults(&repository);
        if args.models.is_empty() {
            tracing::warn!("no models are named: ensembles are not known, models are served as workers have them");
        } else if let Err(empty) = repository.check_not_empty(&models.model_repository) {
            tracing::warn!("model repository: {empty}");
        }
        let name = service::process_name("gateway");
        let deployment = args.queue.deployment(&args.broker);
        let connecting = args.nats.connect_gateway(&name, deployment);
        let Some(bus) = service::or_shutdown(&shutdown, connecting).await? else { return Ok(()) };
        let exit_timeout = Duration::from_secs(args.exit_timeout_secs);
        let statistics = Statistics::new(name);
        args.nats.tell_expiry(&statistics);
        let gateway = Gateway::start(bus.clone(), statistics.clone(), models, &args.gateway, exit_timeout).await?;
        args.admin.listen(gateway.health(), &statistics)?;
        let outcome = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            task = gateway.failed() => Err(anyhow::anyhow!("task '{task}' died")),
            refused = service::at_hangups(|| gateway.reread()) => refused,
        };
        tracing::info!("draining");
        gateway.drain().await;
        bus.close().await;
        tracing::info!("stopped");
        outcome
    })
}
