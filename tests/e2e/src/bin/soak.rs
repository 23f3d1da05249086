//! `make soak`: half an hour of steady load, to check that no resource use grows.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use trireme_e2e::chaos::{SoakOptions, soak};

/// Runs the whole system under steady load and watches the resources of every process.
#[derive(Parser)]
struct Args {
    /// Minutes of load
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,

    /// Share of the load that the system can take
    #[arg(long, default_value_t = 0.7)]
    share: f64,

    /// Requests in flight, at most
    #[arg(long, default_value_t = 16)]
    concurrency: usize,
}

fn main() -> ExitCode {
    let Args { minutes, share, concurrency } = Args::parse();
    let options = SoakOptions { duration: Duration::from_secs_f64(minutes * 60.0), share, concurrency };
    let report = soak(&options, |line| println!("{line}"));
    println!("\n{report}");
    match report.is_flat() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
