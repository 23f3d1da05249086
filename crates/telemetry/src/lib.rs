//! Logs and traces, set up once per process and in the same way for every service. Also the names of all metrics
//! ([`metrics`]).
//!
//! Logs go to standard error through `tracing`. With `--otlp-endpoint`, spans are exported over OTLP (gRPC), and
//! [`traceparent`] and [`set_parent`] write the W3C trace context into messages and read it from them, so that a
//! request is one trace across all processes. [`steps`] records the steps of workers. Without an endpoint no span is
//! recorded, and a client's `traceparent` is passed on unchanged.

mod args;
mod levels;
mod lines;
pub mod metrics;
pub mod steps;
mod trace;

use std::io::IsTerminal;

use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub use args::{LogFormat, TelemetryArgs};
pub use levels::{LogLevels, log_levels, reread_log_level, set_log_levels};
pub use trace::{exports_spans, not_sampled, set_attributes, set_count, set_error, set_parent, trace_id, traceparent};

/// Keeps telemetry running; [`Telemetry::shutdown`] sends buffered spans.
#[derive(Debug)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

/// Sets up logs and traces for this process. Call once, inside the tokio runtime.
pub fn init(service: &'static str, args: &TelemetryArgs) -> anyhow::Result<Telemetry> {
    let filter = levels::read(&args.log_level)?;
    anyhow::ensure!(
        (0.0..=1.0).contains(&args.trace_ratio),
        "--trace-ratio is {}, expected a number from 0 to 1",
        args.trace_ratio
    );
    let logs = tracing_subscriber::fmt::layer().with_writer(lines::Lines);
    let logs = match args.log_format {
        LogFormat::Text => logs.with_ansi(shows_colours(&std::io::stderr())).with_target(false).boxed(),
        LogFormat::Json => logs.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    };
    // Compose files cannot leave a variable out, so an empty one counts as missing.
    let provider = match args.otlp_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty()) {
        Some(endpoint) => Some(trace::provider(service, endpoint, args)?),
        None => None,
    };
    let spans = provider.as_ref().map(trace::layer);
    let filter = levels::reloadable(filter, &args.log_level);
    // Each log line names its request and model, so lines need no spans. A span that is not exported then costs nothing.
    let lines = filter.and(filter_fn(|metadata| metadata.is_event()));
    tracing_subscriber::registry().with(logs.with_filter(lines)).with(spans).try_init()?;
    let levels = log_levels();
    set_log_levels(LogLevels {
        info: levels.info && args.log_info,
        warning: levels.warning && args.log_warning,
        error: levels.error && args.log_error,
        verbose_level: levels.verbose_level.max(args.log_verbose),
    })?;
    Ok(Telemetry { provider })
}

/// Whether text may have colours there: on a terminal whose user does not object by a `NO_COLOR` that is not empty.
pub fn shows_colours(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

// === impl Telemetry ===

impl Telemetry {
    /// Sends buffered spans.
    pub fn shutdown(self) {
        if let Some(provider) = self.provider
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(%error, "not all spans were exported");
        }
    }
}
