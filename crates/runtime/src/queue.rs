//! A model's queue in this worker: between the async side, which admits work, and the instance threads, which take
//! batches. What makes a batch is the policy's decision; this file is the lock, the waiting and the counting.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;
use trireme_inference::Tensor;

use crate::QueueLoad;
use crate::batching::{BatchPolicy, Candidate, Decision, Description};

/// The queue. `T` is whatever belongs to a waiting request.
pub struct WorkQueue<T> {
    policy: Box<dyn BatchPolicy>,
    capacity: usize,
    state: Mutex<State<T>>,
    /// Work arrived, or the queue was closed.
    arrived: Condvar,
    /// A permit was given back.
    room_freed: Notify,
}

struct State<T> {
    /// Parallel to `items`: what the policy sees.
    candidates: Vec<Candidate>,
    items: Vec<T>,
    permits_out: usize,
    closed: bool,
}

/// Room for one request in this worker: from before it is admitted until it has left.
pub struct Permit<T> {
    queue: Arc<WorkQueue<T>>,
}

// === impl WorkQueue ===

impl<T> WorkQueue<T> {
    /// A queue that holds at most `capacity` requests, those being executed included.
    pub fn new(policy: Box<dyn BatchPolicy>, capacity: usize) -> Arc<WorkQueue<T>> {
        Arc::new(WorkQueue {
            policy,
            capacity,
            state: Mutex::new(State { candidates: Vec::new(), items: Vec::new(), permits_out: 0, closed: false }),
            arrived: Condvar::new(),
            room_freed: Notify::new(),
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
        QueueLoad { waiting: state.items.len() as u64, in_hand: state.permits_out as u64 }
    }

    /// Waits until there is room, and tells how much.
    pub async fn room(&self) -> usize {
        loop {
            let freed = self.room_freed.notified();
            let room = self.capacity.saturating_sub(self.in_hand());
            if room > 0 {
                return room;
            }
            freed.await;
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

    /// Puts a request into the queue.
    pub fn push(&self, candidate: Candidate, item: T) {
        let mut state = self.state.lock();
        state.candidates.push(candidate);
        state.items.push(item);
        drop(state);
        self.arrived.notify_one();
    }

    /// Waits for a batch to execute, at most `limit` requests, in the order the policy gave. `None` once the queue is closed
    /// and empty.
    pub fn take(&self, limit: usize) -> Option<Vec<T>> {
        let mut state = self.state.lock();
        loop {
            if state.items.is_empty() {
                if state.closed {
                    return None;
                }
                self.arrived.wait(&mut state);
                continue;
            }
            match self.policy.decide(&state.candidates, Instant::now()) {
                Decision::Run(mut indices) => {
                    indices.truncate(limit);
                    let batch = state.remove(&indices);
                    if !state.items.is_empty() {
                        // What stays may be a batch for another instance, whose wake-up was spent on this one.
                        self.arrived.notify_one();
                    }
                    return Some(batch);
                }
                Decision::WaitUntil(time) => {
                    self.arrived.wait_until(&mut state, time);
                }
                Decision::Wait => self.arrived.wait(&mut state),
            }
        }
    }

    /// Takes at most `limit` requests that the policy would run now. `None` when there are none.
    pub fn try_take(&self, limit: usize) -> Option<Vec<T>> {
        let mut state = self.state.lock();
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
        match indices.is_empty() {
            true => Vec::new(),
            false => state.remove(&indices),
        }
    }

    /// Lets all others of its level before what is as `late` says.
    pub fn delay_where(&self, late: impl Fn(&T) -> bool) {
        let mut state = self.state.lock();
        let State { candidates, items, .. } = &mut *state;
        for (candidate, item) in candidates.iter_mut().zip(items.iter()) {
            candidate.priority |= u32::from(late(item));
        }
    }

    /// No more work will come: instance threads end when the queue is empty.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.arrived.notify_all();
    }
}

// === impl State ===

impl<T> State<T> {
    fn remove(&mut self, indices: &[usize]) -> Vec<T> {
        if let [index] = *indices {
            self.candidates.remove(index);
            return vec![self.items.remove(index)];
        }
        let mut taken: Vec<Option<T>> = indices.iter().map(|_| None).collect();
        let place = |index: usize| indices.iter().position(|&i| i == index);
        let (candidates, items) = (std::mem::take(&mut self.candidates), std::mem::take(&mut self.items));
        for (index, (candidate, item)) in candidates.into_iter().zip(items).enumerate() {
            match place(index) {
                Some(place) => taken[place] = Some(item),
                None => {
                    self.candidates.push(candidate);
                    self.items.push(item);
                }
            }
        }
        taken.into_iter().flatten().collect()
    }
}

// === impl Permit ===

impl<T> Drop for Permit<T> {
    fn drop(&mut self) {
        self.queue.state.lock().permits_out -= 1;
        self.queue.room_freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OneAtATime;
    use std::time::Duration;

    /// Takes pairs, newest first, and waits for a second one for a while.
    struct Pairs;

    impl BatchPolicy for Pairs {
        fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision {
            let patience = waiting[0].arrived + Duration::from_millis(20);
            match waiting.len() {
                1 if now < patience => Decision::WaitUntil(patience),
                1 => Decision::Run(vec![0]),
                n => Decision::Run(vec![n - 1, 0]),
            }
        }

        fn max_rows(&self) -> u32 {
            2
        }
    }

    fn candidate() -> Candidate {
        Candidate { arrived: Instant::now(), priority: 0, description: Description::exact(&[]) }
    }

    #[test]
    fn batches_come_in_the_order_of_the_decision() {
        let queue = WorkQueue::new(Box::new(Pairs), 8);
        for item in 0..5 {
            queue.push(candidate(), item);
        }
        assert_eq!(queue.take(usize::MAX), Some(vec![4, 0]));
        assert_eq!(queue.take(usize::MAX), Some(vec![3, 1]));
        assert_eq!(queue.take(usize::MAX), Some(vec![2]), "after its patience has run out");
        queue.close();
        assert_eq!(queue.take(usize::MAX), None);
    }

    #[test]
    fn no_more_is_taken_than_the_limit() {
        let queue = WorkQueue::new(Box::new(Pairs), 8);
        assert_eq!(queue.try_take(1), None);
        for item in 0..3 {
            queue.push(candidate(), item);
        }
        assert_eq!((queue.take(1), queue.try_take(2)), (Some(vec![2]), Some(vec![1, 0])));
        queue.push(candidate(), 3);
        assert_eq!(queue.try_take(2), None, "the policy would wait for a second one");
    }

    #[test]
    fn a_closed_queue_is_emptied_first() {
        let queue = WorkQueue::new(Box::new(OneAtATime), 8);
        queue.push(candidate(), "last");
        queue.close();
        assert_eq!(queue.take(usize::MAX), Some(vec!["last"]));
        assert_eq!(queue.take(usize::MAX), None);
    }

    #[test]
    fn work_wakes_idle_instances() {
        let queue = WorkQueue::new(Box::new(OneAtATime), 8);
        let takers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                std::thread::spawn(move || queue.take(usize::MAX))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(20));
        for item in 0..3 {
            queue.push(candidate(), item);
        }
        let mut taken: Vec<_> = takers.into_iter().flat_map(|t| t.join().unwrap().unwrap()).collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2]);
    }

    #[tokio::test]
    async fn room_follows_permits() {
        let queue: Arc<WorkQueue<()>> = WorkQueue::new(Box::new(OneAtATime), 2);
        let first = queue.try_permit().unwrap();
        let _second = queue.permit();
        assert!(queue.try_permit().is_none());
        let waiting = tokio::time::timeout(Duration::from_millis(20), queue.room()).await;
        assert!(waiting.is_err(), "no room while all permits are out");
        drop(first);
        assert_eq!(queue.room().await, 1);
    }
}
