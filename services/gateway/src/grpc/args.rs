//! Flags of the gRPC listener.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args, ValueEnum};
use regex::Regex;
use trireme_server::access::Given;
use trireme_server::connections::{Pem, Tls, TlsFiles};

use super::access::ProtocolRestriction;
use crate::forward;

/// The largest message that gRPC's own libraries can handle, in bytes.
const MAX_MESSAGE_SIZE: u32 = i32::MAX as u32;

/// Flags about gRPC; Triton's names where it has them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "gRPC")]
pub struct GrpcArgs {
    /// Whether to listen for gRPC
    #[arg(long, env = "TRIREME_ALLOW_GRPC", value_name = "BOOL", default_value = "true", value_parser = BoolishValueParser::new())]
    #[arg(action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub allow_grpc: bool,

    /// Address to listen on for gRPC
    #[arg(long, env = "TRIREME_GRPC_ADDRESS", value_name = "ADDRESS", default_value = "0.0.0.0", value_parser = trireme_server::connections::listen_address)]
    pub grpc_address: IpAddr,

    /// Port to listen on for gRPC; 0 takes a free one
    #[arg(long, env = "TRIREME_GRPC_PORT", value_name = "PORT", default_value_t = 8001)]
    pub grpc_port: u16,

    /// Largest message over gRPC in both directions, compressed and not, in bytes; a request's size is reserved when it is announced
    #[arg(long, env = "TRIREME_GRPC_MAX_MESSAGE_SIZE", value_name = "BYTES", default_value_t = MAX_MESSAGE_SIZE)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_MESSAGE_SIZE)))]
    pub grpc_max_message_size: u32,

    /// Speak TLS on the gRPC port, with --grpc-server-cert and --grpc-server-key
    #[arg(long, env = "TRIREME_GRPC_USE_SSL", value_name = "BOOL", default_value = "false", value_parser = BoolishValueParser::new())]
    #[arg(action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub grpc_use_ssl: bool,

    /// The same, and clients have to show a certificate that --grpc-root-cert vouches for
    #[arg(long, env = "TRIREME_GRPC_USE_SSL_MUTUAL", value_name = "BOOL", default_value = "false", value_parser = BoolishValueParser::new())]
    #[arg(action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub grpc_use_ssl_mutual: bool,

    /// Certificate chain (PEM) of the gRPC server
    #[arg(long, env = "TRIREME_GRPC_SERVER_CERT", value_name = "FILE")]
    pub grpc_server_cert: Option<PathBuf>,

    /// Private key (PEM) of the gRPC server's certificate
    #[arg(long, env = "TRIREME_GRPC_SERVER_KEY", value_name = "FILE")]
    pub grpc_server_key: Option<PathBuf>,

    /// Certificates (PEM) that vouch for clients' certificates
    #[arg(long, env = "TRIREME_GRPC_ROOT_CERT", value_name = "FILE")]
    pub grpc_root_cert: Option<PathBuf>,

    /// Regular expression of the call metadata that models get as parameters; upper and lower case are the same to it
    #[arg(long, env = "TRIREME_GRPC_HEADER_FORWARD_PATTERN", value_name = "REGEX")]
    pub grpc_header_forward_pattern: Option<String>,

    /// Whether responses are compressed for clients that accept it; low, medium and high are one level
    #[arg(long, env = "TRIREME_GRPC_INFER_RESPONSE_COMPRESSION_LEVEL", value_name = "LEVEL", default_value = "none")]
    pub grpc_infer_response_compression_level: CompressionLevel,

    /// Milliseconds of silence after which a gRPC connection is asked whether its client is still there
    #[arg(long, env = "TRIREME_GRPC_KEEPALIVE_TIME", value_name = "MILLISECONDS", default_value_t = 7_200_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub grpc_keepalive_time: u64,

    /// Milliseconds that a gRPC client may take to say so, before its connection is closed
    #[arg(long, env = "TRIREME_GRPC_KEEPALIVE_TIMEOUT", value_name = "MILLISECONDS", default_value_t = 20_000)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub grpc_keepalive_timeout: u64,

    /// Milliseconds after which a gRPC connection takes no more calls, so that its client connects again; no limit without it
    #[arg(long, env = "TRIREME_GRPC_MAX_CONNECTION_AGE", value_name = "MILLISECONDS")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub grpc_max_connection_age: Option<u64>,

    /// Header `triton-grpc-protocol-KEY` that gRPC calls of some categories have to carry; may be given several times.
    /// Categories are those of --http-restricted-api; `file:PATH` has one in each line
    #[arg(
        long = "grpc-restricted-protocol",
        env = "TRIREME_GRPC_RESTRICTED_PROTOCOL",
        value_name = "PROTOCOL,...:KEY=VALUE"
    )]
    #[arg(value_delimiter = ';', hide_env_values = true)]
    pub grpc_restricted_protocols: Vec<Given<ProtocolRestriction>>,
}

/// How much responses are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, reason = "Triton's own words")]
pub enum CompressionLevel {
    None,
    Low,
    Medium,
    High,
}

// === impl GrpcArgs ===

impl GrpcArgs {
    /// The listener's address.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.grpc_address, self.grpc_port)
    }

    /// The TLS settings, if TLS is switched on. Errors name the flag.
    pub fn tls(&self) -> anyhow::Result<Option<Tls>> {
        if !self.grpc_use_ssl && !self.grpc_use_ssl_mutual {
            return Ok(None);
        }
        let pem = |flag: &'static str, path: &Option<PathBuf>| {
            let path = path.clone().with_context(|| format!("--grpc-use-ssl needs {flag}"))?;
            anyhow::Ok(Pem { flag, path })
        };
        let certificate = pem("--grpc-server-cert", &self.grpc_server_cert)?;
        let key = pem("--grpc-server-key", &self.grpc_server_key)?;
        let roots = self.grpc_use_ssl_mutual.then(|| pem("--grpc-root-cert", &self.grpc_root_cert)).transpose()?;
        Tls::new(TlsFiles { certificate, key, roots }, &[b"h2"]).map(Some)
    }

    /// Which metadata models get as parameters. Errors name the flag.
    pub fn header_forward(&self) -> anyhow::Result<Option<Regex>> {
        forward::pattern("--grpc-header-forward-pattern", self.grpc_header_forward_pattern.as_deref())
    }

    /// Silence after which a client is pinged.
    pub fn keepalive_time(&self) -> Duration {
        Duration::from_millis(self.grpc_keepalive_time)
    }

    /// Time for the answer to a ping.
    pub fn keepalive_timeout(&self) -> Duration {
        Duration::from_millis(self.grpc_keepalive_timeout)
    }

    /// Age at which a connection takes no more calls.
    pub fn max_connection_age(&self) -> Option<Duration> {
        self.grpc_max_connection_age.map(Duration::from_millis)
    }

    /// Largest message, in bytes.
    pub fn max_message_size(&self) -> usize {
        self.grpc_max_message_size as usize
    }

    /// Whether responses are compressed for clients that accept it.
    pub fn compresses(&self) -> bool {
        self.grpc_infer_response_compression_level != CompressionLevel::None
    }
}
