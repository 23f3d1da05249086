//! Flags about metrics, and the options that they give.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};

/// Quantiles of summaries when none are named: Triton's.
const QUANTILES: [f64; 5] = [0.5, 0.9, 0.95, 0.99, 0.999];

/// Flags about metrics; Triton's names.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Metrics")]
pub struct MetricsArgs {
    /// Whether to listen for Prometheus, at `/metrics`
    #[arg(long, env = "TRIREME_ALLOW_METRICS", value_name = "BOOL", default_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = ArgAction::Set)]
    pub allow_metrics: bool,

    /// Whether metrics include the host's CPUs and memory
    #[arg(long, env = "TRIREME_ALLOW_CPU_METRICS", value_name = "BOOL", default_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = ArgAction::Set)]
    pub allow_cpu_metrics: bool,

    /// Address to listen on for Prometheus; that of HTTP by default
    #[arg(long, env = "TRIREME_METRICS_ADDRESS", value_name = "ADDRESS", value_parser = trireme_server::connections::listen_address)]
    pub metrics_address: Option<IpAddr>,

    /// Port to listen on for Prometheus; 0 takes a free one
    #[arg(long, env = "TRIREME_METRICS_PORT", value_name = "PORT", default_value_t = 8002)]
    pub metrics_port: u16,

    /// Milliseconds between two looks at queues and CPUs, however often metrics are asked for
    #[arg(long, env = "TRIREME_METRICS_INTERVAL_MS", value_name = "MILLISECONDS", default_value_t = 2000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub metrics_interval_ms: u64,

    /// Which metrics of latency there are; may be given several times. Settings: counter_latencies=BOOL,
    /// summary_latencies=BOOL, summary_quantiles=QUANTILE:ERROR,..., histogram_latencies=BOOL
    #[arg(long, env = "TRIREME_METRICS_CONFIG", value_name = "SETTING=VALUE", value_delimiter = ';')]
    pub metrics_config: Vec<MetricsSetting>,
}

/// A setting of `--metrics-config`.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricsSetting {
    /// Whether cumulative durations are shown.
    Counters(bool),
    /// Whether summaries are shown.
    Summaries(bool),
    /// The quantiles of summaries.
    Quantiles(Vec<f64>),
    /// Whether histograms are shown.
    Histograms(bool),
}

/// The metrics that are shown.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricsOptions {
    /// Cumulative durations.
    pub counters: bool,
    /// Summaries.
    pub summaries: bool,
    /// Their quantiles.
    pub quantiles: Vec<f64>,
    /// Histograms.
    pub histograms: bool,
    /// The host's CPUs and memory.
    pub cpu: bool,
    /// How long the state of queues and CPUs is kept before it is read again.
    pub interval: Duration,
}

// === impl MetricsSetting ===

impl FromStr for MetricsSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("expected SETTING=VALUE")?;
        let value = value.trim().trim_matches('"');
        let switch = || match value.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(format!("{name} is '{value}', expected true or false")),
        };
        match name.trim() {
            "counter_latencies" => Ok(MetricsSetting::Counters(switch()?)),
            "summary_latencies" => Ok(MetricsSetting::Summaries(switch()?)),
            "histogram_latencies" => Ok(MetricsSetting::Histograms(switch()?)),
            "summary_quantiles" => {
                value.split(',').map(quantile).collect::<Result<_, _>>().map(MetricsSetting::Quantiles)
            }
            _ => Err(format!(
                "'{name}' is no setting, expected counter_latencies, summary_latencies, summary_quantiles or \
                 histogram_latencies"
            )),
        }
    }
}

/// Reads `quantile:error`. The error is checked and not used: the width of a histogram's buckets determines the error here.
fn quantile(text: &str) -> Result<f64, String> {
    let fault = || format!("summary_quantiles has '{text}', expected QUANTILE:ERROR, both from 0 to 1");
    let (quantile, error) = text.split_once(':').ok_or_else(fault)?;
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| (0.0..=1.0).contains(number));
    number(error).and(number(quantile)).ok_or_else(fault)
}

// === impl MetricsArgs ===

impl MetricsArgs {
    /// The options that the flags give; of a setting that comes twice, the last holds.
    pub fn options(&self) -> MetricsOptions {
        let mut options = MetricsOptions {
            counters: true,
            summaries: false,
            quantiles: QUANTILES.to_vec(),
            histograms: false,
            cpu: self.allow_cpu_metrics,
            interval: Duration::from_millis(self.metrics_interval_ms),
        };
        for setting in &self.metrics_config {
            match setting {
                MetricsSetting::Counters(on) => options.counters = *on,
                MetricsSetting::Summaries(on) => options.summaries = *on,
                MetricsSetting::Quantiles(quantiles) => options.quantiles.clone_from(quantiles),
                MetricsSetting::Histograms(on) => options.histograms = *on,
            }
        }
        options
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        metrics: MetricsArgs,
    }

    /// The options of these values of `--metrics-config`.
    pub fn options(settings: &[&str]) -> Result<MetricsOptions, String> {
        let flags = settings.iter().flat_map(|setting| ["--metrics-config", setting]);
        let cli = Cli::try_parse_from(["x"].into_iter().chain(flags)).map_err(|error| error.to_string())?;
        Ok(cli.metrics.options())
    }

    #[test]
    fn settings_are_tritons() {
        let usual = options(&[]).unwrap();
        assert_eq!((usual.counters, usual.summaries, usual.histograms), (true, false, false));
        let all = ["counter_latencies=false", "summary_latencies=true", "histogram_latencies=1"];
        let found = options(&[&all[..], &["summary_quantiles=0.5:0.05,0.9:0.01"]].concat()).unwrap();
        assert_eq!((found.counters, found.summaries, found.histograms), (false, true, true));
        assert_eq!(found.quantiles, [0.5, 0.9]);
    }

    #[test]
    fn faults_are_named() {
        for (setting, part) in [
            ("counters", "expected SETTING=VALUE"),
            ("latencies=true", "'latencies' is no setting"),
            ("summary_latencies=perhaps", "summary_latencies is 'perhaps'"),
            ("summary_quantiles=0.5", "summary_quantiles has '0.5'"),
            ("summary_quantiles=50:0.1", "summary_quantiles has '50:0.1'"),
        ] {
            let error = options(&[setting]).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
