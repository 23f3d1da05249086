//! `make siege`: hostile clients, and their effect on honest clients.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use trireme_e2e::{Mode, siege};

/// Lays siege to a server that it starts on this host.
#[derive(Parser)]
struct Args {
    /// Seconds of the quiet and of each attack
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,

    /// Only attacks whose names contain this
    #[arg(long, default_value = "")]
    attack: String,

    /// As services over NATS instead of one process
    #[arg(long)]
    services: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        eprintln!("the limit of open files cannot be raised: {error}");
    }
    let mode = if args.services { Mode::Services } else { Mode::AllInOne };
    println!("{}", siege::Phase::HEAD);
    let time = Duration::from_secs_f64(args.seconds);
    let phases = siege::siege(mode, time, &args.attack, |quiet, phase| print!("{}", phase.lines(quiet)));
    let shortfalls = siege::shortfalls(&phases);
    shortfalls.iter().for_each(|shortfall| println!("FAILED: {shortfall}"));
    match shortfalls.is_empty() {
        true => {
            println!(
                "no honest request was lost, 99 % took no more than {} times as long as in the quiet or 30 ms, and memory kept to the \
                 budget of {} MiB",
                siege::FACTOR,
                siege::BUDGET >> 20
            );
            ExitCode::SUCCESS
        }
        false => ExitCode::FAILURE,
    }
}
