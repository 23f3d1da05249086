//! `make overload`: offers up to ten times what the system can do and reports goodput and refusals.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use trireme_e2e::{Level, overload};

/// The share of its best goodput that the system has to keep under any load.
const KEEPS: f64 = 0.95;

/// Offers more than the system can do.
#[derive(Parser)]
struct Args {
    /// Loads, as multiples of what the system can do
    #[arg(long, value_delimiter = ',', default_value = "0.25,0.5,0.75,0.9,1,1.25,1.5,2,3,5,7,10")]
    loads: Vec<f64>,

    /// Seconds at each load
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,

    /// File to write the measurements to, one JSON object a line
    #[arg(long)]
    json: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    println!("{}", Level::HEAD);
    let levels = overload(&args.loads, Duration::from_secs_f64(args.seconds), |level| println!("{level}"));
    if let Some(path) = &args.json {
        let lines: Vec<String> = levels.iter().map(|level| level.json().to_string()).collect();
        if let Err(error) = std::fs::write(path, lines.join("\n") + "\n") {
            eprintln!("{}: {error}", path.display());
            return ExitCode::FAILURE;
        }
    }
    let best = levels.iter().map(|level| level.goodput).fold(0.0, f64::max);
    let overloaded = levels.iter().filter(|level| level.load > 1.0);
    let worst = overloaded.map(|level| level.goodput).fold(f64::INFINITY, f64::min);
    println!("goodput under overload: {:.1} % of the best at least", 100.0 * worst.min(best) / best);
    match worst >= KEEPS * best && levels.iter().all(|level| level.other == 0) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
