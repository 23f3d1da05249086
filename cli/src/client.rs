//! Asks a server of the v2 protocol over HTTP, for people's tools: JSON in, JSON out, one request at a time.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::Value;

/// Which server, and how to ask it.
#[derive(Args)]
pub struct ServerArgs {
    /// Server to ask; https:// in front for TLS
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    server: String,

    /// A header of the request, such as an API key; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,

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
    /// The body; null if it is no JSON.
    pub body: Value,
}

// === impl ServerArgs ===

impl ServerArgs {
    /// The server at `url`.
    pub fn at(url: impl Into<String>, headers: Vec<String>, timeout_secs: u64) -> ServerArgs {
        ServerArgs { server: url.into(), headers, timeout_secs }
    }
}

// === impl Client ===

impl Client {
    /// Connects with the first request.
    pub fn new(args: &ServerArgs) -> anyhow::Result<Client> {
        let header = |text: &String| {
            let (name, value) =
                text.split_once(':').with_context(|| format!("--header {text}: expected NAME: VALUE"))?;
            anyhow::Ok((name.trim().to_owned(), value.trim().to_owned()))
        };
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(args.timeout_secs)))
            .http_status_as_error(false)
            .build();
        let server = match args.server.contains("://") {
            true => args.server.trim_end_matches('/').to_owned(),
            false => format!("http://{}", args.server),
        };
        let headers = args.headers.iter().map(header).collect::<Result<_, _>>()?;
        Ok(Client { agent: config.into(), server, headers })
    }

    /// The JSON object at `path`.
    pub fn get(&self, path: &str) -> anyhow::Result<Value> {
        let mut request = self.agent.get(format!("{}{path}", self.server));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let answer = request.call().with_context(|| format!("asking {}", self.server))?;
        Ok(read(answer)?.0)
    }

    /// The answer to a request with these headers beside the client's own. An error means that there was no answer.
    pub fn try_post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> anyhow::Result<Answer> {
        let mut request = self.agent.post(format!("{}{path}", self.server)).content_type("application/json");
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain(headers.iter().copied()) {
            request = request.header(name, value);
        }
        let mut answer = request.send(body.to_string()).with_context(|| format!("asking {}", self.server))?;
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        let retry_after = header("retry-after");
        let count = |name: &str| header(name).unwrap_or_default();
        let (tokens, truncated) = (count("trireme-tokens"), count("trireme-truncated-texts"));
        let text = answer.body_mut().with_config().limit(u64::MAX).read_to_string().context("reading the answer")?;
        Ok(Answer {
            status: answer.status().as_u16(),
            retry_after: retry_after.map(Duration::from_secs),
            tokens,
            truncated,
            body: serde_json::from_str(&text).unwrap_or_default(),
        })
    }

    /// The answer and its Server-Timing.
    pub fn post(&self, path: &str, body: &Value) -> anyhow::Result<(Value, String)> {
        let mut request = self.agent.post(format!("{}{path}", self.server)).content_type("application/json");
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        read(request.send(body.to_string()).with_context(|| format!("asking {}", self.server))?)
    }
}

fn read(mut answer: ureq::http::Response<ureq::Body>) -> anyhow::Result<(Value, String)> {
    let status = answer.status();
    let timing = answer.headers().get("server-timing").and_then(|value| value.to_str().ok()).unwrap_or("").to_owned();
    let text = answer.body_mut().with_config().limit(u64::MAX).read_to_string().context("reading the answer")?;
    let json: Value = serde_json::from_str(&text).unwrap_or_default();
    if status.is_success() {
        // Requests to load and unload models are answered without a body.
        ensure!(json.is_object() || text.is_empty(), "the server's answer is no JSON object: {text}");
        return Ok((json, timing));
    }
    bail!("the server answered {}: {}", status.as_u16(), json["error"].as_str().unwrap_or(&text))
}
