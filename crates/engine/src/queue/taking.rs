//! Instances take batches: each instance waits for requests of its role, and takes the batch that the policy decides on.
//!
//! Not here: the policy (`batching`), and which role executes the requests of a lane now (`state`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use trireme_inference::Lane;

use super::state::State;
use super::{Role, Run, Taken, WorkQueue};
use crate::batching::{Decision, Description};

/// Runs of live requests, one after the other, while bulk requests wait. The next run is one of bulk requests, so that they are not
/// starved by live requests that never pause.
pub(super) const PASSED_OVER: u32 = 15;

// === impl WorkQueue ===

impl<T> WorkQueue<T> {
    /// Waits for a batch to execute, in the order that the policy gave; the run ends when it is dropped. `None` once
    /// the queue is closed and empty, or the instances were dismissed. When no request waits and [`WorkQueue::call_idle`] was called more than `calls`
    /// times, returns an empty batch and updates `calls`. If some of the batch's requests are too `late` for its
    /// expected duration, returns only those.
    pub fn take_run(
        self: &Arc<Self>,
        role: Role,
        calls: &mut u64,
        late: impl Fn(&T, Duration) -> bool,
    ) -> Option<Taken<T>> {
        self.take_run_with(role, calls, true, late)
    }

    /// The same without waiting: `None` if there is no batch now.
    pub fn try_take_run(
        self: &Arc<Self>,
        role: Role,
        calls: &mut u64,
        late: impl Fn(&T, Duration) -> bool,
    ) -> Option<Taken<T>> {
        self.take_run_with(role, calls, false, late)
    }

    /// A run of a divided request begins: the instance is busy. Its time counts with that of the others ([`WorkQueue::ran_in_parts`]).
    pub fn begin_part(self: &Arc<Self>, role: Role, members: &[Description]) -> Run<T> {
        let cost = self.policy.cost(members);
        let id = self.state.lock().intake_of(role).as_mut().map(|intake| intake.begin(cost, Instant::now()));
        Run { queue: self.clone(), role, id, executed: 0 }
    }

    /// The runs of a divided request, which have taken so long together, have ended.
    pub fn ran_in_parts(&self, role: Role, request: &Description, took: Duration) {
        let cost = self.policy.cost(std::slice::from_ref(request));
        if let Some(intake) = self.state.lock().intake_of(role) {
            intake.note(took, cost, 1);
        }
    }

    fn take_run_with(
        self: &Arc<Self>,
        role: Role,
        calls: &mut u64,
        waits: bool,
        late: impl Fn(&T, Duration) -> bool,
    ) -> Option<Taken<T>> {
        let (taken, wrong) = self.take_with(role, usize::MAX, calls, waits, |state, lane, mut indices| {
            let began = Instant::now();
            let waiting = &state.lanes[lane as usize];
            let mut members: Vec<_> = indices.iter().map(|&index| waiting.candidates[index].description).collect();
            if let Some(most) = state.most_cost(role, lane, began) {
                while members.len() > 1 && self.policy.cost(&members) > most {
                    members.pop();
                }
                indices.truncate(members.len());
            }
            let cost = self.policy.cost(&members);
            let waiting = &state.lanes[lane as usize];
            if let Some(takes) = state.run(lane, cost) {
                let is_late = |index: &usize| late(&waiting.items[*index], takes);
                let indices: Vec<_> = indices.iter().copied().filter(is_late).collect();
                if !indices.is_empty() {
                    return (Taken::Late(state.take_out(lane, &indices)), [false; 2]);
                }
            }
            if lane == Lane::Live && !indices.is_empty() {
                state.note_live(cost, began);
            }
            let (batch, now) = (state.take(lane, &indices), Instant::now());
            let id = state.intake_of(role).as_mut().map(|intake| intake.begin(cost, now));
            // Fewer requests wait now, and one more instance is busy.
            let wrong = state.is_asked_wrongly(self.capacity, now);
            (Taken::Batch(batch, Run { queue: self.clone(), role, id, executed: 0 }), wrong)
        })?;
        self.wake(wrong);
        Some(taken)
    }

    /// Like [`WorkQueue::take_run`], but takes at most `limit` requests, for instances that do not work in runs.
    pub fn take(&self, limit: usize, calls: &mut u64) -> Option<Vec<T>> {
        self.take_with(Role::Main, limit, calls, true, |state, lane, indices| state.take(lane, &indices))
    }

    /// A batch, which `remove` takes out before the queue is unlocked. Where there is none, the thread `waits` for one.
    fn take_with<R>(
        &self,
        role: Role,
        limit: usize,
        calls: &mut u64,
        waits: bool,
        remove: impl Fn(&mut State<T>, Lane, Vec<usize>) -> R,
    ) -> Option<R> {
        let mut state = self.state.lock();
        loop {
            if state.dismissed.is_some() {
                return None;
            }
            if role == Role::Main
                && let Some((candidate, item)) = state.alone.pop_front()
            {
                state.reserved = None;
                // Put before all others only for `remove`, which takes it out at once: the policy does not see it.
                let live = &mut state.lanes[Lane::Live as usize];
                live.candidates.insert(0, candidate);
                live.items.push_front(item);
                live.seats.push_front();
                let removed = remove(&mut state, Lane::Live, vec![0]);
                self.wake_for_rest(&state);
                return Some(removed);
            }
            let Some((lane, decision)) = self.decide(role, &state) else {
                if state.closed {
                    return None;
                }
                if role == Role::Main && *calls < state.calls {
                    *calls = state.calls;
                    return Some(remove(&mut state, Lane::Live, Vec::new()));
                }
                // The requests of a lane may be for instances of the other role now.
                self.wake_for_rest(&state);
                if !waits {
                    return None;
                }
                self.arrived[role as usize].wait(&mut state);
                continue;
            };
            match decision {
                Decision::Run(mut indices) => {
                    indices.truncate(limit);
                    let removed = remove(&mut state, lane, indices);
                    // The remaining requests may be a batch for another instance, and this instance has used up its wake-up.
                    self.wake_for_rest(&state);
                    return Some(removed);
                }
                _ if !waits => return None,
                Decision::WaitUntil(time) => {
                    self.arrived[role as usize].wait_until(&mut state, time);
                }
                Decision::Wait => self.arrived[role as usize].wait(&mut state),
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
        match self.decide(Role::Main, &state)? {
            (lane, Decision::Run(mut indices)) => {
                indices.truncate(limit);
                Some(state.take(lane, &indices))
            }
            (_, Decision::WaitUntil(_) | Decision::Wait) => None,
        }
    }

    /// The lane whose turn it is, and the policy's decision about its requests; `None` if no request waits for instances of this role.
    fn decide(&self, role: Role, state: &State<T>) -> Option<(Lane, Decision)> {
        let now = Instant::now();
        let decide = |lane: Lane| {
            let waiting = &state.lanes[lane as usize];
            let Some(view) = waiting.seats.view(&waiting.candidates, self.policy.max_rows()) else {
                return (lane, self.policy.decide(&waiting.candidates, now));
            };
            let mut seen: Vec<_> = view.iter().map(|&index| waiting.candidates[index].clone()).collect();
            // For the policy, the order of turns is that of arrival.
            let mut arrivals: Vec<_> = seen.iter().map(|candidate| candidate.arrived).collect();
            arrivals.sort_unstable();
            seen.iter_mut().zip(arrivals).for_each(|(candidate, arrived)| candidate.arrived = arrived);
            match self.policy.decide(&seen, now) {
                Decision::Run(chosen) => (lane, Decision::Run(chosen.into_iter().map(|place| view[place]).collect())),
                waits => (lane, waits),
            }
        };
        match (state.waits_for(role, Lane::Live), state.waits_for(role, Lane::Bulk)) {
            (false, false) => None,
            (false, true) => Some(decide(Lane::Bulk)),
            (true, true) if state.passed_over >= PASSED_OVER => match decide(Lane::Bulk) {
                run @ (_, Decision::Run(_)) => Some(run),
                _ => Some(decide(Lane::Live)),
            },
            (true, _) => Some(decide(Lane::Live)),
        }
    }

    /// Wakes an instance of each role for which requests wait.
    fn wake_for_rest(&self, state: &State<T>) {
        if !state.alone.is_empty() {
            self.arrived[Role::Main as usize].notify_one();
        }
        for (lane, _) in Lane::ALL {
            if !state.lanes[lane as usize].items.is_empty() {
                self.arrived[state.role_for(lane) as usize].notify_one();
            }
        }
    }
}
