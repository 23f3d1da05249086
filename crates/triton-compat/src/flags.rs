//! Flags that launch scripts pass and that have no effect here: Triton's, and in one process those of a gateway about its broker.
//! They are accepted, so that such scripts work, and a warning names each with the reason. A value that would change answers to
//! clients is refused.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

/// The handling of a flag.
enum Effect {
    /// The flag has no effect here, for this reason.
    Ignored(&'static str),
    /// The server always works as with this value; any other value has no effect, for this reason.
    IgnoredUnless(&'static str, &'static str),
    /// The server always works as with this value; any other value is refused, for this reason.
    Only(&'static str, &'static str),
}

use Effect::{Ignored, IgnoredUnless, Only};

const NO_SHIM: &str = "backends are built in";
const NO_POOL: &str = "there are no preallocated memory pools";
const NO_VENDOR: &str = "there is no such endpoint";
const NO_THREADS: &str = "threads follow the CPU quota";
const NO_LOADER: &str = "each worker loads its models when it starts";
const WORKERS: &str = "it is a flag of the services that host models";
const NO_PING_LIMITS: &str = "a client may ping as it likes, but loses its connection where it floods it";
const NO_GPU_METRICS: &str = "the gateway has no GPUs; use the exporter of their vendor";
const NO_LIMITER: &str = "there is no rate limiter";
const NO_PORT_REUSE: &str = "ports are never shared";
const NO_BROKER: &str = "this process has no broker";
const TRACE_CONFIG: &str = "use --trace-config";

/// Every such flag. A flag that a process defines itself is not taken from here.
const TABLE: &[(&str, Effect)] = &[
    ("ack-wait-ms", Ignored(NO_BROKER)),
    ("allow-gpu-metrics", Ignored(NO_GPU_METRICS)),
    ("allow-sagemaker", IgnoredUnless("false", NO_VENDOR)),
    ("allow-vertex-ai", IgnoredUnless("false", NO_VENDOR)),
    ("backend-config", Ignored("backends have flags of their own, as --onnxruntime-intra-threads")),
    ("backend-directory", Ignored(NO_SHIM)),
    ("buffer-manager-thread-count", Ignored(NO_THREADS)),
    ("cache-directory", Ignored("the response cache is built in")),
    ("cuda-memory-pool-byte-size", Ignored(NO_POOL)),
    ("cuda-virtual-address-size", Ignored(NO_POOL)),
    ("enable-peer-access", Ignored("models do not span GPUs")),
    ("grpc-http2-max-ping-strikes", Ignored(NO_PING_LIMITS)),
    ("grpc-http2-max-pings-without-data", Ignored(NO_PING_LIMITS)),
    ("grpc-http2-min-recv-ping-interval-without-data", Ignored(NO_PING_LIMITS)),
    ("grpc-keepalive-permit-without-calls", Ignored(NO_PING_LIMITS)),
    ("grpc-max-connection-age-grace", Ignored("calls on a connection that is too old are always finished")),
    ("grpc-infer-allocation-pool-size", Ignored(NO_POOL)),
    ("grpc-infer-thread-count", Ignored(NO_THREADS)),
    ("grpc-max-response-pool-size", Ignored(NO_POOL)),
    ("host-policy", Ignored("processes are placed by what starts them")),
    ("http-thread-count", Ignored(NO_THREADS)),
    ("log-file", Ignored("logs go to standard error")),
    ("min-supported-compute-capability", Ignored("ONNX Runtime decides which GPUs it runs on")),
    ("model-config-name", Only("", "only config.pbtxt is read")),
    ("model-load-gpu-limit", Ignored(NO_LOADER)),
    ("model-load-retry-count", Ignored(NO_LOADER)),
    ("model-load-thread-count", Ignored(WORKERS)),
    ("model-namespacing", Only("false", "model names are unique over all repositories")),
    ("pinned-memory-pool-byte-size", Ignored(NO_POOL)),
    ("queue-replicas", Ignored(NO_BROKER)),
    ("queue-storage", Ignored(NO_BROKER)),
    ("rate-limit", IgnoredUnless("off", NO_LIMITER)),
    ("rate-limit-resource", Ignored(NO_LIMITER)),
    ("repoagent-directory", Ignored(NO_SHIM)),
    ("response-cache-byte-size", Ignored("use --cache-config local,size=BYTES")),
    ("reuse-grpc-port", IgnoredUnless("false", NO_PORT_REUSE)),
    ("reuse-http-port", IgnoredUnless("false", NO_PORT_REUSE)),
    ("sagemaker-port", Ignored(NO_VENDOR)),
    ("sagemaker-safe-port-range", Ignored(NO_VENDOR)),
    ("sagemaker-thread-count", Ignored(NO_VENDOR)),
    ("store-bytes", Ignored(NO_BROKER)),
    ("strict-model-config", Ignored(WORKERS)),
    ("trace-count", Ignored(TRACE_CONFIG)),
    ("trace-file", Ignored(TRACE_CONFIG)),
    ("trace-level", Ignored(TRACE_CONFIG)),
    ("trace-log-frequency", Ignored(TRACE_CONFIG)),
    ("trace-rate", Ignored(TRACE_CONFIG)),
    ("vertex-ai-default-model", Ignored(NO_VENDOR)),
    ("vertex-ai-port", Ignored(NO_VENDOR)),
    ("vertex-ai-thread-count", Ignored(NO_VENDOR)),
];

/// The ignored flags of a command line. Flatten it last: it leaves out flags that are defined before it.
#[derive(Clone, Debug, Default)]
pub struct TritonFlags {
    /// One line for each.
    warnings: Vec<String>,
}

// === impl TritonFlags ===

impl TritonFlags {
    /// Logs the ignored flags, and why.
    pub fn warn(&self) {
        self.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    }
}

impl Args for TritonFlags {
    fn augment_args(command: Command) -> Command {
        TABLE.iter().fold(command, |command, (name, _)| {
            if command.get_arguments().any(|own| own.get_long() == Some(name)) {
                return command;
            }
            // As an id the name is its own: derived ones have underscores.
            let flag = Arg::new(*name).long(*name).hide(true).action(ArgAction::Append);
            // Triton takes some without a value.
            command.arg(flag.num_args(0..=1).default_missing_value("true").allow_hyphen_values(true))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        TritonFlags::augment_args(command)
    }
}

impl FromArgMatches for TritonFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut warnings = Vec::new();
        for (name, treatment) in TABLE {
            let Ok(Some(values)) = matches.try_get_many::<String>(name) else { continue };
            for value in values {
                match treatment {
                    Ignored(reason) => warnings.push(format!("--{name} is ignored: {reason}")),
                    IgnoredUnless(usual, reason) if !same(value, usual) => {
                        warnings.push(format!("--{name}={value} is ignored: {reason}"));
                    }
                    Only(usual, reason) if !same(value, usual) => {
                        let message = format!("--{name}={value} is not supported: {reason}\n");
                        return Err(clap::Error::raw(clap::error::ErrorKind::InvalidValue, message));
                    }
                    IgnoredUnless(..) | Only(..) => {}
                }
            }
        }
        Ok(TritonFlags { warnings })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = TritonFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Whether two values say the same; switches are also written 0 and 1.
fn same(value: &str, usual: &str) -> bool {
    let plain = match value {
        "1" => "true",
        "0" => "false",
        other => other,
    };
    plain.eq_ignore_ascii_case(usual)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser, Debug)]
    struct Cli {
        /// A flag that this process knows.
        #[arg(long)]
        metrics_port: Option<u16>,
        #[command(flatten)]
        triton: TritonFlags,
    }

    fn parse(flags: &[&str]) -> Result<Cli, String> {
        Cli::try_parse_from([&["x"], flags].concat()).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_without_a_meaning_are_named() {
        let flags = [
            "--backend-directory",
            "/opt/b",
            "--metrics-port=9",
            "--http-thread-count=4",
            "--http-thread-count=8",
            "--model-namespacing=0",
        ];
        let cli = parse(&flags).unwrap();
        assert_eq!(cli.metrics_port, Some(9));
        let warnings = cli.triton.warnings;
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[0].starts_with("--backend-directory is ignored: "));
    }

    #[test]
    fn values_that_clients_would_notice_are_refused() {
        assert!(parse(&["--model-config-name=", "--model-namespacing=false"]).unwrap().triton.warnings.is_empty());
        assert!(parse(&["--model-namespacing=true"]).unwrap_err().contains("is not supported: model names are unique"));
        assert!(parse(&["--no-such-flag"]).is_err());
    }

    #[test]
    fn help_shows_none_of_them() {
        use clap::CommandFactory;
        let help = Cli::command().render_long_help().to_string();
        assert!(help.contains("--metrics-port") && !help.contains("--backend-directory"));
    }
}
