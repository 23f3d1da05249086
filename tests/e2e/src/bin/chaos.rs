//! `make chaos`: injects random faults into the whole system for some minutes and reports how its clients were
//! affected.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use trireme_e2e::chaos::{self, Options, PROMPT, SmallDisk};

/// Runs the whole system under load while its processes, broker and network fail at random.
#[derive(Parser)]
struct Args {
    /// Where the random numbers start; the same seed draws the same faults
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Faults to let happen
    #[arg(long, default_value_t = 60)]
    faults: usize,

    /// Only kinds of faults whose names, as in the report, begin with this
    #[arg(long)]
    only: Option<String>,

    /// The share of faults that happen together with another
    #[arg(long, default_value_t = 0.2)]
    overlap: f64,

    /// Requests to be answered at least
    #[arg(long, default_value_t = 10_000)]
    requests: usize,

    /// Lines of each batch that runs beside the load, with durable requests; 0 leaves both out
    #[arg(long, default_value_t = 100_000)]
    lines: usize,

    /// Requests in flight
    #[arg(long, default_value_t = 16)]
    concurrency: usize,

    /// Seconds that a request may take
    #[arg(long, default_value_t = 60.0)]
    deadline: f64,

    /// Brokers: one, or a cluster of three whose nodes fail, too
    #[arg(long, value_enum, default_value = "1")]
    brokers: Brokers,

    /// Seconds by which clocks of processes may be wrong, in either direction; takes libfaketime. 60 with three brokers,
    /// otherwise 0
    #[arg(long)]
    clocks: Option<f64>,

    /// Where queues are kept
    #[arg(long, value_enum, default_value_t = Storage::Both)]
    storage: Storage,

    /// Let some workers host two stages
    #[arg(long)]
    hand_over: bool,

    /// Acknowledge work before it is done, to see that the harness notices the lost requests
    #[arg(long)]
    acknowledge_early: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Storage {
    /// In memory: they are lost with the broker
    Memory,
    /// In files, on a small disk, which loses power and, with a single broker, gets full now and then; that takes root's rights
    File,
    /// Half of the faults with each, where possible; else all in memory
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Brokers {
    #[value(name = "1")]
    One,
    #[value(name = "3")]
    Three,
}

/// The storage of a run's queues.
enum Place {
    Memory,
    Disk(SmallDisk),
    Files,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let Some(places) = places(&args) else { return ExitCode::FAILURE };
    let share = |count: usize| count.div_ceil(places.len());
    let (brokers, clocks) = match args.brokers {
        Brokers::One => (1, 0.0),
        Brokers::Three => (3, 60.0),
    };
    let options = Options {
        seed: args.seed,
        faults: share(args.faults),
        only: args.only.clone().map(|only| &*only.leak()),
        overlap: args.overlap,
        requests: share(args.requests),
        prompt: PROMPT,
        lines: args.lines,
        concurrency: args.concurrency,
        deadline: Duration::from_secs_f64(args.deadline),
        hand_over: args.hand_over,
        brokers,
        files: false,
        clocks: Duration::from_secs_f64(args.clocks.unwrap_or(clocks)),
        acknowledge_early: args.acknowledge_early,
    };
    let mut clean = true;
    for place in places {
        let started = Instant::now();
        let options = Options { files: !matches!(place, Place::Memory), ..options };
        let disk = match place {
            Place::Disk(disk) => Some(disk),
            Place::Memory | Place::Files => None,
        };
        let report =
            chaos::run(&options, disk, |fault| println!("{:>6.1} s  {fault}", started.elapsed().as_secs_f64()));
        println!("\nseed {}, {report}", args.seed);
        clean &= report.is_clean();
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The storage of each of the runs; `None`, with a message, if it is not possible.
fn places(args: &Args) -> Option<Vec<Place>> {
    if args.brokers == Brokers::Three && args.storage != Storage::Memory {
        let files = SmallDisk::mount().map(Place::Disk).unwrap_or_else(|| {
            println!("not run: power cuts; mounting a disk for them takes root's rights");
            Place::Files
        });
        return Some(if args.storage == Storage::File { vec![files] } else { vec![Place::Memory, files] });
    }
    let disk = match args.storage {
        Storage::Memory => None,
        Storage::File | Storage::Both => SmallDisk::mount().map(Place::Disk),
    };
    Some(match (args.storage, disk) {
        (Storage::Memory, _) => vec![Place::Memory],
        (Storage::File, Some(disk)) => vec![disk],
        (Storage::File, None) => {
            eprintln!("--storage file: a small disk cannot be mounted; that takes root's rights");
            return None;
        }
        (Storage::Both, Some(disk)) => vec![Place::Memory, disk],
        (Storage::Both, None) => {
            println!(
                "not run: queues in files on a disk that gets full and loses power; mounting one takes root's rights"
            );
            vec![Place::Memory]
        }
    })
}
