//! Metadata of the server and its models.

use std::sync::Arc;

use trireme_inference::InferError;
use trireme_operations::Origin;
use trireme_protocol::metadata::{Properties, spaces};

use super::Handlers;
use crate::registry::ServedModel;

/// The extension that depends on `--allow-client-shm`.
const SYSTEM_SHARED_MEMORY: &str = "system_shared_memory";

/// The implemented protocol extensions, in which clients look for those that they need.
const EXTENSIONS: &[&str] = &[
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "model_configuration",
    SYSTEM_SHARED_MEMORY,
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
];

/// A model version as clients ask about it.
pub struct ModelMetadata {
    /// The version.
    pub served: Arc<ServedModel>,
    /// The versions to list: the one asked for, or all that are ready.
    pub versions: Vec<i64>,
    /// The space of answers with all outputs, where workers tell it.
    pub properties: Properties,
}

impl Handlers {
    /// The server's name.
    pub fn server_name(&self) -> &str {
        &self.id
    }

    /// The server's version and the protocol extensions that it implements.
    pub fn server_metadata(&self) -> (&'static str, Vec<&'static str>) {
        let there = |extension: &&str| self.allow_client_shm || *extension != SYSTEM_SHARED_MEMORY;
        (env!("CARGO_PKG_VERSION"), EXTENSIONS.iter().copied().filter(there).collect())
    }

    /// A model version, the latest by default.
    pub fn model_metadata(&self, model: &str, version: Option<i64>) -> Result<ModelMetadata, InferError> {
        let catalog = self.registry.catalog();
        let (found, served) = catalog.find(model, version)?;
        let versions = match version {
            Some(_) => vec![found],
            None => catalog.ready_versions(model),
        };
        let Origin { space, equivalent, .. } = catalog.origin_told(found, served, &[]);
        let properties = spaces(space.as_deref(), &equivalent);
        Ok(ModelMetadata { served: served.clone(), versions, properties })
    }
}
