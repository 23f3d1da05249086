//! Notes of the tests' helpers: `scripts/run-tests.py` reads in them why a slow test waits.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::time::Duration;

/// Environment variable with the path of the file for notes; without it there are none.
const VARIABLE: &str = "TRIREME_TEST_NOTES";

/// Ticks per second of the times in `/proc`, on every Linux.
const TICKS: f64 = 100.0;

/// Notes about a test.
#[derive(Clone, Copy, Debug)]
pub enum Note {
    /// The test has started a process.
    Process,
    /// The test has waited so long for its servers.
    Ready(Duration),
    /// The test is about to kill the process with this id. The note has its seconds of CPU.
    Ends(u32),
}

/// Appends a note about the test on whose thread it is called.
pub fn note(note: Note) {
    let Some(path) = std::env::var_os(VARIABLE) else { return };
    let (kind, seconds) = match note {
        Note::Process => ("process", 0.0),
        Note::Ready(time) => ("ready", time.as_secs_f64()),
        Note::Ends(process) => ("cpu", cpu_seconds(process).unwrap_or_default()),
    };
    let thread = std::thread::current();
    let line = format!("{}\t{kind}\t{seconds:.3}\n", thread.name().unwrap_or("-"));
    // A note is no condition of a test.
    let _ =
        OpenOptions::new().append(true).create(true).open(path).and_then(|mut file| file.write_all(line.as_bytes()));
}

/// The CPU time of a process that has not been waited for; `None` where there is no `/proc`.
fn cpu_seconds(process: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, which may have any character, ends at the last parenthesis.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_has_used_more_time_later() {
        let own = std::process::id();
        let before = cpu_seconds(own).expect("this process runs");
        let mut sum = 0u64;
        while cpu_seconds(own) <= Some(before) {
            sum = (0..1_000_000u64).fold(sum, |sum, number| std::hint::black_box(sum.wrapping_add(number)));
        }
        assert_eq!(cpu_seconds(u32::MAX), None);
    }
}
