//! Checks that every worker works again. Answers do not show that, because replicas stand in for a worker that does not
//! recover. It has to be checked for each model, because each model has a queue and a pulling task of its own.
//!
//! This needs load: a worker shows that it has recovered by executing requests.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::member::{Member, Role};
use super::models::models_of;
use crate::Request;

/// How long a worker may take to execute each of its models after all faults have been undone. It usually takes about a
/// second, but test machines can be busy.
const LIMIT: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(50);

/// The models that a worker has executed since the check began.
struct Progress {
    /// How often it had executed each of its models at the first look; `None` until it answers.
    before: Option<HashMap<String, f64>>,
    /// The models that it has not executed since.
    models: Vec<&'static str>,
}

/// The longest time that a worker took to execute each of its models from now on, and the workers that did not within
/// the limit.
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

/// How often a worker has executed each of its models; `None` if it does not answer.
fn executions(worker: &Member) -> Option<HashMap<String, f64>> {
    Some(by_model(&metrics(worker)?, "trireme_stage_compute_seconds_count"))
}

/// The samples of a family by their `model` label.
fn by_model(text: &str, family: &str) -> HashMap<String, f64> {
    let model = |labels: &str| Some(labels.split_once("model=\"")?.1.split_once('"')?.0.to_owned());
    samples(text, family).filter_map(|(labels, value)| Some((model(labels)?, value))).collect()
}

/// The sum of a family's samples in a process's own metrics; `None` if there are none.
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
    /// Whether the worker has executed each of its models since the check began; `now` is how often it has executed
    /// them in all.
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
