//! The listener: connections accepted, served as HTTP/1.1, and wound up.
//!
//! Invariants:
//! - A connection ends: by its client, by silence, by a client that takes no answer, or when the listener stops.
//! - A connection that was there before the listener stopped has its request answered, be it the first or another one.
//! - What is not HTTP is answered with 400 and its connection closed; so is a head that is too large (431, 414).
//! - A request whose handler panics is answered with 500; the other requests do not notice.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, StatusCode};
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
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use trireme_runtime::TaskSet;

use super::patience::Patient;
use super::{body, response};
use crate::backlog;
use crate::budget::{self, Budget};

/// Largest request head, in bytes: what a connection may make the server hold before it has said what it wants.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// How the paths of requests end that are work for a model; others are about the server.
const WORK: [&str; 3] = ["/infer", "/generate", "/generate_stream"];

/// What every connection is served with.
#[derive(Clone)]
pub struct Connections {
    /// The routes.
    pub router: Router,
    /// Longest silence of a client that has a request to send, or an answer to take.
    pub idle_timeout: Duration,
    /// What requests and answers may hold.
    pub budget: Budget,
    /// Speaks TLS first, where it is there.
    pub tls: Option<TlsAcceptor>,
    /// The tasks of the connections.
    pub tasks: TaskSet,
}

/// What a connection is at.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// It has no request.
    Idle,
    /// It has one without an answer so far.
    Asked,
    /// The answer's head is there, and so is what it says of the connection.
    Answering,
}

/// An answer on its way. Dropped, its connection is idle.
struct Answering(watch::Sender<Stage>);

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
        // Answers are small and awaited: they must not sit in a buffer.
        let _ = stream.set_nodelay(true);
        self.tasks.spawn("connection", self.clone().connection(stream));
    }

    async fn connection(self, stream: TcpStream) {
        let Some(acceptor) = self.tls.clone() else { return self.http(stream).await };
        match tokio::time::timeout(self.idle_timeout, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => self.http(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        }
    }

    async fn http(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let stage = watch::Sender::new(Stage::Idle);
        let service = service_fn(|request| {
            stage.send_replace(Stage::Asked);
            let (answer, stage) = (self.answer(request), stage.clone());
            async move {
                let answer = answer.await?;
                let answering = Answering::begin(stage);
                // Only to be dropped with the body.
                let with = move |error| {
                    let _ = &answering;
                    error
                };
                Ok::<_, Infallible>(answer.map(|body| body.map_err(with)))
            }
        });
        // A client that ends its side has gone away, as far as can be seen: its request is cancelled (no `half_close`).
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.idle_timeout)
            .max_header_size(MAX_HEAD_BYTES)
            .max_buf_size(8 * MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(Patient::new(stream, self.idle_timeout)), service);
        let mut connection = std::pin::pin!(connection);
        let stopped = async {
            self.tasks.stopping().cancelled().await;
            until_closable(stage.subscribe()).await;
        };
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = stopped => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let infers = WORK.iter().any(|end| request.uri().path().ends_with(end));
        let hold = if infers { self.budget.hold() } else { self.budget.hold_of_control() };
        let (mut parts, body) = body::guard(request, self.idle_timeout, &self.tasks).into_parts();
        let announced = body::announced(&parts.headers).unwrap_or_default();
        let body = budget::count(body, announced, &hold, |refusal| refusal.into());
        parts.extensions.insert(hold.clone());
        let answer = TowerToHyperService::new(self.router.clone()).call(Request::from_parts(parts, body));
        let answer = AssertUnwindSafe(answer).catch_unwind().await.unwrap_or_else(|_| {
            tracing::error!("the handler of a request panicked");
            Ok(response::error(StatusCode::INTERNAL_SERVER_ERROR, "internal error"))
        });
        answer.map(|mut answer| {
            // Said in the answer, so that the client sends its next request elsewhere.
            if self.tasks.stopping().is_cancelled() {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            budget::until_sent(answer, hold)
        })
    }
}

/// Waits until a connection of a server that stops may be closed: a connection is closed between two requests even when the
/// next one is on its way, and its client knows no better than to send it unless the last answer said otherwise.
async fn until_closable(mut stage: watch::Receiver<Stage>) {
    loop {
        let now = *stage.borrow_and_update();
        match now {
            // Its answer says that it is the last one.
            Stage::Asked => return,
            Stage::Answering => drop(stage.changed().await),
            Stage::Idle if tokio::time::timeout(backlog::FIRST_REQUEST, stage.changed()).await.is_err() => return,
            Stage::Idle => {}
        }
    }
}

// === impl Answering ===

impl Answering {
    fn begin(stage: watch::Sender<Stage>) -> Answering {
        stage.send_replace(Stage::Answering);
        Answering(stage)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.send_replace(Stage::Idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use bytes::Bytes;
    use std::net::SocketAddr;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Semaphore;

    struct Server {
        address: SocketAddr,
        stop: CancellationToken,
        tasks: TaskSet,
        listening: TaskSet,
        /// Tells of bodies that are kept.
        kept: Arc<Semaphore>,
    }

    async fn doomed() -> StatusCode {
        panic!("as planned")
    }

    async fn echo(body: Body) -> Result<Bytes, String> {
        body::read(&Default::default(), body, 1 << 20).await.map_err(|error| error.message)
    }

    async fn serve(idle_timeout: Duration) -> Server {
        let kept = Arc::new(Semaphore::new(0));
        let keeper = kept.clone();
        let keep = async move |body: Body| {
            let body = echo(body).await.unwrap();
            keeper.add_permits(1);
            std::future::pending::<()>().await;
            drop(body);
        };
        let router = Router::new()
            .route("/panic", get(doomed))
            .route("/now", get(|| async { "now" }))
            .route("/slow", get(|| tokio::time::sleep(Duration::from_secs(2))))
            .route("/echo", post(echo))
            .route("/echo/infer", post(echo))
            .route("/keep/infer", post(keep))
            .route("/early", post(|| async { "no need" }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let (tasks, listening) = (TaskSet::new(), TaskSet::new());
        let budget = Budget::new(8 << 20);
        let connections = Connections { router, idle_timeout, budget, tls: None, tasks: tasks.clone() };
        let raised = stop.clone();
        listening.spawn("listener", async move { connections.serve(listener, raised, Duration::from_secs(60)).await });
        Server { address, stop, tasks, listening, kept }
    }

    /// Sends pieces with pauses between them, and reads until the server closes the connection.
    async fn exchange(address: SocketAddr, pieces: &[&[u8]]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        for piece in pieces {
            // A server that has answered may have closed its side.
            let _ = stream.write_all(piece).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut received = Vec::new();
        let reading = stream.read_to_end(&mut received);
        let _ = tokio::time::timeout(Duration::from_secs(60), reading).await.expect("the connection ends");
        String::from_utf8_lossy(&received).into_owned()
    }

    #[tokio::test]
    async fn a_panic_is_one_request_s_affair() {
        let server = serve(Duration::from_secs(60)).await;
        let answers = exchange(
            server.address,
            &[b"GET /panic HTTP/1.1\r\n\r\n", b"GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n"],
        )
        .await;
        assert!(answers.starts_with("HTTP/1.1 500 ") && answers.contains("HTTP/1.1 200 "), "{answers}");
    }

    #[tokio::test]
    async fn silence_ends_connections() {
        let server = serve(Duration::from_millis(500)).await;
        assert_eq!(exchange(server.address, &[]).await, "");
        assert_eq!(exchange(server.address, &[b"GET /slow HT"]).await, "");
        let stalled = exchange(server.address, &[b"POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\n", b"12345"]).await;
        assert!(stalled.starts_with("HTTP/1.1 ") && stalled.contains("no data for 500ms"), "{stalled}");
        // A handler may take longer than a client may be silent.
        assert!(exchange(server.address, &[b"GET /slow HTTP/1.1\r\n\r\n"]).await.starts_with("HTTP/1.1 200 "));
    }

    /// Sends a byte whenever the server has had enough of waiting, nearly.
    #[tokio::test]
    async fn a_body_that_never_gets_whole_ends() {
        let server = serve(Duration::from_millis(500)).await;
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"POST /echo HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        let trickle = async {
            while tokio::time::timeout(Duration::from_millis(50), stream.read_buf(&mut answer)).await.is_err() {
                // It may have answered by now.
                let _ = stream.write_all(b"x").await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), trickle).await.expect("it ends");
        assert!(answer.starts_with(b"HTTP/1.1 "), "{}", String::from_utf8_lossy(&answer));
    }

    #[tokio::test]
    async fn an_unread_body_does_not_cost_the_answer() {
        let server = serve(Duration::from_secs(60)).await;
        let body = vec![b' '; 4 << 20];
        let head = format!("POST /early HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
        let next = b"GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n";
        let answers = exchange(server.address, &[head.as_bytes(), &body, next]).await;
        assert!(answers.contains("no need") && answers.matches("HTTP/1.1 200 ").count() == 2, "{answers}");
    }

    #[tokio::test]
    async fn stopping_waits_for_requests_in_flight() {
        let server = serve(Duration::from_secs(60)).await;
        let mut idle = TcpStream::connect(server.address).await.unwrap();
        let stop = server.stop.clone();
        server.tasks.spawn("stop", async move {
            tokio::time::sleep(Duration::from_millis(700)).await;
            stop.cancel();
        });
        let answer = exchange(server.address, &[b"GET /slow HTTP/1.1\r\n\r\n"]).await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"), "{answer}");
        server.listening.join().await;
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
        assert!(TcpStream::connect(server.address).await.is_err());
    }

    /// What the kernel has accepted belongs to a server that is told to stop, whether or not it was looked at.
    #[tokio::test]
    async fn connections_that_wait_when_it_stops_are_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"GET /slow HTTP/1.1\r\n\r\n").await.unwrap();
            clients.push(client);
        }
        let router = Router::new().route("/slow", get(|| tokio::time::sleep(Duration::from_millis(100))));
        let (budget, tasks) = (Budget::new(1 << 20), TaskSet::new());
        let connections =
            Connections { router, idle_timeout: Duration::from_secs(60), budget, tls: None, tasks: TaskSet::new() };
        let stop = CancellationToken::new();
        stop.cancel();
        tasks.spawn("listener", async move { connections.serve(listener, stop, Duration::from_secs(60)).await });
        for (number, mut client) in clients.into_iter().enumerate() {
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap_or_else(|error| panic!("connection {number}: {error}"));
            assert!(answer.starts_with("HTTP/1.1 200 "), "connection {number}: {answer:?}");
        }
        tasks.join().await;
        assert!(TcpStream::connect(address).await.is_err());
    }

    /// A client that has had answers sends its next request as the server stops, which the runtime learns of later.
    #[tokio::test]
    async fn requests_on_used_connections_that_wait_when_it_stops_are_answered() {
        let server = serve(Duration::from_secs(60)).await;
        let mut clients = Vec::new();
        for _ in 0..20 {
            let mut client = TcpStream::connect(server.address).await.unwrap();
            client.write_all(b"GET /now HTTP/1.1\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\nnow") {
                assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0);
            }
            clients.push(client);
        }
        for client in &clients {
            // Without waiting: nothing else runs until the server has been told.
            assert_eq!(client.try_write(b"GET /slow HTTP/1.1\r\n\r\n").unwrap(), 22);
        }
        server.stop.cancel();
        for (number, mut client) in clients.into_iter().enumerate() {
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap_or_else(|error| panic!("connection {number}: {error}"));
            assert!(
                answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"),
                "{number}: {answer:?}"
            );
        }
        server.listening.join().await;
    }

    #[tokio::test]
    async fn bodies_for_which_there_is_no_room_are_refused_before_they_are_read() {
        let server = serve(Duration::from_secs(60)).await;
        let head = |path: &str, length: usize| {
            format!("POST {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n")
        };
        let mut others = Vec::new();
        for _ in 0..8 {
            let mut other = TcpStream::connect(server.address).await.unwrap();
            other.write_all(head("/keep/infer", 1 << 20).as_bytes()).await.unwrap();
            other.write_all(&vec![b'x'; 1 << 20]).await.unwrap();
            others.push(other);
        }
        // Until all of them are there.
        server.kept.acquire_many(8).await.unwrap().forget();
        let refused = exchange(server.address, &[head("/echo/infer", 10).as_bytes(), b"0123456789"]).await;
        assert!(refused.contains("Exceeds maximum queue size"), "{refused}");
        let answered = exchange(server.address, &[head("/echo", 10).as_bytes(), b"0123456789"]).await;
        assert!(answered.contains("0123456789"), "it is about the server: {answered}");
        drop(others);
        while !exchange(server.address, &[head("/echo/infer", 10).as_bytes(), b"0123456789"])
            .await
            .contains("0123456789")
        {}
    }
}
