//! The inputs that give a decoder its earlier results, and say how many of its positions are wanted. A text comes whole, so nothing was
//! computed before it and these inputs are empty. A configuration that declares such inputs gets them from its requests instead.

use trireme_inference::{DataType, InferError, Tensor, TensorSpec};
use trireme_model_repository::ModelConfig;

use super::tasks;

/// Whether an input of this name is made here where the configuration does not declare it.
pub fn is_one(name: &str) -> bool {
    name.starts_with("past_key_values.") || ["use_cache_branch", "num_logits_to_keep"].contains(&name)
}

/// Of the model's inputs those that the configuration leaves to the backend.
pub fn undeclared(config: &ModelConfig, inputs: &[TensorSpec]) -> Vec<TensorSpec> {
    let declared = |input: &TensorSpec| config.inputs.iter().any(|own| input.name == *own.name);
    let is_task = |input: &TensorSpec| input.name == tasks::INPUT && config.parameters.contains_key(tasks::NAMES);
    inputs.iter().filter(|input| (is_one(&input.name) || is_task(input)) && !declared(input)).cloned().collect()
}

/// The tensor of such an input for `rows` rows: a cache of length 0, a flag that says no, one position that is wanted.
pub fn empty(input: &TensorSpec, rows: i64) -> Result<Tensor, InferError> {
    if !input.name.starts_with("past_key_values.") {
        let shape: Vec<i64> = input.shape.iter().map(|_| 1).collect();
        let tensor = match (input.name.as_str(), input.datatype) {
            ("use_cache_branch", _) => Tensor::new(&*input.name, DataType::Bool, shape, vec![0u8].into()),
            (_, DataType::Int32) => Tensor::from_values(&*input.name, shape, vec![1i32]),
            _ => Tensor::from_values(&*input.name, shape, vec![1i64]),
        };
        return Ok(tensor?);
    }
    let open = |(axis, &dim): (usize, &i64)| match (axis, dim) {
        (0, -1) => rows,
        (_, -1) => 0,
        (_, dim) => dim,
    };
    let shape: Vec<i64> = input.shape.iter().enumerate().map(open).collect();
    Ok(Tensor::new(&*input.name, input.datatype, shape, Vec::new().into())?)
}

#[cfg(test)]
mod tests {
    use trireme_inference::Shape;

    use super::*;

    #[test]
    fn caches_are_empty_and_have_a_row_for_each_row() {
        let spec = |name: &str, datatype, shape: &[i64]| TensorSpec {
            name: name.into(),
            datatype,
            shape: Shape::from(shape.to_vec()),
            optional: false,
        };
        let cache = empty(&spec("past_key_values.0.key", DataType::Fp16, &[-1, 2, -1, 16]), 3).unwrap();
        assert_eq!(
            (cache.shape().to_vec(), cache.datatype(), cache.data().len()),
            (vec![3, 2, 0, 16], DataType::Fp16, 0)
        );
        let flag = empty(&spec("use_cache_branch", DataType::Bool, &[1]), 3).unwrap();
        assert_eq!((flag.shape().to_vec(), flag.data()[0]), (vec![1], 0));
        let kept = empty(&spec("num_logits_to_keep", DataType::Int64, &[]), 3).unwrap();
        assert_eq!(*kept.values::<i64>().unwrap(), [1]);
        assert!(is_one("past_key_values.0.value") && !is_one("input_ids"));
    }
}
