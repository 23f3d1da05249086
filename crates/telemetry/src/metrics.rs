//! The names of all metrics, in one table, and their text form for Prometheus.
//!
//! `nv_*` are Triton's names, with its help texts; `process_*` are the names that Prometheus' own libraries use; ours
//! are `trireme_*`. The text is written here because prometheus-client appends `_total` to every counter, which Triton's names do not
//! have, and knows no summaries, and prometheus refuses families without samples. Not here: counting (the services do it).

use std::fmt::Write;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values up to each bound.
    Histogram,
    /// Quantiles.
    Summary,
}

macro_rules! metrics {
    ($($variant:ident = $name:literal $kind:ident $help:literal;)+) => {
        /// A metric family.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "their help texts say what they are")]
        pub enum Metric { $($variant),+ }

        impl Metric {
            /// Every metric.
            pub const ALL: &[Metric] = &[$(Metric::$variant),+];

            /// Its name.
            pub fn name(self) -> &'static str {
                match self { $(Metric::$variant => $name),+ }
            }

            /// Its type.
            pub fn kind(self) -> Kind {
                match self { $(Metric::$variant => Kind::$kind),+ }
            }

            /// Its help text.
            pub fn help(self) -> &'static str {
                match self { $(Metric::$variant => $help),+ }
            }
        }
    };
}

metrics! {
    RequestSuccess = "nv_inference_request_success" Counter "Number of successful inference requests, all batch sizes";
    RequestFailure = "nv_inference_request_failure" Counter "Number of failed inference requests, all batch sizes";
    Inferences = "nv_inference_count" Counter "Number of inferences performed (does not include cached requests)";
    Executions = "nv_inference_exec_count" Counter "Number of model executions performed (does not include cached requests)";
    RequestDuration = "nv_inference_request_duration_us" Counter "Cumulative inference request duration in microseconds (includes cached requests)";
    QueueDuration = "nv_inference_queue_duration_us" Counter "Cumulative inference queuing duration in microseconds (includes cached requests)";
    ComputeInputDuration = "nv_inference_compute_input_duration_us" Counter "Cumulative compute input duration in microseconds (does not include cached requests)";
    ComputeInferDuration = "nv_inference_compute_infer_duration_us" Counter "Cumulative compute inference duration in microseconds (does not include cached requests)";
    ComputeOutputDuration = "nv_inference_compute_output_duration_us" Counter "Cumulative inference compute output duration in microseconds (does not include cached requests)";
    RequestSummary = "nv_inference_request_summary_us" Summary "Summary of inference request duration in microseconds (includes cached requests)";
    QueueSummary = "nv_inference_queue_summary_us" Summary "Summary of inference queuing duration in microseconds (includes cached requests)";
    ComputeInputSummary = "nv_inference_compute_input_summary_us" Summary "Summary of compute input duration in microseconds (does not include cached requests)";
    ComputeInferSummary = "nv_inference_compute_infer_summary_us" Summary "Summary of compute inference duration in microseconds (does not include cached requests)";
    ComputeOutputSummary = "nv_inference_compute_output_summary_us" Summary "Summary of inference compute output duration in microseconds (does not include cached requests)";
    FirstResponse = "nv_inference_first_response_histogram_ms" Histogram "Duration from request to first response in milliseconds";
    CacheHits = "nv_cache_num_hits_per_model" Counter "Number of cache hits per model";
    CacheMisses = "nv_cache_num_misses_per_model" Counter "Number of cache misses per model";
    CacheHitDuration = "nv_cache_hit_duration_per_model" Counter "Total cache hit duration per model, in microseconds";
    CacheMissDuration = "nv_cache_miss_duration_per_model" Counter "Total cache miss duration per model, in microseconds";
    CacheHitSummary = "nv_cache_hit_summary_per_model" Summary "Summary of cache hit duration per model, in microseconds";
    CacheMissSummary = "nv_cache_miss_summary_per_model" Summary "Summary of cache miss duration per model, in microseconds";
    Pending = "nv_inference_pending_request_count" Gauge "Instantaneous number of pending requests awaiting execution per-model.";
    LoadDuration = "nv_model_load_duration_secs" Gauge "Model load time in seconds";
    CpuUtilization = "nv_cpu_utilization" Gauge "CPU utilization rate [0.0 - 1.0]";
    CpuMemoryTotal = "nv_cpu_memory_total_bytes" Gauge "CPU total memory (RAM), in bytes";
    CpuMemoryUsed = "nv_cpu_memory_used_bytes" Gauge "CPU used memory (RAM), in bytes";

    GatewayRequest = "trireme_gateway_request_seconds" Histogram "From a request's arrival at this gateway until its answer, errors included";
    GatewayInFlight = "trireme_gateway_in_flight_requests" Gauge "Requests that this gateway has in flight";
    HttpRequests = "trireme_http_requests_total" Counter "Answers of this gateway over HTTP, by route, method and status";
    EmbeddingsDuration = "gen_ai_server_request_duration_seconds" Histogram "Time that requests for vectors of texts took at this gateway; OpenTelemetry's gen_ai.server.request.duration";
    TextCacheHits = "trireme_text_cache_hits_total" Counter "Texts of requests to this gateway that were not computed, because the text cache had their results or the request has them more than once";
    TextCacheMisses = "trireme_text_cache_misses_total" Counter "Texts of requests to this gateway that the text cache had no results of";
    TextCacheBytes = "trireme_text_cache_bytes" Gauge "Bytes of the results in this gateway's text cache, with their keys";
    TracesDropped = "trireme_gateway_traces_dropped_total" Counter "Traces of requests that are not in this gateway's trace files: more came than could be written, or writing failed";
    CertificateExpiry = "trireme_certificate_expiry_timestamp_seconds" Gauge "When a certificate that the process shows, by its flag, expires, since unix epoch in seconds";
    QueueWaiting = "trireme_queue_waiting_messages" Gauge "Messages in the model's queue on the bus that no worker has been given";
    QueueDelivered = "trireme_queue_delivered_messages" Gauge "Messages of the model's queue on the bus that workers hold";
    QueueOldest = "trireme_queue_oldest_age_seconds" Gauge "Age of the oldest message in a lane of the model's queue on the bus that no worker has been given";
    QueueWork = "trireme_queue_work_seconds" Gauge "Model time of the requests that wait, on the bus and in workers, by lane: their tokens or rows, at the pace of an instance in the last minute. A message on the bus counts as the lane's mean request, and as 1 s until a run has been measured";
    RefusedWorkers = "trireme_refused_workers" Gauge "Workers of the model that take no work, because other files under its name are served";
    ModelInfo = "trireme_model_info" Gauge "1 for each model version that is served and whose workers tell its space; the space is a label";
    Workers = "trireme_workers" Gauge "Workers that serve the model, as the registry has them";

    JobsRequests = "trireme_jobs_requests" Gauge "Durable requests of this gateway that have not ended";
    JobsBatches = "trireme_jobs_batches" Gauge "Batches of this gateway that have not ended";
    JobsLinesLeft = "trireme_jobs_lines_left" Gauge "Lines of this gateway's batches that have not ended, as of their checkpoints";
    JobsLines = "trireme_jobs_lines_total" Counter "Lines of batches that this gateway has run to their end";
    JobsWebhooks = "trireme_jobs_webhooks_total" Counter "Calls of webhooks that this gateway has made: delivered, failed and to be retried, or failed and given up";
    JobsInFlight = "trireme_jobs_calls_in_flight" Gauge "Calls of durable work that this gateway has in flight";
    JobsLimit = "trireme_jobs_calls_limit" Gauge "Calls of durable work that this gateway may have in flight now";

    UsageRequests = "trireme_usage_requests_total" Counter "Requests of this gateway that have ended, by owner of the key, model, lane and outcome: answered, cached (by the response cache), failed, refused (by a limit of the owner)";
    UsageRows = "trireme_usage_rows_total" Counter "Rows of requests that this gateway has answered, by owner of the key";
    UsageTokens = "trireme_usage_tokens_total" Counter "Tokens of requests that this gateway has answered, by owner of the key; the sum of the answers' usage";
    UsageCachedTokens = "trireme_usage_cached_tokens_total" Counter "The part of trireme_usage_tokens_total that is of texts which the text cache had";
    UsageSeconds = "trireme_usage_model_seconds_total" Counter "Model time of requests that this gateway has answered, by owner of the key: of a batch the part of their rows";

    StageTransit = "trireme_stage_transit_seconds" Histogram "From being sent to the model's queue on the bus until this process received it";
    StageQueue = "trireme_stage_queue_seconds" Histogram "From being received by this process until its batch began to run";
    StageLane = "trireme_stage_lane_queue_seconds" Histogram "From being sent to the model's queue until its batch began to run, by the request's lane";
    StageTimeLeft = "trireme_stage_time_left_ratio" Histogram "The part of the time until its deadline that a request had left when its run began, by lane: 1 is all of it, 0 none";
    StageCompute = "trireme_stage_compute_seconds" Histogram "What running the request's batch took: inputs, run and outputs";
    StageFailures = "trireme_stage_failures_total" Counter "Requests that failed in this process";
    StageBatch = "trireme_stage_batch_rows" Histogram "Rows of the batches that this process ran";
    StageTokens = "trireme_stage_tokens_total" Counter "Rows times length of the batches that were run, padding included";
    StagePadding = "trireme_stage_padding_tokens_total" Counter "The part of trireme_stage_tokens_total that was padding";
    StageTruncated = "trireme_stage_truncated_texts_total" Counter "Texts that this process cut because they were too long";
    StageWaiting = "trireme_stage_waiting_requests" Gauge "Requests that wait in this process for their batch";
    StageInFlight = "trireme_stage_in_flight_requests" Gauge "Requests in this process: waiting, running, being sent on";
    StageAsleep = "trireme_stage_asleep" Gauge "1 while the model is not in this process's memory, because it had no request for --keep-alive; its next request loads it";
    StageWaking = "trireme_stage_waking_seconds" Histogram "Loads of models that were asleep, each for a request that waited for it";
    StageRedeliveries = "trireme_stage_redeliveries_total" Counter "Deliveries to this process that were not the first of their message";
    StageDeadLetters = "trireme_stage_dead_letters_total" Counter "Messages that this process gave up after their last attempt";
    StageDropped = "trireme_stage_dropped_requests_total" Counter "Requests that this process let go because no client waits for them any more";

    ProcessCpu = "process_cpu_seconds_total" Counter "Total user and system CPU time spent in seconds.";
    ProcessMemory = "process_resident_memory_bytes" Gauge "Resident memory size in bytes.";
    ProcessStart = "process_start_time_seconds" Gauge "Start time of the process since unix epoch in seconds.";
    ProcessTasks = "trireme_process_tasks" Gauge "Asynchronous tasks that live in this process";
    ClockOffset = "trireme_clock_offset_seconds" Gauge "How far this host's clock is behind the broker's, which requests go by; negative where it is ahead";
    BusFault = "trireme_bus_fault_seconds" Gauge "For how long the bus has not taken this process's work, by reason: unreachable (the broker does not answer), store_full or store_silent (its disk takes no writes), disk (--data-dir); 0 where it does";
}

/// Names and values of a sample's labels.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// The content type of an [`Exposition`].
pub const CONTENT_TYPE: &str = "text/plain; charset=utf-8";

/// Metrics in Prometheus' text format.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

/// The samples of one family.
#[derive(Debug)]
pub struct Samples<'a> {
    name: &'a str,
    text: &'a mut String,
}

// === impl Kind ===

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        }
    }
}

// === impl Exposition ===

impl Exposition {
    /// Writes a family with the samples that `fill` adds. Each family is written once.
    pub fn family(&mut self, metric: Metric, fill: impl FnOnce(&mut Samples<'_>)) {
        self.own_family(metric.name(), metric.kind(), metric.help(), fill);
    }

    /// Writes a family that is not in our table: one of a model's own.
    pub fn own_family(&mut self, name: &str, kind: Kind, help: &str, fill: impl FnOnce(&mut Samples<'_>)) {
        let (kind, help) = (kind.name(), help.replace('\\', "\\\\").replace('\n', "\\n"));
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        fill(&mut Samples { name, text: &mut self.text });
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.text
    }
}

// === impl Samples ===

impl Samples<'_> {
    /// A counter's or a gauge's value.
    pub fn value(&mut self, labels: Labels<'_>, value: f64) {
        self.sample("", labels, None, value);
    }

    /// A histogram: the number of values up to each bound, the number of all values, and their sum.
    pub fn histogram(&mut self, labels: Labels<'_>, buckets: impl Iterator<Item = (f64, u64)>, count: u64, sum: f64) {
        self.sample("_count", labels, None, count as f64);
        self.sample("_sum", labels, None, sum);
        for (bound, at_most) in buckets {
            self.sample("_bucket", labels, Some(("le", bound)), at_most as f64);
        }
        self.sample("_bucket", labels, Some(("le", f64::INFINITY)), count as f64);
    }

    /// A summary: its quantiles, the number of values, and their sum.
    pub fn summary(&mut self, labels: Labels<'_>, quantiles: impl Iterator<Item = (f64, f64)>, count: u64, sum: f64) {
        self.sample("_count", labels, None, count as f64);
        self.sample("_sum", labels, None, sum);
        for (quantile, value) in quantiles {
            self.sample("", labels, Some(("quantile", quantile)), value);
        }
    }

    fn sample(&mut self, suffix: &str, labels: Labels<'_>, number: Option<(&str, f64)>, value: f64) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        let mut separator = '{';
        for (name, value) in labels {
            let _ = write!(self.text, "{separator}{name}=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    other => self.text.push(other),
                }
            }
            self.text.push('"');
            separator = ',';
        }
        if let Some((name, value)) = number {
            let _ = write!(self.text, "{separator}{name}=\"");
            self.number(value);
            self.text.push('"');
            separator = ',';
        }
        self.text.push_str(if separator == ',' { "} " } else { " " });
        self.number(value);
        self.text.push('\n');
    }

    fn number(&mut self, value: f64) {
        let _ = match value {
            f64::INFINITY => write!(self.text, "+Inf"),
            f64::NEG_INFINITY => write!(self.text, "-Inf"),
            value if value.is_nan() => write!(self.text, "Nan"),
            value => write!(self.text, "{value}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_different_and_say_what_they_count() {
        let names: HashSet<_> = Metric::ALL.iter().map(|metric| metric.name()).collect();
        assert_eq!(names.len(), Metric::ALL.len());
        for metric in Metric::ALL.iter().filter(|metric| metric.name().starts_with("trireme_")) {
            let total = metric.name().ends_with("_total");
            assert_eq!(total, metric.kind() == Kind::Counter, "{}", metric.name());
        }
    }

    #[test]
    fn families_are_written_as_prometheus_reads_them() {
        let mut out = Exposition::default();
        out.family(Metric::RequestSuccess, |samples| {
            samples.value(&[("model", "a\"b\\c\nd"), ("version", "1")], 3.0);
            samples.value(&[], 0.25);
        });
        out.family(Metric::StageQueue, |samples| {
            samples.histogram(&[("model", "m")], [(0.001, 1), (2.5, 4)].into_iter(), 5, 12.5);
        });
        out.family(Metric::QueueSummary, |samples| samples.summary(&[], [(0.5, f64::NAN)].into_iter(), 0, 0.0));
        let text = out.into_text();
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with("# HELP")).collect();
        assert_eq!(
            lines,
            [
                "# TYPE nv_inference_request_success counter",
                r#"nv_inference_request_success{model="a\"b\\c\nd",version="1"} 3"#,
                "nv_inference_request_success 0.25",
                "# TYPE trireme_stage_queue_seconds histogram",
                r#"trireme_stage_queue_seconds_count{model="m"} 5"#,
                r#"trireme_stage_queue_seconds_sum{model="m"} 12.5"#,
                r#"trireme_stage_queue_seconds_bucket{model="m",le="0.001"} 1"#,
                r#"trireme_stage_queue_seconds_bucket{model="m",le="2.5"} 4"#,
                r#"trireme_stage_queue_seconds_bucket{model="m",le="+Inf"} 5"#,
                "# TYPE nv_inference_queue_summary_us summary",
                "nv_inference_queue_summary_us_count 0",
                "nv_inference_queue_summary_us_sum 0",
                r#"nv_inference_queue_summary_us{quantile="0.5"} Nan"#,
            ]
        );
        assert!(text.starts_with("# HELP nv_inference_request_success Number of successful inference requests, all"));
    }
}
