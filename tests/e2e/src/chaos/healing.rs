//! Whether everybody works again: replicas stand in for a worker that never recovers, so that no answer tells of it.
//!
//! Only while there is load: a worker heals by executing something.

use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::member::{Member, Role};
use crate::Request;

/// How long a worker may take to execute something after everything has been put right. It takes less than a second;
/// machines that run tests can be busy.
const LIMIT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(50);

/// The longest that a worker took to execute something from now on, and the workers that did not within the limit.
pub(super) fn check(cluster: &Cluster) -> (Duration, Vec<String>) {
    let workers = || cluster.members.iter().filter(|member| member.role != Role::Gateway);
    let mut waiting: Vec<(&Member, f64)> =
        workers().map(|worker| (worker, executions(worker).unwrap_or(0.0))).collect();
    let started = Instant::now();
    while !waiting.is_empty() && started.elapsed() < LIMIT {
        std::thread::sleep(PAUSE);
        waiting.retain(|(worker, before)| executions(worker).is_none_or(|now| now <= *before));
    }
    let stuck = |(worker, _): &(&Member, f64)| {
        format!(
            "{} has executed nothing for {} s; its log ends:\n{}",
            worker.name(),
            LIMIT.as_secs(),
            worker.process.log_tail()
        )
    };
    (started.elapsed(), waiting.iter().map(stuck).collect())
}

/// Requests that a worker has executed.
fn executions(worker: &Member) -> Option<f64> {
    samples(worker, "trireme_stage_compute_seconds_count")
}

/// The sum of a family's samples in a process's own metrics; `None` when it does not tell.
pub(super) fn samples(member: &Member, family: &str) -> Option<f64> {
    let answer = Request::get("/metrics").send(member.address("admin listener")?).ok()?;
    let text = answer.text();
    let of_family = |line: &&str| line.strip_prefix(family).is_some_and(|rest| rest.starts_with([' ', '{']));
    let mut values = text.lines().filter(of_family).filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    let first = values.next()?;
    Some(first + values.sum::<f64>())
}
