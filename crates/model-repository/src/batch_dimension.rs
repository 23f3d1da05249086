//! Fits tensors that pass, inside an ensemble, between models that batch and models that do not.
//!
//! Triton's rule (core: `EnsembleContext::ReshapeTensorDims`): a tensor that already has the receiving model's dims gets a batch
//! dimension of 1 if that model batches. A tensor with a batch dimension of 1 loses it if the receiving model does not batch and
//! declares only the other dims. All other tensors stay as they are, and are checked like any request's.

use trireme_inference::{Shape, Tensor};

use crate::ModelConfig;

// === impl ModelConfig ===

impl ModelConfig {
    /// Inputs for this model, as other steps of an ensemble gave them, with a batch dimension of 1 added or removed where that
    /// makes them fit.
    pub fn fit_inputs(&self, inputs: Vec<Tensor>) -> Vec<Tensor> {
        let dims = |name: &str| self.inputs.iter().find(|input| input.name == name).map(|input| &input.dims);
        inputs.into_iter().map(|input| self.fit(dims(input.name()), input)).collect()
    }

    /// An output of this ensemble, as one of its steps gave it, likewise.
    pub fn fit_output(&self, output: Tensor) -> Tensor {
        let declared = self.outputs.iter().find(|declared| declared.name == output.name());
        self.fit(declared.map(|declared| &declared.dims), output)
    }

    fn fit(&self, dims: Option<&Shape>, tensor: Tensor) -> Tensor {
        match dims.and_then(|dims| fitted(dims, self.max_batch_size > 0, tensor.shape())) {
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
