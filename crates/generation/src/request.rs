//! Reads a request's tensors as texts, and writes the sequences found as tensors.

use std::sync::Arc;

use trireme_engine::{ExecuteRequest, LoadError};
use trireme_inference::{DataType, InferError, Name, Shape, Tensor, TensorSpec, room_for};
use trireme_model_repository::ModelConfig;

use super::beams::Found;
use super::options;
use super::random::seed_of;
use super::search::Search;
use super::settings::{Limits, Settings};

pub const INPUT_IDS: &str = "input_ids";
pub const ATTENTION_MASK: &str = "attention_mask";
pub const FORCED_BOS: &str = "forced_bos_token_id";

/// The value of [`FORCED_BOS`] in a row whose request names no language: the model's own setting counts.
const NOT_NAMED: i64 = -1;
/// The output with the ids of all sequences.
pub const GENERATED: &str = "generated_indices";
/// The output that counts the ids which were sent in earlier parts.
pub const EMITTED: &str = "emitted";
/// The output that says whether a part is the last one.
pub const FINAL: &str = "final";
/// The output with the scores of the sequences.
pub const SCORES: &str = "scores";

/// The common format of a model's requests.
#[derive(Clone, Debug)]
pub struct Format {
    /// The model's name.
    pub model: String,
    /// Settings of requests without options of their own.
    pub defaults: Settings,
    /// The limits of the model.
    pub limits: Limits,
    /// The longest text, in ids.
    pub longest_text: usize,
    /// Whether outputs have a batch dimension by `max_batch_size`.
    pub batches: bool,
}

/// A text to generate for.
pub struct Text {
    /// Its ids, without padding at the end.
    pub ids: Vec<i64>,
    /// Its attention mask.
    pub mask: Vec<i64>,
    /// Its search.
    pub search: Search,
}

/// The tensors of every model of this backend, with full shapes.
pub fn tensors(batches: bool) -> (Vec<TensorSpec>, Vec<TensorSpec>) {
    let spec = |name: &str, datatype, shape: &[i64], optional| TensorSpec {
        name: name.into(),
        datatype,
        shape: Shape::from(shape),
        optional,
    };
    let one: &[i64] = if batches { &[-1, 1] } else { &[1] };
    let inputs = vec![
        spec(INPUT_IDS, DataType::Int64, &[-1, -1], false),
        spec(ATTENTION_MASK, DataType::Int64, &[-1, -1], true),
        spec(FORCED_BOS, DataType::Int64, &[-1, 1], true),
    ];
    let outputs = vec![
        spec(GENERATED, DataType::Int64, &[-1, -1], false),
        spec(EMITTED, DataType::Int64, &[-1, 1], false),
        spec(FINAL, DataType::Bool, one, false),
        spec(SCORES, DataType::Fp32, &[-1, 1], false),
    ];
    (inputs, outputs)
}

/// Compares a configuration's tensors with [`tensors`].
pub fn check_config(config: &ModelConfig) -> Result<(), LoadError> {
    let (inputs, outputs) = tensors(config.max_batch_size > 0);
    let refused = |reason: String| LoadError::Config(format!("unable to load model '{}', {reason}", config.name));
    for (kind, declared, offered) in
        [("input", config.input_specs(), &inputs), ("output", config.output_specs(), &outputs)]
    {
        for tensor in &declared {
            let Some(own) = offered.iter().find(|own| own.name == tensor.name) else {
                let allowed = offered.iter().map(|own| own.name.as_str()).collect::<Vec<_>>().join(", ");
                let name = &tensor.name;
                return Err(refused(format!("unexpected inference {kind} '{name}', allowed {kind}s are: {allowed}")));
            };
            if own.datatype != tensor.datatype {
                return Err(refused(format!(
                    "unexpected datatype {} for {kind} '{}', expecting {}",
                    own.datatype,
                    tensor.name,
                    tensor.datatype.config_name()
                )));
            }
            if own.shape.len() != tensor.shape.len() {
                return Err(refused(format!(
                    "{kind} '{}' has shape {}, but the model configuration specifies {}",
                    tensor.name, own.shape, tensor.shape
                )));
            }
        }
    }
    if !config.inputs.iter().any(|input| input.name == INPUT_IDS) {
        return Err(refused(format!("input '{INPUT_IDS}' is missing")));
    }
    Ok(())
}

// === impl Format ===

impl Format {
    /// The texts of a request, and its settings.
    pub fn read(&self, request: &ExecuteRequest) -> Result<(Arc<Settings>, Vec<Text>), InferError> {
        let invalid = |reason: String| InferError::invalid_arg(format!("model '{}': {reason}", self.model));
        let mut settings = self.defaults.clone();
        options::apply_request(&mut settings, &request.parameters)
            .and_then(|()| settings.check(&self.limits))
            .map_err(|error| invalid(error.to_string()))?;
        let settings = Arc::new(settings);
        let seed = settings.seed.unwrap_or_else(|| seed_of(&request.request_id));

        let input = |name: &str| request.inputs.iter().find(|input| input.name() == name);
        let ids = input(INPUT_IDS).ok_or_else(|| invalid(format!("input '{INPUT_IDS}' is missing")))?;
        let &[rows, length] = &ids.shape()[..] else {
            return Err(invalid(format!("input '{INPUT_IDS}' has shape {}, expected [rows,length]", ids.shape())));
        };
        let (rows, length) = (rows as usize, length as usize);
        if rows == 0 || length == 0 {
            return Err(invalid(format!("input '{INPUT_IDS}' has shape {}, expected at least one id", ids.shape())));
        }
        let sequences = (rows as i64).saturating_mul(settings.width() as i64);
        let given = ids.data().len();
        room_for(GENERATED, [sequences, settings.longest() as i64], size_of::<i64>(), given)
            .map_err(|error| invalid(error.to_string()))?;
        let ids = ids.values::<i64>()?;
        let mask = match input(ATTENTION_MASK) {
            Some(mask) if mask.shape()[..] != [rows as i64, length as i64] => {
                let expected = format!("[{rows},{length}] as '{INPUT_IDS}'");
                return Err(invalid(format!(
                    "input '{ATTENTION_MASK}' has shape {}, expected {expected}",
                    mask.shape()
                )));
            }
            Some(mask) => mask.values::<i64>()?.into_owned(),
            None => vec![1; rows * length],
        };
        let forced = match input(FORCED_BOS) {
            Some(forced) if forced.shape()[..] != [rows as i64, 1] => {
                let found = forced.shape();
                return Err(invalid(format!("input '{FORCED_BOS}' has shape {found}, expected [{rows},1]")));
            }
            Some(forced) => {
                // Each row has settings of its own then.
                room_for("settings of all rows", [rows as i64, settings.listed() as i64], size_of::<i64>(), given)
                    .map_err(|error| invalid(error.to_string()))?;
                Some(forced.values::<i64>()?)
            }
            None => None,
        };
        let mut texts = Vec::with_capacity(rows);
        for (row, (ids, mask)) in ids.chunks(length).zip(mask.chunks(length)).enumerate() {
            let settings = match forced.as_ref().map(|forced| forced[row]).filter(|&id| id != NOT_NAMED) {
                Some(id) => {
                    let own = Settings { forced_bos_token_id: Some(id), ..(*settings).clone() };
                    own.check(&self.limits).map_err(|error| invalid(error.to_string()))?;
                    Arc::new(own)
                }
                None => settings.clone(),
            };
            let (ids, mask) = self.read_text(row, ids, mask).map_err(invalid)?;
            texts.push(Text { ids, mask, search: Search::new(&settings, seed, row) });
        }
        Ok((settings, texts))
    }

    fn read_text(&self, row: usize, ids: &[i64], mask: &[i64]) -> Result<(Vec<i64>, Vec<i64>), String> {
        if let Some(found) = mask.iter().find(|&&value| value != 0 && value != 1) {
            return Err(format!("input '{ATTENTION_MASK}' has to be of zeros and ones, found {found} in row {row}"));
        }
        let Some(last) = mask.iter().rposition(|&value| value == 1) else {
            return Err(format!("input '{ATTENTION_MASK}' leaves no id of row {row}"));
        };
        let (ids, mask) = (&ids[..=last], &mask[..=last]);
        if ids.len() > self.longest_text {
            let (found, longest) = (ids.len(), self.longest_text);
            return Err(format!("row {row} of input '{INPUT_IDS}' has {found} ids, the model takes at most {longest}"));
        }
        let vocabulary = self.limits.vocabulary;
        if let Some(id) = ids.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= vocabulary)) {
            return Err(format!(
                "row {row} of input '{INPUT_IDS}' has id {id}, but the vocabulary has {vocabulary} ids"
            ));
        }
        Ok((ids.to_vec(), mask.to_vec()))
    }

    /// The outputs named in `wanted`. `found` are the sequences of all rows, `rows` is the number of texts, `emitted`
    /// the number of ids in earlier parts.
    pub fn write(
        &self,
        wanted: &[Name],
        found: &[Found],
        rows: usize,
        emitted: usize,
        last: bool,
    ) -> Result<Vec<Tensor>, InferError> {
        let length = found.iter().map(|found| found.ids.len()).max().unwrap_or(0);
        let tensor = |name: &Name| match name.as_str() {
            GENERATED => {
                let pad = self.defaults.pad();
                let mut ids = Vec::with_capacity(found.len() * length);
                for (index, found) in found.iter().enumerate() {
                    ids.extend_from_slice(&found.ids);
                    ids.resize((index + 1) * length, pad);
                }
                Tensor::from_values(GENERATED, [found.len() as i64, length as i64], ids).map_err(InferError::from)
            }
            EMITTED => {
                Tensor::from_values(EMITTED, [rows as i64, 1], vec![emitted as i64; rows]).map_err(InferError::from)
            }
            FINAL => {
                let shape = if self.batches { Shape::from([rows as i64, 1]) } else { Shape::from([1]) };
                let count = if self.batches { rows } else { 1 };
                Tensor::new(FINAL, DataType::Bool, shape, bytes::Bytes::from(vec![u8::from(last); count]))
                    .map_err(InferError::from)
            }
            SCORES => {
                let scores = found.iter().map(|found| found.score).collect::<Vec<_>>();
                Tensor::from_values(SCORES, [found.len() as i64, 1], scores).map_err(InferError::from)
            }
            other => Err(InferError::invalid_arg(format!(
                "unexpected inference output '{other}', allowed outputs are: {GENERATED}, {EMITTED}, {FINAL}, {SCORES}"
            ))),
        };
        wanted.iter().map(tensor).collect()
    }
}
