//! Steady load whose answers are checked one by one.
//!
//! A client combines a load balancer and a patient caller: it sends a request to a gateway that is not closing. If that
//! gateway is killed, or gets SIGTERM before it accepts the connection, the client sends the request to another
//! gateway. It repeats nothing else: a gateway has to answer each request that it accepted before SIGTERM, and each
//! request that is on its way then on a kept connection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::ask::{self, Attempt, Break};
use super::draw;
use super::grpc::GrpcClient;
use super::member::{Door, DoorState, Doors};
use super::questions::{Question, Said, Verdict, Way};
use super::tally::{Answered, Complaint, Tally, What};
use crate::Golden;

/// How much longer than the deadline a caller waits for an answer. Gateways answer at the deadline; a gateway that is
/// halted answers a little later.
const PATIENCE: Duration = Duration::from_secs(30);

/// How late an answer may be: gateways answer at the deadline.
const LATE: Duration = Duration::from_secs(1);

/// How long a request may have waited when its gateway is killed without counting as lost: the longest fault, plus some
/// time to recover from it. Without this check, a lost request would go unnoticed, because it is sent again and
/// answered.
const EXPLAINED: Duration = draw::LONGEST.saturating_add(Duration::from_secs(10));

/// Whether a gateway has to answer one more request on each kept connection after SIGTERM, so that a request on its way
/// does not find the connection closed. With `false`, such a request is sent again.
const TAKES_WHAT_IS_ON_ITS_WAY: bool = true;

/// Pause of a client while no gateway is open.
const NO_DOOR: Duration = Duration::from_millis(5);

/// The client's reaction when the connection of a request breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// The client sends it to another gateway.
    Moves,
    /// It had waited too long before its gateway was killed.
    Lost,
    /// The connection must not have broken: this is a complaint.
    Wrongly,
}

/// The load.
pub(super) struct Clients<'a> {
    doors: &'a Doors,
    golden: &'a [Golden],
    /// The deadline that gateways give a request.
    deadline: Duration,
    /// How long a gateway may be halted.
    halt: Duration,
    started: Instant,
    /// Time between two requests, over all clients; with zero, each client sends its next request at once.
    pace: Duration,
    next: AtomicUsize,
    enough: AtomicBool,
    tally: Mutex<Tally>,
    /// The requests under way, by number, with the time when each was sent.
    pending: Mutex<BTreeMap<usize, Duration>>,
    grpc: GrpcClient,
}

// === impl Clients ===

impl<'a> Clients<'a> {
    /// Clients of a cluster whose requests have this deadline.
    pub fn new(doors: &'a Doors, golden: &'a [Golden], deadline: Duration) -> Clients<'a> {
        Clients {
            doors,
            golden,
            deadline,
            halt: Duration::ZERO,
            started: Instant::now(),
            pace: Duration::ZERO,
            next: AtomicUsize::new(0),
            enough: AtomicBool::new(false),
            tally: Mutex::default(),
            pending: Mutex::default(),
            grpc: GrpcClient::new(),
        }
    }

    /// The same for gateways that may be halted for this long.
    pub fn of_halting(self, halt: Duration) -> Clients<'a> {
        Clients { halt, ..self }
    }

    /// The same with this many requests per second over all clients.
    pub fn at_rate(self, rate: f64) -> Clients<'a> {
        Clients { pace: Duration::from_secs_f64(1.0 / rate), ..self }
    }

    /// Runs one client: it sends request after request until [`Clients::stop`].
    pub fn run(&self) {
        while !self.enough.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let due = self.pace.mul_f64(number as f64);
            std::thread::sleep(due.saturating_sub(self.elapsed()));
            self.pending.lock().expect("no holder panics").insert(number, self.elapsed());
            self.request(number);
            self.pending.lock().expect("no holder panics").remove(&number);
        }
    }

    /// Sends no more requests; those under way are waited for.
    pub fn stop(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    /// Number of requests answered rightly so far.
    pub fn answered(&self) -> usize {
        self.tally.lock().expect("no holder panics").right.len()
    }

    /// Number of complaints so far.
    pub fn complaints(&self) -> usize {
        self.tally.lock().expect("no holder panics").complaints.len()
    }

    /// How long the oldest request under way has taken so far; zero if there is none.
    pub fn longest_pending(&self) -> Duration {
        let pending = self.pending.lock().expect("no holder panics");
        pending.values().min().map_or(Duration::ZERO, |sent| self.elapsed().saturating_sub(*sent))
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The outcome of all requests.
    pub fn into_tally(self) -> Tally {
        self.tally.into_inner().expect("no holder panics")
    }

    fn note(&self, note: impl FnOnce(&mut Tally)) {
        note(&mut self.tally.lock().expect("no holder panics"));
    }

    fn complain(&self, what: What, sent: Duration, text: String) {
        let when = Answered { sent, answered: self.elapsed() };
        self.note(|tally| tally.complaints.push(Complaint { what, when, text }));
    }

    /// Sends one request until it is answered, and notes the outcome.
    fn request(&self, number: usize) {
        let question = Question::of(number, self.golden);
        let (sent, mut moved) = (self.elapsed(), 0);
        loop {
            let Some(door) = self.door(number + moved) else {
                if self.elapsed() - sent > self.deadline {
                    return self.complain(What::Lost, sent, format!("{number}: no gateway"));
                }
                std::thread::sleep(NO_DOOR);
                continue;
            };
            let asked = self.elapsed();
            match self.attempt(&question, &door) {
                Attempt::Said(_) if question.leaves => return self.note(|tally| tally.left += 1),
                Attempt::Said(said) => {
                    let took = self.elapsed() - asked;
                    return self.judge(number, &question, &said, sent, took);
                }
                Attempt::Broken(how, reason) => {
                    let (state, waited) = (door.state(), self.elapsed() - asked);
                    let text = || {
                        let Question { model, way, .. } = question;
                        let waited = waited.as_secs_f64();
                        format!("{number} ({model} {way:?}, {state:?}, {how:?}) after {waited:.1} s: {reason}")
                    };
                    match self.broke(state, how, waited) {
                        Broken::Moves => moved += 1,
                        Broken::Lost => return self.complain(What::Lost, sent, text()),
                        Broken::Wrongly => return self.complain(What::Broken, sent, text()),
                    }
                }
            }
        }
    }

    fn attempt(&self, question: &Question, door: &Door) -> Attempt {
        let patience = self.deadline + PATIENCE;
        match question.way {
            Way::Grpc | Way::GrpcStream => self.grpc.ask(question, door.grpc, patience),
            Way::KeptAlive => ask::ask_again(question, door, patience),
            _ => ask::ask(question, door.http, patience),
        }
    }

    /// The reaction to a broken connection of a request to a gateway in state `state`, `waited` after it was sent.
    fn broke(&self, state: DoorState, how: Break, waited: Duration) -> Broken {
        let moved = &mut self.tally.lock().expect("no holder panics").moved;
        match (state, how) {
            (DoorState::Killed, _) => {
                moved.killed_after = moved.killed_after.max(waited);
                if waited > EXPLAINED.min(self.deadline + LATE) {
                    return Broken::Lost;
                }
                moved.killed += 1;
            }
            (DoorState::Stopping, Break::Refused) => moved.refused += 1,
            (DoorState::Stopping, Break::Reset) => moved.reset += 1,
            (DoorState::Stopping, Break::Unused) if !TAKES_WHAT_IS_ON_ITS_WAY => moved.reset += 1,
            _ => return Broken::Wrongly,
        }
        Broken::Moves
    }

    fn judge(&self, number: usize, question: &Question, said: &Said, sent: Duration, took: Duration) {
        let verdict = question.judge(said);
        let text = || {
            let said: String = format!("{said:?}").chars().take(300).collect();
            format!("{number} ({} {:?}) after {:.1} s: {said}", question.model, question.way, took.as_secs_f64())
        };
        let answered = Answered { sent, answered: self.elapsed() };
        // The request's own timeout may be much shorter than the time for which a gateway is halted.
        let limit = question.timeout.map_or(self.deadline, |timeout| timeout + self.halt) + LATE;
        let what = match verdict {
            Verdict::Right | Verdict::Expired if took > limit => What::Late,
            Verdict::Right | Verdict::Expired => {
                return self.note(|tally| {
                    tally.right.push(answered);
                    tally.expired += usize::from(verdict == Verdict::Expired);
                });
            }
            Verdict::Wrong => What::Wrong,
            Verdict::Lost => What::Lost,
            Verdict::Doubled => What::Doubled,
            Verdict::Refused => What::Refused,
            Verdict::Failed => What::Failed,
        };
        self.complain(what, sent, text());
    }

    fn door(&self, number: usize) -> Option<Arc<Door>> {
        let doors = self.doors.lock().expect("no holder panics");
        (!doors.is_empty()).then(|| doors[number % doors.len()].clone())
    }
}

/// Starts `count` clients in `scope`.
pub(super) fn start<'scope>(scope: &'scope std::thread::Scope<'scope, '_>, clients: &'scope Clients<'_>, count: usize) {
    for _ in 0..count {
        scope.spawn(|| clients.run());
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::Moved;
    use super::*;

    #[test]
    fn only_what_a_gateway_has_not_taken_is_sent_again_unless_it_was_killed() {
        let doors = Doors::default();
        let clients = Clients::new(&doors, &[], Duration::from_secs(60));
        let all = |state| {
            let hows = [Break::Refused, Break::Reset, Break::Cut, Break::Unused];
            hows.map(|how| clients.broke(state, how, Duration::from_secs(1)))
        };
        assert_eq!(all(DoorState::Open), [Broken::Wrongly; 4]);
        let stopping = [Broken::Moves, Broken::Moves, Broken::Wrongly, Broken::Wrongly];
        assert_eq!(all(DoorState::Stopping), stopping, "one more request is taken on each connection that is kept");
        assert_eq!(all(DoorState::Killed), [Broken::Moves; 4]);
        let Moved { killed, refused, reset, .. } = clients.into_tally().moved;
        assert_eq!((killed, refused, reset), (4, 1, 1));
    }

    #[test]
    fn what_no_fault_explains_is_lost_though_its_gateway_was_killed_in_the_end() {
        let doors = Doors::default();
        let killed = |deadline, waited| {
            let clients = Clients::new(&doors, &[], Duration::from_secs(deadline));
            let broken = clients.broke(DoorState::Killed, Break::Cut, Duration::from_secs(waited));
            let Moved { killed, killed_after, .. } = clients.into_tally().moved;
            assert_eq!(killed_after, Duration::from_secs(waited), "the report tells the longest, whatever it is worth");
            (broken, killed)
        };
        assert_eq!(killed(60, 29), (Broken::Moves, 1));
        assert_eq!(killed(60, 31), (Broken::Lost, 0));
        assert_eq!(killed(8, 8), (Broken::Moves, 1));
        assert_eq!(killed(8, 10), (Broken::Lost, 0));
    }

    #[test]
    fn a_right_answer_after_the_deadline_is_late() {
        let doors = Doors::default();
        let clients = Clients::new(&doors, &[], Duration::from_secs(8));
        let (question, right) = (Question::of(7, &[]), Said::Outputs(vec![("OUTPUT0".to_owned(), vec![7.0, -1.0])]));
        clients.judge(7, &question, &right, Duration::ZERO, Duration::from_secs(9));
        clients.judge(7, &question, &right, Duration::ZERO, Duration::from_millis(9001));
        let tally = clients.into_tally();
        assert_eq!((tally.right.len(), tally.count(What::Late)), (1, 1));
    }

    #[test]
    fn a_request_with_a_timeout_of_its_own_is_answered_when_that_has_passed() {
        let (doors, hurry) = (Doors::default(), Question::of(4, &[]));
        let (right, expired) = (
            Said::Outputs(vec![("OUTPUT0".to_owned(), vec![4.0, -1.0])]),
            Said::Error("503 timeout expired".to_owned()),
        );
        let late = |halt, said: &Said, took| {
            let clients = Clients::new(&doors, &[], Duration::from_secs(60)).of_halting(Duration::from_secs(halt));
            clients.judge(4, &hurry, said, Duration::ZERO, Duration::from_secs(took));
            let tally = clients.into_tally();
            assert_eq!(tally.requests(), 1);
            tally.count(What::Late)
        };
        for said in [right, expired] {
            assert_eq!([late(0, &said, 1), late(0, &said, 2)], [0, 1]);
            assert_eq!([late(5, &said, 6), late(5, &said, 7)], [0, 1]);
        }
    }
}
