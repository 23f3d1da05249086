//! Steady load: requests, some of them at a time, and an action meanwhile.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The outcome of the requests.
#[derive(Debug)]
pub struct Outcome {
    /// Number of requests that were answered as expected.
    pub right: usize,
    /// The errors of the other requests.
    pub wrong: Vec<String>,
    /// The longest time that a request took.
    pub slowest: Duration,
}

/// Sends `requests` requests, `concurrency` at a time, by calling `request` with 0, 1, 2 …; it panics when the answer
/// is wrong. Once half of them have been answered, calls `halfway`, while the other requests go on.
pub fn load(requests: usize, concurrency: usize, request: impl Fn(usize) + Sync, halfway: impl FnOnce()) -> Outcome {
    let is_wanted = |number, _: &AtomicBool| number < requests;
    send(concurrency, request, is_wanted, |done| {
        while done.load(Ordering::Relaxed) < requests / 2 {
            thread::sleep(Duration::from_millis(1));
        }
        halfway();
    })
}

/// Sends requests in the same way until `action` has returned or panicked.
pub fn load_during(concurrency: usize, request: impl Fn(usize) + Sync, action: impl FnOnce()) -> Outcome {
    send(concurrency, request, |_, over: &AtomicBool| !over.load(Ordering::Relaxed), |_| action())
}

/// Sends requests while their number `is_wanted`, which also sees whether the `action` is over. The action sees how many
/// requests have been answered.
fn send(
    concurrency: usize,
    request: impl Fn(usize) + Sync,
    is_wanted: impl Fn(usize, &AtomicBool) -> bool + Sync,
    action: impl FnOnce(&AtomicUsize),
) -> Outcome {
    let (next, done, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let outcome = Mutex::new(Outcome { right: 0, wrong: Vec::new(), slowest: Duration::ZERO });
    let acted = thread::scope(|scope| {
        for _ in 0..concurrency {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if !is_wanted(number, &over) {
                        return;
                    }
                    let started = Instant::now();
                    let answered = panic::catch_unwind(AssertUnwindSafe(|| request(number)));
                    let mut outcome = outcome.lock().expect("no holder panics");
                    outcome.slowest = outcome.slowest.max(started.elapsed());
                    match answered {
                        Ok(()) => outcome.right += 1,
                        Err(panic) => outcome.wrong.push(format!("request {number}: {}", message(panic.as_ref()))),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let acted = panic::catch_unwind(AssertUnwindSafe(|| action(&done)));
        over.store(true, Ordering::Relaxed);
        acted
    });
    if let Err(panic) = acted {
        panic::resume_unwind(panic);
    }
    outcome.into_inner().expect("no holder panics")
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message")
}

// === impl Outcome ===

impl Outcome {
    /// # Panics
    /// Unless all of the `requests` requests were answered as expected.
    #[track_caller]
    pub fn assert_all_right(&self, requests: usize) {
        let some: Vec<_> = self.wrong.iter().take(5).map(String::as_str).collect();
        assert!(self.wrong.is_empty(), "{} of {requests} went wrong:\n{}", self.wrong.len(), some.join("\n"));
        assert_eq!(self.right, requests);
    }
}
