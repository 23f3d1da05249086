//! Trace files, as Triton writes them: of a request through an ensemble, by the settings of single models, in numbered files.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Sandbox, Setup, golden, in_one_mode, wait_until};

in_one_mode!(requests_are_traced_to_the_files_that_settings_say);

const WRITTEN: Duration = Duration::from_secs(60);

const STEPS: [&str; 3] = ["tiny_tokenizer", "tiny_encoder", "tiny_pool"];

/// The records of a file, once `count` traces of requests are in it.
#[track_caller]
fn records(path: &Path, count: usize) -> Vec<Value> {
    wait_until(&format!("{count} traces in {}", path.display()), WRITTEN, || {
        let records: Vec<Value> = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        (requests(&records).len() >= count).then_some(records)
    })
}

/// The records that say which model a request was for.
fn requests(records: &[Value]) -> Vec<&Value> {
    records.iter().filter(|record| record.get("model_name").is_some() && record.get("parent_id").is_none()).collect()
}

/// The points in time of a trace, in the order of the file.
fn timestamps(records: &[Value], id: &Value) -> Vec<(String, u64)> {
    let of_trace = records.iter().filter(|record| &record["id"] == id);
    let lists = of_trace.filter_map(|record| record["timestamps"].as_array());
    let point = |point: &Value| {
        (point["name"].as_str().expect("a name").to_owned(), point["ns"].as_u64().expect("nanoseconds"))
    };
    lists.flatten().map(point).collect()
}

fn at(timestamps: &[(String, u64)], name: &str) -> u64 {
    let found = timestamps.iter().find(|(found, _)| found == name);
    found.unwrap_or_else(|| panic!("no {name} in {timestamps:?}")).1
}

#[track_caller]
fn assert_in_order(timestamps: &[(String, u64)], names: &[&str]) {
    let found: Vec<&str> = timestamps.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(found, names);
    assert!(timestamps.is_sorted_by_key(|(_, ns)| *ns), "{timestamps:?}");
}

fn embed(sandbox: &Sandbox) {
    let data = [&golden()[0].text];
    let body = json!({"id": "mine", "inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": data}]});
    let response = sandbox.infer("tiny_embedding", &body);
    assert_eq!(response.status, 200, "{}", response.text());
}

fn add(sandbox: &Sandbox) {
    let input = |name: &str, value: i32| {
        let data = vec![value; 16];
        json!({"name": name, "datatype": "INT32", "shape": [1, 16], "data": data})
    };
    let response = sandbox.infer("simple", &json!({"inputs": [input("INPUT0", 2), input("INPUT1", 3)]}));
    assert_eq!(response.status, 200, "{}", response.text());
}

/// Changes settings and returns them.
fn set(sandbox: &Sandbox, path: &str, settings: &Value) -> Value {
    let response = sandbox.send(&Request::post(path, settings.to_string()));
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

fn requests_are_traced_to_the_files_that_settings_say(mode: Mode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("trace.json");
    let numbered = |number: u64| folder.path().join(format!("trace.json.{number}"));
    let file = format!("triton,file={}", path.display());
    let flags = ["--trace-config", &file, "--trace-config", "rate=2", "--trace-config", "level=TIMESTAMPS"];
    let mut sandbox = Setup::new(mode).gateway_arguments(&flags).start();

    // Every second request; the steps of an ensemble are children of its trace.
    (0..2).for_each(|_| embed(&sandbox));
    let written = records(&path, 1);
    let [request] = requests(&written)[..] else { panic!("one of two requests is traced: {written:?}") };
    assert_eq!((&request["model_name"], &request["request_id"]), (&json!("tiny_embedding"), &json!("mine")));
    assert_eq!(request["model_version"], 1);
    // Triton's own reader takes the record of a model only after the first point in time.
    assert_eq!(written[0]["timestamps"][0]["name"], "HTTP_RECV_START", "{written:?}");
    let outer = timestamps(&written, &request["id"]);
    let names = ["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", "INFER_RESPONSE_COMPLETE"];
    assert_in_order(&outer, &[&names[..], &["REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END"]].concat());
    let children: Vec<_> = written.iter().filter(|record| record["parent_id"] == request["id"]).collect();
    let models: Vec<_> = children.iter().map(|child| child["model_name"].as_str().expect("a name")).collect();
    assert_eq!(models, STEPS);
    let mut before = at(&outer, "QUEUE_START");
    for child in children {
        let inner = timestamps(&written, &child["id"]);
        let names = ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"];
        assert_in_order(&inner, &[&names[..], &["COMPUTE_END", "INFER_RESPONSE_COMPLETE", "REQUEST_END"]].concat());
        assert!(at(&inner, "REQUEST_START") >= before && at(&inner, "REQUEST_END") <= at(&outer, "REQUEST_END"));
        before = at(&inner, "REQUEST_END");
    }

    // A model's own settings: its tensors as well, of two requests, which make a numbered file.
    let own = json!({"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_rate": "1", "trace_count": "2"});
    let setting = "/v2/models/simple/trace/setting";
    assert_eq!(set(&sandbox, setting, &own)["trace_file"], json!(path));
    (0..3).for_each(|_| add(&sandbox));
    let limited = records(&numbered(0), 2);
    assert_eq!(requests(&limited).len(), 2);
    assert_eq!(sandbox.get(setting).json()["trace_count"], "0");
    let id = &requests(&limited)[0]["id"];
    assert!(at(&timestamps(&limited, id), "COMPUTE_END") > 0);
    let tensors: Vec<_> =
        limited.iter().filter(|record| &record["id"] == id && record.get("tensor").is_some()).collect();
    let activities: Vec<_> = tensors.iter().map(|record| (&record["activity"], &record["tensor"]["name"])).collect();
    let (input, output) = (json!("TENSOR_QUEUE_INPUT"), json!("TENSOR_BACKEND_OUTPUT"));
    let names = ["INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1"].map(|name| json!(name));
    assert_eq!(activities, [(&input, &names[0]), (&input, &names[1]), (&output, &names[2]), (&output, &names[3])]);
    let sum = json!({"name": "OUTPUT0", "data": vec!["5"; 16].join(","), "shape": "1,16", "dtype": "INT32"});
    assert_eq!(tensors[2]["tensor"], sum);

    // Numbered files of so many traces, and the rest when the server stops.
    set(&sandbox, "/v2/trace/setting", &json!({"trace_rate": "1", "log_frequency": "2"}));
    (0..3).for_each(|_| embed(&sandbox));
    assert_eq!(requests(&records(&numbered(1), 2)).len(), 2);
    sandbox.gateway.terminate();
    assert!(sandbox.gateway.wait_exit(WRITTEN).success());
    assert_eq!(requests(&records(&numbered(2), 1)).len(), 1);
    assert_eq!(requests(&records(&path, 1)).len(), 1, "nothing more came to the file");
}
