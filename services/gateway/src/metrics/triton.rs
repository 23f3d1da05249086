//! Triton's metrics of models: the same names, labels and units, for the whole system.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trireme_inference::{Counters, FailureReason, Latencies, ModelKey};
use trireme_model_repository::ModelConfig;
use trireme_telemetry::metrics::{Exposition, Metric, Samples};

use super::args::MetricsOptions;
use crate::statistics::{Total, Windows};

/// Bounds of the histogram of first responses, in milliseconds, where a model does not set its own.
const FIRST_RESPONSE_BOUNDS: [f64; 4] = [100.0, 500.0, 2000.0, 5000.0];

/// Metrics of the response cache.
const CACHE_METRICS: [Metric; 6] = [
    Metric::CacheHits,
    Metric::CacheMisses,
    Metric::CacheHitDuration,
    Metric::CacheMissDuration,
    Metric::CacheHitSummary,
    Metric::CacheMissSummary,
];

/// A model version with its labels and numbers.
#[derive(Debug)]
pub struct Model {
    /// The model version.
    pub key: ModelKey,
    /// Its labels, in order.
    pub labels: Vec<(String, String)>,
    /// Its counts.
    pub total: Total,
    /// Messages that wait for it on the bus.
    pub queued: u64,
    /// Its configuration, where it is served.
    pub config: Option<Arc<ModelConfig>>,
}

/// Writes a model's samples of a family.
type Fill<'a> = dyn Fn(&mut Samples<'_>, &[(&str, &str)], &Model) + 'a;

/// Finds one of the times that are counted.
type Times = fn(&Counters) -> &Latencies;

/// The labels of a model version: model, version and its own tags, in alphabetical order.
pub fn labels(key: &ModelKey, tags: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let tags = tags.iter().map(|(name, value)| (format!("_{name}"), value.clone()));
    let own = [("model".to_owned(), key.name.to_string()), ("version".to_owned(), key.version.to_string())];
    tags.chain(own).collect()
}

// === impl Model ===

impl Model {
    fn is_cached(&self) -> bool {
        self.config.as_ref().is_some_and(|config| config.response_cache)
    }

    /// Bounds of its histogram of first responses, in milliseconds; all are finite.
    fn first_response_bounds(&self) -> impl Iterator<Item = f64> {
        let own = self.config.as_ref().and_then(|config| config.histogram_bounds.get(Metric::FirstResponse.name()));
        own.map_or(&FIRST_RESPONSE_BOUNDS[..], Vec::as_slice).iter().copied().filter(|bound| bound.is_finite())
    }
}

/// Adds the metrics of all models; those of the response cache when there is one, for the models that use it.
pub fn export(models: &[Model], cache: bool, windows: &Windows, options: &MetricsOptions, out: &mut Exposition) {
    let now = Instant::now();
    let mut each = |metric: Metric, fill: &Fill<'_>| {
        let of_cache = CACHE_METRICS.contains(&metric);
        if of_cache && !cache {
            return;
        }
        out.family(metric, |samples| {
            for model in models.iter().filter(|model| !of_cache || model.is_cached()) {
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
    each(Metric::CacheHits, &count(|counters| counters.cache_hit.count));
    each(Metric::CacheMisses, &count(|counters| counters.cache_miss.count));
    let latencies: [(Metric, Metric, Times); 7] = [
        (Metric::RequestDuration, Metric::RequestSummary, |counters| &counters.request),
        (Metric::QueueDuration, Metric::QueueSummary, |counters| &counters.queue),
        (Metric::ComputeInputDuration, Metric::ComputeInputSummary, |counters| &counters.compute_input),
        (Metric::ComputeInferDuration, Metric::ComputeInferSummary, |counters| &counters.compute_infer),
        (Metric::ComputeOutputDuration, Metric::ComputeOutputSummary, |counters| &counters.compute_output),
        (Metric::CacheHitDuration, Metric::CacheHitSummary, |counters| &counters.cache_hit),
        (Metric::CacheMissDuration, Metric::CacheMissSummary, |counters| &counters.cache_miss),
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
            let bucket = |millis: f64| (millis, times.at_most(milliseconds(millis)));
            let buckets = model.first_response_bounds().map(bucket);
            samples.histogram(labels, buckets, times.count, times.ns as f64 / 1e6);
        });
    }
    each(Metric::Pending, &|samples, labels, model| {
        samples.value(labels, (model.total.load.waiting + model.queued) as f64);
    });
    each(Metric::LoadDuration, &|samples, labels, model| {
        samples.value(labels, model.total.load_duration.as_secs_f64())
    });
}

/// Negative values become zero, and values beyond the longest duration become that.
fn milliseconds(millis: f64) -> Duration {
    Duration::try_from_secs_f64(millis.max(0.0) / 1e3).unwrap_or(Duration::MAX)
}

/// Whole microseconds, as Triton counts them.
fn micros(ns: u64) -> f64 {
    (ns / 1000) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::args::tests::options;
    use trireme_inference::{Completed, UnixMicros};
    use trireme_runtime::QueueLoad;

    fn exported(settings: &[&str]) -> String {
        let options = options(settings).expect("right settings");
        let mut counters = Counters::default();
        let ms = Duration::from_millis;
        let request = Completed { rows: 2, transit: ms(1), worker_queue: ms(2), total: ms(400), ..Default::default() };
        counters.complete(&request, UnixMicros(1));
        counters.first_response.record(ms(400));
        counters.fail(FailureReason::Rejected, ms(1));
        let key = ModelKey { name: "m".into(), version: 2 };
        let labels = labels(&key, &BTreeMap::from([("team".to_owned(), "search".to_owned())]));
        let load = QueueLoad { waiting: 3, in_hand: 9, ..QueueLoad::default() };
        let total = Total { counters, load, load_duration: ms(1500), ..Total::default() };
        let mut out = Exposition::default();
        let model = Model { key, labels, total, queued: 4, config: None };
        export(&[model], false, &Windows::default(), &options, &mut out);
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
