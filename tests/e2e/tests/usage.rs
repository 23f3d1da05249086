//! Limits of owners, and what owners have used.

use std::process::Command;
use std::sync::Barrier;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Response, Sandbox, Setup, in_one_mode, product, wait_until, workspace};

in_one_mode!(what_owners_use_is_counted_limited_and_kept);

const LIMIT: Duration = Duration::from_secs(60);

/// Requests per minute that bob may send.
const FEW: usize = 5;

const FLAGS: [&str; 5] = [
    "--api-key=alice=the-key-of-alice",
    "--api-key=bob=the-key-of-bob",
    "--admin-api-key=the-key-of-root",
    "--owner=bob:rpm=5,tpm=100000",
    "--owner=alice:tpm=1000000",
];

fn start(mode: Mode, data: &str) -> Setup {
    let setup = Setup::new(mode).repository(&workspace().join("tests/repositories/texts"));
    let flags = FLAGS.into_iter().chain((mode == Mode::AllInOne).then_some(["--data-dir", data]).into_iter().flatten());
    setup.gateway_arguments(&flags.collect::<Vec<_>>())
}

fn embed(text: &str, key: &str) -> Request {
    let body = json!({"model": "embedding", "input": [text, "and another"]}).to_string();
    let request = Request::post("/v1/embeddings", body).header("Content-Type", "application/json");
    request.header("Authorization", &format!("Bearer the-key-of-{key}"))
}

/// The sum of the usage of an owner, as a key sees it.
fn used(sandbox: &Sandbox, key: &str, owner: &str) -> Value {
    let request = Request::get("/v2/trireme/usage?by=total").header("X-API-Key", &format!("the-key-of-{key}"));
    let answer = sandbox.send(&request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let document = answer.json();
    let lines = document["usage"].as_array().expect("a list").iter().filter(|line| line["owner"] == owner);
    let mut sum = json!({});
    for line in lines {
        for name in ["requests", "errors", "refused", "rows", "tokens"] {
            sum[name] = json!(sum[name].as_u64().unwrap_or(0) + line[name].as_u64().expect("a number"));
        }
        if line["tokens"] != 0 {
            assert!(line["model_seconds"].as_f64().expect("a number") > 0.0, "{line}");
        }
    }
    sum
}

fn tokens(answer: &Response) -> u64 {
    answer.json()["usage"]["prompt_tokens"].as_u64().expect("its tokens")
}

fn what_owners_use_is_counted_limited_and_kept(mode: Mode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().to_str().expect("UTF-8").to_owned();
    let mut sandbox = start(mode, &data).start();

    // 24 connections of bob at the same instant.
    let barrier = Barrier::new(24);
    let answers: Vec<Response> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..24)
            .map(|number| {
                let (sandbox, barrier) = (&sandbox, &barrier);
                scope.spawn(move || {
                    let request = embed(&"word ".repeat(number), "bob");
                    barrier.wait();
                    sandbox.send(&request)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    });
    let (answered, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 200);
    assert_eq!((answered.len(), refused.len()), (FEW, 24 - FEW));
    for answer in &refused {
        assert_eq!(answer.status, 429, "{}", answer.text());
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "rate_limit_exceeded", "{error}");
        assert!(
            error["message"].as_str().is_some_and(|why| why.contains("owner 'bob'") && why.contains("rpm=5")),
            "{error}"
        );
        let after: u64 = answer.header("retry-after").and_then(|after| after.parse().ok()).expect("a time");
        assert!((50..=61).contains(&after), "{after}");
        assert_eq!(answer.header("x-ratelimit-limit-requests"), Some("5"));
        assert_eq!(answer.header("x-ratelimit-remaining-requests"), Some("0"));
        assert!(answer.header("x-ratelimit-reset-requests").is_some_and(|time| time.ends_with('s')));
    }
    // The v2 protocol has its own shape.
    let raw = json!({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]}]});
    let answer = sandbox.send(&Request::infer("embedding", &raw).header("X-API-Key", "the-key-of-bob"));
    assert_eq!((answer.status, answer.header("retry-after").is_some()), (429, true), "{}", answer.text());
    assert!(answer.error().contains("owner 'bob'"), "{}", answer.text());

    let mut of_alice = 0;
    for number in 0..7 {
        let answer = sandbox.send(&embed(&"word ".repeat(number), "alice"));
        assert_eq!(answer.status, 200, "{}", answer.text());
        of_alice += tokens(&answer);
        let left = answer.header("x-ratelimit-remaining-tokens").and_then(|left| left.parse().ok());
        assert_eq!(left, Some(1_000_000 - of_alice), "tokens of the answers count, not those that were reserved");
        assert_eq!(answer.header("x-ratelimit-limit-requests"), None, "alice has no such limit");
    }
    let wrong = json!({"model": "embedding", "input": "a", "dimensions": 1_000_000}).to_string();
    let wrong = Request::post("/v1/embeddings", wrong).header("Authorization", "Bearer the-key-of-alice");
    assert_eq!(sandbox.send(&wrong.header("Content-Type", "application/json")).status, 400);

    let of_bob: u64 = answered.iter().map(tokens).sum();
    let bob = json!({"requests": FEW, "errors": 0, "refused": 24 - FEW + 1, "rows": 2 * FEW, "tokens": of_bob});
    assert_eq!(used(&sandbox, "root", "bob"), bob);
    assert_eq!(used(&sandbox, "bob", "bob"), bob);
    assert_eq!(used(&sandbox, "bob", "alice"), json!({}), "a key shows its owner's usage only");
    for (key, path) in [("bob", ""), ("root", "?project_ids[]=bob")] {
        let path = format!("/v1/organization/usage/embeddings{path}");
        let answer = sandbox.send(&Request::get(&path).header("Authorization", &format!("Bearer the-key-of-{key}")));
        let page = answer.json();
        let result = &page["data"][0]["results"][0];
        let found = (&result["input_tokens"], &result["num_model_requests"], &page["has_more"]);
        assert_eq!(found, (&json!(of_bob), &json!(FEW), &json!(false)), "{page}");
    }
    let alice = used(&sandbox, "root", "alice");
    assert_eq!((&alice["tokens"], &alice["rows"]), (&json!(of_alice), &json!(14)));

    // A durable request under one key is counted once.
    let durable = || {
        let request = embed("later", "alice").header("Prefer", "respond-async, wait=30");
        sandbox.send(&request.header("Idempotency-Key", "order-1"))
    };
    let (first, again) = (durable(), durable());
    assert_eq!((first.status, again.status), (200, 200), "{} {}", first.text(), again.text());
    of_alice += tokens(&first);
    assert_eq!(used(&sandbox, "root", "alice")["tokens"], json!(of_alice));

    // Reading writes it first, and then the process is killed.
    sandbox.gateway.kill();
    let nats = sandbox.nats.take();
    drop(sandbox);
    let mut sandbox = start(mode, &data).start_on(nats);
    assert_eq!(used(&sandbox, "root", "alice")["tokens"], json!(of_alice), "after kill -9");

    // A gateway that is stopped in order writes its counts.
    of_alice += tokens(&sandbox.send(&embed("before the end", "alice")));
    sandbox.gateway.terminate();
    assert_eq!(sandbox.gateway.wait_exit(LIMIT).code(), Some(0), "{}", sandbox.gateway.log_tail());
    let nats = sandbox.nats.take();
    drop(sandbox);
    let sandbox = start(mode, &data).start_on(nats);
    assert_eq!(used(&sandbox, "root", "alice")["tokens"], json!(of_alice), "after a stop");
    assert_eq!(used(&sandbox, "root", "bob"), bob);

    let shown = |arguments: &[&str]| {
        let mut command: Command = product("trireme");
        let server = format!("http://{}", sandbox.address);
        command.args(["usage", "--header", "X-API-Key: the-key-of-root", "--server", &server]).args(arguments);
        let output = command.output().expect("trireme runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let cost = format!("{:.6}", of_bob as f64 * 2e-6);
    let csv = shown(&["--csv", "--by", "total", "--owner", "bob", "--price", "embedding=2"]);
    let row = csv.lines().nth(1).expect("a row");
    assert!(
        row.contains(&format!(",bob,embedding,Model,{of_bob},Tokens,")) && row.contains(&format!(",{cost},")),
        "{csv}"
    );
    assert!(shown(&[]).contains("alice"), "{}", shown(&[]));
}

/// Limits in a file of keys hold within seconds of a change, and counts of before stay.
#[test]
fn limits_change_while_the_server_runs() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("keys.json").to_str().expect("UTF-8").to_owned();
    let keys = |arguments: &[&str]| -> String {
        let output = product("trireme").arg("keys").args(arguments).args(["--api-key-file", &path]).output();
        let output = output.expect("trireme runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    };
    let key = keys(&["add", "alice"]);
    let setup = Setup::new(Mode::AllInOne).repository(&workspace().join("tests/repositories/texts"));
    let sandbox = setup.gateway_arguments(&["--api-key-file", &path]).start();
    let send = || {
        let body = json!({"model": "embedding", "input": "a text"}).to_string();
        sandbox.send(&Request::post("/v1/embeddings", body).header("Authorization", &format!("Bearer {key}")))
    };
    assert_eq!(send().header("x-ratelimit-limit-requests"), None);
    assert_eq!(keys(&["limit", "alice", "rpm=100000"]), "alice: rpm=100000");
    wait_until("the limit is known", LIMIT, || {
        (send().header("x-ratelimit-limit-requests") == Some("100000")).then_some(())
    });
    assert!(keys(&["list"]).contains("rpm=100000"));
    keys(&["limit", "alice", "rpm=1"]);
    wait_until("the lower limit holds", LIMIT, || (send().status == 429).then_some(()));
    keys(&["limit", "alice", "none"]);
    wait_until("the limit is gone", LIMIT, || (send().status == 200).then_some(()));
}
