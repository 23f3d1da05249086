//! A model's queue in this worker, between the async tasks that admit work and the instance threads that take batches.
//! The policy decides what makes a batch; this file has the lock, `taking` the waiting for batches,
//! `state` the requests and the counting, `seats` whose requests wait, and which of them the policy sees.
//!
//! Requests wait in two lanes. Where a model has background instances ([`Role`]), those execute bulk requests and the main instances
//! live ones; the operating system gives the background the time that is left. Where there are none, or where other processes leave
//! them too little, the main instances execute both. While live requests wait, the policy then sees them alone, so no bulk request runs
//! before them or with them. Bulk requests run when no live request waits, and after 15 runs that have passed them over. A
//! live request may have to wait for the run under way, so runs of bulk requests are short while there are live requests now and then.

mod dismissal;
mod seats;
mod state;
mod taking;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use trireme_inference::{Lane, Tensor};

use crate::backend::Instance;
use crate::batching::{BatchPolicy, Candidate, Decision, Description};
use crate::intake::{self, Intake, Room, RunId};
use crate::statistics::QueueLoad;
use state::{Past, State, Waiting, is_beyond};

pub use seats::Seat;
pub use state::Role;

/// The most requests to ask for at a time in place of requests that came too late.
const REPLACED: usize = 64;

/// How long the main instances execute bulk requests after background instances got too little of the CPUs.
const RESPITE: Duration = Duration::from_secs(5);

/// The queue. `T` is the data of a waiting request.
///
/// A permit and a request in the queue:
///
/// ```
/// # use std::time::Instant;
/// # use trireme_engine::{Candidate, Description, OneAtATime, QueueLoad};
/// # use trireme_inference::Lane;
/// use trireme_engine::WorkQueue;
///
/// let queue = WorkQueue::new(Box::new(OneAtATime), 8, None);
/// let permit = queue.permit(Lane::Live, false);
/// let candidate = Candidate { arrived: Instant::now(), priority: 0, description: Description::exact(&[]) };
/// queue.push(Lane::Live, candidate, "a request");
/// assert_eq!(queue.load(), QueueLoad { waiting: 1, in_hand: 1, waiting_tokens: [1, 0], asleep: None });
///
/// assert_eq!(queue.remove_where(|request| *request == "a request"), ["a request"]);
/// drop(permit);
/// assert_eq!(queue.load(), QueueLoad::default());
/// ```
pub struct WorkQueue<T> {
    policy: Box<dyn BatchPolicy>,
    capacity: usize,
    state: Mutex<State<T>>,
    /// For each role: signalled when work has arrived, the queue was closed, or idle instances were called.
    arrived: [Condvar; 2],
    /// Signalled when a request has come that no instance is there for.
    called: Notify,
    /// Signalled when the room of a lane may have changed: a permit was dropped, or a run began or ended.
    room_changed: [Notify; 2],
}

/// Room for one request in this worker: taken before the request is admitted, freed when the request has left.
pub struct Permit<T> {
    queue: Arc<WorkQueue<T>>,
    lane: Lane,
}

/// A run under way, from when its batch was taken until its results have been sent on.
pub struct Run<T> {
    queue: Arc<WorkQueue<T>>,
    role: Role,
    id: Option<RunId>,
    /// Number of requests that were executed.
    pub executed: usize,
}

/// A batch, or requests to drop, for an instance.
pub enum Taken<T> {
    /// Execute these requests; the batch is empty after [`WorkQueue::call_idle`].
    Batch(Vec<T>, Run<T>),
    /// Drop these requests: they are too late to be executed.
    Late(Vec<T>),
}

// === impl WorkQueue ===

impl<T> WorkQueue<T> {
    /// A queue that holds at most `capacity` requests, including those being executed. `intake` limits how many of them
    /// it takes from the shared queue.
    pub fn new(policy: Box<dyn BatchPolicy>, capacity: usize, intake: Option<Intake>) -> Arc<WorkQueue<T>> {
        let state = State {
            lanes: [Waiting::default(), Waiting::default()],
            passed_over: 0,
            live_ran: None,
            live_cost: 0.0,
            alone: VecDeque::new(),
            reserved: None,
            intake,
            background: None,
            starves_until: None,
            bulk_came: false,
            asked: [0; 2],
            permits_out: [0; 2],
            past: [Past::default(); 2],
            late: 0,
            calls: 0,
            paused: false,
            dismissed: None,
            expects: false,
            idle_since: Instant::now(),
            closed: false,
        };
        Arc::new(WorkQueue {
            policy,
            capacity,
            state: Mutex::new(state),
            arrived: [Condvar::new(), Condvar::new()],
            called: Notify::new(),
            room_changed: [Notify::new(), Notify::new()],
        })
    }

    /// The queue of a model with these instances. `shared`: whether other workers may pull from the model's queue on the bus.
    pub fn of(policy: Box<dyn BatchPolicy>, instances: &[Instance], shared: bool) -> Arc<WorkQueue<T>> {
        let capacity = intake::most_in_hand(policy.as_ref(), instances);
        let intake = intake::of(policy.as_ref(), instances, shared);
        WorkQueue::new(policy, capacity, intake)
    }

    /// Number of requests in this worker: waiting and being executed.
    pub fn in_hand(&self) -> usize {
        self.state.lock().permits_out.iter().sum()
    }

    /// Number of requests waiting, and in this worker.
    pub fn load(&self) -> QueueLoad {
        let state = self.state.lock();
        QueueLoad {
            waiting: state.waiting() as u64,
            in_hand: state.in_hand() as u64,
            waiting_tokens: state.waiting_tokens(),
            asleep: state.dismissed.map(|since| since.elapsed()),
        }
    }

    /// Waits until the room for a lane's requests from the shared queue is at least twice as much as `asked` or, for live
    /// requests, less; with 0, until there is any room. Returns the room, and since when it has been there.
    pub async fn room_beyond(&self, lane: Lane, asked: usize) -> (usize, Instant) {
        let mut since = None;
        loop {
            let changed = self.room_changed[lane as usize].notified();
            let now = Instant::now();
            let room = {
                let mut state = self.state.lock();
                state.asked[lane as usize] = asked;
                state.room(lane, self.capacity, now)
            };
            let (room, later) = match room {
                Room::Now(room) => (room, None),
                Room::At(time) => (0, Some(time)),
                Room::None => (0, None),
            };
            if is_beyond(lane, room, asked) {
                return (room, since.map_or(now, |since| now.min(since)));
            }
            match later {
                Some(time) => {
                    since = Some(time);
                    let _ = tokio::time::timeout_at(time.into(), changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// Notes how long a message of a lane took to arrive from the shared queue; there has been room for it since `since`.
    pub fn fetched(&self, lane: Lane, since: Instant) {
        let mut state = self.state.lock();
        let role = state.role_for(lane);
        // Main instances have room for bulk requests while live ones leave it.
        let counts = lane == Lane::Live || role == Role::Background;
        if let Some(intake) = state.intake_of(role).as_mut().filter(|_| counts) {
            intake.fetched(since.elapsed());
        }
    }

    /// Room for a request that the shared queue has delivered; whether `more` waited there behind it. It may exceed the capacity,
    /// because this worker has the request already.
    pub fn permit(self: &Arc<Self>, lane: Lane, more: bool) -> Permit<T> {
        let mut state = self.state.lock();
        state.permits_out[lane as usize] += 1;
        state.past[lane as usize].backlog = more;
        drop(state);
        Permit { queue: self.clone(), lane }
    }

    /// Room for a request that has just left a step of this process. `None` if there is no room, or if older requests may wait in the
    /// shared queue, which have to get it first: then the request has to wait there, too.
    pub fn try_permit(self: &Arc<Self>, lane: Lane) -> Option<Permit<T>> {
        let mut state = self.state.lock();
        let has_permit = !state.closed && !state.paused && state.take_past(lane, self.capacity);
        drop(state);
        has_permit.then(|| Permit { queue: self.clone(), lane })
    }

    /// Closes the queue if it holds no requests, under one lock, so that no permit is given out in between. Returns
    /// whether it is closed.
    pub fn close_if_idle(&self) -> bool {
        let mut state = self.state.lock();
        state.closed |= state.in_hand() == 0;
        let closed = state.closed;
        drop(state);
        if closed {
            self.wake_all();
        }
        closed
    }

    /// The policy's description of a request with these inputs.
    pub fn describe(&self, inputs: &[Tensor]) -> Description {
        self.policy.describe(inputs)
    }

    /// Expected duration of a run with a request like this, and the expected wait until it begins behind the waiting requests
    /// that go before it; `None` while the durations of runs are not known.
    pub fn outlook(&self, lane: Lane, request: &Description) -> Option<(Duration, Duration)> {
        let cost = self.policy.cost(std::slice::from_ref(request));
        self.state.lock().outlook(lane, cost, Instant::now())
    }

    /// A request came too late to be executed. The requests behind it in the shared queue are probably late, too. So
    /// the worker asks for more of them at a time, until one arrives in time, and instances do not have to wait for it.
    pub fn came_late(&self) {
        let mut state = self.state.lock();
        state.late = (state.late + 1).min(REPLACED);
    }

    /// Whether a request of a lane may pass the queue: no other waits, the policy would run it now, and its run is expected to take
    /// `longest` at most. The caller then executes it.
    pub fn passes(&self, lane: Lane, candidate: &Candidate, longest: Duration) -> bool {
        let mut state = self.state.lock();
        let (cost, now) = (self.policy.cost(std::slice::from_ref(&candidate.description)), Instant::now());
        let is_short = |state: &State<T>| state.run(lane, cost).is_some_and(|takes| takes <= longest);
        let runs_now = || matches!(self.policy.decide(std::slice::from_ref(candidate), now), Decision::Run(_));
        let passes = lane == Lane::Live && state.waiting() == 0 && !state.closed && is_short(&state) && runs_now();
        if passes {
            state.late = 0;
            state.note_live(cost, now);
        }
        passes
    }

    /// Puts a request of no owner into a lane of the queue.
    pub fn push(&self, lane: Lane, candidate: Candidate, item: T) {
        self.push_at(lane, candidate, Seat::default(), item);
    }

    /// Puts a request into its owner's part of a lane.
    pub fn push_at(&self, lane: Lane, candidate: Candidate, seat: Seat, item: T) {
        let mut state = self.state.lock();
        state.late = 0;
        let waiting = &mut state.lanes[lane as usize];
        waiting.candidates.push(candidate);
        waiting.items.push_back(item);
        let role = state.role_for(lane);
        let busy = state.in_hand() > 1;
        if let Some(until) = state.lanes[lane as usize].seats.push(seat, busy, Instant::now())
            && let Some(intake) = state.intake_of(role)
        {
            intake.contest(until);
        }
        let is_first = lane == Lane::Bulk && !std::mem::replace(&mut state.bulk_came, true);
        let calls = state.dismissed.is_some();
        drop(state);
        if calls {
            self.called.notify_one();
        }
        self.arrived[role as usize].notify_one();
        if is_first {
            self.arrived[Role::Background as usize].notify_all();
        }
    }

    /// Waits until the first bulk request has come. `false` once the queue is closed, or its instances were dismissed.
    pub fn bulk_comes(&self) -> bool {
        let mut state = self.state.lock();
        while !state.bulk_came && !state.closed && state.dismissed.is_none() {
            self.arrived[Role::Background as usize].wait(&mut state);
        }
        !state.closed && state.dismissed.is_none()
    }

    /// Background instances got too little of the CPUs: the main instances execute bulk requests for a while.
    pub fn background_starves(&self) {
        self.state.lock().starves_until = Some(Instant::now() + RESPITE);
        self.arrived[Role::Main as usize].notify_one();
    }

    /// A background instance is ready. From the first one on, the main instances take no bulk requests.
    pub fn add_background(&self) {
        let mut state = self.state.lock();
        if state.dismissed.is_some() {
            return;
        }
        state.background = match (state.background.take(), &state.intake) {
            (Some(mut intake), _) => {
                intake.add_instance();
                Some(intake)
            }
            (None, intake) => intake.as_ref().map(Intake::for_background),
        };
    }

    /// Puts a request into the queue that has to run in a batch of its own.
    pub fn push_alone(&self, candidate: Candidate, item: T) {
        self.state.lock().alone.push_back((candidate, item));
        self.called.notify_one();
        self.arrived[Role::Main as usize].notify_one();
    }

    fn wake_all(&self) {
        for arrived in &self.arrived {
            arrived.notify_all();
        }
    }

    /// Wakes the pulling tasks of the lanes for which the shared queue was asked wrongly.
    fn wake(&self, wrong: [bool; 2]) {
        for (changed, wrong) in self.room_changed.iter().zip(wrong) {
            if wrong {
                changed.notify_one();
            }
        }
    }

    /// Removes the waiting requests for which `unwanted` is true.
    pub fn remove_where(&self, unwanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut state = self.state.lock();
        let mut removed = Vec::new();
        for waiting in &mut state.lanes {
            let indices: Vec<usize> =
                (0..waiting.items.len()).filter(|&index| unwanted(&waiting.items[index])).collect();
            if !indices.is_empty() {
                removed.extend(waiting.remove(&indices));
            }
        }
        let (gone, kept): (Vec<_>, _) =
            std::mem::take(&mut state.alone).into_iter().partition(|(_, item)| unwanted(item));
        state.alone = VecDeque::from(kept);
        removed.extend(gone.into_iter().map(|(_, item)| item));
        removed
    }

    /// Moves the waiting requests for which `late` is true behind all others of their level.
    pub fn delay_where(&self, late: impl Fn(&T) -> bool) {
        let mut state = self.state.lock();
        for Waiting { candidates, items, .. } in &mut state.lanes {
            for (candidate, item) in candidates.iter_mut().zip(items.iter()) {
                candidate.priority |= u32::from(late(item));
            }
        }
    }

    /// Gives an empty batch to every instance that waits for one.
    pub fn call_idle(&self) {
        self.state.lock().calls += 1;
        self.arrived[Role::Main as usize].notify_all();
    }

    /// While the queue is paused it has no room, for work from the bus and for hand-overs alike.
    pub fn pause(&self, paused: bool) {
        self.state.lock().paused = paused;
        self.wake([true; 2]);
    }

    /// Whether the queue was closed.
    pub fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// No more work will arrive: instance threads end when the queue is empty.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.wake_all();
    }
}

// === impl Permit ===

impl<T> Drop for Permit<T> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.permits_out[self.lane as usize] -= 1;
        if state.in_hand() == 0 {
            state.idle_since = Instant::now();
        }
        let wrong = state.is_asked_wrongly(self.queue.capacity, Instant::now());
        drop(state);
        self.queue.wake(wrong);
    }
}

// === impl Run ===

impl<T> Drop for Run<T> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        let now = Instant::now();
        let ended = match (state.intake_of(self.role), self.id) {
            (Some(intake), Some(id)) => intake.end(id, self.executed, now),
            _ => None,
        };
        let wrong = state.is_asked_wrongly(self.queue.capacity, now);
        drop(state);
        self.queue.wake(wrong);
        // Runs in the background say nothing about the others: they get what these leave of the CPUs.
        if let Some((cost, took)) = ended.filter(|_| self.role == Role::Main) {
            self.queue.policy.ran(cost, took);
        }
    }
}

#[cfg(test)]
mod tests;
