//! Processes that are started, looked after and ended. Each is tied to this one: it ends when this process is killed.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use trireme_inference::Backoff;
use trireme_runtime::service::NatsArgs;

use super::tied;

/// The pauses before a process is started again after so many ends in a row.
const START_AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));

/// The end of a process that has run for so long counts as the first one in a row.
const STEADY: Duration = Duration::from_secs(60);

/// Pause between two looks at processes that are to end.
const LOOK: Duration = Duration::from_millis(20);

/// Variables for one process that several cannot share.
const OF_ONE_PROCESS: [&str; 2] = ["TRIREME_ADMIN_ADDRESS", "TRIREME_WORKER_NAME"];

/// When a process ends: those of one rank together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// First.
    Gateway,
    /// Then.
    Stage,
    /// Last.
    Broker,
}

/// A process that is to be there.
#[derive(Debug)]
pub struct Part {
    /// Its name for a person.
    pub name: String,
    /// When it ends.
    pub rank: Rank,
    /// Its program.
    pub program: PathBuf,
    /// The arguments.
    pub arguments: Vec<OsString>,
    /// Where it says whether it is ready.
    pub admin: Option<SocketAddr>,
}

/// All processes.
#[derive(Default)]
pub struct Fleet {
    members: Vec<Member>,
    /// Whether all have been ready.
    is_complete: bool,
}

struct Member {
    part: Part,
    child: Option<Child>,
    started: Instant,
    /// Ends in a row, each soon after its start.
    ends: u32,
    /// When it is started again.
    due: Option<Instant>,
}

// === impl Fleet ===

impl Fleet {
    /// Starts a process. It is this thread's child: the kernel ends it with the thread.
    pub fn add(&mut self, part: Part) -> anyhow::Result<()> {
        let mut member = Member { part, child: None, started: Instant::now(), ends: 0, due: None };
        member.start()?;
        self.members.push(member);
        Ok(())
    }

    /// Where the processes say whether they are ready.
    pub fn admin_addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().filter_map(|member| member.part.admin).collect()
    }

    /// The names and ids of the processes that run.
    pub fn processes(&self) -> impl Iterator<Item = (&str, u32)> {
        self.members.iter().filter_map(|member| Some((member.part.name.as_str(), member.child.as_ref()?.id())))
    }

    /// Notes that all have been ready.
    pub fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Looks which processes have ended, and sets when they are started again. Before all were ready an end is an error.
    pub fn reap(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        for member in &mut self.members {
            let Some(status) = member.has_ended()? else { continue };
            let (process, how) = (&member.part.name, status.to_string());
            if !self.is_complete {
                bail!("{process} ended before all processes were ready ({how}): its own lines above say why");
            }
            member.ends = if now - member.started < STEADY { member.ends + 1 } else { 1 };
            let pause = START_AGAIN.after(member.ends);
            member.due = Some(now + pause);
            tracing::warn!(
                process,
                how,
                pause_ms = pause.as_millis() as u64,
                "a process has ended and is started again"
            );
        }
        Ok(())
    }

    /// Waits until a process is to be started again; for ever, if none is.
    pub async fn until_due(&self) {
        match self.members.iter().filter_map(|member| member.due).min() {
            Some(due) => tokio::time::sleep_until(due.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Starts the processes that are due.
    pub fn start_due(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        let mut due = self.members.iter_mut().filter(|member| member.due.is_some_and(|due| due <= now));
        due.try_for_each(Member::start)
    }

    /// Ends the processes of a rank: they finish their requests first, for `limit` at most.
    pub async fn end(&mut self, rank: Rank, limit: Duration) {
        let mut members: Vec<&mut Member> = self.members.iter_mut().filter(|member| member.part.rank == rank).collect();
        for member in &mut members {
            member.due = None;
            member.signal(Signal::TERM);
        }
        let give_up = Instant::now() + limit;
        // An end that cannot be seen is one that has been.
        while members.iter_mut().any(|member| matches!(member.has_ended(), Ok(None)) && member.child.is_some()) {
            if Instant::now() >= give_up {
                members.iter_mut().for_each(|member| member.kill());
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(Member::kill);
    }
}

// === impl Member ===

impl Member {
    fn start(&mut self) -> anyhow::Result<()> {
        let program = std::env::current_exe().context("where this program lies")?;
        let mut command = Command::new(program);
        command.arg(tied::COMMAND).arg(std::process::id().to_string());
        command.arg(&self.part.program).args(&self.part.arguments);
        // The broker is the one of this command, whatever else is known to the user's shell.
        let nats = NatsArgs::augment_args(clap::Command::new("nats"));
        nats.get_arguments().filter_map(|arg| arg.get_env()).for_each(|name| _ = command.env_remove(name));
        OF_ONE_PROCESS.iter().for_each(|name| _ = command.env_remove(name));
        // Ctrl-C at a terminal reaches this process only, which ends the others in order.
        let child = command.stdin(Stdio::null()).process_group(0).spawn();
        self.child = Some(child.with_context(|| format!("cannot start {}", self.part.name))?);
        self.started = Instant::now();
        self.due = None;
        Ok(())
    }

    /// How the process has ended, once.
    fn has_ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let status = child.try_wait().with_context(|| format!("waiting for {}", self.part.name))?;
        if status.is_some() {
            self.child = None;
        }
        Ok(status)
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            // It may have ended.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    /// Kills the process and its children.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
        }
    }
}
