//! `trireme serve`: gateway and all stages in one process, on the in-process bus.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use trireme_bus::{Bus, InProcess};
use trireme_gateway::{Gateway, GatewayArgs, ModelOptions, TritonFlags};
use trireme_model::{OnnxRuntimeArgs, OnnxRuntimeOptions};
use trireme_runtime::Worker;
use trireme_runtime::service::{self, AdminArgs, WorkerArgs};
use trireme_telemetry::TelemetryArgs;

use crate::stages::{Stage, backends};

/// How long the registry may take to see models that are loaded: both are in this process.
const REGISTRY_TIMEOUT: Duration = Duration::from_secs(10);

/// Flags of `trireme serve`.
#[derive(Args)]
pub struct ServeArgs {
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    onnxruntime: OnnxRuntimeArgs,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    #[command(flatten)]
    triton: TritonFlags,
}

/// Serves until told to stop. The port is taken before models are loaded, so that probes see "not ready" meanwhile.
pub fn run(args: &ServeArgs) -> ExitCode {
    if args.admin.healthcheck {
        return args.admin.check("trireme");
    }
    service::block_on("trireme", &args.telemetry, async {
        args.triton.warn();
        let shutdown = service::shutdown_signal()?;
        let backends = backends(Stage::value_variants(), &OnnxRuntimeOptions::from(&args.onnxruntime));
        let options = args.worker.options("trireme")?;
        let models =
            ModelOptions { model_repository: options.model_repository.clone(), control: options.control.clone() };
        let bus: Arc<dyn Bus> = Arc::new(InProcess::default());
        let exit_timeout = args.worker.exit_timeout();
        let gateway =
            Gateway::start(bus.clone(), options.statistics.clone(), models, &args.gateway, exit_timeout).await?;
        args.admin.listen(gateway.readiness(), &options.statistics)?;

        let worker = Worker::open(bus, &backends, &options).await?;
        let serving = async {
            worker.load().await?;
            match gateway.until_ready(REGISTRY_TIMEOUT).await {
                Err(unready) if options.control.exit_on_error => return Err(anyhow::Error::msg(unready)),
                Err(unready) => tracing::warn!(unready, "serving what could be loaded"),
                Ok(()) => {}
            }
            tracing::info!(http = gateway.http_address.map(tracing::field::display), "ready");
            std::future::pending().await
        };
        // Models that are loaded take work while others are not yet.
        let outcome = tokio::select! {
            outcome = serving => outcome,
            outcome = service::until_shutdown(&shutdown, &worker) => outcome,
            task = gateway.failed() => Err(anyhow::anyhow!("task '{task}' died")),
        };
        tracing::info!("draining");
        gateway.drain().await;
        service::report_drained(worker.drain(exit_timeout).await);
        outcome
    })
}
