//! The state of a queue: the waiting requests of each lane, and how many more the worker asks the shared queue for.
//!
//! Not here: the lock, the instances that wait, and the policy (the parent).

use std::collections::VecDeque;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use trireme_inference::Lane;

use crate::batching::Candidate;
use crate::intake::{Intake, Room};
use crate::queue::seats::Seats;

/// How long after a run of live requests those of bulk requests stay short, and their most cost as a multiple of a usual run of live
/// requests.
const BESIDE_LIVE: Duration = Duration::from_secs(2);
const SHORT_RUN: f64 = 1.5;

/// Weight of the last run of live requests in what such a run usually costs.
const LIVE_WEIGHT: f64 = 0.1;

/// The instances of a model, by the requests that they execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Live requests, and bulk requests where there are no background instances.
    Main,
    /// Bulk requests, in the time that the main instances leave.
    Background,
}

/// The state of a queue, under its lock.
pub(super) struct State<T> {
    /// The requests of each lane.
    pub lanes: [Waiting<T>; 2],
    /// Runs of live requests in a row for which bulk requests had to wait.
    pub passed_over: u32,
    /// When the last run of live requests began, and what such a run usually costs.
    pub live_ran: Option<Instant>,
    pub live_cost: f64,
    /// Requests that run in a batch of their own. They run before all others, and the policy does not see them.
    pub alone: VecDeque<(Candidate, T)>,
    /// The stepwise instance that lets no other request join until it is empty and takes the first of `alone`.
    pub reserved: Option<ThreadId>,
    /// How much to take from the shared queue; with `None`, as much as there are permits for.
    pub intake: Option<Intake>,
    /// The same for the bulk requests of background instances; `None` while there are no such instances.
    pub background: Option<Intake>,
    /// Until when the main instances execute bulk requests, because background instances got too little of the CPUs.
    pub starves_until: Option<Instant>,
    /// Whether a bulk request has ever come.
    pub bulk_came: bool,
    /// Number of requests of each lane for which the shared queue was last asked. The pulling task sleeps until this number
    /// is wrong.
    pub asked: [usize; 2],
    pub permits_out: [usize; 2],
    /// For each lane, how requests go past the shared queue.
    pub past: [Past; 2],
    /// Number of requests in a row that came too late.
    pub late: usize,
    /// How often idle instances were called.
    pub calls: u64,
    /// Whether no instance can execute: no more is taken in.
    pub paused: bool,
    /// Since when the instances have to end, and the queue goes on to take requests until others come.
    pub dismissed: Option<Instant>,
    /// Whether others are to come before the first request does.
    pub expects: bool,
    /// When the last request left this worker.
    pub idle_since: Instant,
    pub closed: bool,
}

/// Requests of steps in this process take permits without having been in the shared queue. They would starve the requests in it if
/// they took every permit. So a live request gets one only while the shared queue is known to be empty: its last message was received,
/// and since then there has been room for at least one more, for which the worker asks it all the time. For a bulk request nobody waits:
/// it only leaves the last permit to a request from the shared queue, which delivers bulk requests slowly beside live ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Past {
    /// Whether any request has come in this way.
    pub used: bool,
    /// Whether older requests may wait in the shared queue.
    pub backlog: bool,
}

/// The waiting requests of a lane.
pub(super) struct Waiting<T> {
    /// The policy's view of `items`, in the same order.
    pub candidates: Vec<Candidate>,
    pub items: VecDeque<T>,
    /// The seats of `items`, in the same order.
    pub seats: Seats,
}

// === impl State ===

impl<T> State<T> {
    pub fn waiting(&self) -> usize {
        self.lanes.iter().map(|waiting| waiting.items.len()).sum::<usize>() + self.alone.len()
    }

    /// Tokens of the waiting requests of each lane. Requests that run alone count as live ones.
    pub fn waiting_tokens(&self) -> [u64; 2] {
        let mut tokens = [0, 1].map(|lane: usize| {
            self.lanes[lane].candidates.iter().map(|candidate| candidate.description.tokens()).sum::<u64>()
        });
        tokens[Lane::Live as usize] +=
            self.alone.iter().map(|(candidate, _)| candidate.description.tokens()).sum::<u64>();
        tokens
    }

    /// Number of waiting requests that go before a new one of this lane.
    pub fn waiting_before(&self, lane: Lane) -> usize {
        match self.role_for(lane) {
            Role::Background => self.lanes[lane as usize].items.len(),
            Role::Main => {
                self.lanes[..=lane as usize].iter().map(|waiting| waiting.items.len()).sum::<usize>() + self.alone.len()
            }
        }
    }

    /// The instances that execute the requests of a lane now.
    pub fn role_for(&self, lane: Lane) -> Role {
        let starves = || self.starves_until.is_some_and(|until| Instant::now() < until);
        // In a closed queue each role takes its leave when nothing is left for it: nothing may change sides then.
        let is_background = lane == Lane::Bulk && self.background.is_some() && !self.closed && !starves();
        if is_background { Role::Background } else { Role::Main }
    }

    /// Whether requests of a lane wait for instances of this role.
    pub fn waits_for(&self, role: Role, lane: Lane) -> bool {
        self.role_for(lane) == role && !self.lanes[lane as usize].items.is_empty()
    }

    /// How much the instances of a role take from the shared queue.
    pub fn intake_of(&mut self, role: Role) -> &mut Option<Intake> {
        match role {
            Role::Main => &mut self.intake,
            Role::Background => &mut self.background,
        }
    }

    fn intake_for(&self, lane: Lane) -> Option<&Intake> {
        match self.role_for(lane) {
            Role::Main => self.intake.as_ref(),
            Role::Background => self.background.as_ref(),
        }
    }

    /// Expected duration of a run of a lane that has this cost.
    pub fn run(&self, lane: Lane, cost: f64) -> Option<Duration> {
        self.intake_for(lane)?.run(cost)
    }

    /// See [`Intake::outlook`].
    pub fn outlook(&self, lane: Lane, cost: f64, now: Instant) -> Option<(Duration, Duration)> {
        self.intake_for(lane)?.outlook(cost, self.waiting_before(lane), now)
    }

    /// How long this worker has had no request; `None` while it has one.
    pub fn idle(&self) -> Option<Duration> {
        (self.in_hand() == 0).then(|| self.idle_since.elapsed())
    }

    pub fn in_hand(&self) -> usize {
        self.permits_out.iter().sum()
    }

    /// The most requests of a lane in a worker that holds at most `capacity` live ones.
    pub fn most(&self, lane: Lane, capacity: usize) -> usize {
        match (lane, &self.intake) {
            // The requests of a stepwise instance stay long: half of its places is left to live requests.
            (Lane::Bulk, None) => capacity.div_ceil(2),
            (_, None) => capacity,
            (_, Some(_)) => self.lanes[lane as usize].seats.most(capacity),
        }
    }

    /// Takes a permit for a request that does not come from the shared queue. Returns whether it may.
    pub fn take_past(&mut self, lane: Lane, capacity: usize) -> bool {
        let free = self.most(lane, capacity).saturating_sub(self.permits_out[lane as usize]);
        let past = &mut self.past[lane as usize];
        let may = match lane {
            Lane::Live => free > 0 && !past.backlog,
            Lane::Bulk => free > usize::from(past.backlog),
        };
        // A refused request goes to the shared queue. With the last permit the worker stops to ask for messages there.
        *past = Past { used: true, backlog: !may || free == 1 };
        self.permits_out[lane as usize] += usize::from(may);
        may
    }

    /// The most that a run of a lane on an instance of this role may cost; `None` without a limit.
    pub fn most_cost(&self, role: Role, lane: Lane, now: Instant) -> Option<f64> {
        let ran = self.live_ran.filter(|_| lane == Lane::Bulk && role == Role::Main)?;
        (now.saturating_duration_since(ran) < BESIDE_LIVE).then_some(SHORT_RUN * self.live_cost)
    }

    /// Notes a run of live requests.
    pub fn note_live(&mut self, cost: f64, now: Instant) {
        let weight = if self.live_ran.is_none() { 1.0 } else { LIVE_WEIGHT };
        self.live_cost += (cost - self.live_cost) * weight;
        self.live_ran = Some(now);
    }

    /// How many requests of a lane there is room for, with at most `capacity` in this worker. The room for live requests is the
    /// same with and without bulk requests in the worker. While requests go past the shared queue there is room for one request from it.
    pub fn room(&self, lane: Lane, capacity: usize, now: Instant) -> Room {
        let late = if lane == Lane::Live { self.late } else { 0 };
        let free = self.most(lane, capacity).saturating_sub(self.permits_out[lane as usize]);
        let past = self.past[lane as usize];
        match (free, self.intake_for(lane)) {
            _ if self.paused => Room::None,
            (0, _) => Room::None,
            (free, None) => Room::Now(free),
            (free, Some(intake)) => match intake.room(self.waiting_before(lane), now) {
                Room::Now(room) => Room::Now(room.max(late).min(free)),
                // The batch that has its turn although live requests wait.
                _ if lane == Lane::Bulk && self.permits_out[lane as usize] == 0 => Room::Now(intake.batch().min(free)),
                _ if past.used && (lane == Lane::Bulk || !past.backlog) => Room::Now(1),
                later => later,
            },
        }
    }

    /// For each lane, whether its pulling task has to be woken because the room has changed. Waking it for each run would
    /// often cost more than the run.
    pub fn is_asked_wrongly(&self, capacity: usize, now: Instant) -> [bool; 2] {
        Lane::ALL.map(|(lane, _)| {
            let asked = self.asked[lane as usize];
            match lane {
                Lane::Live => {
                    asked == 0
                        || match self.room(lane, capacity, now) {
                            Room::Now(room) => is_beyond(lane, room, asked),
                            Room::At(_) | Room::None => true,
                        }
                }
                // Without bulk requests in the worker, the room that was asked for is there.
                Lane::Bulk => {
                    (asked == 0 || self.permits_out[lane as usize] > 0)
                        && matches!(self.room(lane, capacity, now), Room::Now(room) if is_beyond(lane, room, asked))
                }
            }
        })
    }

    /// Takes requests of a lane out that are executed now: they count in their owners' shares.
    pub fn take(&mut self, lane: Lane, indices: &[usize]) -> Vec<T> {
        let waiting = &mut self.lanes[lane as usize];
        waiting.seats.serve(indices, &waiting.candidates, Instant::now());
        self.take_out(lane, indices)
    }

    /// Takes requests of a lane out.
    pub fn take_out(&mut self, lane: Lane, indices: &[usize]) -> Vec<T> {
        let taken = self.lanes[lane as usize].remove(indices);
        let is_passed_over = lane == Lane::Live && !self.lanes[Lane::Bulk as usize].items.is_empty();
        self.passed_over = if is_passed_over { self.passed_over + 1 } else { 0 };
        taken
    }
}

// === impl Waiting ===

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Waiting { candidates: Vec::new(), items: VecDeque::new(), seats: Seats::default() }
    }
}

impl<T> Waiting<T> {
    pub fn remove(&mut self, indices: &[usize]) -> Vec<T> {
        self.seats.remove(indices);
        if let [index] = *indices {
            self.candidates.remove(index);
            return self.items.remove(index).into_iter().collect();
        }
        // The oldest ones, which most policies take: no other elements have to be moved.
        if indices.iter().copied().eq(0..indices.len()) {
            self.candidates.drain(..indices.len());
            return self.items.drain(..indices.len()).collect();
        }
        let mut taken: Vec<Option<T>> = indices.iter().map(|_| None).collect();
        let place = |index: usize| indices.iter().position(|&i| i == index);
        let (candidates, items) = (std::mem::take(&mut self.candidates), std::mem::take(&mut self.items));
        for (index, (candidate, item)) in candidates.into_iter().zip(items).enumerate() {
            match place(index) {
                Some(place) => taken[place] = Some(item),
                None => {
                    self.candidates.push(candidate);
                    self.items.push_back(item);
                }
            }
        }
        taken.into_iter().flatten().collect()
    }
}

/// Whether `asked` is at most half of this room or, for live requests, more than it. Bulk requests that were asked for too early
/// wait in their lane.
pub(super) fn is_beyond(lane: Lane, room: usize, asked: usize) -> bool {
    (lane == Lane::Live && room < asked) || room >= (2 * asked).max(1)
}
