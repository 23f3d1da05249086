//! The shared memory extensions, as a server answers that has them disabled: a gateway has no memory in common with its
//! clients.

use trireme_inference::InferError;

use super::Handlers;

/// Which kind of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedMemory {
    /// Of the host.
    System,
    /// Of a GPU.
    Cuda,
}

impl Handlers {
    /// Checks that the asked for region, if any, is among the registered ones, of which there are none.
    pub fn shared_memory_status(&self, kind: SharedMemory, region: Option<&str>) -> Result<(), InferError> {
        let kind = match kind {
            SharedMemory::System => "system",
            SharedMemory::Cuda => "cuda",
        };
        match region {
            None => Ok(()),
            Some(region) => {
                Err(InferError::not_found(format!("Unable to find {kind} shared memory region: '{region}'")))
            }
        }
    }

    /// Why regions can be neither registered nor unregistered.
    pub fn shared_memory_control(&self) -> Result<(), InferError> {
        Err(InferError::unsupported(
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
        ))
    }
}
