//! `sequence_batching`: which tensors a model has for its execution that clients neither send nor see.
//!
//! The gateway makes the control tensors of a request and keeps the states between requests; the worker adds the initial
//! states. So [`ModelConfig::inputs`] are those of clients, and [`ModelConfig::for_execution`] has the others as well.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use trireme_inference::{CorrelationId, DataType, InferError, Membership, Shape, Tensor};

use crate::fields::read_data_type;
use crate::proto::model_sequence_batching::control::Kind;
use crate::proto::model_sequence_batching::initial_state::StateData as ProtoStateData;
use crate::proto::model_sequence_batching::{Control, ControlInput, State, StrategyChoice};
use crate::proto::{self, ModelSequenceBatching};
use crate::sequence_batching::{Fact, SequenceBatching, SequenceControl, SequenceState};
use crate::{DynamicBatching, ModelConfig, ModelInput, ModelOutput};

/// The folder of initial states in a model's folder.
const INITIAL_STATES: &str = "initial_state";

/// Reads the block. The rest of the message is valid.
pub(crate) fn read(batching: &ModelSequenceBatching, message: &proto::ModelConfig) -> Result<SequenceBatching, String> {
    let model = &message.name;
    let controls: Vec<SequenceControl> = batching
        .control_input
        .iter()
        .map(read_control)
        .collect::<Result<_, _>>()
        .map_err(|f| format!("{f} for {model}"))?;
    let states: Vec<SequenceState> =
        batching.state.iter().map(read_state).collect::<Result<_, _>>().map_err(|f| format!("{f} for {model}"))?;
    for fact in
        [Kind::ControlSequenceStart, Kind::ControlSequenceEnd, Kind::ControlSequenceReady, Kind::ControlSequenceCorrid]
    {
        let kinds = batching.control_input.iter().flat_map(|input| &input.control);
        if kinds.filter(|control| control.kind() == fact).count() > 1 {
            return Err(format!("sequence batching specifies multiple {} tensors for {model}", fact.as_str_name()));
        }
    }
    let mut inputs: BTreeSet<&str> = message.input.iter().map(|input| input.name.as_str()).collect();
    let own = controls.iter().map(|control| &control.name).chain(states.iter().map(|state| &state.input));
    for name in own {
        if !inputs.insert(name) {
            return Err(format!(
                "sequence batching input '{name}' is declared more than once, as control, state or input, for {model}"
            ));
        }
    }
    let mut outputs = BTreeSet::new();
    for SequenceState { output, datatype, .. } in &states {
        if !outputs.insert(output) {
            return Err(format!("sequence batching state output '{output}' is declared more than once for {model}"));
        }
        let declared = message.output.iter().find(|declared| declared.name == *output);
        match declared.map(|declared| read_data_type(declared.data_type)).transpose()? {
            Some(other) if other != *datatype => {
                return Err(format!(
                    "sequence batching state output '{output}' has data type {}, but the output of this name has {} for {model}",
                    datatype.config_name(),
                    other.config_name()
                ));
            }
            _ => {}
        }
    }
    Ok(SequenceBatching {
        max_idle: Duration::from_micros(batching.max_sequence_idle_microseconds),
        controls,
        states,
        iterative: batching.iterative_sequence,
    })
}

/// How requests of different sequences share batches: by the settings of `oldest`; with `direct` whatever waits.
pub(crate) fn read_dynamic(batching: &ModelSequenceBatching, max_batch_size: i32) -> Option<DynamicBatching> {
    let oldest = match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => Some(oldest),
        Some(StrategyChoice::Direct(_)) | None => None,
    };
    let settings = oldest.map(|oldest| DynamicBatching {
        preferred_batch_sizes: oldest
            .preferred_batch_size
            .iter()
            .filter_map(|&size| u32::try_from(size).ok())
            .collect(),
        max_queue_delay: Duration::from_micros(oldest.max_queue_delay_microseconds),
        preserve_ordering: oldest.preserve_ordering,
        ..DynamicBatching::default()
    });
    (max_batch_size > 0).then(|| settings.unwrap_or_default())
}

/// The files that the block names, under the field's name.
pub(crate) fn files(batching: &ModelSequenceBatching) -> impl Iterator<Item = (&'static str, &String)> {
    batching.state.iter().flat_map(|state| &state.initial_state).filter_map(|initial| match &initial.state_data {
        Some(ProtoStateData::DataFile(file)) => Some(("data_file", file)),
        _ => None,
    })
}

fn read_control(input: &ControlInput) -> Result<SequenceControl, String> {
    let name = &input.name;
    if name.is_empty() {
        return Err("sequence batching control tensor must have a name".to_owned());
    }
    let [control] = input.control.as_slice() else {
        let found = input.control.len();
        return Err(format!("sequence batching control tensor '{name}' has {found} controls, expected one"));
    };
    let kind = control.kind();
    let (datatype, fact) = match kind {
        Kind::ControlSequenceCorrid => (read_id_type(name, control)?, Fact::CorrelationId),
        Kind::ControlSequenceStart => read_flag(name, control).map(|(datatype, flag)| (datatype, Fact::Start(flag)))?,
        Kind::ControlSequenceEnd => read_flag(name, control).map(|(datatype, flag)| (datatype, Fact::End(flag)))?,
        Kind::ControlSequenceReady => read_flag(name, control).map(|(datatype, flag)| (datatype, Fact::Ready(flag)))?,
    };
    Ok(SequenceControl { name: name.clone(), datatype, fact })
}

fn read_id_type(name: &str, control: &Control) -> Result<DataType, String> {
    let kind = control.kind().as_str_name();
    if !control.int32_false_true.is_empty()
        || !control.fp32_false_true.is_empty()
        || !control.bool_false_true.is_empty()
    {
        return Err(format!(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for {kind} \
             of '{name}'"
        ));
    }
    match read_data_type(control.data_type) {
        Ok(datatype @ (DataType::Uint64 | DataType::Int64 | DataType::Uint32 | DataType::Int32 | DataType::Bytes)) => {
            Ok(datatype)
        }
        _ => Err(format!(
            "unexpected data type of control {kind} '{name}', allowed are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and \
             TYPE_STRING"
        )),
    }
}

/// The datatype of a flag, and its element's bytes for no and for yes.
fn read_flag(name: &str, control: &Control) -> Result<(DataType, [Bytes; 2]), String> {
    let kind = control.kind().as_str_name();
    let integers: Vec<Bytes> = control.int32_false_true.iter().map(|value| bytes(&value.to_le_bytes())).collect();
    let floats: Vec<Bytes> = control.fp32_false_true.iter().map(|value| bytes(&value.to_le_bytes())).collect();
    let flags: Vec<Bytes> = control.bool_false_true.iter().map(|&value| bytes(&[u8::from(value)])).collect();
    let forms = [
        ("int32_false_true", DataType::Int32, integers),
        ("fp32_false_true", DataType::Fp32, floats),
        ("bool_false_true", DataType::Bool, flags),
    ];
    let given: Vec<_> = forms.into_iter().filter(|(_, _, values)| !values.is_empty()).collect();
    let [(form, datatype, values)] = given.as_slice() else {
        return Err(format!(
            "sequence batching must specify exactly one of 'int32_false_true', 'fp32_false_true' and 'bool_false_true' for \
             {kind} of '{name}'"
        ));
    };
    match values.as_slice() {
        [no, yes] => Ok((*datatype, [no.clone(), yes.clone()])),
        values => Err(format!(
            "sequence batching control '{form}' must have exactly 2 entries for {kind} of '{name}', found {}",
            values.len()
        )),
    }
}

fn bytes(value: &[u8]) -> Bytes {
    Bytes::copy_from_slice(value)
}

fn read_state(state: &State) -> Result<SequenceState, String> {
    let State { input_name, output_name, dims, .. } = state;
    if input_name.is_empty() || output_name.is_empty() {
        return Err("sequence batching state must specify 'input_name' and 'output_name'".to_owned());
    }
    let fault = |text: String| Err(format!("sequence batching state '{input_name}' {text}"));
    let Ok(datatype) = read_data_type(state.data_type) else { return fault("must specify 'data_type'".to_owned()) };
    if dims.is_empty() || dims.iter().any(|&dim| dim < 1 && dim != -1) {
        return fault(format!("must have 'dims' of at least one dimension, each -1 or above 0, found {dims:?}"));
    }
    let dims = Shape::from(dims.as_slice());
    let unsized_as_one: Vec<i64> = dims.iter().map(|&dim| dim.max(1)).collect();
    let (initial_dims, initial_file) = match state.initial_state.as_slice() {
        [] => (Shape::from(unsized_as_one.as_slice()), None),
        [initial] => {
            if read_data_type(initial.data_type).ok() != Some(datatype) {
                return fault(format!("has data type {}, and its 'initial_state' another", datatype.config_name()));
            }
            let initial_dims = Shape::from(initial.dims.as_slice());
            if initial_dims.contains(&-1) || !dims.accepts(&initial_dims) {
                return fault(format!(
                    "has dims {dims}, which its 'initial_state' with dims {initial_dims} does not fit"
                ));
            }
            let file = match &initial.state_data {
                Some(ProtoStateData::DataFile(file)) => Some(file.clone()),
                Some(ProtoStateData::ZeroData(_)) => None,
                None => return fault("has an 'initial_state' without 'zero_data' or 'data_file'".to_owned()),
            };
            (initial_dims, file)
        }
        several => return fault(format!("has {} entries in 'initial_state', expected one at most", several.len())),
    };
    Ok(SequenceState {
        input: input_name.clone(),
        output: output_name.clone(),
        datatype,
        dims,
        initial_dims,
        initial_file,
    })
}

// === impl SequenceControl ===

impl SequenceControl {
    /// The control's tensor, called `name`, for a request of a sequence. Errors if the correlation id does not fit the
    /// input's datatype.
    fn tensor(&self, name: String, model: &ModelConfig, request: &Membership) -> Result<Tensor, InferError> {
        let flag = |flag: &[Bytes; 2], yes: bool| Ok(flag[usize::from(yes)].clone());
        let data = match &self.fact {
            Fact::Start(values) => flag(values, request.start),
            Fact::End(values) => flag(values, request.end),
            Fact::Ready(values) => flag(values, true),
            Fact::CorrelationId => self.id_bytes(model, &request.id),
        }?;
        Tensor::new(name, self.datatype, model.one_row(&[1].into()), data)
            .map_err(|error| InferError::internal(error.to_string()))
    }

    fn id_bytes(&self, model: &ModelConfig, id: &CorrelationId) -> Result<Bytes, InferError> {
        let data = match (self.datatype, id) {
            (DataType::Bytes, id) => {
                let text = id.to_string();
                Some([&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat())
            }
            (DataType::Uint64 | DataType::Int64, CorrelationId::Number(id)) => Some(id.to_le_bytes().to_vec()),
            (DataType::Uint32, CorrelationId::Number(id)) => {
                u32::try_from(*id).ok().map(|id| id.to_le_bytes().to_vec())
            }
            (_, CorrelationId::Number(id)) => i32::try_from(*id).ok().map(|id| id.to_le_bytes().to_vec()),
            (_, CorrelationId::Text(_)) => None,
        };
        data.map(Bytes::from).ok_or_else(|| {
            InferError::invalid_arg(format!(
                "correlation id '{id}' does not fit the control input '{}' of model '{}', whose data type is {}",
                self.name,
                model.name,
                self.datatype.config_name()
            ))
        })
    }
}

// === impl SequenceState ===

impl SequenceState {
    /// The state before the first request, from the files in `model_path`.
    fn initial(&self, model: &ModelConfig, model_path: &Path) -> Result<Tensor, String> {
        let shape = model.one_row(&self.initial_dims);
        let data = match &self.initial_file {
            Some(file) => {
                let path = model_path.join(INITIAL_STATES).join(file);
                std::fs::read(&path).map_err(|error| {
                    format!("cannot read the initial state of '{}' from {}: {error}", self.input, path.display())
                })?
            }
            None => {
                let size = self.datatype.element_size().unwrap_or(size_of::<u32>()) as u64;
                let bytes = shape.element_count().and_then(|count| count.checked_mul(size));
                let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok()).filter(|&bytes| bytes <= LARGEST_STATE);
                let too_large =
                    || format!("the initial state of '{}' has shape {shape}, which is above 1 GiB", self.input);
                vec![0; bytes.ok_or_else(too_large)?]
            }
        };
        Tensor::new(&self.input, self.datatype, shape, data.into()).map_err(|error| format!("initial state: {error}"))
    }
}

/// Bytes of the largest initial state.
const LARGEST_STATE: usize = 1 << 30;

// === impl ModelConfig ===

impl ModelConfig {
    /// The configuration with the inputs and outputs that only the execution knows: the controls and states of
    /// `sequence_batching`. `/config` shows the same as before.
    pub fn for_execution(&self) -> ModelConfig {
        let mut config = self.clone();
        let Some(batching) = self.sequence_batching.as_ref().filter(|_| !self.is_for_execution()) else {
            return config;
        };
        let input = |name: &String, datatype, dims: Shape| ModelInput {
            name: name.clone(),
            datatype,
            dims,
            reshape: None,
            optional: false,
            allow_ragged_batch: false,
        };
        config.inputs.extend(batching.controls.iter().map(|c| input(&c.name, c.datatype, [1].into())));
        config.inputs.extend(batching.states.iter().map(|s| input(&s.input, s.datatype, s.dims.clone())));
        // A state may also be an output for clients.
        let hidden = batching.states.iter().filter(|state| !self.outputs.iter().any(|o| o.name == state.output));
        config.outputs.extend(hidden.map(|state| ModelOutput {
            name: state.output.clone(),
            datatype: state.datatype,
            dims: state.dims.clone(),
            reshape: None,
            label_filename: String::new(),
        }));
        config
    }

    /// The configuration without the inputs and outputs that [`ModelConfig::for_execution`] has added.
    pub fn for_clients(&self) -> ModelConfig {
        let mut config = self.clone();
        config.inputs.truncate(self.message.input.len());
        config.outputs.truncate(self.message.output.len());
        config
    }

    /// Whether the configuration came from [`ModelConfig::for_execution`].
    pub(crate) fn is_for_execution(&self) -> bool {
        self.inputs.len() != self.message.input.len() || self.outputs.len() != self.message.output.len()
    }

    /// Whether clients neither send nor see this tensor.
    pub fn hides(&self, tensor: &str) -> bool {
        self.sequence_batching.as_ref().is_some_and(|batching| {
            batching.controls.iter().any(|control| control.name == tensor)
                || batching.states.iter().any(|state| state.input == tensor || state.output == tensor)
        })
    }

    /// The states before the first request of a sequence, under the names of the model's inputs. Files are read from
    /// `model_path`.
    pub fn initial_states(&self, model_path: &Path) -> Result<Vec<Tensor>, String> {
        let states = self.sequence_batching.iter().flat_map(|batching| &batching.states);
        states.map(|state| state.initial(self, model_path)).collect()
    }

    /// The control tensors of a request of a sequence, each under the name that `called` gives to the model's input.
    pub fn control_tensors(
        &self,
        request: &Membership,
        called: impl Fn(&str) -> String,
    ) -> Result<Vec<Tensor>, InferError> {
        let controls = self.sequence_batching.iter().flat_map(|batching| &batching.controls);
        controls.map(|control| control.tensor(called(&control.name), self, request)).collect()
    }

    /// The shape of one request's part of a tensor with these dims.
    fn one_row(&self, dims: &Shape) -> Shape {
        if self.max_batch_size > 0 { dims.prepend(1) } else { dims.clone() }
    }
}

#[cfg(test)]
mod tests;
