//! Spans over OTLP, and W3C trace context in and out of messages.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, Sampler, SdkTracerProvider};
use tracing::{Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, filter};

const TRACEPARENT: &str = "traceparent";

/// Whether this process exports spans.
static EXPORTING: AtomicBool = AtomicBool::new(false);

/// Exports spans to an OTLP endpoint, in batches.
pub fn provider(service: &'static str, endpoint: &str, ratio: f64) -> anyhow::Result<SdkTracerProvider> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint)
        .build()
        .with_context(|| format!("--otlp-endpoint '{endpoint}' cannot be used"))?;
    EXPORTING.store(true, Ordering::Relaxed);
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio)));
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(sampler)
        .with_resource(Resource::builder().with_service_name(service).build())
        .build())
}

/// The layer that turns our own spans (not those of libraries) into exported ones.
pub fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let ours: FilterFn = filter::filter_fn(|metadata| metadata.target().starts_with("trireme"));
    tracing_opentelemetry::layer().with_tracer(provider.tracer("trireme")).with_filter(ours)
}

/// Whether this process exports spans.
pub fn exports_spans() -> bool {
    EXPORTING.load(Ordering::Relaxed)
}

/// A W3C `traceparent` that says not to trace what it goes along with.
pub fn not_sampled() -> String {
    let ids = RandomIdGenerator::default();
    format!("00-{}-{}-00", ids.new_trace_id(), ids.new_span_id())
}

/// The W3C `traceparent` of a span; `None` when it is not recorded.
pub fn traceparent(span: &Span) -> Option<String> {
    let context = span.context();
    if !context.span().span_context().is_valid() {
        return None;
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut carrier);
    carrier.remove(TRACEPARENT)
}

/// The trace that a W3C `traceparent` names, for log lines.
pub fn trace_id(traceparent: Option<&str>) -> Option<&str> {
    traceparent?.split('-').nth(1).filter(|id| id.len() == 32)
}

/// Makes `span` a child of the span that a `traceparent` names. Text that is no `traceparent` changes nothing.
pub fn set_parent(span: &Span, traceparent: &str) {
    let carrier = HashMap::from([(TRACEPARENT.to_owned(), traceparent.to_owned())]);
    let context = TraceContextPropagator::new().extract(&carrier);
    // An error says that the span is not recorded: then there is nothing to link.
    let _ = span.set_parent(context);
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
            set_parent(&span, CLIENT);
            let ours = traceparent(&span).unwrap();
            assert_eq!(ours[..36], CLIENT[..36], "same trace");
            assert_ne!(ours[36..52], CLIENT[36..52], "another span");
            set_parent(&tracing::info_span!(target: "trireme::test", "other"), "rubbish");
        });
    }

    #[test]
    fn what_is_not_sampled_stays_so() {
        let provider =
            SdkTracerProvider::builder().with_sampler(Sampler::ParentBased(Box::new(Sampler::AlwaysOn))).build();
        let subscriber = tracing_subscriber::registry().with(layer(&provider));
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!(target: "trireme::test", "request");
            set_parent(&span, &not_sampled());
            assert!(traceparent(&span).unwrap().ends_with("-00"));
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
