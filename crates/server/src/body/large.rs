//! Large bodies: half of the processors at most inflate, read and write them, so that the others answer requests meanwhile. Small
//! bodies never wait for large ones.

use std::sync::LazyLock;

use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};

/// A body of more bytes is a large one.
pub const LARGE: usize = 4 << 20;

/// The large bodies that are worked on at a time. One for the process, because its processors are.
static LARGE_BODIES: LazyLock<Semaphore> = LazyLock::new(|| {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Semaphore::new((processors / 2).max(1))
});

/// Waits, on a thread that may block, until a large body may be worked on: until the permit is dropped.
pub fn enter() -> Option<SemaphorePermit<'static>> {
    // Outside a runtime no other request waits. The semaphore is never closed.
    let runtime = Handle::try_current().ok()?;
    runtime.block_on(LARGE_BODIES.acquire()).ok()
}
