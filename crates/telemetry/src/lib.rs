//! Logs and traces, set up once per process and in the same way for every service. Also the names of all metrics
//! ([`metrics`]).
//!
//! Logs go to standard error through `tracing`. With `--otlp-endpoint`, spans are exported over OTLP (gRPC), and
//! [`traceparent`] and [`set_parent`] write the W3C trace context into messages and read it from them, so that a
//! request is one trace across all processes. [`steps`] records the steps of workers. Without an endpoint no span is
//! recorded, and a client's `traceparent` is passed on unchanged.

mod levels;
pub mod metrics;
pub mod steps;
mod trace;

use std::io::IsTerminal;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

pub use levels::{LogLevels, log_levels, set_log_levels};
pub use trace::{exports_spans, not_sampled, set_attributes, set_error, set_parent, trace_id, traceparent};

/// Flags about logs and traces.
#[derive(Args, Clone, Debug)]
pub struct TelemetryArgs {
    /// Lowest level of log lines: error, warn, info, debug or trace, also per module (`info,trireme_bus=debug`)
    #[arg(long, env = "TRIREME_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    pub log_level: String,

    /// Log more of our own doings than `--log-level` says: 1 is debug, 2 and above trace
    #[arg(long, env = "TRIREME_LOG_VERBOSE", default_value_t = 0, value_name = "LEVEL")]
    pub log_verbose: u32,

    /// Whether information is logged, where `--log-level` has it
    #[arg(long, env = "TRIREME_LOG_INFO", default_value = "true", value_name = "BOOL")]
    #[arg(value_parser = BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = ArgAction::Set)]
    pub log_info: bool,

    /// Whether warnings are logged, where `--log-level` has them
    #[arg(long, env = "TRIREME_LOG_WARNING", default_value = "true", value_name = "BOOL")]
    #[arg(value_parser = BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = ArgAction::Set)]
    pub log_warning: bool,

    /// Whether errors are logged, where `--log-level` has them
    #[arg(long, env = "TRIREME_LOG_ERROR", default_value = "true", value_name = "BOOL")]
    #[arg(value_parser = BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = ArgAction::Set)]
    pub log_error: bool,

    /// How log lines look
    #[arg(long, env = "TRIREME_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,

    /// Where spans are exported to over OTLP/gRPC, as `http://host:4317`; without it none are recorded
    #[arg(long, env = "TRIREME_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,

    /// Share of requests that are traced, from 0 to 1; a client's sampled `traceparent` is always followed
    #[arg(long, env = "TRIREME_TRACE_RATIO", default_value_t = 1.0, value_name = "RATIO")]
    pub trace_ratio: f64,

    /// Attributes of this process in all of its spans, beside the service's name; set by flags of the service
    #[arg(skip)]
    pub resource: Vec<(String, String)>,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for a person.
    // Triton's two formats. Log lines have ISO 8601 times in both cases.
    #[value(aliases = ["default", "ISO8601"])]
    Text,
    /// A JSON object a line.
    Json,
}

/// Keeps telemetry running; [`Telemetry::shutdown`] sends buffered spans.
#[derive(Debug)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

/// Sets up logs and traces for this process. Call once, inside the tokio runtime.
pub fn init(service: &'static str, args: &TelemetryArgs) -> anyhow::Result<Telemetry> {
    // The NATS client's log lines only repeat ours. A module in --log-level overrides this.
    let filter = EnvFilter::try_new(format!("async_nats=warn,{}", args.log_level))
        .map_err(|error| anyhow::anyhow!("--log-level '{}' is not understood: {error}", args.log_level))?;
    anyhow::ensure!(
        (0.0..=1.0).contains(&args.trace_ratio),
        "--trace-ratio is {}, expected a number from 0 to 1",
        args.trace_ratio
    );
    let logs = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let logs = match args.log_format {
        LogFormat::Text => logs.with_ansi(std::io::stderr().is_terminal()).with_target(false).boxed(),
        LogFormat::Json => logs.json().flatten_event(true).with_current_span(false).with_span_list(true).boxed(),
    };
    // Compose files cannot leave a variable out, so an empty one counts as missing.
    let provider = match args.otlp_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty()) {
        Some(endpoint) => Some(trace::provider(service, endpoint, args)?),
        None => None,
    };
    let spans = provider.as_ref().map(trace::layer);
    let filter = levels::reloadable(filter);
    tracing_subscriber::registry().with(logs.with_filter(filter)).with(spans).try_init()?;
    let levels = log_levels();
    set_log_levels(LogLevels {
        info: levels.info && args.log_info,
        warning: levels.warning && args.log_warning,
        error: levels.error && args.log_error,
        verbose_level: levels.verbose_level.max(args.log_verbose),
    })?;
    Ok(Telemetry { provider })
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
