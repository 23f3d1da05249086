//! Runs every parser of outside bytes on changed examples: `make fuzz SECONDS=600`.
//!
//! Each target starts with the files in `corpus/<target>`. An input with a new kind of outcome (another error, another
//! success) is kept and changed further. This makes progress without special compilation. A panic, or an input that
//! takes longer than [`LIMIT`], is written to `crashes/` and ends the run.

mod mutate;
mod targets;

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use parking_lot::Mutex;

use mutate::Mutator;
use targets::{TARGETS, Target};

/// How long one input may take.
const LIMIT: Duration = Duration::from_secs(5);

/// The most kinds of outcome that are distinguished.
const MAX_KINDS: usize = 100_000;

/// The most inputs kept for a target.
const MAX_KEPT: usize = 4096;

#[derive(Parser)]
struct Arguments {
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Number that the changes follow from; another one gives other changes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Targets; all of them without it.
    targets: Vec<String>,
}

/// The present input and its start time.
type Current = Arc<Mutex<Option<(Instant, Vec<u8>)>>>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // The panic is reported once, together with the input.
    std::panic::set_hook(Box::new(|_| {}));
    let chosen = TARGETS
        .iter()
        .filter(|target| arguments.targets.is_empty() || arguments.targets.contains(&target.name.to_owned()));
    for target in chosen {
        match fuzz(target, Duration::from_secs(arguments.seconds), arguments.seed) {
            Ok((runs, kinds)) => println!("{}: {runs} inputs, {kinds} kinds of outcome, no crash", target.name),
            Err(error) => {
                eprintln!("{}: {error:#}", target.name);
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Runs a target. Returns the number of inputs and the number of kinds of outcome.
fn fuzz(target: &'static Target, time: Duration, seed: u64) -> anyhow::Result<(u64, usize)> {
    let mut kept = corpus(target.name)?;
    let current = Current::default();
    watch(target.name, current.clone());
    let mut outcomes = HashSet::new();
    for input in &kept {
        outcomes.insert(run(target, input, &current)?);
    }
    let mut mutator = Mutator::new(seed);
    let (until, mut runs) = (Instant::now() + time, kept.len() as u64);
    while Instant::now() < until {
        let input = mutator.change(&kept, target.words);
        runs += 1;
        let outcome = run(target, &input, &current)?;
        // Errors that quote their input can make endless kinds. Beyond the limit, new ones are not kept.
        if outcomes.len() < MAX_KINDS && outcomes.insert(outcome) && kept.len() < MAX_KEPT {
            kept.push(input);
        }
    }
    *current.lock() = None;
    Ok((runs, outcomes.len()))
}

fn run(target: &Target, input: &[u8], current: &Current) -> anyhow::Result<String> {
    *current.lock() = Some((Instant::now(), input.to_vec()));
    match std::panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        Ok(outcome) => Ok(kind(&outcome)),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            let path = save(target.name, input)?;
            anyhow::bail!("panicked on {}: {}", path.display(), said.unwrap_or_default())
        }
    }
}

/// An outcome without its numbers and quoted parts, which differ from input to input.
fn kind(outcome: &str) -> String {
    let mut kind = String::new();
    let mut quoted = false;
    for c in outcome.chars().take(400) {
        match c {
            '\'' => quoted = !quoted,
            _ if quoted || c.is_ascii_digit() => {}
            _ => kind.push(c),
        }
    }
    kind
}

/// Ends the process if an input takes too long.
fn watch(target: &'static str, current: Current) {
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(LIMIT / 10);
            let Some((since, input)) = current.lock().clone() else { return };
            if since.elapsed() > LIMIT {
                let saved = save(target, &input).map(|path| path.display().to_string());
                eprintln!("{target}: takes longer than {LIMIT:?}: {}", saved.unwrap_or_default());
                std::process::exit(1);
            }
        }
    });
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn corpus(target: &str) -> anyhow::Result<Vec<Vec<u8>>> {
    let folder = folder().join("corpus").join(target);
    let entries = std::fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    let mut paths: Vec<_> = entries.collect::<Result<Vec<_>, _>>()?.into_iter().map(|entry| entry.path()).collect();
    paths.sort();
    anyhow::ensure!(!paths.is_empty(), "{} is empty", folder.display());
    paths.iter().map(|path| std::fs::read(path).with_context(|| path.display().to_string())).collect()
}

fn save(target: &str, input: &[u8]) -> anyhow::Result<PathBuf> {
    let folder = folder().join("crashes");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{target}-{}", input.len()));
    std::fs::write(&path, input)?;
    Ok(path)
}
