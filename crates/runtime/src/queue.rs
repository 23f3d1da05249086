//! A model's queue in this worker: between the async side, which admits work, and the instance threads, which take
//! batches. What makes a batch is the policy's decision; this file is the lock, the waiting and the counting.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use trireme_inference::Tensor;

use crate::QueueLoad;
use crate::batching::{BatchPolicy, Candidate, Decision, Description};
use crate::intake::{Intake, Room, RunId};

/// Most requests that are asked for at a time in place of others that came too late.
const REPLACED: usize = 64;

/// The queue. `T` is whatever belongs to a waiting request.
pub struct WorkQueue<T> {
    policy: Box<dyn BatchPolicy>,
    capacity: usize,
    state: Mutex<State<T>>,
    /// Work arrived, or the queue was closed.
    arrived: Condvar,
    /// There may be more room, or less: a permit was given back, a run began or ended.
    room_changed: Notify,
}

struct State<T> {
    /// Parallel to `items`: what the policy sees.
    candidates: Vec<Candidate>,
    items: VecDeque<T>,
    /// What runs in a batch of its own, before all else: no policy is asked.
    alone: VecDeque<(Candidate, T)>,
    /// The instance that takes in nobody else until it is empty and takes the first of those.
    reserved: Option<ThreadId>,
    /// How much to take from the shared queue; `None`: as much as there are permits for.
    intake: Option<Intake>,
    /// For how many the shared queue was last asked: whoever asks sleeps until that is wrong.
    asked: usize,
    permits_out: usize,
    /// Requests that came too late, since one came that did not.
    late: usize,
    /// How often the idle were called.
    calls: u64,
    closed: bool,
}

/// Room for one request in this worker: from before it is admitted until it has left.
pub struct Permit<T> {
    queue: Arc<WorkQueue<T>>,
}

/// A batch under way, from being taken until its results are sent on.
pub struct Run<T> {
    queue: Arc<WorkQueue<T>>,
    id: Option<RunId>,
    /// Requests that were executed.
    pub executed: usize,
}

/// What an instance is to do.
pub enum Taken<T> {
    /// To execute these; none when the idle were called.
    Batch(Vec<T>, Run<T>),
    /// Nothing: these would have been executed, and are too late for it.
    Late(Vec<T>),
}

// === impl WorkQueue ===

impl<T> WorkQueue<T> {
    /// A queue that holds at most `capacity` requests, those being executed included, and of those in the shared queue no
    /// more than `intake` says.
    pub fn new(policy: Box<dyn BatchPolicy>, capacity: usize, intake: Option<Intake>) -> Arc<WorkQueue<T>> {
        let state = State {
            candidates: Vec::new(),
            items: VecDeque::new(),
            alone: VecDeque::new(),
            reserved: None,
            intake,
            asked: 0,
            permits_out: 0,
            late: 0,
            calls: 0,
            closed: false,
        };
        Arc::new(WorkQueue {
            policy,
            capacity,
            state: Mutex::new(state),
            arrived: Condvar::new(),
            room_changed: Notify::new(),
        })
    }

    /// The most requests it holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Requests in this worker: waiting and being executed.
    pub fn in_hand(&self) -> usize {
        self.state.lock().permits_out
    }

    /// How busy it is.
    pub fn load(&self) -> QueueLoad {
        let state = self.state.lock();
        QueueLoad { waiting: state.waiting() as u64, in_hand: state.permits_out as u64 }
    }

    /// Waits until there is room for fewer than `asked` requests from the shared queue, or for twice as many; with 0, for
    /// any. Tells for how many, and since when.
    pub async fn room_beyond(&self, asked: usize) -> (usize, Instant) {
        let mut since = None;
        loop {
            let changed = self.room_changed.notified();
            let now = Instant::now();
            let room = {
                let mut state = self.state.lock();
                state.asked = asked;
                state.room(self.capacity, now)
            };
            let (room, later) = match room {
                Room::Now(room) => (room, None),
                Room::At(time) => (0, Some(time)),
                Room::None => (0, None),
            };
            if is_beyond(room, asked) {
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

    /// Work came that had waited for room since then.
    pub fn fetched(&self, since: Instant) {
        if let Some(intake) = &mut self.state.lock().intake {
            intake.fetched(since.elapsed());
        }
    }

    /// Room for a request that somebody here already has: may exceed the capacity, because the bus has sent it.
    pub fn permit(self: &Arc<Self>) -> Permit<T> {
        self.state.lock().permits_out += 1;
        Permit { queue: self.clone() }
    }

    /// Room for one more request, if there is any.
    pub fn try_permit(self: &Arc<Self>) -> Option<Permit<T>> {
        let mut state = self.state.lock();
        if state.closed || state.permits_out >= self.capacity {
            return None;
        }
        state.permits_out += 1;
        Some(Permit { queue: self.clone() })
    }

    /// Closes the queue if nothing is in hand, so that no permit is given out between the two. Says whether it is closed.
    pub fn close_if_idle(&self) -> bool {
        let mut state = self.state.lock();
        state.closed |= state.permits_out == 0;
        let closed = state.closed;
        drop(state);
        if closed {
            self.arrived.notify_all();
        }
        closed
    }

    /// What the policy says of a request with these inputs.
    pub fn describe(&self, inputs: &[Tensor]) -> Description {
        self.policy.describe(inputs)
    }

    /// How long a run takes that a request like this is in, and how long it is until that begins after all that wait here;
    /// `None` while that is not known.
    pub fn outlook(&self, request: &Description) -> Option<(Duration, Duration)> {
        let cost = self.policy.cost(std::slice::from_ref(request));
        let state = self.state.lock();
        state.intake.as_ref()?.outlook(cost, state.waiting(), Instant::now())
    }

    /// A request came too late to be executed. So will those behind it in the shared queue: more of them are asked for at
    /// a time, until one comes that is not, so that instances do not wait for it.
    pub fn came_late(&self) {
        let mut state = self.state.lock();
        state.late = (state.late + 1).min(REPLACED);
    }

    /// Puts a request into the queue.
    pub fn push(&self, candidate: Candidate, item: T) {
        let mut state = self.state.lock();
        state.late = 0;
        state.candidates.push(candidate);
        state.items.push_back(item);
        drop(state);
        self.arrived.notify_one();
    }

    /// Puts a request into the queue that shall share its batch with nobody.
    pub fn push_alone(&self, candidate: Candidate, item: T) {
        self.state.lock().alone.push_back((candidate, item));
        self.arrived.notify_one();
    }

    /// Waits for a batch to execute, in the order the policy gave; the run ends when it is dropped. `None` once the queue is
    /// closed and empty. Where nothing waits and [`WorkQueue::call_idle`] was called more than `calls` times, gives an empty
    /// batch and counts it there. What is too `late` for a run that takes so long is not in a batch, and given by itself.
    pub fn take_run(self: &Arc<Self>, calls: &mut u64, late: impl Fn(&T, Duration) -> bool) -> Option<Taken<T>> {
        let (taken, wrong) = self.take_with(usize::MAX, calls, |state, indices| {
            let members: Vec<_> = indices.iter().map(|&index| state.candidates[index].description).collect();
            let cost = self.policy.cost(&members);
            if let Some(takes) = state.intake.as_ref().and_then(|intake| intake.run(cost)) {
                let is_late = |index: &usize| late(&state.items[*index], takes);
                let indices: Vec<_> = indices.iter().copied().filter(is_late).collect();
                if !indices.is_empty() {
                    return (Taken::Late(state.remove(&indices)), false);
                }
            }
            let (batch, now) = (state.remove(&indices), Instant::now());
            let id = state.intake.as_mut().map(|intake| intake.begin(cost, now));
            // What waits is less now, and an instance is busy.
            let wrong = state.is_asked_wrongly(self.capacity, now);
            (Taken::Batch(batch, Run { queue: self.clone(), id, executed: 0 }), wrong)
        })?;
        if wrong {
            self.room_changed.notify_one();
        }
        Some(taken)
    }

    /// As [`WorkQueue::take_run`], at most `limit` requests, for instances that do not work in runs.
    pub fn take(&self, limit: usize, calls: &mut u64) -> Option<Vec<T>> {
        self.take_with(limit, calls, |state, indices| state.remove(&indices))
    }

    /// Waits until something is to be executed, and lets `remove` take it out before the queue is unlocked.
    fn take_with<R>(
        &self,
        limit: usize,
        calls: &mut u64,
        remove: impl Fn(&mut State<T>, Vec<usize>) -> R,
    ) -> Option<R> {
        let mut state = self.state.lock();
        loop {
            if let Some((candidate, item)) = state.alone.pop_front() {
                state.reserved = None;
                // Before all others, and taken out again at once: no policy sees it.
                state.candidates.insert(0, candidate);
                state.items.push_front(item);
                let removed = remove(&mut state, vec![0]);
                if state.waiting() > 0 {
                    self.arrived.notify_one();
                }
                return Some(removed);
            }
            if state.items.is_empty() {
                if state.closed {
                    return None;
                }
                if *calls < state.calls {
                    *calls = state.calls;
                    return Some(remove(&mut state, Vec::new()));
                }
                self.arrived.wait(&mut state);
                continue;
            }
            match self.policy.decide(&state.candidates, Instant::now()) {
                Decision::Run(mut indices) => {
                    indices.truncate(limit);
                    let removed = remove(&mut state, indices);
                    if !state.items.is_empty() {
                        // What stays may be a batch for another instance, whose wake-up was spent on this one.
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

    /// Takes at most `limit` requests that the policy would run now, to join others. `None` when there are none. While one
    /// waits that shall join nobody, the first instance to ask takes in nobody else: it gets that one, unless another is empty
    /// before.
    pub fn try_take(&self, limit: usize) -> Option<Vec<T>> {
        let mut state = self.state.lock();
        let me = std::thread::current().id();
        if !state.alone.is_empty() && *state.reserved.get_or_insert(me) == me {
            return None;
        }
        if state.items.is_empty() {
            return None;
        }
        match self.policy.decide(&state.candidates, Instant::now()) {
            Decision::Run(mut indices) => {
                indices.truncate(limit);
                Some(state.remove(&indices))
            }
            Decision::WaitUntil(_) | Decision::Wait => None,
        }
    }

    /// Takes out what waits and is as `unwanted` says.
    pub fn remove_where(&self, unwanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut state = self.state.lock();
        let indices: Vec<usize> = (0..state.items.len()).filter(|&index| unwanted(&state.items[index])).collect();
        let mut removed = match indices.is_empty() {
            true => Vec::new(),
            false => state.remove(&indices),
        };
        let (gone, kept): (Vec<_>, _) =
            std::mem::take(&mut state.alone).into_iter().partition(|(_, item)| unwanted(item));
        state.alone = VecDeque::from(kept);
        removed.extend(gone.into_iter().map(|(_, item)| item));
        removed
    }

    /// Lets all others of its level before what is as `late` says.
    pub fn delay_where(&self, late: impl Fn(&T) -> bool) {
        let mut state = self.state.lock();
        let State { candidates, items, .. } = &mut *state;
        for (candidate, item) in candidates.iter_mut().zip(items.iter()) {
            candidate.priority |= u32::from(late(item));
        }
    }

    /// Gives everybody who waits for a batch an empty one.
    pub fn call_idle(&self) {
        self.state.lock().calls += 1;
        self.arrived.notify_all();
    }

    /// No more work will come: instance threads end when the queue is empty.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_all();
    }
}

// === impl State ===

impl<T> State<T> {
    fn waiting(&self) -> usize {
        self.items.len() + self.alone.len()
    }

    /// How many requests there is room for, of at most `capacity`.
    fn room(&self, capacity: usize, now: Instant) -> Room {
        match (capacity.saturating_sub(self.permits_out), &self.intake) {
            (0, _) => Room::None,
            (free, None) => Room::Now(free),
            (free, Some(intake)) => match intake.room(self.waiting(), now) {
                Room::Now(room) => Room::Now(room.max(self.late).min(free)),
                later => later,
            },
        }
    }

    /// Whether whoever asks the shared queue has to know of a change. A task that is woken for each run would cost more than
    /// many a run.
    fn is_asked_wrongly(&self, capacity: usize, now: Instant) -> bool {
        self.asked == 0
            || match self.room(capacity, now) {
                Room::Now(room) => is_beyond(room, self.asked),
                Room::At(_) | Room::None => true,
            }
    }

    fn remove(&mut self, indices: &[usize]) -> Vec<T> {
        if let [index] = *indices {
            self.candidates.remove(index);
            return self.items.remove(index).into_iter().collect();
        }
        // The oldest ones, as most policies take: nothing else has to move.
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

/// Whether `asked` is too much for this room, or far too little.
fn is_beyond(room: usize, asked: usize) -> bool {
    room < asked || room >= (2 * asked).max(1)
}

// === impl Permit ===

impl<T> Drop for Permit<T> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.permits_out -= 1;
        let wrong = state.is_asked_wrongly(self.queue.capacity, Instant::now());
        drop(state);
        if wrong {
            self.queue.room_changed.notify_one();
        }
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
        if wrong {
            self.queue.room_changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
