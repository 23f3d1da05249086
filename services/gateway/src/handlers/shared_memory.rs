//! The shared memory extensions: regions, and the tensors of requests that lie in them.
//!
//! Without `--allow-client-shm` no region can be registered, so no tensor is found in one. Requests for
//! CUDA memory are answered as by a Triton that was built without GPUs, because the gateway has no GPU.

use trireme_inference::{InferError, InferRequest, InferResponse};
use trireme_protocol::shared_memory::SystemRegion;
use trireme_server::budget::BytesPermit;
use trireme_triton_compat::shared_memory::RegionPart;

use super::Handlers;

/// Most bytes of a request that are read from shared memory: as many as the largest gRPC message has.
const MAX_SHARED: u64 = i32::MAX as u64;

/// The parts of regions for the outputs of a request, by the outputs' names.
pub(super) struct OutputParts(Vec<(String, RegionPart)>);

impl Handlers {
    /// A region of system memory, or all of them, with their names.
    pub fn system_regions(&self, name: Option<&str>) -> Result<Vec<(String, SystemRegion)>, InferError> {
        self.shared_memory.status(name)
    }

    /// Registers a region of system memory.
    pub fn register_system_region(&self, name: &str, region: SystemRegion) -> Result<(), InferError> {
        self.check_client_shm()?;
        self.shared_memory.register(name, region)
    }

    /// Forgets a region of system memory, or all of them.
    pub fn unregister_system_regions(&self, name: Option<&str>) -> Result<(), InferError> {
        self.check_client_shm()?;
        self.shared_memory.unregister(name);
        Ok(())
    }

    /// Checks that the asked for region of CUDA memory, if any, is among the registered ones, of which there are none.
    pub fn cuda_regions(&self, name: Option<&str>) -> Result<(), InferError> {
        match name {
            None => Ok(()),
            Some(name) => Err(InferError::not_found(format!("Unable to find cuda shared memory region: '{name}'"))),
        }
    }

    /// Refuses to register a region of CUDA memory.
    pub fn register_cuda_region(&self, name: &str) -> Result<(), InferError> {
        self.check_client_shm()?;
        Err(InferError::invalid_arg(format!(
            "failed to register CUDA shared memory region: '{name}', GPUs not supported"
        )))
    }

    /// Forgets regions of CUDA memory, of which there are none.
    pub fn unregister_cuda_regions(&self) -> Result<(), InferError> {
        self.check_client_shm()
    }

    /// Whether clients may register regions.
    pub fn check_client_shm(&self) -> Result<(), InferError> {
        match self.allow_client_shm {
            true => Ok(()),
            false => Err(InferError::unsupported(
                "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
            )),
        }
    }

    /// Reads the inputs that lie in shared memory into `request`, counted in `hold`, and finds the parts for its outputs. No
    /// byte is read before all parts are found and there is room for them.
    pub(super) fn read_shared(
        &self,
        request: &mut InferRequest,
        permit: &BytesPermit,
    ) -> Result<OutputParts, InferError> {
        let shared = std::mem::take(&mut request.shared);
        let memory = &self.shared_memory;
        let inputs: Vec<_> = shared.inputs.iter().map(|(_, part)| memory.find(part)).collect::<Result<_, _>>()?;
        let outputs = shared.outputs.into_iter().map(|(name, part)| Ok((name, memory.find(&part)?)));
        let outputs = OutputParts(outputs.collect::<Result<_, InferError>>()?);
        let size: u64 = inputs.iter().map(|part| part.byte_size).sum();
        if size > MAX_SHARED {
            return Err(InferError::invalid_arg(format!(
                "inputs in shared memory of {size} bytes exceed the maximum of {MAX_SHARED} bytes"
            )));
        }
        permit.take(size)?;
        for ((index, _), part) in shared.inputs.iter().zip(inputs) {
            if let Some(input) = request.inputs.get_mut(*index) {
                input.data = part.read()?;
            }
        }
        Ok(outputs)
    }
}

// === impl OutputParts ===

impl OutputParts {
    /// Writes the outputs of a response that have a part; nothing is written unless all of them fit.
    pub(super) fn write(&self, response: &mut InferResponse) -> Result<(), InferError> {
        let parts = self.0.iter().filter_map(|(name, part)| {
            let output = response.outputs.iter().find(|output| output.name() == name)?;
            Some((name, part, output.data()))
        });
        for (name, part, data) in parts.clone() {
            if data.len() as u64 > part.byte_size {
                return Err(InferError::internal(format!(
                    "shared memory size specified with the request for output '{name}' ({} bytes) should be at least {} \
                     bytes to hold the results",
                    part.byte_size,
                    data.len()
                )));
            }
        }
        for (name, part, data) in parts {
            part.write(data)?;
            response.shared.insert(name.clone());
        }
        Ok(())
    }
}
