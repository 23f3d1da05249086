//! Durable requests, files and batches: an accepted request is answered, whichever process dies.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Response, Sandbox, Setup, Stage, in_every_mode, load, product,
    texts_repository, wait_until, workspace,
};

in_every_mode!(
    a_request_is_accepted_and_answered_later,
    a_batch_of_embeddings_is_a_file_in_and_a_file_out,
    a_queue_without_workers_holds_what_was_accepted,
    what_is_refused_again_and_again_delays_nothing_else,
);

const LIMIT: Duration = Duration::from_secs(60);

/// Gateways forward every header that they may, which changes nothing for durable work.
fn setup(mode: Mode, folder: &Path) -> Setup {
    let setup = Setup::new(mode).repository(&workspace().join("tests/repositories/texts"));
    let forward = "--http-header-forward-pattern=.*";
    match mode {
        Mode::Services => setup.gateway_arguments(&[forward]),
        _ => setup.gateway_arguments(&[forward, "--data-dir", folder.to_str().expect("UTF-8")]),
    }
}

fn embed(text: &str) -> Request {
    let body = json!({"model": "embedding", "input": text}).to_string();
    Request::post("/v1/embeddings", body).header("Content-Type", "application/json")
}

fn vector(answer: &Value) -> Vec<f64> {
    let values = answer["data"][0]["embedding"].as_array().unwrap_or_else(|| panic!("no vector in {answer}"));
    values.iter().filter_map(Value::as_f64).collect()
}

fn send(address: SocketAddr, request: &Request) -> Response {
    request.send(address).expect("the gateway answers")
}

/// The answer to a durable request, once there is one.
pub fn answer(address: SocketAddr, location: &str) -> Response {
    wait_until(&format!("the answer of {location}"), LIMIT, || {
        let answer = Request::get(&format!("{location}/response")).send(address).ok()?;
        (answer.status != 202).then_some(answer)
    })
}

fn a_request_is_accepted_and_answered_later(mode: Mode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sandbox = setup(mode, folder.path()).start();
    let address = sandbox.address;
    let live = send(address, &embed("what cause covid"));
    let urgent = send(address, &embed("what cause covid").header("Priority", "u=1").header("Timeout", "Second-9"));
    assert_eq!((urgent.status, vector(&urgent.json())), (200, vector(&live.json())));
    let accepted = send(address, &embed("what cause covid").header("Prefer", "respond-async"));
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    assert_eq!(accepted.header("preference-applied"), Some("respond-async"));
    let location = accepted.header("location").expect("a location").to_owned();
    assert_eq!(vector(&answer(address, &location).json()), vector(&live.json()));
    assert_eq!(send(address, &Request::get(&location)).json()["status"], "completed");

    // The client may wait for the answer itself.
    let waited = send(address, &embed("what cause covid").header("Prefer", "respond-async, wait=30"));
    assert_eq!((waited.status, vector(&waited.json())), (200, vector(&live.json())));

    // An error is an answer, too.
    let wrong = send(address, &Request::post("/v2/models/none/infer", "{}").header("Prefer", "respond-async"));
    let wrong = answer(address, wrong.header("location").expect("a location"));
    assert_eq!(wrong.status, 404);
    assert!(wrong.error().contains("unknown model: 'none'"), "{}", wrong.error());

    // The same key is the same request.
    let keyed =
        |text: &str| send(address, &embed(text).header("Prefer", "respond-async").header("Idempotency-Key", "k"));
    let (first, second, other) = (keyed("a"), keyed("a"), keyed("b"));
    assert_eq!(first.header("location"), second.header("location"));
    assert_eq!(other.status, 422);

    let deleted = send(address, &Request::new("DELETE", &location));
    assert_eq!(deleted.status, 204);
    assert_eq!(send(address, &Request::get(&location)).status, 404);
}

/// Uploads lines; returns the id of the file.
pub fn upload(address: SocketAddr, lines: &str) -> String {
    let form = format!(
        "--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\nContent-Disposition: \
         form-data; name=\"file\"; filename=\"lines.jsonl\"\r\nContent-Type: application/jsonl\r\n\r\n{lines}\r\n--edge--\r\n"
    );
    let request = Request::post("/v1/files", form).header("Content-Type", "multipart/form-data; boundary=edge");
    let file = send(address, &request);
    assert_eq!(file.status, 200, "{}", file.text());
    assert_eq!(file.json()["bytes"], lines.len());
    file.json()["id"].as_str().expect("an id").to_owned()
}

fn lines(count: usize) -> String {
    let line = |number: usize| {
        let body = json!({"model": "embedding", "input": format!("text {number} {}", "again ".repeat(number % 9))});
        let line = json!({"custom_id": format!("{number}"), "method": "POST", "url": "/v1/embeddings", "body": body});
        format!("{line}\n")
    };
    (0..count).map(line).collect()
}

fn begin(address: SocketAddr, file: &str) -> String {
    let body = json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"});
    let batch = send(address, &Request::post("/v1/batches", body.to_string()));
    assert_eq!(batch.status, 200, "{}", batch.text());
    batch.json()["id"].as_str().expect("an id").to_owned()
}

/// The batch, once it has ended.
pub fn ended(address: SocketAddr, batch: &str) -> Value {
    wait_until("the end of the batch", Duration::from_secs(180), || {
        let batch = Request::get(&format!("/v1/batches/{batch}")).send(address).ok()?.json();
        let state = batch["status"].as_str().unwrap_or_default().to_owned();
        ["completed", "failed", "expired", "cancelled"].contains(&state.as_str()).then_some(batch)
    })
}

pub fn content(address: SocketAddr, file: &Value) -> Vec<Value> {
    let file = file.as_str().expect("a file");
    let content = send(address, &Request::get(&format!("/v1/files/{file}/content")));
    assert_eq!(content.status, 200, "{}", content.text());
    content.text().lines().map(|line| serde_json::from_str(line).expect("JSON in each line")).collect()
}

/// A batch has written the file at several checkpoints.
fn check_ranges(address: SocketAddr, file: &Value) {
    let path = format!("/v1/files/{}/content", file.as_str().expect("a file"));
    let whole = send(address, &Request::get(&path));
    let (bytes, size) = (&whole.body, whole.body.len());
    let etag = whole.header("etag").expect("a version").to_owned();
    let ranged = |range: &str| Request::get(&path).header("Range", range);
    for from in (0..size).step_by(size / 13) {
        let to = (from + size / 5).min(size - 1);
        let part = send(address, &ranged(&format!("bytes={from}-{to}")).header("If-Range", &etag));
        assert_eq!(part.status, 206);
        assert_eq!(part.header("content-range"), Some(format!("bytes {from}-{to}/{size}").as_str()));
        assert!(part.body == bytes[from..=to], "bytes {from} to {to}");
        let rest = send(address, &ranged(&format!("bytes={from}-")));
        assert!((rest.status, &rest.body[..]) == (206, &bytes[from..]), "from byte {from}");
        let last = send(address, &ranged(&format!("bytes=-{from}")));
        assert!(from == 0 || (last.status, &last.body[..]) == (206, &bytes[size - from..]), "the last {from} bytes");
    }
    let none = send(address, &ranged(&format!("bytes={size}-")));
    assert_eq!((none.status, none.header("content-range")), (416, Some(format!("bytes */{size}").as_str())));
    for all in [ranged("bytes=0-9").header("If-Range", "\"other\""), ranged("bytes=0-9,20-29"), ranged("lines=0-9")] {
        let all = send(address, &all);
        assert!((all.status, &all.body) == (200, bytes));
    }
}

fn a_batch_of_embeddings_is_a_file_in_and_a_file_out(mode: Mode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sandbox = setup(mode, folder.path()).start();
    let address = sandbox.address;
    let bad =
        r#"{"custom_id": "bad", "method": "POST", "url": "/v1/embeddings", "body": {"model": "none", "input": "a"}}"#;
    let batch = ended(address, &begin(address, &upload(address, &(lines(300) + bad + "\nrubbish\n"))));
    assert_eq!(batch["status"], "completed", "{batch}");
    assert_eq!(batch["request_counts"], json!({"total": 302, "completed": 300, "failed": 2}));
    let shown =
        product("trireme").args(["status", "--server", &address.to_string()]).output().expect("the command runs");
    let table = String::from_utf8_lossy(&shown.stdout);
    let line =
        table.lines().find(|line| line.contains(batch["id"].as_str().expect("an id"))).expect("the batch's line");
    assert!(["completed", "302", " 2 "].iter().all(|part| line.contains(part)), "{table}");
    let output = content(address, &batch["output_file_id"]);
    assert_eq!(output.len(), 300);
    for (number, line) in output.iter().enumerate() {
        assert_eq!(line["custom_id"], number.to_string());
        assert_eq!(vector(&line["response"]["body"]).len(), vector(&output[0]["response"]["body"]).len());
    }
    let live = send(address, &embed("text 8 again again again again again again again again "));
    let (found, expected) = (vector(&output[8]["response"]["body"]), vector(&live.json()));
    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?} {expected:?}");
    check_ranges(address, &batch["output_file_id"]);
    let errors = content(address, &batch["error_file_id"]);
    assert_eq!((&errors[0]["custom_id"], &errors[0]["response"]["status_code"]), (&json!("bad"), &json!(404)));
    assert_eq!(errors[1]["error"]["code"], "invalid_line");

    let listed = send(address, &Request::get("/v1/batches?limit=1")).json();
    assert_eq!(listed["data"][0]["id"], batch["id"]);
    let file = batch["output_file_id"].as_str().expect("a file");
    assert_eq!(send(address, &Request::new("DELETE", &format!("/v1/files/{file}"))).json()["deleted"], true);
    assert_eq!(send(address, &Request::get(&format!("/v1/files/{file}/content"))).status, 404);
    let wrong = json!({"input_file_id": "none", "endpoint": "/v2/repository/index", "completion_window": "24h"});
    let wrong = send(address, &Request::post("/v1/batches", wrong.to_string()));
    assert_eq!(wrong.status, 400);
    assert!(wrong.json()["error"]["message"].as_str().is_some_and(|text| text.contains("'endpoint' is '/v2/repo")));

    // Its record stays small, and a form is read as it is.
    let large = json!({"input_file_id": "none", "endpoint": "/v1/embeddings", "completion_window": "24h", "metadata": {"a": "b".repeat(513)}});
    let large = send(address, &Request::post("/v1/batches", large.to_string()));
    assert_eq!(
        (large.status, large.text().contains("'metadata.a' has 513 characters")),
        (400, true),
        "{}",
        large.text()
    );
    let rows = json!({"input_file_id": "none", "endpoint": "/v1/embeddings", "completion_window": "24h", "body": {"a": "b".repeat(70_000)}});
    assert_eq!(send(address, &Request::post("/v1/batches", rows.to_string())).status, 400);
    let form = Request::post("/v1/files", "any").header("Content-Type", "multipart/form-data; boundary=edge");
    let coded = send(address, &form.header("Content-Encoding", "gzip"));
    assert_eq!((coded.status, coded.text().contains("Content-Encoding is 'gzip'")), (415, true), "{}", coded.text());
    let asked = json!({"input_file_id": "none", "endpoint": "/v1/embeddings", "completion_window": "24h"}).to_string();
    let coded = send(address, &Request::post("/v1/batches", asked).header("Content-Encoding", "br"));
    let says = coded.text().contains("Content-Encoding is 'br', expected one of gzip, deflate");
    assert_eq!((coded.status, says), (415, true), "{}", coded.text());
}

/// A request for a model whose worker is not there yet waits; all processes and the broker are killed meanwhile.
fn a_queue_without_workers_holds_what_was_accepted(mode: Mode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if mode != Mode::Services {
        let sandbox = setup(mode, folder.path()).start();
        let file = upload(sandbox.address, &lines(2000));
        let batch = begin(sandbox.address, &file);
        let request = send(sandbox.address, &embed("a").header("Prefer", "respond-async"));
        let location = request.header("location").expect("a location").to_owned();
        // Killed, as every process of a sandbox is at its end.
        drop(sandbox);
        let sandbox = setup(mode, folder.path()).start();
        assert_eq!(answer(sandbox.address, &location).status, 200);
        check_whole(sandbox.address, &batch, 2000);
        return;
    }
    let mut sandbox = setup(mode, folder.path()).start();
    sandbox.worker(Stage::Model, 0).kill();
    let (mut other, address) = second_gateway(&sandbox, folder.path());
    let batch = begin(address, &upload(address, &lines(500)));
    let request = send(address, &embed("a").header("Prefer", "respond-async"));
    let location = request.header("location").expect("a location").to_owned();
    other.kill();
    sandbox.start_worker(Stage::Model);
    assert_eq!(answer(sandbox.address, &location).status, 200, "the first gateway has taken it over");
    check_whole(sandbox.address, &batch, 500);
}

fn check_whole(address: SocketAddr, batch: &str, count: usize) {
    let batch = ended(address, batch);
    assert_eq!(batch["request_counts"], json!({"total": count, "completed": count, "failed": 0}), "{batch}");
    let output = content(address, &batch["output_file_id"]);
    let ids: Vec<String> = output.iter().filter_map(|line| line["custom_id"].as_str().map(str::to_owned)).collect();
    assert_eq!(ids, (0..count).map(|number| number.to_string()).collect::<Vec<_>>());
}

/// A model answers nothing in time, and a client gives its own requests less time than they need.
fn what_is_refused_again_and_again_delays_nothing_else(mode: Mode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let repository =
        ModelFolder::copy_of(&workspace().join("tests/repositories/texts")).slow("stuck", 20_000).slow("late", 1_000);
    let data = folder.path().to_str().expect("UTF-8");
    let arguments = ["--default-timeout-ms", "2000", "--data-dir", data];
    let count = if mode == Mode::Services { 2 } else { 4 };
    let sandbox = Setup::new(mode).repository(repository.path()).gateway_arguments(&arguments[..count]).start();
    let address = sandbox.address;
    let accepted = |request: Request| -> String {
        let accepted = send(address, &request.header("Prefer", "respond-async"));
        assert_eq!(accepted.status, 202, "{}", accepted.text());
        accepted.header("location").expect("a location").to_owned()
    };
    let answer_texts = || {
        let began = std::time::Instant::now();
        let outcome = load(
            120,
            8,
            |number| {
                let location = accepted(embed(&format!("text {number}")));
                assert_eq!(answer(address, &location).status, 200);
            },
            || {},
        );
        outcome.assert_all_right(120);
        began.elapsed()
    };
    let alone = answer_texts();
    let numbers = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.0]}]});
    let stuck: Vec<String> = (0..40).map(|_| accepted(Request::infer("stuck", &numbers))).collect();
    let hasty = |_| {
        let body = json!({"inputs": numbers["inputs"], "parameters": {"trireme_timeout_ms": 1}});
        accepted(Request::infer("late", &body))
    };
    for location in (1..=5).map(hasty).collect::<Vec<_>>() {
        let late = answer(address, &location);
        assert_eq!(late.status, 503, "the client's own time is over: {}", late.text());
        assert!(late.error().contains("timeout expired"), "{}", late.error());
    }
    wait_until("a refusal", LIMIT, || {
        let statistics = send(address, &Request::get("/v2/models/stuck/stats")).json();
        let failed = statistics["model_stats"][0]["inference_stats"]["fail"]["count"].as_u64()?;
        (failed > 0).then_some(())
    });
    // Behind 40 requests that are refused every two seconds they would take much longer.
    let beside = answer_texts();
    assert!(beside < 8 * alone, "{beside:?} beside stuck requests, {alone:?} alone");
    for location in &stuck[..3] {
        assert_eq!(send(address, &Request::get(location)).json()["status"], "queued");
        assert_eq!(send(address, &Request::new("DELETE", location)).json()["status"], "cancelled");
    }
}

/// Another gateway of the same system, and where it listens.
fn second_gateway(sandbox: &Sandbox, folder: &Path) -> (Process, SocketAddr) {
    let nats = sandbox.nats.as_ref().expect("services have a broker").url();
    let mut command = product("trireme-gateway");
    command.args(["--nats-url", &nats, "--model-repository"]).arg(workspace().join("tests/repositories/texts"));
    let gateway = Process::start("second-gateway", &mut command, folder);
    let address = wait_until("the second gateway listens", LIMIT, || {
        let listener = gateway.events().into_iter().find(|event| event["message"] == "HTTP listener")?;
        listener["address"].as_str()?.parse().ok()
    });
    (gateway, address)
}

#[test]
fn a_durable_request_is_admitted_like_a_live_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().to_str().expect("UTF-8").to_owned();
    let repository = workspace().join("tests/repositories/texts");
    let start = |rule: [&str; 2]| {
        let arguments = ["--data-dir", &data, rule[0], rule[1]];
        Setup::new(Mode::AllInOne).repository(&repository).gateway_arguments(&arguments).start()
    };
    let later = || embed("a").header("Prefer", "respond-async");
    let restricted = start(["--http-restricted-api", "inference:x-team=secret"]);
    let (refused, live) = (restricted.send(&later()), restricted.send(&embed("a")));
    assert_eq!((refused.status, refused.text()), (403, live.text()));
    assert!(live.text().contains("this API is restricted, expected header 'x-team'"), "{}", live.text());
    assert_eq!(restricted.send(&later().header("X-Team", "secret")).status, 202);
    drop(restricted);
    let keyed = start(["--api-key", "key"]);
    let refused = keyed.send(&later());
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
    assert_eq!(keyed.send(&later().header("X-API-Key", "key")).status, 202);
}

#[test]
fn without_a_place_to_keep_them_jobs_are_refused() {
    let sandbox = Setup::new(Mode::AllInOne).repository(&texts_repository()).shared();
    for request in
        [embed("a").header("Prefer", "respond-async"), Request::get("/v1/files"), Request::get("/v1/batches")]
    {
        let refused = sandbox.send(&request);
        assert_eq!(refused.status, 501);
        assert!(refused.text().contains("--data-dir"), "{}", refused.text());
    }
}
