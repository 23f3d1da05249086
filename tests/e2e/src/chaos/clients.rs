//! Steady load whose answers are checked one by one.
//!
//! A client does what a load balancer and a patient caller do together: it sends a request to a gateway that is not
//! closing. When that gateway was killed, or was told to stop before it took the connection, it sends the request to
//! another. Nothing else is repeated: what a gateway has taken before it was told to stop, it has to answer, and what is
//! on its way then on a connection that was kept.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::ask::{self, Attempt, Break};
use super::draw;
use super::grpc::GrpcClient;
use super::member::{Door, DoorState, Doors};
use super::questions::{Question, Said, Verdict, Way};
use super::tally::{Answered, Tally};
use crate::Golden;

/// How much longer than its deadline a caller waits for an answer: gateways answer at the deadline, and one that is halted
/// a little later.
const PATIENCE: Duration = Duration::from_secs(30);

/// What an answer may be late by: gateways answer at the deadline.
const LATE: Duration = Duration::from_secs(1);

/// What a request may wait for, and not be lost, when its gateway is killed: the end of the longest fault, and a while for
/// everybody to get over it. Sent again, it is answered, so nobody else would notice.
const EXPLAINED: Duration = draw::LONGEST.saturating_add(Duration::from_secs(10));

/// Whether a gateway that is told to stop has to take one more request on each connection that clients keep: what is on its
/// way then must not find the connection closed. Otherwise such a request is sent again.
const TAKES_WHAT_IS_ON_ITS_WAY: bool = true;

/// Pause of a client that finds no open door.
const NO_DOOR: Duration = Duration::from_millis(5);

/// What has to become of a request whose connection broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// It is sent to another gateway.
    Moves,
    /// It had waited too long for that.
    Lost,
    /// The connection must not have broken.
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
    /// Time from one request to the next, all clients together; zero is as fast as answers come.
    pace: Duration,
    next: AtomicUsize,
    enough: AtomicBool,
    tally: Mutex<Tally>,
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
            grpc: GrpcClient::new(),
        }
    }

    /// The same for gateways that are halted now and then, for so long.
    pub fn of_halting(self, halt: Duration) -> Clients<'a> {
        Clients { halt, ..self }
    }

    /// The same with this many requests per second, all clients together, and no more.
    pub fn at_rate(self, rate: f64) -> Clients<'a> {
        Clients { pace: Duration::from_secs_f64(1.0 / rate), ..self }
    }

    /// One client: request after request until it is enough.
    pub fn run(&self) {
        while !self.enough.load(Ordering::Relaxed) {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let due = self.pace.mul_f64(number as f64);
            std::thread::sleep(due.saturating_sub(self.elapsed()));
            self.request(number);
        }
    }

    /// No more requests; those on their way are waited for.
    pub fn stop(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    /// Requests answered so far.
    pub fn answered(&self) -> usize {
        self.tally.lock().expect("no holder panics").right.len()
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// What became of the requests.
    pub fn into_tally(self) -> Tally {
        self.tally.into_inner().expect("no holder panics")
    }

    fn note(&self, note: impl FnOnce(&mut Tally)) {
        note(&mut self.tally.lock().expect("no holder panics"));
    }

    /// Sends one request until it is answered, and notes how that went.
    fn request(&self, number: usize) {
        let question = Question::of(number, self.golden);
        let (sent, mut moved) = (self.elapsed(), 0);
        loop {
            let Some(door) = self.door(number + moved) else {
                if self.elapsed() - sent > self.deadline {
                    return self.note(|tally| tally.lost.push(format!("{number}: no gateway")));
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
                        Broken::Lost => return self.note(|tally| tally.lost.push(text())),
                        Broken::Wrongly => return self.note(|tally| tally.broken.push(text())),
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

    /// What has to become of a request that ended in this way, after so long, at a gateway in this state.
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
        // A timeout may be much shorter than what a gateway is halted for.
        let limit = question.timeout.map_or(self.deadline, |timeout| timeout + self.halt) + LATE;
        self.note(|tally| match verdict {
            Verdict::Right | Verdict::Expired if took > limit => tally.late.push(text()),
            Verdict::Right => tally.right.push(answered),
            Verdict::Expired => {
                tally.right.push(answered);
                tally.expired += 1;
            }
            Verdict::Wrong => tally.wrong.push(text()),
            Verdict::Lost => tally.lost.push(text()),
            Verdict::Doubled => tally.doubled.push(text()),
            Verdict::Failed => tally.failed.push(text()),
        });
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
        assert_eq!((tally.right.len(), tally.late.len()), (1, 1));
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
            tally.late.len()
        };
        for said in [right, expired] {
            assert_eq!([late(0, &said, 1), late(0, &said, 2)], [0, 1]);
            assert_eq!([late(5, &said, 6), late(5, &said, 7)], [0, 1]);
        }
    }
}
