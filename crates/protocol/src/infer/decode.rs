//! From an HTTP body to an [`InferRequest`].
//!
//! The order of checks is Triton's (JSON, id, parameters, inputs one by one, left-over bytes, outputs), so a request
//! with several faults gets the same error as from Triton.

use std::collections::{BTreeMap, HashSet};
use std::num::IntErrorKind;

use bytes::Bytes;
use trireme_inference::{
    DataType, InferError, InferRequest, RequestedOutput, Shape, SharedMemoryPart, UncheckedTensor,
};

use super::{HttpInferRequest, InferTarget, OutputFormat, Room, TensorFormat, data, parameters, raw, request_prefix};
use crate::json::{self, JsonError, Value};
use crate::refusal::unable_to_parse;
use crate::shared_memory;

/// Decodes the body of an infer request, if there is `room`. `header_length` is the value of [`super::HEADER_LENGTH`]. Without it the whole
/// body is JSON. With 0, or with an empty body, the body is the bytes of the only input. Binary inputs share `body`'s
/// memory, unless it is mostly JSON.
///
/// Errors have Triton's codes and texts. Malformed JSON is an internal error there, so it is one here.
pub fn decode_infer_request(
    target: &InferTarget<'_>,
    body: &Bytes,
    header_length: Option<&str>,
    room: Room<'_>,
) -> Result<HttpInferRequest, InferError> {
    let header_length = match header_length {
        Some(value) => parse_header_length(value, body.len())?,
        None => body.len(),
    };
    if header_length == 0 {
        return raw::decode(target, body);
    }
    if header_length > target.max_json_size {
        return Err(InferError::invalid_arg(format!(
            "request JSON size of {header_length} bytes exceeds the maximum allowed input size of {} bytes. Use \
             --http-max-input-size to increase the limit.",
            target.max_json_size
        )));
    }
    let document = json::parse(&body[..header_length])?;
    let [id, parameters, inputs, outputs] = document.pick(["id", "parameters", "inputs", "outputs"]);

    let mut request = InferRequest { model: target.model.to_owned(), ..InferRequest::default() };
    if let Some(id) = id {
        request.id = text(&id, "id")?;
    }
    let mut output_format = OutputFormat::default();
    if let Some(parameters) = parameters {
        output_format.unlisted = parameters::decode(&parameters, &mut request)?;
    }
    let mut decoder = InputDecoder {
        model: target.model,
        max_json_size: target.max_json_size,
        id: &request.id,
        names: HashSet::new(),
        shared: Vec::new(),
        binary: binary_part(body, header_length),
        room,
    };
    let inputs = decoder.inputs(inputs)?;
    request.shared.inputs = decoder.shared;
    request.inputs = inputs;
    if let Some(outputs) = outputs {
        output_format.listed = decode_outputs(&outputs, &mut request)?;
    }
    Ok(HttpInferRequest { request, output_format })
}

/// The size of a body that may stay in memory for a small part, in bytes.
const SMALL_BODY: usize = 4096;

/// The bytes after the JSON. They are a slice of the body, unless that would keep a much larger body in memory.
fn binary_part(body: &Bytes, header_length: usize) -> Bytes {
    let binary = &body[header_length..];
    match body.len() > SMALL_BODY && binary.len() < body.len() / 4 {
        true => Bytes::copy_from_slice(binary),
        false => body.slice(header_length..),
    }
}

/// Reads the header's number as C's `stoi` does: leading space is skipped, and anything after the digits is ignored.
fn parse_header_length(value: &str, body_length: usize) -> Result<usize, InferError> {
    const HEADER: &str = "Inference-Header-Content-Length";
    let trimmed = value.trim_ascii_start();
    let sign = usize::from(trimmed.starts_with(['+', '-']));
    let digits = trimmed[sign..].bytes().take_while(u8::is_ascii_digit).count();
    let length: i32 = trimmed[..sign + digits].parse().map_err(|error: std::num::ParseIntError| {
        InferError::invalid_arg(match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => {
                let (min, max) = (i32::MIN, i32::MAX);
                format!("Unable to parse {HEADER}, value is out of range [ {min}, {max} ], got: {value}")
            }
            _ => format!("Unable to parse {HEADER}, got: {value}"),
        })
    })?;
    usize::try_from(length).ok().filter(|&length| length <= body_length).ok_or_else(|| {
        InferError::invalid_arg(format!("inference header size should be in range (0, {body_length}), got: {value}"))
    })
}

/// The state between the inputs, which are decoded one by one.
struct InputDecoder<'a> {
    model: &'a str,
    max_json_size: usize,
    id: &'a str,
    /// The names of the inputs so far.
    names: HashSet<String>,
    /// The inputs so far that are in shared memory.
    shared: Vec<(usize, SharedMemoryPart)>,
    /// The bytes after the JSON that no input has taken yet.
    binary: Bytes,
    room: Room<'a>,
}

impl InputDecoder<'_> {
    fn inputs(&mut self, inputs: Option<Value<'_>>) -> Result<Vec<UncheckedTensor>, InferError> {
        let inputs = required(inputs, "inputs")?.as_array().map_err(unable_to_parse("inputs"))?;
        let tensors = inputs.iter().map(|input| self.input(&input)).collect::<Result<_, _>>()?;
        match self.binary.is_empty() {
            true => Ok(tensors),
            false => {
                Err(InferError::invalid_arg(format!("unexpected additional input data for model '{}'", self.model)))
            }
        }
    }

    fn input(&mut self, input: &Value<'_>) -> Result<UncheckedTensor, InferError> {
        let [name, datatype, shape, parameters, data] = input.pick(["name", "datatype", "shape", "parameters", "data"]);
        let [binary_size, region] = pick(&parameters, ["binary_data_size", "shared_memory_region"]);
        check_one_source(data.is_some(), binary_size.is_some(), region.is_some())?;

        let name = text(&required(name, "name")?, "name")?;
        let datatype = text(&required(datatype, "datatype")?, "datatype")?;
        let shape = decode_shape(&required(shape, "shape")?)?;
        if !self.names.insert(name.clone()) {
            return Err(already_exists(self.id, "input", &name));
        }
        let Ok(datatype) = datatype.parse::<DataType>() else {
            return Err(InferError::invalid_arg(format!("invalid datatype for input {name}")));
        };

        let data = if let Some(size) = binary_size {
            let size = size.as_u64().map_err(unable_to_parse("binary_data_size"))?;
            self.take_binary(&name, size)?
        } else if let Some(part) = shared_memory::decode_part(parameters.as_ref())? {
            self.shared.push((self.names.len() - 1, part));
            Bytes::new()
        } else {
            self.check_claim(&name, datatype, &shape)?;
            data::from_json(&name, datatype, &shape, data, self.room)?
        };
        Ok(UncheckedTensor { name: name.into(), datatype, shape, data })
    }

    /// Checks that a shape claims no more bytes than a request may have.
    fn check_claim(&self, name: &str, datatype: DataType, shape: &Shape) -> Result<(), InferError> {
        let size = datatype.element_size().zip(shape.element_count());
        match size.and_then(|(size, count)| count.checked_mul(size as u64)) {
            Some(size) if size > self.max_json_size as u64 => Err(InferError::invalid_arg(format!(
                "JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of {} bytes. \
                 Use --http-max-input-size to increase the limit.",
                self.max_json_size
            ))),
            _ => Ok(()),
        }
    }

    fn take_binary(&mut self, name: &str, size: u64) -> Result<Bytes, InferError> {
        let missing = size.saturating_sub(self.binary.len() as u64);
        if missing > 0 {
            return Err(InferError::invalid_arg(format!(
                "unexpected size for input '{name}', expecting {missing} additional bytes for model '{}'",
                self.model
            )));
        }
        Ok(self.binary.split_to(size as usize))
    }
}

fn check_one_source(data: bool, binary: bool, shared_memory: bool) -> Result<(), InferError> {
    let set = [(data, " 'data'"), (binary, " 'binary_data_size'"), (shared_memory, " 'shared_memory_region'")];
    let set: Vec<&str> = set.into_iter().filter_map(|(is_set, field)| is_set.then_some(field)).collect();
    let found = match set[..] {
        [_] => return Ok(()),
        [] => " no field is set".to_owned(),
        _ => format!(" set{}", set.concat()),
    };
    Err(InferError::invalid_arg(format!(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
         'shared_memory_region' in 'parameters'. But{found}"
    )))
}

fn decode_shape(shape: &Value<'_>) -> Result<Shape, InferError> {
    let dimensions = shape.as_array().map_err(unable_to_parse("shape"))?;
    // A dimension above i64 becomes negative, and is refused when the shape is checked.
    let dimensions: Result<Vec<i64>, JsonError> = dimensions.iter().map(|d| d.as_u64().map(|d| d as i64)).collect();
    Ok(Shape::from(dimensions.map_err(unable_to_parse("shape"))?))
}

/// Decodes the requested outputs into `request`; returns the format of each.
fn decode_outputs(
    outputs: &Value<'_>,
    request: &mut InferRequest,
) -> Result<BTreeMap<String, TensorFormat>, InferError> {
    let outputs = outputs.as_array().map_err(unable_to_parse("outputs"))?;
    let mut listed = BTreeMap::new();
    for output in outputs.iter() {
        let (output, format, part) = decode_output(&output)?;
        if listed.insert(output.name.clone(), format).is_some() {
            return Err(already_exists(&request.id, "output", &output.name));
        }
        if let Some(part) = part {
            request.shared.outputs.insert(output.name.clone(), part);
        }
        request.outputs.push(output);
    }
    Ok(listed)
}

type Output = (RequestedOutput, TensorFormat, Option<SharedMemoryPart>);

fn decode_output(output: &Value<'_>) -> Result<Output, InferError> {
    let [name, parameters] = output.pick(["name", "parameters"]);
    let [binary, classification, region] = pick(&parameters, ["binary_data", "classification", "shared_memory_region"]);
    let conflict =
        |field| InferError::invalid_arg(format!("Output can't set both 'shared_memory_region' and '{field}'"));
    if region.is_some() {
        if classification.is_some() {
            return Err(conflict("classification"));
        }
        if let Some(binary) = &binary
            && binary.as_bool().map_err(|error| error.context("Unable to set 'binary_data'"))?
        {
            return Err(conflict("binary_data"));
        }
    }
    let name = text(&required(name, "name")?, "name")?;
    let classes = match classification {
        Some(classes) => classes.as_u64().map_err(|error| error.context("Unable to set 'classification'"))?,
        None => 0,
    };
    let part = shared_memory::decode_part(parameters.as_ref())?;
    let format = match binary {
        Some(binary) if binary.as_bool().map_err(unable_to_parse("binary_data"))? => TensorFormat::Binary,
        _ => TensorFormat::Json,
    };
    let classification = u32::try_from(classes).unwrap_or(u32::MAX);
    Ok((RequestedOutput { name, classification }, format, part))
}

fn already_exists(id: &str, what: &str, name: &str) -> InferError {
    InferError::invalid_arg(format!("{}{what} '{name}' already exists in request", request_prefix(id)))
}

/// The members of an object; all `None` if there is no object.
fn pick<'a, const N: usize>(object: &Option<Value<'a>>, names: [&str; N]) -> [Option<Value<'a>>; N] {
    object.as_ref().map_or([const { None }; N], |object| object.pick(names))
}

fn required<'a>(value: Option<Value<'a>>, name: &'static str) -> Result<Value<'a>, InferError> {
    value.ok_or(JsonError::MissingMember(name)).map_err(unable_to_parse(name))
}

fn text(value: &Value<'_>, name: &str) -> Result<String, InferError> {
    value.as_text().map(|text| text.into_owned()).map_err(unable_to_parse(name))
}
