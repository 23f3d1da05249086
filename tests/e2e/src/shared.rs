//! [`Shared`]: a sandbox that all tests of a program use which take it as it is.

use std::collections::HashMap;
use std::ops::Deref;
use std::process::{Child, Command, Stdio};
use std::sync::{LazyLock, Mutex, OnceLock};

use crate::{Mode, Sandbox, Setup};

/// Waits until the test program's end of the pipe is closed, which is when the program has ended, in whatever way; then kills the
/// processes and deletes the folders. Statics are not dropped, so nobody else would.
const GUARDIAN: &str = r#"read -r _; kill -9 $1; shift; rm -rf "$@""#;

/// One for each way of starting it, which its `Debug` text names.
static SANDBOXES: LazyLock<Mutex<HashMap<String, &'static OnceLock<Kept>>>> = LazyLock::new(Mutex::default);

/// A use of a running system that other tests use at the same time. When the test fails, the ends of the logs are printed.
pub struct Shared(&'static Sandbox);

/// A sandbox until the program ends.
struct Kept {
    sandbox: Sandbox,
    /// Has the end of its pipe that is closed when the program ends.
    _guardian: Child,
}

impl Setup {
    /// The running system of this setup, which is started for the first test that asks for it and ends with the test program. For tests
    /// that neither configure nor break it, nor count its work.
    ///
    /// # Panics
    /// When it does not become ready; the next test then tries again.
    #[track_caller]
    pub fn shared(self) -> Shared {
        let setup = format!("{self:?}");
        let kept = *SANDBOXES
            .lock()
            .expect("no thread panics with it")
            .entry(setup)
            .or_insert_with(|| Box::leak(Box::default()));
        Shared(&kept.get_or_init(|| Kept::new(self.start())).sandbox)
    }
}

impl Sandbox {
    /// The running system with the defaults of [`Setup::new`], as [`Setup::shared`].
    #[track_caller]
    pub fn shared(mode: Mode) -> Shared {
        Setup::new(mode).shared()
    }
}

// === impl Kept ===

impl Kept {
    fn new(sandbox: Sandbox) -> Kept {
        let broker = sandbox.nats.as_ref();
        let processes =
            sandbox.processes().map(|process| process.id()).chain(broker.and_then(|nats| nats.process_id()));
        let processes: Vec<String> = processes.map(|id| id.to_string()).collect();
        let mut guardian = Command::new("sh");
        guardian.args(["-c", GUARDIAN, "guardian", &processes.join(" ")]).arg(sandbox.folder());
        guardian.args(broker.map(|nats| nats.folder()));
        let started = guardian.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Kept { sandbox, _guardian: started.expect("sh starts") }
    }
}

// === impl Shared ===

impl Deref for Shared {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        self.0
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.processes()
                .for_each(|process| eprintln!("--- the log of {} ends:\n{}", process.name(), process.log_tail()));
        }
    }
}
