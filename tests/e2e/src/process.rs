//! One process under test, and what it says on standard error.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How much of a log is shown when something fails.
const TAIL_LINES: usize = 40;

/// A process whose standard error goes to a file. Dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    exited: Option<ExitStatus>,
}

// === impl Process ===

impl Process {
    /// Starts `command`; its log becomes `<folder>/<name>.log`.
    pub fn start(name: &str, command: &mut Command, folder: &Path) -> Process {
        let log = folder.join(format!("{name}.log"));
        let file = fs::File::create(&log).expect("the sandbox's folder can be written");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn();
        let child = child.unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        Process { name: name.to_owned(), child, log, exited: None }
    }

    /// Tells it to stop, as an orchestrator does: SIGTERM.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Halts it, as a host that hangs does, until [`Process::resume`].
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a child has a process id");
        kill_process(id, signal).expect("a child that was not waited for can be signalled");
    }

    /// Ends it as a crash does: SIGKILL.
    pub fn kill(&mut self) {
        if self.exited.is_none() {
            self.child.kill().expect("a child that was not waited for can be killed");
            self.exited = Some(self.child.wait().expect("a child can be waited for"));
        }
    }

    /// How it ended, if it has.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        if self.exited.is_none() {
            self.exited = self.child.try_wait().expect("a child can be waited for");
        }
        self.exited
    }

    /// Waits until it has ended by itself, for `limit` at most.
    ///
    /// # Panics
    /// When it still runs then.
    #[track_caller]
    pub fn wait_exit(&mut self, limit: Duration) -> ExitStatus {
        let give_up = Instant::now() + limit;
        loop {
            if let Some(status) = self.exited() {
                return status;
            }
            if Instant::now() >= give_up {
                panic!("{} still runs after {} s; its log ends:\n{}", self.name, limit.as_secs(), self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Everything it has said so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The file that what it says goes to.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The end of what it has said.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// The events it has logged, as JSON objects.
    pub fn events(&self) -> Vec<Value> {
        self.log().lines().filter_map(|line| serde_json::from_str(line).ok()).filter(Value::is_object).collect()
    }

    /// How often it has logged this message.
    pub fn count(&self, message: &str) -> usize {
        self.events().iter().filter(|event| event["message"] == message).count()
    }

    /// What it said apart from logging: the last words of a process that fails.
    pub fn last_words(&self) -> Vec<String> {
        let is_event = |line: &str| serde_json::from_str::<Value>(line).is_ok_and(|value| value.is_object());
        self.log().lines().filter(|line| !is_event(line)).map(str::to_owned).collect()
    }

    /// The memory it occupies right now, in bytes; 0 when it is gone.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kibibytes.unwrap_or(0) << 10
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the log of {} ends:\n{}", self.name, self.log_tail());
        }
        self.kill();
    }
}
