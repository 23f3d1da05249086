//! A process that hosts many simulated workers, or many simulated gateways. `scale` starts itself as such a host.
//!
//! Each worker and each gateway reads the flags of the product's own process, and has a connection of its own to the
//! broker. SIGTERM drains all of them at once.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::{Args, Parser};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use trireme_gateway::{Gateway, GatewayServiceArgs, ModelOptions};
use trireme_model::backends::Identity;
use trireme_runtime::service::{self, ServiceArgs};
use trireme_runtime::{Backend, Statistics, Worker};

/// The log message of a host when all that it hosts is ready.
pub(super) const ALL_READY: &str = "everything hosted is ready";

/// Hosts simulated workers.
#[derive(Args, Clone, Debug)]
pub struct HostWorkers {
    /// A worker, as NAME=MODEL_REPOSITORY; may be given several times
    #[arg(long = "worker", value_name = "NAME=FOLDER", required = true)]
    workers: Vec<String>,

    /// Flags of all of them
    #[arg(last = true)]
    flags: Vec<String>,
}

/// Hosts simulated gateways.
#[derive(Args, Clone, Debug)]
pub struct HostGateways {
    /// The name of a gateway; may be given several times
    #[arg(long = "gateway", value_name = "NAME", required = true)]
    gateways: Vec<String>,

    /// Flags of all of them
    #[arg(last = true)]
    flags: Vec<String>,
}

/// The flags of a stage service.
#[derive(Parser)]
struct WorkerFlags {
    #[command(flatten)]
    args: ServiceArgs,
}

/// The flags of the gateway service.
#[derive(Parser)]
struct GatewayFlags {
    #[command(flatten)]
    args: GatewayServiceArgs,
}

/// Counts the workers or gateways that are not ready, and logs when all are.
#[derive(Clone)]
struct Ready {
    missing: Arc<AtomicUsize>,
}

// === impl HostWorkers ===

impl HostWorkers {
    /// Hosts the workers until the process gets a signal to stop.
    pub fn run(&self) -> ExitCode {
        let parse = |worker: &String| {
            let (name, repository) = worker.split_once('=').expect("a worker is NAME=FOLDER");
            let own = ["worker", "--worker-name", name, "--model-repository", repository].map(str::to_owned);
            WorkerFlags::parse_from(own.into_iter().chain(self.flags.iter().cloned())).args
        };
        let all: Vec<ServiceArgs> = self.workers.iter().map(parse).collect();
        let telemetry = all.first().expect("there is a worker").telemetry.clone();
        let ready = Ready::of(all.len());
        service::block_on("scale", &telemetry, async {
            let shutdown = service::shutdown_signal()?;
            let run = all.into_iter().map(|args| work(args, ready.clone(), shutdown.clone()));
            join(run.collect()).await
        })
    }
}

/// Runs a worker, like `service::run`.
async fn work(args: ServiceArgs, ready: Ready, shutdown: CancellationToken) -> anyhow::Result<()> {
    let options = args.worker.options("model").await?;
    let bus = args.nats.connect("model", &options.name).await?;
    let backends: [Arc<dyn Backend>; 1] = [Arc::new(Identity)];
    let worker = Worker::open(bus.clone(), &backends, &options).await?;
    let serving = async {
        worker.load().await?;
        ready.one();
        std::future::pending().await
    };
    let outcome = tokio::select! {
        outcome = serving => outcome,
        outcome = service::until_shutdown(&shutdown, &worker) => outcome,
    };
    let unfinished = worker.drain(args.worker.exit_timeout()).await;
    bus.close().await;
    anyhow::ensure!(unfinished == 0, "a worker stopped with {unfinished} requests unfinished");
    outcome
}

// === impl HostGateways ===

impl HostGateways {
    /// Hosts the gateways until the process gets a signal to stop.
    pub fn run(&self) -> ExitCode {
        let parse =
            || GatewayFlags::parse_from(["gateway".to_owned()].into_iter().chain(self.flags.iter().cloned())).args;
        let telemetry = parse().telemetry;
        let ready = Ready::of(self.gateways.len());
        service::block_on("scale", &telemetry, async {
            let shutdown = service::shutdown_signal()?;
            let run = self.gateways.iter().map(|name| serve(name.clone(), parse(), ready.clone(), shutdown.clone()));
            join(run.collect()).await
        })
    }
}

/// Runs a gateway, like `trireme_gateway::run`.
async fn serve(
    name: String,
    args: GatewayServiceArgs,
    ready: Ready,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let models =
        ModelOptions { model_repository: args.models.model_repository.clone(), control: args.control.options()? };
    let bus = args.nats.connect_gateway(&name, args.queue.deployment(&args.broker)).await?;
    let exit_timeout = Duration::from_secs(args.exit_timeout_secs);
    let gateway = Gateway::start(bus.clone(), Statistics::new(name), models, &args.gateway, exit_timeout).await?;
    ready.one();
    let outcome = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        task = gateway.failed() => Err(anyhow::anyhow!("task '{task}' died")),
    };
    gateway.drain().await;
    bus.close().await;
    outcome
}

// === impl Ready ===

impl Ready {
    fn of(count: usize) -> Ready {
        Ready { missing: Arc::new(AtomicUsize::new(count)) }
    }

    fn one(&self) {
        if self.missing.fetch_sub(1, Ordering::Relaxed) == 1 {
            tracing::info!("{ALL_READY}");
        }
    }
}

/// Runs all of them to their end; the first error ends the process.
async fn join<F>(all: Vec<F>) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let mut tasks: JoinSet<anyhow::Result<()>> = all.into_iter().collect();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}
