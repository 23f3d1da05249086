//! `/metrics` of the gateway: Triton's metrics for the whole system, the queues on the bus, and this gateway's own metrics. In a
//! process that also hosts models, the workers' metrics as well.
//!
//! Totals are gathered for each scrape; queues and CPUs are read once in an interval.

mod args;
mod host;
mod triton;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use trireme_bus::QueueStatus;
use trireme_inference::{Counters, Lane, ModelKey};
use trireme_runtime::TaskSet;
use trireme_runtime::statistics::export;
use trireme_server::connections::{ConnectionLimiter, Limits};
use trireme_server::connections::{Connections, Protocol};
use trireme_server::http::HttpTransport;
use trireme_server::http::route::{Resource, Table};
use trireme_server::{Intake, Traffic};
use trireme_telemetry::metrics::{self, Exposition, Metric, Samples};

use crate::counts::{EMBEDDINGS, PROVIDER};
use crate::handlers::{Handlers, Queues, SharedHandlers};
use crate::http::HttpArgs;
use crate::statistics::{Total, Totals, Windows};
use crate::text_cache::{Lookups, TextCache};
use crate::usage::{self, Counts};

pub use args::MetricsArgs;
use args::MetricsOptions;
use host::Cpus;
use triton::Model;

/// Longest silence on a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Metrics are shown to everybody.
const ROUTES: Resource = Resource { group: "metrics", category: None, traffic: Traffic::Watch };

/// A bound listener, not yet serving.
pub struct MetricsListener {
    listener: TcpListener,
    options: MetricsOptions,
    /// Where it listens.
    pub address: SocketAddr,
}

/// The state behind `/metrics`.
struct Metrics {
    handlers: SharedHandlers,
    options: MetricsOptions,
    seen: Mutex<Seen>,
}

/// Values of earlier scrapes.
#[derive(Default)]
struct Seen {
    cpus: Cpus,
    windows: Windows,
    queues: Option<(Instant, Queues)>,
}

// === impl MetricsListener ===

impl MetricsListener {
    /// Takes the port, or says that it is taken. `None` when metrics are not wanted.
    pub async fn bind(args: &MetricsArgs, http: &HttpArgs) -> anyhow::Result<Option<MetricsListener>> {
        if !args.allow_metrics {
            return Ok(None);
        }
        let address = SocketAddr::new(args.metrics_address.unwrap_or(http.http_address), args.metrics_port);
        let taken = || format!("cannot listen on {address} for metrics; choose another with --metrics-port");
        let listener = TcpListener::bind(address).await.with_context(taken)?;
        let address = listener.local_addr()?;
        Ok(Some(MetricsListener { listener, options: args.options(), address }))
    }

    /// Serves as many connections as `limits` allow until `stop` is raised.
    pub async fn serve(
        self,
        handlers: SharedHandlers,
        limits: Limits,
        stop: CancellationToken,
        exit_timeout: Duration,
    ) {
        let (budget, access) = (handlers.budget.clone(), Arc::default());
        let metrics = Arc::new(Metrics { handlers, options: self.options, seen: Mutex::default() });
        let (limiter, tasks) = (ConnectionLimiter::new(limits), TaskSet::new());
        let (idle_timeout, protocol) = (IDLE_TIMEOUT, Protocol::Http1);
        let transport = HttpTransport { idle_timeout, is_tls: false, tasks: tasks.clone() };
        let intake = Arc::new(Intake { budget, access, transport });
        let table = Table::new([ROUTES.get("/metrics", "The metrics of the whole system", show)]);
        let router = table.router(|route, handler| intake.before(Some(route), handler)).with_state(metrics);
        let connections = Connections { router, protocol, idle_timeout, tls: None, limiter, tasks };
        connections.serve(self.listener, stop, exit_timeout).await;
    }
}

async fn show(State(metrics): State<Arc<Metrics>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], metrics.render().await)
}

// === impl Metrics ===

impl Metrics {
    async fn render(&self) -> String {
        let (totals, queues) = tokio::join!(self.handlers.totals(), self.queues());
        let models = models(&self.handlers, &totals, &queues);
        let mut out = Exposition::default();
        let mut seen = self.seen.lock();
        let now = Instant::now();
        seen.windows.advance(now, &totals);
        triton::export(&models, self.handlers.cache.is_some(), &seen.windows, &self.options, &mut out);
        if self.options.cpu {
            seen.cpus.export(self.options.interval, &mut out);
        }
        waiting_work(&queues, &totals, |key| seen.windows.before(now, key), &mut out);
        drop(seen);
        own(&self.handlers, &queues, &mut out);
        export::process_metrics(self.handlers.collector.own(), &mut out);
        out.into_text()
    }

    /// The length of every queue, read once in an interval.
    async fn queues(&self) -> Queues {
        if let Some((at, queues)) = &self.seen.lock().queues
            && at.elapsed() < self.options.interval
        {
            return queues.clone();
        }
        let queues = self.handlers.queues().await;
        self.seen.lock().queues = Some((Instant::now(), queues.clone()));
        queues
    }
}

/// Every known model version.
fn models(handlers: &Handlers, totals: &Totals, queues: &Queues) -> Vec<Model> {
    let catalog = handlers.registry.catalog();
    let model = |key: ModelKey| {
        let config = catalog.find(&key.name, Some(key.version)).ok().map(|(_, served)| served.config.clone());
        let labels = match &config {
            Some(config) => triton::labels(&key, &config.metric_tags),
            None => triton::labels(&key, &BTreeMap::new()),
        };
        let total = totals.get(&key).cloned().unwrap_or_default();
        Model { labels, total, queued: queues.get(&key).map_or(0, QueueStatus::all_waiting), config, key }
    };
    catalog.known().into_iter().map(model).collect()
}

/// Adds this gateway's own metrics, and those of the bus and of workers that it sees.
fn own(handlers: &Handlers, queues: &Queues, out: &mut Exposition) {
    let snapshot = handlers.collector.own().snapshot();
    out.family(Metric::GatewayRequest, |samples| {
        for model in snapshot.models.iter().filter(|model| model.counters.answered.count > 0) {
            with_labels(&model.model, |labels| export::times(samples, labels, &model.counters.answered));
        }
    });
    out.family(Metric::GatewayInFlight, |samples| samples.value(&[], handlers.in_flight() as f64));
    out.family(Metric::HttpRequests, |samples| {
        for ((route, method, status), count) in handlers.counts.all_answered() {
            let status = status.to_string();
            samples.value(&[("method", &method), ("route", &route), ("status", &status)], count as f64);
        }
    });
    out.family(Metric::EmbeddingsDuration, |samples| {
        for ((model, error), times) in handlers.counts.all_embedded() {
            let error = error.as_deref().map(|code| ("error_type", code));
            let names = [
                ("gen_ai_operation_name", EMBEDDINGS),
                ("gen_ai_provider_name", PROVIDER),
                ("gen_ai_request_model", model.as_str()),
            ];
            let labels: Vec<_> = error.into_iter().chain(names).collect();
            export::times(samples, &labels, &times);
        }
    });
    if let Some(cache) = &handlers.text_cache {
        texts(cache, out);
    }
    out.family(Metric::TracesDropped, |samples| samples.value(&[], handlers.tracing.dropped() as f64));
    usage(&handlers.usage.totals(), out);
    if let Some(jobs) = handlers.jobs.get() {
        durable(&jobs.statistics(), out);
    }
    let queue = |samples: &mut Samples<'_>, read: fn(&QueueStatus) -> f64| {
        queues.iter().for_each(|(key, status)| with_labels(key, |labels| samples.value(labels, read(status))));
    };
    out.family(Metric::QueueWaiting, |samples| queue(samples, |status| status.all_waiting() as f64));
    out.family(Metric::QueueDelivered, |samples| queue(samples, |status| status.delivered as f64));
    out.family(Metric::QueueOldest, |samples| {
        for (key, status) in queues {
            for ((_, lane), age) in Lane::ALL.iter().zip(status.oldest) {
                let labels = [("lane", *lane), ("model", &key.name), ("version", &key.version.to_string())];
                samples.value(&labels, age.as_secs_f64());
            }
        }
    });
    let mut workers: BTreeMap<ModelKey, u64> = queues.keys().map(|key| (key.clone(), 0)).collect();
    handlers.registry.workers().into_iter().for_each(|(_, key)| *workers.entry(key).or_default() += 1);
    let refused = handlers.registry.refused();
    out.family(Metric::RefusedWorkers, |samples| {
        let counts = workers.keys().map(|key| (key, refused.get(key).map_or(0, Vec::len)));
        counts.into_iter().for_each(|(key, count)| with_labels(key, |labels| samples.value(labels, count as f64)));
    });
    let catalog = handlers.registry.catalog();
    out.family(Metric::ModelInfo, |samples| {
        for key in catalog.known() {
            let Ok((version, served)) = catalog.find(&key.name, Some(key.version)) else { continue };
            // One series for each version at a time: while its workers have several spaces, there is none.
            let Some(space) = catalog.origin_told(version, served, &[]).space else { continue };
            samples.value(&[("model", &key.name), ("space", &space), ("version", &version.to_string())], 1.0);
        }
    });
    out.family(Metric::Workers, |samples| {
        workers.iter().for_each(|(key, count)| with_labels(key, |labels| samples.value(labels, *count as f64)));
    });
}

/// Adds the metrics of this gateway's text cache.
fn texts(cache: &TextCache, out: &mut Exposition) {
    let lookups = cache.lookups();
    let each = |samples: &mut Samples<'_>, read: fn(&Lookups) -> u64| {
        lookups.iter().for_each(|(key, counts)| with_labels(key, |labels| samples.value(labels, read(counts) as f64)));
    };
    out.family(Metric::TextCacheHits, |samples| each(samples, |counts| counts.hits));
    out.family(Metric::TextCacheMisses, |samples| each(samples, |counts| counts.misses));
    out.family(Metric::TextCacheBytes, |samples| samples.value(&[], cache.bytes() as f64));
}

/// Adds the model time of the requests that wait; `before` are a model version's counters of a minute ago.
fn waiting_work<'a>(
    queues: &Queues,
    totals: &Totals,
    before: impl Fn(&ModelKey) -> Option<&'a Counters>,
    out: &mut Exposition,
) {
    let none = Total::default();
    out.family(Metric::QueueWork, |samples| {
        for (key, status) in queues {
            let waiting = totals.get(key).unwrap_or(&none).waiting_time(status.waiting, before(key));
            for ((_, lane), time) in Lane::ALL.iter().zip(waiting) {
                let labels = [("lane", *lane), ("model", &key.name), ("version", &key.version.to_string())];
                samples.value(&labels, time.as_secs_f64());
            }
        }
    });
}

/// Adds what owners of keys have used at this gateway since its start.
fn usage(totals: &usage::Totals, out: &mut Exposition) {
    out.family(Metric::UsageRequests, |samples| {
        for ([lane, model, owner], counts) in totals.series() {
            let answered = counts.requests.saturating_sub(counts.errors).saturating_sub(counts.cached);
            let outcomes = [
                ("answered", answered),
                ("cached", counts.cached),
                ("failed", counts.errors),
                ("refused", counts.refused),
            ];
            for (outcome, count) in outcomes {
                samples.value(&[lane, model, ("outcome", outcome), owner], count as f64);
            }
        }
    });
    let each = |samples: &mut Samples<'_>, read: fn(&Counts) -> f64| {
        totals.series().for_each(|(labels, counts)| samples.value(&labels, read(counts)));
    };
    out.family(Metric::UsageRows, |samples| each(samples, |counts| counts.rows as f64));
    out.family(Metric::UsageTokens, |samples| each(samples, |counts| counts.tokens as f64));
    out.family(Metric::UsageCachedTokens, |samples| each(samples, |counts| counts.cached_tokens as f64));
    out.family(Metric::UsageSeconds, |samples| each(samples, |counts| counts.compute_us as f64 / 1e6));
}

/// Adds the metrics of this gateway's durable work.
fn durable(statistics: &trireme_jobs::Statistics, out: &mut Exposition) {
    let trireme_jobs::Statistics { load, in_flight, limit, completed, failed, webhooks } = statistics;
    let by = |samples: &mut Samples<'_>, label, values: &[(&str, u64)]| {
        values.iter().for_each(|&(name, value)| samples.value(&[(label, name)], value as f64));
    };
    let requests = [("scheduled", load.scheduled), ("waiting", load.waiting), ("running", load.running)];
    out.family(Metric::JobsRequests, |samples| by(samples, "state", &requests));
    let mut batches = vec![("scheduled", load.scheduled_batches)];
    batches.extend(load.batches.iter().map(|&(state, count)| (state.name(), count)));
    out.family(Metric::JobsBatches, |samples| by(samples, "state", &batches));
    out.family(Metric::JobsLinesLeft, |samples| samples.value(&[], load.lines_left as f64));
    let lines = [("completed", *completed), ("failed", *failed)];
    out.family(Metric::JobsLines, |samples| by(samples, "outcome", &lines));
    let calls = [("delivered", webhooks.delivered), ("retried", webhooks.retried), ("given_up", webhooks.given_up)];
    out.family(Metric::JobsWebhooks, |samples| by(samples, "result", &calls));
    out.family(Metric::JobsInFlight, |samples| samples.value(&[], *in_flight as f64));
    out.family(Metric::JobsLimit, |samples| samples.value(&[], *limit as f64));
}

fn with_labels(key: &ModelKey, fill: impl FnOnce(&[(&str, &str)])) {
    fill(&[("model", &key.name), ("version", &key.version.to_string())]);
}
