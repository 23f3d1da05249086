//! `trireme up`: the broker, a gateway and the stages as processes of this machine, started, watched and ended together.
//!
//! Each flag goes to the processes that know it. A process that ends before all were ready ends the start; later, one that ends is
//! started again.

mod broker;
mod flags;
mod fleet;
mod ports;
mod tied;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};
use tokio::signal::unix::{Signal, SignalKind, signal};
use trireme_gateway::{GatewayArgs, ModelOptions};
use trireme_model::OnnxRuntimeArgs;
use trireme_model_repository::{KnownBackend, RepositoryModel};
use trireme_python::{AllowPython, PythonArgs};
use trireme_runtime::ControlMode;
use trireme_runtime::service::{self, AdminArgs, BrokerArgs, QueueArgs, WorkerArgs};
use trireme_telemetry::{LogFormat, TelemetryArgs};

use crate::client::{Client, ServerArgs};
use crate::stages::Stage;

use broker::Broker;
use flags::{quoted, stated};
use fleet::{Fleet, Part, Rank};
use ports::Ports;

pub use tied::TiedArgs;

/// Pause between two looks whether all processes are ready.
const LOOK: Duration = Duration::from_millis(100);

/// The most processes of a stage.
const MOST: usize = 256;

/// How much longer than `--exit-timeout-secs` a process may take to end.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Seconds for which the look at a gateway waits for its answer.
const ANSWER_SECS: u64 = 2;

/// Flags of `trireme up`.
#[derive(Args)]
pub struct UpArgs {
    /// Processes of a stage (tokenizer, model, postprocess or python), as in --scale model=2; by default one of each that a model needs
    #[arg(help_heading = "Processes")]
    #[arg(long, env = "TRIREME_SCALE", value_name = "STAGE=COUNT", value_delimiter = ',', value_parser = scaled)]
    scale: Vec<(Stage, usize)>,

    /// The nats-server program, 2.11 or newer; without it the one beside this program or on PATH
    #[arg(help_heading = "Processes")]
    #[arg(long, env = "TRIREME_NATS_SERVER", value_name = "FILE")]
    nats_server: Option<PathBuf>,

    /// Port of the broker, at 127.0.0.1; 0 takes a free one
    #[arg(help_heading = "Processes")]
    #[arg(long, env = "TRIREME_NATS_PORT", value_name = "PORT", default_value_t = 4222)]
    nats_port: u16,

    /// Directory in which the broker keeps what it stores on disk: durable requests, files and batches, dead letters. Without it they are gone
    /// at the end
    #[arg(help_heading = "Processes")]
    #[arg(long, env = "TRIREME_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,

    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    onnxruntime: OnnxRuntimeArgs,
    #[command(flatten)]
    python: PythonArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// `STAGE=COUNT`
fn scaled(text: &str) -> Result<(Stage, usize), String> {
    let expected = || format!("expected STAGE=COUNT with at most {MOST} processes, such as model=2, found '{text}'");
    let (stage, count) = text.split_once('=').ok_or_else(expected)?;
    let count = count.parse().ok().filter(|count| *count <= MOST).ok_or_else(expected)?;
    Ok((Stage::from_str(stage, false).map_err(|_| expected())?, count))
}

/// Starts everything and watches it until a signal stops the process. `matches` are those of this command.
pub fn run(args: &UpArgs, matches: &ArgMatches) -> ExitCode {
    service::block_on("up", &args.telemetry, async {
        ensure!(
            args.worker.worker_name.is_none(),
            "--worker-name names one worker, and `trireme up` starts several: leave it out"
        );
        let shutdown = service::shutdown_signal()?;
        let Some(counts) = service::or_shutdown(&shutdown, args.counts()).await? else { return Ok(()) };
        let ports = Ports::take(&args.gateway, args.nats_port)?;
        let broker = Broker::new(args.nats_server.as_deref(), args.data_dir.as_deref(), ports.nats)?;
        let mut plan = Plan::new(args, matches, &counts, &ports, &broker)?;
        let exit_limit = args.worker.exit_timeout() + LAST_WORDS;
        let (mut fleet, mut ended) = (Fleet::default(), signal(SignalKind::child())?);
        drop(ports);
        let outcome = tokio::select! {
            outcome = watch(&mut fleet, &mut ended, &mut plan, &broker, args.telemetry.log_format) => outcome,
            () = shutdown.cancelled() => Ok(()),
        };
        tracing::info!("draining");
        // Whoever asks first, ends first: requests in flight are still answered.
        for rank in [Rank::Gateway, Rank::Stage, Rank::Broker] {
            fleet.end(rank, exit_limit).await;
        }
        tracing::info!("stopped");
        outcome
    })
}

/// Starts the processes, each kind when the one before is ready, and starts again what ends. Returns with an error only.
async fn watch(
    fleet: &mut Fleet,
    ended: &mut Signal,
    plan: &mut Plan,
    broker: &Broker,
    format: LogFormat,
) -> anyhow::Result<()> {
    fleet.add(broker.part()?)?;
    settle(fleet, ended, broker.until_ready()).await.with_context(|| broker.last_words())?;
    // Stages ask it for their queues.
    fleet.add(plan.gateway.take().context("a gateway is started once")?)?;
    settle(fleet, ended, until_ready(fleet.admin_addresses(), None)).await?;
    std::mem::take(&mut plan.stages).into_iter().try_for_each(|part| fleet.add(part))?;
    settle(fleet, ended, until_ready(fleet.admin_addresses(), plan.http.clone())).await?;
    fleet.complete();
    match format {
        LogFormat::Text => eprint!("{}", plan.words(fleet)),
        LogFormat::Json => tracing::info!(http = plan.http, nats = broker.url(), "ready"),
    }
    loop {
        tokio::select! {
            _ = ended.recv() => fleet.reap()?,
            () = fleet.until_due() => fleet.start_due()?,
        }
    }
}

/// Waits until a part of the fleet is ready. An error is that a process has ended meanwhile.
async fn settle(fleet: &mut Fleet, ended: &mut Signal, ready: impl Future<Output = ()>) -> anyhow::Result<()> {
    tokio::pin!(ready);
    loop {
        tokio::select! {
            () = &mut ready => return Ok(()),
            _ = ended.recv() => fleet.reap()?,
        }
    }
}

/// The processes, and what a person has to know about them.
struct Plan {
    /// `None` when it was started.
    gateway: Option<Part>,
    stages: Vec<Part>,
    /// `http://HOST:PORT` of the gateway, unless it speaks TLS or no HTTP.
    http: Option<String>,
    /// The addresses that clients use.
    places: String,
    /// The commands that start one more process of each stage.
    commands: Vec<String>,
}

// === impl UpArgs ===

impl UpArgs {
    /// How many processes each stage has. Faults of models that the files show are an error, told once.
    async fn counts(&self) -> anyhow::Result<Vec<(Stage, usize)>> {
        let sources = self.worker.models.open_some(self.worker.control.exit_on_error).await?;
        let control = self.worker.control.options()?;
        let models_come = control.mode != ControlMode::None;
        let repository = ModelOptions { model_repository: sources.repositories.clone(), control }.read()?;
        let service_of = |model: &RepositoryModel| KnownBackend::named(&model.config.backend)?.service;
        let needed: BTreeSet<&str> = repository.models().filter_map(service_of).collect();
        let count = |stage: &Stage| {
            let asked = self.scale.iter().rev().find(|(scaled, _)| scaled == stage).map(|(_, count)| *count);
            // A service without models does not start, unless models may come.
            let is_needed = needed.contains(stage.name().as_str()) || (models_come && *stage != Stage::Python);
            (*stage, asked.unwrap_or_else(|| usize::from(is_needed)))
        };
        Ok(Stage::value_variants().iter().map(count).collect())
    }

    /// The models whose code may run where no flag says it: the user of `trireme up` chooses them.
    fn allow_python(&self) -> AllowPython {
        self.python.allow_python.unwrap_or_else(|| PythonArgs::default_for(self.worker.models.is_remote()))
    }
}

// === impl Plan ===

impl Plan {
    fn new(
        args: &UpArgs,
        matches: &ArgMatches,
        counts: &[(Stage, usize)],
        ports: &Ports,
        broker: &Broker,
    ) -> anyhow::Result<Plan> {
        let program = std::env::current_exe().context("where this program lies")?;
        let is_chosen = matches.value_source("log_level") != Some(ValueSource::DefaultValue);
        let part = |name: String, rank, service: &str, given: Vec<OsString>| -> anyhow::Result<Part> {
            let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, ports::free()?));
            let mut arguments = vec![service.into()];
            arguments.extend(given);
            arguments.push(format!("--admin-address={admin}").into());
            if !is_chosen {
                // Log lines at `info` are for people who run the processes one by one.
                arguments.push("--log-level=warn".into());
            }
            Ok(Part { name, rank, program: program.clone(), arguments, admin: Some(admin) })
        };
        let url = OsString::from(format!("--nats-url={}", broker.url()));
        let mut given = stated("gateway", matches, &["http_port", "grpc_port", "metrics_port"]);
        given.push(url.clone());
        given.extend(ports.flags().map(OsString::from));
        let gateway = Some(part("gateway".to_owned(), Rank::Gateway, "gateway", given)?);
        let (mut stages, mut commands) = (Vec::new(), Vec::new());
        for (stage, count) in counts {
            let name = stage.name();
            let service = name.as_str();
            let mut given = stated(service, matches, &[]);
            if *stage == Stage::Python && args.python.allow_python.is_none() {
                let allowed = args.allow_python().to_possible_value().context("it has a name")?;
                given.push(format!("--allow-python={}", allowed.get_name()).into());
            }
            given.push(url.clone());
            if *count > 0 {
                let words: Vec<String> = given.iter().map(|word| quoted(&word.to_string_lossy())).collect();
                commands.push(format!("trireme {service} {}", words.join(" ")));
            }
            for number in 1..=*count {
                stages.push(part(format!("{service} {number}"), Rank::Stage, service, given.clone())?);
            }
        }
        let (http, places) = places(args, ports, broker);
        Ok(Plan { gateway, stages, http, places, commands })
    }

    /// The lines that are printed when all processes are ready.
    fn words(&self, fleet: &Fleet) -> String {
        let mut text = format!("\n{}\n\n", self.places);
        for (name, id) in fleet.processes() {
            let _ = writeln!(text, "  {name:<14} process {id}");
        }
        let _ = writeln!(text, "\nOne more process of a stage, until its own Ctrl-C:");
        for command in &self.commands {
            let _ = writeln!(text, "  {command}");
        }
        let _ = writeln!(text, "\nCtrl-C ends everything here.");
        text
    }
}

/// The gateway's URL for a look at its readiness, and a line with all ports.
fn places(args: &UpArgs, ports: &Ports, broker: &Broker) -> (Option<String>, String) {
    let here = |address: IpAddr| match address.is_unspecified() {
        true => "localhost".to_owned(),
        false if address.is_ipv6() => format!("[{address}]"),
        false => address.to_string(),
    };
    let http = &args.gateway.http;
    let (mut url, mut places) = (None, Vec::new());
    if let Some(port) = ports.http {
        let tls = http.https_cert.is_some();
        let place = format!("{}://{}:{port}", if tls { "https" } else { "http" }, here(http.http_address));
        places.push(format!("{place} (HTTP)"));
        url = (!tls).then_some(place);
    }
    if let Some(port) = ports.grpc {
        places.push(format!("{}:{port} (gRPC)", here(args.gateway.grpc.grpc_address)));
    }
    if let Some(port) = ports.metrics {
        let address = args.gateway.metrics.metrics_address.unwrap_or(http.http_address);
        places.push(format!("{}:{port} (metrics)", here(address)));
    }
    places.push(format!("{} (broker)", broker.url()));
    (url, places.join(", "))
}

/// Waits until every process says that it is ready, and the gateway that all models are.
async fn until_ready(mut waiting: Vec<SocketAddr>, http: Option<String>) {
    let mut sees_models = http.is_none();
    while !(waiting.is_empty() && sees_models) {
        tokio::time::sleep(LOOK).await;
        let url = http.clone().filter(|_| waiting.is_empty());
        // The looks wait for answers.
        let looking = tokio::task::spawn_blocking(move || {
            waiting.retain(|address| AdminArgs { admin_address: Some(*address), healthcheck: true }.check().is_err());
            let look = |url| Client::new(&ServerArgs::at(url, Vec::new(), ANSWER_SECS))?.get("/v2/health/ready");
            (waiting, url.is_some_and(|url| look(url).is_ok()))
        });
        let Ok((still, seen)) = looking.await else { return };
        (waiting, sees_models) = (still, sees_models || seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_scaled_by_name_and_number() {
        assert_eq!(scaled("model=2"), Ok((Stage::Model, 2)));
        assert_eq!(scaled("python=0"), Ok((Stage::Python, 0)));
        for wrong in ["model", "model=", "model=x", "model=-1", "model=257", "gateway=2"] {
            assert!(scaled(wrong).unwrap_err().contains(&format!("found '{wrong}'")), "{wrong}");
        }
    }
}
