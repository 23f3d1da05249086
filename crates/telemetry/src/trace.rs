//! Spans over OTLP, and W3C trace context from and to messages.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{Link, SpanKind, Status, TraceContextExt, TraceId, TraceState, TracerProvider};
use opentelemetry::{Context as TraceContext, Key, KeyValue};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, IdGenerator, RandomIdGenerator, Sampler, SamplingDecision, SamplingResult,
    SdkTracerProvider, ShouldSample,
};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, filter};

use crate::args::TelemetryArgs;

const SERVICE_NAME: &str = "service.name";

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// The most spans that wait for their export; more are dropped. This is several seconds of a busy worker, some 10 MB.
const MAX_WAITING_SPANS: usize = 16 * 1024;

/// How long a span may wait for its export. A process that is killed loses the spans of this time.
const EXPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The most requests of a batch to which its run has links.
const MAX_LINKS: u32 = 1024;

/// Exports this process's spans, if an endpoint is set.
static EXPORTING: OnceLock<SdkTracerProvider> = OnceLock::new();

/// Decides which spans are recorded. A span with a parent follows its parent. A span without one is recorded if it has
/// a link to a recorded span; otherwise the sampler decides.
#[derive(Clone, Debug)]
pub(crate) struct Sampling(pub Sampler);

/// Exports spans to an OTLP endpoint, in batches. `args` have the share of traces and the attributes of the process.
pub fn provider(service: &'static str, endpoint: &str, args: &TelemetryArgs) -> anyhow::Result<SdkTracerProvider> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .with_context(|| format!("--otlp-endpoint '{endpoint}' cannot be used"))?;
    let attributes = args.resource.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
    let waiting =
        BatchConfigBuilder::default().with_max_queue_size(MAX_WAITING_SPANS).with_scheduled_delay(EXPORT_INTERVAL);
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(waiting.build()).build();
    // The environment goes before Trireme's own names, flags before both.
    let environment = Resource::builder().build();
    let own = [
        (SERVICE_NAME, service.to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", RandomIdGenerator::default().new_trace_id().to_string()),
    ];
    let own = own
        .into_iter()
        .filter(|(name, _)| is_unset(&environment, name))
        .map(|(name, value)| KeyValue::new(name, value));
    let resource = Resource::builder().with_attributes(own).with_attributes(attributes).build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(processor)
        .with_sampler(Sampling(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(args.trace_ratio)))))
        .with_max_links_per_span(MAX_LINKS)
        .with_resource(resource)
        .build();
    // A process has one provider: the first stays.
    Ok(EXPORTING.get_or_init(|| provider).clone())
}

/// Whether an attribute is not set by `OTEL_SERVICE_NAME` or `OTEL_RESOURCE_ATTRIBUTES`: the SDK makes up a name of the service then.
fn is_unset(environment: &Resource, name: &'static str) -> bool {
    let value = environment.get(&Key::from_static_str(name));
    value.is_none_or(|value| name == SERVICE_NAME && value.as_str().starts_with("unknown_service"))
}

/// The layer that exports Trireme's own spans (not those of libraries). Spans below `info` are only for log lines: they
/// belong to tasks, not to requests.
pub fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let ours: FilterFn = filter::filter_fn(|metadata| {
        metadata.target().starts_with("trireme") && *metadata.level() <= tracing::Level::INFO
    });
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("trireme"))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_filter(ours)
}

/// Whether this process exports spans.
pub fn exports_spans() -> bool {
    exporting().is_some()
}

/// The provider that exports this process's spans, if there is one.
pub(crate) fn exporting() -> Option<&'static SdkTracerProvider> {
    EXPORTING.get()
}

/// A W3C `traceparent` whose flag asks not to trace the request.
pub fn not_sampled() -> String {
    let ids = RandomIdGenerator::default();
    format!("00-{}-{}-00", ids.new_trace_id(), ids.new_span_id())
}

/// The W3C `traceparent` and `tracestate` of a span, the latter empty where it has no entry; `None` if the span is not recorded.
pub fn traceparent(span: &Span) -> Option<(String, Option<String>)> {
    let context = span.context();
    if !context.span().span_context().is_valid() {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut carrier);
    let parent = carrier.remove(TRACEPARENT)?;
    Some((parent, carrier.remove(TRACESTATE).filter(|state| !state.is_empty())))
}

/// The trace id in a W3C `traceparent`, for log lines.
pub fn trace_id(traceparent: Option<&str>) -> Option<&str> {
    traceparent?.split('-').nth(1).filter(|id| id.len() == 32)
}

/// Makes `span` a child of the span in a `traceparent`, with the entries of `tracestate`. A malformed `traceparent` changes
/// nothing, and a malformed `tracestate` has no entries.
pub fn set_parent(span: &Span, traceparent: &str, tracestate: Option<&str>) {
    // An error means that the span is not recorded.
    let _ = span.set_parent(extract(traceparent, tracestate));
}

/// Adds attributes to the exported span; its log lines stay as they are.
pub fn set_attributes(span: &Span, attributes: impl IntoIterator<Item = (&'static str, String)>) {
    for (name, value) in attributes {
        span.set_attribute(name, value);
    }
}

/// Adds a number to the exported span.
pub fn set_count(span: &Span, name: &'static str, count: u64) {
    span.set_attribute(name, i64::try_from(count).unwrap_or(i64::MAX));
}

/// Notes why the request of `span` was refused or failed, with this code. Only a fault of the server is a failure of its span.
pub fn set_error(span: &Span, code: String, message: &str, is_servers_fault: bool) {
    span.set_attribute("error.type", code);
    if is_servers_fault {
        span.set_status(Status::error(message.to_owned()));
    }
}

/// The context in a `traceparent` and a `tracestate`; empty if the former is malformed.
pub(crate) fn extract(traceparent: &str, tracestate: Option<&str>) -> TraceContext {
    let mut carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    carrier.extend(tracestate.map(|state| (TRACESTATE.to_owned(), state.to_owned())));
    TraceContextPropagator::new().extract_with_context(&TraceContext::new(), &carrier)
}

// === impl Sampling ===

impl ShouldSample for Sampling {
    fn should_sample(
        &self,
        parent: Option<&TraceContext>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let has_parent = parent.is_some_and(|parent| parent.span().span_context().is_valid());
        if !has_parent && links.iter().any(|link| link.span_context.is_sampled()) {
            let (decision, trace_state) = (SamplingDecision::RecordAndSample, TraceState::default());
            return SamplingResult { decision, attributes: Vec::new(), trace_state };
        }
        self.0.should_sample(parent, trace_id, name, kind, attributes, links)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_sdk::trace::SdkTracerProvider;
    use tracing_subscriber::layer::SubscriberExt;

    const CLIENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_trace_goes_through() {
        let provider = SdkTracerProvider::builder().build();
        let subscriber = tracing_subscriber::registry().with(layer(&provider));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!(target: "trireme::test", "request");
            set_parent(&span, CLIENT, Some("vendor=value,other=1"));
            let (ours, state) = traceparent(&span).unwrap();
            assert_eq!(state.as_deref(), Some("vendor=value,other=1"));
            assert_eq!(ours[..36], CLIENT[..36], "same trace");
            assert_ne!(ours[36..52], CLIENT[36..52], "another span");
            set_parent(&tracing::info_span!(target: "trireme::test", "other"), "rubbish", None);
            let span = tracing::info_span!(target: "trireme::test", "malformed");
            set_parent(&span, CLIENT, Some("rubbish"));
            assert_eq!(traceparent(&span).unwrap().1, None);
        });
    }

    #[test]
    fn what_is_not_sampled_stays_so() {
        let provider =
            SdkTracerProvider::builder().with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn))).build();
        let subscriber = tracing_subscriber::registry().with(layer(&provider));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!(target: "trireme::test", "request");
            set_parent(&span, &not_sampled(), None);
            assert!(traceparent(&span).unwrap().0.ends_with("-00"));
        });
    }

    #[test]
    fn the_trace_is_found_in_its_parent() {
        assert_eq!(trace_id(Some(CLIENT)), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        assert_eq!((trace_id(Some("rubbish")), trace_id(Some("00-short-1-1")), trace_id(None)), (None, None, None));
    }

    #[test]
    fn without_export_there_is_no_context() {
        assert_eq!(traceparent(&Span::none()), None);
    }
}
