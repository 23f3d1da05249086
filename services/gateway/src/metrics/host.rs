//! The host's CPUs and memory, as Linux reports them.

use std::fs;
use std::time::{Duration, Instant};

use trireme_telemetry::metrics::{Exposition, Metric};

/// How busy the CPUs were between the last two looks.
#[derive(Debug, Default)]
pub struct Cpus {
    last: Option<(Instant, Ticks)>,
    utilization: f64,
}

/// Clock ticks since the start of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    busy: u64,
    all: u64,
}

// === impl Cpus ===

impl Cpus {
    /// Adds the host's metrics. Reads the CPUs when the last reading is `interval` ago; the first reading covers the whole
    /// time since the host's start.
    pub fn export(&mut self, interval: Duration, out: &mut Exposition) {
        let (stat, memory) = (read("/proc/stat"), read("/proc/meminfo"));
        if let Some(ticks) = Ticks::parse(&stat)
            && self.last.is_none_or(|(at, _)| at.elapsed() >= interval)
        {
            let before = self.last.replace((Instant::now(), ticks)).map(|(_, before)| before).unwrap_or_default();
            self.utilization = ticks.utilization_since(before).unwrap_or(self.utilization);
        }
        out.family(Metric::CpuUtilization, |samples| samples.value(&[], self.utilization));
        if let Some((total, available)) = kilobytes(&memory, "MemTotal:").zip(kilobytes(&memory, "MemAvailable:")) {
            out.family(Metric::CpuMemoryTotal, |samples| samples.value(&[], total * 1024.0));
            out.family(Metric::CpuMemoryUsed, |samples| samples.value(&[], (total - available) * 1024.0));
        }
    }
}

// === impl Ticks ===

impl Ticks {
    /// Reads the first line of `/proc/stat`: user, nice, system, idle, waiting for I/O, and other states.
    fn parse(stat: &str) -> Option<Ticks> {
        let numbers = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        // Guests are counted among users already.
        let numbers: Vec<u64> = numbers.take(8).map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let all = numbers.iter().sum();
        Some(Ticks { busy: all - numbers.get(3)? - numbers.get(4).unwrap_or(&0), all })
    }

    fn utilization_since(self, before: Ticks) -> Option<f64> {
        let all = self.all.checked_sub(before.all).filter(|all| *all > 0)?;
        Some((self.busy.saturating_sub(before.busy) as f64 / all as f64).clamp(0.0, 1.0))
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn kilobytes(memory: &str, name: &str) -> Option<f64> {
    let line = memory.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_a_share() {
        let before = Ticks::parse("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 1 1 1").unwrap();
        assert_eq!(before, Ticks { busy: 150, all: 1000 });
        let after = Ticks { busy: 225, all: 1100 };
        assert_eq!(after.utilization_since(before), Some(0.75));
        assert_eq!(before.utilization_since(before), None);
        assert_eq!(Ticks::parse("intr 5"), None);
    }

    #[test]
    fn the_host_has_cpus_and_memory() {
        let mut out = Exposition::default();
        Cpus::default().export(Duration::ZERO, &mut out);
        let text = out.into_text();
        assert_eq!(text.lines().filter(|line| line.starts_with("nv_cpu_")).count(), 3, "{text}");
    }
}
