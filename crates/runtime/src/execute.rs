//! The thread of an instance: takes the next batch, executes it, counts it, and concludes each request.
//!
//! Not here: instances that work step by step (`stepwise`), and the treatment of a result or an error (`settle`).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trireme_inference::{Completed, FailureReason, Hop, InferError, UnixMicros};
use trireme_telemetry::steps::{Computed, ran_together};

use crate::backend::{ExecuteRequest, ExecuteResponse, ExecuteTiming, Instance, ModelInstance, Stop};
use crate::canary::Streak;
use crate::hosted::{HostedModel, Pending, Work, refused};
use crate::lateness::begins_too_late;
use crate::outage::is_out;
use crate::queue::Taken;
use crate::queue_policy::Patience;
use crate::statistics::runs::{Runs, executed};
use crate::stepwise::Stepper;
use crate::watchdog::Abort;

/// The worker's reason for ending after an instance's thread has ended by a panic.
const FAILURE: &str = "instance that panicked";

/// Ends the worker if an instance's thread panics outside the model's code: no thread would take the model's waiting requests.
struct EndsOnPanic(Arc<HostedModel>);

impl Drop for EndsOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let EndsOnPanic(model) = self;
            tracing::error!(model = %model.key, "an instance's thread panicked: this worker gives its work back and ends");
            model.executions.set_broken();
            model.intake.cancel();
            model.worker.tasks.fail(FAILURE);
        }
    }
}

// === impl HostedModel ===

impl HostedModel {
    /// The life of an instance's thread, until the queue is closed.
    pub fn run_instance(self: Arc<Self>, instance: Instance) {
        // Sending results on may need the runtime's timers and channels.
        let runtime = self.worker.tasks.runtime().clone();
        let _runtime = runtime.enter();
        let _watch = EndsOnPanic(self.clone());
        match instance {
            Instance::Batch(instance) => self.run_batches(instance),
            Instance::Stepwise(instance) => Stepper::new(self, instance).run(),
        }
    }

    /// Takes a batch, executes it, sends the results on.
    fn run_batches(self: Arc<Self>, mut instance: Box<dyn ModelInstance>) {
        let (stop, mut calls, mut streak) = (instance.stop(), 0, Streak::default());
        let outage = instance.outage();
        let late = |work: &Work, takes| begins_too_late(&work.pending.message, takes, UnixMicros::now());
        loop {
            self.wait_out(outage.as_ref());
            let Some(taken) = self.queue.take_run(&mut calls, late) else { return };
            let called = match taken {
                Taken::Late(late) => {
                    late.into_iter().for_each(|work| self.drop_late(work.pending));
                    false
                }
                Taken::Batch(batch, _) if is_out(outage.as_ref()) => {
                    self.return_work(batch);
                    false
                }
                Taken::Batch(batch, _) if batch.is_empty() => true,
                Taken::Batch(batch, mut run) => {
                    run.executed = self.run_batch(instance.as_mut(), stop.as_ref(), &mut streak, batch);
                    false
                }
            };
            // A broken instance takes no waiting requests: the worker hands them back.
            if (called || streak.is_due()) && !self.run_canary(instance.as_mut()) {
                return;
            }
        }
    }

    /// The requests of a batch that are still to be executed.
    pub(crate) fn begin(self: &Arc<Self>, batch: Vec<Work>, started: Instant) -> Vec<(ExecuteRequest, Pending)> {
        let wanted = batch.into_iter().filter_map(|work| self.begin_one(work, started));
        self.count_attempts(wanted.collect())
    }

    /// A request that is about to be executed, unless no client waits for it any more.
    fn begin_one(self: &Arc<Self>, work: Work, started: Instant) -> Option<(ExecuteRequest, Pending)> {
        let Work { request, mut pending, arrived } = work;
        if let Some(error) = request.unwanted() {
            self.fail(pending, error, FailureReason::Other);
            return None;
        }
        if self.patience(&pending.message, UnixMicros::now()) == Patience::Over {
            self.fail(pending, refused(), FailureReason::Rejected);
            return None;
        }
        pending.queued = started.duration_since(arrived);
        pending.stay.span.begin();
        Some((request, pending))
    }

    /// Executes the requests of a batch that clients still wait for, and returns their number.
    fn run_batch(
        self: &Arc<Self>,
        instance: &mut dyn ModelInstance,
        stop: Option<&Arc<dyn Stop>>,
        streak: &mut Streak,
        batch: Vec<Work>,
    ) -> usize {
        let started = Instant::now();
        let (requests, mut waiting): (Vec<_>, Vec<_>) = self.begin(batch, started).into_iter().unzip();
        if requests.is_empty() {
            return 0;
        }
        let deliveries = waiting.iter().map(|pending| pending.delivery.hold.holding()).collect();
        let callers = || requests.iter().map(|request| (request.cancelled.clone(), request.deadline)).collect();
        let abort = stop.map(|stop| Abort { callers: callers(), stop: stop.clone() });
        let execution = self.executions.begin(deliveries, abort);
        let executed = std::panic::catch_unwind(AssertUnwindSafe(|| instance.execute(&requests)));
        drop(execution);
        let mut results = executed.unwrap_or_else(|_| {
            tracing::error!(model = %self.key, "model instance panicked");
            requests.iter().map(|_| Err(panicked())).collect()
        });
        // An instance that answers fewer requests than it was given must not leave the others waiting.
        results.resize_with(requests.len(), || Err(InferError::internal("model instance gave no result")));
        ran_together(waiting.iter_mut().map(|pending| &mut pending.stay.span), requests.len());
        // Whatever is answered has been counted before.
        let timings = results.iter().map(|result| result.as_ref().ok().map(|response| response.timing));
        self.count(&Runs::of(waiting.iter().map(|pending| pending.description).zip(timings)));
        let outcomes = requests.iter().zip(&results).filter_map(|(request, result)| match result {
            Ok(_) => Some(Ok(())),
            Err(error) => request.unwanted().is_none().then_some(Err(error.code)),
        });
        if let Some(outcome) = outcomes.reduce(Result::or) {
            self.note_run(streak, outcome);
        }
        for ((request, pending), result) in requests.iter().zip(waiting).zip(results) {
            match result.is_err().then(|| request.unwanted()).flatten() {
                // It may have been stopped for that.
                Some(error) => self.fail(pending, error, FailureReason::Other),
                None => self.conclude(pending, result),
            }
        }
        requests.len()
    }

    /// A step has ended, with its result or without one.
    pub(crate) fn conclude(self: &Arc<Self>, mut pending: Pending, result: Result<ExecuteResponse, InferError>) {
        match result {
            Ok(response) => {
                self.keep_answer(&mut pending, &response);
                self.finish(pending, response);
            }
            Err(error) => self.fail(pending, error, FailureReason::Backend),
        }
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

    /// Counts a stepwise instance's work for a request from beginning to end as one run.
    pub(crate) fn count_step(&self, timing: &ExecuteTiming) {
        self.statistics.record(|counters| counters.execute(&executed(timing)));
    }

    /// Counts a request whose step is done, before its result leaves the worker. `first` is its only response; of several, the
    /// first was counted before.
    pub(crate) fn count_completed(&self, pending: &Pending, response: &ExecuteResponse, first: bool) {
        let timing = &response.timing;
        let now = UnixMicros::now();
        let transit = pending.received_at.since(pending.message.sent_at);
        let completed = Completed {
            rows: pending.description.rows,
            transit,
            worker_queue: pending.queued,
            compute_input: timing.compute_input,
            compute_infer: timing.compute_infer,
            compute_output: timing.compute_output,
            total: transit + now.since(pending.received_at),
        };
        self.statistics.record(|counters| {
            counters.complete(&completed, now);
            counters.truncated_texts += response.texts.map_or(0, |texts| texts.truncated);
            if first {
                counters.first_response.record(completed.total);
            }
        });
    }

    /// The ledger's entry for a step that was made here.
    pub(crate) fn hop(&self, pending: &Pending, response: &ExecuteResponse) -> Hop {
        let timing = &response.timing;
        Hop {
            model: self.key.name.clone(),
            worker: self.worker.name.clone(),
            transit_us: micros(pending.received_at.since(pending.message.sent_at)),
            queue_us: micros(pending.queued),
            compute_input_us: micros(timing.compute_input),
            compute_infer_us: micros(timing.compute_infer),
            compute_output_us: micros(timing.compute_output),
            batch_size: timing.batch_size,
            texts: response.texts,
        }
    }
}

/// The instance has panicked.
pub(crate) fn panicked() -> InferError {
    InferError::internal("model instance panicked while executing")
}

/// The execution's part in the span of a response.
pub(crate) fn computed(timing: &ExecuteTiming) -> Computed {
    Computed {
        batch_size: timing.batch_size,
        input: timing.compute_input,
        infer: timing.compute_infer,
        output: timing.compute_output,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
