//! A program that ends when its parent does, also when that is killed: the kernel sends it SIGTERM then.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use trireme_runtime::service;

/// Name of the hidden command that runs a program so.
pub const COMMAND: &str = "tied";

/// Arguments of the hidden command `tied`.
#[derive(Args)]
pub struct TiedArgs {
    /// The process that started this one
    parent: i32,
    /// The program
    program: PathBuf,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

// === impl TiedArgs ===

impl TiedArgs {
    /// Becomes the program.
    pub fn run(&self) -> ExitCode {
        match self.become_it() {
            Ok(never) => match never {},
            Err(error) => service::fail(&error),
        }
    }

    fn become_it(&self) -> anyhow::Result<Infallible> {
        set_parent_process_death_signal(Some(Signal::TERM)).context("asking for the parent's end")?;
        // The parent may have ended before the line above.
        anyhow::ensure!(getppid() == Pid::from_raw(self.parent), "process {} has ended", self.parent);
        let error = Command::new(&self.program).args(&self.arguments).exec();
        Err(error).with_context(|| format!("cannot run {}", self.program.display()))
    }
}
