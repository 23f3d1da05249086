//! Checks a request's tensors against the model's configuration: in Triton's order, in Triton's words.
//!
//! The gateway checks clients' requests ([`ModelConfig::check_outputs`], then [`ModelConfig::admit`]); workers check the tensors
//! of other stages ([`ModelConfig::check_tensors`]) by the same rules.

use std::collections::BTreeSet;

use trireme_inference::{
    DataType, InferError, MAX_ELEMENTS, RequestedOutput, Shape, Tensor, TensorError, UncheckedTensor,
};

use crate::{ModelConfig, ModelInput};

/// Triton's addition to the error where a shape does not fit a model that batches.
const BATCH_DIMENSION_NOTE: &str = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch \
     dimension to be prepended to each input shape. If you want to specify the full shape including the batch dim in \
     your input dims config, try setting max_batch_size to zero. See the model configuration docs for more info on \
     max_batch_size.";

/// A tensor's name, datatype and shape as the request gives them.
struct GivenTensor<'a> {
    name: &'a str,
    datatype: DataType,
    shape: &'a Shape,
}

/// The request that is checked.
#[derive(Clone, Copy)]
struct Request<'a> {
    /// The client's id for it, empty when it gave none; `None` for work that came from another stage.
    id: Option<&'a str>,
    /// Whether it travels in parts: then each part has to fit, not the whole request.
    in_parts: bool,
}

// === impl ModelConfig ===

impl ModelConfig {
    /// The tensors of a client's request, if they fit the model: all required inputs and no others, one batch
    /// size that is not too large, declared datatypes and shapes, and as many bytes as these call for. `request_id` is
    /// the client's id for the request, empty when it gave none.
    pub fn admit(&self, request_id: &str, inputs: Vec<UncheckedTensor>) -> Result<Vec<Tensor>, InferError> {
        self.admit_as(Request { id: Some(request_id), in_parts: self.max_rows_per_message.is_some() }, inputs)
    }

    /// The same for a request that travels in parts of at most the model's largest batch, even if the configuration sets no such
    /// parts.
    pub fn admit_split(&self, request_id: &str, inputs: Vec<UncheckedTensor>) -> Result<Vec<Tensor>, InferError> {
        self.admit_as(Request { id: Some(request_id), in_parts: true }, inputs)
    }

    fn admit_as(&self, request: Request<'_>, mut inputs: Vec<UncheckedTensor>) -> Result<Vec<Tensor>, InferError> {
        self.flatten_texts(&mut inputs);
        let tensors: Vec<_> =
            inputs.iter().map(|t| GivenTensor { name: &t.name, datatype: t.datatype, shape: &t.shape }).collect();
        self.judge(request, &tensors)?;
        let check = |input: UncheckedTensor| {
            let data = input.data.clone();
            input.check().map_err(|fault| self.byte_fault(request, &data, fault))
        };
        inputs.into_iter().map(check).collect()
    }

    /// Makes texts of shape `[n, 1]` those of shape `[n]` where a model that does a `task` takes one text a row: clients of NVIDIA NIM and
    /// MLServer send each text as a row of one.
    fn flatten_texts(&self, inputs: &mut [UncheckedTensor]) {
        if self.max_batch_size > 0 || !self.parameters.contains_key("task") {
            return;
        }
        let is_flat = |input: &ModelInput| input.datatype == DataType::Bytes && *input.dims == [-1];
        for tensor in inputs.iter_mut().filter(|tensor| tensor.datatype == DataType::Bytes) {
            let declared = self.inputs.iter().find(|input| tensor.name == *input.name);
            if let (&[rows, 1], true) = (&*tensor.shape, declared.is_some_and(is_flat)) {
                tensor.shape = [rows].into();
            }
        }
    }

    /// Checks `inputs` that another stage has made. Returns the request's rows: its batch
    /// dimension, 1 for models without one.
    pub fn check_tensors(&self, inputs: &[Tensor]) -> Result<u32, InferError> {
        let tensors: Vec<_> =
            inputs.iter().map(|t| GivenTensor { name: t.name(), datatype: t.datatype(), shape: t.shape() }).collect();
        self.judge(Request { id: None, in_parts: false }, &tensors)
    }

    /// Whether the model has the outputs that a client asks for.
    pub fn check_outputs(&self, requested: &[RequestedOutput], request_id: &str) -> Result<(), InferError> {
        let mut seen = BTreeSet::new();
        for output in requested {
            if !seen.insert(output.name.as_str()) {
                let request = Request { id: Some(request_id), in_parts: false };
                return Err(request.fault(format!("output '{}' already exists in request", output.name)));
            }
            if !self.outputs.iter().any(|declared| declared.name == output.name) {
                return Err(InferError::invalid_arg(format!(
                    "unexpected inference output '{}' for model '{}', allowed outputs are: {}",
                    output.name,
                    self.name,
                    sorted(self.outputs.iter().map(|o| o.name.as_str()))
                )));
            }
        }
        Ok(())
    }

    /// Checks everything but the bytes. Returns the rows.
    fn judge(&self, request: Request<'_>, tensors: &[GivenTensor<'_>]) -> Result<u32, InferError> {
        let declared = self.judge_names(request, tensors)?;
        let rows = self.judge_batch(request, tensors)?;
        for (tensor, input) in tensors.iter().zip(declared) {
            self.judge_tensor(request, tensor, input)?;
        }
        Ok(rows)
    }

    /// The declarations that go with `tensors`, if those are all the required inputs and no others.
    fn judge_names(&self, request: Request<'_>, tensors: &[GivenTensor<'_>]) -> Result<Vec<&ModelInput>, InferError> {
        let mut given = BTreeSet::new();
        if let Some(tensor) = tensors.iter().find(|tensor| !given.insert(tensor.name)) {
            return Err(request.fault(format!("input '{}' already exists in request", tensor.name)));
        }
        let (all, required) = (self.inputs.len(), self.inputs.iter().filter(|input| !input.optional).count());
        let missing = || self.inputs.iter().filter(|i| !i.optional && !given.contains(i.name.as_str()));
        let count_fault = || {
            let expected = match required == all {
                true => format!("expected {all} inputs"),
                false => format!("expected number of inputs between {required} and {all}"),
            };
            request.fault(format!(
                "{expected} but got {} inputs for model '{}'. Got input(s) [{}], but missing required input(s) [{}]. \
                 Please provide all required input(s).",
                tensors.len(),
                self.name,
                quoted(tensors.iter().map(|tensor| tensor.name)),
                quoted(missing().map(|input| input.name.as_str()))
            ))
        };
        if !(required..=all).contains(&tensors.len()) {
            return Err(count_fault());
        }
        let declared = |tensor: &GivenTensor<'_>| self.inputs.iter().find(|input| input.name == tensor.name);
        let inputs: Vec<_> = tensors.iter().filter_map(declared).collect();
        if let Some(tensor) = tensors.iter().find(|tensor| declared(tensor).is_none()) {
            return Err(InferError::invalid_arg(format!(
                "unexpected inference input '{}' for model '{}', allowed inputs are: {}",
                tensor.name,
                self.name,
                sorted(self.inputs.iter().map(|input| input.name.as_str()))
            )));
        }
        // The count may be right because an optional input takes the place of a required one.
        match missing().next() {
            None => Ok(inputs),
            Some(_) => Err(count_fault()),
        }
    }

    /// One batch dimension for all inputs, from 1 to the model's largest.
    fn judge_batch(&self, request: Request<'_>, tensors: &[GivenTensor<'_>]) -> Result<u32, InferError> {
        if self.max_batch_size == 0 {
            return Ok(1);
        }
        let mut batch = None;
        for tensor in tensors {
            let Some(&rows) = tensor.shape.first() else {
                return Err(request.fault(format!(
                    "input '{}' has no shape but model requires batch dimension for '{}'",
                    tensor.name, self.name
                )));
            };
            if *batch.get_or_insert(rows) != rows {
                return Err(request.fault(format!(
                    "input '{}' batch size does not match other inputs for '{}'",
                    tensor.name, self.name
                )));
            }
        }
        // A request without inputs, which only a model of optional inputs accepts, has one row.
        let rows = batch.unwrap_or(1);
        if rows == 0 {
            return Err(request.fault(format!("inference request batch-size must be >= 1 for '{}'", self.name)));
        }
        match u32::try_from(rows) {
            Ok(rows) if rows <= self.max_batch_size || request.in_parts => Ok(rows),
            _ => Err(request
                .fault(format!("inference request batch-size must be <= {} for '{}'", self.max_batch_size, self.name))),
        }
    }

    fn judge_tensor(
        &self,
        request: Request<'_>,
        tensor: &GivenTensor<'_>,
        input: &ModelInput,
    ) -> Result<(), InferError> {
        let GivenTensor { name, datatype, shape } = tensor;
        let model = &self.name;
        if *datatype != input.datatype {
            return Err(request.fault(format!(
                "inference input '{name}' data-type is '{datatype}', but model '{model}' expects '{}'",
                input.datatype
            )));
        }
        let expected = self.full_shape(&input.dims);
        if shape.len() == expected.len() && shape.contains(&-1) {
            return Err(request.fault(format!(
                "All input dimensions should be specified for input '{name}' for model '{model}', got {shape}"
            )));
        }
        if !expected.accepts(shape) {
            let note = if self.max_batch_size > 0 { BATCH_DIMENSION_NOTE } else { "" };
            return Err(request.fault(format!(
                "unexpected shape for input '{name}' for model '{model}'. Expected {expected}, got {shape}. {note}"
            )));
        }
        Ok(())
    }

    /// The error for a tensor's bytes, or for dimensions that no configuration declares.
    fn byte_fault(&self, request: Request<'_>, data: &[u8], fault: TensorError) -> InferError {
        let model = &self.name;
        let text = match fault {
            TensorError::NegativeDimension { name, shape } => {
                format!("tensor '{name}' contains an invalid dimension in shape {shape}")
            }
            TensorError::TooManyElements { name, .. } => {
                format!("element count for tensor '{name}' exceeds maximum size of {MAX_ELEMENTS}")
            }
            TensorError::ByteSize { name, expected, actual, .. } => format!(
                "input byte size mismatch for input '{name}' for model '{model}'. Expected {expected}, got {actual}"
            ),
            TensorError::ElementCount { name, expected, actual, .. } if actual > expected => format!(
                // Triton stops counting at the first element too many.
                "unexpected number of string elements {} for inference input '{name}' for model '{model}', expecting \
                 {expected}",
                expected + 1
            ),
            TensorError::ElementCount { name, expected, actual, .. } => format!(
                "expected {expected} string elements for inference input '{name}' for model '{model}', got {actual}"
            ),
            TensorError::IncompleteElement { name, offset } => {
                match data.get(offset..).unwrap_or_default().split_first_chunk::<4>() {
                    Some((length, rest)) => format!(
                        "incomplete string data for inference input '{name}' for model '{model}', expecting string of \
                         length {} but only {} bytes available",
                        u32::from_le_bytes(*length),
                        rest.len()
                    ),
                    None => format!(
                        "incomplete string length indicator for inference input '{name}' for model '{model}', \
                         expecting 4 bytes but only {} bytes available. Please make sure the string length indicator \
                         is in one buffer.",
                        data.len().saturating_sub(offset)
                    ),
                }
            }
            fault @ (TensorError::VastAndEmpty { .. } | TensorError::NoRoom { .. } | TensorError::Datatype { .. }) => {
                fault.to_string()
            }
        };
        request.fault(text)
    }
}

// === impl Request ===

impl Request<'_> {
    /// `text` in Triton's form: behind the id of the client's request.
    fn fault(self, text: String) -> InferError {
        InferError::invalid_arg(match self.id {
            None => text,
            Some("") => format!("[request id: <id_unknown>] {text}"),
            Some(id) => format!("[request id: {id}] {text}"),
        })
    }
}

/// `A, B`, in order of name.
fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

/// `'A','B'`
fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("'{name}'")).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
#[path = "check/tests.rs"]
mod tests;
