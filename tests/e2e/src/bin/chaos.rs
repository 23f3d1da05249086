//! `make chaos`: lets the system fail in every way for some minutes and reports what its clients noticed.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use trireme_e2e::chaos::{self, Options, SmallDisk};

/// Runs the whole system under load while its processes, broker and network fail at random.
#[derive(Parser)]
struct Args {
    /// Where the random numbers start; the same seed draws the same faults
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Faults to let happen
    #[arg(long, default_value_t = 60)]
    faults: usize,

    /// Requests to be answered at least
    #[arg(long, default_value_t = 10_000)]
    requests: usize,

    /// Requests in flight
    #[arg(long, default_value_t = 16)]
    concurrency: usize,

    /// Keep queues in files on a small disk, which gets full now and then; takes root's rights
    #[arg(long)]
    disk: bool,

    /// Acknowledge work before it is done, to see that the harness notices what that loses
    #[arg(long)]
    acknowledge_early: bool,
}

fn main() -> ExitCode {
    let Args { seed, faults, requests, concurrency, disk, acknowledge_early } = Args::parse();
    let options = Options { seed, faults, requests, concurrency, acknowledge_early };
    let disk = match disk.then(SmallDisk::mount) {
        Some(None) => {
            eprintln!("--disk: a small disk cannot be mounted; that takes root's rights");
            return ExitCode::FAILURE;
        }
        mounted => mounted.flatten(),
    };
    let started = Instant::now();
    let report = chaos::run(&options, disk, |fault| println!("{:>6.1} s  {fault}", started.elapsed().as_secs_f64()));
    println!("\nseed {seed}: {report}");
    match report.is_clean() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
