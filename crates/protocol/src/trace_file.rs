//! The records of a trace file, in Triton's format: JSON objects, which a file holds as one array.
//!
//! Each record names its trace by a number. One record of a trace says which model it is about, the others have one point in
//! time or one tensor each.

use std::fmt::Write;

use bytes::Bytes;
use trireme_inference::{DataType, Element, ModelKey, Tensor, UnixMicros};

use crate::json::Writer;

/// The records of a request, separated by commas.
#[derive(Debug, Default)]
pub struct TraceRecords(Writer);

/// A tensor's part in an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It went into the model's queue.
    QueueInput,
    /// The model returned it.
    BackendOutput,
}

/// The model that a trace is about.
#[derive(Clone, Copy, Debug)]
pub struct TracedModel<'a> {
    /// The model and its version.
    pub model: &'a ModelKey,
    /// The client's id of the request; empty without one.
    pub request_id: &'a str,
    /// The trace of the ensemble, if this is one of its steps.
    pub parent: Option<u64>,
}

// === impl TraceRecords ===

impl TraceRecords {
    /// Says which model trace `id` is about.
    pub fn model(&mut self, id: u64, traced: TracedModel<'_>) {
        self.0.object(|w| {
            w.name("id").integer(id);
            w.name("model_name").string(&traced.model.name);
            w.name("model_version").integer(traced.model.version);
            if !traced.request_id.is_empty() {
                w.name("request_id").string(traced.request_id);
            }
            if let Some(parent) = traced.parent {
                w.name("parent_id").integer(parent);
            }
        });
    }

    /// A point in time of trace `id`. The file has nanoseconds.
    pub fn timestamp(&mut self, id: u64, name: &str, at: UnixMicros) {
        self.0.object(|w| {
            w.name("id").integer(id);
            w.name("timestamps").array(|w| {
                w.object(|w| {
                    w.name("name").string(name);
                    w.name("ns").integer(at.0.saturating_mul(1000));
                });
            });
        });
    }

    /// A tensor of trace `id`.
    pub fn tensor(&mut self, id: u64, activity: Activity, tensor: &Tensor) {
        self.0.object(|w| {
            w.name("id").integer(id);
            w.name("activity").string(activity.name());
            w.name("tensor").object(|w| {
                w.name("name").string(tensor.name());
                w.name("data").string(elements(tensor));
                w.name("shape").string(joined(tensor.shape().iter()));
                w.name("dtype").string(tensor.datatype().name());
            });
        });
    }

    /// The records.
    pub fn into_bytes(self) -> Bytes {
        self.0.into_bytes()
    }
}

// === impl Activity ===

impl Activity {
    fn name(self) -> &'static str {
        match self {
            Activity::QueueInput => "TENSOR_QUEUE_INPUT",
            Activity::BackendOutput => "TENSOR_BACKEND_OUTPUT",
        }
    }
}

/// A tensor's elements, separated by commas; texts in quotation marks. As in Triton's files, half-precision numbers are
/// left out.
fn elements(tensor: &Tensor) -> Vec<u8> {
    fn numbers<T: Element + std::fmt::Display>(tensor: &Tensor) -> Vec<u8> {
        tensor.values::<T>().map(|values| joined(values.iter()).into_bytes()).unwrap_or_default()
    }
    match tensor.datatype() {
        DataType::Bool => joined(tensor.data().iter().map(|&byte| u8::from(byte != 0))).into_bytes(),
        DataType::Uint8 => numbers::<u8>(tensor),
        DataType::Uint16 => numbers::<u16>(tensor),
        DataType::Uint32 => numbers::<u32>(tensor),
        DataType::Uint64 => numbers::<u64>(tensor),
        DataType::Int8 => numbers::<i8>(tensor),
        DataType::Int16 => numbers::<i16>(tensor),
        DataType::Int32 => numbers::<i32>(tensor),
        DataType::Int64 => numbers::<i64>(tensor),
        DataType::Fp32 => numbers::<f32>(tensor),
        DataType::Fp64 => numbers::<f64>(tensor),
        DataType::Fp16 | DataType::Bf16 => Vec::new(),
        DataType::Bytes => {
            let quoted = |text: &[u8]| format!("\"{}\"", String::from_utf8_lossy(text));
            let texts = tensor.bytes_elements().into_iter().flatten().map(quoted);
            joined(texts).into_bytes()
        }
    }
}

fn joined(values: impl Iterator<Item = impl std::fmt::Display>) -> String {
    let mut text = String::new();
    for (number, value) in values.enumerate() {
        let separator = if number > 0 { "," } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}{value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_those_of_tritons_files() {
        let mut records = TraceRecords::default();
        let model = ModelKey { name: "m".into(), version: 3 };
        records.model(1, TracedModel { model: &model, request_id: "", parent: None });
        records.model(2, TracedModel { model: &model, request_id: "a\"b", parent: Some(1) });
        records.timestamp(2, "QUEUE_START", UnixMicros(7));
        let floats = Tensor::from_values("x", [1, 2], vec![0.5f32, -2.0]).unwrap();
        records.tensor(1, Activity::QueueInput, &floats);
        let texts = Tensor::from_bytes_elements("t", [2], &["a", "b\"c"]).unwrap();
        records.tensor(1, Activity::BackendOutput, &texts);
        let expected = [
            r#"{"id":1,"model_name":"m","model_version":3}"#,
            r#"{"id":2,"model_name":"m","model_version":3,"request_id":"a\"b","parent_id":1}"#,
            r#"{"id":2,"timestamps":[{"name":"QUEUE_START","ns":7000}]}"#,
            r#"{"id":1,"activity":"TENSOR_QUEUE_INPUT","tensor":{"name":"x","data":"0.5,-2","shape":"1,2","dtype":"FP32"}}"#,
            concat!(
                r#"{"id":1,"activity":"TENSOR_BACKEND_OUTPUT","tensor":{"name":"t","data":"\"a\",\"b\"c\"","#,
                r#""shape":"2","dtype":"BYTES"}}"#
            ),
        ];
        assert_eq!(records.into_bytes(), expected.join(","));
    }
}
