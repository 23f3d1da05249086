//! Domain types that all other crates use: tensors and their datatypes, infer requests and responses, routes, errors,
//! the ledger of time spent, counters, memory for bytes, and the pauses between attempts.
//!
//! Invariants:
//! - A [`Tensor`] is always consistent: its bytes have the length that its datatype and shape require, and the length
//!   prefixes of BYTES elements add up. The other dimensions of a tensor without elements are bounded
//!   ([`MAX_EMPTY_SIZE`]). Outside data becomes a tensor only through [`Tensor::new`].
//! - A [`Route`] is always compiled from a checked plan: every step's inputs are live when it runs.
//!
//! Not here: I/O, clocks that block, wire formats (`protocol`, `bus`), configuration files (`model-repository`).

mod action;
mod backoff;
mod buffer;
mod callers;
mod datatype;
mod equivalence;
mod error;
mod lane;
mod lane_counts;
mod latencies;
mod ledger;
mod limits;
mod names;
mod parameters;
mod request;
mod reshape;
mod route;
mod sequence;
mod shape;
mod shares;
mod space;
mod statistics;
mod tensor;
mod time;
mod trace;
mod windows;

pub use action::Action;
pub use backoff::Backoff;
pub use buffer::Buffer;
pub use callers::{Callers, MAX_CALLERS};
pub use datatype::DataType;
pub use equivalence::{Equivalence, equivalent_to, is_space};
pub use error::{Cause, ErrorCode, InferError, QUEUE_FULL};
pub use lane::Lane;
pub use lane_counts::{LaneWork, TimeLeft};
pub use latencies::Latencies;
pub use ledger::{CachedTexts, Hop, Ledger, TextFacts, space_of};
pub use limits::{MAX_LISTED, MAX_MESSAGE_BYTES, MOST_WINDOWS, TooMany, check_listed, read_list, read_parameters};
pub use names::{cut, nearest, shown};
pub use parameters::{ParameterValue, Parameters, REQUEST_TIMEOUT, TIMEOUTS, queue_timeout, request_timeout};
pub use request::{InferRequest, InferResponse, ModelKey, RequestedOutput, SharedMemoryPart, SharedTensors};
pub use reshape::Reshape;
pub use route::{Branch, Branches, PlanStep, Route, RoutePlan, Step, StepInput, StepOutput};
pub use sequence::{CorrelationId, Membership};
pub use shape::{MAX_ELEMENTS, MAX_EMPTY_SIZE, Shape};
pub use shares::{Owner, Shares};
pub use space::{AskedSpaces, IF_SPACE, IF_SPACE_HEADER};
pub use statistics::{BatchTimes, Completed, Counters, DropReason, Executed, FailureReason, Timed};
pub use tensor::{BytesElements, Element, Tensor, TensorError, TensorSpec, UncheckedTensor, room_for};
pub use time::UnixMicros;
pub use trace::TraceParent;
pub use windows::{KEEP, WINDOWS, Window};

/// The type of names in messages: of models, tensors, requests and processes. Short ones need no memory of their own, and a clone of a
/// long one shares it, so that a message can be cloned for each step.
pub use smol_str::{SmolStr as Name, format_smolstr as format_name};
