//! The thread of an instance that works step by step. Between two steps, requests join as far as there is room,
//! requests that are cancelled or past their deadline leave, and results are sent on.
//!
//! Not here: how a result is sent on (`completion`).

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use trireme_inference::{InferError, UnixMicros};

use crate::canary::Streak;
use crate::cancel::{CancelFlag, unwanted};
use crate::completion::{Completion, SendParts};
use crate::instance::{Outage, Progress, StepwiseInstance, Ticket, one_response, panicked};
use crate::model::{Model, Work, conclude};
use crate::outage::is_out;
use crate::request::{ExecuteRequest, ExecuteResponse, ExecuteTiming};
use crate::watchdog::{Callers, ExecutionLimit};

/// An instance and the requests within it.
pub(crate) struct Stepper<C: Completion> {
    model: Arc<Model<C>>,
    instance: Box<dyn StepwiseInstance>,
    in_hand: BTreeMap<Ticket, InHand<C>>,
    next: Ticket,
    /// Number of the queue's calls that this instance has followed.
    calls: u64,
    streak: Streak,
    outage: Option<watch::Receiver<Outage>>,
}

/// A request within the instance.
struct InHand<C: Completion> {
    exit: Exit<C>,
    /// The handle that can release the request; nothing can release the canary request.
    held: Option<C::Holding>,
    joined: Instant,
    cancelled: CancelFlag,
    deadline: UnixMicros,
    /// Whether the request has to run alone.
    alone: bool,
}

/// Where a request's answer goes.
enum Exit<C: Completion> {
    /// The answer is sent as one response.
    Whole(Box<C>),
    /// Parts go to the task that sends them.
    InParts(C::PartSender),
    /// The answer is not sent: it is the canary request's.
    Canary,
}

// === impl Stepper ===

impl<C: Completion> Stepper<C> {
    pub fn new(model: Arc<Model<C>>, instance: Box<dyn StepwiseInstance>) -> Stepper<C> {
        let outage = instance.outage();
        Stepper { model, instance, in_hand: BTreeMap::new(), next: 0, calls: 0, streak: Streak::default(), outage }
    }

    /// Works until the queue is closed and no request is left in the instance.
    pub fn run(mut self) {
        while self.take_in() {
            self.drop_unwanted();
            if !self.in_hand.is_empty() {
                self.step();
            }
        }
    }

    /// Lets requests join as far as there is room. Waits for a request only if the instance is empty. Returns `false` when no
    /// more requests will come.
    fn take_in(&mut self) -> bool {
        if self.model.executions.broken() {
            // The requests that wait are given back to the bus.
            return !self.in_hand.is_empty();
        }
        if self.streak.is_due() {
            self.enter_canary();
        }
        if self.in_hand.is_empty() {
            self.model.wait_out(self.outage.as_ref());
            let Some(first) = self.model.queue.take(1, &mut self.calls) else { return false };
            match first.is_empty() {
                _ if is_out(self.outage.as_ref()) => self.model.return_work(first),
                true => self.enter_canary(),
                false => self.join(first),
            }
        }
        loop {
            if self.in_hand.values().any(|request| request.alone) {
                return true;
            }
            let room = self.call(|instance| instance.room()).unwrap_or(0);
            if room == 0 {
                return true;
            }
            let Some(work) = self.model.queue.try_take(room) else { return true };
            self.join(work);
        }
    }

    fn join(&mut self, work: Vec<Work<C>>) {
        let joined = Instant::now();
        for (request, pending) in self.model.begin(work, joined) {
            let (held, alone) = (pending.held(), pending.is_alone());
            let exit = match request.in_parts {
                true => Exit::InParts(pending.into_parts()),
                false => Exit::Whole(Box::new(pending)),
            };
            self.enter(request, exit, held, alone, joined);
        }
    }

    fn enter_canary(&mut self) {
        if let Some(canary) = self.model.canary_request().cloned() {
            self.enter(canary, Exit::Canary, None, false, Instant::now());
        }
    }

    fn enter(
        &mut self,
        request: ExecuteRequest,
        exit: Exit<C>,
        held: Option<C::Holding>,
        alone: bool,
        joined: Instant,
    ) {
        let ticket = self.next;
        self.next += 1;
        let (cancelled, deadline) = (request.cancelled.clone(), request.deadline);
        self.in_hand.insert(ticket, InHand { exit, held, joined, cancelled, deadline, alone });
        // A panic has already removed the request from `in_hand`.
        if let Some(Err(error)) = self.call(|instance| instance.join(ticket, request)) {
            self.conclude(ticket, Err(error));
        }
    }

    /// Removes requests that were cancelled or whose deadline has passed.
    fn drop_unwanted(&mut self) {
        let unwanted = self.in_hand.iter().filter_map(|(&ticket, request)| {
            let error = unwanted(&request.cancelled, request.deadline)?;
            Some((ticket, error))
        });
        for (ticket, error) in unwanted.collect::<Vec<_>>() {
            self.call(|instance| instance.leave(ticket));
            self.conclude(ticket, Err(error));
        }
    }

    fn step(&mut self) {
        for (ticket, progress) in self.call(|instance| instance.step()).unwrap_or_default() {
            match progress {
                Progress::Done(result) => self.conclude(ticket, result),
                Progress::Part(outputs, parameters) => {
                    let Some(request) = self.in_hand.get(&ticket) else { continue };
                    let timing = request.timing(ExecuteTiming::default());
                    let sent = match &request.exit {
                        Exit::Canary => true,
                        Exit::InParts(parts) => {
                            parts.send(ExecuteResponse { outputs, timing, parameters, ..ExecuteResponse::default() })
                        }
                        // The client takes one answer, but the model gives it in parts.
                        Exit::Whole(_) => {
                            self.call(|instance| instance.leave(ticket));
                            self.conclude(ticket, Err(one_response()));
                            continue;
                        }
                    };
                    if !sent {
                        // An earlier part could not be sent: the request has ended with that error.
                        self.call(|instance| instance.leave(ticket));
                        self.in_hand.remove(&ticket);
                    }
                }
            }
        }
    }

    /// Completes a request that has left the instance.
    fn conclude(&mut self, ticket: Ticket, result: Result<ExecuteResponse, InferError>) {
        let Some(request) = self.in_hand.remove(&ticket) else {
            return tracing::warn!(model = %self.model.key, ticket, "model instance answered a request that it does not have");
        };
        let result = result.map(|response| {
            let timing = request.timing(response.timing);
            ExecuteResponse { timing, ..response }
        });
        if let (Ok(response), Exit::Whole(_) | Exit::InParts(_)) = (&result, &request.exit) {
            self.model.count_step(&response.timing);
        }
        if !matches!(request.exit, Exit::Canary) {
            match &result {
                Ok(_) => self.model.note_run(&mut self.streak, Ok(())),
                Err(error) if unwanted(&request.cancelled, request.deadline).is_none() => {
                    self.model.note_run(&mut self.streak, Err(error.code));
                }
                Err(_) => {}
            }
        }
        match request.exit {
            Exit::Whole(pending) => conclude(*pending, result),
            Exit::InParts(parts) => parts.end(result),
            Exit::Canary => drop(self.model.judge_canary(result.map(drop))),
        }
    }

    /// Calls the instance. A panic fails every request in it, because their state is unknown then.
    fn call<T>(&mut self, call: impl FnOnce(&mut dyn StepwiseInstance) -> T) -> Option<T> {
        let instance = &mut self.instance;
        // Each call counts as an execution of all requests: a call that does not end holds up all of them.
        let held = self.in_hand.values().filter_map(|request| request.held.clone()).collect();
        let execution = self.model.executions.begin(held, Callers::default(), ExecutionLimit::USUAL);
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| call(instance.as_mut())));
        drop(execution);
        if let Ok(result) = result {
            return Some(result);
        }
        tracing::error!(model = %self.model.key, "model instance panicked");
        let tickets: Vec<_> = self.in_hand.keys().copied().collect();
        for ticket in tickets {
            // A second panic changes nothing: the request is removed anyway.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| self.instance.leave(ticket)));
            self.conclude(ticket, Err(panicked()));
        }
        None
    }
}

// === impl InHand ===

impl<C: Completion> InHand<C> {
    /// The timing of a request in the ledger: the time from joining to leaving counts as its run.
    fn timing(&self, timing: ExecuteTiming) -> ExecuteTiming {
        let others = timing.compute_input + timing.compute_output;
        let compute_infer = self.joined.elapsed().saturating_sub(others);
        ExecuteTiming { compute_infer, batch_size: timing.batch_size.max(1), ..timing }
    }
}
