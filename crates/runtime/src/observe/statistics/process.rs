//! Metrics of this process from the operating system. Crates for process metrics count into a registry of their own, and bring more
//! code than these calls.

use std::fs;

use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};
use trireme_bus::FaultKind;
use trireme_inference::UnixMicros;
use trireme_telemetry::metrics::{Exposition, Metric};

use super::Statistics;
use crate::observe::certificates;

/// Adds the metrics of the process whose statistics these are. Values that cannot be read are left out.
pub fn export(statistics: &Statistics, out: &mut Exposition) {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    // The second number counts the pages that are in memory.
    let sizes = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<f64> = sizes.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    let mut gauge = |metric, value: Option<f64>| {
        if let Some(value) = value {
            out.family(metric, |samples| samples.value(&[], value));
        }
    };
    gauge(Metric::ProcessCpu, Some(cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9));
    gauge(Metric::ProcessMemory, pages.map(|pages| pages * page_size() as f64));
    gauge(Metric::ProcessStart, Some(statistics.0.started.0 as f64 / 1e6));
    gauge(Metric::ProcessTasks, statistics.tasks().map(|tasks| tasks as f64));
    gauge(Metric::ClockOffset, Some(UnixMicros::clock_offset() as f64 / 1e6));
    certificates::export(&statistics.0.certificates.read(), out);
    let fault = statistics.bus_fault();
    out.family(Metric::BusFault, |samples| {
        for (kind, reason) in FaultKind::ALL {
            let lasts = fault.as_ref().filter(|fault| fault.kind == kind).map(|fault| fault.since.elapsed());
            samples.value(&[("reason", reason)], lasts.unwrap_or_default().as_secs_f64());
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_itself() {
        let mut out = Exposition::default();
        export(&Statistics::new("test"), &mut out);
        let text = out.into_text();
        let value = |metric: Metric| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(metric.name())?.strip_prefix(' '));
            line.expect("there is one").parse().unwrap()
        };
        assert!(value(Metric::ProcessCpu) < 3600.0);
        assert!((1e6..1e11).contains(&value(Metric::ProcessMemory)), "{text}");
        assert!(value(Metric::ProcessStart) > 1.6e9, "{text}");
    }
}
