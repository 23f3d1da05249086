//! Traces: an OTLP receiver gets one complete trace for each request, from all processes, even when workers die
//! meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Sandbox, Setup, Stage, golden, in_one_mode, load, python, texts_repository,
    wait_until, workspace,
};

in_one_mode!(
    every_request_is_one_complete_trace,
    branches_are_steps_of_one_request,
    embeddings_have_the_names_of_opentelemetry,
    grpc_calls_have_the_names_of_opentelemetry,
    refusals_are_no_failures_of_the_server,
);

/// Processes export their spans every second; a busy machine may take longer.
const EXPORTED: Duration = Duration::from_secs(60);

/// If there was no span for this long, all have arrived.
const QUIET: Duration = Duration::from_secs(5);

const PIPELINE: [&str; 3] = ["step tiny_tokenizer", "step tiny_encoder", "step tiny_pool"];

/// The receiver that takes the place of a collector.
struct Receiver {
    process: Process,
    _folder: TempDir,
}

impl Receiver {
    fn start() -> (Receiver, String) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = workspace().join("tests/clients/otlp_receiver.py");
        let process = Process::start("otlp-receiver", Command::new(python()).arg(script), folder.path());
        let endpoint = wait_until("the receiver listens", EXPORTED, || {
            let events = process.events();
            events.iter().find(|event| event["message"] == "listening")?["endpoint"].as_str().map(str::to_owned)
        });
        (Receiver { process, _folder: folder }, endpoint)
    }

    fn traces(&self) -> BTreeMap<String, Trace> {
        let mut traces: BTreeMap<String, Trace> = BTreeMap::new();
        for span in self.process.events().into_iter().filter(|event| event["message"] == "span") {
            traces.entry(text(&span, "trace")).or_default().0.push(span);
        }
        traces
    }

    /// All traces, once no span has arrived for a while: each process exports by itself, and each span when it ends.
    fn all_traces(&self) -> BTreeMap<String, Trace> {
        let (mut spans, mut since) = (0, Instant::now());
        wait_until("the last span", EXPORTED, || {
            let now = self.process.count("span");
            if now != spans {
                (spans, since) = (now, Instant::now());
            }
            (since.elapsed() > QUIET).then_some(())
        });
        self.traces()
    }
}

/// The received spans of a trace.
#[derive(Debug, Default)]
struct Trace(Vec<Value>);

impl Trace {
    fn named(&self, name: &str) -> Vec<&Value> {
        self.0.iter().filter(|span| span["name"] == name).collect()
    }

    fn children(&self, parent: &Value) -> Vec<&Value> {
        self.0.iter().filter(|span| span["parent"] == parent["id"]).collect()
    }

    fn request(&self) -> Option<&Value> {
        self.named("infer").first().copied()
    }

    fn has(&self, steps: &[&str]) -> bool {
        self.request().is_some() && steps.iter().all(|step| !self.named(step).is_empty())
    }

    /// All spans are connected with the request's span, and the parts of a step lie within it and in order.
    #[track_caller]
    fn assert_whole(&self) {
        let request = self.request().expect("a trace has a request");
        let ids: BTreeSet<_> = self.0.iter().map(|span| text(span, "id")).collect();
        for span in &self.0 {
            if span != request {
                assert!(ids.contains(&text(span, "parent")), "no parent of {span}: {:#?}", self.0);
            }
        }
        for step in self.0.iter().filter(|span| text(span, "name").starts_with("step ")) {
            assert_eq!(step["parent"], request["id"], "{step}");
            let parts = self.children(step);
            let names: BTreeSet<_> = parts.iter().map(|part| text(part, "name")).collect();
            assert_eq!(names.len(), parts.len(), "{parts:#?}");
            let part = |name: &str| *parts.iter().find(|part| part["name"] == name).expect(name);
            let (transit, queue, execute) = (part("transit"), part("queue"), part("execute"));
            assert_eq!((&transit["end"], &queue["start"]), (&step["start"], &step["start"]));
            assert_eq!(queue["end"], execute["start"]);
            assert!(number(execute, "end") <= number(step, "end"), "{step} {execute}");
            for attribute in ["model", "version", "worker", "request_id", "attempt", "batch_size", "compute_infer_ms"] {
                assert!(!execute["attributes"][attribute].is_null(), "no {attribute}: {execute}");
            }
        }
    }
}

fn text(span: &Value, field: &str) -> String {
    span[field].as_str().expect("a text").to_owned()
}

fn number(span: &Value, field: &str) -> u64 {
    span[field].as_u64().expect("a number")
}

/// A `traceparent` that the test chose, and its trace id.
fn parent(number: usize) -> (String, String) {
    let trace = format!("{:032x}", 0xabc0_0000 + number);
    (format!("00-{trace}-00f067aa0ba902b7-01"), trace)
}

/// The entries of other tracing systems, which every span of the trace has.
const STATE: &str = "vendor=value,other=1";

/// A request for the pipeline of three stages, or for the model with batches.
fn request(number: usize, batched: bool) -> Request {
    let (traceparent, _) = parent(number);
    let request = if batched {
        let ones = vec![1; 16];
        let input = |name: &str| json!({"name": name, "datatype": "INT32", "shape": [1, 16], "data": ones});
        Request::infer("simple", &json!({"inputs": [input("INPUT0"), input("INPUT1")]}))
    } else {
        let golden = golden();
        let data = [&golden[number % golden.len()].text];
        Request::infer(
            "tiny_embedding",
            &json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": data}]}),
        )
    };
    request.header("traceparent", &traceparent).header("tracestate", STATE)
}

fn models() -> ModelFolder {
    let models = ModelFolder::basic(&["tiny_embedding", "tiny_tokenizer", "tiny_encoder", "tiny_pool", "simple"]);
    let config = std::fs::read_to_string(models.path().join("simple/config.pbtxt")).expect("the model has one");
    let patient = config.replace("dynamic_batching { }", "dynamic_batching { max_queue_delay_microseconds: 100000 }");
    assert_ne!(config, patient);
    models.file("simple/config.pbtxt", patient)
}

/// Starts the system with an exporter in each process. `trireme serve` gets Triton's flag for it (`--trace-config`).
fn start(mode: Mode, models: &ModelFolder, endpoint: &str) -> Sandbox {
    let export = ["--otlp-endpoint", endpoint];
    let url = format!("opentelemetry,url={endpoint}");
    let settings =
        ["mode=opentelemetry", &url, "opentelemetry,resource=service.version=7", "level=TIMESTAMPS", "rate=1"];
    let config: Vec<&str> = settings.iter().flat_map(|setting| ["--trace-config", setting]).collect();
    let setup = Setup::new(mode).repository(models.path()).replicas(Stage::Model, 2);
    match mode {
        Mode::AllInOne => setup.gateway_arguments(&config).start(),
        Mode::Services => setup.gateway_arguments(&export).worker_arguments(&export).start(),
    }
}

fn every_request_is_one_complete_trace(mode: Mode) {
    const REQUESTS: usize = 50;
    let (receiver, endpoint) = Receiver::start();
    let models = models();
    let sandbox = start(mode, &models, &endpoint);
    let ask = |number: usize| {
        let response = sandbox.send(&request(number, number >= 30));
        assert_eq!(response.status, 200, "{}", response.text());
    };
    load(REQUESTS, 8, ask, || {}).assert_all_right(REQUESTS);

    let steps = |number: usize| if number >= 30 { &["step simple"][..] } else { &PIPELINE };
    wait_until("every trace", EXPORTED, || {
        let traces = receiver.traces();
        let all = (0..REQUESTS).all(|n| traces.get(&parent(n).1).is_some_and(|trace| trace.has(steps(n))));
        all.then_some(())
    });
    let traces = receiver.all_traces();
    for number in 0..REQUESTS {
        let trace = &traces[&parent(number).1];
        trace.assert_whole();
        trace.0.iter().for_each(|span| assert_eq!(span["state"], STATE, "{span}"));
        assert_eq!(trace.named("infer").len(), 1);
        for step in steps(number) {
            assert_eq!(trace.named(step).len(), 1, "{step}");
        }
        let request = trace.request().expect("it is there");
        assert_eq!(request["parent"], "00f067aa0ba902b7", "the client's span");
        assert_eq!(request["attributes"]["http.route"], "/v2/models/{model}/infer", "{request}");
        assert_eq!(trace.named("reply").len(), 1, "{:#?}", trace.0);
    }
    // A batch has a trace of its own, with links to and from the steps in it.
    let runs: Vec<_> = traces.values().filter_map(|trace| trace.named("run").first().copied().cloned()).collect();
    assert!(runs.iter().any(|run| run["attributes"]["model"] == "simple"), "no batch of several: {runs:?}");
    for run in &runs {
        let links = run["links"].as_array().expect("a list");
        assert_eq!(json!(links.len()), run["attributes"]["requests"], "{run}");
        for link in links {
            let trace = &traces[&text(link, "trace")];
            let step = trace.0.iter().find(|span| span["id"] == link["id"]).expect("the step was recorded");
            let execute = trace.children(step).into_iter().find(|span| span["name"] == "execute").expect("it ran");
            assert_eq!(execute["links"], json!([{"trace": run["trace"], "id": run["id"]}]));
        }
    }
    // Only requests with the client's `traceparent` have started a trace.
    let asked: BTreeSet<_> = (0..REQUESTS).map(|number| parent(number).1).collect();
    let others = traces.iter().filter(|(trace, _)| !asked.contains(*trace)).flat_map(|(_, trace)| &trace.0);
    for span in others {
        assert_eq!(span["name"], "run", "a trace of nobody's request: {span}");
    }
}

/// Two calls of Triton's own client over gRPC, of which the second is refused.
const CALLS: &str = r#"
import sys
import numpy
import tritonclient.grpc as triton

client = triton.InferenceServerClient(sys.argv[1])
texts = triton.InferInput("TEXT", [1], "BYTES")
texts.set_data_from_numpy(numpy.array([b"a text"], dtype=object))
number = triton.InferInput("TEXT", [1], "INT32")
number.set_data_from_numpy(numpy.array([1], dtype=numpy.int32))
for parent, given in zip(sys.argv[2:4], (texts, number)):
    headers = {"traceparent": parent, "tracestate": sys.argv[4], "x-request-id": "of-the-call"}
    try:
        print(client.infer("tiny_embedding", [given], headers=headers).get_response().id or "no id")
    except triton.InferenceServerException as error:
        print(error.status(), error.message())
"#;

fn grpc_calls_have_the_names_of_opentelemetry(mode: Mode) {
    let (receiver, endpoint) = Receiver::start();
    let models = models();
    let export = ["--otlp-endpoint", &endpoint];
    let setup = Setup::new(mode).repository(models.path()).replicas(Stage::Model, 1).gateway_arguments(&export);
    let setup = if mode == Mode::Services { setup.worker_arguments(&export) } else { setup };
    let mut sandbox = setup.environment(&[("OTEL_SERVICE_NAME", "edge")]).start();
    let address = sandbox.grpc_address().to_string();
    let (answered, refused) = (parent(0), parent(1));
    let calls = Command::new(python()).args(["-c", CALLS, &address, &answered.0, &refused.0, STATE]).output();
    let printed = String::from_utf8(calls.expect("python runs").stdout).expect("UTF-8");
    let lines: Vec<&str> = printed.lines().collect();
    // The id of the call names the request in the error and in logs; an answer has the id of the request only.
    assert_eq!(lines[0], "no id", "{printed}");
    assert!(lines[1].starts_with("StatusCode.INVALID_ARGUMENT [request id: of-the-call] "), "{printed}");
    wait_until("the spans", EXPORTED, || {
        let traces = receiver.traces();
        let is_there = |trace: &str, steps: &[&str]| traces.get(trace).is_some_and(|trace| trace.has(steps));
        (is_there(&answered.1, &PIPELINE) && is_there(&refused.1, &[])).then_some(())
    });
    let traces = receiver.all_traces();
    for ((_, trace), code, error) in [(answered, 0, Value::Null), (refused, 3, json!("InvalidArg"))] {
        let span = traces[&trace].request().expect("it is there");
        let attributes = &span["attributes"];
        for (name, value) in
            [("rpc.system", "grpc"), ("rpc.service", "inference.GRPCInferenceService"), ("rpc.method", "ModelInfer")]
        {
            assert_eq!(attributes[name], value, "{span}");
        }
        assert_eq!(attributes["rpc.grpc.status_code"], code, "{span}");
        assert_eq!((&attributes["error.type"], &span["failed"]), (&error, &json!(false)), "{span}");
        assert_eq!((&attributes["id"], &span["state"]), (&json!("of-the-call"), &json!(STATE)), "{span}");
        traces[&trace].0.iter().for_each(|span| assert_eq!(span["service"], "edge", "{span}"));
    }
}

fn refusals_are_no_failures_of_the_server(mode: Mode) {
    let (receiver, endpoint) = Receiver::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let data = folder.path().to_str().expect("UTF-8");
    let export = ["--otlp-endpoint", &endpoint];
    let models = models();
    let setup = Setup::new(mode).repository(models.path()).replicas(Stage::Model, 1);
    let setup = match mode {
        Mode::AllInOne => setup.gateway_arguments(&[&export[..], &["--data-dir", data]].concat()),
        Mode::Services => setup.gateway_arguments(&export).worker_arguments(&export),
    };
    let sandbox = setup.environment(&[("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")]).start();
    let bad = json!({"inputs": [{"name": "TEXT", "datatype": "INT32", "shape": [1], "data": [1]}]});
    let refused = Request::infer("tiny_embedding", &bad).header("traceparent", &parent(0).0);
    assert_eq!(sandbox.send(&refused).status, 400);
    assert_eq!(sandbox.send(&request(1, false)).status, 200);

    // The requests of a batch are below the request that made it.
    let text = json!({"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a line"]});
    let line = |number: usize| {
        let body = json!({"inputs": [text]});
        json!({"custom_id": format!("{number}"), "method": "POST", "url": "/v2/models/tiny_embedding/infer", "body": body})
            .to_string()
    };
    let lines = format!("{}\n{}\n", line(1), line(2));
    let form = format!(
        "--B\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--B\r\nContent-Disposition: form-data; \
         name=\"file\"; filename=\"a.jsonl\"\r\n\r\n{lines}\r\n--B--\r\n"
    );
    let uploaded =
        sandbox.send(&Request::post("/v1/files", form).header("Content-Type", "multipart/form-data; boundary=B"));
    assert_eq!(uploaded.status, 200, "{}", uploaded.text());
    let batch = json!({
        "input_file_id": uploaded.json()["id"], "endpoint": "/v2/models/tiny_embedding/infer", "completion_window": "1h",
    });
    let begun = Request::post("/v1/batches", batch.to_string()).header("traceparent", &parent(2).0);
    assert_eq!(sandbox.send(&begun).status, 200);

    wait_until("the spans", EXPORTED, || {
        let traces = receiver.traces();
        let is_there = |number: usize, count: usize| {
            traces.get(&parent(number).1).is_some_and(|trace| trace.named("infer").len() == count)
        };
        (is_there(0, 1) && is_there(1, 1) && is_there(2, 2)).then_some(())
    });
    let traces = receiver.all_traces();
    let span = |number: usize| traces[&parent(number).1].request().expect("it is there").clone();
    let (refused, answered) = (span(0), span(1));
    for (span, status, error) in [(&refused, 400, json!("InvalidArg")), (&answered, 200, Value::Null)] {
        let attributes = &span["attributes"];
        assert_eq!(attributes["http.response.status_code"], status, "{span}");
        assert_eq!(attributes["url.path"], "/v2/models/tiny_embedding/infer", "{span}");
        assert_eq!(attributes["url.scheme"], "http", "{span}");
        assert_eq!((&attributes["error.type"], &span["failed"]), (&error, &json!(false)), "{span}");
    }
    let resource = &answered["resource"];
    assert_eq!(resource["service.version"], env!("CARGO_PKG_VERSION"), "{resource}");
    assert_eq!(resource["deployment.environment.name"], "test", "{resource}");
    assert_eq!(resource["service.instance.id"].as_str().map(str::len), Some(32), "{resource}");
    assert_eq!(span(2)["parent"], "00f067aa0ba902b7", "the span of the batch's client");
}

/// The steps of branches are siblings below the request.
fn branches_are_steps_of_one_request(mode: Mode) {
    let (receiver, endpoint) = Receiver::start();
    let step = |model: &str, output: &str| {
        format!(
            "step {{ model_name: '{model}' model_version: -1 input_map {{ key: 'INPUT0' value: 'X' }}
                     output_map {{ key: 'OUTPUT0' value: '{output}' }} }}"
        )
    };
    let tensor = |name: &str| format!("{{ name: '{name}' data_type: TYPE_FP32 dims: [-1] }}");
    let fork = format!(
        "platform: 'ensemble' input [{}] output [{}, {}] ensemble_scheduling {{ {} {} }}",
        tensor("X"),
        tensor("L"),
        tensor("R"),
        step("left", "L"),
        step("right", "R")
    );
    let models = models().slow("left", 500).slow("right", 500).model("fork", &fork);
    let sandbox = start(mode, &models, &endpoint);
    let body = json!({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [1.5]}]});
    let response = sandbox.send(&Request::infer("fork", &body).header("traceparent", &parent(0).0));
    assert_eq!((response.numbers("L"), response.numbers("R")), (vec![1.5], vec![1.5]));

    wait_until("the trace", EXPORTED, || {
        receiver.traces().get(&parent(0).1)?.has(&["step left", "step right"]).then_some(())
    });
    let trace = receiver.all_traces().remove(&parent(0).1).expect("it is there");
    trace.assert_whole();
    let span = |name: &str| trace.named(name)[0];
    let (left, right) = (span("step left"), span("step right"));
    assert!(number(left, "start") < number(right, "end"), "{left} {right}");
    assert!(number(right, "start") < number(left, "end"), "{left} {right}");
    assert_ne!(left["attributes"]["request_id"], right["attributes"]["request_id"], "a message each");
}

#[test]
fn an_answer_in_parts_is_one_step() {
    let (receiver, endpoint) = Receiver::start();
    let repeat = "backend: 'repeat' model_transaction_policy { decoupled: true }
        input [{ name: 'IN' data_type: TYPE_INT32 dims: [-1] }, { name: 'DELAY' data_type: TYPE_UINT32 dims: [-1] }]
        output [{ name: 'OUT' data_type: TYPE_INT32 dims: [1] }, { name: 'IDX' data_type: TYPE_UINT32 dims: [1] }]
        instance_group [{ count: 1 kind: KIND_CPU }]";
    let models = models().model("repeat", repeat);
    let sandbox = start(Mode::Services, &models, &endpoint);
    let body = json!({"IN": [4, 5, 6], "DELAY": [1, 1, 1]}).to_string();
    let stream = Request::post("/v2/models/repeat/generate_stream", body).header("traceparent", &parent(0).0);
    let response = sandbox.send(&stream);
    assert_eq!((response.status, response.text().matches("data: ").count()), (200, 3), "{}", response.text());

    wait_until("the trace", EXPORTED, || receiver.traces().get(&parent(0).1)?.has(&["step repeat"]).then_some(()));
    let trace = receiver.all_traces().remove(&parent(0).1).expect("it is there");
    trace.assert_whole();
    let request = trace.request().expect("it is there");
    assert_eq!(request["attributes"]["http.route"], "/v2/models/{model}/generate_stream");
    let [step] = trace.named("step repeat")[..] else { panic!("one step: {:#?}", trace.0) };
    let parts = step["events"].as_array().expect("a list");
    assert!(parts.len() >= 3 && parts.iter().all(|event| event == "part"), "{step}");
    assert_eq!(trace.named("reply").len(), parts.len(), "each part is a reply: {:#?}", trace.0);
}

#[test]
fn a_request_that_is_not_sampled_leaves_no_span() {
    let (receiver, endpoint) = Receiver::start();
    let models = models();
    let sandbox = start(Mode::Services, &models, &endpoint);
    let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["quiet"]}]});
    let (sampled, _) = parent(1);
    let unsampled = Request::infer("tiny_embedding", &body).header("traceparent", &format!("{}00", &sampled[..53]));
    assert_eq!(sandbox.send(&unsampled).status, 200);
    // Spans are exported in order: once the spans of the later request have arrived, the first request will have none.
    assert_eq!(sandbox.send(&request(2, false)).status, 200);
    let traces = wait_until("the second trace", EXPORTED, || {
        let traces = receiver.traces();
        traces.get(&parent(2).1).is_some_and(|trace| trace.has(&PIPELINE)).then_some(traces)
    });
    assert!(!traces.contains_key(&parent(1).1), "{traces:#?}");
}

#[test]
fn a_killed_worker_breaks_no_trace() {
    const REQUESTS: usize = 200;
    let (receiver, endpoint) = Receiver::start();
    let models = models().slow("slow", 20);
    let mut sandbox = start(Mode::Services, &models, &endpoint);
    let address = sandbox.address;
    let ask = |number: usize| {
        let request = match number % 4 {
            // So that both workers always hold some requests.
            0 | 2 => {
                let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.0]}]});
                Request::infer("slow", &body).header("traceparent", &parent(number).0)
            }
            1 => request(number, true),
            _ => request(number, false),
        };
        let response = request.send(address).expect("an answer");
        assert_eq!(response.status, 200, "{}", response.text());
    };
    let kill = || {
        // Halted first, so that it holds deliveries when it is killed.
        sandbox.worker(Stage::Model, 0).pause();
        std::thread::sleep(Duration::from_millis(500));
        sandbox.worker(Stage::Model, 0).kill();
    };
    load(REQUESTS, 16, ask, kill).assert_all_right(REQUESTS);

    let again = |traces: &BTreeMap<String, Trace>| {
        let steps = traces.values().flat_map(|trace| trace.named("step slow"));
        steps.filter(|step| step["attributes"]["attempt"].as_u64() > Some(1)).count()
    };
    wait_until("every request and what was delivered again", EXPORTED, || {
        let traces = receiver.traces();
        let all = (0..REQUESTS).all(|n| traces.get(&parent(n).1).is_some_and(|trace| trace.request().is_some()));
        (all && again(&traces) > 0).then_some(())
    });
    // Spans that the killed worker had not exported are missing; the others are connected.
    let traces = receiver.all_traces();
    for number in 0..REQUESTS {
        let trace = &traces[&parent(number).1];
        let request = trace.request().expect("it is there");
        for span in trace.0.iter().filter(|span| *span != request) {
            assert!(trace.0.iter().any(|other| other["id"] == span["parent"]), "no parent of {span}");
        }
        for step in trace.0.iter().filter(|span| text(span, "name").starts_with("step ")) {
            assert_eq!(step["parent"], request["id"], "a repetition is one more step of the same request");
        }
        // The worker that answered is alive and has exported its spans, so traces of redelivered requests are complete.
        if trace.0.iter().any(|span| span["attributes"]["attempt"].as_u64() > Some(1)) {
            trace.assert_whole();
        }
    }
}

fn embeddings_have_the_names_of_opentelemetry(mode: Mode) {
    let (receiver, endpoint) = Receiver::start();
    let sandbox = start(mode, &ModelFolder::copy_of(&texts_repository()), &endpoint);
    let ask = |body: Value| sandbox.send(&Request::post("/v1/embeddings", body.to_string()));
    let answered = ask(json!({"model": "embedding", "input": ["one text", "another"]}));
    assert_eq!(answered.status, 200, "{}", answered.text());
    assert_eq!(ask(json!({"model": "no such", "input": "a"})).status, 404);
    let classified = Request::post("/tei/classifier/predict", json!({"inputs": "a"}).to_string());
    assert_eq!(sandbox.send(&classified).status, 200);
    let traces = receiver.all_traces();
    let attributes = |route: &str| {
        let requests = traces.values().filter_map(Trace::request);
        let mut found = requests.filter(|span| span["attributes"]["http.route"] == route);
        found.next().unwrap_or_else(|| panic!("no span of {route}: {traces:#?}"))["attributes"].clone()
    };
    let embedded = attributes("/v1/embeddings");
    let tokens = answered.json()["usage"]["prompt_tokens"].clone();
    for (name, value) in [
        ("gen_ai.operation.name", json!("embeddings")),
        ("gen_ai.provider.name", json!("trireme")),
        ("gen_ai.request.model", json!("embedding")),
        ("gen_ai.usage.input_tokens", tokens),
    ] {
        assert_eq!(embedded[name], value, "{embedded}");
    }
    assert!(attributes("/tei/{model}/predict")["gen_ai.operation.name"].is_null());
    let events = sandbox.gateway.events();
    let listener = events.iter().find(|event| event["message"] == "metrics listener").expect("metrics are shown");
    let address = text(listener, "address").parse().expect("an address");
    let metrics = Request::get("/metrics").send(address).expect("an answer").text();
    let line = |start: &str| {
        let found = metrics.lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no {start}: {metrics}")).to_owned()
    };
    let duration = line("gen_ai_server_request_duration_seconds_count");
    assert!(duration.contains(r#"gen_ai_operation_name="embeddings""#) && duration.ends_with(" 1"), "{duration}");
    assert!(duration.contains(r#"gen_ai_request_model="embedding""#), "{duration}");
    let counted = |status: &str| {
        line(&format!(r#"trireme_http_requests_total{{method="POST",route="/v1/embeddings",status="{status}"}}"#))
    };
    assert!(counted("200").ends_with(" 1") && counted("404").ends_with(" 1"), "{metrics}");
}
