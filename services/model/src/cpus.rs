//! How many threads an instance may use.
//!
//! ONNX Runtime counts the machine's cores and knows nothing of containers; a pod limited to two CPUs on a 64-core node
//! would start 64 threads and be throttled. The standard library reads the real limits: the scheduler's affinity mask and the
//! CPU quota of the process's cgroup and its parents (v1 and v2), rounded down.

use std::num::NonZero;
use std::thread;

/// CPUs that this process may use, at least 1.
pub fn available() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Threads for each of `instances` that share `cpus`, at least 1.
pub fn per_instance(cpus: usize, instances: usize) -> usize {
    (cpus / instances.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_share_the_cpus() {
        assert_eq!(per_instance(8, 2), 4);
        assert_eq!(per_instance(8, 3), 2);
        assert_eq!(per_instance(1, 4), 1);
        assert_eq!(per_instance(4, 0), 4);
        assert!(available() >= 1);
    }
}
