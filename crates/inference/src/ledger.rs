//! Where a request's time went, hop by hop.

use serde::{Deserialize, Deserializer, Serialize};

/// The hops a request has made so far, in order. Becomes the `Server-Timing` header and the per-stage histograms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ledger(#[serde(deserialize_with = "read_hops")] pub Vec<Hop>);

fn read_hops<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Hop>, D::Error> {
    crate::read_list(deserializer, "hops")
}

/// One step of the route, as the worker that ran it saw it. All times in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// The step's model.
    pub model: String,
    /// The worker that ran it.
    pub worker: String,
    /// From being sent by the stage before until being received here: the broker and its queue.
    pub transit_us: u64,
    /// From being received until its batch began to run: the worker's own queue.
    pub queue_us: u64,
    /// Preparing the batch: gathering, padding, converting inputs.
    pub compute_input_us: u64,
    /// The run itself.
    pub compute_infer_us: u64,
    /// Splitting and converting outputs.
    pub compute_output_us: u64,
    /// Rows (batch elements) of the executed batch this request was part of.
    pub batch_size: u32,
}
