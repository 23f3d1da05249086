//! A client's request and its response, independent of any protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Ledger, Name, Parameters, Tensor, UncheckedTensor};

/// One version of one model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModelKey {
    /// The model's name: its directory in the model repository.
    pub name: Name,
    /// The version: the number its version directory is named by.
    pub version: i64,
}

/// A decoded HTTP or gRPC request.
#[derive(Clone, Debug, Default)]
pub struct InferRequest {
    /// The client's own id, repeated in the response; empty if the client gave none.
    pub id: String,
    /// The name of the requested model.
    pub model: String,
    /// The requested version; `None` means the latest ready one.
    pub version: Option<i64>,
    /// Request parameters that are passed on to the models.
    pub parameters: Parameters,
    /// Priority level, 1 highest; 0 is the model's default level.
    pub priority: u64,
    /// How long the client's call waits for the answer, beside what its parameters say
    /// ([`request_timeout`](crate::request_timeout)); `None` where the protocol has no such limit.
    pub timeout: Option<Duration>,
    /// Input tensors as the client sent them, batch dimension included. They have not been checked against the model's
    /// schema.
    pub inputs: Vec<UncheckedTensor>,
    /// Requested outputs; empty means all.
    pub outputs: Vec<RequestedOutput>,
    /// The tensors that lie in shared memory.
    pub shared: SharedTensors,
}

/// A part of a memory region that the gateway and its client share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemoryPart {
    /// The name under which the region is registered.
    pub region: String,
    /// Where the part begins in the region, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub byte_size: u64,
}

/// The tensors of a request that lie in shared memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedTensors {
    /// Inputs, by their index in [`InferRequest::inputs`]. Those have no bytes until they are read from shared memory.
    pub inputs: Vec<(usize, SharedMemoryPart)>,
    /// Where outputs are to be written, by their names.
    pub outputs: BTreeMap<String, SharedMemoryPart>,
}

/// A requested output.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestedOutput {
    /// The output's name at the model.
    pub name: String,
    /// Replaces the tensor by the labels of its highest scores, as many as this number; 0 returns the tensor itself.
    pub classification: u32,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct InferResponse {
    /// The client's id.
    pub id: String,
    /// The requested model (for an ensemble: the ensemble).
    pub model: ModelKey,
    /// Response parameters.
    pub parameters: Parameters,
    /// Output tensors, in the order the route makes them.
    pub outputs: Vec<Tensor>,
    /// The outputs that were written to shared memory: the response does not contain their bytes.
    pub shared: BTreeSet<String>,
    /// The time spent in each hop.
    pub ledger: Ledger,
}

/// `name:version`
impl fmt::Display for ModelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.version)
    }
}
