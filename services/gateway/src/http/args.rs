//! Flags of the HTTP listener, and the options that they give.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use axum::http::HeaderValue;
use clap::builder::{BoolishValueParser, RangedU64ValueParser};
use clap::{ArgAction, Args};
use regex::Regex;
use trireme_dialects::{EmptyText, TokenInput};
use trireme_server::connections::{Pem, Tls, TlsFiles};
use trireme_server::http::access_log::LineFormat;
use trireme_server::http::paths;

use crate::forward;

/// Flags about HTTP; Triton's names where it has them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "HTTP")]
pub struct HttpArgs {
    /// Whether to listen for HTTP
    #[arg(long, env = "TRIREME_ALLOW_HTTP", value_name = "BOOL", default_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = ArgAction::Set)]
    pub allow_http: bool,

    /// Address to listen on for HTTP
    #[arg(long, env = "TRIREME_HTTP_ADDRESS", value_name = "ADDRESS", default_value = "0.0.0.0", value_parser = trireme_server::connections::listen_address)]
    pub http_address: IpAddr,

    /// Port to listen on for HTTP; 0 takes a free one
    #[arg(long, env = "TRIREME_HTTP_PORT", value_name = "PORT", default_value_t = 8000)]
    pub http_port: u16,

    /// Largest request body over HTTP, compressed and not, in bytes
    #[arg(long, env = "TRIREME_HTTP_MAX_INPUT_SIZE", value_name = "BYTES", default_value_t = 64 << 20)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub http_max_input_size: usize,

    /// Seconds without a byte of a request, or of an answer that is taken, after which its client is left, also over gRPC. All
    /// such pauses of a request may last five times that
    #[arg(long, env = "TRIREME_HTTP_IDLE_TIMEOUT_SECS", value_name = "SECONDS", default_value_t = 120)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub http_idle_timeout_secs: u64,

    /// Answer health checks with the Open Inference Protocol's JSON bodies, as KServe's client needs; Triton's are empty
    #[arg(long, env = "TRIREME_OIP_HEALTH_BODIES")]
    pub oip_health_bodies: bool,

    /// Status that answers a request which found a queue full: Triton's 503, or 429
    #[arg(long, env = "TRIREME_FULL_QUEUE_STATUS", value_name = "STATUS", default_value = "503", value_parser = ["503", "429"])]
    pub full_queue_status: String,

    /// Meaning of token ids in place of texts in OpenAI's /v1/embeddings
    #[arg(long, env = "TRIREME_OPENAI_TOKEN_INPUT", value_name = "VOCABULARY", value_enum, default_value_t)]
    pub openai_token_input: TokenInput,

    /// The answer to an empty text in OpenAI's /v1/embeddings, which clients send for a blank document
    #[arg(long, env = "TRIREME_OPENAI_EMPTY_TEXT", value_name = "ANSWER", value_enum, default_value_t)]
    pub openai_empty_text: EmptyText,

    /// Whether to show the console, a page for people, at /ui
    #[arg(long, env = "TRIREME_UI", value_name = "BOOL", default_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), num_args = 0..=1, default_missing_value = "true")]
    #[arg(action = ArgAction::Set)]
    pub ui: bool,

    /// Origins whose pages may ask this server from a browser (CORS), separated by commas, such as https://app.example.org; * is every
    /// origin
    #[arg(long, env = "TRIREME_CORS_ORIGIN", value_name = "ORIGIN", value_delimiter = ',')]
    pub cors_origin: Vec<HeaderValue>,

    /// The path under which a proxy offers this server, such as /embeddings. Requests are taken with it and without it. The console,
    /// the places that answers name (Location) and /openapi.json are under it
    #[arg(long, env = "TRIREME_ROOT_PATH", value_name = "PATH", default_value = "", value_parser = paths::parse)]
    pub root_path: String,

    /// The dialect that answers where the path and the fields of a request leave several
    #[arg(long, env = "TRIREME_DIALECT", value_name = "DIALECT", default_value = "openai")]
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(trireme_dialects::names()))]
    pub dialect: String,

    /// Write a line on standard output for each request, over HTTP and gRPC: method, route, model, status, bytes, seconds, the key's owner, the client's address and
    /// the X-Request-Id; never a text
    #[arg(long, env = "TRIREME_ACCESS_LOG", value_name = "FORMAT", value_enum)]
    pub access_log: Option<LineFormat>,

    /// Regular expression of the request headers that models get as parameters; upper and lower case are the same to it
    #[arg(long, env = "TRIREME_HTTP_HEADER_FORWARD_PATTERN", value_name = "REGEX")]
    pub http_header_forward_pattern: Option<String>,

    /// Certificate chain (PEM) to speak HTTPS with, on the same port
    #[arg(long, env = "TRIREME_HTTPS_CERT", value_name = "FILE", requires = "https_key")]
    pub https_cert: Option<PathBuf>,

    /// Private key (PEM) of the certificate
    #[arg(long, env = "TRIREME_HTTPS_KEY", value_name = "FILE", requires = "https_cert")]
    pub https_key: Option<PathBuf>,

    /// Certificates (PEM) that vouch for clients' certificates, which clients have to show over HTTPS then
    #[arg(long, env = "TRIREME_HTTPS_ROOT_CERT", value_name = "FILE", requires = "https_cert")]
    pub https_root_cert: Option<PathBuf>,
}

/// How the HTTP listener is set up.
#[derive(Clone)]
pub struct HttpOptions {
    /// The listener's address; port 0 takes a free port.
    pub address: SocketAddr,
    /// Largest request body, in bytes, with and without its coding.
    pub max_input_size: usize,
    /// Longest silence of a client that has a request to send.
    pub idle_timeout: Duration,
    /// Whether health checks have bodies.
    pub oip_health_bodies: bool,
    /// Whether a full queue is answered 429, with a hint when to try again.
    pub full_queue_is_429: bool,
    /// The meaning of token ids in place of texts in OpenAI's dialect.
    pub token_input: TokenInput,
    /// The answer to an empty text in OpenAI's dialect.
    pub empty_text: EmptyText,
    /// Whether the console is shown.
    pub ui: bool,
    /// The origins whose pages may ask.
    pub cors_origins: Vec<HeaderValue>,
    /// The path under which a proxy offers this server; empty for the root.
    pub root_path: String,
    /// The dialect that answers where several could.
    pub dialect: String,
    /// Which headers models get as parameters.
    pub header_forward: Option<Regex>,
    /// Speaks TLS, if it is given.
    pub tls: Option<Tls>,
}

// === impl HttpArgs ===

impl HttpArgs {
    /// Longest silence of a client that has a request to send, or an answer to take.
    pub fn idle_timeout(&self) -> Duration {
        Duration::from_secs(self.http_idle_timeout_secs)
    }

    /// The listener these flags describe. Errors name the flag.
    pub fn options(&self) -> anyhow::Result<HttpOptions> {
        let header_forward =
            forward::pattern("--http-header-forward-pattern", self.http_header_forward_pattern.as_deref())?;
        let tls = match (&self.https_cert, &self.https_key) {
            (Some(certificate), Some(key)) => {
                let pem = |flag, path: &PathBuf| Pem { flag, path: path.clone() };
                let roots = self.https_root_cert.as_ref().map(|path| pem("--https-root-cert", path));
                let (certificate, key) = (pem("--https-cert", certificate), pem("--https-key", key));
                Some(Tls::new(TlsFiles { certificate, key, roots }, &[b"h2", b"http/1.1"])?)
            }
            _ => None,
        };
        Ok(HttpOptions {
            address: SocketAddr::new(self.http_address, self.http_port),
            max_input_size: self.http_max_input_size,
            idle_timeout: self.idle_timeout(),
            oip_health_bodies: self.oip_health_bodies,
            full_queue_is_429: self.full_queue_status == "429",
            token_input: self.openai_token_input,
            empty_text: self.openai_empty_text,
            ui: self.ui,
            cors_origins: self.cors_origin.clone(),
            root_path: self.root_path.clone(),
            dialect: self.dialect.clone(),
            header_forward,
            tls,
        })
    }
}
