//! `backend: "static"`: the embedding of a text is the mean of the vectors of its tokens, by a table and without a graph:
//! models of model2vec, and `StaticEmbedding` of sentence-transformers.
//!
//! The version folder holds `model.safetensors` ([`table`]) and may hold `config.json`, whose `normalize` is acted on. Input
//! `input_ids`, and `attention_mask` where there is padding; output `sentence_embedding`. A row without tokens gives zeros.
//!
//! A file of one number for each token (`weight` of one dimension: `SparseStaticEmbedding` of sentence-transformers) gives the output
//! `token_weights` instead, of the shape `[rows, length, 1]`: the numbers of a row's tokens, 0 for padding. Op `distinct` makes a sparse
//! vector of them.
//!
//! | parameter | value | default |
//! |---|---|---|
//! | `normalize` | `true`, `false`: whether vectors get length 1 | `normalize` of `config.json`, else `false` |
//! | `unknown_token_id` | the id of tokens that take no part, as model2vec leaves out unknown words; `none` for none | none |
//!
//! Requests of any lengths share a run: each is computed on its own, so none is padded. A request's parameters `normalize` and
//! `dimensions` mean the same as for `postprocess`.

mod table;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use trireme_engine::{
    Backend, BatchPolicy, Candidate, Decision, Description, ExecuteRequest, ExecuteResponse, ExecuteTiming, Instance,
    LoadError, LoadedModel, ModelInstance, ModelSource,
};
use trireme_inference::{DataType, InferError, ParameterValue, Parameters, Shape, Tensor, TensorSpec, room_for};
use trireme_model_repository::{AutoComplete, ModelConfig};

use self::table::Table;
use trireme_engine::DynamicBatcher;
use trireme_engine::warmup;

const INPUT_IDS: &str = "input_ids";
const ATTENTION_MASK: &str = "attention_mask";
const EMBEDDING: &str = "sentence_embedding";
const TOKEN_WEIGHTS: &str = "token_weights";

/// Most rows of a run where the configuration does not say: beyond that a run gains nothing.
const MAX_ROWS: u32 = 256;

/// The lower limit for the length that a vector is divided by: a vector of zeros stays zeros.
const SMALLEST_LENGTH: f32 = 1e-32;

/// The backend of static embeddings.
#[derive(Clone, Copy, Debug, Default)]
pub struct StaticEmbedding;

/// A table and how it is used; instances share it.
struct StaticModel {
    name: String,
    table: Table,
    normalize: bool,
    unknown: Option<i64>,
    batches: bool,
}

struct StaticInstance(Arc<StaticModel>);

/// Batches requests regardless of their shapes, as many as wait.
struct AnyShape(DynamicBatcher);

/// The settings that a request may change.
struct Wanted {
    normalize: bool,
    dimensions: usize,
}

impl Backend for StaticEmbedding {
    fn name(&self) -> &'static str {
        "static"
    }

    fn load(&self, source: &ModelSource<'_>) -> Result<LoadedModel, LoadError> {
        let mut config = source.config.clone();
        let model = StaticModel::load(source)?;
        if source.auto_complete {
            let found = model.tensors();
            config.complete(found).map_err(|error| LoadError::Config(error.to_string()))?;
        }
        model.check(&config)?;
        let count = source.cpu_instances()?;
        let model = Arc::new(StaticModel { batches: config.max_batch_size > 0, ..model });
        let mut instances = Vec::new();
        for _ in 0..count {
            let mut instance = StaticInstance(Arc::clone(&model));
            warmup::run(&config, source.model_path, &mut instance)?;
            instances.push(Instance::Batch(Box::new(instance)));
        }
        let rows = if config.max_batch_size > 0 { config.max_batch_size } else { MAX_ROWS };
        let settings = config.dynamic_batching.clone().unwrap_or_default();
        let policy = Box::new(AnyShape(DynamicBatcher::new(&settings, rows)));
        let canary = warmup::first(&config, source.model_path)?;
        Ok(LoadedModel {
            config: Arc::new(config),
            instances,
            background: Vec::new(),
            guests: (0..count).map(|_| Box::new(StaticInstance(Arc::clone(&model))) as _).collect(),
            policy,
            canary,
        })
    }
}

// === impl AnyShape ===

impl BatchPolicy for AnyShape {
    fn describe(&self, inputs: &[Tensor]) -> Description {
        Description { signature: 0, ..Description::exact(inputs) }
    }

    fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision {
        self.0.decide(waiting, now)
    }

    fn max_rows(&self) -> u32 {
        self.0.max_rows()
    }
}

// === impl StaticModel ===

impl StaticModel {
    fn load(source: &ModelSource<'_>) -> Result<StaticModel, LoadError> {
        let config = source.config;
        let refused = |reason: String| LoadError::Backend { model: config.name.clone(), reason };
        let name = match config.default_model_filename.as_str() {
            "" => "model.safetensors",
            name => name,
        };
        let path = source.version_path.join(name);
        let file = |path| move |error| LoadError::File { model: config.name.clone(), path, source: error };
        let bytes = std::fs::read(&path).map_err(file(path.clone()))?;
        let table = Table::read(&path, &bytes).map_err(refused)?;

        let path = source.version_path.join("config.json");
        let model_config: Value = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|error| refused(format!("{} is not valid: {error}", path.display())))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Value::Null,
            Err(error) => return Err(file(path)(error)),
        };
        let wrong = |name: &str, found: &str, expected: &str| {
            let model = &config.name;
            LoadError::Config(format!("model '{model}': parameter '{name}' is '{found}', expected {expected}"))
        };
        let normalize = match config.parameters.get("normalize").map(|text| text.trim()) {
            None => model_config["normalize"].as_bool().unwrap_or(false),
            Some(text) => text.parse().map_err(|_| wrong("normalize", text, "'true' or 'false'"))?,
        };
        let unknown = match config.parameters.get("unknown_token_id").map(|text| text.trim()) {
            None | Some("none") => None,
            Some(text) => {
                let id = text.parse().ok().filter(|&id: &i64| id >= 0);
                Some(id.ok_or_else(|| wrong("unknown_token_id", text, "a token id from 0, or 'none'"))?)
            }
        };
        Ok(StaticModel { name: config.name.clone(), table, normalize, unknown, batches: false })
    }

    /// The model's inputs and outputs, with full shapes.
    fn tensors(&self) -> AutoComplete {
        let spec = |name: &str, datatype, shape: [i64; 2], optional| TensorSpec {
            name: name.into(),
            datatype,
            shape: Shape::from(shape),
            optional,
        };
        AutoComplete {
            inputs: vec![
                spec(INPUT_IDS, DataType::Int64, [-1, -1], false),
                spec(ATTENTION_MASK, DataType::Int64, [-1, -1], true),
            ],
            outputs: vec![TensorSpec {
                name: self.output().into(),
                datatype: DataType::Fp32,
                shape: Shape::from(self.output_shape()),
                optional: false,
            }],
            default_max_batch_size: MAX_ROWS,
        }
    }

    fn output(&self) -> &'static str {
        if self.table.is_of_tokens() { TOKEN_WEIGHTS } else { EMBEDDING }
    }

    /// The full shape of the output.
    fn output_shape(&self) -> Vec<i64> {
        let width = self.table.width() as i64;
        if self.table.is_of_tokens() { vec![-1, -1, width] } else { vec![-1, width] }
    }

    /// Checks the declared inputs and outputs against the model's. Reports all faults together.
    fn check(&self, config: &ModelConfig) -> Result<(), LoadError> {
        let mut faults = Vec::new();
        let is_integer = |datatype| matches!(datatype, DataType::Int64 | DataType::Int32);
        for input in config.input_specs() {
            let name = &input.name;
            if ![INPUT_IDS, ATTENTION_MASK].contains(&name.as_str()) {
                faults.push(format!(
                    "unexpected inference input '{name}', allowed inputs are: {INPUT_IDS}, {ATTENTION_MASK}"
                ));
            }
            if !is_integer(input.datatype) {
                let found = input.datatype.config_name();
                faults.push(format!(
                    "unexpected datatype {found} for input '{name}', expecting TYPE_INT64 or TYPE_INT32"
                ));
            }
            if input.shape.len() != 2 {
                faults.push(format!("input '{name}' has full shape {}, expected rows of tokens: [-1,-1]", input.shape));
            }
        }
        if !config.inputs.iter().any(|input| input.name == INPUT_IDS) {
            faults.push(format!("input '{INPUT_IDS}' is missing"));
        }
        let (outputs, expected) = (config.output_specs(), self.output());
        if outputs.len() != 1 {
            faults.push(format!("it declares {} outputs, expected '{expected}'", outputs.len()));
        }
        for output in outputs {
            let TensorSpec { name, datatype, shape, .. } = &output;
            if name != expected {
                faults.push(format!("unexpected inference output '{name}', allowed outputs are: {expected}"));
            }
            if *datatype != DataType::Fp32 {
                faults.push(format!(
                    "unexpected datatype {} for output '{name}', expecting TYPE_FP32",
                    datatype.config_name()
                ));
            }
            let own = self.output_shape();
            let fits = |(&found, &own): (&i64, &i64)| found == own || found == -1;
            if shape.len() != own.len() || shape.first() != Some(&-1) || !shape.iter().zip(&own).all(fits) {
                faults.push(format!("output '{name}' has full shape {shape}, expected {}", Shape::from(own)));
            }
        }
        match faults.is_empty() {
            true => Ok(()),
            false => Err(LoadError::Config(format!("model '{}': {}", config.name, faults.join("; ")))),
        }
    }

    /// The embeddings of one request.
    fn embed(&self, request: &ExecuteRequest) -> Result<Vec<Tensor>, InferError> {
        let output = self.output();
        if let Some(unknown) = request.outputs.iter().find(|name| *name != output) {
            let message = format!("unexpected inference output '{unknown}', allowed outputs are: {output}");
            return Err(InferError::invalid_arg(message));
        }
        let input = |name: &str| request.inputs.iter().find(|tensor| tensor.name() == name);
        let missing = || self.invalid(format!("input '{INPUT_IDS}' is missing"));
        let ids = input(INPUT_IDS).ok_or_else(missing)?;
        let &[rows, length] = &ids.shape()[..] else {
            return Err(self.invalid(format!("input '{INPUT_IDS}' has shape {}, expected rows of tokens", ids.shape())));
        };
        let mask = input(ATTENTION_MASK);
        if let Some(mask) = mask.filter(|mask| mask.shape() != ids.shape()) {
            let (found, expected) = (mask.shape(), ids.shape());
            return Err(self.invalid(format!("input '{ATTENTION_MASK}' has shape {found}, expected {expected}")));
        }
        let (ids, mask) = (integers(ids)?, mask.map(integers).transpose()?);
        let (rows, length) = (rows as usize, length as usize);
        if self.table.is_of_tokens() {
            let weights = self.weights(&ids, mask.as_deref())?;
            let weights = Tensor::from_values(TOKEN_WEIGHTS, [rows as i64, length as i64, 1], weights)?;
            return Ok(if request.outputs.is_empty() { Vec::new() } else { vec![weights] });
        }
        let wanted = self.wanted(&request.parameters)?;
        let given = request.inputs.iter().map(|input| input.data().len()).sum();
        let room = room_for(EMBEDDING, [rows as i64, wanted.dimensions as i64], size_of::<f32>(), given);
        let mut embeddings = vec![0f32; room.map_err(|error| self.invalid(error.to_string()))?];
        let mut sum = vec![0f32; self.table.width()];
        for row in 0..rows {
            let of = row * length..(row + 1) * length;
            let mask = mask.as_ref().map(|mask| &mask[of.clone()]);
            self.mean(&ids[of], mask, &mut sum)?;
            let sum = &mut sum[..wanted.dimensions];
            if wanted.normalize {
                let squares = sum.iter().map(|v| v * v).sum::<f32>();
                let length = squares.sqrt() + SMALLEST_LENGTH;
                sum.iter_mut().for_each(|v| *v /= length);
            }
            embeddings[row * wanted.dimensions..(row + 1) * wanted.dimensions].copy_from_slice(sum);
        }
        if request.outputs.is_empty() {
            return Ok(Vec::new());
        }
        let shape = [rows as i64, wanted.dimensions as i64];
        Ok(vec![Tensor::from_values(EMBEDDING, shape, embeddings)?])
    }

    /// The mean of the vectors of a row's tokens.
    fn mean(&self, ids: &[i64], mask: Option<&[i64]>, sum: &mut [f32]) -> Result<(), InferError> {
        sum.fill(0.0);
        let mut count = 0u32;
        for (position, &id) in ids.iter().enumerate() {
            if mask.is_some_and(|mask| mask[position] == 0) || self.unknown == Some(id) {
                continue;
            }
            self.table.add(self.token(id)?, sum);
            count += 1;
        }
        if count > 0 {
            sum.iter_mut().for_each(|v| *v /= count as f32);
        }
        Ok(())
    }

    /// The numbers of the tokens, where the table has one for each; 0 for padding.
    fn weights(&self, ids: &[i64], mask: Option<&[i64]>) -> Result<Vec<f32>, InferError> {
        let mut weights = vec![0f32; ids.len()];
        for (place, &id) in ids.iter().enumerate() {
            if mask.is_none_or(|mask| mask[place] != 0) {
                self.table.add(self.token(id)?, &mut weights[place..=place]);
            }
        }
        Ok(weights)
    }

    /// The token of this id.
    fn token(&self, id: i64) -> Result<usize, InferError> {
        let tokens = self.table.tokens();
        usize::try_from(id).ok().filter(|&token| token < tokens).ok_or_else(|| {
            let last = tokens.saturating_sub(1);
            self.invalid(format!("input '{INPUT_IDS}' holds {id}, expected token ids from 0 to {last}"))
        })
    }

    fn wanted(&self, parameters: &Parameters) -> Result<Wanted, InferError> {
        let width = self.table.width();
        let normalize = match parameters.get("normalize") {
            None | Some(ParameterValue::Bool(true)) => self.normalize,
            Some(ParameterValue::Bool(false)) => false,
            Some(other) => {
                return Err(self.invalid(format!("parameter 'normalize' is {other}, expected true or false")));
            }
        };
        let dimensions = match parameters.get("dimensions") {
            None => width,
            Some(value) => {
                let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
                number.filter(|number| (1..=width).contains(number)).ok_or_else(|| {
                    self.invalid(format!(
                        "parameter 'dimensions' is {value}, expected from 1 to the {width} of the embedding"
                    ))
                })?
            }
        };
        Ok(Wanted { normalize, dimensions })
    }

    fn rows(&self, request: &ExecuteRequest) -> u32 {
        let rows = request.inputs.first().and_then(|input| input.shape().first().copied());
        if self.batches { rows.map_or(1, |rows| u32::try_from(rows).unwrap_or(u32::MAX)) } else { 1 }
    }

    fn invalid(&self, reason: String) -> InferError {
        InferError::invalid_arg(format!("model '{}': {reason}", self.name))
    }
}

/// The elements of an integer tensor.
fn integers(tensor: &Tensor) -> Result<Vec<i64>, InferError> {
    Ok(match tensor.datatype() {
        DataType::Int32 => tensor.values::<i32>()?.iter().map(|&value| i64::from(value)).collect(),
        _ => tensor.values::<i64>()?.into_owned(),
    })
}

// === impl StaticInstance ===

impl ModelInstance for StaticInstance {
    fn execute(&mut self, requests: &[ExecuteRequest]) -> Vec<Result<ExecuteResponse, InferError>> {
        let started = Instant::now();
        let batch_size = requests.iter().fold(0u32, |rows, request| rows.saturating_add(self.0.rows(request)));
        let results: Vec<_> = requests.iter().map(|request| self.0.embed(request)).collect();
        let timing = ExecuteTiming { compute_infer: started.elapsed(), batch_size, ..ExecuteTiming::default() };
        results
            .into_iter()
            .map(|result| result.map(|outputs| ExecuteResponse { outputs, timing, ..ExecuteResponse::default() }))
            .collect()
    }
}

#[cfg(test)]
mod tests;
