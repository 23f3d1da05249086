//! Counts a request's step, in the statistics and in the request's ledger.

use std::time::Duration;

use trireme_engine::{ExecuteResponse, ExecuteTiming};
use trireme_inference::{Completed, Hop, UnixMicros};
use trireme_telemetry::steps::Computed;

use crate::hosted::{HostedModel, Pending};

// === impl HostedModel ===

impl HostedModel {
    /// Counts a request whose step is done, before its result leaves the worker. `first` is its only response; of several, the
    /// first was counted before.
    pub(crate) fn count_completed(&self, pending: &Pending, response: &ExecuteResponse, first: bool) {
        let timing = &response.timing;
        let now = UnixMicros::now();
        let transit = pending.received_at.since(pending.message.sent_at);
        let completed = Completed {
            lane: pending.message.lane(),
            rows: pending.description.rows,
            tokens: pending.description.tokens(),
            batch_size: timing.batch_size,
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

    /// Counts how much of their time the requests of a batch have left that begins now.
    pub(crate) fn count_time_left<'a>(&self, batch: impl Iterator<Item = &'a Pending>) {
        let now = UnixMicros::now();
        self.statistics.record(|counters| {
            for Pending { message, .. } in batch {
                let granted = message.deadline.since(message.sent_at) + message.ledger.spent();
                counters.time_left[message.lane() as usize].record(message.deadline.since(now), granted);
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
            each_text: response.each_text.clone(),
            cached: Default::default(),
            equivalent: Vec::new(),
            space: self.standing.as_ref().and_then(|standing| standing.space.clone()),
        }
    }
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
