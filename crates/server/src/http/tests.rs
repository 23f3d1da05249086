//! Requests over connections as clients have them: cut off, silent, too many, and while the server stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use trireme_tasks::TaskSet;

mod http2;

use super::route::{Resource, Table};
use super::{HttpTransport, body};
use crate::budget::Budget;
use crate::connections::{ConnectionLimiter, Connections, Http2, Limits, Protocol};
use crate::{Intake, Traffic};

/// More connections than a test has.
const ROOM: Limits = Limits { port: 1000, address: 1000 };

const ROUTES: Resource = Resource { group: "test", category: None, traffic: Traffic::Server };

struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskSet,
    listening: TaskSet,
    /// Reports the bodies that are kept.
    kept: Arc<Semaphore>,
}

async fn doomed() -> StatusCode {
    panic!("as planned")
}

async fn echo(request: Request) -> Result<Bytes, String> {
    body::read(&Default::default(), request.into_body(), body::Limit::json(1 << 20))
        .await
        .map_err(|error| error.message)
}

async fn serve(idle_timeout: Duration) -> Server {
    serve_within(idle_timeout, ROOM).await
}

async fn serve_within(idle_timeout: Duration, limits: Limits) -> Server {
    let kept = Arc::new(Semaphore::new(0));
    let keeper = kept.clone();
    let keep = async move |request: Request| {
        let body = echo(request).await.unwrap();
        keeper.add_permits(1);
        std::future::pending::<()>().await;
        drop(body);
    };
    let table = Table::new([
        ROUTES.get("/panic", "", doomed),
        ROUTES.get("/now", "", || async { "now" }),
        ROUTES.get("/v2/health/live", "", || async {}).asks(Traffic::Watch),
        ROUTES.get("/slow", "", || tokio::time::sleep(Duration::from_secs(2))),
        ROUTES.post("/echo", "", echo),
        ROUTES.post("/echo/infer", "", echo).asks(Traffic::Work),
        ROUTES.post("/keep/infer", "", keep).asks(Traffic::Work),
        ROUTES.post("/early", "", || async { "no need" }),
    ]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let (tasks, listening) = (TaskSet::new(), TaskSet::new());
    let connections = connections(&table, idle_timeout, limits, tasks.clone());
    let raised = stop.clone();
    listening.spawn("listener", async move { connections.serve(listener, raised, Duration::from_secs(60)).await });
    Server { address, stop, tasks, listening, kept }
}

fn connections(table: &Table<()>, idle_timeout: Duration, limits: Limits, tasks: TaskSet) -> Connections {
    let transport = HttpTransport { idle_timeout, is_tls: false, tasks: tasks.clone() };
    let intake = Arc::new(Intake { budget: Budget::new(8 << 20), access: Arc::default(), transport });
    let router = table.router(|route, handler| intake.before(Some(route), handler));
    Connections {
        router,
        protocol: Protocol::Either(Http2::default()),
        idle_timeout,
        tls: None,
        limiter: ConnectionLimiter::new(limits),
        tasks,
    }
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
    let answers =
        exchange(server.address, &[b"GET /panic HTTP/1.1\r\n\r\n", b"GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n"])
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

/// Sends a byte every 50 ms, so that only the limit of all pauses together ends the request.
#[tokio::test]
async fn a_body_that_never_gets_whole_ends() {
    let server = serve(Duration::from_millis(500)).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"POST /echo HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let trickle = async {
        while tokio::time::timeout(Duration::from_millis(50), stream.read_buf(&mut answer)).await.is_err() {
            // The server may have answered by now.
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

/// After the answer, the server closes the connection of a client that goes on sending.
#[tokio::test]
async fn a_refused_body_is_read_on_for_some_bytes_and_some_time_only() {
    let server = serve(Duration::from_secs(600)).await;
    let head = |length: u64| format!("POST /early HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
    let mut endless = TcpStream::connect(server.address).await.unwrap();
    endless.write_all(head(1 << 40).as_bytes()).await.unwrap();
    let (piece, mut sent) = (vec![b' '; 1 << 20], 0u64);
    let (mut reading, mut writing) = endless.split();
    let mut first = [0; 12];
    reading.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    while sent < 1 << 30 && writing.write_all(&piece).await.is_ok() {
        sent += piece.len() as u64;
    }
    assert!(sent < 1 << 29, "{sent} bytes were read");

    let begun = tokio::time::Instant::now();
    let slow = exchange(server.address, &[head(1 << 40).as_bytes(), b"slow"]).await;
    assert!(slow.ends_with("no need"), "{slow}");
    assert!(begun.elapsed() < Duration::from_secs(50), "it took {:?}", begun.elapsed());
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

/// Connections that the kernel has accepted before the server stops are served, even if the server has not accepted them yet.
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
    let table = Table::new([ROUTES.get("/slow", "", || tokio::time::sleep(Duration::from_millis(100)))]);
    let tasks = TaskSet::new();
    let connections = connections(&table, Duration::from_secs(60), ROOM, TaskSet::new());
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
        // Without waiting: no other task runs until the server gets the signal.
        assert_eq!(client.try_write(b"GET /slow HTTP/1.1\r\n\r\n").unwrap(), 22);
    }
    server.stop.cancel();
    for (number, mut client) in clients.into_iter().enumerate() {
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap_or_else(|error| panic!("connection {number}: {error}"));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("connection: close"), "{number}: {answer:?}");
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
    // Until all of them have arrived.
    server.kept.acquire_many(8).await.unwrap().forget();
    let refused = exchange(server.address, &[head("/echo/infer", 10).as_bytes(), b"0123456789"]).await;
    assert!(refused.contains("Exceeds maximum queue size"), "{refused}");
    let answered = exchange(server.address, &[head("/echo", 10).as_bytes(), b"0123456789"]).await;
    assert!(answered.contains("0123456789"), "it is about the server: {answered}");
    drop(others);
    while !exchange(server.address, &[head("/echo/infer", 10).as_bytes(), b"0123456789"]).await.contains("0123456789") {
    }
}

/// Silent connections, and connections with long requests, take all places.
#[tokio::test]
async fn who_watches_over_the_server_is_answered_whoever_else_is_connected() {
    let server = serve_within(Duration::from_secs(60), Limits { port: 8, address: 8 }).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let head = b"POST /keep/infer HTTP/1.1\r\nContent-Length: 1\r\n\r\nx";
    let answered = exchange(server.address, &[b"GET /now HTTP/1.1\r\nConnection: close\r\n\r\n"]).await;
    assert!(answered.ends_with("now"), "a silent one went for it: {answered}");
    let mut working = Vec::new();
    for _ in 0..8 {
        let mut other = TcpStream::connect(server.address).await.unwrap();
        other.write_all(head).await.unwrap();
        server.kept.acquire().await.unwrap().forget();
        working.push(other);
    }
    let live = exchange(server.address, &[b"GET /v2/health/live HTTP/1.1\r\n\r\n"]).await;
    assert!(live.starts_with("HTTP/1.1 200 ") && live.contains("connection: close"), "{live}");
    let refused = exchange(server.address, &[b"GET /now HTTP/1.1\r\n\r\n"]).await;
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("--max-connections"), "{refused}");
    drop(working);
    while !exchange(server.address, &[b"GET /now HTTP/1.1\r\nConnection: close\r\n\r\n"]).await.ends_with("now") {}
}
