//! `trireme serve`: gateway and all stages in one process, on the in-process bus.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::builder::{BoolishValueParser, Resettable};
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, ValueEnum};
use trireme_bus::{Bus, InProcess};
use trireme_gateway::{Embedder, Gateway, GatewayArgs, ModelOptions, TritonFlags};
use trireme_inference::ModelKey;
use trireme_model::OnnxRuntimeArgs;
use trireme_model_repository::{Change, FollowedFolders, ModelFolder};
use trireme_python::PythonArgs;
use trireme_runtime::service::{self, AdminArgs, QueueArgs, WorkerArgs};
use trireme_runtime::{ControlMode, Health, ModelArgs, Worker, WorkerOptions, faults};
use trireme_telemetry::{LogFormat, TelemetryArgs};

use crate::stages::{Stage, StageOptions, backends};
use crate::welcome::{Reach, welcome};

/// How long the registry may take to see models that are loaded: both are in this process.
const REGISTRY_TIMEOUT: Duration = Duration::from_secs(10);

/// The log level at a terminal, where the user has chosen none: without what the start and models that come and go log at `info`.
const TERMINAL_LEVEL: &str = concat!(
    "info,trireme_gateway=warn,trireme_server=warn,trireme_model::backends=warn,trireme_tokenizer=warn,trireme_engine::load=warn,",
    "trireme_runtime::lifecycle=warn,trireme_runtime::lifecycle::drain=info"
);

/// Flags of `trireme serve`.
#[derive(Args)]
pub struct ServeArgs {
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    pub missing_graphs: MissingGraphArgs,

    /// Directory for durable work: requests that are answered later, files and batches. Without it there is none
    #[arg(help_heading = "Durable work")]
    #[arg(long, env = "TRIREME_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,

    #[command(flatten)]
    pub onnxruntime: OnnxRuntimeArgs,
    #[command(flatten)]
    python: PythonArgs,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    #[command(flatten)]
    triton: TritonFlags,
}

/// The flags of a server that a command starts for itself.
#[derive(clap::Parser)]
struct OwnServer {
    #[command(flatten)]
    serve: ServeArgs,
}

/// Flags about model folders that have no ONNX file.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Models")]
pub struct MissingGraphArgs {
    /// Whether the server makes the missing ONNX file of a model folder, by `trireme export`. It makes the file once and keeps it in a
    /// cache. At a terminal without this flag the server asks
    #[arg(long, env = "TRIREME_EXPORT", value_name = "BOOL", value_parser = BoolishValueParser::new())]
    #[arg(action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub export: Option<bool>,

    /// A Python that has torch and transformers (or optimum-onnx), and for the comparison the model's library
    #[arg(long, env = "TRIREME_EXPORT_PYTHON", value_name = "PATH", default_value = "python3")]
    pub export_python: PathBuf,

    /// The cache of ONNX files that --export makes; trireme/exports in the user's cache without this flag
    #[arg(long, env = "TRIREME_EXPORT_CACHE", value_name = "DIR")]
    pub export_cache: Option<PathBuf>,
}

/// Gateway and worker of this process, on a bus of their own.
pub struct Server {
    gateway: Gateway,
    worker: Worker,
    /// Whether this process takes work: its models are loaded.
    health: Health,
    exit_timeout: Duration,
    exit_on_error: bool,
    /// Model folders whose changes are followed, and the time between two looks.
    followed: Option<(FollowedFolders, Duration)>,
}

/// Serves until a signal stops the process. It takes the port before it loads models, so that probes see "not ready" meanwhile. At a
/// terminal it welcomes the user, unless a log level was chosen. `with_graphs` first makes the graphs that model folders lack.
pub fn run(
    mut args: ServeArgs,
    is_level_chosen: bool,
    with_graphs: impl AsyncFnOnce(&mut ServeArgs) -> anyhow::Result<()>,
) -> ExitCode {
    if args.admin.healthcheck {
        return service::healthcheck(&args.admin);
    }
    let mut telemetry = args.gateway.traces.telemetry(&args.telemetry);
    let welcomes = !is_level_chosen && telemetry.log_format == LogFormat::Text && std::io::stderr().is_terminal();
    if welcomes {
        telemetry.log_level = TERMINAL_LEVEL.to_owned();
        eprintln!("trireme {}: loading models", env!("CARGO_PKG_VERSION"));
    }
    service::block_on("trireme", &telemetry, async {
        args.triton.warn();
        args.gateway.traces.warn();
        let shutdown = service::shutdown_signal()?;
        let made = with_graphs(&mut args);
        let Some(()) = service::or_shutdown(&shutdown, made).await? else { return Ok(()) };
        let args = &args;
        let Some(mut server) = service::or_shutdown(&shutdown, Server::open(args)).await? else { return Ok(()) };
        let followed = server.followed.take();
        let serving = async {
            server.load().await?;
            match server.http_address().filter(|_| welcomes) {
                Some(address) => {
                    let status = serde_json::from_slice(&server.gateway.status().await)?;
                    eprint!("{}", welcome(&status, &Reach::new(address, &args.gateway)));
                }
                None => tracing::info!(http = server.http_address().map(tracing::field::display), "ready"),
            }
            std::future::pending().await
        };
        // Loaded models take work while others still load.
        let outcome = tokio::select! {
            outcome = serving => outcome,
            outcome = service::until_shutdown(&shutdown, &server.worker) => outcome,
            task = server.gateway.failed() => Err(anyhow::anyhow!("task '{task}' died")),
            failed = follow(followed, &server.gateway) => failed,
            refused = service::at_hangups(|| server.gateway.reread()) => refused,
        };
        server.drain().await;
        outcome
    })
}

/// The flags of a server that a command starts for itself, with HTTP on a free port of this host and nothing else. `models` are the flags
/// that name its models.
pub fn own_server(models: &[&str], onnxruntime: &OnnxRuntimeArgs) -> anyhow::Result<ServeArgs> {
    let ports = ["--http-address=127.0.0.1", "--http-port=0", "--allow-grpc=false", "--allow-metrics=false"];
    own_args(models.iter().copied().chain(ports), onnxruntime)
}

/// The flags of a server that a command starts for itself. Variables of the environment that name models, ports, keys and limits have no
/// effect, because they are meant for the server that clients ask. With its `TRIREME_ADMIN_ADDRESS` this one would answer probes in its place.
/// Variables about the machine stay in effect.
pub fn own_args<'a>(
    flags: impl IntoIterator<Item = &'a str>,
    onnxruntime: &OnnxRuntimeArgs,
) -> anyhow::Result<ServeArgs> {
    let others =
        AdminArgs::augment_args(QueueArgs::augment_args(GatewayArgs::augment_args(clap::Command::new("others"))));
    let others = WorkerArgs::augment_args(others);
    let ids = others.get_arguments().map(|arg| arg.get_id().as_str()).filter(|id| *id != "gpu_groups_on_cpu");
    let command = ids
        .chain(["data_dir"])
        .fold(OwnServer::command(), |command, id| command.mut_arg(id, |arg| arg.env(Resettable::Reset)));
    let matches = command.try_get_matches_from(std::iter::once("trireme").chain(flags))?;
    let OwnServer { mut serve } = OwnServer::from_arg_matches(&matches)?;
    serve.onnxruntime = onnxruntime.clone();
    Ok(serve)
}

/// Makes a model folder whose files change its next version, for as long as the process runs.
async fn follow(followed: Option<(FollowedFolders, Duration)>, gateway: &Gateway) -> anyhow::Result<()> {
    let Some((mut folders, period)) = followed else { return std::future::pending().await };
    loop {
        tokio::time::sleep(period).await;
        let is_ready = gateway.readiness();
        let looking = tokio::task::spawn_blocking(move || {
            let changes = folders.look(is_ready);
            (folders, changes)
        });
        let (back, changes) = looking.await?;
        folders = back;
        let key = |folder: &ModelFolder| ModelKey { name: folder.name.as_str().into(), version: folder.version };
        let faulty = folders.faults().map(|(folder, fault)| (key(folder), format!("its folder has changed: {fault}")));
        gateway.note_faults(faulty.collect());
        for Change { folder, fault } in changes {
            let (model, version, path) = (folder.name, folder.version, folder.path.display());
            match fault {
                None => {
                    tracing::info!(model, version, folder = %path, "its folder has changed and becomes this version");
                    for warning in folder.description.warnings() {
                        tracing::warn!(model, version, folder = %path, warning, "model folder");
                    }
                }
                Some(fault) => {
                    tracing::warn!(model, version, folder = %path, %fault, "its folder has changed but cannot be served; this version stays");
                }
            }
        }
    }
}

// === impl ServeArgs ===

impl ServeArgs {
    /// The models that are served.
    pub fn models(&mut self) -> &mut ModelArgs {
        &mut self.worker.models
    }
}

// === impl Server ===

impl Server {
    /// Listens; loads no model yet.
    pub async fn open(args: &ServeArgs) -> anyhow::Result<Server> {
        let stages = StageOptions {
            onnxruntime: (&args.onnxruntime).into(),
            // The user of `trireme serve` chooses the repository, so its code may run.
            python: args
                .python
                .options(PythonArgs::default_for(args.worker.models.is_remote()), args.worker.execution_limit()),
        };
        let backends = backends(Stage::value_variants(), &stages);
        let cache = args.gateway.cache.cache_config;
        let options = WorkerOptions { cache, ..args.worker.options("trireme").await? };
        let exit_on_error = options.control.exit_on_error;
        // Before any model is loaded, because folders that are followed are copied first.
        let sources = options.sources.clone().filter(|_| options.control.mode == ControlMode::Poll);
        let followed = sources.map(FollowedFolders::new).transpose()?.flatten();
        let followed = followed.map(|folders| (folders, options.control.poll));
        let models =
            ModelOptions { model_repository: options.model_repository.clone(), control: options.control.clone() };
        let settings = args.queue.options();
        let bus: Arc<dyn Bus> = Arc::new(match &args.data_dir {
            Some(directory) => trireme_bus_disk::open(&settings, directory).with_context(|| {
                format!("--data-dir {}: name a directory that this user may write", directory.display())
            })?,
            None => InProcess::new(&settings),
        });
        let exit_timeout = args.worker.exit_timeout();
        let gateway =
            Gateway::start(bus.clone(), options.statistics.clone(), models, &args.gateway, exit_timeout).await?;
        let health = Health::default();
        health.follow(bus.as_ref());
        args.admin.listen(&health, &options.statistics)?;
        let worker = Worker::open(bus, &backends, &options).await?;
        Ok(Server { gateway, worker, health, exit_timeout, exit_on_error, followed })
    }

    /// Loads the models. If some fail and the process shall not end, the others are served.
    pub async fn load(&self) -> anyhow::Result<()> {
        self.worker.load().await?;
        match self.gateway.until_ready(REGISTRY_TIMEOUT).await {
            Err(unready) if self.exit_on_error => return Err(anyhow::Error::msg(faults::list(unready))),
            // The log has the reasons: worker and gateway wrote them when they knew them.
            Err(unready) => tracing::warn!(missing = unready.len(), "serving the models that could be loaded"),
            Ok(()) => {}
        }
        self.health.set_ready();
        Ok(())
    }

    /// The address of the HTTP listener.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.gateway.http_address
    }

    /// Embeds texts without a listener.
    pub fn embedder(&self) -> Embedder {
        self.gateway.embedder()
    }

    /// Finishes the requests in progress.
    pub async fn drain(self) {
        tracing::info!("draining");
        self.health.set_stopping();
        self.gateway.drain().await;
        service::report_drained(self.worker.drain(self.exit_timeout).await);
    }
}
