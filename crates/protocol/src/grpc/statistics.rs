//! The answer to `ModelStatistics`.

use trireme_inference::{Counters, ModelKey, Timed};

use super::wire::{InferBatchStatistics, InferStatistics, ModelStatistics, ModelStatisticsResponse, StatisticDuration};
use crate::statistics::parts;

/// Encodes the models in the given order.
pub fn encode_statistics<'a>(
    models: impl IntoIterator<Item = (&'a ModelKey, &'a Counters)>,
) -> ModelStatisticsResponse {
    ModelStatisticsResponse { model_stats: models.into_iter().map(|(key, counters)| model(key, counters)).collect() }
}

fn model(key: &ModelKey, counters: &Counters) -> ModelStatistics {
    let [success, fail, queue, compute_input, compute_infer, compute_output, cache_hit, cache_miss] =
        parts(counters).map(|(_, part)| duration(part));
    let batches = counters.batches.iter().map(|(size, times)| InferBatchStatistics {
        batch_size: u64::from(*size),
        compute_input: duration(times.compute_input),
        compute_infer: duration(times.compute_infer),
        compute_output: duration(times.compute_output),
    });
    ModelStatistics {
        name: key.name.to_string(),
        version: key.version.to_string(),
        last_inference: counters.last_inference_ms,
        inference_count: counters.inferences,
        execution_count: counters.executions,
        inference_stats: Some(InferStatistics {
            success,
            fail,
            queue,
            compute_input,
            compute_infer,
            compute_output,
            cache_hit,
            cache_miss,
        }),
        batch_stats: batches.collect(),
        ..ModelStatistics::default()
    }
}

fn duration(timed: Timed) -> Option<StatisticDuration> {
    Some(StatisticDuration { count: timed.count, ns: timed.ns })
}
