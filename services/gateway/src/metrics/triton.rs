//! Triton's metrics of models: the same names, labels and units, for the whole system.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use trireme_inference::{Counters, FailureReason, Latencies, ModelKey};
use trireme_telemetry::metrics::{Exposition, Metric, Samples};

use super::args::MetricsOptions;
use super::windows::Windows;
use crate::statistics::Total;

/// Bounds of the histogram of first responses, in milliseconds.
const FIRST_RESPONSE_BOUNDS: [u64; 4] = [100, 500, 2000, 5000];

/// A model version with its labels and numbers.
#[derive(Debug)]
pub struct Model {
    /// The model version.
    pub key: ModelKey,
    /// Its labels, in order.
    pub labels: Vec<(String, String)>,
    /// What was done with it.
    pub total: Total,
    /// Messages that wait for it on the bus.
    pub queued: u64,
}

/// Writes a model's samples of a family.
type Fill<'a> = dyn Fn(&mut Samples<'_>, &[(&str, &str)], &Model) + 'a;

/// Finds one of the times that are counted.
type Times = fn(&Counters) -> &Latencies;

/// The labels of a model version: model, version and its own tags, in alphabetical order.
pub fn labels(key: &ModelKey, tags: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let tags = tags.iter().map(|(name, value)| (format!("_{name}"), value.clone()));
    let own = [("model".to_owned(), key.name.clone()), ("version".to_owned(), key.version.to_string())];
    tags.chain(own).collect()
}

/// Adds the metrics of all models.
pub fn export(models: &[Model], windows: &Windows, options: &MetricsOptions, out: &mut Exposition) {
    let now = Instant::now();
    let mut each = |metric: Metric, fill: &Fill<'_>| {
        out.family(metric, |samples| {
            for model in models {
                let labels: Vec<_> = model.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                fill(samples, &labels, model);
            }
        });
    };
    let count = |read: fn(&Counters) -> u64| {
        move |samples: &mut Samples<'_>, labels: &[(&str, &str)], model: &Model| {
            samples.value(labels, read(&model.total.counters) as f64);
        }
    };
    each(Metric::RequestSuccess, &count(|counters| counters.request.count));
    each(Metric::RequestFailure, &|samples, labels, model| {
        for ((_, reason), count) in FailureReason::ALL.iter().zip(model.total.counters.failures) {
            let mut labels = labels.to_vec();
            labels.insert(labels.len() - 1, ("reason", reason));
            samples.value(&labels, count as f64);
        }
    });
    each(Metric::Inferences, &count(|counters| counters.inferences));
    each(Metric::Executions, &count(|counters| counters.executions));
    let latencies: [(Metric, Metric, Times); 5] = [
        (Metric::RequestDuration, Metric::RequestSummary, |counters| &counters.request),
        (Metric::QueueDuration, Metric::QueueSummary, |counters| &counters.queue),
        (Metric::ComputeInputDuration, Metric::ComputeInputSummary, |counters| &counters.compute_input),
        (Metric::ComputeInferDuration, Metric::ComputeInferSummary, |counters| &counters.compute_infer),
        (Metric::ComputeOutputDuration, Metric::ComputeOutputSummary, |counters| &counters.compute_output),
    ];
    for (counter, _, of) in latencies.into_iter().filter(|_| options.counters) {
        each(counter, &|samples, labels, model| samples.value(labels, micros(of(&model.total.counters).ns)));
    }
    for (_, summary, of) in latencies.into_iter().filter(|_| options.summaries) {
        each(summary, &|samples, labels, model| {
            let all = of(&model.total.counters);
            let before = windows.before(now, &model.key).map(of);
            let recent = before.map_or_else(|| all.clone(), |before| all.since(before));
            let quantile = |share: &f64| {
                let time = recent.quantile(*share);
                (*share, time.map_or(f64::NAN, |time| time.as_nanos() as f64 / 1e3))
            };
            samples.summary(labels, options.quantiles.iter().map(quantile), all.count, micros(all.ns));
        });
    }
    if options.histograms {
        each(Metric::FirstResponse, &|samples, labels, model| {
            let times = &model.total.counters.first_response;
            let bucket = |millis: u64| (millis as f64, times.at_most(Duration::from_millis(millis)));
            samples.histogram(
                labels,
                FIRST_RESPONSE_BOUNDS.into_iter().map(bucket),
                times.count,
                times.ns as f64 / 1e6,
            );
        });
    }
    each(Metric::Pending, &|samples, labels, model| {
        samples.value(labels, (model.total.load.waiting + model.queued) as f64);
    });
    each(Metric::LoadDuration, &|samples, labels, model| {
        samples.value(labels, model.total.load_duration.as_secs_f64())
    });
}

/// Whole microseconds, as Triton counts them.
fn micros(ns: u64) -> f64 {
    (ns / 1000) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::MetricsArgs;
    use clap::Parser;
    use trireme_inference::{Completed, UnixMicros};
    use trireme_runtime::QueueLoad;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        metrics: MetricsArgs,
    }

    fn exported(settings: &[&str]) -> String {
        let flags = settings.iter().flat_map(|setting| ["--metrics-config", setting]);
        let options = Cli::parse_from(["x"].into_iter().chain(flags)).metrics.options();
        let mut counters = Counters::default();
        let ms = Duration::from_millis;
        let request = Completed { rows: 2, transit: ms(1), worker_queue: ms(2), total: ms(400), ..Default::default() };
        counters.complete(&request, UnixMicros(1));
        counters.first_response.record(ms(400));
        counters.fail(FailureReason::Rejected, ms(1));
        let key = ModelKey { name: "m".to_owned(), version: 2 };
        let labels = labels(&key, &BTreeMap::from([("team".to_owned(), "search".to_owned())]));
        let load = QueueLoad { waiting: 3, in_hand: 9 };
        let total = Total { counters, load, load_duration: ms(1500) };
        let mut out = Exposition::default();
        export(&[Model { key, labels, total, queued: 4 }], &Windows::default(), &options, &mut out);
        out.into_text()
    }

    #[track_caller]
    fn assert_has(text: &str, line: &str) {
        assert!(text.lines().any(|found| found == line), "{line} is missing from\n{text}");
    }

    #[test]
    fn names_labels_and_units_are_tritons() {
        let text = exported(&[]);
        for line in [
            r#"nv_inference_request_success{_team="search",model="m",version="2"} 1"#,
            r#"nv_inference_request_failure{_team="search",model="m",reason="REJECTED",version="2"} 1"#,
            r#"nv_inference_request_failure{_team="search",model="m",reason="BACKEND",version="2"} 0"#,
            r#"nv_inference_count{_team="search",model="m",version="2"} 2"#,
            r#"nv_inference_exec_count{_team="search",model="m",version="2"} 0"#,
            r#"nv_inference_request_duration_us{_team="search",model="m",version="2"} 400000"#,
            r#"nv_inference_queue_duration_us{_team="search",model="m",version="2"} 3000"#,
            r#"nv_inference_pending_request_count{_team="search",model="m",version="2"} 7"#,
            r#"nv_model_load_duration_secs{_team="search",model="m",version="2"} 1.5"#,
        ] {
            assert_has(&text, line);
        }
        assert!(!text.contains("_summary_us") && !text.contains("_histogram_ms"), "{text}");
    }

    #[test]
    fn summaries_and_histograms_come_when_asked_for() {
        let text = exported(&[
            "counter_latencies=false",
            "summary_latencies=true",
            "summary_quantiles=0.5:0.05",
            "histogram_latencies=true",
        ]);
        assert!(!text.contains("_duration_us"), "{text}");
        let label = r#"_team="search",model="m",version="2""#;
        assert_has(&text, &format!("nv_inference_request_summary_us_sum{{{label}}} 400000"));
        assert_has(&text, &format!(r#"nv_inference_request_summary_us{{{label},quantile="0.5"}} 350000"#));
        assert_has(&text, &format!(r#"nv_inference_first_response_histogram_ms_bucket{{{label},le="100"}} 0"#));
        assert_has(&text, &format!(r#"nv_inference_first_response_histogram_ms_bucket{{{label},le="500"}} 1"#));
        assert_has(&text, &format!("nv_inference_first_response_histogram_ms_sum{{{label}}} 400"));
    }
}
