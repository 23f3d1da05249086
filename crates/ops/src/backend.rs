//! [`PostprocessBackend`] and its instances.

use std::sync::Arc;
use std::time::Instant;

use trireme_engine::{
    Backend, ExecuteRequest, ExecuteResponse, ExecuteTiming, Instance, LoadError, LoadedModel, ModelInstance,
    ModelSource, OneAtATime, in_background,
};
use trireme_inference::{DataType, InferError, nearest};
use trireme_model_repository::{ModelConfig, ModelInput};

use crate::chain::used_inputs;
use crate::graph_end::GraphEnd;
use crate::inputs::SideInputs;
use crate::ops::Resources;
use crate::options::RequestOptions;
use crate::outputs::Outputs;
use crate::{Chain, Form, Labels, Signature, Value};

/// Loads models with `backend: "postprocess"`.
///
/// ```
/// # use std::path::Path;
/// # use trireme_engine::{ExecuteRequest, ModelSource};
/// # use trireme_inference::Tensor;
/// use trireme_engine::Backend;
/// use trireme_model_repository::ModelConfig;
/// use trireme_ops::PostprocessBackend;
///
/// let config = ModelConfig::parse(
///     "backend: 'postprocess' parameters { key: 'ops' value { string_value: 'softmax, argmax' } }
///      input [ { name: 'logits' data_type: TYPE_FP32 dims: [ -1, 3 ] } ]
///      output [ { name: 'class' data_type: TYPE_INT64 dims: [ -1 ] } ]",
///     "classes",
/// )?;
/// # let (path, version) = (Path::new("models/classes"), 1);
/// # let (model_path, version_path, auto_complete, uploaded) = (path, path, false, None);
/// # let calls = Default::default();
/// # let source = ModelSource { config: &config, version, model_path, version_path, auto_complete, uploaded, calls };
/// let mut model = PostprocessBackend.load(&source)?;
/// let logits = Tensor::from_values("logits", [1, 3], vec![0.5f32, -1.0, 2.0])?;
/// let request = ExecuteRequest::made_up("1", vec![logits], ["class"]);
/// let instance = model.instances[0].as_batch().expect("it executes batches");
/// assert_eq!(*instance.execute(&[request]).remove(0)?.outputs[0].values::<i64>()?, [2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct PostprocessBackend;

/// A chain with its inputs and outputs; instances share it.
struct PostprocessModel {
    name: String,
    chain: Chain,
    data: String,
    side: SideInputs,
    outputs: Outputs,
    /// The work that the graph before the chain has done already.
    graph_end: Option<GraphEnd>,
    /// Whether requests have a batch dimension.
    batches: bool,
}

struct PostprocessInstance(Arc<PostprocessModel>);

// === impl PostprocessBackend ===

impl Backend for PostprocessBackend {
    fn name(&self) -> &'static str {
        "postprocess"
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        let instances = source.cpu_instances()?;
        let shared = Arc::new(PostprocessModel::load(source)?);
        let instance = || Instance::Batch(Box::new(PostprocessInstance(Arc::clone(&shared))));
        let guest = || Box::new(PostprocessInstance(Arc::clone(&shared))) as Box<dyn ModelInstance>;
        let background = || {
            let shared = Arc::clone(&shared);
            in_background(move || Ok(PostprocessInstance(shared)))
        };
        Ok(LoadedModel {
            config: Arc::new(source.config.clone()),
            instances: std::iter::repeat_with(instance).take(instances).collect(),
            background: std::iter::repeat_with(background).take(instances).collect(),
            guests: std::iter::repeat_with(guest).take(instances).collect(),
            policy: Box::new(OneAtATime),
            canary: None,
        })
    }
}

fn refused(config: &ModelConfig, reason: impl std::fmt::Display) -> LoadError {
    LoadError::Config(format!("model '{}': {reason}", config.name))
}

// === impl PostprocessInstance ===

impl ModelInstance for PostprocessInstance {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        requests.iter().map(|request| self.0.execute(request)).collect()
    }
}

// === impl PostprocessModel ===

impl PostprocessModel {
    fn load(source: &ModelSource<'_>) -> Result<PostprocessModel, LoadError> {
        let config = source.config;
        check_parameters(config)?;
        let labels = labels(source)?;
        let [data, others @ ..] = config.inputs.as_slice() else {
            return Err(refused(config, "it declares no inputs, expected the data as the first"));
        };
        let ops = config.parameters.get("ops").map_or("", String::as_str);
        let side = SideInputs::of(others, &used_inputs(ops)).map_err(|reason| refused(config, reason))?;
        let resources = Resources { version_path: source.version_path, labels: &labels, inputs: &side };
        let chain_fault = |error| refused(config, format_args!("parameter 'ops' is '{ops}': {error}"));
        let chain = Chain::parse(ops, &resources).map_err(chain_fault)?;
        let input = Signature::new(data_form(config, data)?, config.full_shape(&data.dims));
        let result = chain.signature(input).map_err(chain_fault)?;
        let outputs = Outputs::of(&config.output_specs(), &result, labels);
        let graph_end = config.parameters.get("graph_ends_with").map(|name| GraphEnd::named(name));
        Ok(PostprocessModel {
            name: config.name.clone(),
            chain,
            data: data.name.clone(),
            side,
            outputs: outputs.map_err(|faults| refused(config, faults.join("; ")))?,
            graph_end: graph_end.transpose().map_err(|reason| refused(config, reason))?,
            batches: config.max_batch_size > 0,
        })
    }

    fn execute(&self, request: &ExecuteRequest) -> Result<ExecuteResponse, InferError> {
        let started = Instant::now();
        let input = |name: &str| request.inputs.iter().find(|tensor| tensor.name() == name);
        let missing = || InferError::invalid_arg(format!("input '{}' is missing", self.data));
        let options = RequestOptions::from_parameters(&request.parameters)?;
        if let Some(end) = self.graph_end {
            end.check(&self.name, &self.data, &options)?;
        }
        if options.fold.is_some() && !self.chain.folds() {
            return Err(InferError::unsupported(format!(
                "model '{}': parameter 'fold' is given, but no op of this model folds the windows of a text: leave it out",
                self.name
            )));
        }
        let data = Value::from_tensor(input(&self.data).ok_or_else(missing)?)?;
        let side = self.side.find(&self.name, request, options);
        let rows = data.dims().first().copied().unwrap_or(1);

        let read = Instant::now();
        let result = self.chain.run(data, &side)?;

        let ran = Instant::now();
        let outputs = self.outputs.tensors(&result, side.mask, &request.outputs)?;
        let timing = ExecuteTiming {
            compute_input: read - started,
            compute_infer: ran - read,
            compute_output: ran.elapsed(),
            batch_size: if self.batches { u32::try_from(rows).unwrap_or(u32::MAX) } else { 1 },
        };
        Ok(ExecuteResponse { outputs, timing, ..ExecuteResponse::default() })
    }
}

/// Reports unknown parameters, and a `beside_model` that says neither. Keys with a dot or a capital letter belong to other programs.
fn check_parameters(config: &ModelConfig) -> Result<(), LoadError> {
    const KNOWN: [&str; 4] = ["beside_model", "graph_ends_with", "labels", "ops"];
    let is_unknown =
        |key: &&String| !KNOWN.contains(&key.as_str()) && !key.contains(|c: char| c == '.' || c.is_uppercase());
    let meant = |key: &&String| nearest(key, KNOWN).is_some();
    if let Some(key) = config.parameters.keys().find(|key| is_unknown(key) || meant(key)) {
        let known = KNOWN.join(", ");
        return Err(refused(config, format_args!("unknown parameter '{key}', expected one of {known}")));
    }
    match config.parameters.get("beside_model").map(String::as_str) {
        None | Some("true" | "false") => Ok(()),
        Some(other) => {
            Err(refused(config, format_args!("parameter 'beside_model' is '{other}', expected 'true' or 'false'")))
        }
    }
}

/// The labels: parameter `labels`, or the label file of the first output that has one.
fn labels(source: &ModelSource<'_>) -> Result<Labels, LoadError> {
    if let Some(list) = source.config.parameters.get("labels") {
        return Ok(Labels::from_list(list));
    }
    let Some(output) = source.config.outputs.iter().find(|output| !output.label_filename.is_empty()) else {
        return Ok(Labels::default());
    };
    let path = source.model_path.join(&output.label_filename);
    Labels::read(&path).map_err(|error| LoadError::File { model: source.config.name.clone(), path, source: error })
}

/// The form that the data input has as a value.
fn data_form(config: &ModelConfig, data: &ModelInput) -> Result<Form, LoadError> {
    match data.datatype {
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => Ok(Form::Floats),
        DataType::Int32 | DataType::Int64 => Ok(Form::Ints),
        DataType::Bytes => Ok(Form::Texts),
        other => Err(refused(
            config,
            format_args!(
                "unexpected datatype {} for inference input '{}', expecting a floating point type, TYPE_INT64, TYPE_INT32 or TYPE_STRING",
                other.config_name(),
                data.name
            ),
        )),
    }
}
