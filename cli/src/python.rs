//! Scripts that run in the user's own Python, which has the libraries that this program does not have.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use serde_json::Value;

/// The most lines of Python's output that an error shows.
const SHOWN_LINES: usize = 8;

/// Runs a script: it reads `question` from its standard input and writes its answer to standard output. `needs` says in the error
/// what the script could not do, and which packages it needs.
pub fn ask(python: &Path, script: &str, question: &Value, needs: &str) -> anyhow::Result<String> {
    let mut command = Command::new(python);
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| not_started(python))?;
    // The script reads all of the question before it writes anything. A script that ended early says why on standard error.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(question.to_string().as_bytes());
    }
    let output = child.wait_with_output().context("reading from Python")?;
    if !output.status.success() {
        let last = last_lines(&String::from_utf8_lossy(&output.stderr));
        anyhow::bail!("{} {needs} ({}):\n{last}", python.display(), output.status);
    }
    String::from_utf8(output.stdout).context("Python wrote no UTF-8")
}

/// The error of a Python that is not there.
pub fn not_started(python: &Path) -> String {
    format!("cannot start {}: name a Python by --python", python.display())
}

/// The end of what Python wrote to standard error.
pub fn last_lines(words: &str) -> String {
    let lines: Vec<&str> = words.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}
