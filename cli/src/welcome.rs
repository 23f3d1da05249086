//! The lines that `trireme serve` prints at a terminal in place of its log: models and address, a request to paste, the console.

use std::fmt::Write;
use std::net::SocketAddr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use trireme_gateway::GatewayArgs;
use trireme_model_repository::Task;

/// The most models that are named.
const MOST: usize = 5;

/// Characters of a model's name that a path holds in another form.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The server as its clients on this host see it.
pub struct Reach {
    /// `http://HOST:PORT`
    pub url: String,
    /// Further arguments that curl needs.
    pub curl: &'static str,
    /// Whether a request may be shown: not where a header or a certificate is asked for that this process cannot name.
    pub shows_request: bool,
    /// Whether there is a console.
    pub ui: bool,
}

// === impl Reach ===

impl Reach {
    /// How clients reach a gateway with these flags that listens at `address`.
    pub fn new(address: SocketAddr, args: &GatewayArgs) -> Reach {
        let is_tls = args.http.https_cert.is_some();
        let place = match address.ip().is_unspecified() {
            true => format!("localhost:{}", address.port()),
            false => address.to_string(),
        };
        let has_keys = !args.access.api_keys.is_empty() || args.access.api_key_file.is_some();
        Reach {
            url: format!("{}://{place}", if is_tls { "https" } else { "http" }),
            curl: match (is_tls, has_keys) {
                (false, false) => "",
                (false, true) => " -H \"X-API-Key: $KEY\"",
                (true, false) => " -k",
                (true, true) => " -k -H \"X-API-Key: $KEY\"",
            },
            shows_request: args.access.http_restricted_apis.is_empty() && args.http.https_root_cert.is_none(),
            ui: args.http.ui,
        }
    }
}

/// The text for a system in this state, as `/v2/trireme/status` tells it.
pub fn welcome(status: &Value, reach: &Reach) -> String {
    let models = to_ask(status);
    let names: Vec<&str> = models.iter().filter_map(|model| model["name"].as_str()).collect();
    let named = match names.as_slice() {
        [] => "no model yet".to_owned(),
        names if names.len() > MOST => format!("{} and {} more", names[..MOST].join(", "), names.len() - MOST),
        names => names.join(", "),
    };
    let Reach { url, curl, .. } = reach;
    let mut text = format!("\n{named} at {url}\n");
    let request = models.iter().find_map(|model| request(model, takes_labels(status, model)));
    let request = request.filter(|_| reach.shows_request);
    if let Some((path, body)) = request {
        let _ = write!(text, "\n  curl{curl} {url}{path} -d {}\n", quoted(&body.to_string()));
    }
    let ui = if reach.ui { format!("console: {url}/ui, ") } else { String::new() };
    let _ = write!(text, "\n{ui}log of the start: --log-level info, end: Ctrl-C\n\n");
    text
}

/// The models that are ready and neither a part nor a route of another one; those with an operation on texts come first.
fn to_ask(status: &Value) -> Vec<&Value> {
    let list = |value: &'static str| status[value].as_array().into_iter().flatten();
    let steps = list("models").flat_map(|model| model["steps"].as_array().into_iter().flatten());
    let parts: Vec<&Value> = steps.map(|step| &step["model"]).collect();
    let mut models: Vec<&Value> = list("models")
        .filter(|model| model["ready"] == true && model["route_of"].is_null() && !parts.contains(&&model["name"]))
        .collect();
    models.sort_by_key(|model| task(model).is_none());
    models
}

/// The model's first operation for clients.
fn task(model: &Value) -> Option<Task> {
    let tasks = model["tasks"].as_array().into_iter().flatten();
    tasks.filter_map(|task| Task::named(task.as_str()?)).find(|task| !task.is_tokenizers())
}

/// Whether a step of the model scores spans (GLiNER). Such models take their labels from the request.
fn takes_labels(status: &Value, model: &Value) -> bool {
    fn list(value: &Value) -> impl Iterator<Item = &Value> {
        value.as_array().into_iter().flatten()
    }
    let is_step = |name: &Value| list(&model["steps"]).any(|step| step["model"] == *name);
    let steps = list(&status["models"]).filter(|model| is_step(&model["name"]));
    steps.flat_map(|step| list(&step["inputs"])).any(|input| input["name"] == "span_idx")
}

/// The path and the body of a request that the model answers. A model that `takes_labels` is asked for two.
fn request(model: &Value, takes_labels: bool) -> Option<(String, Value)> {
    let name = model["name"].as_str()?;
    let escaped = utf8_percent_encode(name, ESCAPED);
    let text = "The crew rows to the harbour.";
    let plain = |path: &str, body: Value| Some((path.to_owned(), body));
    match task(model) {
        Some(Task::Embed) => plain("/v1/embeddings", json!({"model": name, "input": text})),
        Some(Task::Rerank) => {
            let documents = [text, "The report is late."];
            plain("/v2/rerank", json!({"model": name, "query": "who rows", "documents": documents}))
        }
        Some(Task::Classify) => plain("/classify", json!({"model": name, "input": [text]})),
        Some(Task::ZeroShot) => {
            let parameters = json!({"candidate_labels": ["sea", "office"]});
            Some((format!("/tei/{escaped}"), json!({"inputs": text, "parameters": parameters})))
        }
        Some(Task::MultiVector) => plain("/v1/multi-vector", json!({"model": name, "input": [text]})),
        Some(Task::Sparse) => Some((format!("/tei/{escaped}/embed_sparse"), json!({"inputs": text}))),
        Some(Task::TokenClassify) => {
            let mut body = json!({"inputs": "Wanjiru lives in Addis Ababa."});
            if takes_labels {
                body["parameters"] = json!({"labels": ["person", "place"]});
            }
            Some((format!("/tei/{escaped}"), body))
        }
        Some(Task::Extract | Task::Generate | Task::Tokenize | Task::Decode) | None => {
            let inputs = model["inputs"].as_array()?.iter().filter(|input| input["optional"] != true);
            let inputs: Vec<Value> = inputs.map(|input| sample(input, text)).collect();
            match model["decoupled"] == true {
                // Models that answer in parts do so over this route.
                true => {
                    let data = |input: &Value| Some((input["name"].as_str()?.to_owned(), input["data"].clone()));
                    let body: serde_json::Map<_, _> = inputs.iter().filter_map(data).collect();
                    Some((format!("/v2/models/{escaped}/generate_stream"), body.into()))
                }
                false => Some((format!("/v2/models/{escaped}/infer"), json!({ "inputs": inputs }))),
            }
        }
    }
}

/// A tensor for this input, with one element in each dimension that the model leaves open.
fn sample(input: &Value, text: &str) -> Value {
    let shape = input["shape"].as_array().into_iter().flatten().filter_map(Value::as_i64);
    let shape: Vec<i64> = shape.map(|size| if size < 0 { 1 } else { size }).collect();
    let element = match input["datatype"].as_str() {
        Some("BYTES") => json!(text),
        Some("BOOL") => json!(true),
        _ => json!(1),
    };
    let count = shape.iter().product::<i64>().clamp(0, 1024) as usize;
    json!({"name": input["name"], "datatype": input["datatype"], "shape": shape, "data": vec![element; count]})
}

/// A word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REACH: Reach = Reach { url: String::new(), curl: "", shows_request: true, ui: true };

    fn model(name: &str, tasks: &[&str]) -> Value {
        json!({"name": name, "ready": true, "tasks": tasks, "decoupled": false,
            "inputs": [{"name": "A", "datatype": "FP32", "shape": [-1, 2], "optional": false}, {"name": "B", "optional": true}]})
    }

    #[test]
    fn every_task_has_a_request() {
        for task in Task::ALL {
            let model = model("it's", &[task.name()]);
            let (path, body) = request(&model, false).unwrap();
            assert!(path.starts_with('/') && body.is_object(), "{path} {body}");
            assert!(path.contains("it%27s") || body["model"] == "it's", "{task}: {path} {body}");
        }
        let (path, body) = request(&model("m", &[]), false).unwrap();
        let tensor = json!({"name": "A", "datatype": "FP32", "shape": [1, 2], "data": [1, 1]});
        assert_eq!((path.as_str(), body), ("/v2/models/m/infer", json!({"inputs": [tensor]})));
    }

    #[test]
    fn models_of_spans_are_asked_for_labels() {
        let mut spans = model("graph", &[]);
        spans["inputs"] = json!([{"name": "input_ids"}, {"name": "span_idx"}]);
        let mut whole = model("any", &["token_classify"]);
        whole["steps"] = json!([{"model": "graph"}]);
        let said = welcome(&json!({"models": [spans, whole, model("other", &["token_classify"])]}), &REACH);
        assert!(said.contains("/tei/any -d") && said.contains(r#""labels":["person","place"]"#), "{said}");
        let (_, body) = request(&model("m", &["token_classify"]), false).unwrap();
        assert!(body["parameters"].is_null(), "{body}");
    }

    #[test]
    fn models_that_are_parts_are_not_named_and_those_with_a_task_come_first() {
        let mut whole = model("whole", &["embed"]);
        whole["steps"] = json!([{"model": "part"}]);
        let mut broken = model("broken", &["embed"]);
        broken["ready"] = json!(false);
        let mut route = model("whole_query", &[]);
        route["route_of"] = json!("whole");
        let status = json!({"models": [model("alone", &[]), broken, model("part", &["tokenize"]), route, whole]});
        let said = welcome(&status, &REACH);
        assert!(said.starts_with("\nwhole, alone at ") && said.contains("/v1/embeddings -d '{"), "{said}");
        assert!(welcome(&json!({"models": []}), &REACH).starts_with("\nno model yet at "));
        let many: Vec<Value> = (0..9).map(|number| model(&format!("m{number}"), &[])).collect();
        assert!(welcome(&json!({ "models": many }), &REACH).contains("m4 and 4 more at"));
        let closed = Reach { shows_request: false, ui: false, ..REACH };
        let said = welcome(&status, &closed);
        assert!(!said.contains("curl") && !said.contains("/ui"), "{said}");
    }
}
