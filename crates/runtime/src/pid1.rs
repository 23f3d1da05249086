//! The first process of a container. The system gives it the children whose parents have ended, such as what a model.py has started and left:
//! once they end they stay as zombies until it waits for them, and the container runs out of process ids.
//!
//! A process that waits for any child would also take those that its own code waits for. So the first process starts the program once more,
//! passes signals on to it, and does nothing else but wait.

use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::Context;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// The signals that are passed on.
const PASSED: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::QUIT, Signal::HUP, Signal::USR1, Signal::USR2];

/// Runs the program as a child of the first process, and returns its exit code. `None` in every other process, and at a terminal, whose signals
/// go to the child as well.
pub fn stand_before_the_program() -> Option<ExitCode> {
    if !getpid().is_init() || std::io::stdin().is_terminal() {
        return None;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(run()));
    match ended {
        Ok(code) => Some(ExitCode::from(code)),
        Err(error) => {
            // Without a child of its own it still serves.
            eprintln!("warning: orphans of this container are not waited for: {error:#}");
            None
        }
    }
}

async fn run() -> anyhow::Result<u8> {
    let (passing, mut passed) = mpsc::channel(16);
    for kind in PASSED {
        let (mut signals, passing) = (signal(SignalKind::from_raw(kind.as_raw()))?, passing.clone());
        #[allow(clippy::disallowed_methods, reason = "it ends with its runtime, which is this function's")]
        tokio::spawn(async move { while signals.recv().await.is_some() && passing.send(kind).await.is_ok() {} });
    }
    let mut ended = signal(SignalKind::child())?;
    let mut arguments = std::env::args_os();
    let mut program = Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        program.arg0(name);
    }
    let child = program.args(arguments).spawn().context("the program cannot be started once more")?;
    let child = Pid::from_child(&child);
    loop {
        if let Some(code) = reap(child)? {
            return Ok(code);
        }
        tokio::select! {
            _ = ended.recv() => {}
            // It may have ended meanwhile.
            Some(signal) = passed.recv() => drop(kill_process(child, signal)),
        }
    }
}

/// Waits for all children that have ended. Returns the exit code of the program once it is among them.
fn reap(program: Pid) -> anyhow::Result<Option<u8>> {
    while let Some((ended, status)) = wait(WaitOptions::NOHANG)? {
        if ended == program {
            return Ok(Some(code(status)));
        }
    }
    Ok(None)
}

/// The exit code that shells give a program that ended so.
fn code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or(status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
