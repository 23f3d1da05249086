//! Chaos: the whole system under steady load while its processes, its broker and its network fail at random.
//!
//! Every answer is checked. [`run`] draws [`Fault`]s from a seed, lets one after the other happen, or two at once, and
//! reports what the clients noticed. The bar: no answer wrong, lost or late, no part of one doubled, no error, whatever
//! ends, hangs or is cut off, and every worker executes each of its models again afterwards; a caller notices a delay at
//! most. To show that the harness would notice, [`Options::acknowledge_early`] breaks the rule that everything rests on,
//! and requests have to get lost.

mod ask;
mod clients;
mod cluster;
mod disk;
mod draw;
mod fault;
mod grpc;
mod healing;
mod member;
mod models;
mod proxy;
mod questions;
mod report;
mod soak;
mod tally;
mod usage;

use std::time::{Duration, Instant};

pub use disk::SmallDisk;
pub use fault::Fault;
pub use proxy::Proxy;
pub use report::Report;
pub use soak::{SoakOptions, SoakReport, soak};

use crate::golden;
use clients::Clients;
use cluster::{Cluster, Shape};
use report::Struck;

/// The pause after a fault, before the next one: at most this.
const CALM: Duration = Duration::from_millis(800);

/// Rounds of faults between two looks at whether every worker works again.
const ROUNDS_PER_CHECK: usize = 10;

/// How long nothing may be answered once there are no faults any more, beyond the deadline of requests.
const SILENCE: Duration = Duration::from_secs(30);

/// How often processes are looked at after the last fault.
const LOOK: Duration = Duration::from_secs(1);

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where the random numbers start.
    pub seed: u64,
    /// Faults to let happen.
    pub faults: usize,
    /// The share of faults that happen together with another.
    pub overlap: f64,
    /// Requests to be answered at least; the load goes on after the last fault until then.
    pub requests: usize,
    /// Requests in flight.
    pub concurrency: usize,
    /// The deadline of requests: one that takes longer is lost.
    pub deadline: Duration,
    /// Let some workers host two stages.
    pub hand_over: bool,
    /// Acknowledge deliveries before their work is done, which loses work.
    pub acknowledge_early: bool,
}

/// Runs it, with a disk on queues in files there, which also gets full. `progress` hears of faults as they happen.
///
/// # Panics
/// When the system does not get ready, a process does not end when told to, or one ends that nobody told to.
pub fn run(options: &Options, disk: Option<SmallDisk>, progress: impl FnMut(&str)) -> Report {
    let mut random = fastrand::Rng::with_seed(options.seed);
    let faults = draw::draw(&mut random, options.faults, cluster::MEMBER_COUNT, disk.is_some());
    let rounds = draw::overlap(&mut random, faults, options.overlap);
    run_faults(options, disk, &rounds, progress)
}

/// As [`run`], with these faults: one after the other, those of a round at once. [`Fault::FullDisk`] needs a disk.
///
/// # Panics
/// As [`run`].
pub fn run_faults(
    options: &Options,
    disk: Option<SmallDisk>,
    rounds: &[Vec<Fault>],
    mut progress: impl FnMut(&str),
) -> Report {
    let Options { seed, deadline, acknowledge_early, hand_over, .. } = *options;
    let mut random = fastrand::Rng::with_seed(seed);
    let golden = golden();
    let storage = if disk.is_some() { "files" } else { "memory" };
    let mut cluster = Cluster::start(Shape { deadline, acknowledge_early, hand_over, disk });
    let doors = cluster.doors.clone();
    let clients = Clients::new(&doors, &golden, deadline).of_halting(draw::LONGEST_HALT * 2);
    let (mut struck, mut healing) = (Vec::new(), Default::default());
    std::thread::scope(|scope| {
        clients::start(scope, &clients, options.concurrency);
        // However this ends, the clients have to end with it.
        let _stop = StopOnDrop(&clients);
        for (number, faults) in rounds.iter().enumerate() {
            std::thread::sleep(CALM.mul_f64(random.f64()));
            let described: Vec<String> = faults.iter().map(|fault| fault.describe(&cluster)).collect();
            progress(&described.join(", "));
            let kind = match &faults[..] {
                [fault] => fault.kind(&cluster),
                _ => "two at once".to_owned(),
            };
            let begun = clients.elapsed();
            fault::strike(faults, &mut cluster);
            struck.push(Struck { kind, count: faults.len(), begun, ended: clients.elapsed() });
            if (number + 1) % ROUNDS_PER_CHECK == 0 || number + 1 == rounds.len() {
                Report::heal(&mut healing, healing::check(&cluster));
            }
        }
        // Requests have a deadline: when none is answered for so long, none will be.
        wait_for(options.requests, deadline + SILENCE, || clients.answered(), || cluster.assert_alive());
    });
    let elapsed = clients.elapsed();
    Report { tally: clients.into_tally(), struck, elapsed, storage, healing }
}

/// Waits until there are enough answers, and looks every second at what else there is to see, at least once.
///
/// # Panics
/// When there is none any more for longer than `silence`.
fn wait_for(enough: usize, silence: Duration, answered: impl Fn() -> usize, mut look: impl FnMut()) {
    let (mut before, mut last) = (answered(), Instant::now());
    look();
    while before < enough {
        std::thread::sleep(LOOK);
        look();
        let now = answered();
        if now > before {
            (before, last) = (now, Instant::now());
        }
        assert!(last.elapsed() < silence, "nothing is answered any more");
    }
}

struct StopOnDrop<'a>(&'a Clients<'a>);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn processes_are_looked_at_until_the_end() {
        let (answers, looks) = (Cell::new(0), Cell::new(0));
        let answered = || answers.replace(answers.get() + 5);
        wait_for(10, Duration::from_secs(60), answered, || looks.set(looks.get() + 1));
        assert_eq!(looks.get(), 3, "before the first pause and after each");
    }

    #[test]
    #[should_panic(expected = "nothing is answered any more")]
    fn silence_is_noticed() {
        wait_for(1, Duration::ZERO, || 0, || {});
    }
}
