//! Raw requests: a body with nothing but the bytes of a model's only input, as `curl --data-binary` sends it.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};
use trireme_inference::{DataType, InferError, InferRequest, Shape, TensorSpec, UncheckedTensor};

use super::{HttpInferRequest, InferTarget, OutputFormat, TensorFormat, request_prefix};

/// Decodes `body` to a request, if name, datatype and shape follow from the model.
pub(super) fn decode(target: &InferTarget<'_>, body: &Bytes) -> Result<HttpInferRequest, InferError> {
    let [spec] = target.inputs else {
        return Err(refusal(format!(
            "Raw request must only have 1 input (found 1) to be deduced but got {} inputs in '{}' model configuration",
            target.inputs.len(),
            target.model
        )));
    };
    let batch_dimensions = usize::from(target.max_batch_size > 0);
    let dimensions = spec.shape.get(batch_dimensions..).unwrap_or_default();
    let (shape, data) = match spec.datatype.element_size() {
        Some(size) => (deduce_shape(spec, dimensions, body.len() / size)?, body.clone()),
        None if dimensions.iter().all(|&d| d == 1) => (dimensions.to_vec(), length_prefixed(body)?),
        None => {
            return Err(refusal(format!(
                "For BYTE datatype raw input '{}', the model must have input shape [1]",
                spec.name
            )));
        }
    };
    let shape = match batch_dimensions {
        0 => Shape::from(shape),
        _ => Shape::from(shape).prepend(1),
    };
    let input = UncheckedTensor { name: spec.name.clone(), datatype: spec.datatype, shape, data };
    let request = InferRequest { model: target.model.to_owned(), inputs: vec![input], ..InferRequest::default() };
    let output_format = OutputFormat { unlisted: TensorFormat::Binary, listed: BTreeMap::new() };
    Ok(HttpInferRequest { request, output_format })
}

/// `dimensions`, with the variable one computed from the number of `elements`. If they do not divide evenly, the later
/// check of the tensor fails.
fn deduce_shape(spec: &TensorSpec, dimensions: &[i64], elements: usize) -> Result<Vec<i64>, InferError> {
    if dimensions.iter().filter(|&&d| d < 0).count() > 1 {
        return Err(refusal(format!(
            "The shape of the raw input '{}' can not be deduced because there are more than one variable-sized dimension",
            spec.name
        )));
    }
    let known = dimensions.iter().filter(|&&d| d >= 0).fold(1i64, |product, &d| product.saturating_mul(d));
    let deduced = (elements as i64).checked_div(known).unwrap_or(0);
    Ok(dimensions.iter().map(|&d| if d < 0 { deduced } else { d }).collect())
}

/// `body` as the only element of a BYTES tensor.
fn length_prefixed(body: &Bytes) -> Result<Bytes, InferError> {
    let length = u32::try_from(body.len())
        .map_err(|_| refusal(format!("a {} element holds at most {} bytes", DataType::Bytes, u32::MAX)))?;
    let mut data = BytesMut::with_capacity(4 + body.len());
    data.put_u32_le(length);
    data.put_slice(body);
    Ok(data.freeze())
}

/// A refusal of a raw request. Its text names no id, because a raw request cannot have an id.
fn refusal(message: String) -> InferError {
    InferError::invalid_arg(request_prefix("") + &message)
}
