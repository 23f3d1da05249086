//! Requests of clients that nobody has told the key, or that a page of another site sends: which routes answer them.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use trireme_bus::{Bus, ModelState};
use trireme_protocol::grpc::wire::*;

use crate::control::{PATIENCE, Server, entry};

const KEY: &str = "a key of more than 16 letters";

/// The routes that answer without a key: health checks, and pages, which hold no data of the server.
const OPEN: [&str; 33] = [
    "GET /",
    "GET /docs",
    "GET /docs/docs.css",
    "GET /docs/docs.js",
    "GET /health",
    "GET /infinity",
    "GET /infinity/health",
    "GET /nim/v1/health/live",
    "GET /nim/v1/health/ready",
    "GET /nim/{model}/v1/health/live",
    "GET /nim/{model}/v1/health/ready",
    "GET /ollama",
    "GET /openapi.json",
    "GET /tei",
    "GET /tei/health",
    "GET /tei/ping",
    "GET /tei/{model}",
    "GET /tei/{model}/health",
    "GET /tei/{model}/ping",
    "GET /ui",
    "GET /ui/",
    "GET /ui/client.js",
    "GET /ui/console.css",
    "GET /ui/console.js",
    "GET /v1/health/live",
    "GET /v1/health/ready",
    "GET /v2/health/live",
    "GET /v2/health/ready",
    "GET /v2/models/{model}/ready",
    "GET /v2/models/{model}/versions/{version}/ready",
    "GET /vllm/health",
    "GET /vllm/ping",
    "POST /vllm/ping",
];

/// Sends a request with these lines in its head and an empty object as its body; the status and the whole answer.
pub async fn send(address: SocketAddr, method: &str, path: &str, lines: &[&str]) -> (u16, String) {
    send_body(address, method, path, lines, "{}").await
}

/// The same with another body.
pub async fn send_body(address: SocketAddr, method: &str, path: &str, lines: &[&str], body: &str) -> (u16, String) {
    let more: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    let host = if lines.iter().any(|line| line.starts_with("Host:")) { "" } else { "Host: localhost\r\n" };
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{host}{more}Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.expect("the port is open");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    let mut answer = Vec::new();
    tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an answer").expect("it is whole");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    (answer.get(9..12).and_then(|status| status.parse().ok()).expect("a status"), answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn only_health_checks_and_pages_answer_without_a_key() {
    let mut server = Server::start_with(&[&format!("--api-key={KEY}")]).await;
    let config = r#"{"name": "undisclosed", "backend": "identity", "max_batch_size": 8, "parameters": {"task": {"string_value": "embed"}},
        "input": [{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]}],
        "output": [{"name": "embedding", "data_type": "TYPE_FP32", "dims": [4]}]}"#;
    let hidden = trireme_bus::WorkerEntry { config: config.to_owned(), ..entry("undisclosed", ModelState::Ready, 1) };
    let bus: &dyn Bus = server.bus.as_ref();
    bus.announce(&hidden).await.expect("in process nothing refuses");
    let ready = async { while !server.is_ready("undisclosed").await {} };
    tokio::time::timeout(PATIENCE, ready).await.expect("the model comes");

    let (status, document) = send(server.http, "GET", "/openapi.json", &[]).await;
    assert_eq!(status, 200);
    let document: Value = serde_json::from_str(document.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    let mut open = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().expect("routes") {
        let place = path.replace("{version}", "1").replace('{', "some-").replace('}', "");
        for (method, operation) in operations.as_object().expect("operations") {
            let (method, name) = (method.to_uppercase(), format!("{} {path}", method.to_uppercase()));
            let (status, answer) = send(server.http, &method, &place, &["Prefer: respond-async"]).await;
            assert!(!answer.contains("undisclosed"), "{name}: {answer}");
            match operation.get("security") {
                Some(security) => {
                    assert_eq!((security, status == 401), (&Value::Array(Vec::new()), false), "{name}: {answer}");
                    open.insert(name);
                }
                None => assert_eq!(status, 401, "{name}: {answer}"),
            }
        }
    }
    assert_eq!(open, OPEN.map(str::to_owned).into(), "routes that need no key");
    let with = format!("X-API-Key: {KEY}");
    assert!(
        send(server.http, "GET", "/v1/models", &[&with]).await.1.contains("undisclosed"),
        "it is there for who has one"
    );
    // A proxy may want the other header for itself.
    let both = ["Authorization: Bearer of-a-proxy", &with];
    assert_eq!(send(server.http, "GET", "/v1/models", &both).await.0, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_sites_get_no_data_where_there_is_no_key() {
    let server = Server::start().await;
    // Its name leads to this host now. A page's GET of its own site has no origin.
    let rebound: &[&str] = &["Host: evil.example:8000"];
    let posted: &[&str] = &["Host: localhost:8000", "Origin: https://evil.example", "Content-Type: text/plain"];
    let later: &[&str] = &["Host: evil.example", "Origin: http://evil.example", "Prefer: respond-async"];
    for (method, path) in [
        ("GET", "/v1/models"),
        ("GET", "/v1/files"),
        ("GET", "/v2/models/m/config"),
        ("GET", "/v2/trireme/status"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v2/models/m/infer"),
        ("POST", "/tei/m/embed"),
    ] {
        for (lines, flag) in [(rebound, "--allowed-host=evil.example"), (posted, "--cors-origin=https://evil.example")]
        {
            let (status, answer) = send(server.http, method, path, lines).await;
            assert!(status == 403 && answer.contains(flag), "{method} {path}: {answer}");
        }
        if method == "POST" {
            assert_eq!(send(server.http, method, path, later).await.0, 403, "{path}");
        }
        for lines in [&["Host: gateway:8000"], &["Host: trireme.default.svc"], &["Host: 10.1.2.3:8000"]] {
            assert_ne!(send(server.http, method, path, lines).await.0, 403, "{method} {path}: {lines:?}");
        }
    }
    assert_eq!(send(server.http, "GET", "/v2/health/live", rebound).await.0, 200);
    server.stop().await;

    let flags = ["--allowed-host=evil.example", "--cors-origin=https://evil.example"];
    let server = Server::start_with(&flags).await;
    for lines in [rebound, posted] {
        assert_eq!(send(server.http, "GET", "/v1/models", lines).await.0, 200);
    }
    server.stop().await;
    let server = Server::start_with(&[&format!("--api-key={KEY}")]).await;
    let with = format!("X-API-Key: {KEY}");
    assert_eq!(send(server.http, "GET", "/v1/models", &[rebound, &[&with]].concat()).await.0, 200, "a page has no key");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_say_what_they_are_and_errors_have_the_shape_of_their_path() {
    let server = Server::start().await;
    for (path, words) in [
        ("/v1/no-such-route", r#""error":{"code":"unknown_url","message":"#),
        ("/openai/v1/no-such-route", r#"{"error":{"message":"#),
        ("/v2/no-such-route", r#"{"error":"Not Found"}"#),
    ] {
        let (status, answer) = send(server.http, "GET", path, &[]).await;
        assert!(status == 404 && answer.contains(words), "{path}: {answer}");
        assert!(answer.contains("x-content-type-options: nosniff"), "{path}: {answer}");
    }
    let (status, answer) = send(server.http, "DELETE", "/v1/embeddings", &[]).await;
    assert!(status == 405 && answer.contains(r#""error":{"#) && answer.contains(r#""detail":"#), "{answer}");

    let mut stream = TcpStream::connect(server.http).await.expect("the port is open");
    stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nConnection: close\r\n\r\n").await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("header Host is missing"), "{answer}");
    server.stop().await;
}

/// With a byte order mark, and compressed.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_come_with_a_mark_and_in_a_coding() {
    let server = Server::start().await;
    let settings = [b"\xef\xbb\xbf".as_slice(), br#"{"log_verbose_level": 1}"#].concat();
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, &settings).expect("there is memory");
    for (coding, body) in [("identity", settings), ("gzip", encoder.finish().expect("there is memory"))] {
        let head = format!(
            "POST /v2/logging HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Encoding: {coding}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(server.http).await.expect("the port is open");
        stream.write_all(&[head.as_bytes(), &body].concat()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{coding}: {answer}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a_proxy_on_this_host_do_not_change_the_server() {
    let mut server = Server::start().await;
    for line in
        ["X-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1", "Via: 1.1 proxy", "Host: trireme.default.svc"]
    {
        for path in ["/v2/logging", "/v2/trace/setting", "/v2/repository/models/m/unload"] {
            let (status, answer) = send(server.http, "POST", path, &[line]).await;
            assert!(status == 403 && answer.contains("--admin-api-key"), "{path} {line}: {answer}");
        }
        assert_eq!(send(server.http, "GET", "/v2/logging", &[line]).await.0, 200, "it only shows something");
    }
    assert_eq!(send(server.http, "POST", "/v2/logging", &[]).await.0, 200);

    let unload = || RepositoryModelUnloadRequest { model_name: "m".to_owned(), ..Default::default() };
    for name in ["x-forwarded-for", "forwarded", "via"] {
        let mut call = tonic::Request::new(unload());
        call.metadata_mut().insert(name, "192.0.2.1".parse().expect("a value"));
        let refused = server.client.repository_model_unload(call).await.expect_err(name);
        assert!(refused.message().contains("--admin-api-key"), "{refused}");
    }
    server.client.repository_model_unload(unload()).await.expect("a program of this host may");
    let address = format!("http://{}", server.grpc);
    let channel = tonic::transport::Endpoint::from_shared(address).expect("an address");
    let channel =
        channel.origin("http://trireme.default.svc".parse().expect("an origin")).connect().await.expect("it is open");
    let mut proxied = grpc_inference_service_client::GrpcInferenceServiceClient::new(channel);
    let refused = proxied.repository_model_unload(unload()).await.expect_err("another authority");
    assert!(refused.message().contains("--admin-api-key"), "{refused}");
    server.stop().await;
}
