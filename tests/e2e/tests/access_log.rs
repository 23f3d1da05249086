//! `--access-log`, and the id of a request.

use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Request, Response, Sandbox, Setup, Stage, in_one_mode, python, texts_repository, wait_until,
};

in_one_mode!(each_request_has_a_line_and_an_id, lines_come_as_words_too, one_id_leads_through_all_logs);

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

/// The id that a client has given is in the answer, in the error, in the access log, and in the log of the worker.
fn one_id_leads_through_all_logs(mode: Mode) {
    const RAISES: &str = "
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        raise pb_utils.TritonModelException('it is ' + requests[0].request_id())
";
    let config = "backend: 'python' max_batch_size: 0 input [{ name: 'IN' data_type: TYPE_INT32 dims: [1] }]
                  output [{ name: 'OUT' data_type: TYPE_INT32 dims: [1] }]";
    let models = ModelFolder::new().model("raises", config).file("raises/1/model.py", RAISES);
    let arguments = ["--access-log", "json"];
    let setup = Setup::new(mode).repository(models.path()).gateway_arguments(&arguments);
    let none = |setup: Setup, stage| setup.replicas(stage, 0);
    let setup = [Stage::Tokenizer, Stage::Model, Stage::Postprocess].into_iter().fold(setup, none);
    let program = python().display().to_string();
    let sandbox = setup.replicas(Stage::Python, 1).worker_arguments(&["--python", &program]).start();
    let ask = |shape: i64, id: &str| {
        let input = json!({"name": "IN", "datatype": "INT32", "shape": [shape], "data": vec![1; shape as usize]});
        sandbox.send(&Request::infer("raises", &json!({"inputs": [input]})).header("X-Request-Id", id))
    };
    let failed = ask(1, "failed-1");
    assert_eq!((failed.status, failed.header("x-request-id")), (500, Some("failed-1")), "{}", failed.text());
    assert!(failed.text().contains("it is failed-1"), "{}", failed.text());
    let refused = ask(2, "refused-1");
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("[request id: refused-1]"), "{}", refused.text());
    wait_until("the access log", LIMIT, || {
        let output = sandbox.gateway.output();
        ["failed-1", "refused-1"].iter().all(|id| output.contains(id)).then_some(())
    });
    let is_line = |event: &Value| event["id"] == "failed-1" && event["message"] == "request failed";
    wait_until("the worker's line", LIMIT, || {
        sandbox.processes().any(|process| process.events().iter().any(is_line)).then_some(())
    });
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
