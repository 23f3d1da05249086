//! `--trace-config`, in Triton's words.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use trireme_protocol::tracing::{TraceLevel, TraceSettings};
use trireme_telemetry::TelemetryArgs;

/// Where spans go in mode `opentelemetry` when nothing else is said: a collector on this host, over OTLP/gRPC.
const DEFAULT_ENDPOINT: &str = "http://localhost:4317";

/// Flags about traces.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Logs and traces")]
pub struct TraceArgs {
    /// Which requests are traced, and where traces go: `rate=N`, `count=N`, `level=TIMESTAMPS|TENSORS|OFF`,
    /// `mode=triton|opentelemetry`, `triton,file=PATH`, `triton,log-frequency=N`, `opentelemetry,url=URL`,
    /// `opentelemetry,resource=KEY=VALUE`; once for each setting
    #[arg(long, env = "TRIREME_TRACE_CONFIG", value_name = "SETTING=VALUE", value_delimiter = ';')]
    pub trace_config: Vec<TraceOption>,
}

/// One setting of `--trace-config`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceOption {
    /// One of this many requests is traced.
    Rate(u32),
    /// So many requests are traced; -1 is no limit.
    Count(i32),
    /// The contents of traces. Given several times, they add up; OFF prevails.
    Level(TraceLevel),
    /// Whether traces are spans. Otherwise they go to files.
    OpenTelemetry(bool),
    /// The file.
    File(PathBuf),
    /// How many traces a numbered file has.
    LogFrequency(u32),
    /// The collector.
    Url(String),
    /// An attribute of all spans.
    Resource(String, String),
    /// A setting of Triton's span processor, which there is none of here.
    Processor(String),
}

/// The settings and the target that the flags name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceConfig {
    /// The settings at start.
    pub settings: TraceSettings,
    /// Where traces go.
    pub target: TraceTarget,
}

/// Where traces go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceTarget {
    /// To files in Triton's format, if one is named.
    Files(Option<PathBuf>),
    /// To a collector.
    Spans,
}

// === impl TraceArgs ===

impl TraceArgs {
    /// The settings at start. `exporting` says whether this process exports spans.
    pub fn config(&self, exporting: bool) -> TraceConfig {
        // Triton's own.
        let mut settings = TraceSettings { level: TraceLevel::default(), rate: 1000, count: -1, log_frequency: 0 };
        if self.trace_config.is_empty() && exporting {
            settings = TraceSettings { level: TraceLevel { timestamps: true, tensors: false }, rate: 1, ..settings };
            return TraceConfig { settings, target: TraceTarget::Spans };
        }
        let (mut off, mut path) = (false, None);
        for option in &self.trace_config {
            match option {
                TraceOption::Rate(rate) => settings.rate = *rate,
                TraceOption::Count(count) => settings.count = *count,
                TraceOption::Level(level) => {
                    off |= level.is_off();
                    settings.level.timestamps |= level.timestamps;
                    settings.level.tensors |= level.tensors;
                }
                TraceOption::File(file) => path = Some(file.clone()),
                TraceOption::LogFrequency(frequency) => settings.log_frequency = *frequency,
                TraceOption::OpenTelemetry(_)
                | TraceOption::Url(_)
                | TraceOption::Resource(..)
                | TraceOption::Processor(_) => {}
            }
        }
        if off {
            settings.level = TraceLevel::default();
        }
        let target = if self.exports() { TraceTarget::Spans } else { TraceTarget::Files(path) };
        TraceConfig { settings, target }
    }

    /// Whether the mode is `opentelemetry`.
    fn exports(&self) -> bool {
        let mode = self.trace_config.iter().rev().find_map(|option| match option {
            TraceOption::OpenTelemetry(exports) => Some(*exports),
            _ => None,
        });
        mode.unwrap_or(false)
    }

    /// The process's flags about telemetry, with what mode `opentelemetry` adds.
    pub fn telemetry(&self, args: &TelemetryArgs) -> TelemetryArgs {
        let mut args = args.clone();
        if !self.exports() {
            return args;
        }
        let mut endpoint = DEFAULT_ENDPOINT;
        for option in &self.trace_config {
            match option {
                TraceOption::Url(url) => endpoint = url,
                TraceOption::Resource(key, value) => args.resource.push((key.clone(), value.clone())),
                _ => {}
            }
        }
        args.otlp_endpoint = args.otlp_endpoint.filter(|given| !given.is_empty()).or(Some(endpoint.to_owned()));
        args
    }

    /// Logs which settings have no effect.
    pub fn warn(&self) {
        let exports = self.exports();
        for option in &self.trace_config {
            match option {
                TraceOption::File(_) | TraceOption::LogFrequency(_) if exports => {
                    tracing::warn!("--trace-config triton,… has no effect in mode opentelemetry");
                }
                TraceOption::Url(_) | TraceOption::Resource(..) if !exports => {
                    tracing::warn!(
                        "--trace-config opentelemetry,… has no effect without --trace-config mode=opentelemetry"
                    );
                }
                TraceOption::Processor(name) => {
                    tracing::warn!(
                        "--trace-config opentelemetry,{name} has no effect: spans are exported every second"
                    );
                }
                _ => {}
            }
        }
        let TraceConfig { settings, target } = self.config(false);
        if !settings.level.is_off() && target == TraceTarget::Files(None) {
            tracing::warn!("--trace-config level has no effect without a file: give --trace-config triton,file=PATH");
        }
    }
}

// === impl TraceOption ===

impl FromStr for TraceOption {
    type Err = String;

    fn from_str(text: &str) -> Result<TraceOption, String> {
        let (name, value) = text.split_once('=').ok_or_else(|| format!("'{text}' is no SETTING=VALUE"))?;
        let (mode, name) = name.split_once(',').unwrap_or(("", name));
        let (mode, name, value) = (mode.trim(), name.trim(), value.trim());
        match (mode, name) {
            ("", "rate") => number(name, value).map(TraceOption::Rate),
            ("", "count") => match value.parse() {
                Ok(count) if count >= -1 => Ok(TraceOption::Count(count)),
                _ => Err(format!("count is '{value}', expected a number from -1 (no limit) on")),
            },
            ("", "level") => level(value).map(TraceOption::Level),
            ("", "mode") => match value {
                "triton" => Ok(TraceOption::OpenTelemetry(false)),
                "opentelemetry" => Ok(TraceOption::OpenTelemetry(true)),
                _ => Err(format!("mode is '{value}', expected 'triton' or 'opentelemetry'")),
            },
            ("triton", "file") if value.is_empty() => Err("triton,file is empty, expected a path".to_owned()),
            ("triton", "file") => Ok(TraceOption::File(value.into())),
            ("triton", "log-frequency") => number(name, value).map(TraceOption::LogFrequency),
            ("opentelemetry", "url") => url(value).map(TraceOption::Url),
            ("opentelemetry", "resource") => match value.split_once('=') {
                Some((key, value)) => Ok(TraceOption::Resource(key.to_owned(), value.to_owned())),
                None => Err(format!("opentelemetry,resource is '{value}', expected KEY=VALUE")),
            },
            ("opentelemetry", name) if name.starts_with("bsp_") => Ok(TraceOption::Processor(name.to_owned())),
            _ => Err(format!(
                "there is no setting '{}'; there are rate, count, level, mode, 'triton,file', 'triton,log-frequency', \
                 'opentelemetry,url' and 'opentelemetry,resource'",
                if mode.is_empty() { name.to_owned() } else { format!("{mode},{name}") }
            )),
        }
    }
}

fn number(name: &str, value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{name} is '{value}', expected a number from 0 on"))
}

fn level(value: &str) -> Result<TraceLevel, String> {
    match value.to_ascii_uppercase().as_str() {
        "OFF" | "FALSE" => Ok(TraceLevel::default()),
        // The older names of the same.
        "TIMESTAMPS" | "MIN" | "MAX" | "TRUE" => Ok(TraceLevel { timestamps: true, tensors: false }),
        "TENSORS" => Ok(TraceLevel { timestamps: false, tensors: true }),
        _ => Err(format!("level is '{value}', expected TIMESTAMPS, TENSORS or OFF")),
    }
}

/// The URL of a collector that speaks OTLP/gRPC. Triton's speaks OTLP/HTTP, whose URLs have a path.
fn url(value: &str) -> Result<String, String> {
    let rest = value.split_once("://").map_or(value, |(_, rest)| rest);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    match path.is_empty() && !host.is_empty() {
        true if value.contains("://") => Ok(value.to_owned()),
        true => Ok(format!("http://{value}")),
        false => {
            let host = host.split(':').next().unwrap_or_default();
            Err(format!(
                "opentelemetry,url is '{value}': spans are exported over OTLP/gRPC, whose URL has no path; \
                 name the collector's gRPC port, as in http://{host}:4317"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(options: &[&str]) -> TraceArgs {
        TraceArgs { trace_config: options.iter().map(|option| option.parse().expect("it is understood")).collect() }
    }

    #[test]
    fn tritons_settings_are_understood() {
        let given = ["triton,file=t.json", "triton,log-frequency=50", "rate=100", "level=TIMESTAMPS"];
        let TraceConfig { settings, target } = args(&[&given[..], &["level=TENSORS", "count=7"]].concat()).config(true);
        let level = TraceLevel { timestamps: true, tensors: true };
        assert_eq!(settings, TraceSettings { level, rate: 100, count: 7, log_frequency: 50 });
        assert_eq!(target, TraceTarget::Files(Some("t.json".into())), "also where spans are exported");
        assert!(args(&["level=TIMESTAMPS", "level=OFF"]).config(false).settings.level.is_off());

        let default = args(&[]).config(false);
        assert_eq!((default.settings.rate, default.target), (1000, TraceTarget::Files(None)));
        let exporting = args(&[]).config(true);
        assert_eq!((exporting.settings.rate, exporting.target), (1, TraceTarget::Spans));
    }

    #[test]
    fn the_collector_is_named_by_either_flag() {
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            telemetry: TelemetryArgs,
        }
        let cli = |flags: &[&str]| <Cli as clap::Parser>::parse_from([&["x"], flags].concat()).telemetry;
        let on = "mode=opentelemetry";
        let resource = "opentelemetry,resource=service.name=triton";
        let named = args(&[on, "opentelemetry,url=collector:4317", resource]).telemetry(&cli(&[]));
        assert_eq!(named.otlp_endpoint.as_deref(), Some("http://collector:4317"));
        assert_eq!(named.resource, [("service.name".to_owned(), "triton".to_owned())]);
        let endpoint = |options: &[&str], flags: &[&str]| args(options).telemetry(&cli(flags)).otlp_endpoint;
        assert_eq!(endpoint(&[on], &[]).as_deref(), Some(DEFAULT_ENDPOINT));
        assert_eq!(endpoint(&[on], &["--otlp-endpoint=http://o:1"]).as_deref(), Some("http://o:1"));
        assert_eq!(endpoint(&["opentelemetry,url=http://c:1"], &[]), None, "the mode is triton");
    }

    #[test]
    fn faulty_settings_are_named() {
        let table = [
            ("rate", "'rate' is no SETTING=VALUE"),
            ("rate=x", "rate is 'x', expected a number from 0 on"),
            ("count=-2", "count is '-2', expected a number from -1 (no limit) on"),
            ("level=LOUD", "level is 'LOUD', expected TIMESTAMPS, TENSORS or OFF"),
            ("mode=zipkin", "mode is 'zipkin', expected 'triton' or 'opentelemetry'"),
            ("triton,color=red", "there is no setting 'triton,color'; there are rate"),
            ("file=x", "there is no setting 'file'; there are rate"),
            ("opentelemetry,url=http://c:4318/v1/traces", "name the collector's gRPC port, as in http://c:4317"),
            ("opentelemetry,resource=x", "opentelemetry,resource is 'x', expected KEY=VALUE"),
        ];
        for (text, message) in table {
            let error = text.parse::<TraceOption>().unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
    }
}
