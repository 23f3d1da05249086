//! How long a gateway takes to return the metrics and the statistics of all models.

use std::time::{Duration, Instant};

use super::deployment::Deployment;
use super::findings::{Finding, Findings};
use super::usage::median_and_worst;
use crate::{Request, Response};

/// The longest time that an answer may take, in milliseconds.
const BAR_MS: f64 = 200.0;

/// Number of requests for each.
const TIMES: usize = 10;

/// Asks the gateway that has a process of its own.
pub fn run(at: &str, deployment: &Deployment, findings: &mut Findings) {
    let models = deployment.models();
    let named = |answer: &Response| {
        let text = answer.text();
        models.iter().filter(|model| text.contains(&format!("\"{model}\""))).count()
    };
    let (metrics, statistics) = (deployment.metrics, deployment.addresses[0]);
    let questions = [("GET /metrics", metrics, "/metrics"), ("GET /v2/models/stats", statistics, "/v2/models/stats")];
    for (what, address, path) in questions {
        let (mut times, mut bytes, mut missing): (Vec<Duration>, usize, usize) = (Vec::new(), 0, 0);
        for _ in 0..TIMES {
            let started = Instant::now();
            let answer = Request::get(path).send(address);
            times.push(started.elapsed());
            let answer = answer.unwrap_or_else(|error| panic!("{what} is not answered: {error}"));
            assert_eq!(answer.status, 200, "{what}: {}", answer.text());
            bytes = answer.body.len();
            missing = missing.max(models.len() - named(&answer));
        }
        let [median, worst] = median_and_worst(times).map(|time| time.as_secs_f64() * 1e3);
        let figure = |name: &str, value: f64, unit: &'static str| Finding::new(what, at, name, value, unit);
        findings.add(figure("median", median, "ms").at_most(BAR_MS));
        findings.add(figure("worst of 10", worst, "ms").at_most(BAR_MS));
        findings.add(figure("size", bytes as f64 / 1024.0, "KiB"));
        findings.add(figure("models that an answer does not tell of", missing as f64, "").at_most(0.0));
    }
}
