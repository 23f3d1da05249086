//! The thread of an instance: takes the next batch, executes it, counts it, and concludes each request. A guest does the same with one
//! request on the thread that brings it. A request of several runs has one run at a time, and the batches that wait go between them.
//!
//! Not here: instances that work step by step (`stepwise`), and the treatment of a result or an error (`completion`).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use trireme_inference::{FailureReason, InferError, Lane, request_timeout};

use crate::backend::{BackgroundInstance, Instance};
use crate::background::{PATIENCE, Share, lower_priority, priorities_count};
use crate::batching::{Candidate, Description};
use crate::canary::Streak;
use crate::cancel::expired;
use crate::completion::Completion;
use crate::division::Division;
use crate::guests::{Guest, Nested, Place, SHORT_RUN, reserve_thread};
use crate::instance::{ModelInstance, Stop, panicked};
use crate::model::{Model, Threads, Work, conclude};
use crate::outage::is_out;
use crate::queue::Seat;
use crate::queue::{Role, Taken};
use crate::request::{ExecuteRequest, ExecuteResponse};
use crate::runs::Runs;
use crate::stepwise::Stepper;
use crate::threads::spawn;
use crate::watchdog::{Callers, ExecutionLimit};

/// The worker's reason for ending after an instance's thread has ended by a panic.
const FAILURE: &str = "instance that panicked";

/// Ends the worker if an instance's thread panics outside the model's code: no thread would take the model's waiting requests.
struct EndsOnPanic<C: Completion>(Arc<Model<C>>);

impl<C: Completion> Drop for EndsOnPanic<C> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let EndsOnPanic(model) = self;
            tracing::error!(model = %model.key, "an instance's thread panicked: this worker gives its work back and ends");
            model.give_up(FAILURE);
        }
    }
}

/// A request that was executed, and is still to be concluded.
struct Executed<C> {
    request: ExecuteRequest,
    pending: C,
    result: Result<ExecuteResponse, InferError>,
}

/// A request of several runs, of which some are still to come.
struct Divided<C> {
    request: ExecuteRequest,
    pending: C,
    division: Division,
    /// The time of its runs so far.
    took: Duration,
}

/// An instance in the hands of a thread.
struct Executor<'a> {
    role: Role,
    instance: &'a mut dyn ModelInstance,
    stop: Option<Arc<dyn Stop>>,
    streak: &'a mut Streak,
}

// === impl Executed ===

impl<C: Completion> Executed<C> {
    fn conclude(self) {
        let Executed { request, pending, result } = self;
        match result.is_err().then(|| request.unwanted()).flatten() {
            // It may have been stopped for that.
            Some(error) => pending.fail(error, FailureReason::Other),
            None => conclude(pending, result),
        }
    }
}

// === impl Divided ===

impl<C: Completion> Divided<C> {
    /// Waits for its next turn: behind the others, or before them where no other may run between its runs.
    fn wait_in(self, divided: &mut VecDeque<Divided<C>>) {
        match self.pending.is_alone() {
            true => divided.push_front(self),
            false => divided.push_back(self),
        }
    }
}

// === impl Model ===

impl<C: Completion> Model<C> {
    /// Starts a thread for each instance. The threads end when the queue is closed and empty.
    pub fn start(
        self: &Arc<Self>,
        instances: Vec<Instance>,
        background: Vec<BackgroundInstance>,
    ) -> Result<Threads, std::io::Error> {
        let mut threads = Vec::new();
        for (index, instance) in instances.into_iter().enumerate() {
            let model = self.clone();
            threads.push(spawn(format!("{}-{index}", self.key.name), move || model.run_instance(instance))?);
        }
        let background = if priorities_count() { background } else { Vec::new() };
        for (index, make) in background.into_iter().enumerate() {
            let model = self.clone();
            threads.push(spawn(format!("bulk-{index}-{}", self.key.name), move || model.run_background(make))?);
        }
        Ok(threads)
    }

    /// Takes a request in: executes it at once by a guest, if one may, or puts it into the queue.
    pub fn enter(&self, lane: Lane, candidate: Candidate, work: Work<C>) {
        let passes = self.guests.may_take(&work.request.inputs) && self.queue.passes(lane, &candidate, SHORT_RUN);
        let threads = || self.tasks.runtime().metrics().num_workers();
        match passes.then(|| self.guests.take(threads())).flatten() {
            Some((guest, place)) => self.run_guest(guest, place, work),
            None => self.wait(lane, candidate, work),
        }
    }

    /// Puts a request into the queue, in its owner's part of the lane.
    pub fn wait(&self, lane: Lane, candidate: Candidate, work: Work<C>) {
        let seat = Seat { owner: work.request.owner.clone(), deadline: work.request.deadline };
        self.queue.push_at(lane, candidate, seat, work);
    }

    fn run_guest(&self, mut guest: Guest, place: Place, work: Work<C>) {
        let (instance, streak) = (guest.instance.as_mut(), &mut guest.streak);
        let mut executor = Executor { role: Role::Main, instance, stop: None, streak };
        let executed = self.execute_batch(&mut executor, self.begin(vec![work], Instant::now()));
        if !guest.streak.is_due() || self.run_canary(guest.instance.as_mut()) {
            self.guests.return_guest(guest);
        }
        drop(place);
        let _nested = Nested::begin();
        executed.into_iter().for_each(Executed::conclude);
    }

    /// The life of the thread of an instance for bulk requests: it makes the instance when the first bulk request comes.
    fn run_background(self: Arc<Self>, make: BackgroundInstance) {
        let runtime = self.tasks.runtime().clone();
        let _runtime = runtime.enter();
        let _watch = EndsOnPanic(self.clone());
        if !self.queue.bulk_comes() {
            return;
        }
        let (model, otherwise) = (&self.key, "bulk requests run between live ones, which then wait for them");
        if let Err(error) = lower_priority() {
            tracing::warn!(%model, %error, "the priority of a thread cannot be lowered: {otherwise}");
            return;
        }
        match make() {
            Ok(instance) => {
                tracing::info!(%model, "an instance for bulk requests is ready");
                self.queue.add_background();
                self.run_batches(Role::Background, instance);
            }
            Err(error) => tracing::warn!(%model, %error, "no instance for bulk requests could be made: {otherwise}"),
        }
    }

    /// The life of an instance's thread, until the queue is closed.
    fn run_instance(self: Arc<Self>, instance: Instance) {
        if self.guests.is_empty() {
            reserve_thread();
        }
        // Sending results on may need the runtime's timers and channels.
        let runtime = self.tasks.runtime().clone();
        let _runtime = runtime.enter();
        let _watch = EndsOnPanic(self.clone());
        match instance {
            Instance::Batch(instance) => self.run_batches(Role::Main, instance),
            Instance::Stepwise(instance) => Stepper::new(self, instance).run(),
        }
    }

    /// Takes a batch, executes it, sends the results on. Between two batches it executes a run of a divided request.
    fn run_batches(self: Arc<Self>, role: Role, mut instance: Box<dyn ModelInstance>) {
        let (stop, mut calls, mut streak) = (instance.stop(), 0, Streak::default());
        let (outage, mut share) = (instance.outage(), Share::default());
        let late = |work: &Work<C>, takes| work.pending.is_too_late(takes);
        let mut divided = VecDeque::<Divided<C>>::new();
        loop {
            self.wait_out(outage.as_ref());
            let taken = match divided.front() {
                None => match self.queue.take_run(role, &mut calls, late) {
                    None => return,
                    taken => taken,
                },
                // It has the instance for itself, and is before all others.
                Some(first) if first.pending.is_alone() => None,
                Some(_) => self.queue.try_take_run(role, &mut calls, late),
            };
            let mut executor = Executor { role, instance: instance.as_mut(), stop: stop.clone(), streak: &mut streak };
            let mut called = false;
            match taken {
                None => {}
                Some(Taken::Late(late)) => {
                    late.into_iter().for_each(|work| work.pending.fail(expired(), FailureReason::Other));
                }
                Some(Taken::Batch(batch, _)) if is_out(outage.as_ref()) => self.return_work(batch),
                Some(Taken::Batch(batch, _)) if batch.is_empty() => called = true,
                Some(Taken::Batch(batch, mut run)) => {
                    let execute = || {
                        let batch = self.divide(&mut executor, self.begin(batch, Instant::now()), &mut divided);
                        let executed = self.execute_batch(&mut executor, batch);
                        let count = executed.len();
                        executed.into_iter().for_each(Executed::conclude);
                        count
                    };
                    run.executed = by_role(role, &mut share, execute);
                }
            }
            if let Some(next) = divided.pop_front() {
                let rest = by_role(role, &mut share, || self.execute_part(&mut executor, next));
                rest.into_iter().for_each(|rest| rest.wait_in(&mut divided));
            }
            if share.is_too_little() {
                self.queue.background_starves();
            }
            // A broken instance takes no waiting requests: the worker hands them back.
            if (called || streak.is_due()) && !self.run_canary(instance.as_mut()) {
                C::give_back(divided.into_iter().map(|divided| divided.pending).collect());
                return;
            }
        }
    }

    /// The batch without a request that takes several runs, which waits in `divided` for its turns.
    fn divide(
        &self,
        executor: &mut Executor<'_>,
        mut batch: Vec<(ExecuteRequest, C)>,
        divided: &mut VecDeque<Divided<C>>,
    ) -> Vec<(ExecuteRequest, C)> {
        let [(request, _)] = batch.as_slice() else { return batch };
        let division = self.caught(|| executor.instance.divide(request));
        if let Some(division) = division.transpose()
            && let Some((request, pending)) = batch.pop()
        {
            match division {
                Ok(division) => Divided { request, pending, division, took: Duration::ZERO }.wait_in(divided),
                Err(error) => Executed { request, pending, result: Err(error) }.conclude(),
            }
        }
        batch
    }

    /// Executes the next run of a divided request. Gives the request back if more are to come.
    fn execute_part(&self, executor: &mut Executor<'_>, divided: Divided<C>) -> Option<Divided<C>> {
        let Divided { request, pending, mut division, mut took } = divided;
        let mut ran = request.unwanted().map_or(Ok(()), Err);
        if ran.is_ok()
            && let Some(parts) = division.next()
        {
            let descriptions: Vec<_> = parts.iter().map(|part| self.queue.describe(&part.inputs)).collect();
            let (_run, began) = (self.queue.begin_part(executor.role, &descriptions), Instant::now());
            ran = division.add(self.execute(executor, &parts, &descriptions, pending.held().into_iter().collect()));
            took += began.elapsed();
        }
        if ran.is_ok() && !division.is_over() {
            return Some(Divided { request, pending, division, took });
        }
        let result = ran.and_then(|()| self.caught(|| division.join()));
        if result.is_ok() {
            self.queue.ran_in_parts(executor.role, &pending.description(), took);
        }
        Executed { request, pending, result }.conclude();
        None
    }

    /// Executes the requests of a batch.
    fn execute_batch(&self, executor: &mut Executor<'_>, batch: Vec<(ExecuteRequest, C)>) -> Vec<Executed<C>> {
        let (requests, mut waiting): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        if requests.is_empty() {
            return Vec::new();
        }
        let held = waiting.iter().filter_map(C::held).collect();
        let descriptions: Vec<_> = waiting.iter().map(C::description).collect();
        let results = self.execute(executor, &requests, &descriptions, held);
        C::ran_together(&mut waiting);
        let executed = requests.into_iter().zip(waiting).zip(results);
        executed.map(|((request, pending), result)| Executed { request, pending, result }).collect()
    }

    /// Executes requests together, and counts their run: whatever is answered has been counted before.
    fn execute(
        &self,
        executor: &mut Executor<'_>,
        requests: &[ExecuteRequest],
        descriptions: &[Description],
        held: Vec<C::Holding>,
    ) -> Vec<Result<ExecuteResponse, InferError>> {
        let Executor { role, instance, stop, streak } = executor;
        let callers = requests.iter().map(|request| (request.cancelled.clone(), request.deadline)).collect();
        let callers = Callers { waiting: callers, stop: stop.clone() };
        let asked = requests.iter().filter_map(|request| request_timeout(&request.parameters)).max();
        let times = if *role == Role::Background { PATIENCE } else { 1 };
        let patience = ExecutionLimit { times, at_least: asked.unwrap_or_default() };
        let execution = self.executions.begin(held, callers, patience);
        let executed = self.caught(|| Ok(instance.execute(requests)));
        drop(execution);
        let mut results = executed.unwrap_or_else(|error| requests.iter().map(|_| Err(error.clone())).collect());
        // An instance that answers fewer requests than it was given must not leave the others waiting.
        results.resize_with(requests.len(), || Err(InferError::internal("model instance gave no result")));
        let timings = results.iter().map(|result| result.as_ref().ok().map(|response| response.timing));
        self.count(&Runs::of(descriptions.iter().copied().zip(timings)));
        let outcomes = requests.iter().zip(&results).filter_map(|(request, result)| match result {
            Ok(_) => Some(Ok(())),
            Err(error) => request.unwanted().is_none().then_some(Err(error.code)),
        });
        if let Some(outcome) = outcomes.reduce(Result::or) {
            self.note_run(streak, outcome);
        }
        results
    }

    /// The result of a call of the model's code, which may panic.
    fn caught<T>(&self, call: impl FnOnce() -> Result<T, InferError>) -> Result<T, InferError> {
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
            tracing::error!(model = %self.key, "model instance panicked");
            Err(panicked())
        })
    }

    /// Counts an instance's run.
    fn count(&self, runs: &Runs) {
        let (tokens, padding) = runs.tokens();
        self.statistics.record(|counters| {
            runs.executed().for_each(|run| counters.execute(&run));
            counters.tokens += tokens;
            counters.padding_tokens += padding;
        });
    }
}

/// Executes on the thread of an instance of this role. In the background it is measured how much of a CPU the thread gets.
fn by_role<T>(role: Role, share: &mut Share, execute: impl FnOnce() -> T) -> T {
    match role {
        Role::Main => execute(),
        Role::Background => share.of(execute),
    }
}
