//! Staging: runs whose inputs and outputs are in memory that the device copies from and to by itself.
//!
//! On GPUs that is pinned memory of the host: other memory is copied once more by the driver, and the host waits meanwhile. The
//! kind of memory is a parameter, so that the tests run the same code with the CPU's own.
//!
//! Inputs are copied into that memory before the instance's turn comes, and outputs are read from it afterwards.

use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{NoSelectedOutputs, RunOptions, Session};
use ort::value::DynValue;
use trireme_inference::{Name, Shape, Tensor};

use super::values;

/// A kind of memory of the host.
#[derive(Clone, Copy, Debug)]
pub enum Memory {
    /// Memory that the GPU of this number can read and write.
    Pinned(i32),
    /// The CPU's own.
    #[cfg(test)]
    Plain,
}

/// The memory for the inputs and outputs of one instance.
pub struct Staging {
    allocator: Allocator,
}

// === impl Staging ===

impl Staging {
    /// Staging for runs of `session`. Errors if its providers do not have such memory.
    pub fn new(session: &Session, memory: Memory) -> ort::Result<Staging> {
        let allocator = |device: AllocationDevice, number| {
            let info = MemoryInfo::new(device, number, AllocatorType::Device, MemoryType::CPUOutput)?;
            Allocator::new(session, info)
        };
        let allocator = match memory {
            // All GPUs can use pinned memory, so the provider may have it under the number 0.
            Memory::Pinned(gpu) => allocator(AllocationDevice::CUDA_PINNED, gpu)
                .or_else(|_| allocator(AllocationDevice::CUDA_PINNED, 0))?,
            #[cfg(test)]
            Memory::Plain => Allocator::new(session, MemoryInfo::default())?,
        };
        Ok(Staging { allocator })
    }

    /// A copy of `tensor` with the shape at the model.
    pub fn copy(&self, tensor: &Tensor, shape: &Shape) -> ort::Result<DynValue> {
        values::copied_value(tensor, shape, &self.allocator)
    }

    /// Runs `session` on `inputs`, and returns these `outputs`.
    pub fn run(
        &self,
        session: &mut Session,
        inputs: &[(&str, DynValue)],
        outputs: &[Name],
        options: &RunOptions<NoSelectedOutputs>,
    ) -> ort::Result<Vec<(Name, DynValue)>> {
        let mut binding = session.create_binding()?;
        for (name, value) in inputs {
            binding.bind_input(*name, value)?;
        }
        for name in outputs {
            binding.bind_output_to_device(name.as_str(), self.allocator.memory_info())?;
        }
        binding.synchronize_inputs()?;
        let mut found = session.run_binding_with_options(&binding, options)?;
        binding.synchronize_outputs()?;
        let output = |name: &Name| {
            let value = found.remove(name).ok_or_else(|| ort::Error::new(format!("output '{name}' is missing")))?;
            Ok((name.clone(), value))
        };
        outputs.iter().map(output).collect()
    }
}
