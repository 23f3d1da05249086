//! Standard output of commands.

use std::process::ExitCode;

/// Writes to standard output. A reader that has seen enough (`| head`) is no failure.
pub fn write_out(bytes: &[u8]) -> ExitCode {
    use std::io::Write;
    match std::io::stdout().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            eprintln!("trireme: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
