//! Work on bodies that takes a thread for longer than other requests should wait: JSON is read and written, codings are taken off, vectors are
//! compared. It is done beside the runtime's threads, in slots: as many as there are processors for bodies of up to [`LARGE`] bytes, and
//! half as many for larger ones, so that small bodies never wait for large ones.
//!
//! Invariant: a request waits for its slot before it takes a thread, and has no slot while it waits for anything else. So these slots are all
//! the threads that bodies take, however many bodies there are, and no client decides how long a slot is taken.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::Poll;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Work on fewer bytes is done where it is.
pub const LONG: usize = 64 << 10;

/// A body of more bytes is a large one.
pub const LARGE: usize = 4 << 20;

/// Beyond so many large bodies that wait, another one that may take long is refused.
const MOST_WAITING: usize = 128;

/// For bodies that are not large. One for the process, because its processors are.
static SMALL_SLOTS: LazyLock<Slots> = LazyLock::new(|| Slots::new(1));

/// For large bodies.
static LARGE_SLOTS: LazyLock<Slots> = LazyLock::new(|| Slots::new(2));

/// Threads that work on bodies at a time.
struct Slots {
    free: Semaphore,
    waiting: AtomicUsize,
}

/// Counts one that waits.
struct Waiting(&'static AtomicUsize);

tokio::task_local! {
    /// The bytes that the work of a request is on, about.
    static EFFORT: Arc<AtomicUsize>;
}

/// Does work on about so many bytes. If they are many, the other tasks of this thread go on elsewhere meanwhile.
pub async fn convert<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if rise(bytes).await {
        return work();
    }
    let slot = enter(bytes).await;
    let made = beside(slot.is_some(), work);
    drop(slot);
    made
}

/// Drives work whose parts, those between two waits, are on about so many bytes. If they are many, the other tasks of this thread go on
/// elsewhere meanwhile. A slot is taken for each part. Work within it that is on more bytes than that says so with [`convert`], [`aside`]
/// or [`much`]. Dropping the future ends the work at its next wait.
pub async fn aside<F: Future>(bytes: usize, work: F) -> F::Output {
    if rise(bytes).await {
        return work.await;
    }
    let effort = Arc::new(AtomicUsize::new(bytes));
    let mut work = pin!(EFFORT.scope(effort.clone(), work));
    loop {
        let slot = enter(effort.load(Ordering::Relaxed)).await;
        let part = poll_fn(|cx| Poll::Ready(beside(slot.is_some(), || work.as_mut().poll(cx)))).await;
        drop(slot);
        match part {
            Poll::Ready(output) => return output,
            Poll::Pending => woken().await,
        }
    }
}

/// Says that the work around it, which [`aside`] drives, is on so many bytes from here on.
pub async fn much(bytes: usize) {
    rise(bytes).await;
}

/// Lets the others go on that wait for a slot. Work that nobody waits for any more ends here.
pub async fn pause() {
    tokio::task::yield_now().await;
}

/// Whether so many large bodies wait that another one had better not.
pub fn is_crowded() -> bool {
    LARGE_SLOTS.waiting.load(Ordering::Relaxed) >= MOST_WAITING
}

/// Moves the work around it, if [`aside`] drives it, to where work on so many bytes is done. Says whether there is such work: it has a slot,
/// and another one for a part of it could never come free.
async fn rise(bytes: usize) -> bool {
    let Ok(effort) = EFFORT.try_with(Clone::clone) else { return false };
    if bytes >= LONG && effort.fetch_max(bytes, Ordering::Relaxed) < bytes {
        pause().await;
    }
    true
}

/// Waits for a slot; little work needs none.
async fn enter(bytes: usize) -> Option<SemaphorePermit<'static>> {
    let slots: &'static Slots = match bytes {
        ..LONG => return None,
        LONG..=LARGE => &SMALL_SLOTS,
        _ => &LARGE_SLOTS,
    };
    slots.waiting.fetch_add(1, Ordering::Relaxed);
    let _waiting = Waiting(&slots.waiting);
    // They are never closed.
    slots.free.acquire().await.ok()
}

fn beside<T>(is_long: bool, work: impl FnOnce() -> T) -> T {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread if is_long => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// Waits until the task is woken.
async fn woken() {
    let mut waits = true;
    poll_fn(|_| if std::mem::take(&mut waits) { Poll::Pending } else { Poll::Ready(()) }).await;
}

// === impl Slots ===

impl Slots {
    /// One for so many processors, at least one.
    fn new(processors_each: usize) -> Slots {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Slots { free: Semaphore::new((processors / processors_each).max(1)), waiting: AtomicUsize::new(0) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// For tests that need the slots for large bodies: one test at a time has them.
#[cfg(test)]
pub mod testing {
    use super::*;

    /// Held by the test.
    pub static LARGE_TEST: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    /// Takes all slots for large bodies.
    pub async fn fill_large() -> SemaphorePermit<'static> {
        let all = std::thread::available_parallelism().map_or(1, usize::from) / 2;
        LARGE_SLOTS.free.acquire_many(all.max(1) as u32).await.expect("they are never closed")
    }

    /// How many wait for such a slot.
    pub fn waiting() -> usize {
        LARGE_SLOTS.waiting.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    use trireme_tasks::TaskSet;

    use super::testing::{LARGE_TEST, fill_large};
    use super::*;

    /// Holds threads up.
    #[derive(Default)]
    struct Gate {
        is_open: Mutex<bool>,
        opened: Condvar,
        held: AtomicUsize,
        passed: AtomicUsize,
    }

    impl Gate {
        fn pass(&self) {
            self.held.fetch_add(1, Ordering::SeqCst);
            let closed =
                self.opened
                    .wait_timeout_while(self.is_open.lock().unwrap(), Duration::from_secs(10), |is_open| !*is_open);
            assert!(!closed.unwrap().1.timed_out(), "nothing else went on");
            self.passed.fetch_add(1, Ordering::SeqCst);
        }

        fn open(&self) {
            *self.is_open.lock().unwrap() = true;
            self.opened.notify_all();
        }
    }

    /// The runtime has two threads. Four requests keep a thread each until a task has run ten times.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_on_many_bytes_leaves_the_threads_to_others() {
        let (gate, tasks) = (Arc::new(Gate::default()), TaskSet::new());
        for bytes in [LONG, LONG, 0, 0] {
            let gate = gate.clone();
            tasks.spawn("work", async move {
                let work = async {
                    // Two are found to be long on their way.
                    convert(LONG, || ()).await;
                    gate.pass();
                    pause().await;
                };
                aside(bytes, work).await;
            });
        }
        let opener = gate.clone();
        tasks.spawn("ticker", async move {
            let held = std::thread::available_parallelism().map_or(1, usize::from).min(2);
            let mut ticks = 0;
            while ticks < 10 {
                tokio::task::yield_now().await;
                ticks += usize::from(opener.held.load(Ordering::SeqCst) >= held);
            }
            opener.open();
        });
        tasks.join().await;
        assert_eq!(gate.passed.load(Ordering::SeqCst), 4);
    }

    #[tokio::test]
    async fn work_that_waits_has_no_slot_and_goes_on_when_it_is_woken() {
        let _test = LARGE_TEST.lock().await;
        let (send, receive) = tokio::sync::oneshot::channel();
        let mut waiting = pin!(aside(LARGE + 1, receive));
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        let all = fill_large().await;
        send.send(7).unwrap();
        assert!(futures_util::poll!(waiting.as_mut()).is_pending(), "there is no slot");
        drop(all);
        assert_eq!(waiting.await, Ok(7));
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_ends_at_its_next_pause() {
        let done = AtomicUsize::new(0);
        let work = async {
            for _ in 0..100 {
                done.fetch_add(1, Ordering::Relaxed);
                pause().await;
            }
        };
        {
            let mut work = pin!(aside(LONG, work));
            while done.load(Ordering::Relaxed) < 3 {
                assert!(futures_util::poll!(work.as_mut()).is_pending());
            }
        }
        assert_eq!(done.load(Ordering::Relaxed), 3);
    }
}
