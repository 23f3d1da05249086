//! What a client asks and what it gets, free of any protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Ledger, Parameters, Tensor, UncheckedTensor};

/// One version of one model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModelKey {
    /// The model's name: its directory in the model repository.
    pub name: String,
    /// The version: the number its version directory is named by.
    pub version: i64,
}

/// A request as the gateway understands it, decoded from HTTP or gRPC.
#[derive(Clone, Debug, Default)]
pub struct InferRequest {
    /// The client's own id, echoed in the response; empty when it gave none.
    pub id: String,
    /// The model asked for.
    pub model: String,
    /// The version asked for; `None` is the latest ready one.
    pub version: Option<i64>,
    /// Request parameters that are passed on to the models.
    pub parameters: Parameters,
    /// Priority level, 1 highest; 0 is the model's default level.
    pub priority: u32,
    /// Time the client allows for the whole request; `None` is the gateway's default.
    pub timeout: Option<Duration>,
    /// Input tensors as the client sent them, batch dimension included; the model's schema is yet to judge them.
    pub inputs: Vec<UncheckedTensor>,
    /// Outputs asked for; empty means all.
    pub outputs: Vec<RequestedOutput>,
    /// Which of its tensors lie in shared memory.
    pub shared: SharedTensors,
}

/// A part of a region of memory that the gateway and its client have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemoryPart {
    /// The name that the region is registered by.
    pub region: String,
    /// Where the part begins in the region, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub byte_size: u64,
}

/// The tensors of a request that lie in shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedTensors {
    /// Inputs, by their place in [`InferRequest::inputs`]; there they have no bytes until these are read.
    pub inputs: Vec<(usize, SharedMemoryPart)>,
    /// Where outputs are to be written, by their names.
    pub outputs: BTreeMap<String, SharedMemoryPart>,
}

/// An output asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedOutput {
    /// The output's name at the model.
    pub name: String,
    /// Turn it into the labels of its this many highest scores; 0 returns the tensor itself.
    pub classification: u32,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct InferResponse {
    /// The client's id.
    pub id: String,
    /// The model asked for (for an ensemble: the ensemble).
    pub model: ModelKey,
    /// Response parameters.
    pub parameters: Parameters,
    /// Output tensors, in the order the route makes them.
    pub outputs: Vec<Tensor>,
    /// The outputs that were written to shared memory: their bytes do not travel.
    pub shared: BTreeSet<String>,
    /// Where the time went.
    pub ledger: Ledger,
}

/// `name:version`
impl fmt::Display for ModelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.version)
    }
}
