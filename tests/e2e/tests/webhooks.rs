//! Webhooks of durable requests and batches: signed, repeated until they are taken, also by another gateway. And jobs that
//! begin later.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde_json::{Value, json};
use trireme_e2e::{Mode, Process, Request, Response, Setup, in_one_mode, product, wait_until, workspace};

in_one_mode!(webhooks_are_signed_and_repeated, jobs_begin_when_their_time_has_come);

const LIMIT: Duration = Duration::from_secs(60);

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// An HTTP server that notes its requests, and answers with the given statuses, then with 204.
struct Receiver {
    address: SocketAddr,
    calls: Arc<Mutex<Vec<Call>>>,
    statuses: Arc<Mutex<VecDeque<u16>>>,
}

/// A request to a [`Receiver`].
#[derive(Clone, Debug)]
struct Call {
    path: String,
    /// Names in lower case.
    headers: Vec<(String, String)>,
    body: String,
}

// === impl Receiver ===

impl Receiver {
    fn start(statuses: &[u16]) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (calls, statuses) = (Arc::<Mutex<Vec<Call>>>::default(), Arc::new(Mutex::new(statuses.to_vec().into())));
        let receiver = Receiver { address, calls: calls.clone(), statuses: statuses.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (calls, statuses) = (calls.clone(), statuses.clone());
                std::thread::spawn(move || serve(stream, &calls, &statuses));
            }
        });
        receiver
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The calls of a path, once there are so many.
    fn calls(&self, path: &str, count: usize) -> Vec<Call> {
        wait_until(&format!("{count} calls of {path}"), LIMIT, || {
            let calls = self.calls.lock().expect("no thread panics");
            let calls: Vec<_> = calls.iter().filter(|call| call.path == path).cloned().collect();
            (calls.len() >= count).then_some(calls)
        })
    }
}

fn serve(stream: TcpStream, calls: &Mutex<Vec<Call>>, statuses: &Mutex<VecDeque<u16>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let path = line.split(' ').nth(1)?.to_owned();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let call = Call { path, headers, body: String::new() };
        let mut body = vec![0; call.header("content-length").parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        let status = statuses.lock().ok()?.pop_front().unwrap_or(204);
        calls.lock().ok()?.push(Call { body: String::from_utf8(body).ok()?, ..call });
        let location = format!("Location: http://{}/elsewhere\r\n", stream.local_addr().ok()?);
        let location = if (300..400).contains(&status) { location } else { String::new() };
        write!(&stream, "HTTP/1.1 {status} X\r\n{location}Content-Length: 0\r\n\r\n").ok()?;
    }
}

// === impl Call ===

impl Call {
    fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(own, _)| own == name).map_or("", |(_, value)| value)
    }

    /// Checks the signature as a receiver does, and returns the event.
    fn verified(&self) -> Value {
        let key = STANDARD.decode(SECRET.trim_start_matches("whsec_")).expect("base64");
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        let (id, time) = (self.header("webhook-id"), self.header("webhook-timestamp"));
        let signature = self.header("webhook-signature").strip_prefix("v1,").expect("a signature of version 1");
        let signed = format!("{id}.{time}.{}", self.body);
        hmac::verify(&key, signed.as_bytes(), &STANDARD.decode(signature).expect("base64")).expect("a valid signature");
        assert!(now().abs_diff(time.parse().expect("a number")) < 300, "{self:?}");
        assert_eq!(self.header("content-type"), "application/json");
        let event: Value = serde_json::from_str(&self.body).expect("JSON");
        assert_eq!(event["id"], id);
        event
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

fn setup(mode: Mode, folder: &Path, arguments: &[&str]) -> Setup {
    let mut all = arguments.to_vec();
    if mode == Mode::AllInOne {
        all.extend(["--data-dir", folder.to_str().expect("UTF-8")]);
    }
    Setup::new(mode).repository(&workspace().join("tests/repositories/texts")).gateway_arguments(&all)
}

const CALLS_HERE: [&str; 4] = ["--jobs-webhook-secret", SECRET, "--jobs-webhook-allow", "127.0.0.1"];

fn embed(text: &str) -> Request {
    let body = json!({"model": "embedding", "input": text}).to_string();
    Request::post("/v1/embeddings", body).header("Content-Type", "application/json")
}

fn later(text: &str) -> Request {
    embed(text).header("Prefer", "respond-async")
}

fn send(address: SocketAddr, request: &Request) -> Response {
    request.send(address).expect("the gateway answers")
}

/// The path of an accepted request.
fn accepted(response: &Response) -> String {
    assert_eq!(response.status, 202, "{}", response.text());
    response.header("location").expect("a location").to_owned()
}

/// The state of a request or batch, once `is_there` accepts it.
fn shown(address: SocketAddr, path: &str, is_there: impl Fn(&Value) -> bool) -> Value {
    wait_until(&format!("the state of {path}"), LIMIT, || {
        let job = Request::get(path).send(address).ok()?.json();
        is_there(&job).then_some(job)
    })
}

/// Begins a batch of so many lines with these further fields; returns the answer.
fn batch(address: SocketAddr, lines: usize, fields: &Value) -> Response {
    let line = |number: usize| {
        let body = json!({"model": "embedding", "input": format!("text {number}")});
        json!({"custom_id": number.to_string(), "method": "POST", "url": "/v1/embeddings", "body": body}).to_string()
            + "\n"
    };
    let lines: String = (0..lines).map(line).collect();
    let form = format!(
        "--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\nContent-Disposition: \
         form-data; name=\"file\"; filename=\"lines.jsonl\"\r\n\r\n{lines}\r\n--edge--\r\n"
    );
    let file = Request::post("/v1/files", form).header("Content-Type", "multipart/form-data; boundary=edge");
    let mut body = json!({
        "input_file_id": send(address, &file).json()["id"], "endpoint": "/v1/embeddings", "completion_window": "24h",
    });
    for (name, value) in fields.as_object().expect("an object") {
        body[name] = value.clone();
    }
    send(address, &Request::post("/v1/batches", body.to_string()))
}

fn webhooks_are_signed_and_repeated(mode: Mode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let receiver = Receiver::start(&[500, 302]);
    let sandbox = setup(mode, folder.path(), &CALLS_HERE).start();
    let address = sandbox.address;

    // The first calls fail, and a redirect is not followed.
    let request = later("what cause covid").header("Webhook-Url", &receiver.url("/request"));
    let location = accepted(&send(address, &request));
    let calls = receiver.calls("/request", 3);
    let events: Vec<_> = calls.iter().map(Call::verified).collect();
    assert!(events.iter().all(|event| *event == events[0]), "{events:?}");
    let id = location.rsplit('/').next().expect("an id");
    assert_eq!((&events[0]["type"], &events[0]["data"]["id"]), (&json!("request.completed"), &json!(id)));
    let done = shown(address, &location, |job| job["webhook"]["status"] == "delivered");
    assert_eq!((&done["status"], &done["webhook"]["attempts"]), (&json!("completed"), &json!(3)), "{done}");
    assert!(receiver.calls("/elsewhere", 0).is_empty());

    // A receiver that is gone is not called again.
    receiver.statuses.lock().expect("no thread panics").push_back(410);
    let location = accepted(&send(address, &later("b").header("Webhook-Url", &receiver.url("/gone"))));
    let done = shown(address, &location, |job| job["webhook"]["status"] == "failed");
    assert_eq!(done["webhook"]["last_error"], "the receiver answered 410");

    let begun = batch(address, 20, &json!({"webhook": receiver.url("/batch")}));
    assert_eq!(begun.status, 200, "{}", begun.text());
    let event = receiver.calls("/batch", 1)[0].verified();
    assert_eq!((&event["type"], &event["data"]["id"]), (&json!("batch.completed"), &begun.json()["id"]));
    let path = format!("/v1/batches/{}", begun.json()["id"].as_str().expect("an id"));
    shown(address, &path, |job| job["status"] == "completed" && job["webhook"]["status"] == "delivered");

    // URLs that a gateway must not call, and times that it does not understand.
    for (url, why) in [
        ("http://10.0.0.1/", "no public address"),
        ("https://[::1]/", "no public address"),
        ("http://example.com/", "expected https:"),
        ("here", "is no URL"),
    ] {
        let refused = send(address, &later("a").header("Webhook-Url", url));
        assert!(refused.status == 400 && refused.error().contains(why), "{}", refused.text());
        let refused = batch(address, 1, &json!({"webhook": url}));
        assert!(refused.status == 400 && refused.text().contains(why), "{}", refused.text());
    }
    let live = send(address, &embed("a").header("Webhook-Url", &receiver.url("/live")));
    assert!(live.status == 400 && live.error().contains("respond-async"), "{}", live.text());
    let events = sandbox.gateway.events();
    let listener = events.iter().find(|event| event["message"] == "metrics listener").expect("a listener");
    let metrics: SocketAddr = listener["address"].as_str().and_then(|text| text.parse().ok()).expect("an address");
    for sample in ["{result=\"delivered\"} 2", "{result=\"retried\"} 2", "{result=\"given_up\"} 1"] {
        wait_until(sample, LIMIT, || {
            let text = send(metrics, &Request::get("/metrics")).text();
            text.contains(&format!("trireme_jobs_webhooks_total{sample}\n")).then_some(())
        });
    }
    assert_eq!(receiver.calls("/gone", 1).len(), 1);
}

#[test]
fn without_a_secret_webhooks_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sandbox = setup(Mode::AllInOne, folder.path(), &[]).start();
    let refused = sandbox.send(&later("a").header("Webhook-Url", "https://example.com/"));
    assert!(refused.status == 400 && refused.error().contains("--jobs-webhook-secret"), "{}", refused.text());
}

/// Nobody listens there.
#[test]
fn the_reason_of_a_failed_call_has_no_address() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sandbox = setup(Mode::AllInOne, folder.path(), &CALLS_HERE).start();
    let location = accepted(&sandbox.send(&later("a").header("Webhook-Url", "http://127.0.0.1:1/hook")));
    let job = shown(sandbox.address, &location, |job| job["webhook"]["last_error"].is_string());
    let why = job["webhook"]["last_error"].as_str().expect("a reason");
    assert_eq!(why, "no connection to the receiver, or none that its certificate proves");
}

/// A gateway has called a webhook in vain and is killed. Another one goes on.
#[test]
fn another_gateway_goes_on_with_a_webhook() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let receiver = Receiver::start(&[503]);
    let sandbox = setup(Mode::Services, folder.path(), &CALLS_HERE).start();
    let nats = sandbox.nats.as_ref().expect("services have a broker").url();
    let mut command = product("trireme-gateway");
    command.args(["--nats-url", &nats, "--model-repository"]).arg(workspace().join("tests/repositories/texts"));
    let mut other = Process::start("second-gateway", command.args(CALLS_HERE), folder.path());
    let address: SocketAddr = wait_until("the second gateway listens", LIMIT, || {
        let listener = other.events().into_iter().find(|event| event["message"] == "HTTP listener")?;
        listener["address"].as_str()?.parse().ok()
    });
    let request = later("a").header("Webhook-Url", &receiver.url("/hook"));
    let location = wait_until("the second gateway serves", LIMIT, || {
        let response = request.send(address).ok()?;
        response.header("location").map(str::to_owned)
    });
    let first = receiver.calls("/hook", 1)[0].verified();
    other.kill();
    let calls = receiver.calls("/hook", 2);
    assert_eq!(calls[1].verified(), first, "the event of the first call");
    let done = shown(sandbox.address, &location, |job| job["webhook"]["status"] == "delivered");
    assert_eq!(done["status"], "completed", "{done}");
}

fn jobs_begin_when_their_time_has_come(mode: Mode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sandbox = setup(mode, folder.path(), &[]).start();
    let address = sandbox.address;
    let start = now() + 8;
    let at = |seconds: u64| seconds.to_string();
    let request = accepted(&send(address, &later("a").header("Not-Before", &at(start))));
    let begun = batch(address, 5, &json!({"not_before": start})).json();
    let batch_path = format!("/v1/batches/{}", begun["id"].as_str().expect("an id"));
    let cancelled = accepted(&send(address, &later("b").header("Not-Before", &at(start))));
    let next_year = batch(address, 5, &json!({"not_before": now() + 300 * 24 * 3600})).json();
    assert_eq!((&begun["status"], &begun["not_before"]), (&json!("scheduled"), &json!(start)));
    assert_eq!(begun["expires_at"], start + 24 * 3600, "the window begins with the batch");
    let waits = send(address, &Request::get(&request)).json();
    assert_eq!((&waits["status"], &waits["not_before"]), (&json!("scheduled"), &json!(start)));
    assert_eq!(waits["expires_at"], start + 24 * 3600);
    assert_eq!(send(address, &Request::new("DELETE", &cancelled)).json()["status"], "cancelled");
    let next_year = format!("/v1/batches/{}", next_year["id"].as_str().expect("an id"));
    assert_eq!(send(address, &Request::post(&format!("{next_year}/cancel"), "")).status, 200);
    shown(address, &next_year, |batch| batch["status"] == "cancelled");

    // In one process, the process is killed meanwhile.
    let sandbox = match mode {
        Mode::AllInOne => {
            drop(sandbox);
            setup(mode, folder.path(), &[]).start()
        }
        Mode::Services => sandbox,
    };
    let address = sandbox.address;
    let request = shown(address, &request, |job| job["status"] == "completed");
    assert!(request["ended_at"].as_u64() >= Some(start), "{request}");
    let batch = shown(address, &batch_path, |job| job["status"] == "completed");
    assert!(batch["in_progress_at"].as_u64() >= Some(start), "{batch}");
    assert_eq!(send(address, &Request::get(&cancelled)).json()["status"], "cancelled");

    for (time, why) in [("soon", "RFC"), ("60", "not a pause"), ("2200-01-01T00:00:00Z", "365 days")] {
        let refused = send(address, &later("a").header("Not-Before", time));
        let why = if why == "RFC" { "expected a time such as" } else { why };
        assert!(refused.status == 400 && refused.error().contains(why), "{}", refused.text());
    }
}
