//! Whether everybody works again: replicas stand in for a worker that never recovers, so that no answer tells of it. Nor
//! does one of its models for another: each has a queue of its own, and a task that asks for its work.
//!
//! Only while there is load: a worker heals by executing something.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::member::{Member, Role};
use super::models::models_of;
use crate::Request;

/// How long a worker may take to execute each of its models after everything has been put right. It takes about a second;
/// machines that run tests can be busy.
const LIMIT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(50);

/// What a worker has executed since it was first asked.
struct Progress {
    /// How often it had executed each of its models when it was first asked; nothing while it does not answer.
    before: Option<HashMap<String, f64>>,
    /// The models that are left.
    models: Vec<&'static str>,
}

/// The longest that a worker took to execute each of its models from now on, and the workers that did not within the limit.
pub(super) fn check(cluster: &Cluster) -> (Duration, Vec<String>) {
    let workers = cluster.members.iter().filter(|member| member.role != Role::Gateway);
    let mut waiting: Vec<(&Member, Progress)> = workers
        .map(|worker| (worker, Progress { before: executions(worker), models: models_of(worker.role).collect() }))
        .collect();
    let started = Instant::now();
    while !waiting.is_empty() && started.elapsed() < LIMIT {
        std::thread::sleep(PAUSE);
        waiting.retain_mut(|(worker, progress)| !progress.is_complete(executions(worker)));
    }
    let stuck = |(worker, progress): &(&Member, Progress)| {
        format!(
            "{} has not executed {} for {} s; its log ends:\n{}",
            worker.name(),
            progress.models.join(", "),
            LIMIT.as_secs(),
            worker.process.log_tail()
        )
    };
    (started.elapsed(), waiting.iter().map(stuck).collect())
}

/// How often a worker has executed each of its models; `None` when it does not tell.
fn executions(worker: &Member) -> Option<HashMap<String, f64>> {
    Some(by_model(&metrics(worker)?, "trireme_stage_compute_seconds_count"))
}

/// The samples of a family by their `model`.
fn by_model(text: &str, family: &str) -> HashMap<String, f64> {
    let model = |labels: &str| Some(labels.split_once("model=\"")?.1.split_once('"')?.0.to_owned());
    samples(text, family).filter_map(|(labels, value)| Some((model(labels)?, value))).collect()
}

/// The sum of a family's samples in a process's own metrics; `None` when it does not tell.
pub(super) fn sum(member: &Member, family: &str) -> Option<f64> {
    samples(&metrics(member)?, family).map(|(_, value)| value).reduce(|sum, value| sum + value)
}

fn metrics(member: &Member) -> Option<String> {
    let answer = Request::get("/metrics").send(member.address("admin listener")?).ok()?;
    (answer.status == 200).then(|| answer.text())
}

/// The samples of a family: their labels, and their values.
fn samples<'a>(text: &'a str, family: &str) -> impl Iterator<Item = (&'a str, f64)> {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(family).filter(|rest| rest.starts_with([' ', '{']))?;
        let (labels, value) = rest.rsplit_once(' ')?;
        Some((labels, value.parse().ok()?))
    })
}

// === impl Progress ===

impl Progress {
    /// Whether it has executed each of its models since it was first asked, now that it has executed them so often.
    fn is_complete(&mut self, now: Option<HashMap<String, f64>>) -> bool {
        let Some(now) = now else { return false };
        let before = self.before.get_or_insert_with(|| now.clone());
        let count = |of: &HashMap<String, f64>, model: &str| of.get(model).copied().unwrap_or(0.0);
        self.models.retain(|model| count(&now, model) <= count(before, model));
        self.models.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(counts: &[(&str, f64)]) -> Option<HashMap<String, f64>> {
        Some(counts.iter().map(|(model, count)| ((*model).to_owned(), *count)).collect())
    }

    #[test]
    fn a_worker_has_to_execute_each_of_its_models() {
        let models = vec!["slow", "left", "new"];
        let mut progress = Progress { before: counts(&[("slow", 5.0), ("left", 7.0)]), models };
        assert!(!progress.is_complete(counts(&[("slow", 500.0), ("left", 7.0)])), "one does not stand for another");
        assert_eq!(progress.models, ["left", "new"]);
        assert!(
            !progress.is_complete(counts(&[("slow", 500.0), ("left", 8.0)])),
            "one that it does not tell of is left"
        );
        assert!(progress.is_complete(counts(&[("slow", 500.0), ("left", 8.0), ("new", 1.0)])));
    }

    #[test]
    fn a_worker_that_did_not_answer_at_first_has_to_execute_something_after_it_does() {
        let mut progress = Progress { before: None, models: vec!["slow"] };
        assert!(!progress.is_complete(None));
        assert!(!progress.is_complete(counts(&[("slow", 5.0)])), "it executed that before");
        assert!(!progress.is_complete(None));
        assert!(progress.is_complete(counts(&[("slow", 6.0)])));
    }

    #[test]
    fn samples_are_told_apart_by_model() {
        let text = r#"# TYPE n_count counter
n_count{model="a",stage="model"} 3
n_count{model="b"} 4
n_counted{model="c"} 5
"#;
        assert_eq!(Some(by_model(text, "n_count")), counts(&[("a", 3.0), ("b", 4.0)]));
    }
}
