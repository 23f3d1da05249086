//! How the allocator of the C library keeps the memory that this process has freed.
//!
//! Large allocations are mappings, which the system gets back at once ([`return_large_allocations`]). Small ones lie in heaps. After
//! a flood of requests a heap is mostly free, but something small at its end keeps all of it; a thread asks the C library for those pages
//! ([`return_free_pages`]).

#[cfg(all(target_os = "linux", target_env = "gnu"))]
use std::time::Duration;

/// Allocations of at least so many bytes are mappings of their own, which the system gets back when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_MAPPING: i32 = 1 << 20;

/// Free bytes at the end of a heap that the system does not get back.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: i32 = 2 << 20;

/// Has large allocations returned to the system, for good. By itself glibc raises its threshold to the size of the largest allocation that
/// was freed, up to 32 MiB; from then on such allocations lie among small ones in its heaps, which keep the memory that they once had.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "the C library's settings have no safe function")]
pub fn return_large_allocations() {
    for (setting, value) in [(libc::M_MMAP_THRESHOLD, OWN_MAPPING), (libc::M_TRIM_THRESHOLD, KEPT)] {
        // SAFETY: takes two numbers and no pointer; glibc locks its settings against other threads.
        let taken = unsafe { libc::mallopt(setting, value) };
        debug_assert_eq!(taken, 1, "the value is one that glibc takes");
    }
}

/// Other C libraries give large allocations back by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn return_large_allocations() {}

/// How often the heaps are looked at.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const INTERVAL: Duration = Duration::from_secs(10);

/// A change since the last request for free pages that is worth another: 64 MiB.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const CHANGE: usize = 64 << 20;

/// Starts a thread that gives free pages of the heaps back to the system while this process lives.
///
/// # Errors
/// The system has no room for a thread.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub fn return_free_pages() -> std::io::Result<()> {
    let look = || {
        let mut heaps = Heaps { last: resident_bytes().unwrap_or_default() };
        loop {
            std::thread::sleep(INTERVAL);
            heaps.look();
        }
    };
    std::thread::Builder::new().name("heap".to_owned()).spawn(look).map(drop)
}

/// Other C libraries have no such call.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub fn return_free_pages() -> std::io::Result<()> {
    Ok(())
}

/// The memory of this process when free pages were last asked for.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
struct Heaps {
    /// Resident bytes after that.
    last: usize,
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
impl Heaps {
    /// Gives free pages back if the process has grown or shrunk by [`CHANGE`]: in both cases its heaps may hold more than they need. A process
    /// that keeps its size pays nothing.
    #[allow(unsafe_code, reason = "the C library's call has no safe function")]
    fn look(&mut self) {
        let Some(resident) = resident_bytes() else { return };
        if resident.abs_diff(self.last) >= CHANGE {
            // SAFETY: takes a number and no pointer; glibc locks each heap while it looks at it.
            unsafe { libc::malloc_trim(0) };
            self.last = resident_bytes().unwrap_or(resident);
        }
    }
}

/// The memory of this process that is not swapped out; `None` without a `/proc`.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn resident_bytes() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = pages.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size())
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    const MEBIBYTE: usize = 1 << 20;

    /// Each of these tests asks how large the whole process is.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    fn resident_bytes() -> usize {
        super::resident_bytes().expect("proc is mounted")
    }

    /// A flood of requests of medium size, of which each leaves something small that stays.
    #[test]
    fn the_free_pages_of_a_heap_go_back_to_the_system() {
        let _alone = ALONE.lock();
        let mut heaps = Heaps { last: resident_bytes() };
        let before = resident_bytes();
        let (medium, small): (Vec<_>, Vec<_>) =
            (0..4096).map(|number| (vec![1u8; 50_000], vec![1u8; 100 + number % 50])).unzip();
        drop(medium);
        assert!(resident_bytes() > before + 128 * MEBIBYTE, "the heap keeps what is free between what stays");
        heaps.look();
        let more = resident_bytes().saturating_sub(before);
        assert!(more < 48 * MEBIBYTE, "{} MiB stay", more >> 20);
        drop(small);
    }

    /// Requests of mixed sizes: each leaves something small that stays, as connections and counters do.
    #[test]
    fn the_memory_of_mixed_sizes_goes_back_to_the_system() {
        let _alone = ALONE.lock();
        return_large_allocations();
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
