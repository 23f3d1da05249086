//! Regions of shared memory as messages.

use super::wire::system_shared_memory_status_response::RegionStatus;
use super::wire::{SystemSharedMemoryRegisterRequest, SystemSharedMemoryStatusResponse};
use crate::shared_memory::SystemRegion;

/// The name and region in a request to register it.
pub fn decode_region(message: SystemSharedMemoryRegisterRequest) -> (String, SystemRegion) {
    let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = message;
    (name, SystemRegion { key, offset, byte_size })
}

/// The regions with the names under which they are registered.
pub fn encode_regions(regions: impl Iterator<Item = (String, SystemRegion)>) -> SystemSharedMemoryStatusResponse {
    let regions = regions.map(|(name, SystemRegion { key, offset, byte_size })| {
        (name.clone(), RegionStatus { name, key, offset, byte_size })
    });
    SystemSharedMemoryStatusResponse { regions: regions.collect() }
}
