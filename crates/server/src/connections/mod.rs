//! The connections of a port, for HTTP/1.1 and for gRPC: they are accepted, served by a router, and wound up.
//!
//! Invariants:
//! - A connection ends when its client closes it, has no request on it or reads nothing for too long, at its maximum age, when
//!   `limiter` needs its place, or when the listener stops. Of HTTP/2 the client is sent GOAWAY first, so that it opens another
//!   connection for its next call; calls that it sent before it received GOAWAY are answered. A client that floods a connection of HTTP/2
//!   with other frames than requests loses it.
//! - A connection that existed before the listener stopped gets an answer to its request, first or later. This includes
//!   connections that the kernel has accepted and the listener has not: closing the listener would reset them.
//! - Bytes that are not HTTP/1.1 are answered with 400, and a head that is too large with 431 or 414; then the connection closes.
//!
//! This is not hyper-util's `GracefulShutdown`, which closes a connection between two requests at once when the server stops: the
//! next request may be on its way.

mod frames;
mod limiter;
mod tls;
mod write_timeout;

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::HttpBody;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use trireme_engine::TaskSet;

use frames::FrameLimit;
pub use limiter::{ConnectionArgs, ConnectionLimiter, Limits, Peer, Place, Spare};
pub use tls::{Pem, Tls, TlsFiles, refused_certificate};
use write_timeout::WriteTimeout;

/// Largest head of an HTTP/1.1 request, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Most bytes that a connection of HTTP/1.1 has read, or has to write, beside the budget.
const MAX_BUFFERED_BYTES: usize = 2 * MAX_HEAD_BYTES;

/// Most calls in flight on an HTTP/2 connection; the client holds back one more.
const MAX_CALLS: u32 = 1024;

/// How long a connection that has had requests stays open without one when it has to close.
const LEAVING: Duration = Duration::from_secs(1);

/// How long a connection may take to send a request when the listener stops, before it counts as idle.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

/// How long to wait before accepting again when there is no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The protocol of a port.
#[derive(Clone, Copy, Debug)]
pub enum Protocol {
    /// HTTP/1.1
    Http1,
    /// HTTP/2
    Http2 {
        /// Silence after which a client is pinged.
        keepalive_time: Duration,
        /// Time for the answer to a ping.
        keepalive_timeout: Duration,
        /// Age at which a connection takes no more calls.
        max_age: Option<Duration>,
    },
}

/// The settings of all connections of a port.
pub struct Connections {
    /// The routes.
    pub router: Router,
    /// The protocol.
    pub protocol: Protocol,
    /// How long a connection may be without a request, and a client that has an answer to take may be silent.
    pub idle_timeout: Duration,
    /// Speaks TLS, if it is given.
    pub tls: Option<Tls>,
    /// The connections of the port.
    pub limiter: ConnectionLimiter,
    /// The tasks of connections and calls.
    pub tasks: TaskSet,
}

/// Runs the tasks of the HTTP/2 library in a [`TaskSet`].
#[derive(Clone)]
struct Calls(TaskSet);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        self.0.spawn("grpc call", call);
    }
}

/// Why a connection takes no more requests.
enum Ending {
    /// The connection has had no request for too long, or has to make room.
    Leaves,
    /// The connection is too old, or the server stops: requests are finished.
    Finishes,
}

// === impl Connections ===

impl Connections {
    /// Accepts until `stop` is raised, then finishes the requests in flight, for `exit_timeout` at most. If this future is
    /// dropped, the remaining requests go on until the tasks' runtime ends.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken, exit_timeout: Duration) {
        let own = Arc::new(self);
        loop {
            tokio::select! {
                (stream, _) = until_accepted(|| listener.accept()) => own.take(stream),
                () = stop.cancelled() => break,
            }
        }
        waiting(listener).into_iter().for_each(|stream| own.take(stream));
        if tokio::time::timeout(exit_timeout, own.tasks.join()).await.is_err() {
            tracing::warn!(protocol = ?own.protocol, "connections were still open at the end of the exit timeout");
        }
    }

    fn take(self: &Arc<Connections>, stream: TcpStream) {
        // Answers are small and clients wait for them, so they must not stay in a buffer.
        let _ = stream.set_nodelay(true);
        if let Some(place) = self.limiter.admit(&stream) {
            self.tasks.spawn("connection", self.clone().connection(stream, place));
        }
    }

    async fn connection(self: Arc<Connections>, stream: TcpStream, place: Arc<Place>) {
        let Some(tls) = &self.tls else { return self.speak(stream, place).await };
        let (acceptor, limit) = (tls.acceptor(), place.timeout(self.idle_timeout));
        let shaken = tokio::select! {
            shaken = tokio::time::timeout(limit, acceptor.accept(stream)) => shaken,
            // A connection without a TLS handshake by then has no request.
            () = self.stopped(&place) => return,
            () = place.leave.cancelled() => return,
        };
        match shaken {
            Ok(Ok(stream)) => self.speak(stream, place).await,
            Ok(Err(error)) => match refused_certificate(&error) {
                Some(error) => tracing::info!(error, "a client's certificate was refused"),
                None => tracing::debug!(%error, "TLS handshake failed"),
            },
            Err(_) => tracing::debug!("TLS handshake took too long"),
        }
    }

    async fn speak(
        self: Arc<Connections>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        place: Arc<Place>,
    ) {
        let stream = WriteTimeout::new(stream, self.idle_timeout);
        let (connections, own) = (self.clone(), place.clone());
        let service = service_fn(move |request| connections.clone().answer(request, own.clone()));
        match self.protocol {
            // A client that closes its side counts as gone, and its request is cancelled (no `half_close`).
            Protocol::Http1 => {
                let connection = http1::Builder::new()
                    .header_read_timeout(None)
                    .max_header_size(MAX_HEAD_BYTES)
                    .max_buf_size(MAX_BUFFERED_BYTES)
                    .serve_connection(TokioIo::new(stream), service);
                self.drive(connection, &place).await;
            }
            Protocol::Http2 { keepalive_time, keepalive_timeout, .. } => {
                let connection = http2::Builder::new(Calls(self.tasks.clone()))
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(MAX_CALLS)
                    .keep_alive_interval(keepalive_time)
                    .keep_alive_timeout(keepalive_timeout)
                    .serve_connection(TokioIo::new(FrameLimit::new(stream, place.peer)), service);
                self.drive(connection, &place).await;
            }
        }
    }

    /// Serves a connection until it ends.
    async fn drive(&self, connection: impl GracefulConnection<Error = hyper::Error>, place: &Place) {
        let mut connection = pin!(connection);
        let ending = tokio::select! {
            biased;
            ended = connection.as_mut() => return report(ended),
            ending = self.ending(place) => ending,
        };
        if matches!(ending, Ending::Leaves) && !place.has_begun() {
            return;
        }
        // A request may have come at the same time.
        connection.as_mut().graceful_shutdown();
        let silence = match (ending, self.protocol) {
            (Ending::Leaves, _) => LEAVING,
            (Ending::Finishes, Protocol::Http1) => self.idle_timeout,
            (Ending::Finishes, Protocol::Http2 { .. }) => self.idle_timeout.min(LEAVING * 5),
        };
        tokio::select! {
            ended = connection => report(ended),
            // The client does not react to GOAWAY, or does not complete a request's head.
            () = place.idle_for(silence) => {}
        }
    }

    /// Waits for a reason to take no more requests.
    async fn ending(&self, place: &Place) -> Ending {
        let aged = async {
            match self.protocol {
                Protocol::Http2 { max_age: Some(age), .. } => tokio::time::sleep(age).await,
                _ => pending().await,
            }
        };
        tokio::select! {
            () = self.stopped(place) => Ending::Finishes,
            () = aged => Ending::Finishes,
            () = place.idle_for(place.timeout(self.idle_timeout)) => Ending::Leaves,
            () = place.leave.cancelled() => Ending::Leaves,
        }
    }

    /// Waits until the server stops and the connection may take no more requests. In HTTP/1.1 the next request may be on its way
    /// until an answer has told the client that the connection closes. HTTP/2 has GOAWAY for that; only a connection that has
    /// had no call gets a moment longer for its first one.
    async fn stopped(&self, place: &Place) {
        self.tasks.stopping().cancelled().await;
        if !(place.has_begun() && matches!(self.protocol, Protocol::Http2 { .. })) {
            place.idle_for(FIRST_REQUEST).await;
        }
    }

    async fn answer(
        self: Arc<Connections>,
        mut request: Request<Incoming>,
        place: Arc<Place>,
    ) -> Result<Response<impl HttpBody<Data = Bytes, Error = axum::Error>>, Infallible> {
        let busy = place.begin();
        request.extensions_mut().insert(place.peer);
        if place.is_spare {
            request.extensions_mut().insert(Spare);
        }
        let mut answer = TowerToHyperService::new(self.router.clone()).call(request).await?;
        // The answer announces it, so that the client sends its next request on another connection.
        if matches!(self.protocol, Protocol::Http1) && (self.tasks.stopping().is_cancelled() || place.is_spare) {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // Held only to be dropped with the body.
        let with = move |error| {
            let _ = &busy;
            error
        };
        Ok(answer.map(|body| body.map_err(with)))
    }
}

fn report(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// The next connection. A failed accept is repeated after a pause: the cause lasts, and repeating at once would take a whole CPU.
async fn until_accepted<T, F: Future<Output = io::Result<T>>>(mut accept: impl FnMut() -> F) -> T {
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                tracing::warn!(%error, "connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The connections that wait to be accepted; the listener is closed.
fn waiting(listener: TcpListener) -> Vec<TcpStream> {
    let mut waiting = Vec::new();
    // Not through the runtime, which may not have noticed these connections.
    let Ok(listener) = listener.into_std() else { return waiting };
    while let Ok((stream, _)) = listener.accept() {
        let stream = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        waiting.extend(stream);
    }
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_accepted_is_not_tried_without_pause() {
        let (begun, mut tries) = (tokio::time::Instant::now(), 0);
        let no_descriptor_left = || io::Error::from_raw_os_error(24);
        let accept = || {
            tries += 1;
            std::future::ready(if tries > 3 { Ok(()) } else { Err(no_descriptor_left()) })
        };
        until_accepted(accept).await;
        assert_eq!((tries, begun.elapsed()), (4, ACCEPT_PAUSE * 3));
    }
}
