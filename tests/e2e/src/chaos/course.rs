//! The course of a run: rounds of faults, one after the other.
//!
//! Not here: the faults (`fault`), and the load meanwhile (`clients`).

use std::time::{Duration, Instant};

use trireme_testkit::Recovery;

use super::clients::Clients;
use super::cluster::Cluster;
use super::effects;
use super::fault::{self, Fault};
use super::options::Options;
use super::report::Report;
use super::settings;
use super::struck::Struck;

/// The longest pause between two faults.
const CALM: Duration = Duration::from_millis(800);

/// With a cluster of brokers: how long to wait after a fault until its effects are over, so that a second node does not
/// fail before the cluster has recovered from the first fault. It is longer than [`Options::prompt`], so that the
/// report can show late answers.
const CALM_LIMIT: Duration = Duration::from_secs(30);

/// The same for the cluster itself.
const WHOLE_LIMIT: Duration = Duration::from_secs(60);

/// Rounds of faults between two checks whether every worker works again.
const ROUNDS_PER_CHECK: usize = 10;

/// After the last fault, how long beyond the requests' deadline there may be no answer at all.
const SILENCE: Duration = Duration::from_secs(30);

/// Time between two checks whether the effects of a fault are over.
const SETTLE_LOOK: Duration = Duration::from_millis(100);

/// Time between two checks of the processes after the last fault.
const LOOK: Duration = Duration::from_secs(1);

/// A system, its load, and the faults so far.
pub(super) struct Course<'a> {
    cluster: Cluster,
    clients: &'a Clients<'a>,
    struck: Vec<Struck>,
    /// The longest time that a worker took to execute each of its models again, and the workers that did not.
    healing: (Duration, Vec<String>),
}

/// Stops the load when the run ends, however it ends.
pub(super) struct StopOnDrop<'a>(pub &'a Clients<'a>);

// === impl Course ===

impl<'a> Course<'a> {
    pub fn new(cluster: Cluster, clients: &'a Clients<'a>) -> Course<'a> {
        Course { cluster, clients, struck: Vec::new(), healing: Default::default() }
    }

    /// Runs all rounds and waits for the answers. `progress` gets a line for each round.
    ///
    /// # Panics
    /// When the system cannot go on.
    pub fn run(&mut self, options: &Options, rounds: &[Vec<Fault>], progress: &mut impl FnMut(&str)) {
        let mut random = fastrand::Rng::with_seed(options.seed);
        let Course { cluster, clients, struck, healing } = self;
        for (number, faults) in rounds.iter().enumerate() {
            std::thread::sleep(CALM.mul_f64(random.f64()));
            faults.iter().for_each(|fault| fault.aim(cluster));
            let described: Vec<String> = faults.iter().map(|fault| fault.describe(cluster)).collect();
            progress(&described.join(", "));
            let kind = match &faults[..] {
                [fault] => fault.kind(cluster),
                _ => "two at once".to_owned(),
            };
            let begun = clients.elapsed();
            // If the fault does not end, the report shows it as open.
            let open = Duration::MAX;
            struck.push(Struck { kind, count: faults.len(), begun, ended: open, calm: open, whole: None });
            fault::strike(faults, cluster);
            let ended = clients.elapsed();
            if let Some(waiting) = cluster.harmed.pop() {
                progress(&format!("  {waiting} messages waited in what was hit"));
            }
            let (calm, whole) = if options.brokers > 1 { settle(clients, cluster) } else { (ended, None) };
            if let Some(last) = struck.last_mut() {
                (last.ended, last.calm, last.whole) = (ended, calm, whole);
            }
            if (number + 1) % ROUNDS_PER_CHECK == 0 || number + 1 == rounds.len() {
                Report::heal(healing, super::healing::check(cluster));
            }
        }
        if options.lines > 0 {
            let mut admin = cluster.brokers.admin();
            for stream in settings::JOBS {
                assert_eq!(admin.storage(stream).as_deref(), Some("file"), "{stream}: durable work is kept in files");
            }
        }
        // Requests have a deadline: after this long without an answer there will be no more.
        let silence = options.deadline + SILENCE;
        // With a cluster of brokers, a run with complaints ends early: it has failed already, and there may be almost
        // no more answers.
        let is_told = || options.brokers > 1 && clients.complaints() > 0;
        let answered = || if is_told() { usize::MAX } else { clients.answered() };
        wait_for(options.requests, silence, answered, || cluster.assert_alive());
    }

    /// Ends the system, and returns the faults and the healing. A fault that is still open ends now.
    pub fn end(self) -> (Vec<Struck>, (Duration, Vec<String>)) {
        let Course { clients, mut struck, healing, .. } = self;
        let now = clients.elapsed();
        for one in &mut struck {
            (one.ended, one.calm) = (one.ended.min(now), one.calm.min(now));
        }
        (struck, healing)
    }
}

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Waits until no request takes longer than usual and the brokers have recovered, each for a limited time. Returns when
/// that was, and when the brokers had recovered, if they were in time.
fn settle(clients: &Clients<'_>, cluster: &mut Cluster) -> (Duration, Option<Duration>) {
    let ended = clients.elapsed();
    let (mut is_calm, mut whole, mut recovery) = (false, None, Recovery::default());
    loop {
        cluster.assert_alive();
        let now = clients.elapsed();
        // A request that the fault has stopped is noticed when it takes longer than usual.
        is_calm |= now > ended + effects::USUAL && clients.longest_pending() < effects::USUAL;
        if whole.is_none() && cluster.brokers.have_recovered(&mut recovery) {
            whole = Some(clients.elapsed());
        }
        if (is_calm || now > ended + CALM_LIMIT) && (whole.is_some() || now > ended + WHOLE_LIMIT) {
            return (clients.elapsed(), whole);
        }
        std::thread::sleep(SETTLE_LOOK);
    }
}

/// Waits until there are `enough` answers. Calls `look` once, and then every second.
///
/// # Panics
/// When there is no further answer for longer than `silence`.
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
