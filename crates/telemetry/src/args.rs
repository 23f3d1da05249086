//! Flags about logs and traces.

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};

/// Flags about logs and traces.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logs and traces")]
pub struct TelemetryArgs {
    /// Lowest level of log lines: error, warn, info, debug or trace, also per module (`info,trireme_bus=debug`); `file:PATH` is the first line
    /// of a file, which SIGHUP has read again
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
