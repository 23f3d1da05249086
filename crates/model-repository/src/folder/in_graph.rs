//! Which layers of a library a graph runs already: those that the nodes at its end show, and the width of its output.

use trireme_model_files::onnx::{EndOp, GraphTensor};

use super::files::Json;
use super::graphs::GraphFile;
use super::modules::{Module, ModuleKind};

/// The field of OPT's config.json that says how wide the layer behind its last one is.
pub(super) const OWN_PROJECTION: &str = "word_embed_proj_dim";

/// How many of a folder's layers a graph runs, from the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    First(usize),
    /// Neither nodes nor widths show it.
    Open,
    /// The graph has as many linear layers as this behind those of the model, and the folder lists others.
    Other(usize),
}

/// Where in the graph the layers stand that are looked for.
pub(super) enum Place {
    /// Behind the model's own layers.
    BehindLayers {
        /// Whether the model itself ends with a linear layer.
        own_projection: bool,
    },
    /// Behind the pooling.
    BehindPooling,
}

/// Whether a model ends with a linear layer of its own: OPT's vectors of words may have another width than its layers.
pub(super) fn has_own_projection(config: &Json) -> bool {
    let width = |key: &str| config.get(key).and_then(serde_json::Value::as_u64);
    width(OWN_PROJECTION).is_some_and(|own| width("hidden_size").is_some_and(|hidden| hidden != own))
}

/// How many of the `layers`, which are `before` wide, the graph runs before it gives `output`.
pub(super) fn shown(
    file: &GraphFile,
    output: &GraphTensor,
    place: &Place,
    layers: &[&Module],
    before: Option<i64>,
) -> Shown {
    let ending = file.graph.ending(&output.name);
    let of_layers = |ops: &[EndOp]| -> Vec<EndOp> {
        let kept = ops.iter().rev().filter(|op| matches!(op, EndOp::Projection | EndOp::LayerNorm));
        kept.copied().collect()
    };
    let pools = |op: &EndOp| matches!(op, EndOp::Select | EndOp::Reduce);
    // From the first one to the last, and whether all are seen.
    let (mut seen, is_whole) = match place {
        Place::BehindPooling => match ending.iter().position(pools) {
            Some(pooling) => (of_layers(&ending[..pooling]), true),
            None => (of_layers(ending), false),
        },
        Place::BehindLayers { .. } => {
            let seen = of_layers(ending);
            let is_whole = seen.first() == Some(&EndOp::LayerNorm);
            (seen.into_iter().skip(usize::from(is_whole)).collect(), is_whole)
        }
    };
    if matches!(place, Place::BehindLayers { own_projection: true }) && seen.first() == Some(&EndOp::Projection) {
        seen.remove(0);
    }
    let expected: Vec<EndOp> = layers
        .iter()
        .map(|module| match module.step {
            ModuleKind::Dense { .. } => EndOp::Projection,
            _ => EndOp::LayerNorm,
        })
        .collect();
    let fits = |&count: &usize| match is_whole {
        true => expected[..count] == seen,
        false => expected[..count].ends_with(&seen),
    };
    let by_nodes: Vec<usize> = (0..=layers.len()).filter(fits).collect();
    let width = output.width();
    let has_width = |&count: &usize| width.is_some() && width_behind(&layers[..count]).or(before) == width;
    let by_width: Vec<usize> = by_nodes.iter().copied().filter(has_width).collect();
    match (by_nodes.as_slice(), by_width.as_slice()) {
        ([], _) => Shown::Other(seen.iter().filter(|op| **op == EndOp::Projection).count()),
        (_, [only]) | ([only], _) => Shown::First(*only),
        // No possible number of layers gives this width; the comparison of widths reports that.
        ([.., last], []) if width.is_some() && before.is_some() => Shown::First(*last),
        _ => Shown::Open,
    }
}

/// The width that layers give; `None` where they leave it as it is.
pub(super) fn width_behind(layers: &[&Module]) -> Option<i64> {
    layers.iter().rev().find_map(|module| match &module.step {
        ModuleKind::Dense { to, .. } => Some(*to as i64),
        _ => None,
    })
}
