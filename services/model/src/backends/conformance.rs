//! The requirements on every backend, as a function that each backend's tests call with a model of their own.

use std::path::Path;

use bytes::Bytes;
use trireme_engine::{Backend, ExecuteRequest, LoadError, LoadedModel, ModelSource};
use trireme_inference::{ErrorCode, InferError, MAX_EMPTY_SIZE, MAX_MESSAGE_BYTES, Shape, Tensor, TensorSpec};
use trireme_model_repository::ModelConfig;

/// A batching model's work.
pub struct Case {
    /// Inputs of several valid requests of one row each, which may share a batch.
    pub inputs: Vec<Vec<Tensor>>,
    /// All outputs of the model.
    pub outputs: Vec<String>,
}

/// Loads version 1 of the model in `directory` with auto-completion.
pub fn load(
    backend: &dyn Backend,
    config: &ModelConfig,
    directory: impl AsRef<Path>,
) -> Result<LoadedModel, LoadError> {
    let model_path = directory.as_ref();
    let version_path = model_path.join("1");
    backend.load(&ModelSource {
        config,
        version: 1,
        model_path,
        version_path: &version_path,
        auto_complete: true,
        uploaded: None,
        calls: Default::default(),
    })
}

/// A request for `outputs` that is not cancelled.
pub fn request(inputs: &[Tensor], outputs: &[impl ToString]) -> ExecuteRequest {
    ExecuteRequest::made_up("test", inputs.to_vec(), outputs.iter().map(ToString::to_string))
}

/// Panics where `backend`, on the model that `config` and `directory` describe, breaks the contract of
/// [`trireme_engine::ModelInstance`].
pub fn check(backend: &dyn Backend, config: &ModelConfig, directory: impl AsRef<Path>, case: &Case) {
    assert!(!backend.name().is_empty());
    assert!(case.inputs.len() > 2, "a batch of one proves nothing");
    let model = load(backend, config, directory).expect("the model loads");
    let specs = model.config.output_specs();
    assert_eq!(specs.len(), case.outputs.len(), "the case names all outputs");
    let groups: usize = model.config.instance_groups.iter().map(|group| group.count as usize).sum();
    assert_eq!(model.instances.len(), groups, "as many instances as configured");
    assert!(model.policy.max_rows() >= 1);

    for mut instance in model.instances {
        let instance = instance.as_batch().expect("an instance that executes batches");
        // Instances live on threads of their own.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(instance.execute(&[]).is_empty(), "no requests, no results");

                let requests: Vec<_> = case.inputs.iter().map(|inputs| request(inputs, &case.outputs)).collect();
                let mut alone = Vec::new();
                for request in &requests {
                    let mut results = instance.execute(std::slice::from_ref(request));
                    assert_eq!(results.len(), 1);
                    let response = results.remove(0).expect("a valid request succeeds");
                    assert_eq!(response.timing.batch_size, 1, "each request of the case is one row");
                    for (spec, output) in specs.iter().zip(&response.outputs) {
                        assert_eq!((output.name(), output.datatype()), (&*spec.name, spec.datatype));
                        assert!(spec.shape.accepts(output.shape()), "{} {} {}", spec.name, spec.shape, output.shape());
                    }
                    alone.push(response.outputs);
                }

                let together = instance.execute(&requests);
                assert_eq!(together.len(), requests.len());
                for (result, alone) in together.iter().zip(&alone) {
                    let response = result.as_ref().expect("valid requests succeed together too");
                    assert_eq!(response.timing.batch_size as usize, requests.len());
                    assert_same(&response.outputs, alone);
                }

                for (wanted, alone) in case.outputs.iter().zip(&alone[0]) {
                    let one = request(&case.inputs[0], &[wanted]);
                    let response = instance.execute(&[one]).remove(0).expect("any output may be asked for alone");
                    let output = response.outputs.iter().find(|output| output.name() == wanted);
                    assert_same(&[output.expect("the output asked for is there").clone()], std::slice::from_ref(alone));
                }

                let mut mixed = requests.clone();
                mixed[1].inputs.clear();
                mixed[2].outputs = vec!["no such output".into()];
                let results = instance.execute(&mixed);
                assert_eq!(results.len(), mixed.len());
                for (index, (result, alone)) in results.iter().zip(&alone).enumerate() {
                    match index {
                        1 | 2 => assert!(result.is_err(), "request {index} asks for the impossible"),
                        _ => assert_same(&result.as_ref().expect("a neighbour's fault is not mine").outputs, alone),
                    }
                }

                if let Some(vast) = vast_and_empty(&model.config) {
                    let response = instance.execute(&[request(&vast, &case.outputs)]).remove(0);
                    assert_bounded(&model.config.name, response.map(|response| response.outputs));
                }
            });
        });
    }
}

/// Inputs of as many rows as a shape without elements may claim; `None` where a row has elements, so that rows have their price.
fn vast_and_empty(config: &ModelConfig) -> Option<Vec<Tensor>> {
    let input = |TensorSpec { name, datatype, shape, .. }: TensorSpec| {
        let open = |(axis, &dim): (usize, &i64)| if axis == 0 { MAX_EMPTY_SIZE as i64 } else { dim.max(0) };
        let shape: Shape = shape.iter().enumerate().map(open).collect::<Vec<_>>().into();
        Tensor::new(name, datatype, shape, Bytes::new()).ok()
    };
    config.input_specs().into_iter().map(input).collect()
}

/// Asserts that a request which costs its sender nothing was answered in little, or refused with the model, a tensor, and both sizes.
pub fn assert_bounded(model: &str, outputs: Result<Vec<Tensor>, InferError>) {
    match outputs {
        Ok(outputs) => {
            let size: usize = outputs.iter().map(|output| output.data().len()).sum();
            assert!(size <= MAX_MESSAGE_BYTES, "{size} bytes of nothing");
        }
        Err(error) => {
            let words = [&format!("model '{model}': tensor '"), " bytes, and a request may ask for 134217728 at most"];
            assert!(words.iter().all(|word| error.message.contains(*word)), "{error}");
            assert_eq!(error.code, ErrorCode::InvalidArg);
        }
    }
}

/// Asserts that outputs are equal, floats to within rounding: a batch may be computed in another order than its rows alone.
fn assert_same(left: &[Tensor], right: &[Tensor]) {
    assert_eq!(left.len(), right.len());
    for (left, right) in left.iter().zip(right) {
        match (left.values::<f32>(), right.values::<f32>()) {
            (Ok(l), Ok(r)) => {
                assert_eq!((left.name(), left.shape()), (right.name(), right.shape()));
                assert!(l.iter().zip(&*r).all(|(l, r)| (l - r).abs() <= 1e-5 * r.abs().max(1.0)), "{l:?} {r:?}");
            }
            _ => assert_eq!(left, right),
        }
    }
}
