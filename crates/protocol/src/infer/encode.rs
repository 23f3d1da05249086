//! From an [`InferResponse`] to an HTTP body.

use trireme_inference::{InferError, InferResponse, Tensor};

use super::{EncodedResponse, OutputFormat, TensorFormat, data};
use crate::json::Writer;

/// Encodes a response; binary outputs share their tensors' memory. Errors if the datatype of a JSON output has no form
/// in JSON.
pub fn encode_infer_response(response: &InferResponse, format: &OutputFormat) -> Result<EncodedResponse, InferError> {
    let mut binary = Vec::new();
    let mut capacity = 256;
    for output in response.outputs.iter().filter(|output| !response.shared.contains(output.name())) {
        capacity += 128 + output.name().len();
        match format.of(output.name()) {
            TensorFormat::Json => {
                data::check_writable(output.name(), output.datatype())?;
                capacity += data::estimate(output);
            }
            TensorFormat::Binary if output.data().is_empty() => {}
            TensorFormat::Binary => binary.push(output.data().clone()),
        }
    }
    let mut w = Writer::with_capacity(capacity);
    w.object(|w| {
        if !response.id.is_empty() {
            w.name("id").string(&response.id);
        }
        w.name("model_name").string(&response.model.name);
        w.name("model_version").string(response.model.version.to_string());
        if !response.parameters.is_empty() {
            w.name("parameters").object(|w| response.parameters.iter().for_each(|(k, v)| w.name(k).parameter(v)));
        }
        w.name("outputs").array(|w| {
            for output in &response.outputs {
                let place = (!response.shared.contains(output.name())).then(|| format.of(output.name()));
                write_output(output, place, w);
            }
        });
    });
    let json = w.into_bytes();
    let header_length = (!binary.is_empty()).then_some(json.len());
    Ok(EncodedResponse { json, binary, header_length })
}

/// Writes an output. `None` is the format of an output in shared memory.
fn write_output(output: &Tensor, format: Option<TensorFormat>, w: &mut Writer) {
    w.object(|w| {
        w.name("name").string(output.name());
        w.name("datatype").string(output.datatype().name());
        w.name("shape").array(|w| output.shape().iter().for_each(|&dimension| w.integer(dimension)));
        match format {
            None => {}
            Some(TensorFormat::Json) => data::write(output, w.name("data")),
            Some(TensorFormat::Binary) => {
                w.name("parameters").object(|w| w.name("binary_data_size").integer(output.data().len()));
            }
        }
    });
}
