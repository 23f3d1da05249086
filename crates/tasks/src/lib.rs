//! Starts async tasks: every task has a name, gets a signal to stop, and
//! is waited for. The panic of a task is kept, so that the process can end instead of going on without the task.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A set of tasks. Clones are the same set.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use trireme_tasks::TaskSet;
///
/// let (tasks, (sender, ended)) = (TaskSet::new(), tokio::sync::oneshot::channel());
/// let stopping = tasks.stopping().clone();
/// tasks.spawn("steady", async move {
///     stopping.cancelled().await;
///     let _ = sender.send("ended");
/// });
/// tasks.join().await;
/// assert_eq!(ended.await, Ok("ended"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TaskSet {
    tracker: TaskTracker,
    stop: CancellationToken,
    failed: Arc<watch::Sender<Option<&'static str>>>,
    runtime: Handle,
}

// === impl TaskSet ===

impl TaskSet {
    /// An empty set whose tasks run on the current tokio runtime. Panics outside of one.
    pub fn new() -> TaskSet {
        TaskSet {
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
            failed: Arc::new(watch::channel(None).0),
            runtime: Handle::current(),
        }
    }

    /// Starts a task. Can be called from any thread.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(name, task.boxed());
    }

    /// Starts a task that ends when the tasks have to stop, wherever it waits.
    pub fn spawn_until_stop(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.spawn(name, async move { _ = stop.run_until_cancelled(task).await });
    }

    /// The runtime's code for a task is compiled once for this type, not once for each future.
    fn spawn_boxed(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        let failed = self.failed.clone();
        let task = async move {
            if AssertUnwindSafe(task).catch_unwind().await.is_err() {
                tracing::error!(task = name, "task panicked");
                failed.send_replace(Some(name));
            }
        };
        #[allow(clippy::disallowed_methods, reason = "the one place where tasks are started")]
        self.tracker.spawn_on(task, &self.runtime);
    }

    /// The runtime that the tasks run on.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Cancelled when the tasks have to stop: tasks that end in an order of their own wait for it beside their work.
    pub fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    /// Signals the tasks to stop.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Signals the tasks to stop and waits until they have ended.
    pub async fn join(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Reports a fault after which the process has to end.
    pub fn fail(&self, what: &'static str) {
        self.failed.send_replace(Some(what));
    }

    /// Waits until a task panics or [`TaskSet::fail`] is called, and returns the name. Does not return otherwise.
    pub async fn failed(&self) -> &'static str {
        let mut failed = self.failed.subscribe();
        loop {
            if let Some(name) = *failed.borrow_and_update() {
                return name;
            }
            if failed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Default for TaskSet {
    fn default() -> Self {
        TaskSet::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panicking_task_is_reported_and_the_others_are_joined() {
        let tasks = TaskSet::new();
        let stopping = tasks.stopping().clone();
        tasks.spawn("steady", async move { stopping.cancelled().await });
        tasks.spawn_until_stop("endless", std::future::pending());
        tasks.spawn("doomed", async { panic!("as planned") });
        assert_eq!(tasks.failed().await, "doomed");
        tasks.join().await;
    }
}
