//! One process under test, its standard error and its standard output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use trireme_testkit::{Note, note};

/// How much of a log is shown when something fails.
const TAIL_LINES: usize = 40;

/// A process whose standard error and output go to files. It is killed when dropped.
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
        let output = fs::File::create(log.with_extension("out")).expect("the sandbox's folder can be written");
        let child = command.stdin(Stdio::null()).stdout(output).stderr(file).spawn();
        let child = child.unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        note(Note::Process);
        Process { name: name.to_owned(), child, log, exited: None }
    }

    /// Sends SIGTERM, as an orchestrator does to stop a process.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Halts the process, like a host that hangs, until [`Process::resume`].
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a halted process go on.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a child has a process id");
        kill_process(id, signal).expect("a child that was not waited for can be signalled");
    }

    /// Sends SIGKILL, which ends the process like a crash.
    pub fn kill(&mut self) {
        if self.exited.is_none() {
            note(Note::Ends(self.id()));
            self.child.kill().expect("a child that was not waited for can be killed");
            self.exited = Some(self.child.wait().expect("a child can be waited for"));
        }
    }

    /// The exit status, if the process has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        if self.exited.is_none() {
            self.exited = self.child.try_wait().expect("a child can be waited for");
        }
        self.exited
    }

    /// Waits until the process has ended by itself, for `limit` at most.
    ///
    /// # Panics
    /// When it still runs after that.
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

    /// Its standard error so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Its standard output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log.with_extension("out")).unwrap_or_default()).into_owned()
    }

    /// The file with its standard error.
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// The last lines of its standard error.
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

    /// The lines that it wrote apart from log events, such as the last line of a process that fails.
    pub fn last_words(&self) -> Vec<String> {
        let is_event = |line: &str| serde_json::from_str::<Value>(line).is_ok_and(|value| value.is_object());
        self.log().lines().filter(|line| !is_event(line)).map(str::to_owned).collect()
    }

    /// The memory it occupies right now, in bytes; 0 if it has ended.
    pub fn resident_bytes(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    /// The most memory that it has occupied at a time, in bytes; 0 if it has ended.
    pub fn most_resident_bytes(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    /// A field of its status.
    fn status_bytes(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field));
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

/// The processes that a process has started and that have not ended.
///
/// # Panics
/// When there is no `/proc`.
pub fn children(of: u32) -> Vec<Pid> {
    let parent = |id: &str| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let fields = stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        // A zombie does not count.
        (fields[0] != "Z").then(|| fields[1].parse::<u32>().ok()).flatten()
    };
    let entries =
        fs::read_dir("/proc").expect("it is there").filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let numbers = entries.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    numbers.filter(|id| parent(id) == Some(of)).filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect()
}
