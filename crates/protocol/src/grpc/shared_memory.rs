//! Regions of shared memory as messages.

use super::wire::system_shared_memory_status_response::RegionStatus;
use super::wire::{SystemSharedMemoryRegisterRequest, SystemSharedMemoryStatusResponse};
use crate::shared_memory::SystemRegion;

/// A region to register, and the name to register it by.
pub fn decode_region(message: SystemSharedMemoryRegisterRequest) -> (String, SystemRegion) {
    let SystemSharedMemoryRegisterRequest { name, key, offset, byte_size } = message;
    (name, SystemRegion { key, offset, byte_size })
}

/// The regions, each with the name it is registered by.
pub fn encode_regions(regions: impl Iterator<Item = (String, SystemRegion)>) -> SystemSharedMemoryStatusResponse {
    let regions = regions.map(|(name, SystemRegion { key, offset, byte_size })| {
        (name.clone(), RegionStatus { name, key, offset, byte_size })
    });
    SystemSharedMemoryStatusResponse { regions: regions.collect() }
}
