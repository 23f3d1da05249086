//! A request in its gateway's counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trireme_bus::Reply;
use trireme_inference::{
    Completed, ErrorCode, Executed, FailureReason, InferError, Ledger, ModelKey, Tensor, UnixMicros,
};
use trireme_model_repository::ModelConfig;
use trireme_runtime::response_cache::Lookup;
use trireme_runtime::{ModelStatistics, Statistics};

/// A request in progress. If it is dropped before it has ended, its client went away.
pub struct CountedRequest {
    process: Statistics,
    statistics: Arc<ModelStatistics>,
    ensemble: bool,
    rows: u32,
    started: Instant,
    /// There was a reply.
    replied: bool,
    ended: bool,
}

// === impl CountedRequest ===

impl CountedRequest {
    /// Begins with a request for a model version.
    pub fn begin(statistics: &Statistics, key: &ModelKey, config: &ModelConfig, inputs: &[Tensor]) -> CountedRequest {
        let rows = inputs.first().and_then(|input| input.shape().first()).filter(|_| config.max_batch_size > 0);
        CountedRequest {
            process: statistics.clone(),
            statistics: statistics.model(key),
            ensemble: config.is_ensemble(),
            rows: rows.map_or(1, |rows| u32::try_from(*rows).unwrap_or(u32::MAX)),
            started: Instant::now(),
            replied: false,
            ended: false,
        }
    }

    /// The pipeline computes so many of its rows: the others are there.
    pub fn compute_rows(&mut self, rows: u64) {
        self.rows = u32::try_from(rows).unwrap_or(u32::MAX);
    }

    /// The pipeline has replied. Single models are counted by the worker that replies, ensembles here.
    pub fn reply(&mut self, reply: &Reply) {
        let took = self.started.elapsed();
        let first = !std::mem::replace(&mut self.replied, true);
        if first && self.ensemble && reply.outcome.is_ok() {
            self.statistics.record(|counters| counters.first_response.record(took));
        }
        if !reply.last {
            return;
        }
        self.ended = true;
        self.statistics.record(|counters| {
            counters.answered.record(took);
            match &reply.outcome {
                _ if !self.ensemble => {}
                Ok(_) => {
                    let request = along(&reply.ledger, self.rows, took);
                    counters.complete(&request, UnixMicros::now());
                    counters.execute(&Executed {
                        batch_size: self.rows,
                        compute_input: request.compute_input,
                        compute_infer: request.compute_infer,
                        compute_output: request.compute_output,
                    });
                }
                Err(_) => counters.fail(FailureReason::Other, took),
            }
        });
    }

    /// The result of looking it up in the response cache, or of looking all its texts up in the text cache. A hit is not executed, and no worker counts it.
    pub fn looked_up(&mut self, lookup: Lookup) {
        let took = self.started.elapsed();
        match lookup {
            Lookup::Hit(duration) => {
                self.ended = true;
                self.statistics.record(|counters| {
                    counters.answered.record(took);
                    counters.hit(duration, took, UnixMicros::now());
                });
            }
            Lookup::Miss(duration) => self.statistics.record(|counters| counters.cache_miss.record(duration)),
        }
    }

    /// This gateway ends the request, with an error of its own, unless it has ended already.
    pub fn failed(&mut self, error: &InferError) {
        if self.ended {
            return;
        }
        self.end(match error.code {
            // Too many requests were in flight, a queue was full, or time ran out in a queue.
            ErrorCode::Unavailable => FailureReason::Rejected,
            _ => FailureReason::Other,
        });
    }

    fn end(&mut self, reason: FailureReason) {
        self.ended = true;
        let reason = match (reason, self.process.bus_fault()) {
            // Its client, or this gateway, has waited for the broker in vain.
            (FailureReason::Rejected | FailureReason::Canceled, Some(fault)) if fault.stops_requests => {
                FailureReason::Broker
            }
            (reason, _) => reason,
        };
        let took = self.started.elapsed();
        self.statistics.record(|counters| {
            counters.answered.record(took);
            counters.fail(reason, took);
        });
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        if !self.ended {
            self.end(FailureReason::Canceled);
        }
    }
}

/// A request through all its steps.
fn along(ledger: &Ledger, rows: u32, total: Duration) -> Completed {
    let micros = Duration::from_micros;
    let start = Completed { rows, total, ..Completed::default() };
    ledger.0.iter().fold(start, |sum, hop| Completed {
        transit: sum.transit + micros(hop.transit_us),
        worker_queue: sum.worker_queue + micros(hop.queue_us),
        compute_input: sum.compute_input + micros(hop.compute_input_us),
        compute_infer: sum.compute_infer + micros(hop.compute_infer_us),
        compute_output: sum.compute_output + micros(hop.compute_output_us),
        ..sum
    })
}
