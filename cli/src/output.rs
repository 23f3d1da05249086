//! The output of commands: results go to standard output, messages about the work to standard error.
//!
//! Errors begin with `error:`, as those of flags do, and are written by `service::fail`; what does not end a command begins with
//! `warning:`.

use std::process::ExitCode;

use trireme_runtime::service;

use crate::style::harmless_lines;

/// Writes to standard output. A reader that has seen enough (`| head`) is no failure.
pub fn write_out(bytes: &[u8]) -> ExitCode {
    use std::io::Write;
    match std::io::stdout().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            service::fail(&anyhow::Error::from(error).context("cannot write to standard output"))
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Writes a line to standard error about something that does not end the command.
pub fn warn(text: &str) {
    eprintln!("warning: {}", harmless_lines(text));
}
