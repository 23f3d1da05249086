//! Chaos: the whole system under steady load while its processes, its brokers and its network fail at random.
//!
//! Every answer is checked. [`run`] draws [`Fault`]s from a seed and injects them one after the other, or two at once.
//! It reports how clients were affected. The bar: no answer is wrong, lost or late, no part of one is doubled, and
//! there is no error, whatever ends, hangs or is cut off. Afterwards every worker executes each of its models again.
//! Callers notice at most a delay. With a cluster of brokers ([`Options::brokers`]) its nodes fail, too, their data is
//! damaged, and clocks may be wrong. Then no answer may come later than ten seconds after the end of the last fault
//! that its request met.
//!
//! Durable requests and batches run beside the load ([`Options::lines`]). Each that was accepted has to get one answer, the right
//! one, however long that takes.
//!
//! [`Options::acknowledge_early`] checks the harness itself: it acknowledges deliveries before their work is done, and
//! then requests have to get lost.

mod admin;
mod ask;
mod brokers;
mod cable;
mod clients;
mod clock;
mod cluster;
mod course;
mod data;
mod disk;
mod draw;
mod effects;
mod fault;
mod grpc;
mod healing;
mod jobs;
mod member;
mod models;
mod nodes;
mod options;
mod proxy;
mod questions;
mod report;
mod settings;
mod shape;
mod soak;
mod struck;
mod tally;
mod usage;

use std::any::Any;
use std::panic::AssertUnwindSafe;

pub use data::Harm;
pub use disk::SmallDisk;
pub use fault::Fault;
pub use nodes::{Aim, NodeFault, Trouble};
pub use options::{Options, PROMPT};
pub use proxy::Proxy;
pub use report::Report;
pub use soak::{SoakOptions, SoakReport, soak};

use crate::golden;
use clients::Clients;
use clock::Clocks;
use cluster::Cluster;
use course::{Course, StopOnDrop};
use draw::Middle;
use jobs::Jobs;
use shape::Shape;

/// Draws faults and runs them. With a `disk`, the queues are in files there, and the disk is filled up, too. `progress`
/// gets a line for each round of faults.
///
/// # Panics
/// When the system does not become ready, when a process does not end after SIGTERM, or when one ends by itself.
pub fn run(options: &Options, disk: Option<SmallDisk>, progress: impl FnMut(&str)) -> Report {
    let mut random = fastrand::Rng::with_seed(options.seed);
    let middle = match (options.brokers, &disk) {
        (1, None) => Middle::One,
        (1, Some(_)) => Middle::OneOnDisk,
        (_, None) => Middle::Three,
        (_, Some(_)) => Middle::ThreeOnDisk,
    };
    let faults = draw::draw(&mut random, options.faults, cluster::MEMBER_COUNT, middle, options.only);
    let rounds = draw::overlap(&mut random, faults, options.overlap);
    run_faults(options, disk, &rounds, progress)
}

/// Like [`run`], with these faults: rounds one after the other, the faults of a round at once. [`Fault::FullDisk`]
/// needs a disk, [`Fault::Node`] three brokers.
///
/// With a cluster of brokers, a run that cannot go on does not panic: the report shows that, with the results until
/// then.
///
/// # Panics
/// As [`run`].
pub fn run_faults(
    options: &Options,
    disk: Option<SmallDisk>,
    rounds: &[Vec<Fault>],
    mut progress: impl FnMut(&str),
) -> Report {
    let golden = golden();
    let storage = if options.files || disk.is_some() { "files" } else { "memory" };
    let cluster = Cluster::start(shape(options, disk, &mut progress));
    let doors = cluster.doors.clone();
    let clients = Clients::new(&doors, &golden, options.deadline).of_halting(draw::LONGEST_HALT * 2);
    let jobs = Jobs::new(&doors, &golden, options.lines);
    let mut course = Course::new(cluster, &clients);
    let went = std::thread::scope(|scope| {
        clients::start(scope, &clients, options.concurrency);
        let running = jobs.start(scope);
        // The clients have to end when the run ends, however it ends.
        let _stop = StopOnDrop(&clients);
        let went = std::panic::catch_unwind(AssertUnwindSafe(|| course.run(options, rounds, &mut progress)));
        // Accepted jobs are answered while the load goes on.
        jobs.stop(went.is_err());
        running.into_iter().for_each(|thread| thread.join().expect("a client of jobs does not panic"));
        went
    });
    let broken_off = match went {
        Ok(()) => None,
        Err(panic) if options.brokers == 1 => std::panic::resume_unwind(panic),
        Err(panic) => Some(text_of(&*panic)),
    };
    let elapsed = clients.elapsed();
    let (struck, healing) = course.end();
    let middle = if options.brokers == 1 { "" } else { " of a cluster" };
    let prompt = (options.brokers > 1).then_some(options.prompt);
    let storage = format!("{storage}{middle}");
    let (tally, jobs) = (clients.into_tally(), jobs.into_tally());
    Report { tally, jobs, struck, elapsed, storage, healing, prompt, broken_off }
}

/// The text of a panic.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// The shape of the system with these options. Without libfaketime, clocks are right.
fn shape(options: &Options, disk: Option<SmallDisk>, progress: &mut impl FnMut(&str)) -> Shape {
    let Options { seed, deadline, acknowledge_early, hand_over, brokers, files, clocks, .. } = *options;
    let found = (!clocks.is_zero()).then(|| Clocks::find(seed, clocks));
    match &found {
        None => {}
        Some(None) => progress("all clocks are right: libfaketime is missing"),
        Some(Some(clocks)) => {
            let ahead: Vec<_> = (0..cluster::MEMBER_COUNT).map(|place| clocks.ahead(place) as f64 / 1e3).collect();
            progress(&format!("clocks of members, seconds ahead: {ahead:.1?}"));
        }
    }
    Shape { deadline, acknowledge_early, hand_over, disk, brokers, files, clocks: found.flatten() }
}
