//! How each dialect refuses: 401 without a key, 412 for another space, 413 for a body over the limit, 429 for a full queue, 503 for a
//! model that is not ready; each in the dialect's own shape, 429 and 503 with `Retry-After`.

use serde_json::{Value, json};
use trireme_e2e::{KEY, MAX_BODY, Mode, Request, Response, TextsServer, TextsState, in_one_mode};

in_one_mode!(
    without_a_key_and_with_too_much_in_every_dialect,
    another_space_in_every_dialect,
    a_full_queue_in_every_dialect,
    a_model_that_is_not_ready_in_every_dialect,
);

/// A dialect, a route of it with a good body, and the error that a body of its errors holds.
type Case = (&'static str, &'static str, Value, fn(&Value) -> Option<String>);

fn cases() -> Vec<Case> {
    fn nested(body: &Value) -> Option<String> {
        let error = &body["error"];
        let complete = error["type"].is_string() && error.get("param").is_some() && error.get("code").is_some();
        error["message"].as_str().filter(|_| complete).map(str::to_owned)
    }
    fn detail(body: &Value) -> Option<String> {
        body["detail"].as_str().map(str::to_owned)
    }
    fn with_id(body: &Value) -> Option<String> {
        body["message"].as_str().filter(|_| body["id"].is_string()).map(str::to_owned)
    }
    fn typed(body: &Value) -> Option<String> {
        body["error"].as_str().filter(|_| body["error_type"].is_string()).map(str::to_owned)
    }
    fn of_error(body: &Value) -> Option<String> {
        body["message"].as_str().filter(|_| body["object"] == "error" && body["type"].is_string()).map(str::to_owned)
    }
    let embed = json!({"model": "embedding", "input": ["a"]});
    let rerank = json!({"model": "reranker", "query": "q", "documents": ["d"]});
    vec![
        ("openai", "/v1/embeddings", embed.clone(), nested),
        ("openai", "/v1/embeddings", json!({"model": "trireme/tiny-embedding", "input": ["a"]}), nested),
        ("jina", "/jina/v1/embeddings", embed.clone(), detail),
        ("jina", "/jina/v1/rerank", rerank.clone(), detail),
        ("cohere", "/v2/embed", json!({"model": "embedding", "texts": ["a"], "input_type": "search_query"}), with_id),
        ("cohere", "/v2/rerank", rerank.clone(), with_id),
        ("cohere", "/cohere/v1/rerank", rerank.clone(), with_id),
        ("tei", "/embed", json!({"inputs": "a"}), typed),
        ("tei", "/rerank", json!({"query": "q", "texts": ["d"]}), typed),
        ("tei", "/tei/embedding", json!({"inputs": "a"}), typed),
        ("tei", "/tei/embedding/embed", json!({"inputs": "a"}), typed),
        ("tei", "/tei/reranker/rerank", json!({"query": "q", "texts": ["d"]}), typed),
        ("tei", "/tei/classifier/predict", json!({"inputs": "a"}), typed),
        ("tei", "/tei/embedding/similarity", json!({"inputs": {"source_sentence": "a", "sentences": ["b"]}}), typed),
        ("infinity", "/infinity/embeddings", embed.clone(), nested),
        ("infinity", "/infinity/rerank", rerank.clone(), nested),
        ("infinity", "/infinity/classify", json!({"model": "classifier", "input": ["a"]}), nested),
        ("nim", "/nim/v1/embeddings", embed.clone(), of_error),
        (
            "nim",
            "/v1/ranking",
            json!({"model": "reranker", "query": {"text": "q"}, "passages": [{"text": "d"}]}),
            of_error,
        ),
        ("vllm", "/vllm/pooling", embed, nested),
        ("vllm", "/vllm/score", json!({"model": "reranker", "text_1": "a", "text_2": "b"}), nested),
        ("vllm", "/vllm/rerank", rerank, nested),
        ("vllm", "/vllm/classify", json!({"model": "classifier", "input": "a"}), nested),
    ]
}

fn ask(server: &TextsServer, path: &str, body: String, key: &str) -> Response {
    let request = Request::post(path, body).header("Content-Type", "application/json");
    server.sandbox.send(&request.header("Authorization", &format!("Bearer {key}")))
}

/// Asserts that every dialect answers with this status in its own shape; gives each message to `check`.
#[track_caller]
fn refused(server: &TextsServer, key: &str, status: u16, bodies: fn(Value) -> String, check: fn(&Response, &str)) {
    for (dialect, path, body, message) in cases() {
        let response = ask(server, path, bodies(body), key);
        assert_eq!(response.status, status, "{dialect} {path}: {}", response.text());
        let found = response.json();
        let message = message(&found).unwrap_or_else(|| panic!("{dialect} {path}: not the dialect's shape: {found}"));
        check(&response, &message);
    }
}

#[track_caller]
fn comes_again(response: &Response, _: &str) {
    assert_eq!(response.header("retry-after"), Some("1"), "{}", response.text());
}

fn without_a_key_and_with_too_much_in_every_dialect(mode: Mode) {
    let server = TextsServer::start(mode, TextsState::Serving);
    for (dialect, path, body, _) in cases() {
        let response = ask(&server, path, body.to_string(), KEY);
        assert_eq!(response.status, 200, "{dialect} {path}: {}", response.text());
    }
    refused(
        &server,
        "wrong",
        401,
        |body| body.to_string(),
        |response, message| {
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
            assert!(message.contains("Authorization: Bearer"), "{message}");
        },
    );
    let too_large = |body: Value| format!("{}{body}", " ".repeat(MAX_BODY));
    refused(&server, KEY, 413, too_large, |_, message| {
        assert!(message.contains(&format!("exceeds the maximum allowed input size of {MAX_BODY} bytes")), "{message}");
    });
}

fn another_space_in_every_dialect(mode: Mode) {
    let server = TextsServer::start(mode, TextsState::Serving);
    for (dialect, path, body, message) in cases() {
        let ask = |spaces: Option<&str>| {
            let request = Request::post(path, body.to_string()).header("Content-Type", "application/json");
            let request = request.header("Authorization", &format!("Bearer {KEY}"));
            server.sandbox.send(&spaces.into_iter().fold(request, |request, spaces| request.header("If-Space", spaces)))
        };
        let answer = ask(None);
        let space = answer.header("trireme-space").unwrap_or_else(|| panic!("{dialect} {path}: {answer:?}"));
        let (right, wrong) = (ask(Some(&format!("0, {space}"))), ask(Some("0, 0.1.2")));
        assert_eq!(right.status, 200, "{dialect} {path}: {}", right.text());
        assert_eq!(wrong.status, 412, "{dialect} {path}: {}", wrong.text());
        let message = message(&wrong.json()).unwrap_or_else(|| panic!("{dialect} {path}: {}", wrong.text()));
        let words = format!("has space '{space}': embed the stored texts again, or send no If-Space");
        assert!(message.starts_with("If-Space asks for '0', '0.1.2', but model '"), "{dialect} {path}: {message}");
        assert!(message.ends_with(&words), "{dialect} {path}: {message}");
        let unreadable = ask(Some("a b"));
        assert!(
            (400..=422).contains(&unreadable.status) && unreadable.status != 412,
            "{dialect} {path}: {unreadable:?}"
        );
    }
}

fn a_full_queue_in_every_dialect(mode: Mode) {
    let server = TextsServer::start(mode, TextsState::Full);
    refused(&server, KEY, 429, |body| body.to_string(), comes_again);
}

fn a_model_that_is_not_ready_in_every_dialect(mode: Mode) {
    let server = TextsServer::start(mode, TextsState::Unready);
    refused(&server, KEY, 503, |body| body.to_string(), comes_again);
    // A model that nobody has heard of is still another matter.
    let nobody = json!({"model": "nobody", "input": "a"}).to_string();
    assert_eq!(ask(&server, "/v1/embeddings", nobody, KEY).status, 404);
}
