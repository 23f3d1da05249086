//! Threads, which the system may refuse: a container has a limit of threads and processes, and so may a user.
//!
//! Threads of models are started by [`spawn`] and [`on_thread`]. A library that starts threads by itself may hang where it gets none, so
//! [`promise`] tries first whether they can be started. Errors name the limits and how they are raised.
//!
//! Not here: the runtime's own threads (`service` in the runtime).

use std::any::Any;
use std::fmt::{self, Display};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::thread::{Builder, JoinHandle, available_parallelism, scope};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::process::{Resource, getrlimit, getuid};
use rustix::thread::gettid;
use tokio::sync::oneshot;

/// The stack of a thread that only shows that it can be started.
const PROBE_STACK: usize = 64 << 10;

/// Threads beyond a promise for which there has to be room: others start some meanwhile.
const SPARE: usize = 16;

/// Where the limits leave so many times the threads, none is started to try.
const AMPLE: usize = 8;

/// How long a library may take to start the threads that it was promised. From then on they count as started.
const STARTING: Duration = Duration::from_secs(5);

/// How long threads that have ended may still count against the limit.
const LEAVING: Duration = Duration::from_secs(2);

/// The promises of this process.
static PROMISES: Promises = Promises::new();

/// Starts a thread. The error says which limits the process has.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.into()).spawn(work).map_err(|error| with_limits(error, 1))
}

/// Does blocking work on a thread of its own, which nothing waits for when the caller gives up. The error says that the thread
/// cannot be started, or with which words the work panicked.
pub async fn on_thread<T: Send + 'static>(
    name: impl Into<String>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (sender, done) = oneshot::channel();
    spawn(name, move || {
        let worked = catch_unwind(AssertUnwindSafe(work)).map_err(|panic| words(panic.as_ref()));
        // Nobody receives it when the caller has given up.
        let _ = sender.send(worked);
    })?;
    let worked = done.await.unwrap_or_else(|_| Err("its thread has ended".to_owned()));
    worked.map_err(|panic| io::Error::other(format!("panicked: {panic}")))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or(panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without words").to_owned()
}

/// Room for threads that a library starts while this value exists.
#[must_use]
pub struct Promise {
    threads: usize,
    of: &'static Promises,
}

impl Drop for Promise {
    fn drop(&mut self) {
        *self.of.threads.lock() -= self.threads;
        self.of.ended.notify_all();
    }
}

/// Promises a library that it can start so many threads. Where there is no room while other libraries start theirs, this waits for
/// those for some seconds: then it is known how many threads they have.
pub fn promise(threads: usize) -> io::Result<Promise> {
    let is_ample = |threads: usize| ThreadLimits::of_this_process().leave(AMPLE * threads);
    PROMISES.give(threads, STARTING, |threads| if is_ample(threads) { Ok(()) } else { probe(threads) })
}

/// The threads that libraries were promised, and are starting.
struct Promises {
    threads: Mutex<usize>,
    /// Notified when a promise has ended.
    ended: Condvar,
}

// === impl Promises ===

impl Promises {
    const fn new() -> Promises {
        Promises { threads: Mutex::new(0), ended: Condvar::new() }
    }

    fn give(
        &'static self,
        threads: usize,
        patience: Duration,
        probe: impl Fn(usize) -> io::Result<()>,
    ) -> io::Result<Promise> {
        let (mut others, until) = (self.threads.lock(), Instant::now() + patience);
        let mut are_there = threads == 0;
        while !are_there {
            // After that time the others have their threads, however long they hold their promises.
            let starting = if Instant::now() < until { *others } else { 0 };
            match probe(starting + threads + SPARE) {
                Ok(()) => are_there = true,
                Err(error) if starting == 0 => return Err(with_limits(error, threads)),
                Err(_) => drop(self.ended.wait_until(&mut others, until)),
            }
        }
        *others += threads;
        Ok(Promise { threads, of: self })
    }
}

/// Whether so many threads can be started: starts them, and ends them again.
fn probe(threads: usize) -> io::Result<()> {
    let ids = Mutex::new(Vec::with_capacity(threads));
    let started = scope(|scope| {
        let closed = ids.lock();
        let stay = || ids.lock().push(gettid());
        let start = |_| Builder::new().stack_size(PROBE_STACK).spawn_scoped(scope, stay).map(drop);
        let started = (0..threads).try_for_each(start);
        drop(closed);
        started
    });
    // A thread that has ended counts against the limit until the system has forgotten it.
    let until = Instant::now() + LEAVING;
    for id in ids.into_inner() {
        let task = format!("/proc/self/task/{}", id.as_raw_nonzero());
        while Path::new(&task).exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    started
}

/// The error that so many threads or processes cannot be started; with the process's limits, where they are the reason.
pub fn with_limits(error: io::Error, threads: usize) -> io::Error {
    if error.kind() != io::ErrorKind::WouldBlock {
        return error;
    }
    let what = if threads == 1 { "a thread or process".to_owned() } else { format!("{threads} threads") };
    let limits = ThreadLimits::of_this_process();
    io::Error::new(
        error.kind(),
        format!(
            "{what} cannot be started: {error}; this process has {limits}. Raise the limit (pids_limit of compose, --pids-limit of \
             docker run, podPidsLimit of a kubelet, TasksMax of systemd), serve fewer models in one process, or give ONNX models \
             fewer threads (--onnxruntime-intra-threads, or the parameter intra_op_thread_count)"
        ),
    )
}

/// The limits of a process's threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadLimits {
    /// The CPUs that it may use, by its affinity and by the quota of its cgroup.
    pub cpus: usize,
    /// The most threads and processes of its cgroups, and how many there are; the narrowest.
    pub cgroup: Option<(u64, u64)>,
    /// The most threads and processes of its user.
    pub user: Option<u64>,
}

// === impl ThreadLimits ===

impl ThreadLimits {
    /// The limits of this process.
    pub fn of_this_process() -> ThreadLimits {
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        ThreadLimits {
            cpus: available_parallelism().map_or(1, usize::from),
            cgroup: of_cgroups(Path::new("/sys/fs/cgroup"), &own),
            // The limit does not bind root.
            user: getrlimit(Resource::Nproc).current.filter(|_| !getuid().is_root()),
        }
    }

    /// Whether it is certain that they leave room for so many threads. How many threads its user has is not known.
    fn leave(&self, threads: usize) -> bool {
        let room = |(most, used): (u64, u64)| most.saturating_sub(used) >= threads as u64;
        self.user.is_none() && self.cgroup.is_none_or(room)
    }
}

impl Display for ThreadLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} CPUs", self.cpus)?;
        match self.cgroup {
            Some((most, used)) => {
                write!(f, ", room for {most} threads and processes (pids.max), of which {used} are there")?
            }
            None => write!(f, ", no limit of threads and processes in its cgroups (pids.max)")?,
        }
        match self.user {
            Some(most) => write!(f, ", and at most {most} of its user (RLIMIT_NPROC)"),
            None => Ok(()),
        }
    }
}

/// The narrowest `pids.max` of the cgroups in `own`, a `/proc/self/cgroup`, and the threads and processes there. A container may see its
/// own cgroup as the root.
fn of_cgroups(root: &Path, own: &str) -> Option<(u64, u64)> {
    let folders = own.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        match (parts.next()?, parts.next()?) {
            ("", path) => Some((root.to_owned(), path)),
            (controllers, path) => {
                controllers.split(',').any(|controller| controller == "pids").then(|| (root.join("pids"), path))
            }
        }
    });
    let limit = |folder: PathBuf| {
        let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
        Some((read("pids.max")?, read("pids.current")?))
    };
    let ancestors = folders.flat_map(|(mount, path)| {
        let path = Path::new(path.trim_start_matches('/')).to_owned();
        path.ancestors().map(|part| mount.join(part)).collect::<Vec<_>>()
    });
    ancestors.filter_map(limit).min_by_key(|(most, used)| most.saturating_sub(*used))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> io::Error {
        io::Error::from(io::ErrorKind::WouldBlock)
    }

    #[test]
    fn threads_that_cannot_be_started_are_an_error_that_names_the_limits() {
        static PROMISES: Promises = Promises::new();
        let refused = PROMISES.give(63, STARTING, |_| Err(none())).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        let text = refused.to_string();
        assert!(text.starts_with("63 threads cannot be started: ") && text.contains("pids_limit of compose"), "{text}");
        assert!(text.contains("CPUs, ") && text.contains("pids.max"), "{text}");
        assert!(promise(2).is_ok() && promise(0).is_ok());
    }

    #[test]
    fn a_promise_waits_for_those_whose_threads_are_not_counted_yet() {
        static PROMISES: Promises = Promises::new();
        let room_for = |room: usize| move |threads: usize| if threads > room { Err(none()) } else { Ok(()) };
        let other = PROMISES.give(6, STARTING, room_for(6 + SPARE)).unwrap();
        // The other library's threads are there from now on, which leaves room for four.
        let waiting = std::thread::spawn(move || PROMISES.give(4, 10 * STARTING, room_for(4 + SPARE)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        drop(other);
        let given = waiting.join().unwrap().unwrap();
        assert_eq!(*PROMISES.threads.lock(), 4);
        // The threads of an old promise have started, so nobody waits for its end.
        drop(PROMISES.give(2, Duration::from_millis(1), room_for(2 + SPARE)).unwrap());
        assert!(PROMISES.give(9, Duration::from_millis(1), room_for(2 + SPARE)).is_err());
        drop(given);
        assert_eq!(*PROMISES.threads.lock(), 0);
    }

    /// Also in a cgroup that has room for little more.
    #[test]
    fn threads_that_were_promised_can_be_started_at_once() {
        for _ in 0..10 {
            let promised = promise(40).unwrap();
            let gate = Mutex::new(());
            scope(|scope| {
                let closed = gate.lock();
                for _ in 0..40 {
                    Builder::new().spawn_scoped(scope, || drop(gate.lock())).unwrap();
                }
                drop((closed, promised));
            });
        }
    }

    #[tokio::test]
    async fn work_on_a_thread_gives_its_result_or_the_words_of_its_panic() {
        assert_eq!(on_thread("sum", || 1 + 1).await.unwrap(), 2);
        let panicked = on_thread::<()>("doomed", || panic!("as {}", "planned")).await.unwrap_err();
        assert_eq!(panicked.to_string(), "panicked: as planned");
    }

    #[test]
    fn the_narrowest_cgroup_counts() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = |path: &str, most: &str, used: &str| {
            let folder = root.path().join(path);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("pids.max"), format!("{most}\n")).unwrap();
            std::fs::write(folder.join("pids.current"), format!("{used}\n")).unwrap();
        };
        let limit = |own: &str| of_cgroups(root.path(), own);
        assert_eq!(limit("0::/pod/container\n"), None);
        cgroup("pod/container", "512", "40");
        cgroup("pod", "max", "90");
        assert_eq!(limit("0::/pod/container\n"), Some((512, 40)));
        cgroup("pod", "300", "90");
        assert_eq!(limit("0::/pod/container\n"), Some((300, 90)), "the pod's");
        // Version 1 names the cgroup on the host, and a container sees it as the root.
        cgroup("pids", "64", "5");
        assert_eq!(limit("8:cpu,pids:/docker/1234\n4:memory:/docker/1234\n"), Some((64, 5)));
        let limits = ThreadLimits { cpus: 8, cgroup: Some((512, 40)), user: None };
        assert!(
            limits.leave(472) && !limits.leave(473) && !ThreadLimits { user: Some(4096), ..limits.clone() }.leave(1)
        );
        assert_eq!(limits.to_string(), "8 CPUs, room for 512 threads and processes (pids.max), of which 40 are there");
    }
}
