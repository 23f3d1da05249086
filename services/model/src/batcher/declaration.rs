//! The declaration for batching by length: the `parameters` of config.pbtxt that turn it on.
//!
//! | parameter | value | default |
//! |---|---|---|
//! | `pad_inputs` | inputs that may be padded, with their fillers: `input_ids:0, attention_mask:0` | none: no padding |
//! | `unpad_outputs` | outputs whose rows are as long as the inputs: `last_hidden_state`; empty for none | those whose dimension after the batch is -1 |
//! | `token_budget` | most tokens (rows × padded length) of one run | measured, else 1024 |
//! | `max_overtake_microseconds` | how long later requests may go first | two full runs as measured, at least 50000 |
//! | `pad_to_multiple_of` | lengths of runs are multiples of this | measured with an accelerator, else 1 |
//! | `max_rows` | most rows of one run, where `max_batch_size` is 0 and the dimensions spell the batch out | 64 |
//! | `padding_side` | `left` or `right`: where shorter rows are filled up | `right` |
//! | `padding_check` | `apart`: requests that change one another's results do not share a run; `off`: that is not tried; `alone`: no rows share a run, without a trial | `apart` |
//! | `sample_rows` | rows of token ids, a JSON array of arrays: with them the load tries whether the graph takes such rows, and whether they may share a run | made up |
//! | `longest_row` | tokens of a row that has to run, too, beside the `sample_rows` | none |
//! | `packing` | `off`, `auto` or `on`: whether the packed graph serves | that of the process |
//! | `cost_model` | `measured`: the cost of runs is measured when the model is loaded; `off` | `measured` |
//!
//! `token_budget` counts without `pad_inputs` for a model of spans ([`spans`]), whose requests have several runs then.
//! `sample_rows` and `longest_row` count without `pad_inputs`, too: the load tries them on a graph whose rows have one length, or no mask.
//!
//! The padded dimension is the first -1 after the batch dimension. The batch dimension is implied by `max_batch_size`;
//! with `max_batch_size: 0` it is the first of `dims`, and has to be -1 everywhere.

use std::time::Duration;

use trireme_engine::LoadError;
use trireme_inference::{DataType, Shape};
use trireme_model_repository::ModelConfig;

use super::packing::Packing;
use super::padding::{PaddedInput, Padding, Steps, UnpaddedOutput};
use super::spans::{self, SpanRows};

const PAD_INPUTS: &str = "pad_inputs";
const UNPAD_OUTPUTS: &str = "unpad_outputs";
const TOKEN_BUDGET: &str = "token_budget";
const MAX_OVERTAKE: &str = "max_overtake_microseconds";
const MULTIPLE: &str = "pad_to_multiple_of";
const MAX_ROWS: &str = "max_rows";
const PADDING_SIDE: &str = "padding_side";
const PADDING_CHECK: &str = "padding_check";
const SAMPLE_ROWS: &str = "sample_rows";
const LONGEST_ROW: &str = "longest_row";
const COST_MODEL: &str = "cost_model";
const PACKING: &str = "packing";

const DEFAULT_MAX_ROWS: u32 = 64;

/// The inputs that a tokenizer makes.
const TOKENIZED: [&str; 4] = ["input_ids", "attention_mask", "token_type_ids", "position_ids"];

/// A model's declaration that it can be batched by length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// The inputs to pad and the outputs to cut.
    pub padding: Padding,
    /// Most rows of one run.
    pub max_rows: u32,
    /// Most tokens of one run, if the configuration sets it.
    pub token_budget: Option<u32>,
    /// How long later requests may overtake a request, if the configuration sets it.
    pub max_overtake: Option<Duration>,
    /// Whether the configuration says of what the lengths of runs are multiples.
    pub has_multiple: bool,
    /// Whether to measure the costs of runs.
    pub measure: bool,
    /// Whether the load tries if rows may share a run.
    pub check: bool,
    /// Whether no rows share a run, whatever a trial would show.
    pub alone: bool,
    /// Rows of token ids, with which the load tries whether rows may share a run; empty: made-up ones.
    pub sample_rows: Vec<Vec<i64>>,
    /// Tokens of a row that has to run, too, if the configuration says so.
    pub longest_row: Option<u32>,
    /// The length of all rows, where the inputs insist on one.
    pub fixed_length: Option<u32>,
    /// Whether the packed graph serves, if the configuration says so.
    pub packing: Option<Packing>,
}

/// Reads parameters and collects their faults.
struct Reader<'a> {
    config: &'a ModelConfig,
    faults: Vec<String>,
}

// === impl Declaration ===

impl Declaration {
    /// The declaration in `config`, if it has one. All faults are reported together.
    pub fn parse(config: &ModelConfig) -> Result<Option<Declaration>, LoadError> {
        Reader::read(config, Reader::declaration)
    }

    /// For a model of spans, which has no declaration: how the rows of a request are divided, if its configuration says so.
    pub fn of_spans(config: &ModelConfig) -> Option<SpanRows> {
        let budget = Reader { config, faults: Vec::new() }.number(TOKEN_BUDGET);
        budget.filter(|_| spans::is_of_spans(config)).map(SpanRows::new)
    }

    /// For a configuration without a declaration: the rows that the load tries on it, if it has any. They are not batched by it.
    pub fn of_rows(config: &ModelConfig) -> Result<Option<Declaration>, LoadError> {
        Reader::read(config, Reader::rows_alone)
    }
}

// === impl Reader ===

impl<'a> Reader<'a> {
    /// The declaration that `read` finds, or all faults.
    fn read<T>(config: &'a ModelConfig, read: impl FnOnce(&mut Reader<'a>) -> T) -> Result<T, LoadError> {
        let mut reader = Reader { config, faults: Vec::new() };
        let found = read(&mut reader);
        match reader.faults.is_empty() {
            true => Ok(found),
            false => Err(LoadError::Config(format!("model '{}': {}", config.name, reader.faults.join("; ")))),
        }
    }

    fn rows_alone(&mut self) -> Option<Declaration> {
        let sample_rows = self.sample_rows();
        if sample_rows.is_empty() || self.text(PAD_INPUTS).is_some() {
            return None;
        }
        let tokenized = self.config.inputs.iter().filter(|input| TOKENIZED.contains(&input.name.as_str()));
        let input = |name: &str| PaddedInput { name: name.to_owned(), axis: 1, value: vec![0; 8], left: false };
        let lengths = tokenized.clone().filter_map(|input| self.config.full_shape(&input.dims).get(1).copied());
        let fixed_length = lengths.max().and_then(|length| u32::try_from(length).ok());
        let inputs = tokenized.map(|own| input(&own.name)).collect();
        Some(Declaration {
            padding: Padding { inputs, outputs: Vec::new(), steps: Steps::default() },
            max_rows: 1,
            token_budget: None,
            max_overtake: None,
            has_multiple: false,
            measure: false,
            check: false,
            alone: false,
            sample_rows,
            longest_row: self.number(LONGEST_ROW),
            packing: None,
            fixed_length,
        })
    }

    fn declaration(&mut self) -> Option<Declaration> {
        let Some(pad_inputs) = self.text(PAD_INPUTS) else {
            for name in [
                UNPAD_OUTPUTS,
                TOKEN_BUDGET,
                MAX_OVERTAKE,
                MULTIPLE,
                MAX_ROWS,
                COST_MODEL,
                PACKING,
                PADDING_SIDE,
                PADDING_CHECK,
            ] {
                let divides = name == TOKEN_BUDGET && spans::is_of_spans(self.config);
                if divides {
                    self.number(name);
                } else if self.text(name).is_some() {
                    self.faults.push(format!("parameter '{name}' has no effect without '{PAD_INPUTS}'"));
                }
            }
            return None;
        };
        self.check_batch_dimension();
        let left = self.pads_left();
        let mut inputs = self.pad_inputs(pad_inputs);
        inputs.iter_mut().for_each(|input| input.left = left);
        let mut outputs = self.unpad_outputs();
        outputs.iter_mut().for_each(|output| output.left = left);
        let max_rows = self.number(MAX_ROWS);
        let max_rows = match (self.config.max_batch_size, max_rows) {
            (0, rows) => rows.unwrap_or(DEFAULT_MAX_ROWS),
            (rows, None) => rows,
            (rows, Some(_)) => {
                self.faults.push(format!("parameter '{MAX_ROWS}' is for models of max_batch_size 0, found {rows}"));
                rows
            }
        };
        let multiple = self.number(MULTIPLE);
        let steps = Steps { multiple: multiple.unwrap_or(1), ..Steps::default() };
        let (check, alone) = self.padding_check();
        Some(Declaration {
            padding: Padding { inputs, outputs, steps },
            has_multiple: multiple.is_some(),
            max_rows,
            token_budget: self.number(TOKEN_BUDGET),
            max_overtake: self.microseconds(MAX_OVERTAKE),
            measure: self.cost_model(),
            check,
            alone,
            sample_rows: self.sample_rows(),
            longest_row: self.number(LONGEST_ROW),
            fixed_length: None,
            packing: self.packing(),
        })
    }

    /// If `dims` contain the batch dimension, every tensor has to have it.
    fn check_batch_dimension(&mut self) {
        if self.config.max_batch_size > 0 {
            return;
        }
        let inputs = self.config.inputs.iter().map(|input| ("input", &input.name, &input.dims));
        let outputs = self.config.outputs.iter().map(|output| ("output", &output.name, &output.dims));
        for (kind, name, dims) in inputs.chain(outputs).filter(|(_, _, dims)| dims.first() != Some(&-1)) {
            self.faults.push(format!(
                "parameter '{PAD_INPUTS}' with max_batch_size 0 needs the batch as first dimension, which has to be -1; \
                 {kind} '{name}' has dims {dims}"
            ));
        }
    }

    fn pad_inputs(&mut self, text: &str) -> Vec<PaddedInput> {
        let mut inputs: Vec<PaddedInput> = Vec::new();
        for item in text.split(',').map(str::trim) {
            // Names may contain colons.
            let Some((name, value)) = item.rsplit_once(':').map(|(name, value)| (name.trim(), value.trim())) else {
                self.faults.push(format!("parameter '{PAD_INPUTS}' has to list 'input:value', found '{item}'"));
                continue;
            };
            match self.pad_input(name, value) {
                Ok(_) if inputs.iter().any(|input| input.name == name) => {
                    self.faults.push(format!("parameter '{PAD_INPUTS}' names input '{name}' twice"));
                }
                Ok(input) => inputs.push(input),
                Err(fault) => self.faults.push(format!("parameter '{PAD_INPUTS}': {fault}")),
            }
        }
        inputs
    }

    fn pad_input(&self, name: &str, value: &str) -> Result<PaddedInput, String> {
        let inputs = &self.config.inputs;
        let input = inputs.iter().find(|input| input.name == name).ok_or_else(|| {
            let known = inputs.iter().map(|input| input.name.as_str()).collect::<Vec<_>>().join(", ");
            format!("there is no input '{name}', inputs are: {known}")
        })?;
        if input.reshape.is_some() {
            return Err(format!("input '{name}' has a reshape and cannot be padded"));
        }
        if input.datatype == DataType::Bytes {
            return Err(format!("input '{name}' of BYTES cannot be padded"));
        }
        let axis = self
            .open_axis(&input.dims)
            .ok_or_else(|| format!("input '{name}' has no dimension of -1 to pad, found dims {}", input.dims))?;
        let value = element(input.datatype, value).ok_or_else(|| {
            format!("the padding of input '{name}' has to be a value of {}, found '{value}'", input.datatype)
        })?;
        Ok(PaddedInput { name: name.to_owned(), axis, value, left: false })
    }

    fn unpad_outputs(&mut self) -> Vec<UnpaddedOutput> {
        let config = self.config;
        let Some(text) = self.text(UNPAD_OUTPUTS) else {
            let after_batch = usize::from(config.max_batch_size == 0);
            let open = config.outputs.iter().filter(|output| output.dims.get(after_batch) == Some(&-1));
            let open = open.filter(|output| output.reshape.is_none() && output.datatype != DataType::Bytes);
            return open.map(|output| UnpaddedOutput { name: output.name.clone(), axis: 1, left: false }).collect();
        };
        let mut outputs = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let fault = match config.outputs.iter().find(|output| output.name == name) {
                None => {
                    let known = config.outputs.iter().map(|output| output.name.as_str()).collect::<Vec<_>>().join(", ");
                    format!("there is no output '{name}', outputs are: {known}")
                }
                Some(output) if output.reshape.is_some() => format!("output '{name}' has a reshape and cannot be cut"),
                Some(output) if output.datatype == DataType::Bytes => format!("output '{name}' of BYTES cannot be cut"),
                Some(output) => match self.open_axis(&output.dims) {
                    Some(axis) => {
                        outputs.push(UnpaddedOutput { name: name.to_owned(), axis, left: false });
                        continue;
                    }
                    None => format!("output '{name}' has no dimension of -1 to cut, found dims {}", output.dims),
                },
            };
            self.faults.push(format!("parameter '{UNPAD_OUTPUTS}': {fault}"));
        }
        outputs
    }

    /// The index of the first -1 after the batch dimension; the batch dimension is counted.
    fn open_axis(&self, dims: &Shape) -> Option<usize> {
        let full = self.config.full_shape(dims);
        full.iter().enumerate().skip(1).find(|(_, dimension)| **dimension == -1).map(|(axis, _)| axis)
    }

    fn sample_rows(&mut self) -> Vec<Vec<i64>> {
        let Some(text) = self.text(SAMPLE_ROWS) else { return Vec::new() };
        let rows = serde_json::from_str::<Vec<Vec<i64>>>(text).ok();
        let rows = rows.filter(|rows| rows.len() > 1 && rows.iter().all(|row| !row.is_empty()));
        if rows.is_none() {
            self.faults.push(format!(
                "parameter '{SAMPLE_ROWS}' has to be a JSON array of at least two arrays of token ids, found '{text}'"
            ));
        }
        rows.unwrap_or_default()
    }

    /// Whether it is tried if rows may share a run, and whether they may not in any case.
    fn padding_check(&mut self) -> (bool, bool) {
        match self.text(PADDING_CHECK) {
            None | Some("apart") => (true, false),
            Some("off") => (false, false),
            Some("alone") => (false, true),
            Some(other) => {
                self.faults.push(format!("parameter '{PADDING_CHECK}' has to be apart, off or alone, found '{other}'"));
                (true, false)
            }
        }
    }

    fn packing(&mut self) -> Option<Packing> {
        match self.text(PACKING)? {
            "off" => Some(Packing::Off),
            "auto" => Some(Packing::Auto),
            "on" => Some(Packing::On),
            other => {
                self.faults.push(format!("parameter '{PACKING}' has to be off, auto or on, found '{other}'"));
                None
            }
        }
    }

    /// Whether rows are filled up on the left.
    fn pads_left(&mut self) -> bool {
        match self.text(PADDING_SIDE) {
            None | Some("right") => false,
            Some("left") => true,
            Some(other) => {
                self.faults.push(format!("parameter '{PADDING_SIDE}' has to be left or right, found '{other}'"));
                false
            }
        }
    }

    fn cost_model(&mut self) -> bool {
        match self.text(COST_MODEL) {
            None | Some("measured") => true,
            Some("off") => false,
            Some(other) => {
                self.faults.push(format!("parameter '{COST_MODEL}' has to be measured or off, found '{other}'"));
                false
            }
        }
    }

    fn microseconds(&mut self, name: &str) -> Option<Duration> {
        let text = self.text(name)?;
        let time = text.parse().ok().map(Duration::from_micros);
        if time.is_none() {
            self.faults.push(format!("parameter '{name}' has to be a whole number of microseconds, found '{text}'"));
        }
        time
    }

    fn number(&mut self, name: &str) -> Option<u32> {
        let text = self.text(name)?;
        let number = text.parse().ok().filter(|&number| number > 0);
        if number.is_none() {
            self.faults.push(format!("parameter '{name}' has to be a whole number of at least 1, found '{text}'"));
        }
        number
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        self.config.parameters.get(name).map(|text| text.trim())
    }
}

/// The bytes of one element of `datatype`; `None` if `text` is not a valid value.
fn element(datatype: DataType, text: &str) -> Option<Vec<u8>> {
    fn number<T: std::str::FromStr + bytemuck::Pod>(text: &str) -> Option<Vec<u8>> {
        text.parse::<T>().ok().map(|value| bytemuck::bytes_of(&value).to_vec())
    }
    match datatype {
        DataType::Bool => match text {
            "0" | "false" => Some(vec![0]),
            "1" | "true" => Some(vec![1]),
            _ => None,
        },
        DataType::Uint8 => number::<u8>(text),
        DataType::Uint16 => number::<u16>(text),
        DataType::Uint32 => number::<u32>(text),
        DataType::Uint64 => number::<u64>(text),
        DataType::Int8 => number::<i8>(text),
        DataType::Int16 => number::<i16>(text),
        DataType::Int32 => number::<i32>(text),
        DataType::Int64 => number::<i64>(text),
        DataType::Fp16 => number::<half::f16>(text),
        DataType::Bf16 => number::<half::bf16>(text),
        DataType::Fp32 => number::<f32>(text),
        DataType::Fp64 => number::<f64>(text),
        DataType::Bytes => None,
    }
}

#[cfg(test)]
mod tests;
