//! Request bodies: read whole within a limit, never waited for without end, and never left unread.
//!
//! A connection that is closed while the client still sends loses the answer on its way. So when a handler refuses a request
//! early, the rest of the body is read and thrown away beside the answer: up to [`UNREAD`] bytes and [`UNREAD_TIME`]. Then the
//! connection closes.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, EXPECT};
use axum::http::{HeaderMap, Request};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use trireme_inference::{Buffer, Cause, InferError};
use trireme_tasks::TaskSet;

use crate::body::{Overdue, ReadTimeout, size};
use crate::budget::NoRoom;

/// Most bytes of a refused body that are read: four times the default limit of a JSON body, so that a client whose request is too
/// large gets the error.
const UNREAD: usize = 256 << 20;

/// How long a refused body is read at most.
const UNREAD_TIME: Duration = Duration::from_secs(10);

/// A request's body on its way in.
struct RequestBody {
    incoming: Option<Body>,
    pace: ReadTimeout,
    idle_timeout: Duration,
    /// The client waits for `100 Continue`, which was not sent.
    withheld: bool,
    tasks: TaskSet,
}

/// The reason why a body did not arrive.
#[derive(Debug, thiserror::Error)]
enum BodyError {
    #[error(transparent)]
    Overdue(#[from] Overdue),
    #[error(transparent)]
    Broken(#[from] axum::Error),
}

/// Wraps a request's body: its client may pause for `idle_timeout` at a time, and a task of `tasks` reads the body to its end if
/// the handler does not.
pub fn guard(request: Request<Body>, idle_timeout: Duration, tasks: &TaskSet) -> Request<Body> {
    let (parts, incoming) = request.into_parts();
    if incoming.is_end_stream() {
        return Request::from_parts(parts, Body::empty());
    }
    let body = RequestBody {
        incoming: Some(incoming),
        pace: ReadTimeout::new(idle_timeout),
        idle_timeout,
        withheld: parts.headers.contains_key(EXPECT),
        tasks: tasks.clone(),
    };
    Request::from_parts(parts, Body::new(body))
}

/// The largest size of a body.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Most bytes.
    pub bytes: usize,
    /// The name of the body in errors.
    pub what: &'static str,
    /// The flag that allows more.
    pub flag: &'static str,
}

/// Reads the whole body. If it is too large, reads only as much as shows that, and returns an error.
pub async fn read(headers: &HeaderMap, body: Body, limit: Limit) -> Result<Bytes, InferError> {
    if let Some(announced) = announced(headers).filter(|&length| length > limit.bytes as u64) {
        return Err(limit.exceeded(&format!("{announced}")));
    }
    let no_memory = |error| InferError::unavailable(format!("no memory for the request's body: {error}"));
    let (mut body, mut size, mut buffer) = (body, 0, Buffer::expecting(announced(headers)));
    while let Some(frame) = body.frame().await {
        // Trailers say nothing here.
        let Ok(data) = frame.map_err(|error| unreadable(&error))?.into_data() else { continue };
        size += data.len();
        if size > limit.bytes {
            return Err(limit.exceeded(&format!("more than {}", limit.bytes)));
        }
        buffer.put(&data).map_err(no_memory)?;
    }
    buffer.freeze().map_err(no_memory)
}

/// The reason why a body could not be read.
fn unreadable(error: &axum::Error) -> InferError {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    while let Some(cause) = source {
        if let Some(&refusal) = cause.downcast_ref::<NoRoom>() {
            return refusal.into();
        }
        source = cause.source();
    }
    InferError::invalid_arg(format!("request body could not be read: {error}"))
}

/// The announced length of a body.
pub fn announced(headers: &HeaderMap) -> Option<u64> {
    text(headers, CONTENT_LENGTH.as_str())?.parse().ok()
}

/// A header's value, if it exists and is text.
pub fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

// === impl Limit ===

impl Limit {
    /// The limit of `--http-max-input-size` for a JSON body.
    pub fn json(bytes: usize) -> Limit {
        Limit { bytes, what: "request JSON", flag: "--http-max-input-size" }
    }

    /// The same limit for a body that is not JSON, or not all of it.
    pub fn binary(bytes: usize) -> Limit {
        Limit { what: "request body", ..Limit::json(bytes) }
    }

    /// Lowers the limit to the budget of all requests.
    pub fn within(self, budget: u64) -> Limit {
        match usize::try_from(budget) {
            Ok(bytes) if bytes < self.bytes => Limit { bytes, flag: "--max-bytes-in-flight", ..self },
            _ => self,
        }
    }

    fn exceeded(&self, size: &str) -> InferError {
        let Limit { bytes, what, flag } = self;
        InferError::invalid_arg(format!(
            "{what} size of {size} bytes exceeds the maximum allowed input size of {bytes} bytes. Use {flag} to increase the limit."
        ))
        .because(Cause::TooLarge)
    }
}

// === impl RequestBody ===

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.withheld = false;
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(incoming).poll_frame(cx) {
            self.pace.arrived(size(&frame));
            if !matches!(frame, Some(Ok(_))) {
                self.incoming = None;
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)));
        }
        let overdue = ready!(self.pace.poll_overdue(cx));
        // Dropping the body makes hyper close the connection after the answer.
        self.incoming = None;
        Poll::Ready(Some(Err(overdue.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(|incoming| incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map(|incoming| incoming.size_hint()).unwrap_or_default()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some(mut incoming) = self.incoming.take().filter(|incoming| !incoming.is_end_stream()) else { return };
        if self.withheld {
            return;
        }
        let drained = async move {
            let mut left = UNREAD;
            while left > 0
                && let Some(Ok(frame)) = incoming.frame().await
            {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            }
        };
        let limit = self.idle_timeout.min(UNREAD_TIME);
        self.tasks
            .spawn_until_stop("drain request body", async move { _ = tokio::time::timeout(limit, drained).await });
    }
}
