//! A model's queue in this worker, between the async tasks that admit work and the instance threads that take batches.
//! The policy decides what makes a batch; this file has the lock and the waiting, `state` the requests and the counting.
//!
//! Requests wait in two lanes. While live requests wait, the policy sees them alone, so no bulk request runs before them or with
//! them. Bulk requests run when no live request waits, and after [`PASSED_OVER`] runs that have passed them over. A live request may have
//! to wait for the run under way, so runs of bulk requests are short while there are live requests now and then.

mod state;

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
use state::{State, Waiting, is_beyond};

/// The most requests to ask for at a time in place of requests that came too late.
const REPLACED: usize = 64;

/// Runs of live requests, one after the other, while bulk requests wait. The next run is one of bulk requests, so that they are not
/// starved by live requests that never pause.
const PASSED_OVER: u32 = 15;

/// The queue. `T` is the data of a waiting request.
pub struct WorkQueue<T> {
    policy: Box<dyn BatchPolicy>,
    capacity: usize,
    state: Mutex<State<T>>,
    /// Signalled when work has arrived, the queue was closed, or idle instances were called.
    arrived: Condvar,
    /// Signalled when the room of a lane may have changed: a permit was given back, or a run began or ended.
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
            asked: [0; 2],
            permits_out: [0; 2],
            late: 0,
            calls: 0,
            paused: false,
            closed: false,
        };
        Arc::new(WorkQueue {
            policy,
            capacity,
            state: Mutex::new(state),
            arrived: Condvar::new(),
            room_changed: [Notify::new(), Notify::new()],
        })
    }

    /// The queue of a model with these instances. With a queue policy it holds few requests, because those that wait here
    /// are out of the policy's order.
    pub fn of(policy: Box<dyn BatchPolicy>, instances: &[Instance], queue_policy: bool) -> Arc<WorkQueue<T>> {
        let capacity = intake::most_in_hand(policy.as_ref(), instances, queue_policy);
        let intake = intake::of(policy.as_ref(), instances);
        WorkQueue::new(policy, capacity, intake)
    }

    /// The most requests of a lane that the queue holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of requests in this worker: waiting and being executed.
    pub fn in_hand(&self) -> usize {
        self.state.lock().permits_out.iter().sum()
    }

    /// Number of requests waiting, and in this worker.
    pub fn load(&self) -> QueueLoad {
        let state = self.state.lock();
        QueueLoad { waiting: state.waiting() as u64, in_hand: state.in_hand() as u64 }
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

    /// Notes how long a message took to arrive from the shared queue; there has been room for it since `since`.
    pub fn fetched(&self, since: Instant) {
        if let Some(intake) = &mut self.state.lock().intake {
            intake.fetched(since.elapsed());
        }
    }

    /// Room for a request that this worker already has. It may exceed the capacity, because the bus has delivered the
    /// request.
    pub fn permit(self: &Arc<Self>, lane: Lane) -> Permit<T> {
        self.state.lock().permits_out[lane as usize] += 1;
        Permit { queue: self.clone(), lane }
    }

    /// Room for one more request, if there is any.
    pub fn try_permit(self: &Arc<Self>, lane: Lane) -> Option<Permit<T>> {
        let mut state = self.state.lock();
        if state.closed || state.paused || state.permits_out[lane as usize] >= state.most(lane, self.capacity) {
            return None;
        }
        state.permits_out[lane as usize] += 1;
        Some(Permit { queue: self.clone(), lane })
    }

    /// Closes the queue if it holds no requests, under one lock, so that no permit is given out in between. Returns
    /// whether it is closed.
    pub fn close_if_idle(&self) -> bool {
        let mut state = self.state.lock();
        state.closed |= state.in_hand() == 0;
        let closed = state.closed;
        drop(state);
        if closed {
            self.arrived.notify_all();
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
        let state = self.state.lock();
        state.intake.as_ref()?.outlook(cost, state.waiting_up_to(lane), Instant::now())
    }

    /// A request came too late to be executed. The requests behind it in the shared queue are probably late, too. So
    /// the worker asks for more of them at a time, until one arrives in time, and instances do not have to wait for it.
    pub fn came_late(&self) {
        let mut state = self.state.lock();
        state.late = (state.late + 1).min(REPLACED);
    }

    /// Puts a request into a lane of the queue.
    pub fn push(&self, lane: Lane, candidate: Candidate, item: T) {
        let mut state = self.state.lock();
        state.late = 0;
        state.lanes[lane as usize].candidates.push(candidate);
        state.lanes[lane as usize].items.push_back(item);
        drop(state);
        self.arrived.notify_one();
    }

    /// Puts a request into the queue that has to run in a batch of its own.
    pub fn push_alone(&self, candidate: Candidate, item: T) {
        self.state.lock().alone.push_back((candidate, item));
        self.arrived.notify_one();
    }

    /// Waits for a batch to execute, in the order that the policy gave; the run ends when it is dropped. `None` once
    /// the queue is closed and empty. When no request waits and [`WorkQueue::call_idle`] was called more than `calls`
    /// times, returns an empty batch and updates `calls`. If some of the batch's requests are too `late` for its
    /// expected duration, returns only those.
    pub fn take_run(self: &Arc<Self>, calls: &mut u64, late: impl Fn(&T, Duration) -> bool) -> Option<Taken<T>> {
        let (taken, wrong) = self.take_with(usize::MAX, calls, |state, lane, mut indices| {
            let began = Instant::now();
            let waiting = &state.lanes[lane as usize];
            let mut members: Vec<_> = indices.iter().map(|&index| waiting.candidates[index].description).collect();
            if let Some(most) = state.most_cost(lane, began) {
                while members.len() > 1 && self.policy.cost(&members) > most {
                    members.pop();
                }
                indices.truncate(members.len());
            }
            let cost = self.policy.cost(&members);
            let waiting = &state.lanes[lane as usize];
            if let Some(takes) = state.intake.as_ref().and_then(|intake| intake.run(cost)) {
                let is_late = |index: &usize| late(&waiting.items[*index], takes);
                let indices: Vec<_> = indices.iter().copied().filter(is_late).collect();
                if !indices.is_empty() {
                    return (Taken::Late(state.take(lane, &indices)), [false; 2]);
                }
            }
            if lane == Lane::Live && !indices.is_empty() {
                state.note_live(cost, began);
            }
            let (batch, now) = (state.take(lane, &indices), Instant::now());
            let id = state.intake.as_mut().map(|intake| intake.begin(cost, now));
            // Fewer requests wait now, and one more instance is busy.
            let wrong = state.is_asked_wrongly(self.capacity, now);
            (Taken::Batch(batch, Run { queue: self.clone(), id, executed: 0 }), wrong)
        })?;
        self.wake(wrong);
        Some(taken)
    }

    /// Like [`WorkQueue::take_run`], but takes at most `limit` requests, for instances that do not work in runs.
    pub fn take(&self, limit: usize, calls: &mut u64) -> Option<Vec<T>> {
        self.take_with(limit, calls, |state, lane, indices| state.take(lane, &indices))
    }

    /// Waits until there is a batch, and lets `remove` take it out before the queue is unlocked.
    fn take_with<R>(
        &self,
        limit: usize,
        calls: &mut u64,
        remove: impl Fn(&mut State<T>, Lane, Vec<usize>) -> R,
    ) -> Option<R> {
        let mut state = self.state.lock();
        loop {
            if let Some((candidate, item)) = state.alone.pop_front() {
                state.reserved = None;
                // Put before all others only for `remove`, which takes it out at once: the policy does not see it.
                let live = &mut state.lanes[Lane::Live as usize];
                live.candidates.insert(0, candidate);
                live.items.push_front(item);
                let removed = remove(&mut state, Lane::Live, vec![0]);
                if state.waiting() > 0 {
                    self.arrived.notify_one();
                }
                return Some(removed);
            }
            let Some((lane, decision)) = self.decide(&state) else {
                if state.closed {
                    return None;
                }
                if *calls < state.calls {
                    *calls = state.calls;
                    return Some(remove(&mut state, Lane::Live, Vec::new()));
                }
                self.arrived.wait(&mut state);
                continue;
            };
            match decision {
                Decision::Run(mut indices) => {
                    indices.truncate(limit);
                    let removed = remove(&mut state, lane, indices);
                    if state.waiting() > 0 {
                        // The remaining requests may be a batch for another instance, and this instance has used up its
                        // wake-up.
                        self.arrived.notify_one();
                    }
                    return Some(removed);
                }
                Decision::WaitUntil(time) => {
                    self.arrived.wait_until(&mut state, time);
                }
                Decision::Wait => self.arrived.wait(&mut state),
            }
        }
    }

    /// Takes at most `limit` requests that the policy would run now, to join others in a stepwise instance. `None` if
    /// there are none. If a request waits that has to run alone, the first instance that asks gets `None` until it is
    /// empty: it takes that request then, unless another instance is empty before.
    pub fn try_take(&self, limit: usize) -> Option<Vec<T>> {
        let mut state = self.state.lock();
        let me = std::thread::current().id();
        if !state.alone.is_empty() && *state.reserved.get_or_insert(me) == me {
            return None;
        }
        match self.decide(&state)? {
            (lane, Decision::Run(mut indices)) => {
                indices.truncate(limit);
                Some(state.take(lane, &indices))
            }
            (_, Decision::WaitUntil(_) | Decision::Wait) => None,
        }
    }

    /// The lane whose turn it is, and the policy's decision about its requests; `None` if no request waits.
    fn decide(&self, state: &State<T>) -> Option<(Lane, Decision)> {
        let now = Instant::now();
        let decide = |lane: Lane| (lane, self.policy.decide(&state.lanes[lane as usize].candidates, now));
        let [live, bulk] = &state.lanes;
        match (live.items.is_empty(), bulk.items.is_empty()) {
            (true, true) => None,
            (true, false) => Some(decide(Lane::Bulk)),
            (false, false) if state.passed_over >= PASSED_OVER => match decide(Lane::Bulk) {
                run @ (_, Decision::Run(_)) => Some(run),
                _ => Some(decide(Lane::Live)),
            },
            (false, _) => Some(decide(Lane::Live)),
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
        for Waiting { candidates, items } in &mut state.lanes {
            for (candidate, item) in candidates.iter_mut().zip(items.iter()) {
                candidate.priority |= u32::from(late(item));
            }
        }
    }

    /// Gives an empty batch to every instance that waits for one.
    pub fn call_idle(&self) {
        self.state.lock().calls += 1;
        self.arrived.notify_all();
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
        self.arrived.notify_all();
    }
}

// === impl Permit ===

impl<T> Drop for Permit<T> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.permits_out[self.lane as usize] -= 1;
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
        if let (Some(intake), Some(id)) = (&mut state.intake, self.id) {
            intake.end(id, self.executed, now);
        }
        let wrong = state.is_asked_wrongly(self.queue.capacity, now);
        drop(state);
        self.queue.wake(wrong);
    }
}

#[cfg(test)]
mod tests;
