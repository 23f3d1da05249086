//! The settings of `sequence_batching`, as services read them.
//!
//! Not here: what becomes of them (`sequence`).

use std::time::Duration;

use bytes::Bytes;
use trireme_inference::{DataType, Shape};

/// The settings of `sequence_batching`.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceBatching {
    /// How long a sequence may be without requests before it is over.
    pub max_idle: Duration,
    /// The inputs by which the model learns of the sequence.
    pub controls: Vec<SequenceControl>,
    /// The tensors that go from one request of a sequence to the next.
    pub states: Vec<SequenceState>,
    /// Whether a request may be executed several times: `iterative_sequence`.
    pub iterative: bool,
}

/// An input by which a model learns of the sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceControl {
    /// The input's name.
    pub name: String,
    /// Datatype of its one element.
    pub datatype: DataType,
    /// The fact that it tells.
    pub fact: Fact,
}

/// A fact about a request of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The request begins the sequence: the bytes of the element for no and for yes.
    Start([Bytes; 2]),
    /// The request ends the sequence.
    End([Bytes; 2]),
    /// There is a request.
    Ready([Bytes; 2]),
    /// The correlation id.
    CorrelationId,
}

/// A tensor that goes from one request of a sequence to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceState {
    /// The model's input for it.
    pub input: String,
    /// The model's output that is the input of the next request.
    pub output: String,
    /// Datatype of its elements.
    pub datatype: DataType,
    /// Dimensions without the batch dimension, -1 for any size.
    pub dims: Shape,
    /// Dimensions before the first request.
    pub initial_dims: Shape,
    /// The file with its initial value, in the folder `initial_state` of the model's folder. `None`: zeros.
    pub initial_file: Option<String>,
}
