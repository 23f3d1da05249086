//! A process's own statistics as metrics: its stages, and the values that the operating system reports for it.

use std::time::Duration;

use trireme_engine::ModelSnapshot;
use trireme_inference::{Counters, DropReason, FailureReason, Lane, Latencies};
use trireme_telemetry::metrics::{Exposition, Metric, Samples};

use super::{Statistics, own, process};

/// Upper bounds of histograms of times, in microseconds: from 100 µs to 100 s, three for each power of ten.
const TIME_BOUNDS: [u64; 19] = [
    100,
    250,
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
];

/// Upper bounds of the histogram of batch sizes.
const BATCH_BOUNDS: [u32; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Writes a model's samples of a family.
type Fill<'a> = dyn Fn(&mut Samples<'_>, &[(&str, &str)], &ModelSnapshot) + 'a;

/// Writes the metrics of the model versions that this process hosts, and of the process itself.
pub fn process_metrics(statistics: &Statistics, out: &mut Exposition) {
    let snapshot = statistics.snapshot();
    let hosted: Vec<_> = snapshot.models.iter().filter(|model| !model.stage.is_empty()).collect();
    if !hosted.is_empty() {
        stages(&hosted, out);
    }
    process::export(statistics, out);
    own::export(out);
}

fn stages(hosted: &[&ModelSnapshot], out: &mut Exposition) {
    let mut each = |metric: Metric, fill: &Fill<'_>| {
        out.family(metric, |samples| {
            for model in hosted {
                let version = model.model.version.to_string();
                let labels = [("model", model.model.name.as_str()), ("stage", &model.stage), ("version", &version)];
                fill(samples, &labels, model);
            }
        });
    };
    each(Metric::StageTransit, &|samples, labels, model| times(samples, labels, &model.counters.transit));
    each(Metric::StageQueue, &|samples, labels, model| times(samples, labels, &model.counters.worker_queue));
    each(Metric::StageLane, &|samples, labels, model| {
        let Counters { queue, bulk_queue, .. } = &model.counters;
        for ((_, lane), waits) in Lane::ALL.iter().zip([&queue.since(bulk_queue), bulk_queue]) {
            times(samples, &[&[("lane", *lane)][..], labels].concat(), waits);
        }
    });
    each(Metric::StageTimeLeft, &|samples, labels, model| {
        for ((_, lane), left) in Lane::ALL.iter().zip(&model.counters.time_left) {
            let labels = [&[("lane", *lane)][..], labels].concat();
            samples.histogram(&labels, left.buckets(), left.count(), left.sum());
        }
    });
    each(Metric::StageCompute, &|samples, labels, model| times(samples, labels, &model.counters.compute));
    each(Metric::StageBatch, &|samples, labels, model| batches(samples, labels, &model.counters));
    each(Metric::StageTokens, &|samples, labels, model| samples.value(labels, model.counters.tokens as f64));
    each(Metric::StagePadding, &|samples, labels, model| samples.value(labels, model.counters.padding_tokens as f64));
    each(Metric::StageTruncated, &|samples, labels, model| {
        samples.value(labels, model.counters.truncated_texts as f64)
    });
    each(Metric::StageFailures, &|samples, labels, model| {
        let reasons = FailureReason::ALL.iter().zip(model.counters.failures);
        reasons.for_each(|((_, reason), count)| with_reason(samples, labels, reason, count));
    });
    each(Metric::StageDropped, &|samples, labels, model| {
        let reasons = DropReason::ALL.iter().zip(model.counters.dropped);
        reasons.for_each(|((_, reason), count)| with_reason(samples, labels, reason, count));
    });
    each(Metric::StageRedeliveries, &|samples, labels, model| {
        samples.value(labels, model.counters.redeliveries as f64)
    });
    each(Metric::StageDeadLetters, &|samples, labels, model| samples.value(labels, model.counters.dead_letters as f64));
    each(Metric::StageWaiting, &|samples, labels, model| samples.value(labels, model.load.waiting as f64));
    each(Metric::StageAsleep, &|samples, labels, model| {
        samples.value(labels, f64::from(u8::from(model.load.asleep.is_some())))
    });
    each(Metric::StageWaking, &|samples, labels, model| times(samples, labels, &model.counters.waking));
    each(Metric::StageInFlight, &|samples, labels, model| samples.value(labels, model.load.in_hand as f64));
}

/// A histogram of times, in seconds.
pub fn times(samples: &mut Samples<'_>, labels: &[(&str, &str)], times: &Latencies) {
    let bucket = |micros: u64| (micros as f64 / 1e6, times.at_most(Duration::from_micros(micros)));
    samples.histogram(labels, TIME_BOUNDS.into_iter().map(bucket), times.count, times.ns as f64 / 1e9);
}

fn batches(samples: &mut Samples<'_>, labels: &[(&str, &str)], counters: &Counters) {
    let sizes = || counters.batches.iter().map(|(size, times)| (*size, times.compute_infer.count));
    let bucket =
        |bound: u32| (f64::from(bound), sizes().filter(|(size, _)| *size <= bound).map(|(_, count)| count).sum());
    let rows: u64 = sizes().map(|(size, count)| u64::from(size) * count).sum();
    samples.histogram(labels, BATCH_BOUNDS.into_iter().map(bucket), counters.executions, rows as f64);
}

fn with_reason(samples: &mut Samples<'_>, labels: &[(&str, &str)], reason: &str, count: u64) {
    // Labels are in alphabetical order.
    let (first, rest) = labels.split_at(1);
    samples.value(&[first, &[("reason", reason)], rest].concat(), count as f64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use trireme_engine::QueueLoad;
    use trireme_inference::{Completed, Executed, ModelKey, UnixMicros};

    #[test]
    fn a_hosted_model_has_every_stage_metric() {
        let statistics = Statistics::new("worker");
        statistics.model(&ModelKey { name: "elsewhere".into(), version: 1 });
        let model = statistics.model(&ModelKey { name: "m".into(), version: 2 });
        model.host("model", Duration::ZERO, || QueueLoad { waiting: 3, in_hand: 5, ..QueueLoad::default() });
        model.record(|counters| {
            let ms = Duration::from_millis;
            let (transit, worker_queue, compute_infer) = (ms(2), ms(4), ms(30));
            let lane = Lane::Bulk;
            let request = Completed { lane, rows: 3, transit, worker_queue, compute_infer, ..Default::default() };
            counters.complete(&request, UnixMicros(1));
            counters.execute(&Executed { batch_size: 3, ..Default::default() });
            counters.drop_request(DropReason::Deadline);
            counters.time_left[1].record(ms(250), ms(1000));
        });
        let mut out = Exposition::default();
        process_metrics(&statistics, &mut out);
        let text = out.into_text();
        for line in [
            r#"trireme_stage_transit_seconds_bucket{model="m",stage="model",version="2",le="0.0025"} 1"#,
            r#"trireme_stage_transit_seconds_bucket{model="m",stage="model",version="2",le="0.001"} 0"#,
            r#"trireme_stage_queue_seconds_sum{model="m",stage="model",version="2"} 0.004"#,
            r#"trireme_stage_lane_queue_seconds_count{lane="live",model="m",stage="model",version="2"} 0"#,
            r#"trireme_stage_lane_queue_seconds_sum{lane="bulk",model="m",stage="model",version="2"} 0.006"#,
            r#"trireme_stage_time_left_ratio_bucket{lane="bulk",model="m",stage="model",version="2",le="0.2"} 0"#,
            r#"trireme_stage_time_left_ratio_bucket{lane="bulk",model="m",stage="model",version="2",le="0.3"} 1"#,
            r#"trireme_stage_time_left_ratio_sum{lane="bulk",model="m",stage="model",version="2"} 0.25"#,
            r#"trireme_stage_time_left_ratio_count{lane="live",model="m",stage="model",version="2"} 0"#,
            r#"trireme_stage_compute_seconds_count{model="m",stage="model",version="2"} 1"#,
            r#"trireme_stage_batch_rows_bucket{model="m",stage="model",version="2",le="2"} 0"#,
            r#"trireme_stage_batch_rows_bucket{model="m",stage="model",version="2",le="4"} 1"#,
            r#"trireme_stage_batch_rows_sum{model="m",stage="model",version="2"} 3"#,
            r#"trireme_stage_dropped_requests_total{model="m",reason="deadline",stage="model",version="2"} 1"#,
            r#"trireme_stage_waiting_requests{model="m",stage="model",version="2"} 3"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing from\n{text}");
        }
        assert!(!text.contains("elsewhere"), "only what is hosted here is a stage");
    }
}
