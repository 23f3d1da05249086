//! Weights that the sessions of a model share.
//!
//! ONNX Runtime gives each session its own copy of the weights, unless the caller passes the initializers. Then it uses
//! the caller's memory, and shares the data its operators derive from them (packed matrices) through a container. The
//! initializers have to be those of the graph that runs. Optimisation fuses weights into new ones with new names, so
//! the initializers are read from the optimised model.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use ort::session::builder::{PrepackedWeights, SessionBuilder};
use ort::value::{DynValue, Tensor};
use prost::Message;

/// Smaller initializers are not shared: they include shapes and axes, which the library has to read while it loads.
const SMALLEST: usize = 4096;

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
    #[prost(bytes = "bytes", tag = "9")]
    raw_data: Bytes,
}

// === impl SharedWeights ===

impl SharedWeights {
    /// Reads the weights of the model at `path`.
    pub fn read(path: &Path) -> Result<SharedWeights, String> {
        let file = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let model = ModelProto::decode(Bytes::from(file)).map_err(|error| format!("{}: {error}", path.display()))?;
        let large = |tensor: &TensorProto| tensor.raw_data.len() >= SMALLEST;
        let mut initializers = Vec::new();
        for tensor in model.graph.unwrap_or_default().initializer.into_iter().filter(large) {
            if let Some(value) = tensor.value().map_err(|error| trireme_engine::one_line(error.message()))? {
                initializers.push((tensor.name, Arc::new(value)));
            }
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
    /// The initializer as a value of the library; `None` if weights do not have its datatype.
    fn value(&self) -> ort::Result<Option<DynValue>> {
        // A vector of its own, because the bytes in the file may not be aligned for numbers.
        macro_rules! tensor {
            ($type:ty) => {{
                let values: Vec<$type> = bytemuck::pod_collect_to_vec(&self.raw_data);
                Tensor::from_array((self.dims.clone(), values))?.into_dyn()
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
