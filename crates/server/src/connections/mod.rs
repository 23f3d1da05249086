//! The connections of a port, of HTTP/1.1 and of HTTP/2: they are accepted, served by a router, and wound up.
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
mod unread;
mod write_timeout;

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response};
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
use trireme_inference::Backoff;
use trireme_tasks::TaskSet;

use frames::FrameLimit;
pub use limiter::{ConnectionArgs, ConnectionLimiter, Limits, Peer, Place, Spare};
pub use tls::{Pem, Tls, TlsFiles, refused_certificate};
use unread::Unread;
use write_timeout::WriteTimeout;

use crate::body::ReadTimeout;

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

/// The first bytes of a connection of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The pauses between looks at a connection that has sent only a part of [`PREFACE`].
const LOOKS: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1));

/// The name of HTTP/2 in TLS handshakes (ALPN).
const ALPN_HTTP2: &[u8] = b"h2";

/// Reads the address that a port listens on. It is of this host, so the one name is that of the host itself.
pub fn listen_address(text: &str) -> Result<IpAddr, String> {
    match text.trim() {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        text => {
            text.parse().map_err(|_| "expected an address of this host: 127.0.0.1, ::1, or 0.0.0.0 for all".to_owned())
        }
    }
}

/// The protocol of a port.
#[derive(Clone, Copy, Debug)]
pub enum Protocol {
    /// HTTP/1.1
    Http1,
    /// HTTP/2
    Http2(Http2),
    /// HTTP/1.1, and HTTP/2 with clients that choose it in the TLS handshake (ALPN), or begin with it where there is no TLS.
    Either(Http2),
}

/// The settings of connections of HTTP/2.
#[derive(Clone, Copy, Debug)]
pub struct Http2 {
    /// Silence after which a client is pinged.
    pub keepalive_time: Duration,
    /// Time for the answer to a ping.
    pub keepalive_timeout: Duration,
    /// Age at which a connection takes no more calls.
    pub max_age: Option<Duration>,
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
        self.0.spawn("call", call);
    }
}

/// The protocol that a connection speaks.
#[derive(Clone, Copy)]
enum Spoken {
    Http1,
    Http2(Http2),
}

/// Why a connection takes no more requests.
enum Ending {
    /// The connection has had no request for too long, or has to make room.
    Leaves,
    /// The connection is too old, or the server stops: requests are finished.
    Finishes,
}

// === impl Http2 ===

impl Default for Http2 {
    /// As gRPC's servers have it.
    fn default() -> Http2 {
        Http2 { keepalive_time: Duration::from_secs(7200), keepalive_timeout: Duration::from_secs(20), max_age: None }
    }
}

// === impl Connections ===

impl Connections {
    /// Accepts until `stop` is raised, then finishes the requests in flight, for `exit_timeout` at most. If this future is
    /// dropped, the remaining requests go on until the tasks' runtime ends.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken, exit_timeout: Duration) {
        let unread = Unread::default();
        let given_up = unread.give_up(ReadTimeout::whole(self.idle_timeout));
        tokio::select! {
            () = Arc::new(self).accept(listener, unread.clone(), stop, exit_timeout) => {}
            () = given_up => {}
        }
    }

    async fn accept(
        self: Arc<Connections>,
        listener: TcpListener,
        unread: Unread,
        stop: CancellationToken,
        exit_timeout: Duration,
    ) {
        let own = self;
        loop {
            tokio::select! {
                (stream, _) = until_accepted(|| listener.accept()) => own.take(stream, &unread),
                () = stop.cancelled() => break,
            }
        }
        waiting(listener).into_iter().for_each(|stream| own.take(stream, &unread));
        if tokio::time::timeout(exit_timeout, own.tasks.join()).await.is_err() {
            tracing::warn!(protocol = ?own.protocol, "connections were still open at the end of the exit timeout");
        }
    }

    fn take(self: &Arc<Connections>, stream: TcpStream, unread: &Unread) {
        // Answers are small and clients wait for them, so they must not stay in a buffer.
        let _ = stream.set_nodelay(true);
        if let Some(place) = self.limiter.admit(&stream) {
            self.tasks.spawn("connection", self.clone().connection(stream, place, unread.clone()));
        }
    }

    async fn connection(self: Arc<Connections>, stream: TcpStream, place: Arc<Place>, unread: Unread) {
        let Some(tls) = &self.tls else {
            let spoken = match self.protocol {
                Protocol::Http1 => Spoken::Http1,
                Protocol::Http2(settings) => Spoken::Http2(settings),
                Protocol::Either(settings) => match self.beginning(&place, begins_http2(&stream)).await {
                    Some(true) => Spoken::Http2(settings),
                    Some(false) => Spoken::Http1,
                    None => return,
                },
            };
            return self.speak(stream, spoken, place, unread).await;
        };
        match self.beginning(&place, tls.acceptor().accept(stream)).await {
            Some(Ok(stream)) => {
                let is_chosen = stream.get_ref().1.alpn_protocol() == Some(ALPN_HTTP2);
                let spoken = match self.protocol {
                    Protocol::Http2(settings) => Spoken::Http2(settings),
                    Protocol::Either(settings) if is_chosen => Spoken::Http2(settings),
                    Protocol::Http1 | Protocol::Either(_) => Spoken::Http1,
                };
                self.speak(stream, spoken, place, unread).await;
            }
            Some(Err(error)) => match refused_certificate(&error) {
                Some(error) => tracing::info!(error, "a client's certificate was refused"),
                None => tracing::debug!(%error, "TLS handshake failed"),
            },
            None => {}
        }
    }

    /// The result of a connection's beginning; `None` if it takes too long, or the connection has to close before.
    async fn beginning<T>(&self, place: &Place, begun: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            begun = tokio::time::timeout(place.timeout(self.idle_timeout), begun) => {
                begun.inspect_err(|_| tracing::debug!("a connection's beginning took too long")).ok()
            }
            // A connection that has not begun by then has no request.
            () = self.stopped(place, Spoken::Http1) => None,
            () = place.leave.cancelled() => None,
        }
    }

    async fn speak(
        self: Arc<Connections>,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        spoken: Spoken,
        place: Arc<Place>,
        unread: Unread,
    ) {
        let stream = WriteTimeout::new(stream, self.idle_timeout);
        let (connections, own) = (self.clone(), place.clone());
        match spoken {
            // A client that closes its side counts as gone, and its request is cancelled (no `half_close`).
            Spoken::Http1 => {
                let service = service_fn(move |request| connections.clone().answer(request, own.clone()));
                let connection = http1::Builder::new()
                    .header_read_timeout(None)
                    .max_header_size(MAX_HEAD_BYTES)
                    .max_buf_size(MAX_BUFFERED_BYTES)
                    .serve_connection(TokioIo::new(stream), service);
                self.drive(connection, spoken, &place).await;
            }
            Spoken::Http2(Http2 { keepalive_time, keepalive_timeout, .. }) => {
                let service = service_fn(move |request| {
                    let (answer, unread) = (connections.clone().route(request, own.clone()), unread.clone());
                    async move { answer.await.map(|answer| unread.watch(answer)) }
                });
                let connection = http2::Builder::new(Calls(self.tasks.clone()))
                    .timer(TokioTimer::new())
                    .max_concurrent_streams(MAX_CALLS)
                    .keep_alive_interval(keepalive_time)
                    .keep_alive_timeout(keepalive_timeout)
                    .serve_connection(TokioIo::new(FrameLimit::new(stream, place.peer)), service);
                self.drive(connection, spoken, &place).await;
            }
        }
    }

    /// Serves a connection until it ends.
    async fn drive(&self, connection: impl GracefulConnection<Error = hyper::Error>, spoken: Spoken, place: &Place) {
        let mut connection = pin!(connection);
        let ending = tokio::select! {
            biased;
            ended = connection.as_mut() => return report(ended),
            ending = self.ending(place, spoken) => ending,
        };
        if matches!(ending, Ending::Leaves) && !place.has_begun() {
            return;
        }
        // A request may have come at the same time.
        connection.as_mut().graceful_shutdown();
        let silence = match (ending, spoken) {
            (Ending::Leaves, _) => LEAVING,
            (Ending::Finishes, Spoken::Http1) => self.idle_timeout,
            (Ending::Finishes, Spoken::Http2(_)) => self.idle_timeout.min(LEAVING * 5),
        };
        tokio::select! {
            ended = connection => report(ended),
            // The client does not react to GOAWAY, or does not complete a request's head.
            () = place.idle_for(silence) => {}
        }
    }

    /// Waits for a reason to take no more requests.
    async fn ending(&self, place: &Place, spoken: Spoken) -> Ending {
        let aged = async {
            match spoken {
                Spoken::Http2(Http2 { max_age: Some(age), .. }) => tokio::time::sleep(age).await,
                _ => pending().await,
            }
        };
        tokio::select! {
            () = self.stopped(place, spoken) => Ending::Finishes,
            () = aged => Ending::Finishes,
            () = place.idle_for(place.timeout(self.idle_timeout)) => Ending::Leaves,
            () = place.leave.cancelled() => Ending::Leaves,
        }
    }

    /// Waits until the server stops and the connection may take no more requests. In HTTP/1.1 the next request may be on its way
    /// until an answer has told the client that the connection closes. HTTP/2 has GOAWAY for that; only a connection that has
    /// had no call gets a moment longer for its first one.
    async fn stopped(&self, place: &Place, spoken: Spoken) {
        self.tasks.stopping().cancelled().await;
        if !(place.has_begun() && matches!(spoken, Spoken::Http2(_))) {
            place.idle_for(FIRST_REQUEST).await;
        }
    }

    /// The answer to a request of HTTP/1.1. It announces that the connection closes, so that the client sends its next request on another one.
    async fn answer(
        self: Arc<Connections>,
        request: Request<Incoming>,
        place: Arc<Place>,
    ) -> Result<Response<Body>, Infallible> {
        let closes = place.is_spare;
        let mut answer = self.clone().route(request, place).await?;
        if closes || self.tasks.stopping().is_cancelled() {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(answer)
    }

    async fn route(
        self: Arc<Connections>,
        mut request: Request<Incoming>,
        place: Arc<Place>,
    ) -> Result<Response<Body>, Infallible> {
        let busy = place.begin();
        request.extensions_mut().insert(place.peer);
        if place.is_spare {
            request.extensions_mut().insert(Spare);
        }
        let answer = TowerToHyperService::new(self.router.clone()).call(request).await?;
        // Held only to be dropped with the body.
        let with = move |error| {
            let _ = &busy;
            error
        };
        Ok(answer.map(|body| Body::new(body.map_err(with))))
    }
}

/// Whether a connection begins as HTTP/2 does. All bytes stay in it.
async fn begins_http2(stream: &TcpStream) -> bool {
    let (mut first, mut looks) = ([0; PREFACE.len()], 0);
    loop {
        match stream.peek(&mut first).await {
            Ok(_) if first == PREFACE => return true,
            Ok(count) if count > 0 && first[..count] == PREFACE[..count] => {}
            _ => return false,
        }
        // No event says when more bytes are there than these.
        looks += 1;
        tokio::time::sleep(LOOKS.after(looks)).await;
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

    #[test]
    fn a_port_listens_on_an_address() {
        assert_eq!(listen_address("localhost"), Ok(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(listen_address(" ::1"), Ok(std::net::Ipv6Addr::LOCALHOST.into()));
        assert!(listen_address("models.example.org").unwrap_err().contains("0.0.0.0 for all"));
    }

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
