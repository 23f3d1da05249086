//! The access log: with `--access-log` a line on standard output for each request, over HTTP and gRPC. A line never has a text, nor a path or
//! a query as they came: the route stands for them. Answers are counted by their route and status, with or without the log. The id of a
//! request, `X-Request-Id`, is taken or made here, and sent back.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use chrono::{SecondsFormat, Utc};
use clap::ValueEnum;
use http_body::Frame;
use http_body_util::BodyExt;
use serde_json::json;
use trireme_inference::cut;

use super::body::announced;
use super::log_writer::LogWriter;
use crate::access::Access;
use crate::answer_headers::{TOKENS, TRUNCATED};
use crate::connections::Peer;
use crate::{Port, REQUEST_ID, RequestContext};

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LineFormat {
    /// A JSON object
    Json,
    /// Words, with names before those that may be missing
    Text,
}

/// Where lines are written, and in which form. Clones write to the same place.
#[derive(Clone)]
pub struct AccessLog {
    /// The form of a line.
    pub format: LineFormat,
    /// Takes the lines.
    pub writer: LogWriter,
}

/// Counts an answer, by its route (empty: none), method and status.
pub type Count = dyn Fn(&str, &str, u16) + Send + Sync;

/// The parts by which requests are logged and counted.
pub struct Observer {
    /// The form of a line, and who writes it; `None`: no lines.
    pub log: Option<AccessLog>,
    /// Knows the owner of a key.
    pub access: Arc<Access>,
    /// The kind of port. The status of a call over gRPC comes behind its answer.
    pub port: Port,
    /// Counts the answers.
    pub count: Box<Count>,
}

/// A line, which is written when the answer is sent or left.
struct Line {
    format: LineFormat,
    writer: LogWriter,
    started: Instant,
    method: Method,
    context: Arc<RequestContext>,
    owner: Option<Arc<str>>,
    client: Option<IpAddr>,
    status: u16,
    /// Bytes of the request's body as they were announced; `None`: those that have come count.
    announced: Option<u64>,
    bytes_out: u64,
    /// The status of a call of gRPC, once it is known.
    grpc_status: Option<u16>,
    /// Tokens of its texts, and texts that were cut, where the answer says so.
    tokens: Option<u64>,
    truncated: Option<u64>,
    /// The ids under which workers log what ran for it.
    messages: Vec<String>,
}

/// The layer of the access log, and of the id that it is the first to know.
pub(crate) async fn observe(State(observer): State<Arc<Observer>>, mut request: Request, next: Next) -> Response {
    let context = RequestContext::begin(observer.port, request.headers());
    request.headers_mut().insert(REQUEST_ID, context.id().clone());
    request.extensions_mut().insert(context.clone());
    let method = request.method().clone();
    let line = observer.log.as_ref().map(|AccessLog { format, writer }| {
        let headers = request.headers();
        Line {
            format: *format,
            writer: writer.clone(),
            started: Instant::now(),
            method: method.clone(),
            context: context.clone(),
            owner: observer.access.owner(|name| headers.get(name).map(HeaderValue::as_bytes)),
            client: request.extensions().get().map(|&Peer(address)| address),
            status: 0,
            announced: announced(headers),
            bytes_out: 0,
            grpc_status: None,
            tokens: None,
            truncated: None,
            messages: Vec::new(),
        }
    });
    let mut response = next.run(request).await;
    response.headers_mut().insert(REQUEST_ID, context.id().clone());
    (observer.count)(context.route().map_or("", |route| &**route), counted(&method), response.status().as_u16());
    let Some(mut line) = line else { return response };
    line.status = response.status().as_u16();
    let told = |name: &str| response.headers().get(name)?.to_str().ok()?.parse().ok();
    line.messages = context.messages();
    (line.tokens, line.truncated) = (told(TOKENS), told(TRUNCATED));
    let (mut parts, body) = response.into_parts();
    let is_grpc = observer.port == Port::Grpc;
    if is_grpc {
        line.grpc_status = grpc_status(&parts.headers);
    }
    // The body that is wrapped below has no known length, so the header is set before. An answer to HEAD has no body and gets no header.
    let has_length = !is_grpc && has_body(&method, parts.status);
    if let Some(length) = body.size_hint().exact().filter(|_| has_length) {
        parts.headers.entry(CONTENT_LENGTH).or_insert(length.into());
    }
    let body = body.map_frame(move |frame| {
        // The whole line moves into the closure: it is written when the body is dropped.
        line.sent(&frame);
        frame
    });
    Response::from_parts(parts, Body::new(body))
}

/// The status of a call, which is in the head of an answer that has no body, else behind the body.
fn grpc_status(headers: &HeaderMap) -> Option<u16> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

/// Whether an answer has a body, of which the header says the length.
fn has_body(method: &Method, status: StatusCode) -> bool {
    let never = status.is_informational() || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&status);
    *method != Method::HEAD && !never
}

/// The method as it is counted: clients may send any word.
fn counted(method: &Method) -> &str {
    const KNOWN: [Method; 7] =
        [Method::GET, Method::POST, Method::DELETE, Method::HEAD, Method::OPTIONS, Method::PUT, Method::PATCH];
    if KNOWN.contains(method) { method.as_str() } else { "_OTHER" }
}

// === impl Line ===

impl Line {
    fn sent(&mut self, frame: &Frame<Bytes>) {
        self.bytes_out += frame.data_ref().map_or(0, |data| data.len() as u64);
        if let Some(trailers) = frame.trailers_ref() {
            self.grpc_status = grpc_status(trailers);
        }
    }

    fn bytes_in(&self) -> u64 {
        self.announced.unwrap_or_else(|| self.context.received())
    }

    fn text(&self) -> String {
        let time = Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true);
        let route = self.context.route().map_or("-", |route| &**route);
        let model = self.context.model().map(cut);
        let owner = self.owner.as_deref().filter(|owner| !owner.is_empty());
        let seconds = (self.started.elapsed().as_secs_f64() * 1e6).round() / 1e6;
        let id = self.context.id().to_str().unwrap_or("-");
        match self.format {
            LineFormat::Json => json!({
                "time": time, "method": self.method.as_str(), "route": route, "model": model, "status": self.status,
                "bytes_in": self.bytes_in(), "bytes_out": self.bytes_out, "seconds": seconds, "owner": owner,
                "client": self.client, "request_id": id, "tokens": self.tokens, "truncated_texts": self.truncated,
                "messages": self.messages, "grpc_status": self.grpc_status,
            })
            .to_string(),
            LineFormat::Text => {
                let named =
                    |name: &str, value: Option<&str>| value.map_or(String::new(), |it| format!(" {name}={it:?}"));
                let (model, owner) = (named("model", model.as_deref()), named("owner", owner));
                let number = |name: &str, value: Option<u64>| value.map_or(String::new(), |it| format!(" {name}={it}"));
                let messages = match self.messages.as_slice() {
                    [] => String::new(),
                    messages => format!(" messages={}", messages.join(",")),
                };
                let counts = number("grpc_status", self.grpc_status.map(u64::from))
                    + &number("tokens", self.tokens)
                    + &number("truncated_texts", self.truncated);
                let client = self.client.map_or(String::new(), |client| format!(" client={client}"));
                format!(
                    "{time} {} {route} {} {seconds}s in={} out={}{client} id={id}{model}{owner}{counts}{messages}",
                    self.method,
                    self.status,
                    self.bytes_in(),
                    self.bytes_out
                )
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // A client that left before there was an answer.
        if self.status == 0 {
            self.status = 499;
        }
        self.writer.line(self.text() + "\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_have_no_body_get_no_length() {
        assert!(has_body(&Method::GET, StatusCode::OK) && has_body(&Method::POST, StatusCode::NOT_FOUND));
        assert!(!has_body(&Method::HEAD, StatusCode::OK) && !has_body(&Method::DELETE, StatusCode::NO_CONTENT));
        assert_eq!((counted(&Method::HEAD), counted(&Method::from_bytes(b"BREW").unwrap())), ("HEAD", "_OTHER"));
    }

    #[test]
    fn lines_have_names_and_numbers() {
        let (writer, _thread) = LogWriter::to(std::io::sink()).unwrap();
        let context =
            RequestContext::begin(Port::Http, &HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_static("id-1"))]));
        context.is_for("/v1/embeddings".into(), None);
        context.asks("a\nb".to_owned());
        let line = |format| Line {
            format,
            writer: writer.clone(),
            started: Instant::now(),
            method: Method::POST,
            context: context.clone(),
            owner: Some("alice".into()),
            client: Some("2001:db8::1".parse().unwrap()),
            status: 200,
            announced: Some(5),
            bytes_out: 7,
            grpc_status: Some(14),
            tokens: Some(12),
            truncated: None,
            messages: vec!["g-1".to_owned(), "g-2".to_owned()],
        };
        let text = line(LineFormat::Text).text();
        assert!(text.contains(" POST /v1/embeddings 200 "), "{text}");
        assert!(
            text.ends_with(
                r#"in=5 out=7 client=2001:db8::1 id=id-1 model="a\nb" owner="alice" grpc_status=14 tokens=12 messages=g-1,g-2"#
            ),
            "{text}"
        );
        let read: serde_json::Value = serde_json::from_str(&line(LineFormat::Json).text()).unwrap();
        assert_eq!((&read["model"], &read["status"], &read["bytes_out"]), (&json!("a\nb"), &json!(200), &json!(7)));
        assert_eq!((&read["owner"], &read["request_id"]), (&json!("alice"), &json!("id-1")));
        assert_eq!((&read["messages"], &read["grpc_status"]), (&json!(["g-1", "g-2"]), &json!(14)));
        assert_eq!((&read["tokens"], &read["truncated_texts"]), (&json!(12), &json!(null)));
        assert_eq!(read["client"], json!("2001:db8::1"));
    }
}
