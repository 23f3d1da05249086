//! Chaos: the whole system under steady load while its processes, its broker and its network fail at random.
//!
//! Every answer is checked. [`run`] draws [`Fault`]s from a seed, lets one after the other happen, and reports what the
//! clients noticed. The bar: no wrong answer, none lost, none doubled, no error, whatever ends, hangs or is cut off; a
//! caller notices a delay at most. To show that the harness would notice, [`Options::acknowledge_early`] breaks the rule
//! that everything rests on, and requests have to get lost.

mod clients;
mod cluster;
mod disk;
mod fault;
mod proxy;
mod report;
mod soak;

use std::time::Duration;

pub use disk::SmallDisk;
pub use fault::Fault;
pub use report::Report;
pub use soak::{SoakOptions, SoakReport, soak};

use crate::golden;
use clients::Clients;
use cluster::Cluster;
use report::Struck;

/// The pause after a fault, before the next one: at most this.
const CALM: Duration = Duration::from_millis(800);

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where the random numbers start.
    pub seed: u64,
    /// Faults to let happen.
    pub faults: usize,
    /// Requests to be answered at least; the load goes on after the last fault until then.
    pub requests: usize,
    /// Requests in flight.
    pub concurrency: usize,
    /// Acknowledge deliveries before their work is done, which loses work.
    pub acknowledge_early: bool,
}

/// Runs it, with a disk on queues in files there, which also gets full. `progress` hears of each fault as it happens.
///
/// # Panics
/// When the system does not get ready, a process does not end when told to, or one ends that nobody told to.
pub fn run(options: &Options, disk: Option<SmallDisk>, progress: impl FnMut(&str)) -> Report {
    let mut random = fastrand::Rng::with_seed(options.seed);
    let faults = Fault::draw(&mut random, options.faults, cluster::MEMBERS, disk.is_some());
    run_faults(options, disk, faults, progress)
}

/// As [`run`], with these faults; [`Fault::FullDisk`] needs a disk.
///
/// # Panics
/// As [`run`].
pub fn run_faults(
    options: &Options,
    disk: Option<SmallDisk>,
    faults: Vec<Fault>,
    mut progress: impl FnMut(&str),
) -> Report {
    let mut random = fastrand::Rng::with_seed(options.seed);
    let golden = golden();
    let mut cluster = Cluster::start(clients::models(), options.acknowledge_early, disk);
    let doors = cluster.doors.clone();
    let clients = Clients::new(&doors, &golden);
    let mut struck = Vec::new();
    std::thread::scope(|scope| {
        clients::start(scope, &clients, options.concurrency);
        // However this ends, the clients have to end with it.
        let _stop = StopOnDrop(&clients);
        for fault in faults {
            std::thread::sleep(CALM.mul_f64(random.f64()));
            let description = fault.describe(&cluster);
            progress(&description);
            let begun = clients.elapsed();
            fault.strike(&mut cluster);
            struck.push(Struck { description, begun, ended: clients.elapsed() });
            let crashed = cluster.crashed();
            assert!(crashed.is_empty(), "ended by themselves:\n{}", crashed.join("\n"));
        }
        let mut before = clients.answered();
        while before < options.requests {
            std::thread::sleep(Duration::from_secs(1));
            let now = clients.answered();
            // Requests have a deadline: when none is answered for so long, none will be.
            assert!(now > before || clients.elapsed() < Duration::from_secs(90), "nothing is answered any more");
            before = now;
        }
    });
    let elapsed = clients.elapsed();
    Report::new(clients.into_tally(), struck, elapsed)
}

struct StopOnDrop<'a>(&'a Clients<'a>);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
