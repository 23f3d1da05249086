//! A finished trace as records.
//!
//! The gateway knows when it sent a request and when the answer came. In between there are the times that the ledger has: how
//! long each step waited and computed. A step begins when the steps are done whose tensors it takes.

use bytes::Bytes;
use trireme_inference::{Hop, ModelKey, Step, UnixMicros};
use trireme_protocol::trace_file::{Activity, TraceRecords, TracedModel};

use super::trace::{Trace, timestamps};

/// A step's way through its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepTimes {
    /// When it was sent to its queue.
    queued: UnixMicros,
    compute_start: UnixMicros,
    input_end: UnixMicros,
    output_start: UnixMicros,
    compute_end: UnixMicros,
}

/// When the steps of a request that was sent at `sent_at` and ended at `ended` took place. Those without a hop are left
/// out: they were not executed.
fn times<'a>(
    steps: &'a [Step],
    hops: &[Hop],
    sent_at: UnixMicros,
    ended: UnixMicros,
) -> Vec<(&'a ModelKey, StepTimes)> {
    let mut hops: Vec<&Hop> = hops.iter().collect();
    let mut done: Vec<(&Step, UnixMicros)> = Vec::with_capacity(steps.len());
    let mut found = Vec::with_capacity(steps.len());
    for step in steps {
        let Some(position) = hops.iter().position(|hop| hop.model == step.model.name) else { continue };
        let hop = hops.remove(position);
        let feeds = |before: &Step| {
            before.outputs.iter().any(|output| step.inputs.iter().any(|input| input.tensor == output.tensor))
        };
        let before = done.iter().filter(|(before, _)| feeds(before)).map(|(_, end)| *end);
        let queued = before.max().unwrap_or(sent_at);
        // Clocks and rounding must not move a step behind its request.
        let after = |start: UnixMicros, micros: u64| UnixMicros(start.0.saturating_add(micros)).min(ended.max(start));
        let compute_start = after(queued, hop.transit_us.saturating_add(hop.queue_us));
        let input_end = after(compute_start, hop.compute_input_us);
        let output_start = after(input_end, hop.compute_infer_us);
        let compute_end = after(output_start, hop.compute_output_us);
        done.push((step, compute_end));
        found.push((&step.model, StepTimes { queued, compute_start, input_end, output_start, compute_end }));
    }
    found
}

// === impl Trace ===

impl Trace {
    /// How many traces this is in the file: one, and one for each step of an ensemble.
    pub fn count(&self) -> u64 {
        match &self.sent {
            Some((route, _)) if route.is_ensemble() => 1 + route.remaining().len() as u64,
            _ => 1,
        }
    }

    /// The bytes of tensors that it keeps.
    pub fn bytes(&self) -> u64 {
        self.inputs.iter().chain(&self.outputs).map(|tensor| tensor.data().len() as u64).sum()
    }

    /// The records of this trace, whose number is `id`; the steps of an ensemble have the numbers after it.
    pub fn records(&self, id: u64) -> Bytes {
        let mut records = TraceRecords::default();
        let request_id = &self.request_id;
        if self.level.timestamps {
            self.arrival(id, &mut records);
        }
        records.model(id, TracedModel { model: &self.model, request_id, parent: None });
        let steps = self
            .sent
            .as_ref()
            .map_or_else(Vec::new, |(route, sent_at)| times(route.remaining(), &self.ledger.0, *sent_at, self.ended));
        if self.level.timestamps {
            self.handling(id, &steps, &mut records);
        }
        let tensors = [(Activity::QueueInput, &self.inputs), (Activity::BackendOutput, &self.outputs)];
        for (activity, tensors) in tensors {
            tensors.iter().for_each(|tensor| records.tensor(id, activity, tensor));
        }
        if self.is_ensemble() {
            for ((model, times), child) in steps.iter().zip(id + 1..) {
                records.model(child, TracedModel { model, request_id, parent: Some(id) });
                if self.level.timestamps {
                    records.timestamp(child, "REQUEST_START", times.queued);
                    executed(child, times, &mut records);
                    records.timestamp(child, "INFER_RESPONSE_COMPLETE", times.compute_end);
                    records.timestamp(child, "REQUEST_END", times.compute_end);
                }
            }
        }
        records.into_bytes()
    }

    fn is_ensemble(&self) -> bool {
        self.sent.as_ref().is_some_and(|(route, _)| route.is_ensemble())
    }

    /// When the request came. Readers of Triton's files expect these points before the record of the model.
    fn arrival(&self, id: u64, records: &mut TraceRecords) {
        let [receive_start, receive_end, ..] = timestamps(self.port);
        let begun = self.times.begun();
        let received = self.times.received().clamp(begun, self.started.max(begun));
        records.timestamp(id, receive_start, begun);
        records.timestamp(id, receive_end, received);
    }

    /// The points in time between the request's arrival and the end of its answer, in their order.
    fn handling(&self, id: u64, steps: &[(&ModelKey, StepTimes)], records: &mut TraceRecords) {
        let [.., send_start, send_end] = timestamps(self.port);
        records.timestamp(id, "REQUEST_START", self.started);
        match (self.is_ensemble(), steps.first()) {
            (false, Some((_, times))) => executed(id, times, records),
            _ => {
                if let Some((_, sent_at)) = &self.sent {
                    records.timestamp(id, "QUEUE_START", *sent_at);
                }
            }
        }
        self.responses.iter().for_each(|&at| records.timestamp(id, "INFER_RESPONSE_COMPLETE", at));
        records.timestamp(id, "REQUEST_END", self.ended);
        records.timestamp(id, send_start, self.times.sending().clamp(self.ended, self.sent_off));
        records.timestamp(id, send_end, self.sent_off);
    }
}

/// A step's time in the queue and in the model.
fn executed(id: u64, times: &StepTimes, records: &mut TraceRecords) {
    records.timestamp(id, "QUEUE_START", times.queued);
    records.timestamp(id, "COMPUTE_START", times.compute_start);
    records.timestamp(id, "COMPUTE_INPUT_END", times.input_end);
    records.timestamp(id, "COMPUTE_OUTPUT_START", times.output_start);
    records.timestamp(id, "COMPUTE_END", times.compute_end);
}

#[cfg(test)]
mod tests {
    use trireme_inference::{StepInput, StepOutput};

    use super::*;

    fn step(model: &str, inputs: &[&str], outputs: &[&str]) -> Step {
        let input = |name: &&str| StepInput {
            name: (*name).into(),
            tensor: (*name).into(),
            optional: false,
            reshapes: Vec::new(),
            crosses: false,
        };
        let output = |name: &&str| StepOutput { name: (*name).into(), tensor: (*name).into() };
        Step {
            model: ModelKey { name: model.into(), version: 1 },
            inputs: inputs.iter().map(input).collect(),
            outputs: outputs.iter().map(output).collect(),
            dead: Vec::new(),
            level: 0,
            content: None,
        }
    }

    fn hop(model: &str, queue_us: u64, compute_infer_us: u64) -> Hop {
        Hop { model: model.into(), queue_us, compute_infer_us, ..Hop::default() }
    }

    /// When steps were queued and when they ended.
    fn spans(steps: &[Step], hops: &[Hop], ended: u64) -> Vec<(String, u64, u64)> {
        let found = times(steps, hops, UnixMicros(100), UnixMicros(ended));
        found.iter().map(|(model, times)| (model.name.to_string(), times.queued.0, times.compute_end.0)).collect()
    }

    #[test]
    fn steps_begin_when_the_steps_that_feed_them_end() {
        let steps = [
            step("a", &["x"], &["ids"]),
            step("left", &["ids"], &["l"]),
            step("right", &["ids"], &["r"]),
            step("join", &["l", "r"], &["y"]),
        ];
        // Hops of branches come in any order.
        let hops = [hop("a", 1, 9), hop("right", 0, 50), hop("left", 5, 5), hop("join", 2, 8)];
        let expected = [("a", 100, 110), ("left", 110, 120), ("right", 110, 160), ("join", 160, 170)]
            .map(|(model, start, end)| (model.to_owned(), start, end));
        assert_eq!(spans(&steps, &hops, 1000), expected);
        let cut = spans(&steps, &hops, 150);
        assert_eq!(cut.last(), Some(&("join".to_owned(), 150, 150)), "no step ends after its request");
        assert_eq!(spans(&steps, &hops[..1], 1000), expected[..1], "the others were not executed");
    }
}
