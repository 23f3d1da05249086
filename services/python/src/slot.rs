//! A slot holds the process of one instance. A thread starts the process, waits for its end, and starts the next one.
//!
//! The pause before a start grows while starts fail or processes end within a minute. [`Slot::outage`] reports the times without
//! a process.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use tokio::sync::watch;
use trireme_engine::{Outage, spawn};
use trireme_inference::Backoff;

use crate::child::{Child, InstancePlace, LOOK, Recipe, kill_group, memory_of, refuse_idle};
use crate::frame::{Layout, Link, LinkError};
use crate::message::{FromChild, ToChild};

/// The pauses before the next start after failures in a row.
const STARTS: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));

/// A process that has lived for this long ends the row of failures.
const STEADY: Duration = Duration::from_secs(60);

/// How often the worker checks a process: its memory, where that has a limit, and the frames that it sends while it executes nothing.
const ROUND: Duration = Duration::from_millis(100);

/// Most frames of a round. A model that sends more while it executes nothing waits for the next round.
const MOST_FRAMES: usize = 256;

/// How often a model that has an opinion on whether it is ready is asked, and how long it may take to answer.
const READINESS_CHECK: Duration = Duration::from_millis(250);
const READINESS_LIMIT: Duration = Duration::from_secs(10);

/// The time limit of `finalize`.
const FINALIZE_LIMIT: Duration = Duration::from_secs(10);

/// The slot of one instance's process. When it is dropped, the model is finalized and the process ends.
pub struct Slot {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    recipe: Arc<Recipe>,
    place: InstancePlace,
    state: Mutex<State>,
    changed: Condvar,
    outage: watch::Sender<Outage>,
    /// Whether the instance's thread is using the link. Another thread reads from it only while this is false and locked.
    used: Mutex<bool>,
}

#[derive(Default)]
struct State {
    /// The child's socket, while it can be used.
    link: Option<Arc<Link>>,
    /// The child, until it has ended.
    pid: Option<Pid>,
    /// The outcome of the first start, once it is over.
    first: Option<Result<(), String>>,
    ending: bool,
}

// === impl Slot ===

impl Slot {
    /// Begins to start the first process; [`Slot::wait`] waits for it.
    pub fn begin(recipe: Arc<Recipe>, place: InstancePlace) -> std::io::Result<Slot> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let outage = watch::Sender::new(Some(Arc::from("its process has not been started yet")));
        let shared = Arc::new(Shared { recipe, place, state, changed, outage, used: Mutex::new(false) });
        let watched = shared.clone();
        let thread = Some(spawn("python-process", move || watched.run())?);
        Ok(Slot { shared, thread })
    }

    /// Waits until the first start is over. Where it has failed, nothing is started any more.
    pub fn wait(&self) -> Result<(), String> {
        let mut state = self.shared.state.lock();
        loop {
            match &state.first {
                Some(first) => return first.clone(),
                None => self.shared.changed.wait(&mut state),
            }
        }
    }

    /// The socket to the process that is there.
    pub fn link(&self) -> Option<Arc<Link>> {
        self.shared.state.lock().link.clone()
    }

    /// Says whether the instance's thread is using the link, or will. Waits while the model is asked whether it is ready.
    pub fn set_used(&self, used: bool) {
        *self.shared.used.lock() = used;
    }

    /// The outages of the slot: times without a process, or with a model that says that it is not ready.
    pub fn outage(&self) -> watch::Receiver<Outage> {
        self.shared.outage.subscribe()
    }

    /// A handle that kills the current process from another thread.
    pub fn killer(&self) -> Killer {
        Killer(self.shared.clone())
    }

    /// How the processes of this slot are started.
    pub fn recipe(&self) -> &Recipe {
        &self.shared.recipe
    }

    /// The instance's name.
    pub fn instance(&self) -> &str {
        &self.shared.place.name
    }

    /// Kills the process at the other end of this link, if it is the current one. The next process is started. Returns why the process is
    /// down: where it was killed before, such as for the execution limit, that reason.
    pub fn give_up(&self, link: &Arc<Link>, reason: &str) -> String {
        let mut state = self.shared.state.lock();
        if state.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, link)) {
            self.shared.down(&mut state, reason);
        }
        self.shared.outage.borrow().as_deref().unwrap_or(reason).to_owned()
    }

    /// Asks the model to clean up and waits until its process has ended.
    fn finalize(&self) {
        let link = {
            let mut state = self.shared.state.lock();
            state.ending = true;
            self.shared.changed.notify_all();
            state.link.clone()
        };
        let until = Instant::now() + FINALIZE_LIMIT;
        if let Some(link) = link
            && link.send(&ToChild::Finalize, &Layout::default()).is_ok()
        {
            while Instant::now() < until {
                let Ok(frame) = link.receive(LOOK) else { break };
                let Some(frame) = frame else { continue };
                match self.recipe().read(&frame, self.instance()) {
                    Ok(Some(FromChild::Finalized)) | Err(_) => break,
                    Ok(None) => {}
                    // If sending fails, the process has ended.
                    Ok(Some(other)) => {
                        let _ = refuse_idle(&link, other, &frame);
                    }
                }
            }
            // The process flushes its output and ends.
            let until = until.min(Instant::now() + Duration::from_secs(1));
            let mut state = self.shared.state.lock();
            while state.pid.is_some() && !self.shared.changed.wait_until(&mut state, until).timed_out() {}
        }
        let mut state = self.shared.state.lock();
        self.shared.down(&mut state, "the worker ends");
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.finalize();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

/// Ends the process of an instance from another thread.
pub struct Killer(Arc<Shared>);

impl trireme_runtime::Stop for Killer {
    /// Does nothing: the model learns of the cancellation by `is_cancelled`.
    fn stop(&self) {}

    fn kill(&self) -> bool {
        let Killer(shared) = self;
        tracing::error!(
            model = shared.recipe.model,
            instance = shared.place.name,
            "an execution has passed the execution limit (--execution-limit-secs): its process is ended"
        );
        shared.down(&mut shared.state.lock(), "an execution has passed the execution limit (--execution-limit-secs)");
        true
    }
}

// === impl Shared ===

impl Shared {
    /// Makes the process unavailable and kills it.
    fn down(&self, state: &mut State, reason: &str) {
        state.link = None;
        self.outage.send_replace(Some(Arc::from(reason)));
        if let Some(pid) = state.pid {
            kill_group(pid);
        }
    }

    /// Starts processes, one after the other.
    fn run(&self) {
        let is_ending = || self.state.lock().ending;
        let mut failures = 0u32;
        loop {
            match self.recipe.start(&self.place, false, &is_ending) {
                Ok(child) => {
                    let started = Instant::now();
                    self.live(child);
                    failures = if started.elapsed() >= STEADY { 0 } else { failures.saturating_add(1) };
                }
                Err(reason) => {
                    let mut state = self.state.lock();
                    if state.first.is_none() {
                        state.first = Some(Err(reason));
                        self.changed.notify_all();
                        return;
                    }
                    if !state.ending {
                        tracing::error!(
                            model = self.recipe.model,
                            instance = self.place.name,
                            reason,
                            "the model could not be loaded again; trying on"
                        );
                        self.outage.send_replace(Some(Arc::from(reason)));
                    }
                    failures = failures.saturating_add(1);
                }
            }
            let until = Instant::now() + STARTS.after(failures);
            let mut state = self.state.lock();
            while !state.ending && !self.changed.wait_until(&mut state, until).timed_out() {}
            if state.ending {
                return;
            }
        }
    }

    /// Waits until a process has ended. Ends it when it has too much memory, asks the model whether it is ready, and reads what it
    /// sends while it executes nothing: its threads may write to the log, and must not wait for the next request with that.
    fn until_ended(&self, pid: Pid, asks_ready: bool) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let limit = self.recipe.memory_limit;
        // Readable when the process has ended.
        let process = pidfd_open(pid, PidfdFlags::empty());
        let mut asked = Instant::now();
        while let Ok(None) | Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options | WaitIdOptions::NOHANG) {
            if asks_ready && asked.elapsed() >= READINESS_CHECK {
                self.ask_ready();
                asked = Instant::now();
            }
            if let Some(reason) = limit.and_then(|limit| too_large(pid, limit)) {
                let mut state = self.state.lock();
                if state.link.is_some() {
                    tracing::error!(model = self.recipe.model, instance = self.place.name, "{reason}: it is ended");
                }
                self.down(&mut state, &reason);
            }
            self.read_idle();
            match &process {
                Ok(process) => {
                    let round = Timespec { tv_sec: 0, tv_nsec: ROUND.subsec_nanos().into() };
                    // An error, or nothing: the next round looks.
                    let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&round));
                }
                Err(_) => std::thread::sleep(ROUND),
            }
        }
    }

    /// Reads what a process has sent while it executes nothing.
    fn read_idle(&self) {
        let used = self.used.lock();
        let link = self.state.lock().link.clone();
        let Some(link) = link.filter(|_| !*used) else { return };
        for _ in 0..MOST_FRAMES {
            let frame = match link.receive(Duration::ZERO) {
                Ok(Some(frame)) => frame,
                // Nothing, or the process has ended.
                Ok(None) | Err(LinkError::Closed | LinkError::Io(_)) => return,
                Err(error) => return self.down(&mut self.state.lock(), &error.to_string()),
            };
            let read = self.recipe.read(&frame, &self.place.name);
            let answered =
                read.and_then(|message| message.map_or(Ok(()), |message| refuse_idle(&link, message, &frame)));
            if let Err(error) = answered {
                return self.down(&mut self.state.lock(), &error.to_string());
            }
        }
    }

    /// Asks the model whether it is ready, unless it is executing. While it says no, its instance takes no work.
    fn ask_ready(&self) {
        let used = self.used.lock();
        let link = self.state.lock().link.clone();
        let Some(link) = link.filter(|_| !*used) else { return };
        let reason = match self.answer_ready(&link) {
            Ok(Some(true)) => None,
            Ok(Some(false)) => Some("its is_ready says that it is not ready".to_owned()),
            Ok(None) => {
                let (model, instance) = (&self.recipe.model, &self.place.name);
                let reason = format!("its is_ready has not returned within {} s", READINESS_LIMIT.as_secs());
                tracing::error!(model, instance, reason, "the model's process is ended");
                return self.down(&mut self.state.lock(), &reason);
            }
            // The process has ended, or the thread of the instance notices the fault.
            Err(_) => return,
        };
        let state = self.state.lock();
        let is_current = state.link.as_ref().is_some_and(|current| Arc::ptr_eq(current, &link));
        if is_current && reason.is_some() != self.outage.borrow().is_some() {
            let (model, instance) = (&self.recipe.model, &self.place.name);
            match &reason {
                Some(reason) => tracing::warn!(model, instance, reason, "the model is not ready"),
                None => tracing::info!(model, instance, "the model is ready again"),
            }
            self.outage.send_replace(reason.map(Arc::from));
        }
    }

    /// The model's answer, `None` if there is none in time.
    fn answer_ready(&self, link: &Link) -> Result<Option<bool>, LinkError> {
        link.send(&ToChild::Ready, &Layout::default())?;
        let until = Instant::now() + READINESS_LIMIT;
        while let Some(frame) = link.receive(until.saturating_duration_since(Instant::now()))? {
            if let Some(FromChild::Ready { ready }) = self.recipe.read(&frame, &self.place.name)? {
                return Ok(Some(ready));
            }
        }
        Ok(None)
    }

    /// Offers a process whose model is loaded, until it has ended.
    fn live(&self, Child { mut process, link, asks_ready, .. }: Child) {
        let Some(pid) = Pid::from_raw(process.id() as i32) else { return };
        {
            let mut state = self.state.lock();
            (state.link, state.pid) = (Some(link), Some(pid));
            let again = state.first.replace(Ok(())).is_some();
            self.outage.send_replace(None);
            self.changed.notify_all();
            if state.ending {
                self.down(&mut state, "the worker ends");
            } else if again {
                tracing::info!(model = self.recipe.model, instance = self.place.name, "loaded again in a new process");
            }
        }
        // The process is not reaped while another thread might kill it by its number.
        self.until_ended(pid, asks_ready);
        // Processes that the model has started end with it.
        kill_group(pid);
        let mut state = self.state.lock();
        let was_used = state.link.take().is_some();
        state.pid = None;
        let status = process.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        if was_used {
            self.outage.send_replace(Some(Arc::from(format!("its process has ended ({status})"))));
        }
        if !state.ending {
            tracing::error!(
                model = self.recipe.model,
                instance = self.place.name,
                status,
                "the model's process has ended; starting it again"
            );
        }
        self.changed.notify_all();
    }
}

/// A process's size and its limit, where it is above that.
fn too_large(pid: Pid, limit: u64) -> Option<String> {
    let bytes = memory_of(pid).filter(|&bytes| bytes > limit)?;
    Some(format!("its process has {bytes} bytes in memory, more than {limit} (--python-memory-limit-bytes)"))
}
