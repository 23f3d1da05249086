//! A child process: its start, until its model is loaded, and its output.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child as Process, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use trireme_engine::{IdleCalls, spawn, with_limits};
use trireme_inference::Action;
use trireme_model_repository::Uploaded;
use trireme_runtime::statistics::own::OwnMetrics;

use crate::archive::Unpacked;
use crate::frame::{Frame, Layout, Link, LinkError};
use crate::message::{FromChild, ToChild};
use crate::nested::{NestedRequests, refuse, unreadable};
use crate::package::Package;
use crate::salvage;

/// Number of lines of output that the error of a failed start shows.
const LAST_LINES: usize = 12;

/// The longest line that is logged as one, in bytes.
const LONGEST_LINE: u64 = 8 << 10;

/// How long a thread waits for a frame before it checks for other events, such as cancellations.
pub const LOOK: Duration = Duration::from_millis(20);

/// How long the worker reads the output of a child that has ended: a process that the child has started may keep the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// One instance of a model.
#[derive(Clone, Debug)]
pub struct InstancePlace {
    /// Its name, as Triton makes them.
    pub name: String,
    /// Where the model is to compute, as `initialize` reads it: `CPU`, `GPU`.
    pub kind: &'static str,
    /// On which GPU; 0 on the CPU.
    pub device: i32,
}

/// How the children of a model are started.
pub struct Recipe {
    /// The model's name, for the log.
    pub model: String,
    /// The program that runs it, and its arguments.
    pub program: PathBuf,
    /// See `program`.
    pub arguments: Vec<String>,
    /// The folder that it starts in; `None` is the worker's.
    pub folder: Option<PathBuf>,
    /// The flag or parameter that names the program, for errors.
    pub named_by: &'static str,
    /// Keeps the program's environment, where it was unpacked for it.
    pub unpacked: Option<Unpacked>,
    /// Its environment.
    pub variables: Vec<(std::ffi::OsString, std::ffi::OsString)>,
    /// The model file.
    pub file: PathBuf,
    /// The arguments of `initialize`, without those about the instance.
    pub args: BTreeMap<&'static str, String>,
    /// Whether a request may have any number of responses.
    pub decoupled: bool,
    /// The time limit of a start.
    pub start_limit: Duration,
    /// Most bytes of memory that a process may have.
    pub memory_limit: Option<u64>,
    /// The package that children run. Its files exist for as long as this value.
    pub package: Package,
    /// The metrics that the model defines.
    pub metrics: OwnMetrics,
    /// The model's files, if they came with a request. They exist for as long as this value.
    pub uploaded: Option<Uploaded>,
    /// The way of `initialize` to other models.
    pub calls: IdleCalls,
}

/// A process whose model is loaded.
pub struct Child {
    /// The process.
    pub process: Process,
    /// The socket to it.
    pub link: Arc<Link>,
    /// The configuration, where it was completed.
    pub config: Option<String>,
    /// Whether the model has an opinion on whether it is ready.
    pub asks_ready: bool,
}

/// The last lines of a child's output.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<VecDeque<String>>>);

/// The thread that reads a child's output, and the lines that it keeps.
type Printing = (JoinHandle<()>, Printed);

// === impl Recipe ===

impl Recipe {
    /// Starts a process for an instance and waits until its model is loaded. With `complete`, the process only completes the
    /// model's configuration. Gives up when `is_ending` returns true. The error may contain the last lines of output.
    ///
    /// The process ends when the calling thread does, so that none outlives its worker.
    pub fn start(&self, place: &InstancePlace, complete: bool, is_ending: &dyn Fn() -> bool) -> Result<Child, String> {
        let (mut process, link, printing) = self.spawn(&place.name).map_err(|error| {
            format!("cannot start '{}': {error}; {} names the program", self.program.display(), self.named_by)
        })?;
        let printed = printing.1.clone();
        match self.load(&link, place, complete, is_ending) {
            Ok((config, asks_ready)) => Ok(Child { process, link, config, asks_ready }),
            Err(reason) => {
                kill(&process);
                let status = process.wait();
                let until = Instant::now() + LAST_WORDS;
                while !printing.0.is_finished() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(reason.unwrap_or_else(|| {
                    let status = status.map(|status| status.to_string()).unwrap_or_else(|error| error.to_string());
                    let (program, named_by) = (self.program.display(), self.named_by);
                    let printed = printed.tail();
                    format!(
                        "its process ({program}, see {named_by}) ended before the model was loaded ({status}){printed}"
                    )
                }))
            }
        }
    }

    fn spawn(&self, instance: &str) -> io::Result<(Process, Arc<Link>, Printing)> {
        let (ours, theirs) = UnixStream::pair()?;
        let (reader, writer) = io::pipe()?;
        let mut command = Command::new(&self.program);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
            .args(&self.arguments)
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("TRIREME_WORKER_PID", std::process::id().to_string())
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
            .stdout(writer.try_clone()?)
            .stderr(writer)
            // Ctrl-C at a terminal must reach the worker only, which then finalizes the model.
            .process_group(0);
        let process = command.spawn().map_err(|error| with_limits(error, 1))?;
        // The command holds the child's ends of socket and pipe. The worker must not keep them open.
        drop(command);
        let (printed, model, instance) = (Printed::default(), self.model.clone(), instance.to_owned());
        let printing = printed.clone();
        let thread = spawn("python-output", move || printing.follow(reader, &model, &instance))?;
        Ok((process, Arc::new(Link::new(ours)?), (thread, printed)))
    }

    /// Asks the child to load the model. `Err(None)` means that the process has ended.
    fn load(
        &self,
        link: &Arc<Link>,
        place: &InstancePlace,
        complete: bool,
        is_ending: &dyn Fn() -> bool,
    ) -> Result<(Option<String>, bool), Option<String>> {
        let (mut args, instance) = (self.args.clone(), place.name.as_str());
        args.insert("model_instance_name", place.name.clone());
        args.insert("model_instance_kind", place.kind.to_owned());
        args.insert("model_instance_device_id", place.device.to_string());
        let load = ToChild::Load { file: &self.file, args: &args, decoupled: self.decoupled, complete };
        let failed = |error: LinkError| match error {
            LinkError::Closed => None,
            // The child may have ended before it read the frame.
            LinkError::Io(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
            error => Some(format!("its process failed while it was loaded: {error}")),
        };
        link.send(&load, &Layout::default()).map_err(failed)?;
        let until = Instant::now() + self.start_limit;
        let (calls, nested) = (self.calls.within(self.start_limit), NestedRequests::new(link.clone()));
        loop {
            let Some(frame) = link.receive(LOOK).map_err(failed)? else {
                if is_ending() {
                    return Err(Some("the worker ends".to_owned()));
                }
                if Instant::now() >= until {
                    let limit = self.start_limit.as_secs_f32();
                    return Err(Some(format!("it was not loaded within {limit} s (--python-start-limit-secs)")));
                }
                continue;
            };
            match self.read(&frame, instance).map_err(failed)? {
                Some(FromChild::Loaded { config, asks_ready }) => {
                    return Ok((config.map(|config| config.to_string()), asks_ready));
                }
                Some(FromChild::Failed { message, traceback }) => {
                    tracing::error!(model = self.model, instance, "loading failed: {}", traceback.trim_end());
                    return Err(Some(message));
                }
                // A program may load models before it is ready itself. It has no request on whose behalf it could run one.
                Some(FromChild::Infer(header)) if header.action != Action::Infer => {
                    nested.send(*header, &frame, std::iter::once(&calls)).map_err(failed)?;
                }
                Some(other) => refuse_idle(link, other, &frame).map_err(failed)?,
                None => {}
            }
        }
    }

    /// Decodes a frame. Handles a frame with log lines or metrics, and returns `None` for it.
    pub fn read(&self, frame: &Frame, instance: &str) -> Result<Option<FromChild>, LinkError> {
        let message = salvage::read(&frame.header).map_err(|error| LinkError::Garbage(error.to_string()))?;
        let model = &self.model;
        let (level, message) = match message {
            FromChild::Log { level, message } => (level, message),
            FromChild::Metrics { changes } => {
                for change in changes {
                    if let Err(reason) = self.metrics.change(change.into()) {
                        tracing::warn!(model, instance, reason, "ignored a change of a metric");
                    }
                }
                return Ok(None);
            }
            other => return Ok(Some(other)),
        };
        match level.as_str() {
            "ERROR" => tracing::error!(model, instance, "{message}"),
            "WARNING" => tracing::warn!(model, instance, "{message}"),
            "VERBOSE" => tracing::debug!(model, instance, "{message}"),
            _ => tracing::info!(model, instance, "{message}"),
        }
        Ok(None)
    }
}

/// Answers what a model has sent while it executes nothing: its requests to other models have an error for a response, because they
/// belong to requests. Other messages have come too late.
pub fn refuse_idle(link: &Arc<Link>, message: FromChild, frame: &Frame) -> Result<(), LinkError> {
    match message {
        FromChild::Infer(header) => NestedRequests::new(link.clone()).send(*header, frame, std::iter::empty()),
        FromChild::Unreadable { id, reason } => refuse(link, id, unreadable(&reason)),
        _ => Ok(()),
    }
}

/// The bytes of a process in memory: its resident set.
pub fn memory_of(pid: rustix::process::Pid) -> Option<u64> {
    let sizes = std::fs::read_to_string(format!("/proc/{}/statm", pid.as_raw_nonzero())).ok()?;
    let pages: u64 = sizes.split(' ').nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}

/// Kills a process that was not waited for, and all processes that it has started.
pub fn kill(process: &Process) {
    if let Some(pid) = rustix::process::Pid::from_raw(process.id() as i32) {
        kill_group(pid);
    }
}

/// Kills the leader of a process group and the whole group.
pub fn kill_group(pid: rustix::process::Pid) {
    let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
    // The process may not have made its group yet.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

// === impl Printed ===

impl Printed {
    /// Writes the output of a child to the log.
    fn follow(&self, reader: PipeReader, model: &str, instance: &str) {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while matches!(reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line), Ok(1..)) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            if !text.is_empty() {
                tracing::info!(model, instance, "{text}");
                let mut last = self.0.lock();
                if last.len() == LAST_LINES {
                    last.pop_front();
                }
                last.push_back(text);
            }
            line.clear();
        }
    }

    /// The last lines of output, as the end of an error message.
    fn tail(&self) -> String {
        let lines = self.0.lock();
        if lines.is_empty() {
            return String::new();
        }
        format!("; it printed: {}", lines.iter().map(String::as_str).collect::<Vec<_>>().join(" | "))
    }
}
