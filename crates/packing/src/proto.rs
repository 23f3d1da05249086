//! ONNX's schema (onnx/onnx.proto) with all its fields, so that a graph is written as it was read.
//!
//! Messages that no rule looks into are kept as bytes, which have the same form on the wire.

use bytes::Bytes;
use prost::Message;

/// `TensorProto.DataType` of 64-bit integers.
pub const INT64: i32 = 7;
const INT32: i32 = 6;
const BOOL: i32 = 9;
const FLOATS: [i32; 4] = [1, 10, 11, 16];

/// Constants of more elements are weights, whose values say nothing about shapes.
const MOST_VALUES: i64 = 4096;

/// A model: its graph, and the versions of the operators.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub producer_version: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub domain: Option<String>,
    #[prost(int64, optional, tag = "5")]
    pub model_version: Option<i64>,
    #[prost(string, optional, tag = "6")]
    pub doc_string: Option<String>,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    #[prost(bytes = "bytes", repeated, tag = "8")]
    pub opset_import: Vec<Bytes>,
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<Entry>,
    #[prost(bytes = "bytes", repeated, tag = "20")]
    pub training_info: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "25")]
    pub functions: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "26")]
    pub configuration: Vec<Bytes>,
}

/// Nodes in an order in which each can run, with the graph's inputs, weights and outputs.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(string, optional, tag = "10")]
    pub doc_string: Option<String>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    #[prost(bytes = "bytes", repeated, tag = "13")]
    pub value_info: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "14")]
    pub quantization_annotation: Vec<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "15")]
    pub sparse_initializer: Vec<Bytes>,
    #[prost(message, repeated, tag = "16")]
    pub metadata_props: Vec<Entry>,
}

/// One operation.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    #[prost(string, optional, tag = "6")]
    pub doc_string: Option<String>,
    #[prost(string, optional, tag = "7")]
    pub domain: Option<String>,
    #[prost(string, optional, tag = "8")]
    pub overload: Option<String>,
    #[prost(message, repeated, tag = "9")]
    pub metadata_props: Vec<Entry>,
    #[prost(bytes = "bytes", repeated, tag = "10")]
    pub device_configurations: Vec<Bytes>,
}

/// A constant of a node.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<Bytes>,
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub g: Option<Bytes>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    #[prost(bytes = "bytes", repeated, tag = "9")]
    pub strings: Vec<Bytes>,
    #[prost(message, repeated, tag = "10")]
    pub tensors: Vec<TensorProto>,
    #[prost(bytes = "bytes", repeated, tag = "11")]
    pub graphs: Vec<Bytes>,
    #[prost(string, optional, tag = "13")]
    pub doc_string: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "14")]
    pub tp: Option<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "15")]
    pub type_protos: Vec<Bytes>,
    #[prost(int32, optional, tag = "20")]
    pub kind: Option<i32>,
    #[prost(string, optional, tag = "21")]
    pub ref_attr_name: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "22")]
    pub sparse_tensor: Option<Bytes>,
    #[prost(bytes = "bytes", repeated, tag = "23")]
    pub sparse_tensors: Vec<Bytes>,
}

/// A constant tensor, whose elements are in the file or in another file beside it.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub segment: Option<Bytes>,
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub string_data: Vec<Bytes>,
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    #[prost(string, optional, tag = "12")]
    pub doc_string: Option<String>,
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<Entry>,
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
    #[prost(message, repeated, tag = "16")]
    pub metadata_props: Vec<Entry>,
}

/// An input or output with its type.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
    #[prost(string, optional, tag = "3")]
    pub doc_string: Option<String>,
    #[prost(message, repeated, tag = "4")]
    pub metadata_props: Vec<Entry>,
}

/// The type of a value; tensors are the only ones that are read.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub sequence_type: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub map_type: Option<Bytes>,
    #[prost(string, optional, tag = "6")]
    pub denotation: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "7")]
    pub opaque_type: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "8")]
    pub sparse_tensor_type: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub optional_type: Option<Bytes>,
}

/// `TypeProto.Tensor`.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<ShapeProto>,
}

/// `TensorShapeProto`.
#[derive(Clone, PartialEq, Message)]
pub struct ShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

/// `TensorShapeProto.Dimension`: a size, a name for one, or neither.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub denotation: Option<String>,
}

/// `StringStringEntryProto`.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

// === impl NodeProto ===

impl NodeProto {
    /// The attribute of this name.
    pub fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        self.attribute.iter().find(|attribute| attribute.name == name)
    }

    /// An attribute that is an integer; `default` where the node does not have it.
    pub fn int(&self, name: &str, default: i64) -> i64 {
        self.attribute(name).map_or(default, |attribute| attribute.i.unwrap_or(0))
    }

    /// An attribute that is a list of integers.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        self.attribute(name).map(|attribute| &attribute.ints[..])
    }

    /// Whether graphs lie within the node.
    pub fn has_graphs(&self) -> bool {
        self.attribute.iter().any(|attribute| attribute.g.is_some() || !attribute.graphs.is_empty())
    }

    /// The node's name and operator, for people.
    pub fn described(&self) -> String {
        let name = self.name.as_deref().filter(|name| !name.is_empty());
        let name = name.or(self.output.first().map(String::as_str)).unwrap_or_default();
        format!("node '{name}' ({})", self.op_type)
    }
}

// === impl TensorProto ===

impl TensorProto {
    /// A list of integers.
    pub fn of_ints(name: &str, values: &[i64]) -> TensorProto {
        TensorProto {
            dims: vec![values.len() as i64],
            data_type: INT64,
            int64_data: values.to_vec(),
            name: Some(name.to_owned()),
            ..TensorProto::default()
        }
    }

    /// Whether its elements are floating point numbers.
    pub fn is_float(&self) -> bool {
        FLOATS.contains(&self.data_type)
    }

    /// Its elements, if they are few and integers or booleans, and lie in the file.
    pub fn integers(&self) -> Option<Vec<i64>> {
        let count = self.dims.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim))?;
        if !(0..=MOST_VALUES).contains(&count) || !self.external_data.is_empty() {
            return None;
        }
        let values: Vec<i64> = match (self.data_type, &self.raw_data) {
            (INT64, Some(raw)) => raw.as_chunks().0.iter().copied().map(i64::from_le_bytes).collect(),
            (INT32, Some(raw)) => raw.as_chunks().0.iter().map(|&four| i32::from_le_bytes(four).into()).collect(),
            (BOOL, Some(raw)) => raw.iter().map(|&byte| byte.into()).collect(),
            (INT64, None) => self.int64_data.clone(),
            (INT32 | BOOL, None) => self.int32_data.iter().map(|&value| value.into()).collect(),
            _ => return None,
        };
        (values.len() as i64 == count).then_some(values)
    }
}
