//! `make scale`: measures the cost of a cluster of hundreds of workers and gateways, and compares it with limits.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use trireme_e2e::scale::host::{HostGateways, HostWorkers};
use trireme_e2e::scale::{self, Finding, Plan, Scene, Size};

/// Measures the cost of hundreds of workers.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    host: Option<Host>,
    #[command(flatten)]
    args: Args,
}

/// Subcommands with which the program starts itself.
#[derive(Subcommand)]
enum Host {
    /// Hosts simulated workers
    #[command(hide = true)]
    HostWorkers(HostWorkers),
    /// Hosts simulated gateways
    #[command(hide = true)]
    HostGateways(HostGateways),
}

#[derive(clap::Args)]
struct Args {
    /// Deployments to measure
    #[arg(long, value_delimiter = ',', default_value = "small,medium,large")]
    sizes: Vec<Size>,

    /// Scenes to run
    #[arg(long, value_delimiter = ',', default_value = "idle,join,read,cluster,crowd,restart")]
    scenes: Vec<Scene>,

    /// Seconds for which a deployment at rest is watched
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,

    /// Seconds for which a deployment is left alone before that
    #[arg(long, default_value_t = 60.0)]
    settle: f64,

    /// Seconds that a deployment may take to get ready
    #[arg(long, default_value_t = 300)]
    ready: u64,

    /// Workers that join and leave at once
    #[arg(long, default_value_t = 50)]
    joining: usize,

    /// Requests a second meanwhile, over all gateways
    #[arg(long, default_value_t = 300.0)]
    rate: f64,

    /// Workers on one model
    #[arg(long, default_value_t = 600)]
    crowd: usize,

    /// Requests in flight when the broker restarts
    #[arg(long, default_value_t = 10_000)]
    in_flight: usize,

    /// Copies of each queue in the cluster of brokers
    #[arg(long, default_value_t = 3)]
    replicas: usize,

    /// File to write the findings to, one JSON object a line
    #[arg(long)]
    json: Option<PathBuf>,

    /// File to write the table to, in Markdown
    #[arg(long)]
    markdown: Option<PathBuf>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match &cli.host {
        Some(Host::HostWorkers(host)) => host.run(),
        Some(Host::HostGateways(host)) => host.run(),
        None => measure(&cli.args),
    }
}

fn measure(args: &Args) -> ExitCode {
    scale::raise_descriptor_limit();
    println!("{}", Finding::HEAD);
    let findings = scale::run(&args.plan(), |finding| println!("{finding}"));
    let lines: Vec<String> = findings.all().iter().map(|finding| finding.json().to_string()).collect();
    let written = write(args.json.as_deref(), &(lines.join("\n") + "\n"))
        .and_then(|()| write(args.markdown.as_deref(), &findings.markdown()));
    let missed: Vec<&Finding> = findings.all().iter().filter(|finding| !finding.is_met()).collect();
    missed.iter().for_each(|finding| println!("FAILED: {finding}"));
    if let Err(error) = written {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    if findings.are_met() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn write(path: Option<&Path>, text: &str) -> Result<(), String> {
    let Some(path) = path else { return Ok(()) };
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

// === impl Args ===

impl Args {
    fn plan(&self) -> Plan {
        Plan {
            sizes: self.sizes.clone(),
            scenes: self.scenes.clone(),
            watch: Duration::from_secs_f64(self.seconds),
            settle: Duration::from_secs_f64(self.settle),
            ready_limit: Duration::from_secs(self.ready),
            joining: self.joining,
            rate: self.rate,
            crowd: self.crowd,
            in_flight: self.in_flight,
            replicas: self.replicas,
        }
    }
}
