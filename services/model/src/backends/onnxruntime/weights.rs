//! Weights that the sessions of a model share.
//!
//! ONNX Runtime gives each session its own copy of the weights, unless the caller passes the initializers. Then it uses
//! the caller's memory, and shares the data its operators derive from them (packed matrices) through a container. The
//! initializers have to be those of the graph that runs. Optimisation fuses weights into new ones with new names, so
//! the initializers are read from the optimised model, whose graph names their places in the file beside it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use ort::session::builder::{PrepackedWeights, SessionBuilder};
use ort::value::{DynValue, Tensor};
use prost::Message;

/// Smaller initializers are not shared: they include shapes and axes, which the library has to read while it loads.
const SMALLEST: u64 = 4096;

/// The file beside an optimised model's graph that holds its weights.
const FILE: &str = "weights";

/// Initializers in memory, and the data derived from them.
pub struct SharedWeights {
    initializers: Vec<(String, Arc<DynValue>)>,
    prepacked: PrepackedWeights,
}

// The parts of ONNX's schema that lead to a graph's initializers, by its field numbers.

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<TensorProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(message, repeated, tag = "13")]
    external_data: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// Makes a session write its optimised model to `path`, with the weights in a file beside it: a graph with its weights within has 2 GB at
/// most, and one that keeps its references to other files can be read only beside those.
pub fn write_beside(builder: SessionBuilder, path: &Path) -> ort::Result<SessionBuilder> {
    let builder = builder.with_optimized_model_path(path)?;
    let builder = builder.with_config_entry("session.optimized_model_external_initializers_file_name", FILE)?;
    let smallest = SMALLEST.to_string();
    Ok(builder.with_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", smallest)?)
}

// === impl SharedWeights ===

impl SharedWeights {
    /// Reads the weights of the optimised model at `path`, which [`write_beside`] made.
    pub fn read(path: &Path) -> Result<SharedWeights, String> {
        let file = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let model = ModelProto::decode(&*file).map_err(|error| format!("{}: {error}", path.display()))?;
        let of = path.with_file_name(FILE);
        let mut initializers = Vec::new();
        for tensor in model.graph.unwrap_or_default().initializer {
            let value = tensor.value(&of);
            let value = value.map_err(|error| format!("'{}' in {}: {error}", tensor.name, of.display()))?;
            initializers.extend(value.map(|value| (tensor.name, Arc::new(value))));
        }
        Ok(SharedWeights { initializers, prepacked: PrepackedWeights::new() })
    }

    /// Makes a session use these weights.
    pub fn give(&self, mut builder: SessionBuilder) -> ort::Result<SessionBuilder> {
        for (name, value) in &self.initializers {
            builder = builder.with_initializer(name, value.clone())?;
        }
        Ok(builder.with_prepacked_weights(&self.prepacked)?)
    }
}

// === impl TensorProto ===

impl TensorProto {
    /// The initializer as a value of the library, read from `file`; `None` if it lies in the graph, or weights do not have its datatype.
    fn value(&self, file: &Path) -> Result<Option<DynValue>, String> {
        let number = |key: &str| self.external_data.iter().find(|entry| entry.key == key)?.value.parse::<u64>().ok();
        let (Some(offset), Some(length)) = (number("offset"), number("length")) else { return Ok(None) };
        macro_rules! tensor {
            ($type:ty) => {{
                let file = File::open(file).map_err(|error| error.to_string())?;
                let ends = file.metadata().map_err(|error| error.to_string())?.len();
                if offset.checked_add(length).is_none_or(|end| end > ends) {
                    return Err(format!("{length} bytes from {offset}, but the file has {ends}"));
                }
                let mut values: Vec<$type> = bytemuck::zeroed_vec(length as usize / size_of::<$type>());
                file.read_exact_at(bytemuck::cast_slice_mut(&mut values), offset).map_err(|error| error.to_string())?;
                let tensor = Tensor::from_array((self.dims.clone(), values));
                tensor.map_err(|error| trireme_engine::one_line(error.message()))?.into_dyn()
            }};
        }
        Ok(Some(match self.data_type {
            1 => tensor!(f32),
            2 => tensor!(u8),
            3 => tensor!(i8),
            10 => tensor!(half::f16),
            _ => return Ok(None),
        }))
    }
}
