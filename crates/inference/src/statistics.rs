//! Counters of a model version: numbers and times that only grow, and that can be added over processes.
//!
//! Invariants, which clients rely on:
//! - `queue.count` is `request.count`; `compute_input`, `compute_infer` and `compute_output` have the same count. Only
//!   [`Counters::complete`] changes these four.
//! - No value here ever decreases.
//!
//! Not here: where counters are kept and gathered (`runtime`), and how they are shown (`protocol`, the gateway).

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Lane, LaneWork, Latencies, TimeLeft, UnixMicros};

/// Batch sizes with an entry of their own; a further size is counted with the next smaller one.
const MAX_BATCH_SIZES: usize = 1024;

/// How many times an event happened, and how long it took in total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timed {
    /// Number of times.
    pub count: u64,
    /// Total time in nanoseconds.
    pub ns: u64,
}

/// Why a request failed, with Triton's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReason {
    /// A queue was full, or the request waited too long in it.
    Rejected,
    /// No client waited any more.
    Canceled,
    /// Its execution failed.
    Backend,
    /// Anything else.
    Other,
    /// The broker was not reached, or took no work. Triton has no such reason.
    Broker,
}

/// Why a worker dropped a request for which no client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Its deadline has passed.
    Deadline,
    /// It was cancelled.
    Cancelled,
}

/// Times of executions with one batch size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchTimes {
    /// Gathering inputs.
    pub compute_input: Timed,
    /// The run.
    pub compute_infer: Timed,
    /// Splitting outputs.
    pub compute_output: Timed,
}

/// The counts of one model version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Whole requests that succeeded.
    pub request: Latencies,
    /// Their waiting times, on the bus and in the worker.
    pub queue: Latencies,
    /// The part of `queue` spent on the bus: from sending to receiving.
    pub transit: Latencies,
    /// The part of `queue` spent in the worker's own queue.
    pub worker_queue: Latencies,
    /// The part of `queue` of requests in the bulk lane.
    pub bulk_queue: Latencies,
    /// Their execution times in total.
    pub compute: Latencies,
    /// Gathering inputs; each request counts the time of its batch.
    pub compute_input: Latencies,
    /// Running; each request counts the time of its batch.
    pub compute_infer: Latencies,
    /// Splitting outputs; each request counts the time of its batch.
    pub compute_output: Latencies,
    /// From a request until its first response, whether or not more follow.
    pub first_response: Latencies,
    /// Requests that failed.
    pub fail: Timed,
    /// Failed requests by reason, in the order of [`FailureReason::ALL`].
    pub failures: [u64; 5],
    /// Answers found in a cache.
    pub cache_hit: Latencies,
    /// Answers not found in a cache.
    pub cache_miss: Latencies,
    /// Rows of requests that succeeded.
    pub inferences: u64,
    /// Runs.
    pub executions: u64,
    /// When the last request succeeded, in milliseconds since the Unix epoch; 0 for never.
    pub last_inference_ms: u64,
    /// Runs by batch size in rows.
    pub batches: BTreeMap<u32, BatchTimes>,
    /// Rows times length of the executed batches, padding included.
    pub tokens: u64,
    /// The part of `tokens` that is padding.
    pub padding_tokens: u64,
    /// Texts that a tokenizer cut because they were too long.
    pub truncated_texts: u64,
    /// Deliveries that were not the first of their message.
    pub redeliveries: u64,
    /// Messages that a worker gave up.
    pub dead_letters: u64,
    /// Requests that a worker dropped, in the order of [`DropReason::ALL`].
    pub dropped: [u64; 2],
    /// Answers that a gateway sent, errors included.
    pub answered: Latencies,
    /// Loads of a model that was not in memory, for a request.
    pub waking: Latencies,
    /// The work of requests that succeeded, by lane.
    pub work: [LaneWork; 2],
    /// How much of their time requests had left when their runs began, by lane.
    pub time_left: [TimeLeft; 2],
}

/// The counted data of a successful request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Completed {
    /// Its lane.
    pub lane: Lane,
    /// Its rows.
    pub rows: u32,
    /// Its tokens without padding; its rows for a model without tokens.
    pub tokens: u64,
    /// The rows of its batch.
    pub batch_size: u32,
    /// Its time on the bus.
    pub transit: Duration,
    /// Its time in the worker's queue.
    pub worker_queue: Duration,
    /// The time to gather its batch.
    pub compute_input: Duration,
    /// The time to run its batch.
    pub compute_infer: Duration,
    /// The time to split its batch.
    pub compute_output: Duration,
    /// The total time.
    pub total: Duration,
}

/// The counted data of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Executed {
    /// Its rows.
    pub batch_size: u32,
    /// Gathering inputs.
    pub compute_input: Duration,
    /// The run itself.
    pub compute_infer: Duration,
    /// Splitting outputs.
    pub compute_output: Duration,
}

// === impl Timed ===

impl Timed {
    /// Counts one event.
    pub fn record(&mut self, duration: Duration) {
        self.add(Timed { count: 1, ns: u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX) });
    }

    fn add(&mut self, other: Timed) {
        self.count += other.count;
        self.ns = self.ns.saturating_add(other.ns);
    }
}

impl From<&Latencies> for Timed {
    fn from(latencies: &Latencies) -> Timed {
        Timed { count: latencies.count, ns: latencies.ns }
    }
}

// === impl FailureReason ===

impl FailureReason {
    /// All reasons with their labels.
    pub const ALL: [(FailureReason, &'static str); 5] = [
        (FailureReason::Rejected, "REJECTED"),
        (FailureReason::Canceled, "CANCELED"),
        (FailureReason::Backend, "BACKEND"),
        (FailureReason::Other, "OTHER"),
        (FailureReason::Broker, "BROKER"),
    ];
}

// === impl DropReason ===

impl DropReason {
    /// All reasons with their labels.
    pub const ALL: [(DropReason, &'static str); 2] =
        [(DropReason::Deadline, "deadline"), (DropReason::Cancelled, "cancelled")];
}

// === impl Completed ===

impl Completed {
    /// The request's part of its batch.
    fn work(&self) -> LaneWork {
        let batch = self.compute_input + self.compute_infer + self.compute_output;
        let ns = batch.as_nanos() * u128::from(self.rows) / u128::from(self.batch_size.max(self.rows).max(1));
        LaneWork { requests: 1, tokens: self.tokens, ns: u64::try_from(ns).unwrap_or(u64::MAX) }
    }
}

// === impl Counters ===

impl Counters {
    /// Counts a request that was answered from a cache: it did not wait, and no model ran for it.
    pub fn hit(&mut self, lookup: Duration, total: Duration, now: UnixMicros) {
        self.request.record(total);
        self.queue.record(Duration::ZERO);
        self.cache_hit.record(lookup);
        self.last_inference_ms = self.last_inference_ms.max(now.0 / 1000);
    }

    /// Counts a successful request.
    pub fn complete(&mut self, request: &Completed, now: UnixMicros) {
        let Completed {
            lane, rows, transit, worker_queue, compute_input, compute_infer, compute_output, total, ..
        } = *request;
        self.request.record(total);
        self.queue.record(transit + worker_queue);
        if lane == Lane::Bulk {
            self.bulk_queue.record(transit + worker_queue);
        }
        self.transit.record(transit);
        self.worker_queue.record(worker_queue);
        self.compute.record(compute_input + compute_infer + compute_output);
        self.work[lane as usize].add(request.work());
        self.compute_input.record(compute_input);
        self.compute_infer.record(compute_infer);
        self.compute_output.record(compute_output);
        self.inferences += u64::from(rows);
        self.last_inference_ms = self.last_inference_ms.max(now.0 / 1000);
    }

    /// Counts a run.
    pub fn execute(&mut self, run: &Executed) {
        self.executions += 1;
        let known = self.batches.len() < MAX_BATCH_SIZES || self.batches.contains_key(&run.batch_size);
        let neighbour = || self.batches.range(..run.batch_size).next_back().or(self.batches.first_key_value());
        let size = if known { run.batch_size } else { neighbour().map_or(run.batch_size, |(size, _)| *size) };
        let times = self.batches.entry(size).or_default();
        times.compute_input.record(run.compute_input);
        times.compute_infer.record(run.compute_infer);
        times.compute_output.record(run.compute_output);
    }

    /// Counts a request that failed after `took`.
    pub fn fail(&mut self, reason: FailureReason, took: Duration) {
        self.fail.record(took);
        self.failures[reason as usize] += 1;
    }

    /// Counts a request that was dropped because no client waits for it.
    pub fn drop_request(&mut self, reason: DropReason) {
        self.dropped[reason as usize] += 1;
    }

    /// Adds another process's counters.
    pub fn add(&mut self, other: &Counters) {
        let latencies = [
            (&mut self.request, &other.request),
            (&mut self.queue, &other.queue),
            (&mut self.transit, &other.transit),
            (&mut self.worker_queue, &other.worker_queue),
            (&mut self.bulk_queue, &other.bulk_queue),
            (&mut self.compute, &other.compute),
            (&mut self.compute_input, &other.compute_input),
            (&mut self.compute_infer, &other.compute_infer),
            (&mut self.compute_output, &other.compute_output),
            (&mut self.first_response, &other.first_response),
            (&mut self.answered, &other.answered),
            (&mut self.waking, &other.waking),
            (&mut self.cache_hit, &other.cache_hit),
            (&mut self.cache_miss, &other.cache_miss),
        ];
        latencies.into_iter().for_each(|(sum, more)| sum.add(more));
        self.fail.add(other.fail);
        self.failures.iter_mut().zip(other.failures).for_each(|(sum, more)| *sum += more);
        self.dropped.iter_mut().zip(other.dropped).for_each(|(sum, more)| *sum += more);
        self.inferences += other.inferences;
        self.executions += other.executions;
        self.last_inference_ms = self.last_inference_ms.max(other.last_inference_ms);
        self.tokens += other.tokens;
        self.padding_tokens += other.padding_tokens;
        self.work.iter_mut().zip(other.work).for_each(|(sum, more)| sum.add(more));
        self.time_left.iter_mut().zip(&other.time_left).for_each(|(sum, more)| sum.add(more));
        self.truncated_texts += other.truncated_texts;
        self.redeliveries += other.redeliveries;
        self.dead_letters += other.dead_letters;
        for (size, times) in &other.batches {
            let sum = self.batches.entry(*size).or_default();
            sum.compute_input.add(times.compute_input);
            sum.compute_infer.add(times.compute_infer);
            sum.compute_output.add(times.compute_output);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(seed: u64) -> Counters {
        let mut counters = Counters::default();
        for n in 1..=seed {
            let part = Duration::from_micros(n);
            let request =
                Completed { rows: n as u32, transit: part, worker_queue: part, total: part * 5, ..Default::default() };
            counters.complete(&request, UnixMicros(n * 1000));
            counters.execute(&Executed { batch_size: n as u32, compute_infer: part, ..Default::default() });
            counters.fail(FailureReason::ALL[(n % 4) as usize].0, part);
            counters.drop_request(DropReason::Cancelled);
        }
        counters.tokens = seed;
        counters.time_left[1].record(Duration::from_secs(seed), Duration::from_secs(10));
        counters.answered.record(Duration::from_secs(seed));
        counters
    }

    #[test]
    fn the_identities_hold() {
        let counters = busy(7);
        let counts = [&counters.queue, &counters.compute_input, &counters.compute_infer, &counters.compute_output];
        assert!(counts.iter().all(|part| part.count == counters.request.count));
        assert_eq!(counters.failures.iter().sum::<u64>(), counters.fail.count);
        assert_eq!(counters.batches.values().map(|batch| batch.compute_infer.count).sum::<u64>(), counters.executions);
        assert_eq!((counters.inferences, counters.last_inference_ms), (28, 7));
    }

    #[test]
    fn the_requests_of_a_batch_share_its_time_by_their_rows() {
        let mut counters = Counters::default();
        let (compute_input, compute_infer) = (Duration::from_millis(2), Duration::from_millis(6));
        for (lane, rows, tokens) in [(Lane::Live, 1, 10), (Lane::Bulk, 3, 90)] {
            let request =
                Completed { lane, rows, tokens, batch_size: 4, compute_input, compute_infer, ..Default::default() };
            counters.complete(&request, UnixMicros(1));
        }
        assert_eq!(counters.work[0], LaneWork { requests: 1, tokens: 10, ns: 2_000_000 });
        assert_eq!(counters.work[1], LaneWork { requests: 1, tokens: 90, ns: 6_000_000 });
    }

    #[test]
    fn sums_do_not_depend_on_the_order() {
        let (mut one, mut two) = (busy(3), busy(9));
        let (first, second) = (one.clone(), two.clone());
        one.add(&second);
        two.add(&first);
        assert_eq!(one, two);
        assert_eq!(one.executions, 12);
        assert_eq!(one.batches.len(), 9);
    }

    #[test]
    fn batch_sizes_are_bounded() {
        let mut counters = Counters::default();
        for batch_size in (1..=2 * MAX_BATCH_SIZES as u32).rev() {
            counters.execute(&Executed { batch_size, ..Default::default() });
        }
        assert_eq!(counters.batches.len(), MAX_BATCH_SIZES);
        assert_eq!(counters.executions, 2 * MAX_BATCH_SIZES as u64);
        assert_eq!(counters.batches.values().map(|times| times.compute_infer.count).sum::<u64>(), counters.executions);
    }
}
