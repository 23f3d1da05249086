//! Encoders that run without padding: rewrites an ONNX graph of rows `[batch, length]` so that nodes that work on each token alone work on the
//! tokens of several groups of rows together.
//!
//! The packed graph stands for the plain one run on several groups of rows side by side. Each group is padded to its own longest row. Nodes that mix
//! tokens (attention above all, with its masks and positions) are there once for each group and see the group's rows. Nodes that work on each
//! token alone, as the multiplications by weights do, are there once and see the tokens of all groups, without padding. So rows of
//! different lengths run together and none pays for another's length, except within its group.
//!
//! ```text
//! plain                      packed, with K groups
//! input_ids [batch, length]  input_ids/group0 [B₀, L₀] … input_ids/groupK-1, and so on for each input
//!                            packing/tokens/group0 [B₀, L₀] … : the number of each position's token; any token's for padding
//!                            packing/places [1, tokens]: where each token is, if all groups lie one behind the other, row by row
//! last_hidden_state          last_hidden_state/group0 … , as the plain graph gives them, except at padding
//! ```
//!
//! Not here: running a graph, choosing groups.

mod layout;
mod names;
mod proto;
mod regions;
mod shapes;
mod tokenwise;
mod unfit;
mod write;

use bytes::Bytes;
use prost::Message;

pub use names::{PLACES, of_group, tokens};
use proto::{ModelProto, ValueInfoProto};
use regions::Regions;
pub use unfit::Unfit;

/// The first version of the format in which constants need not be among a graph's inputs.
const LEAST_VERSION: i64 = 4;

/// A packed model.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The file: an ONNX model with its weights within.
    pub model: Bytes,
    /// The share of the plain graph's weights that works on tokens without padding.
    pub share: f64,
}

/// Rewrites the ONNX model in `model` to run `groups` groups of rows.
///
/// Each of the graph's inputs has to have the two dimensions `[batch, length]`, both open, and the weights have to lie within the file.
pub fn pack(model: Bytes, groups: usize) -> Result<Packed, Unfit> {
    let mut model = ModelProto::decode(model).map_err(|error| Unfit(format!("it is no ONNX model: {error}")))?;
    let graph = model.graph.take().ok_or_else(|| Unfit("it holds no graph".to_owned()))?;
    let is_constant = |name: &str| graph.initializer.iter().any(|tensor| tensor.name.as_deref() == Some(name));
    let inputs: Vec<_> = graph.input.iter().filter(|input| !is_constant(&input.name)).collect();
    if let Some(other) = inputs.iter().find(|input| !is_of_rows(input)) {
        return Err(Unfit(format!("its input '{}' is not [batch, length] with both dimensions open", other.name)));
    }
    if groups == 0 || inputs.is_empty() || graph.output.is_empty() {
        return Err(Unfit("it has no groups, inputs or outputs".to_owned()));
    }
    if !graph.sparse_initializer.is_empty() {
        return Err(Unfit("it has sparse weights".to_owned()));
    }
    if let Some(tensor) = graph.initializer.iter().find(|tensor| !tensor.external_data.is_empty()) {
        let name = tensor.name.as_deref().unwrap_or_default();
        return Err(Unfit(format!("its weights lie in files beside it, as '{name}' does")));
    }
    let inputs: Vec<_> = inputs.iter().map(|input| input.name.as_str()).collect();
    let regions = Regions::find(&graph, &inputs)?;
    let packed = write::write(&graph, &inputs, &regions, groups);
    let share = regions.share;
    model.graph = Some(packed);
    model.ir_version = model.ir_version.map(|version| version.max(LEAST_VERSION));
    Ok(Packed { model: model.encode_to_vec().into(), share })
}

fn is_of_rows(input: &ValueInfoProto) -> bool {
    let shape = input.r#type.as_ref().and_then(|own| own.tensor_type.as_ref()).and_then(|tensor| tensor.shape.as_ref());
    shape.is_some_and(|shape| shape.dim.len() == 2 && shape.dim.iter().all(|dim| dim.dim_value.is_none()))
}

#[cfg(test)]
mod tests;
