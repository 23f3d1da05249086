//! `--access-log`, and the id of a request.

use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Response, Sandbox, Setup, in_one_mode, texts_repository, wait_until};

in_one_mode!(each_request_has_a_line_and_an_id, lines_come_as_words_too);

const LIMIT: Duration = Duration::from_secs(20);

fn start(mode: Mode, format: &str) -> Sandbox {
    let arguments = ["--access-log", format, "--api-key", "alice=secret"];
    Setup::new(mode).repository(&texts_repository()).gateway_arguments(&arguments).start()
}

fn ask(sandbox: &Sandbox, path: &str, body: &Value, id: &str) -> Response {
    let request = Request::post(path, body.to_string()).header("Content-Type", "application/json");
    sandbox.send(&request.header("Authorization", "Bearer secret").header("X-Request-Id", id))
}

fn each_request_has_a_line_and_an_id(mode: Mode) {
    let sandbox = start(mode, "json");
    let body = json!({"model": "embedding", "input": "a secret text"});
    let answered = ask(&sandbox, "/v1/embeddings?secret=query", &body, "client-7");
    assert_eq!((answered.status, answered.header("x-request-id")), (200, Some("client-7")), "{}", answered.text());
    let made = ask(&sandbox, "/tei/classifier/predict", &json!({"inputs": "a secret text"}), "two words");
    let id = made.header("x-request-id").expect("an id").to_owned();
    assert_eq!((made.status, id.len()), (200, 32));
    let v2 = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a secret text"]}]});
    assert_eq!(ask(&sandbox, "/v2/models/embedding/infer", &v2, "v2-1").status, 200);
    assert_eq!(ask(&sandbox, "/no/such/secret", &json!({}), "lost").status, 404);
    assert_eq!(sandbox.send(&Request::post("/v1/embeddings", body.to_string())).status, 401);

    let line = |id: &str| {
        wait_until("the line", LIMIT, || {
            let lines = sandbox.gateway.output();
            let mut lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.find(|line| line["request_id"] == id)
        })
    };
    let first = line("client-7");
    let expected = json!({
        "method": "POST", "route": "/v1/embeddings", "model": "embedding", "status": 200, "owner": "alice",
        "client": "127.0.0.1",
    });
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(first[name], *value, "{first}");
    }
    assert_eq!(first["bytes_in"], json!(body.to_string().len()), "{first}");
    assert_eq!(first["bytes_out"], json!(answered.body.len()), "{first}");
    assert!(first["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0 && seconds < 60.0), "{first}");
    let of_path = line(&id);
    assert_eq!((&of_path["route"], &of_path["model"]), (&json!("/tei/{model}/predict"), &json!("classifier")));
    let of_v2 = line("v2-1");
    assert_eq!(of_v2["messages"].as_array().map(Vec::len), Some(1), "{of_v2}");
    assert_eq!((&of_v2["route"], &of_v2["model"]), (&json!("/v2/models/{model}/infer"), &json!("embedding")));
    assert_eq!((&line("lost")["route"], &line("lost")["status"]), (&json!("-"), &json!(404)));
    wait_until("the request without a key", LIMIT, || {
        sandbox.gateway.output().contains(r#""status":401"#).then_some(())
    });
    assert!(!sandbox.gateway.output().contains("secret"), "{}", sandbox.gateway.output());
}

fn lines_come_as_words_too(mode: Mode) {
    let sandbox = start(mode, "text");
    ask(&sandbox, "/v1/embeddings", &json!({"model": "no\nsuch", "input": "a"}), "id-1");
    let line = wait_until("the line", LIMIT, || {
        let lines = sandbox.gateway.output();
        lines.lines().find(|line| line.contains("id=id-1")).map(str::to_owned)
    });
    assert!(line.contains(" POST /v1/embeddings 404 "), "{line}");
    assert!(
        line.ends_with(r#"id=id-1 owner="alice""#) || line.ends_with(r#"model="no\nsuch" owner="alice""#),
        "{line}"
    );
}
