//! Requests over HTTP: for the hub's files, and for those of web servers.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use reqwest::header::{AUTHORIZATION, CONTENT_RANGE, RANGE};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response, StatusCode};
use trireme_inference::Backoff;

use crate::FetchError;
use crate::remote::Body;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a server may send nothing.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// How often a short request is sent.
const ATTEMPTS: u32 = 3;

/// The pauses before it is sent again.
const SEND_AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(1));

/// The expected answer, in errors about a server that sends files as a whole only.
const WHOLE_ONLY: &str = "the part of the file that was asked for (download the file first)";

/// A client with what all requests to one server have.
pub(crate) struct Http {
    client: Client,
    /// Does not follow redirects: the hub says a file's digest in the redirect itself.
    direct: Client,
    token: Option<String>,
    /// Advice for the user, added to errors with status 401, 403 or 404.
    advice: Option<String>,
}

// === impl Http ===

impl Http {
    pub(crate) fn new(token: Option<String>, advice: Option<String>) -> Result<Http, FetchError> {
        install_ring();
        let client = |redirects: Policy| {
            let builder =
                Client::builder().user_agent(concat!("trireme/", env!("CARGO_PKG_VERSION"))).redirect(redirects);
            let client = builder.connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT).build();
            client.map_err(|error| no_answer("the HTTP client", &error))
        };
        Ok(Http { client: client(Policy::default())?, direct: client(Policy::none())?, token, advice })
    }

    /// The answer to GET, which is a success.
    pub(crate) async fn get(&self, url: &str) -> Result<Response, FetchError> {
        self.ask(&self.client, Method::GET, url).await
    }

    /// The answer to HEAD: a success, or without `follow` a redirect.
    pub(crate) async fn head(&self, url: &str, follow: bool) -> Result<Response, FetchError> {
        let client = if follow { &self.client } else { &self.direct };
        self.ask(client, Method::HEAD, url).await
    }

    /// The answer to a short request.
    async fn ask(&self, client: &Client, method: Method, url: &str) -> Result<Response, FetchError> {
        let ask = |method| async move {
            let response = self.send(client, method, url, 0).await?;
            self.accept(url, response)
        };
        repeat(|| ask(method.clone())).await
    }

    /// A file's content from byte `from`, or from its beginning where the server does not send parts.
    pub(crate) async fn read(&self, url: &str, from: u64) -> Result<Body, FetchError> {
        let mut response = self.send(&self.client, Method::GET, url, from).await?;
        // The local part is as long as the file or longer: the download starts again.
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            response = self.send(&self.client, Method::GET, url, 0).await?;
        }
        let response = self.accept(url, response)?;
        let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
        let from = match response.status() {
            StatusCode::PARTIAL_CONTENT => range.and_then(first_byte).ok_or_else(|| FetchError::Answer {
                url: shown(url),
                expected: "a Content-Range",
                found: range.unwrap_or("none").to_owned(),
            })?,
            _ => 0,
        };
        Ok(Body { from, bytes: response.bytes_stream().map_err(|error| innermost(&error)).boxed() })
    }

    /// Bytes of a file. Errors if the server sends other ones, or all of the file.
    pub(crate) async fn range(&self, url: &str, range: Range<u64>) -> Result<Bytes, FetchError> {
        repeat(|| self.try_range(url, &range)).await
    }

    /// Bytes of a file; `None` if it is not there. Asks for the first byte, because signed URLs allow no HEAD.
    pub(crate) async fn length(&self, url: &str) -> Result<Option<u64>, FetchError> {
        let response = self.client.get(url).header(RANGE, "bytes=0-0").send().await;
        let response = response.map_err(|error| no_answer(url, &error))?;
        let found = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or("none");
        let length = found.rsplit('/').next().and_then(|length| length.parse().ok());
        match (response.status(), length) {
            (StatusCode::NOT_FOUND, _) => Ok(None),
            // An empty file has no first byte.
            (StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE, Some(length)) => Ok(Some(length)),
            (status, _) => {
                let found = format!("status {} and Content-Range {found}", status.as_u16());
                self.accept(url, response)?;
                Err(FetchError::Answer { url: shown(url), expected: WHOLE_ONLY, found })
            }
        }
    }

    async fn try_range(&self, url: &str, range: &Range<u64>) -> Result<Bytes, FetchError> {
        let asked = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let response =
            self.client.get(url).header(RANGE, asked).send().await.map_err(|error| no_answer(url, &error))?;
        let response = self.accept(url, response)?;
        let found = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
        if response.status() != StatusCode::PARTIAL_CONTENT || found.and_then(first_byte) != Some(range.start) {
            let found = format!("status {} and Content-Range {}", response.status().as_u16(), found.unwrap_or("none"));
            return Err(FetchError::Answer { url: shown(url), expected: WHOLE_ONLY, found });
        }
        let bytes = response.bytes().await.map_err(|error| no_answer(url, &error))?;
        match range.end - range.start {
            expected if bytes.len() as u64 == expected => Ok(bytes),
            expected => Err(FetchError::Size { url: shown(url), expected, found: bytes.len() as u64 }),
        }
    }

    async fn send(&self, client: &Client, method: Method, url: &str, from: u64) -> Result<Response, FetchError> {
        let mut request = client.request(method, url);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        request.send().await.map_err(|error| no_answer(url, &error))
    }

    fn accept(&self, url: &str, response: Response) -> Result<Response, FetchError> {
        let status = response.status();
        if status.is_success() || status.is_redirection() {
            return Ok(response);
        }
        let advice = matches!(status.as_u16(), 401 | 403 | 404).then(|| self.advice.clone()).flatten();
        Err(FetchError::Refused { url: shown(url), status: status.as_u16(), advice })
    }
}

/// TLS by the library that the rest of the process uses. A provider that was installed before stays.
pub(crate) fn install_ring() {
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
}

/// Repeats a short request while that may help.
async fn repeat<T, F: Future<Output = Result<T, FetchError>>>(request: impl Fn() -> F) -> Result<T, FetchError> {
    let mut failures = 0;
    loop {
        match request().await {
            Err(fault) if fault.is_transient() && failures + 1 < ATTEMPTS => {
                failures += 1;
                let pause = SEND_AGAIN.after(failures);
                tracing::warn!("{fault}; asking again in {} ms", pause.as_millis());
                tokio::time::sleep(pause).await;
            }
            outcome => return outcome,
        }
    }
}

/// A URL as errors and logs show it: without its query, which may hold a signature.
pub(crate) fn shown(url: &str) -> String {
    url.split(['?', '#']).next().unwrap_or_default().to_owned()
}

fn no_answer(url: &str, error: &reqwest::Error) -> FetchError {
    FetchError::Unreachable { url: shown(url), why: innermost(error) }
}

/// The cause at the bottom, which names the fault; those above it repeat the URL.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Of `bytes 100-199/200`.
fn first_byte(range: &str) -> Option<u64> {
    range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}
