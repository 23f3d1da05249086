//! The listener: accepts connections, serves them as HTTP/2, and winds them up.
//!
//! Invariants:
//! - A connection ends when its client closes it, when it has had no call for the idle timeout, at its maximum age, when `crowd`
//!   needs its place, or when the listener stops. The server sends GOAWAY first, so that the client opens another connection
//!   for its next call. Calls that the client sent before it received GOAWAY are answered.
//! - A call whose handler panics is answered with a status; the other calls do not notice.
//!
//! Not here: Triton's limits on how often clients may ping, because the HTTP/2 library cannot set them.

use std::convert::Infallible;
use std::future::pending;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use trireme_inference::InferError;
use trireme_protocol::grpc::status;
use trireme_runtime::TaskSet;

use super::access;
use crate::access::Category;
use crate::backlog;
use crate::crowd::{Crowd, Place};
use crate::tls::Tls;

/// Most calls in flight on one connection; the client holds back one more.
const MAX_CALLS: u32 = 1024;

/// How long a connection without calls stays open after GOAWAY.
const LEAVING: Duration = Duration::from_secs(1);

/// The settings of all connections.
#[derive(Clone)]
pub struct Connections {
    /// The calls.
    pub router: Router,
    /// How long a connection may be without a call.
    pub idle_timeout: Duration,
    /// Silence after which a client is pinged.
    pub keepalive_time: Duration,
    /// Time for the answer to a ping.
    pub keepalive_timeout: Duration,
    /// Age at which a connection takes no more calls.
    pub max_age: Option<Duration>,
    /// Speaks TLS, if it is given.
    pub tls: Option<Tls>,
    /// The connections of the port.
    pub crowd: Crowd,
    /// The tasks of connections and calls.
    pub tasks: TaskSet,
}

/// Runs the tasks of the HTTP library in a [`TaskSet`].
#[derive(Clone)]
struct Calls(TaskSet);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        self.0.spawn("grpc call", call);
    }
}

/// Why a connection takes no more calls.
enum Ending {
    /// The connection has had no call for too long, or has to make room.
    Leaves,
    /// The connection is too old, or the server stops: calls are finished.
    Finishes,
}

// === impl Connections ===

impl Connections {
    /// Accepts until `stop` is raised, then finishes the calls in flight. If this future is dropped, the remaining calls go on
    /// until the tasks' runtime ends.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        loop {
            tokio::select! {
                stream = backlog::accept(&listener) => self.take(stream),
                () = stop.cancelled() => break,
            }
        }
        backlog::take(listener).into_iter().for_each(|stream| self.take(stream));
        self.tasks.join().await;
    }

    fn take(&self, stream: TcpStream) {
        // Answers are small and clients wait for them, so they must not stay in a buffer.
        let _ = stream.set_nodelay(true);
        if let Some(place) = self.crowd.admit(&stream) {
            self.tasks.spawn("grpc connection", self.clone().connection(stream, place));
        }
    }

    async fn connection(self, stream: TcpStream, place: Arc<Place>) {
        let Some(tls) = &self.tls else { return self.http2(stream, place).await };
        let (acceptor, patience) = (tls.acceptor(), place.patience(self.idle_timeout));
        let shaken = tokio::select! {
            shaken = tokio::time::timeout(patience, acceptor.accept(stream)) => shaken,
            () = self.stopped(&place) => return,
            () = place.leave.cancelled() => return,
        };
        match shaken {
            Ok(Ok(stream)) => self.http2(stream, place).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        }
    }

    async fn http2(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, place: Arc<Place>) {
        let service = service_fn(|request| answer(self.router.clone(), request, place.clone()));
        let connection = http2::Builder::new(Calls(self.tasks.clone()))
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_CALLS)
            .keep_alive_interval(self.keepalive_time)
            .keep_alive_timeout(self.keepalive_timeout)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ending = tokio::select! {
            biased;
            ended = connection.as_mut() => return report(ended),
            ending = self.ending(&place) => ending,
        };
        if matches!(ending, Ending::Leaves) && !place.has_begun() {
            return;
        }
        connection.as_mut().graceful_shutdown();
        let silent = async {
            match ending {
                Ending::Leaves => place.idle_for(LEAVING).await,
                Ending::Finishes => place.idle_for(self.idle_timeout.min(LEAVING * 5)).await,
            }
        };
        tokio::select! {
            ended = connection => report(ended),
            // The client does not react to GOAWAY.
            () = silent => {}
        }
    }

    /// Waits for a reason to take no more calls.
    async fn ending(&self, place: &Place) -> Ending {
        let aged = async {
            match self.max_age {
                Some(age) => tokio::time::sleep(age).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = self.stopped(place) => Ending::Finishes,
            () = aged => Ending::Finishes,
            () = place.idle_for(place.patience(self.idle_timeout)) => Ending::Leaves,
            () = place.leave.cancelled() => Ending::Leaves,
        }
    }

    /// Waits until the server stops, and a moment longer for the first call of a connection that has had none.
    async fn stopped(&self, place: &Place) {
        self.tasks.stopping().cancelled().await;
        if !place.has_begun() {
            tokio::time::sleep(backlog::FIRST_REQUEST).await;
        }
    }
}

fn report(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

async fn answer(
    router: Router,
    mut request: Request<Incoming>,
    place: Arc<Place>,
) -> Result<Response<Body>, Infallible> {
    if place.is_spare && access::category(request.uri().path()) != Some(Category::Health) {
        let refusal = InferError::unavailable("there are too many connections (--max-connections)");
        return Ok(status(&refusal).into_http());
    }
    let busy = place.begin();
    request.extensions_mut().insert(place.peer);
    let answer = AssertUnwindSafe(TowerToHyperService::new(router).call(request)).catch_unwind().await;
    let answer = answer.unwrap_or_else(|_| {
        tracing::error!("the handler of a call panicked");
        Ok(Status::internal("internal error").into_http())
    });
    // Held only to be dropped with the body.
    let with = move |error| {
        let _ = &busy;
        error
    };
    answer.map(|answer| answer.map(|body| Body::new(body.map_err(with))))
}
