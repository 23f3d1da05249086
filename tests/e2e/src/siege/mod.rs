//! `make siege`: attackers use many connections or send in hostile ways, while honest clients measure their own answers.
//!
//! Attackers connect from addresses of their own on this host (127.0.0.2 to .9) and are bounded in count and time. Honest clients
//! wait for each answer and check it; some keep their connection, others open one for each request. No answer may be missing,
//! the 99th percentile of the answers' times may be no more than [`FACTOR`] times that of the quiet phase, and the server's memory may
//! grow by no more than its byte budget and a tenth of that.
//!
//! Not here: single hostile requests (the tests `attackers`), and changed inputs (`make fuzz`).

mod attacks;
mod felt;
mod frames;
mod honest;
mod target;

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{Mode, ModelFolder, Sandbox, Setup, Stage};

pub use attacks::ATTACKS;
pub use felt::Felt;
pub use honest::Client;
pub use target::Target;

/// How many times as long as in the quiet answers may take.
pub const FACTOR: u32 = 3;

/// Quiet times below this say more of the scheduler of a busy host than of the server.
const FLOOR: Duration = Duration::from_millis(10);

/// Connections of a port: fewer than attackers open, so that limits are met.
const MAX_CONNECTIONS: &str = "512";

/// The byte budget of the server.
pub const BUDGET: u64 = 512 << 20;

/// A phase: the quiet, or an attack.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Its name.
    pub name: &'static str,
    /// The number of attempts of the attackers.
    pub attempts: usize,
    /// The measurements of each kind of honest client.
    pub felt: Vec<(Client, Felt)>,
    /// The most memory that the server used, in bytes.
    pub memory: u64,
}

/// Lays siege for `time` with each attack whose name has `only` in it; `show` is given the quiet phase and each phase when it is over,
/// the quiet first.
pub fn siege(mode: Mode, time: Duration, only: &str, mut show: impl FnMut(&Phase, &Phase)) -> Vec<Phase> {
    let models = ModelFolder::basic(&["simple", "identity_fp32"]);
    let flags = ["--max-connections", MAX_CONNECTIONS, "--max-bytes-in-flight", &BUDGET.to_string()];
    let setup = Setup::new(mode).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0);
    let mut sandbox = setup.repository(models.path()).gateway_arguments(&flags).start();
    let target = Target { http: sandbox.address, grpc: sandbox.grpc_address() };
    assert!(target.http.ip().is_loopback() && target.grpc.ip().is_loopback(), "a siege is for this host only");
    // Whatever is made at first use is made before anything is measured.
    attacks::prepare();
    phase(&sandbox, target, "first", time / 4, |_| 0);
    let mut phases = vec![phase(&sandbox, target, "quiet", time, |_| 0)];
    show(&phases[0], &phases[0]);
    for attack in ATTACKS.iter().filter(|attack| attack.name.contains(only)) {
        let besieged = phase(&sandbox, target, attack.name, time, |until| (attack.run)(target, until));
        show(&phases[0], &besieged);
        phases.push(besieged);
    }
    sandbox.check_running();
    phases
}

fn phase(
    sandbox: &Sandbox,
    target: Target,
    name: &'static str,
    time: Duration,
    attack: impl Fn(Instant) -> usize + Sync,
) -> Phase {
    let over = AtomicBool::new(false);
    let until = Instant::now() + time;
    let (mut memory, mut felt, mut attempts) = (0, Vec::new(), 0);
    let asking = &over;
    std::thread::scope(|scope| {
        let ask = |client| (client, scope.spawn(move || honest::ask(client, target, asking)));
        let clients = Client::ALL.map(ask);
        let attack = scope.spawn(|| attack(until));
        while Instant::now() < until || !attack.is_finished() {
            memory = memory.max(sandbox.gateway.resident_bytes());
            std::thread::sleep(Duration::from_millis(20));
        }
        over.store(true, Ordering::Relaxed);
        attempts = attack.join().expect("attackers do not panic");
        felt.extend(clients.map(|(client, thread)| (client, thread.join().expect("honest clients do not panic"))));
    });
    Phase { name, attempts, felt, memory }
}

/// The limits that the honest clients' measurements break.
pub fn shortfalls(phases: &[Phase]) -> Vec<String> {
    let Some((quiet, attacks)) = phases.split_first() else { return Vec::new() };
    let mut found = Vec::new();
    for phase in phases {
        for (client, felt) in &phase.felt {
            if let Some(first) = felt.lost.first() {
                found.push(format!(
                    "{}: {} requests {client} were lost, the first: {first}",
                    phase.name,
                    felt.lost.len()
                ));
            }
            if felt.times.is_empty() {
                found.push(format!("{}: no request {client} was answered", phase.name));
            }
        }
    }
    for phase in attacks {
        let grown = phase.memory.saturating_sub(quiet.memory);
        if grown > BUDGET + BUDGET / 10 {
            found.push(format!(
                "{}: memory grew by {} MiB, expected no more than the budget of {} MiB and a tenth",
                phase.name,
                grown >> 20,
                BUDGET >> 20
            ));
        }
    }
    for (phase, client, felt) in attacks.iter().flat_map(|phase| phase.felt.iter().map(move |(c, f)| (phase, c, f))) {
        let before =
            quiet.felt.iter().find(|(other, _)| other == client).map_or(Duration::ZERO, |(_, felt)| felt.p99());
        let (most, took) = (before.max(FLOOR) * FACTOR, felt.p99());
        if took > most {
            found.push(format!(
                "{}: 99 % of requests {client} were answered within {took:.1?}, expected {most:.1?} at most ({before:.1?} in the quiet)",
                phase.name
            ));
        }
    }
    found
}

// === impl Phase ===

impl Phase {
    /// The headings of its lines' columns. `growth` is that of the server's memory since the quiet, as a part of the budget.
    pub const HEAD: &str = "attack    attempts   client               answers    lost   p99 quiet         p99   ratio      memory   growth/budget";

    /// A line for each kind of client.
    pub fn lines(&self, quiet: &Phase) -> String {
        let mut lines = String::new();
        let grown = self.memory.saturating_sub(quiet.memory) as f64 / BUDGET as f64;
        for (client, felt) in &self.felt {
            let (answers, lost) = (felt.times.len(), felt.lost.len());
            let before =
                quiet.felt.iter().find(|(other, _)| other == client).map_or(Duration::ZERO, |(_, felt)| felt.p99());
            let [before, most] = [before, felt.p99()].map(|time| time.as_secs_f64() * 1e3);
            let ratio = most / before.max(1e-3);
            let (name, attempts, memory) = (self.name, self.attempts, self.memory >> 20);
            let client = client.to_string();
            // Writing to a text does not fail.
            let _ = writeln!(
                lines,
                "{name:<8}{attempts:>10}   {client:<20}{answers:>8}{lost:>8}{before:>9.1} ms{most:>9.1} ms{ratio:>8.1}\
                 {memory:>8} MiB{grown:>16.2}"
            );
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &'static str, milliseconds: u64, lost: usize) -> Phase {
        let times = vec![Duration::from_millis(milliseconds); 100];
        let felt = Felt { times, lost: vec!["connection closed".to_owned(); lost] };
        Phase { name, attempts: 1, felt: vec![(Client::Health, felt)], memory: 0 }
    }

    #[test]
    fn what_is_lost_or_late_is_told() {
        assert_eq!(shortfalls(&[phase("quiet", 20, 0), phase("silent", 60, 0)]), [""; 0]);
        assert_eq!(shortfalls(&[phase("quiet", 1, 0), phase("silent", 30, 0)]), [""; 0], "the floor is 10 ms");
        let late = shortfalls(&[phase("quiet", 20, 0), phase("silent", 61, 0)]);
        assert!(late.len() == 1 && late[0].contains("expected 60.0ms at most"), "{late:?}");
        let lost = shortfalls(&[phase("quiet", 20, 0), phase("silent", 20, 1)]);
        assert!(lost.len() == 1 && lost[0].ends_with("were lost, the first: connection closed"), "{lost:?}");
        let mute = Phase { felt: vec![(Client::Health, Felt::default())], ..phase("silent", 0, 0) };
        assert!(shortfalls(&[phase("quiet", 20, 0), mute])[0].contains("no request"));
        let large = Phase { memory: BUDGET + BUDGET / 5, ..phase("bombs", 20, 0) };
        let grown = shortfalls(&[phase("quiet", 20, 0), large.clone()]);
        assert!(grown.len() == 1 && grown[0].contains("memory grew by 614 MiB"), "{grown:?}");
        let lines = large.lines(&phase("quiet", 10, 0));
        assert!(lines.contains("10.0 ms     20.0 ms     2.0") && lines.contains("1.20"), "{lines}");
    }
}
