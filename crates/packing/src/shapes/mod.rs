//! The shapes of all tensors of a graph for inputs of one size, and the values of the small integer tensors that shapes are computed from.
//!
//! A tensor whose shape cannot be told is not listed; the rules for regions take it for one that mixes tokens.

mod fact;
mod rules;
mod values;

use std::collections::HashMap;

use crate::proto::{GraphProto, INT64};

use self::fact::is_possible;
pub use self::fact::{Fact, Values, count};

/// The facts about tensors, by name.
pub type Facts<'g> = HashMap<&'g str, Fact>;

/// The facts about the tensors of `graph`, if each of its `inputs` has the shape `[batch, length]`.
pub fn infer<'g>(graph: &'g GraphProto, inputs: &[&'g str], batch: i64, length: i64) -> Facts<'g> {
    let mut facts: Facts<'g> = HashMap::new();
    for tensor in graph.initializer.iter().filter(|tensor| is_possible(&tensor.dims)) {
        let values = tensor.integers().map(|elements| Values { elements, is_int64: tensor.data_type == INT64 });
        facts.insert(tensor.name.as_deref().unwrap_or_default(), Fact { shape: tensor.dims.clone(), values });
    }
    facts.extend(inputs.iter().map(|&name| (name, Fact { shape: vec![batch, length], values: None })));
    for node in &graph.node {
        let inputs: Vec<Option<&Fact>> = node.input.iter().map(|name| facts.get(name.as_str())).collect();
        let Some(shapes) = rules::shapes(node, &inputs) else { continue };
        let mut values = shapes.first().and_then(Option::as_ref).and_then(|shape| values::of(node, &inputs, shape));
        for (name, shape) in node.output.iter().zip(shapes) {
            if let Some(shape) = shape.filter(|shape| is_possible(shape)) {
                facts.insert(name, Fact { shape, values: values.take() });
            }
        }
    }
    facts
}
