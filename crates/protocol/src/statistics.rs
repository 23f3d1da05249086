//! The statistics extension on the wire. Every member is always present, because clients parse it strictly.

use bytes::Bytes;
use trireme_inference::{Counters, ModelKey, Timed};

use crate::json::Writer;

/// The answer to `GET /v2/models/stats` and similar paths: the models in the given order.
pub fn encode_statistics<'a>(models: impl IntoIterator<Item = (&'a ModelKey, &'a Counters)>) -> Bytes {
    let mut w = Writer::default();
    w.object(|w| {
        w.name("model_stats").array(|w| models.into_iter().for_each(|(key, counters)| model(w, key, counters)));
    });
    w.into_bytes()
}

/// The parts of `inference_stats`, in their order.
pub(crate) fn parts(counters: &Counters) -> [(&'static str, Timed); 8] {
    [
        ("success", Timed::from(&counters.request)),
        ("fail", counters.fail),
        ("queue", Timed::from(&counters.queue)),
        ("compute_input", Timed::from(&counters.compute_input)),
        ("compute_infer", Timed::from(&counters.compute_infer)),
        ("compute_output", Timed::from(&counters.compute_output)),
        ("cache_hit", Timed::from(&counters.cache_hit)),
        ("cache_miss", Timed::from(&counters.cache_miss)),
    ]
}

fn model(w: &mut Writer, key: &ModelKey, counters: &Counters) {
    w.object(|w| {
        w.name("name").string(&key.name);
        w.name("version").string(key.version.to_string());
        w.name("last_inference").integer(counters.last_inference_ms);
        w.name("inference_count").integer(counters.inferences);
        w.name("execution_count").integer(counters.executions);
        w.name("inference_stats").object(|w| parts(counters).into_iter().for_each(|(name, part)| timed(w, name, part)));
        w.name("response_stats").object(|_| {});
        w.name("batch_stats").array(|w| {
            for (size, times) in &counters.batches {
                w.object(|w| {
                    w.name("batch_size").integer(*size);
                    timed(w, "compute_input", times.compute_input);
                    timed(w, "compute_infer", times.compute_infer);
                    timed(w, "compute_output", times.compute_output);
                });
            }
        });
        w.name("memory_usage").array(|_| {});
    });
}

fn timed(w: &mut Writer, name: &str, timed: Timed) {
    w.name(name).object(|w| {
        w.name("count").integer(timed.count);
        w.name("ns").integer(timed.ns);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use trireme_inference::{Completed, Executed, FailureReason, UnixMicros};

    #[test]
    fn every_member_is_there() {
        let ns = Duration::from_nanos;
        let mut counters = Counters::default();
        let request = Completed {
            rows: 2,
            transit: ns(1),
            worker_queue: ns(2),
            compute_input: ns(4),
            compute_infer: ns(5),
            compute_output: ns(6),
            total: ns(20),
            ..Completed::default()
        };
        counters.complete(&request, UnixMicros(7_000));
        let (compute_input, compute_infer, compute_output) = (ns(4), ns(5), ns(6));
        counters.execute(&Executed { batch_size: 2, compute_input, compute_infer, compute_output });
        counters.fail(FailureReason::Backend, ns(9));
        let key = ModelKey { name: "m".into(), version: 3 };
        assert_eq!(
            encode_statistics([(&key, &counters)]),
            concat!(
                r#"{"model_stats":[{"name":"m","version":"3","last_inference":7,"inference_count":2,"execution_count":1,"#,
                r#""inference_stats":{"success":{"count":1,"ns":20},"fail":{"count":1,"ns":9},"queue":{"count":1,"ns":3},"#,
                r#""compute_input":{"count":1,"ns":4},"compute_infer":{"count":1,"ns":5},"compute_output":{"count":1,"ns":6},"#,
                r#""cache_hit":{"count":0,"ns":0},"cache_miss":{"count":0,"ns":0}},"response_stats":{},"#,
                r#""batch_stats":[{"batch_size":2,"compute_input":{"count":1,"ns":4},"compute_infer":{"count":1,"ns":5},"#,
                r#""compute_output":{"count":1,"ns":6}}],"memory_usage":[]}]}"#
            )
        );
    }
}
