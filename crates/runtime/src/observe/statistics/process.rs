//! Metrics of this process from the operating system.

use std::fs;

use trireme_inference::UnixMicros;
use trireme_telemetry::metrics::{Exposition, Metric};

/// Clock ticks per second in `/proc`: part of Linux's interface to programs, the same on every machine this runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Adds the process's own metrics, among them the number of its `tasks`. Values that cannot be read are left out.
pub fn export(tasks: Option<usize>, out: &mut Exposition) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let boot = field(&fs::read_to_string("/proc/stat").unwrap_or_default(), "btime");
    let memory = field(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "VmRSS:");
    let mut gauge = |metric, value: Option<f64>| {
        if let Some(value) = value {
            out.family(metric, |samples| samples.value(&[], value));
        }
    };
    gauge(Metric::ProcessCpu, cpu_ticks(&stat).map(|ticks| ticks / TICKS_PER_SECOND));
    gauge(Metric::ProcessMemory, memory.map(|kilobytes| kilobytes * 1024.0));
    let start = stat_field(&stat, 19).zip(boot);
    gauge(Metric::ProcessStart, start.map(|(ticks, boot)| boot + ticks / TICKS_PER_SECOND));
    gauge(Metric::ProcessTasks, tasks.map(|tasks| tasks as f64));
    gauge(Metric::ClockOffset, Some(UnixMicros::clock_offset() as f64 / 1e6));
}

/// Time in user and in system mode.
fn cpu_ticks(stat: &str) -> Option<f64> {
    Some(stat_field(stat, 11)? + stat_field(stat, 12)?)
}

/// A field of `/proc/<pid>/stat`, counted from the one after the name, which may hold spaces and parentheses.
fn stat_field(stat: &str, index: usize) -> Option<f64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(index)?.parse().ok()
}

/// The number after `name` at the beginning of a line.
fn field(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_itself() {
        let mut out = Exposition::default();
        export(Some(3), &mut out);
        let text = out.into_text();
        let value = |metric: Metric| -> f64 { field(&text, &format!("{} ", metric.name())).expect("there is one") };
        assert!(value(Metric::ProcessCpu) < 3600.0);
        assert!((1e6..1e11).contains(&value(Metric::ProcessMemory)), "{text}");
        assert!(value(Metric::ProcessStart) > 1.6e9, "{text}");
        assert_eq!(value(Metric::ProcessTasks), 3.0);
    }

    #[test]
    fn names_may_hold_anything() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 1 0 3000 1 1";
        assert_eq!((cpu_ticks(stat), stat_field(stat, 19)), (Some(300.0), Some(3000.0)));
    }
}
