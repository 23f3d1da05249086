//! Two layouts of one model, chosen by load.
//!
//! A lone request is fastest on all CPUs; under load, throughput is highest with one CPU for each run. So each instance
//! has a *narrow* session of its own, and all share a *wide* one. A run that starts while no other runs is wide. One
//! that starts while others run is narrow, and waits for a wide one to end. So there are never more running threads
//! than CPUs, and under load, when some run is always in progress, all runs are narrow.

use ort::session::Session;
use parking_lot::{Condvar, Mutex};

/// The session of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The shared session with all CPUs.
    Wide,
    /// The instance's own session.
    Narrow,
}

/// The present runs.
#[derive(Debug, Default)]
pub struct Layouts {
    running: Mutex<Running>,
    wide_ended: Condvar,
}

#[derive(Debug, Default)]
struct Running {
    wide: bool,
    /// Narrow runs, including those that wait for the wide run to end. While there are any, the next run is narrow too.
    narrow: usize,
}

/// The right to run, until it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    layouts: &'a Layouts,
    /// The session to run.
    pub layout: Layout,
}

/// The wide layout with its session on all CPUs.
pub struct Wide {
    /// Which session a run takes.
    pub layouts: Layouts,
    /// Locked by the run whose turn it is, so a lock is never waited for.
    pub session: Mutex<Session>,
}

// === impl Layouts ===

impl Layouts {
    /// Waits for this run's turn, at most until the present wide run has ended.
    pub fn enter(&self) -> Turn<'_> {
        let mut running = self.running.lock();
        if !running.wide && running.narrow == 0 {
            running.wide = true;
            return Turn { layouts: self, layout: Layout::Wide };
        }
        running.narrow += 1;
        while running.wide {
            self.wide_ended.wait(&mut running);
        }
        Turn { layouts: self, layout: Layout::Narrow }
    }
}

// === impl Wide ===

impl Wide {
    /// A wide layout with `session`.
    pub fn new(session: Session) -> Wide {
        Wide { layouts: Layouts::default(), session: Mutex::new(session) }
    }
}

// === impl Turn ===

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut running = self.layouts.running.lock();
        match self.layout {
            Layout::Wide => {
                running.wide = false;
                self.layouts.wide_ended.notify_all();
            }
            Layout::Narrow => running.narrow -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lone_run_is_wide_and_runs_beside_others_are_narrow() {
        let layouts = Arc::new(Layouts::default());
        for _ in 0..2 {
            assert_eq!(layouts.enter().layout, Layout::Wide);
        }
        let wide = layouts.enter();
        let second = thread::spawn({
            let layouts = layouts.clone();
            move || {
                let turn = layouts.enter();
                let beside = layouts.enter().layout;
                (turn.layout, beside)
            }
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!second.is_finished(), "it waits for the wide run");
        drop(wide);
        assert_eq!(second.join().unwrap(), (Layout::Narrow, Layout::Narrow));
        assert_eq!(layouts.enter().layout, Layout::Wide);
    }

    #[test]
    fn threads_never_exceed_the_cpus() {
        const CPUS: usize = 4;
        let (layouts, busy, most) = (Layouts::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for instance in 0..CPUS as u64 {
                let (layouts, busy, most) = (&layouts, &busy, &most);
                scope.spawn(move || {
                    for round in 0..200 {
                        let turn = layouts.enter();
                        let threads = if turn.layout == Layout::Wide { CPUS } else { 1 };
                        most.fetch_max(busy.fetch_add(threads, Ordering::SeqCst) + threads, Ordering::SeqCst);
                        thread::sleep(Duration::from_micros((round * instance) % 7));
                        busy.fetch_sub(threads, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), CPUS);
    }
}
