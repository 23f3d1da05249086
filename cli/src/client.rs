//! Asks a server of the v2 protocol over HTTP, for people's tools: JSON in, JSON out, one request at a time.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::Value;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::style::harmless;

/// Which server, and how to ask it.
#[derive(Args)]
pub struct ServerArgs {
    /// Server to ask; https:// in front for TLS
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    server: String,

    /// A header of the request, such as an API key; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

    /// File of certificates (PEM) that vouch for the server, in place of the public authorities
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Seconds to wait for an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout_secs: u64,
}

/// A server.
pub struct Client {
    agent: ureq::Agent,
    server: String,
    headers: Vec<(String, String)>,
}

/// An answer, whatever its status.
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// `Retry-After`, if it is a number of seconds.
    pub retry_after: Option<Duration>,
    /// `trireme-tokens` and `trireme-truncated-texts`: tokens of its texts, and texts that were cut. 0 where they are not counted.
    pub tokens: u64,
    pub truncated: u64,
    /// `trireme-space`, where the answer tells it.
    pub space: Option<String>,
    /// The body; null if it is no JSON.
    pub body: Value,
}

/// Headers of an answer; empty where the answer lacks them.
#[derive(Default)]
pub struct Told {
    /// `Server-Timing`
    pub timing: String,
    /// `trireme-space`
    pub space: String,
}

/// Characters of a server's text that are shown in an error.
const MOST_SHOWN: usize = 1000;

// === impl Answer ===

impl Answer {
    /// The status and the reason of an answer that is an error.
    pub fn fault(&self) -> String {
        format!("status {}: {}", self.status, shown(reason(&self.body).unwrap_or("no reason")))
    }
}

// === impl ServerArgs ===

impl ServerArgs {
    /// The server at `url`.
    pub fn at(url: impl Into<String>, headers: Vec<String>, timeout_secs: u64) -> ServerArgs {
        ServerArgs { server: url.into(), headers, ca: None, timeout_secs }
    }

    /// The server's URL, with its scheme and without a slash at the end.
    pub fn url(&self) -> String {
        let (scheme, place) = self.server.split_once("://").unwrap_or(("http", &self.server));
        format!("{scheme}://{}", place.trim_end_matches('/'))
    }

    /// Names and values of the headers that requests carry. Errors name the flag.
    pub fn headers(&self) -> anyhow::Result<Vec<(String, String)>> {
        let header = |text: &String| {
            let parts =
                text.split_once(':').filter(|(name, value)| !name.trim().is_empty() && is_one_line(name, value));
            let (name, value) = parts.with_context(|| format!("--header {text}: expected NAME: VALUE"))?;
            anyhow::Ok((name.trim().to_owned(), value.trim().to_owned()))
        };
        self.headers.iter().map(header).collect()
    }

    /// The certificates of `--ca`. Errors name the flag and the file.
    pub fn authorities(&self) -> anyhow::Result<Option<Vec<CertificateDer<'static>>>> {
        let Some(path) = &self.ca else { return Ok(None) };
        let about = || format!("--ca {}", path.display());
        let certificates = CertificateDer::pem_file_iter(path).with_context(about)?;
        let certificates = certificates.collect::<Result<Vec<_>, _>>().with_context(about)?;
        ensure!(!certificates.is_empty(), "{}: it holds no certificate, expected PEM", about());
        Ok(Some(certificates))
    }

    /// The longest wait for an answer.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_secs)
    }
}

// === impl Client ===

impl Client {
    /// Connects with the first request.
    pub fn new(args: &ServerArgs) -> anyhow::Result<Client> {
        let mut tls = TlsConfig::builder();
        if let Some(authorities) = args.authorities()? {
            let certificates: Vec<_> =
                authorities.iter().map(|authority| Certificate::from_der(authority).to_owned()).collect();
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates));
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(args.timeout()))
            .http_status_as_error(false)
            .tls_config(tls.build())
            .build();
        Ok(Client { agent: config.into(), server: args.url(), headers: args.headers()? })
    }

    /// The error of a request without an answer: it names the server and the remedy.
    fn unanswered(&self, error: ureq::Error) -> anyhow::Error {
        let server = &self.server;
        let cure = match &error {
            ureq::Error::Timeout(_) => {
                format!(
                    "no answer from {server} in time: is it a server of the v2 protocol? --timeout-secs makes it longer"
                )
            }
            _ => unreached(server, &error.to_string()),
        };
        anyhow::Error::from(error).context(cure)
    }

    /// The JSON object at `path`.
    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        let mut request = self.agent.get(format!("{}{path}", self.server));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let answer = request.call().map_err(|error| self.unanswered(error))?;
        Ok(read(answer)?.0)
    }

    /// The answer to a request with these headers beside the client's own. An error means that there was no answer.
    pub fn try_post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> anyhow::Result<Answer> {
        let mut request = self.agent.post(format!("{}{path}", self.server)).content_type("application/json");
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain(headers.iter().copied()) {
            request = request.header(name, value);
        }
        let mut answer = request.send(body.to_string()).map_err(|error| self.unanswered(error))?;
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let retry_after = header("retry-after");
        let count = |name: &str| header(name).unwrap_or_default();
        let (tokens, truncated) = (count("trireme-tokens"), count("trireme-truncated-texts"));
        let space = answer.headers().get("trireme-space").and_then(|space| Some(space.to_str().ok()?.to_owned()));
        let text = answer.body_mut().with_config().limit(u64::MAX).read_to_string().context("reading the answer")?;
        Ok(Answer {
            status: answer.status().as_u16(),
            retry_after: retry_after.map(Duration::from_secs),
            tokens,
            truncated,
            space,
            body: serde_json::from_str(&text).unwrap_or_default(),
        })
    }

    /// The answer and what its headers tell.
    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<(Value, Told)> {
        let mut request = self.agent.post(format!("{}{path}", self.server)).content_type("application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        read(request.send(body.to_string()).map_err(|error| self.unanswered(error))?)
    }
}

/// Whether a header could not bring others along.
fn is_one_line(name: &str, value: &str) -> bool {
    !name.chars().chain(value.chars()).any(char::is_control)
}

/// Why no server was reached, and what to write.
fn unreached(server: &str, error: &str) -> String {
    let cures = [
        (
            "unknown scheme",
            "--server is the HTTP port of a gateway, such as http://127.0.0.1:8000; `trireme tap --nats-url` asks a broker",
        ),
        ("InvalidContentType", "the server there speaks no TLS: write http:// in place of https://"),
        ("UnknownIssuer", "name the authority that has issued the server's certificate by --ca"),
    ];
    match cures.iter().find(|(words, _)| error.contains(words)) {
        Some((_, cure)) => format!("{server} was not reached: {cure}"),
        None => format!("no server answers at {server}: `trireme serve` starts one, and --server names another"),
    }
}

fn read(mut answer: ureq::http::Response<ureq::Body>) -> anyhow::Result<(Value, Told)> {
    let status = answer.status();
    let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
    let told = Told { timing: header("server-timing"), space: header("trireme-space") };
    let text = answer.body_mut().with_config().limit(u64::MAX).read_to_string().context("reading the answer")?;
    let json: Value = serde_json::from_str(&text).unwrap_or_default();
    if status.is_success() {
        // Requests to load and unload models are answered without a body.
        ensure!(json.is_object() || text.is_empty(), "the server's answer is no JSON object: {}", shown(&text));
        return Ok((json, told));
    }
    let is_other = json.is_null() && status.is_client_error();
    ensure!(
        !is_other,
        "another program answers there ({}), expected the HTTP port of a gateway: --server names it",
        status.as_u16()
    );
    bail!("the server answered {}: {}", status.as_u16(), shown(reason(&json).unwrap_or(&text)))
}

/// The reason in the body of an error, whose form depends on the route.
fn reason(body: &Value) -> Option<&str> {
    let error = &body["error"];
    error["message"].as_str().or(error.as_str())
}

/// A text of a server, for people: harmless to a terminal, and cut where it is long, as a page of HTML is.
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{} …", harmless(&text[..end])),
        None => harmless(text),
    }
}
