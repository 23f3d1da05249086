//! How the allocator of the C library keeps the memory that this process has given back.

/// Allocations of at least so many bytes are mappings of their own, which the system gets back when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_MAPPING: i32 = 1 << 20;

/// Free bytes at the end of a heap that the system does not get back.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: i32 = 2 << 20;

/// Has large allocations given back to the system, for good. By itself glibc raises its threshold to the size of the largest allocation that
/// was freed, up to 32 MiB; from then on such allocations lie among small ones in its heaps, which keep what they once had.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "the C library's settings have no safe function")]
pub fn give_back_large_allocations() {
    for (setting, value) in [(libc::M_MMAP_THRESHOLD, OWN_MAPPING), (libc::M_TRIM_THRESHOLD, KEPT)] {
        // SAFETY: takes two numbers and no pointer; glibc locks its settings against other threads.
        let taken = unsafe { libc::mallopt(setting, value) };
        debug_assert_eq!(taken, 1, "the value is one that glibc takes");
    }
}

/// Other C libraries give large allocations back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn give_back_large_allocations() {}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    fn resident_bytes() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").expect("proc is mounted");
        let pages: usize = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages");
        pages * rustix::param::page_size()
    }

    /// Requests of mixed sizes: each leaves something small that stays, as connections and counters do.
    #[test]
    fn the_memory_of_mixed_sizes_goes_back_to_the_system() {
        const MEBIBYTE: usize = 1 << 20;
        give_back_large_allocations();
        // From then on glibc would have all of these in a heap.
        drop(vec![1u8; 16 * MEBIBYTE]);
        let before = resident_bytes();
        let (mut large, mut small) = (Vec::new(), Vec::new());
        for number in 0..64 {
            large.push(vec![1u8; (2 + number % 3) * MEBIBYTE]);
            small.push(vec![1u8; 1000 + number]);
        }
        assert!(resident_bytes() > before + 128 * MEBIBYTE, "all of them are there");
        drop(large);
        let more = resident_bytes().saturating_sub(before);
        assert!(more < 32 * MEBIBYTE, "{} MiB stay", more >> 20);
        drop(small);
    }
}
