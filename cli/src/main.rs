//! The `trireme` command: `serve` runs everything in one process; each subcommand is a file here.

mod bench;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Serves transformer text models behind the v2 (KServe / Triton) protocol
#[derive(Parser)]
#[command(name = "trireme", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a model repository: gateway and all stages in this process, without a broker
    Serve(Box<serve::ServeArgs>),
    /// Load a server of the v2 protocol and print throughput and latency
    Bench(bench::BenchArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Bench(args) => bench::run(&args),
    }
}
