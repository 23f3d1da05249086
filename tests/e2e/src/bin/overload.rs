//! `make overload`: offers up to ten times the system's capacity and reports goodput and refusals.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use trireme_e2e::{Bound, Demands, Level, Loop, Mode, Round, Scene, Summary, overload};

/// The figures that the system has to reach.
const DEMANDS: Demands = Demands {
    of_capacity: 0.9,
    of_best: 0.95,
    refusal: Duration::from_millis(10),
    of_median: 2.0,
    overdue: Duration::from_millis(100),
};

/// How many times the median the 99th percentile may take in a closed loop.
const IN_TURN: f64 = 1.5;

/// The loads of closed loops, as multiples of the room of the slowest step.
const CLOSED: [usize; 3] = [2, 4, 8];

/// The timeout of requests in the scenes where it bounds the waiting.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Offers more than the system can do.
#[derive(Parser)]
struct Args {
    /// Loads, as multiples of the system's capacity
    #[arg(long, value_delimiter = ',', default_value = "0.25,0.5,0.75,1,1.5,2,5,10")]
    loads: Vec<f64>,

    /// Seconds at each load
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,

    /// Milliseconds that the model takes alone; in the pipeline it takes three times as long, whose other steps need the CPU
    #[arg(long, default_value_t = 20)]
    run: u64,

    /// Only scenes whose names contain this, as "model over NATS" or "1 s each"
    #[arg(long, default_value = "")]
    scene: String,

    /// File to write the measurements to, one JSON object a line
    #[arg(long)]
    json: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let (mut levels, mut kept) = (Vec::new(), true);
    let wanted = |scene: &Scene| scene.to_string().contains(&args.scene);
    for scene in scenes(Duration::from_millis(args.run)).filter(wanted) {
        println!("{scene}\n{}", Level::HEAD);
        let of_scene = overload(scene, &args.loads, Duration::from_secs_f64(args.seconds), |level| println!("{level}"));
        let summary = Summary::of(&of_scene);
        let shortfalls = summary.shortfalls(&DEMANDS);
        println!("{summary}");
        shortfalls.iter().for_each(|shortfall| println!("FAILED: {shortfall}"));
        println!();
        kept &= shortfalls.is_empty();
        levels.extend(of_scene);
    }
    let closed = [(Mode::AllInOne, false), (Mode::Services, false), (Mode::Services, true)];
    let closed = closed.map(|(mode, apart)| Loop { mode, apart });
    for scene in closed.into_iter().filter(|scene| scene.to_string().contains(&args.scene)) {
        println!("{scene}\n{}", Round::HEAD);
        for round in scene.measure(&CLOSED, Duration::from_secs_f64(args.seconds), |round| println!("{round}")) {
            if round.of_median() > IN_TURN || round.other > 0 {
                println!("FAILED: 99 % of results take {:.2} times the median, not {IN_TURN:.2}", round.of_median());
                kept = false;
            }
        }
        println!();
    }
    if let Some(path) = &args.json {
        let lines: Vec<String> = levels.iter().map(|level| level.json().to_string()).collect();
        if let Err(error) = std::fs::write(path, lines.join("\n") + "\n") {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn scenes(run: Duration) -> impl Iterator<Item = Scene> {
    let systems = [(Mode::Services, false), (Mode::AllInOne, false), (Mode::Services, true), (Mode::AllInOne, true)];
    systems.into_iter().flat_map(move |(mode, pipeline)| {
        let run = if pipeline { run * 3 } else { run };
        [Bound::Queue, Bound::Deadline(TIMEOUT)].map(|bound| Scene { mode, pipeline, bound, run })
    })
}
