//! `make chaos`: lets the system fail in every way for some minutes and reports what its clients noticed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
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

    /// The share of faults that happen together with another
    #[arg(long, default_value_t = 0.2)]
    overlap: f64,

    /// Requests to be answered at least
    #[arg(long, default_value_t = 10_000)]
    requests: usize,

    /// Requests in flight
    #[arg(long, default_value_t = 16)]
    concurrency: usize,

    /// Seconds that a request may take
    #[arg(long, default_value_t = 60.0)]
    deadline: f64,

    /// Where queues are kept
    #[arg(long, value_enum, default_value_t = Storage::Both)]
    storage: Storage,

    /// Let some workers host two stages
    #[arg(long)]
    hand_over: bool,

    /// Acknowledge work before it is done, to see that the harness notices what that loses
    #[arg(long)]
    acknowledge_early: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Storage {
    /// In memory: with the broker they are gone
    Memory,
    /// In files on a small disk, which gets full now and then; takes root's rights
    File,
    /// Half of the faults with each, where a small disk can be mounted, or all in memory
    Both,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let disk = match args.storage {
        Storage::Memory => None,
        Storage::File | Storage::Both => SmallDisk::mount(),
    };
    let runs: Vec<Option<SmallDisk>> = match (args.storage, disk) {
        (Storage::File, None) => {
            eprintln!("--storage file: a small disk cannot be mounted; that takes root's rights");
            return ExitCode::FAILURE;
        }
        (Storage::Both, None) => {
            println!("not run: queues in files on a disk that gets full; mounting one takes root's rights");
            vec![None]
        }
        (Storage::Both, disk) => vec![None, disk],
        (_, disk) => vec![disk],
    };
    let share = |count: usize| count.div_ceil(runs.len());
    let options = Options {
        seed: args.seed,
        faults: share(args.faults),
        overlap: args.overlap,
        requests: share(args.requests),
        concurrency: args.concurrency,
        deadline: Duration::from_secs_f64(args.deadline),
        hand_over: args.hand_over,
        acknowledge_early: args.acknowledge_early,
    };
    let mut clean = true;
    for disk in runs {
        let started = Instant::now();
        let report =
            chaos::run(&options, disk, |fault| println!("{:>6.1} s  {fault}", started.elapsed().as_secs_f64()));
        println!("\nseed {}, {report}", args.seed);
        clean &= report.is_clean();
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
