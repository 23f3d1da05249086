//! Fits tensors that pass, inside an ensemble, between a model that batches and one that does not.
//!
//! Triton's rule (core: `EnsembleContext::ReshapeTensorDims`): where both sides batch, or neither does, a tensor keeps its shape.
//! Otherwise a tensor that already has the dims of a receiver that batches gets a batch dimension of 1, and a batch dimension of 1
//! goes where a receiver that does not batch declares only the other dims. All other tensors stay as they are. They are checked
//! like any request's.

use std::collections::BTreeMap;

use trireme_inference::{RoutePlan, Shape, Step, Tensor};

use crate::ModelConfig;

/// Marks the tensors of `plan` of which one side batches and the other does not. `batches` says it of a step's model, by name and
/// version; `ensemble` of the model that clients name.
pub(crate) fn mark_crossing(plan: &mut RoutePlan, ensemble: bool, batches: impl Fn(&str, Option<i64>) -> bool) {
    let mut given: BTreeMap<String, bool> = BTreeMap::new();
    // Tensors that no step gives are the request's.
    let from = |given: &BTreeMap<String, bool>, tensor: &str| given.get(tensor).copied().unwrap_or(ensemble);
    for step in &mut plan.steps {
        let own = batches(step.model.as_str(), step.version);
        step.inputs.iter_mut().for_each(|input| input.crosses = from(&given, input.tensor.as_str()) != own);
        given.extend(step.outputs.iter().map(|output| (output.tensor.to_string(), own)));
    }
    let crossing = plan.outputs.iter().filter(|output| from(&given, output.as_str()) != ensemble);
    plan.crossing = crossing.map(ToString::to_string).collect();
}

// === impl ModelConfig ===

impl ModelConfig {
    /// Whether requests have a batch dimension that `dims` leave out.
    pub fn batches(&self) -> bool {
        self.max_batch_size > 0
    }

    /// The inputs of this model at `step`, with a batch dimension of 1 added or removed where that makes one fit that came from a
    /// side that batches otherwise.
    pub fn fit_inputs(&self, step: &Step, inputs: Vec<Tensor>) -> Vec<Tensor> {
        let crosses = |name: &str| step.inputs.iter().any(|input| input.crosses && input.name == name);
        let dims = |name: &str| self.inputs.iter().find(|input| input.name == name).map(|input| &input.dims);
        let fit = |input: Tensor| if crosses(input.name()) { self.fit(dims(input.name()), input) } else { input };
        inputs.into_iter().map(fit).collect()
    }

    /// An output of this ensemble, as one of the steps of `plan` gave it, likewise.
    pub fn fit_output(&self, plan: &RoutePlan, output: Tensor) -> Tensor {
        if !plan.crossing.contains(output.name()) {
            return output;
        }
        let declared = self.outputs.iter().find(|declared| declared.name == output.name());
        self.fit(declared.map(|declared| &declared.dims), output)
    }

    fn fit(&self, dims: Option<&Shape>, tensor: Tensor) -> Tensor {
        match dims.and_then(|dims| fitted(dims, self.batches(), tensor.shape())) {
            // As many elements, so this cannot fail.
            Some(shape) => tensor.clone().reshaped(shape).unwrap_or(tensor),
            None => tensor,
        }
    }
}

/// `shape` with a batch dimension of 1 added or removed, so that `dims` accept it; `None` where neither does.
fn fitted(dims: &Shape, batches: bool, shape: &Shape) -> Option<Shape> {
    match (batches, shape.split_first()) {
        (true, _) => dims.accepts(shape).then(|| shape.prepend(1)),
        (false, Some((1, rest))) => dims.accepts(rest).then(|| rest.into()),
        (false, _) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit<const N: usize, const M: usize>(dims: [i64; N], batches: bool, shape: [i64; M]) -> Option<Vec<i64>> {
        fitted(&dims.into(), batches, &shape.into()).map(|shape| shape.to_vec())
    }

    #[test]
    fn a_batch_of_one_comes_and_goes() {
        assert_eq!(fit([4], true, [4]), Some(vec![1, 4]));
        assert_eq!(fit([-1], true, [7]), Some(vec![1, 7]));
        assert_eq!(fit([4], false, [1, 4]), Some(vec![4]));
    }

    #[test]
    fn everything_else_stays() {
        assert_eq!(fit([4], true, [3, 4]), None, "a batch already");
        assert_eq!(fit([4], true, [5]), None, "no such dims");
        assert_eq!(fit([-1, 4], false, [1, 4]), None, "the dims themselves");
        assert_eq!(fit([4], false, [2, 4]), None, "more rows than one");
        assert_eq!(fit([4], false, []), None);
    }
}
