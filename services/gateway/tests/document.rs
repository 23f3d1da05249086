//! `/openapi.json` says what the routes read: the parameters of lists, the headers of durable work, the fields of forms.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use trireme_bus::QueueOptions;

use crate::control::Server;
use crate::exposure::{send, send_body};

/// The routes that read a query, and its parameters.
const QUERIES: [(&str, &[&str]); 5] = [
    ("/cohere/v1/models", &["endpoint"]),
    ("/v1/batches", &["after", "limit", "order"]),
    ("/v1/files", &["after", "limit", "order", "purpose"]),
    (
        "/v1/organization/usage/embeddings",
        &[
            "api_key_ids",
            "bucket_width",
            "end_time",
            "group_by",
            "limit",
            "models",
            "page",
            "project_ids",
            "start_time",
        ],
    ),
    ("/v2/trireme/usage", &["by", "from", "owner", "until"]),
];

/// A value that no type but a string takes.
const NONSENSE: &str = "nonsense";

/// A gateway that keeps jobs in this directory.
async fn start(directory: &tempfile::TempDir) -> Server {
    let bus = trireme_bus_disk::open(&QueueOptions::default(), directory.path()).expect("the directory can be used");
    Server::start_on(bus, &[]).await
}

fn body(answer: &str) -> Value {
    serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON")
}

/// The operations of the document, each with its path and its method.
async fn operations(server: &Server) -> Vec<(String, String, Value)> {
    let document = body(&send(server.http, "GET", "/openapi.json", &[]).await.1);
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("operations") {
            operations.push((path.clone(), method.to_uppercase(), operation.clone()));
        }
    }
    operations
}

/// The parameters of an operation that are in this place.
fn parameters<'a>(operation: &'a Value, place: &'a str) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let all = operation["parameters"].as_array().into_iter().flatten();
    let own = all.filter(move |parameter| parameter["in"] == place);
    own.map(|parameter| (parameter["name"].as_str().expect("a name"), &parameter["schema"]))
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_read_the_parameters_that_the_document_has_and_no_others() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let server = start(&directory).await;
    let mut found = BTreeMap::new();
    for (path, method, operation) in operations(&server).await {
        let names: BTreeSet<_> = parameters(&operation, "query").map(|(name, _)| name.to_owned()).collect();
        if names.is_empty() {
            continue;
        }
        let (status, plain) = send(server.http, &method, &path, &[]).await;
        assert_eq!(status, 200, "{path}: {plain}");
        let unknown = send(server.http, &method, &format!("{path}?no-such-parameter={NONSENSE}"), &[]).await;
        assert_eq!((unknown.0, body(&unknown.1)), (200, body(&plain)), "{path}: others are passed over");
        for (name, schema) in parameters(&operation, "query") {
            let is_typed = schema["type"] == "integer" || schema.get("enum").is_some();
            let (status, answer) = send(server.http, &method, &format!("{path}?{name}={NONSENSE}"), &[]).await;
            let refused = status == 400 && answer.contains(&format!("'{name}' is '{NONSENSE}', expected"));
            assert!(refused || !is_typed, "{path}: {answer}");
        }
        found.insert(path, names);
    }
    let expected = QUERIES.map(|(path, names)| (path.to_owned(), names.iter().map(|&name| name.to_owned()).collect()));
    assert_eq!(found, BTreeMap::from(expected));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_files_is_the_one_that_the_query_asks_for() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let server = start(&directory).await;
    let mut ids = Vec::new();
    for number in 0..3 {
        let form = format!(
            "--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\n\
             Content-Disposition: form-data; name=\"file\"; filename=\"{number}.jsonl\"\r\n\r\n{{}}\r\n--edge--\r\n"
        );
        let lines = ["Content-Type: multipart/form-data; boundary=edge", &format!("Idempotency-Key: {number}")];
        let sent = async || body(&send_body(server.http, "POST", "/v1/files", &lines, &form).await.1)["id"].clone();
        let id = sent().await;
        assert_eq!(sent().await, id, "the same under its key");
        ids.push(id);
    }
    let listed = async |query: &str| {
        let page = body(&send(server.http, "GET", &format!("/v1/files?{query}"), &[]).await.1);
        let ids: Vec<_> = page["data"].as_array().expect("a page").iter().map(|file| file["id"].clone()).collect();
        ids
    };
    let all: BTreeSet<_> = ids.iter().map(Value::to_string).collect();
    let earliest = listed("order=asc").await;
    assert_eq!(earliest.iter().map(Value::to_string).collect::<BTreeSet<_>>(), all);
    let latest: Vec<_> = earliest.iter().rev().cloned().collect();
    assert_eq!((listed("").await, listed("order=desc").await), (latest.clone(), latest));
    assert_eq!(listed("order=asc&limit=2").await, earliest[..2]);
    let after = earliest[1].as_str().expect("an id");
    assert_eq!(listed(&format!("order=asc&after={after}")).await, earliest[2..]);
    assert_eq!((listed("purpose=batch").await.len(), listed("purpose=other").await.len()), (3, 0));
    server.stop().await;
}

/// The header is in the document where it is obeyed, and so is the answer that comes then.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_later_where_the_document_says_so() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let server = start(&directory).await;
    let mut offers = 0;
    for (path, method, operation) in operations(&server).await {
        let headers: BTreeSet<_> = parameters(&operation, "header").map(|(name, _)| name).collect();
        let place = path.replace("{version}", "1").replace('{', "some-").replace('}', "");
        let (status, answer) = send(server.http, &method, &place, &["Prefer: respond-async"]).await;
        assert_eq!(status == 202, headers.contains("Prefer"), "{method} {path}: {answer}");
        if status == 202 {
            offers += 1;
            assert_eq!(headers, ["Idempotency-Key", "Not-Before", "Prefer", "Webhook-Url"].into(), "{path}");
            let shape = &operation["responses"]["202"]["content"]["application/json"]["schema"];
            let known = shape["properties"].as_object().expect("an object");
            let required = shape["required"].as_array().expect("required members");
            let state = body(&answer);
            assert!(required.iter().all(|name| state.get(name.as_str().expect("a name")).is_some()), "{state}");
            assert!(required.iter().all(|name| known.contains_key(name.as_str().expect("a name"))), "{shape}");
        }
    }
    assert!(offers > 20, "{offers} routes execute models");
    server.stop().await;
}

/// The shape of every refusal is in the document, and a route of each kind refuses in its own.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_the_shape_that_the_document_has() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let server = start(&directory).await;
    let mut shapes = BTreeMap::new();
    for (path, method, operation) in operations(&server).await {
        let shape = operation["responses"]["default"]["content"]["application/json"]["schema"].clone();
        assert!(shape.is_object(), "{method} {path}: no shape of a refusal");
        shapes.insert((path, method), shape);
    }
    for (method, path, place) in [
        ("GET", "/v1/files/{id}", "/v1/files/none"),
        ("GET", "/v1/batches", "/v1/batches?order=up"),
        ("POST", "/v1/files", "/v1/files"),
        ("POST", "/v1/batches", "/v1/batches"),
        ("GET", "/v2/trireme/usage", "/v2/trireme/usage?by=week"),
        ("GET", "/v1/organization/usage/embeddings", "/v1/organization/usage/embeddings?bucket_width=1m"),
        ("GET", "/v2/models/{model}", "/v2/models/none"),
        ("POST", "/openai/v1/embeddings", "/openai/v1/embeddings"),
        ("POST", "/tei/embed", "/tei/embed"),
    ] {
        let (status, answer) = send(server.http, method, place, &[]).await;
        assert!((400..500).contains(&status), "{method} {place}: {answer}");
        let (refusal, shape) = (body(&answer), &shapes[&(path.to_owned(), method.to_owned())]);
        assert!(fits(&refusal, shape), "{method} {place}: {refusal} is not {shape}");
    }
    server.stop().await;
}

/// Whether a value has the members and the types of a schema.
fn fits(value: &Value, schema: &Value) -> bool {
    if let Some(several) = schema["anyOf"].as_array() {
        return several.iter().any(|one| fits(value, one));
    }
    let required = schema["required"].as_array().into_iter().flatten();
    let has_all = required.filter_map(Value::as_str).all(|name| value.get(name).is_some());
    let properties = schema["properties"].as_object().into_iter().flatten();
    has_all
        && properties.filter_map(|(name, own)| Some((value.get(name)?, own))).all(|(member, own)| fits(member, own))
        && match schema["type"].as_str() {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("integer" | "number") => value.is_number(),
            Some("null") => value.is_null(),
            _ => true,
        }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_form_of_a_file_has_its_fields() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let server = start(&directory).await;
    let all = operations(&server).await;
    let form = |path: &str| {
        let (.., operation) = all.iter().find(|(own, method, _)| own == path && method == "POST").expect("a route");
        operation["requestBody"]["content"]["multipart/form-data"]["schema"].clone()
    };
    let (file, part) = (form("/v1/files"), form("/v1/uploads/{id}/parts"));
    let names: Vec<_> = file["properties"].as_object().expect("fields").keys().collect();
    assert_eq!(names, ["expires_after[anchor]", "expires_after[seconds]", "file", "purpose"]);
    assert_eq!((&file["required"], &part["required"]), (&json!(["file"]), &json!(["data"])));
    for (field, value) in
        [("purpose", "assistants"), ("expires_after[seconds]", "60"), ("expires_after[anchor]", "now")]
    {
        let form = format!("--edge\r\nContent-Disposition: form-data; name=\"{field}\"\r\n\r\n{value}\r\n--edge--\r\n");
        let lines = ["Content-Type: multipart/form-data; boundary=edge"];
        let (status, answer) = send_body(server.http, "POST", "/v1/files", &lines, &form).await;
        assert!(status == 400 && answer.contains(&format!("'{field}' is '{value}', expected")), "{answer}");
    }
    server.stop().await;
}
