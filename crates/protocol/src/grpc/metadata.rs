//! Messages that describe the server and its models.

use bytes::Bytes;
use prost::Message;
use trireme_inference::{InferError, TensorSpec};

use super::wire::model_metadata_response::TensorMetadata;
use super::wire::{ModelConfig, ModelConfigResponse, ModelMetadataResponse, ServerMetadataResponse};
use crate::metadata::Properties;

/// The answer to `ServerMetadata`. `extensions` are the names of the protocol extensions that are implemented.
pub fn server_metadata(name: &str, version: &str, extensions: &[&str]) -> ServerMetadataResponse {
    ServerMetadataResponse {
        name: name.to_owned(),
        version: version.to_owned(),
        extensions: extensions.iter().map(|&extension| extension.to_owned()).collect(),
    }
}

/// The answer to `ModelMetadata`. `versions` are the ready ones; shapes include the batch dimension.
pub fn model_metadata(
    name: &str,
    versions: &[i64],
    platform: &str,
    inputs: &[TensorSpec],
    outputs: &[TensorSpec],
    properties: &Properties,
) -> ModelMetadataResponse {
    ModelMetadataResponse {
        name: name.to_owned(),
        versions: versions.iter().map(i64::to_string).collect(),
        platform: platform.to_owned(),
        inputs: inputs.iter().map(tensor).collect(),
        outputs: outputs.iter().map(tensor).collect(),
        properties: properties.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
    }
}

/// The answer to `ModelConfig`. `encoded` is an `inference.ModelConfig` message.
pub fn model_config(encoded: Vec<u8>) -> Result<ModelConfigResponse, InferError> {
    let config = ModelConfig::decode(Bytes::from(encoded))
        .map_err(|error| InferError::internal(format!("model configuration cannot be read: {error}")))?;
    Ok(ModelConfigResponse { config: Some(config) })
}

fn tensor(spec: &TensorSpec) -> TensorMetadata {
    TensorMetadata {
        name: spec.name.to_string(),
        datatype: spec.datatype.name().to_owned(),
        shape: spec.shape.to_vec(),
    }
}
