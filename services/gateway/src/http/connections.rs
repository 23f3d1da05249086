//! The listener: accepts connections, serves them as HTTP/1.1, and winds them up.
//!
//! Invariants:
//! - A connection ends when its client closes it, sends nothing or reads nothing for too long, when `crowd` needs its place, or
//!   when the listener stops.
//! - A connection that existed before the listener stopped gets an answer to its request, first or later.
//! - Bytes that are not HTTP are answered with 400, and a head that is too large with 431 or 414; then the connection closes.
//! - A request whose handler panics is answered with 500; the other requests do not notice.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use trireme_runtime::TaskSet;

use super::patience::Patient;
use super::traffic::Traffic;
use super::{body, response};
use crate::access::Access;
use crate::backlog;
use crate::budget::{self, Budget};
use crate::crowd::{Busy, Crowd, Place};
use crate::tls::Tls;

#[cfg(test)]
mod tests;

/// Largest request head, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// How long a connection that has had requests stays open when it has to make room for another one.
const LEAVING: Duration = Duration::from_secs(1);

/// The settings of all connections.
#[derive(Clone)]
pub struct Connections {
    /// The routes.
    pub router: Router,
    /// The traffic that a request to a path belongs to.
    pub traffic: fn(&Method, &str) -> Traffic,
    /// Longest silence of a client that has a request to send, or an answer to take.
    pub idle_timeout: Duration,
    /// The budget for the bytes of requests and answers.
    pub budget: Budget,
    /// Knows the lane of a request.
    pub access: Arc<Access>,
    /// Speaks TLS, if it is given.
    pub tls: Option<Tls>,
    /// The connections of the port.
    pub crowd: Crowd,
    /// The tasks of the connections.
    pub tasks: TaskSet,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The connection has no request.
    Idle,
    /// A request waits for its answer.
    Asked,
    /// The answer's head is complete, with its `Connection` header.
    Answering,
}

/// An answer on its way. Dropped, its connection is idle.
struct Answering {
    phase: watch::Sender<Phase>,
    _busy: Busy,
}

// === impl Connections ===

impl Connections {
    /// Accepts until `stop` is raised, then finishes the requests in flight, for `exit_timeout` at most.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken, exit_timeout: Duration) {
        loop {
            tokio::select! {
                stream = backlog::accept(&listener) => self.take(stream),
                () = stop.cancelled() => break,
            }
        }
        backlog::take(listener).into_iter().for_each(|stream| self.take(stream));
        if tokio::time::timeout(exit_timeout, self.tasks.join()).await.is_err() {
            tracing::warn!("HTTP connections were still open at the end of the exit timeout");
        }
    }

    fn take(&self, stream: TcpStream) {
        // Answers are small and clients wait for them, so they must not stay in a buffer.
        let _ = stream.set_nodelay(true);
        if let Some(place) = self.crowd.admit(&stream) {
            self.tasks.spawn("connection", self.clone().connection(stream, place));
        }
    }

    async fn connection(self, stream: TcpStream, place: Arc<Place>) {
        let Some(tls) = &self.tls else { return self.http(stream, place).await };
        let acceptor = tls.acceptor();
        // A connection without a TLS handshake by then has no request.
        let stopped = async {
            self.tasks.stopping().cancelled().await;
            tokio::time::sleep(backlog::FIRST_REQUEST).await;
        };
        let patience = place.patience(self.idle_timeout);
        let shaken = tokio::select! {
            shaken = tokio::time::timeout(patience, acceptor.accept(stream)) => shaken,
            () = stopped => return,
            () = place.leave.cancelled() => return,
        };
        match shaken {
            Ok(Ok(stream)) => self.http(stream, place).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        }
    }

    async fn http(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, place: Arc<Place>) {
        let phase = watch::Sender::new(Phase::Idle);
        let service = service_fn(|request| {
            phase.send_replace(Phase::Asked);
            let (answer, phase, busy) = (self.answer(request, &place), phase.clone(), place.begin());
            async move {
                let answer = answer.await?;
                let answering = Answering::begin(phase, busy);
                // Held only to be dropped with the body.
                let with = move |error| {
                    let _ = &answering;
                    error
                };
                Ok::<_, Infallible>(answer.map(|body| body.map_err(with)))
            }
        });
        // A client that closes its side counts as gone, and its request is cancelled (no `half_close`).
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(place.patience(self.idle_timeout))
            .max_header_size(MAX_HEAD_BYTES)
            .max_buf_size(8 * MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(Patient::new(stream, self.idle_timeout)), service);
        let mut connection = std::pin::pin!(connection);
        let stopped = async {
            self.tasks.stopping().cancelled().await;
            until_closable(phase.subscribe()).await;
        };
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = stopped => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = place.leave.cancelled() => {
                if !place.has_begun() {
                    return;
                }
                // A request may have come at the same time.
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = place.idle_for(LEAVING) => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>, place: &Place) -> Result<Response<Body>, Infallible> {
        let traffic = (self.traffic)(request.method(), request.uri().path());
        if place.is_spare && traffic != Traffic::Watch {
            let message = "there are too many connections (--max-connections)";
            let mut answer = response::error(StatusCode::SERVICE_UNAVAILABLE, message);
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            return Ok(answer);
        }
        let lane = || self.access.lane(|name| request.headers().get(name).map(HeaderValue::as_bytes));
        let hold = if traffic.executes() { self.budget.hold_in(lane()) } else { self.budget.hold_about_server() };
        let (mut parts, body) = body::guard(request, self.idle_timeout, &self.tasks).into_parts();
        // An upload is written as it comes, and needs no room for the whole of it.
        let announced = body::announced(&parts.headers).filter(|_| traffic != Traffic::Upload).unwrap_or_default();
        let body = budget::count(body, announced, &hold, |refusal| refusal.into());
        parts.extensions.insert(hold.clone());
        parts.extensions.insert(place.peer);
        let answer = TowerToHyperService::new(self.router.clone()).call(Request::from_parts(parts, body));
        let answer = AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(|_| {
            tracing::error!("the handler of a request panicked");
            Ok(response::error(StatusCode::INTERNAL_SERVER_ERROR, "internal error"))
        });
        answer.map(|mut answer| {
            // The answer announces it, so that the client sends its next request on another connection.
            if self.tasks.stopping().is_cancelled() || place.is_spare {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            budget::until_sent(answer, hold)
        })
    }
}

/// Waits until a connection of a server that stops may be closed. Between two requests the next one may be on its way, unless the
/// last answer told the client that the connection closes.
async fn until_closable(mut phase: watch::Receiver<Phase>) {
    loop {
        let now = *phase.borrow_and_update();
        match now {
            // Its answer says that it is the last one.
            Phase::Asked => return,
            Phase::Answering => drop(phase.changed().await),
            Phase::Idle if tokio::time::timeout(backlog::FIRST_REQUEST, phase.changed()).await.is_err() => return,
            Phase::Idle => {}
        }
    }
}

// === impl Answering ===

impl Answering {
    fn begin(phase: watch::Sender<Phase>, busy: Busy) -> Answering {
        phase.send_replace(Phase::Answering);
        Answering { phase, _busy: busy }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Idle);
    }
}
