//! HTTP/2 on a port of HTTP/1.1: in clear text with clients that begin with it, and over TLS with clients that choose it.

use std::path::Path;

use axum::http::{Request, Version};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::*;
use crate::connections::{Pem, Tls, TlsFiles};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A frame SETTINGS without settings.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

/// The bodies of three requests to `/now` at the same time, over a connection of HTTP/2.
async fn ask(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Vec<Bytes> {
    let (requests, connection) =
        handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let one = async |mut requests: hyper::client::conn::http2::SendRequest<_>| {
        let request = Request::get("http://localhost/now").body(Empty::new()).unwrap();
        let answer = requests.send_request(request).await.unwrap();
        assert_eq!((answer.status(), answer.version()), (StatusCode::OK, Version::HTTP_2));
        answer.into_body().collect().await.unwrap().to_bytes()
    };
    let asking = futures_util::future::join_all((0..3).map(|_| one(requests.clone())));
    tokio::select! {
        bodies = asking => bodies,
        ended = connection => panic!("the connection has ended: {ended:?}"),
    }
}

#[tokio::test]
async fn a_port_speaks_what_its_client_begins_with() {
    let server = serve(Duration::from_secs(60)).await;
    assert_eq!(ask(TcpStream::connect(server.address).await.unwrap()).await, ["now"; 3]);
    let answer = exchange(server.address, &[b"GET /now HTTP/1.1\r\nConnection: close\r\n\r\n"]).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("now"), "{answer}");
    // A method that begins alike.
    let answer = exchange(server.address, &[b"PR", b"OPFIND /now HTTP/1.1\r\nConnection: close\r\n\r\n"]).await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");

    let mut pieces = TcpStream::connect(server.address).await.unwrap();
    for piece in [&PREFACE[..2], &PREFACE[2..20], &PREFACE[20..], SETTINGS] {
        pieces.write_all(piece).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut head = [0; 9];
    pieces.read_exact(&mut head).await.unwrap();
    assert_eq!(head[3], SETTINGS[3], "the server's settings come first: {head:?}");
}

#[tokio::test]
async fn a_beginning_that_is_not_whole_ends_with_the_time_for_it() {
    let server = serve(Duration::from_millis(100)).await;
    assert_eq!(exchange(server.address, &[&PREFACE[..10]]).await, "");
}

#[tokio::test]
async fn who_floods_a_connection_of_http2_loses_it() {
    let server = serve(Duration::from_secs(60)).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&[PREFACE, SETTINGS].concat()).await.unwrap();
    let (mut reading, mut writing) = stream.split();
    let flood = async {
        let pings = PING.repeat(100);
        while writing.write_all(&pings).await.is_ok() {}
    };
    let mut answers = Vec::new();
    let ended = async { tokio::join!(flood, reading.read_to_end(&mut answers)).1.map(drop) };
    // A connection with bytes that were not read is reset.
    let _ = tokio::time::timeout(Duration::from_secs(60), ended).await.expect("the server closes it");
}

#[tokio::test]
async fn the_tls_handshake_chooses_the_protocol() {
    let shipped = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/certificates").join(name);
    let pem = |flag, name: &str| Pem { flag, path: shipped(name) };
    let files = TlsFiles { certificate: pem("--cert", "server.pem"), key: pem("--key", "server.key"), roots: None };
    let tls = Tls::new(files, &[b"h2", b"http/1.1"]).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop, listening) = (listener.local_addr().unwrap(), CancellationToken::new(), TaskSet::new());
    let table = Table::new([ROUTES.get("/now", "", || async { "now" })]);
    let connections =
        Connections { tls: Some(tls), ..connections(&table, Duration::from_secs(60), ROOM, TaskSet::new()) };
    let raised = stop.clone();
    listening.spawn("listener", async move { connections.serve(listener, raised, Duration::from_secs(60)).await });

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(shipped("ca.pem")).unwrap()).unwrap();
    for offered in [&["h2", "http/1.1"][..], &["http/1.1"], &[]] {
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = "localhost".try_into().unwrap();
        let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        if offered.contains(&"h2") {
            assert_eq!(ask(stream).await, ["now"; 3]);
            continue;
        }
        stream.write_all(b"GET /now HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("now"), "{offered:?}: {answer}");
    }
    stop.cancel();
    listening.join().await;
}
