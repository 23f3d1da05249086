//! Tools for operators: `trireme status`, `trireme tap`, `trireme validate`, and the JSON document and page behind
//! them.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Request, Response, Sandbox, Setup, Stage, basic_repository, golden, in_one_mode, load, product,
    wait_until, workspace,
};

in_one_mode!(
    the_status_tells_of_everything,
    the_bottleneck_is_named,
    the_console_is_shown_unless_it_is_turned_off,
    access_rules_hold
);

/// The longest time until a change is visible.
const SOON: Duration = Duration::from_secs(60);

fn text() -> Value {
    json!({"id": "mine", "inputs":
        [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden()[0].text]}]})
}

#[track_caller]
fn status(sandbox: &Sandbox) -> Value {
    let response = sandbox.get("/v2/trireme/status");
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

#[track_caller]
fn model<'a>(status: &'a Value, name: &str) -> &'a Value {
    let models = status["models"].as_array().expect("an array");
    models.iter().find(|model| model["name"] == name).unwrap_or_else(|| panic!("no {name} in {status}"))
}

fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}

/// The whole answer to HEAD.
fn head_of(address: std::net::SocketAddr, path: &str) -> String {
    let mut stream = Request::new("HEAD", path).start(address).expect("the gateway listens");
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).expect("the gateway answers");
    answer
}

#[track_caller]
fn run(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("the command runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn the_status_tells_of_everything(mode: Mode) {
    let sandbox = Sandbox::start(mode);
    for _ in 0..3 {
        assert_eq!(sandbox.infer("tiny_embedding", &text()).status, 200);
    }
    let status = wait_until("the requests are counted", SOON, || {
        let status = status(&sandbox);
        // An answer is sent before its message is acknowledged.
        let rest =
            model(&status, "tiny_encoder")["queue"] == json!({"waiting": 0, "delivered": 0, "oldest_seconds": 0.0});
        // A gateway receives its own first heartbeat some time after it is ready.
        let heard = status["gateways"].as_array().map(Vec::len) == Some(1);
        (rest && heard && model(&status, "tiny_embedding")["counters"]["requests"] == 3).then_some(status)
    });
    assert_eq!(status["ready"], true);
    assert_eq!(status["jobs"], mode == Mode::Services, "in one process durable work needs a directory");
    assert_eq!(status["gateways"][0]["name"], status["gateway"]);
    let workers = status["workers"].as_array().expect("an array");
    assert_eq!(workers.len(), if mode == Mode::AllInOne { 1 } else { 3 }, "{status}");
    let hosted = workers.iter().flat_map(|worker| worker["models"].as_array().expect("an array"));
    assert!(hosted.clone().any(|hosted| hosted["model"] == "tiny_encoder"));
    assert!(hosted.clone().all(|hosted| hosted["state"] == "READY" && hosted["capacity"].as_u64() > Some(0)));

    let ensemble = model(&status, "tiny_embedding");
    let steps: Vec<_> = ensemble["steps"].as_array().expect("steps").iter().map(|step| &step["model"]).collect();
    assert_eq!(steps, ["tiny_tokenizer", "tiny_encoder", "tiny_pool"]);
    let outputs = ensemble["steps"][0]["outputs"].as_array().expect("outputs");
    assert!(outputs.contains(&json!({"name": "input_ids", "tensor": "ids"})), "{outputs:?}");
    assert_eq!((&ensemble["queue"], &ensemble["workers"]), (&Value::Null, &json!(0)));
    let encoder = model(&status, "tiny_encoder");
    assert_eq!((&encoder["ready"], &encoder["workers"]), (&json!(true), &json!(1)));
    assert_eq!(encoder["counters"]["requests"], 3);
    let compute = &encoder["latencies"]["compute"];
    assert_eq!(compute["count"], 3);
    assert!(compute["p99_seconds"].as_f64() >= compute["p50_seconds"].as_f64(), "{compute}");
    assert!(compute["sum_seconds"].as_f64() > Some(0.0), "{compute}");

    let server = sandbox.address.to_string();
    let shown = run(product("trireme").args(["status", "--server", &server]));
    let table = said(&shown);
    assert!(shown.status.success() && !table.contains('\u{1b}'), "no colours where no terminal is: {table}");
    assert_eq!(table.lines().next(), Some(&*format!("trireme {} is ready", env!("CARGO_PKG_VERSION"))));
    let line = table.lines().find(|line| line.contains("tiny_encoder:1") && line.contains(" ms")).expect("a line");
    assert!(line.contains("ready"), "{line}");
    assert!(table.contains("tiny_embedding = tiny_tokenizer → tiny_encoder → tiny_pool"), "{table}");
    let json = run(product("trireme").args(["status", "--json", "--server", &server]));
    assert_eq!(serde_json::from_str::<Value>(&said(&json)).expect("JSON")["ready"], true);
}

fn the_bottleneck_is_named(mode: Mode) {
    let step = |model: &str, from: &str, to: &str| {
        format!(
            "step {{ model_name: '{model}' model_version: -1
             input_map {{ key: 'INPUT0' value: '{from}' }} output_map {{ key: 'OUTPUT0' value: '{to}' }} }}"
        )
    };
    let steps = [step("before", "A", "b"), step("slow", "b", "c"), step("after", "c", "B")].concat();
    let chain = format!(
        "platform: 'ensemble' input [{{ name: 'A' data_type: TYPE_FP32 dims: [-1] }}]
         output [{{ name: 'B' data_type: TYPE_FP32 dims: [-1] }}] ensemble_scheduling {{ {steps} }}"
    );
    let models = ModelFolder::new().slow("before", 1).slow("slow", 40).slow("after", 1).model("chain", &chain);
    let setup = Setup::new(mode).repository(models.path());
    let sandbox = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start();
    let body = json!({"inputs": [{"name": "A", "datatype": "FP32", "shape": [1], "data": [1]}]});
    let bottleneck = || model(&status(&sandbox), "chain")["bottleneck"].clone();
    assert_eq!(bottleneck(), Value::Null, "nothing waits");
    let outcome = load(
        48,
        12,
        |_| assert_eq!(sandbox.infer("chain", &body).status, 200),
        || {
            let found = wait_until("requests wait", SOON, || Some(bottleneck()).filter(|found| !found.is_null()));
            assert_eq!((&found["model"], &found["step"]), (&json!("slow"), &json!(1)), "{found}");
            assert!(found["wait_seconds"].as_f64() > found["run_seconds"].as_f64(), "{found}");
        },
    );
    outcome.assert_all_right(48);
    let shown = said(&run(product("trireme").args(["status", "--server", &sandbox.address.to_string()])));
    assert!(shown.contains("bottleneck: requests wait") && shown.contains("ms for slow"), "{shown}");
}

#[test]
fn bench_counts_requests_texts_and_tokens() {
    let sandbox = Sandbox::start(Mode::AllInOne);
    let server = sandbox.address.to_string();
    let measure = |flags: &[&str]| {
        let quick = ["--json", "--concurrency=2", "--seconds=0.3", "--warmup-seconds=0.1", "--server", &server];
        let output = run(product("trireme").arg("bench").args(quick).args(flags));
        assert!(output.status.success(), "{output:?}");
        serde_json::from_str::<Value>(&said(&output)).expect("JSON")
    };
    for form in ["binary", "json", "openai"] {
        let measured = measure(&["--model=tiny_embedding", "--dimension=3", "--form", form]);
        let number = |name: &str| measured[name].as_f64().unwrap_or_else(|| panic!("no {name} in {measured}"));
        let texts = number("texts_per_second") / number("requests_per_second");
        assert!((texts - 3.0).abs() < 0.01, "{form}: {texts} texts in a request");
        assert!(number("tokens_per_second") > number("texts_per_second"), "{form}: {measured}");
    }
    let numbers = measure(&["--model=identity_fp32"]);
    assert!(numbers["requests_per_second"].as_f64() > Some(0.0), "{numbers}");
    assert_eq!((&numbers["texts_per_second"], &numbers["tokens_per_second"]), (&Value::Null, &Value::Null));
}

#[test]
fn the_status_says_why_a_model_is_not_ready() {
    let mut sandbox = Sandbox::start(Mode::Services);
    sandbox.worker(Stage::Tokenizer, 0).kill();
    let status = wait_until("its worker is gone", SOON, || {
        let status = status(&sandbox);
        (model(&status, "tiny_tokenizer")["ready"] == false).then_some(status)
    });
    assert_eq!(status["ready"], false);
    assert_eq!(status["workers"].as_array().map(Vec::len), Some(2), "{status}");
    assert_eq!(model(&status, "tiny_tokenizer")["reason"], "no worker serves it");
    let reason = model(&status, "tiny_embedding")["reason"].as_str().expect("a reason");
    assert!(reason.contains("tiny_tokenizer"), "{reason}");
}

fn the_console_is_shown_unless_it_is_turned_off(mode: Mode) {
    let sandbox = Sandbox::shared(mode);
    for (path, kind) in [("/ui", "text/html"), ("/ui/console.css", "text/css"), ("/ui/console.js", "text/javascript")] {
        let response = sandbox.get(path);
        assert_eq!(response.status, 200, "{path}");
        assert!(header(&response, "content-type").is_some_and(|value| value.starts_with(kind)), "{path}");
        let policy = header(&response, "content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
    let root = sandbox.get("/");
    assert_eq!((root.status, header(&root, "location")), (307, Some("/ui")));
    for path in ["/", "/ui", "/docs", "/openapi.json", "/v2", "/v2/health/ready", "/v2/trireme/status", "/v1/models"] {
        let shown = sandbox.get(path);
        let head = head_of(sandbox.address, path);
        let (first, rest) = head.split_once("\r\n").expect("a status line");
        assert_eq!(first.split(' ').nth(1), Some(&*shown.status.to_string()), "{path}");
        let (fields, body) = rest.split_once("\r\n\r\n").unwrap_or((rest, ""));
        assert_eq!(body, "", "{path}");
        let kind = fields.lines().find_map(|line| line.strip_prefix("content-type: "));
        assert_eq!(kind, header(&shown, "content-type"), "{path}");
    }
    drop(sandbox);
    let sandbox = Setup::new(mode).gateway_arguments(&["--ui=false"]).start();
    assert_eq!((sandbox.get("/ui").status, sandbox.get("/").status), (404, 404));
    assert_eq!(sandbox.get("/v2/trireme/status").status, 200);
}

fn access_rules_hold(mode: Mode) {
    let sandbox = Setup::new(mode).gateway_arguments(&["--api-key", "sesame"]).start();
    assert_eq!(sandbox.get("/v2/trireme/status").status, 401);
    assert_eq!(sandbox.get("/ui").status, 200, "the page says nothing by itself");
    let server = sandbox.address.to_string();
    let refused = run(product("trireme").args(["status", "--server", &server]));
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("401"), "{refused:?}");
    let shown = run(product("trireme").args(["status", "--server", &server, "--header", "X-API-Key: sesame"]));
    assert!(shown.status.success() && said(&shown).contains("tiny_pool:1"), "{shown:?}");
}

// === Tap ===

/// Runs a tap while requests are sent, until it has shown the expected number of messages.
#[track_caller]
fn tap(sandbox: &Sandbox, arguments: &[&str], mut ask: impl FnMut()) -> Vec<Value> {
    let url = sandbox.nats.as_ref().expect("a broker").url();
    let mut command = product("trireme");
    command.args(["tap", "--json", "--seconds", "60", "--nats-url", &url]).args(arguments);
    let mut tap = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the command runs");
    wait_until("the tap has seen enough", Duration::from_secs(90), || {
        ask();
        tap.try_wait().expect("a child can be asked")
    });
    let output = tap.wait_with_output().expect("a child can be waited for");
    assert!(output.status.success(), "{output:?}");
    said(&output).lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn a_tap_shows_copies_and_changes_nothing() {
    let sandbox = Sandbox::start(Mode::Services);
    let mut sent = 0;
    let mut ask = |sandbox: &Sandbox| {
        assert_eq!(sandbox.infer("tiny_embedding", &text()).status, 200);
        sent += 1;
    };
    let seen = tap(&sandbox, &["--stage", "tiny_encoder", "--count", "2"], || ask(&sandbox));
    assert_eq!(seen.len(), 2);
    for message in &seen {
        assert_eq!(message["model"], "tiny_encoder:1");
        assert_eq!(
            (&message["client_id"], &message["step"], &message["attempt"]),
            (&json!("mine"), &json!(1), &json!(1))
        );
        assert_eq!(message["route"], json!(["tiny_encoder:1", "tiny_pool:1"]));
        assert_eq!(message["ledger"][0]["model"], "tiny_tokenizer");
        let ids = &message["tensors"][0];
        assert_eq!((&ids["name"], &ids["datatype"]), (&json!("ids"), &json!("INT64")));
        assert_eq!(ids["first"].as_array().map(Vec::len), ids["shape"][1].as_u64().map(|n| n.min(8) as usize), "{ids}");
    }
    // By the request's id, for a whole stage.
    let arguments = ["--stage", "tokenizer", "--request-id", "mine", "--count", "1"];
    let seen = tap(&sandbox, &arguments, || ask(&sandbox));
    assert_eq!(seen[0]["tensors"][0]["first"][0], golden()[0].text);

    let status = wait_until("all are counted", SOON, || {
        let status = status(&sandbox);
        (model(&status, "tiny_encoder")["counters"]["requests"] == sent).then_some(status)
    });
    let counters = &model(&status, "tiny_encoder")["counters"];
    assert_eq!((&counters["executions"], &counters["redeliveries"]), (&json!(sent), &json!(0)), "each was run once");
}

#[test]
fn a_tap_outlives_its_first_question_and_tells_when_nobody_listens() {
    let sandbox = Sandbox::shared(Mode::Services);
    // Longer than a tap lasts without being renewed.
    let mut rest = std::time::Instant::now();
    let seen = tap(&sandbox, &["--stage", "identity_fp32", "--count", "4"], || {
        if rest.elapsed() > Duration::from_secs(3) {
            rest = std::time::Instant::now();
            let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [0.5, 2]}]});
            assert_eq!(Request::infer("identity_fp32", &body).send(sandbox.address).expect("an answer").status, 200);
        }
        std::thread::sleep(Duration::from_millis(50));
    });
    assert!(seen.iter().all(|message| message["tensors"][0]["first"] == json!([0.5, 2.0])), "{seen:?}");

    let url = sandbox.nats.as_ref().expect("a broker").url();
    let nobody = run(product("trireme").args(["tap", "--stage", "nothing", "--nats-url", &url]));
    assert!(!nobody.status.success());
    let text = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(text.contains("no worker on this bus hosts 'nothing'"), "{text}");
}

#[test]
fn tools_without_a_broker_end_with_a_sentence() {
    for tool in [&["tap"][..], &["settings"], &["dead", "list"]] {
        let started = std::time::Instant::now();
        let ended = run(product("trireme").args(tool).args(["--nats-url", "nats://127.0.0.1:1"]));
        assert_eq!(ended.status.code(), Some(1), "{tool:?}");
        assert!(started.elapsed() < Duration::from_secs(20), "{tool:?} took {:?}", started.elapsed());
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        let last = text.lines().last().expect("a line");
        assert!(last.starts_with("error: no broker answers (NATS at nats://127.0.0.1:1: "), "{text}");
        assert!(last.ends_with("`trireme serve` has none"), "{text}");
    }
}

// === Validate ===

#[test]
fn a_right_repository_has_no_faults() {
    let checked = run(product("trireme").arg("validate").arg(basic_repository()));
    assert!(checked.status.success(), "{}", said(&checked));
    assert!(said(&checked).starts_with("all ") && said(&checked).trim_end().ends_with("models load"), "{checked:?}");
}

#[test]
fn all_faults_are_found_at_once() {
    let tensor = |datatype: &str| format!("{{ data_type: {datatype} dims: [ 1 ] name:");
    let identity = |input: &str, output: &str| {
        format!(
            "backend: \"identity\"\ninput [ {} \"INPUT0\" }} ]\noutput [ {} \"OUTPUT0\" }} ]\n",
            tensor(input),
            tensor(output)
        )
    };
    let ensemble = |step: &str, output: &str| {
        format!(
            "platform: \"ensemble\"\ninput [ {} \"X\" }} ]\noutput [ {} \"Y\" }} ]\nensemble_scheduling {{ step [ {{\
             model_name: \"{step}\" model_version: -1 input_map {{ key: \"INPUT0\" value: \"X\" }} output_map {{ key: \"OUTPUT0\" value: \"Y\" }} }} ] }}",
            tensor("TYPE_FP32"),
            tensor(output)
        )
    };
    let folder = ModelFolder::new()
        .model("good", &identity("TYPE_FP32", "TYPE_FP32"))
        .model("unreadable", "input [ {")
        .model("strange", "backend: \"strange\"")
        .model("no_file", "backend: \"onnxruntime\"")
        .model("fits", &ensemble("good", "TYPE_FP32"))
        .model("mistyped", &ensemble("good", "TYPE_INT32"))
        .model("dangling", &ensemble("absent", "TYPE_FP32"))
        .model("consequence", &ensemble("unreadable", "TYPE_FP32"));
    let checked = run(product("trireme").args(["validate", "--json"]).arg(folder.path()));
    assert_eq!(checked.status.code(), Some(1));
    let report: Value = serde_json::from_str(&said(&checked)).expect("JSON");
    let faults: Vec<_> =
        report["faults"].as_array().expect("faults").iter().map(|f| f["message"].as_str().expect("text")).collect();
    assert_eq!(faults.len(), 5, "{faults:#?}");
    for what in ["unreadable/config.pbtxt", "'strange'", "no_file", "mistyped", "absent"] {
        assert!(faults.iter().any(|fault| fault.contains(what)), "no fault tells of {what}: {faults:#?}");
    }
    let lines = run(product("trireme").arg("validate").arg(folder.path()));
    assert_eq!((lines.status.code(), said(&lines).lines().count()), (Some(1), 5), "{}", said(&lines));
    let read_only = run(product("trireme").args(["validate", "--no-load"]).arg(folder.path()));
    assert_eq!((read_only.status.code(), said(&read_only).lines().count()), (Some(1), 1), "{}", said(&read_only));
}

/// A file of vectors for `trireme verify`: the golden ones, changed.
fn vectors(folder: &ModelFolder, change: impl Fn(usize, f32) -> f32) -> std::path::PathBuf {
    let path = folder.path().join("vectors.jsonl");
    let line = |(row, golden): (usize, trireme_e2e::Golden)| {
        let embedding: Vec<f32> = golden.embedding.iter().map(|&value| change(row, value)).collect();
        format!("{}\n", json!({"text": golden.text, "embedding": embedding}))
    };
    std::fs::write(&path, golden().into_iter().enumerate().map(line).collect::<String>()).expect("the file is written");
    path
}

#[test]
fn what_is_served_is_held_against_what_is_expected() {
    let folder = ModelFolder::new();
    let verify = |target: &std::ffi::OsStr, vectors: &std::path::Path| {
        run(product("trireme").arg("verify").arg(target).args(["tiny_embedding", "--vectors"]).arg(vectors))
    };
    let repository = basic_repository();
    let right = verify(repository.as_os_str(), &vectors(&folder, |_, value| value));
    assert_eq!(right.status.code(), Some(0), "{right:?}");
    assert!(said(&right).contains("model 'tiny_embedding' serves what"), "{}", said(&right));
    assert!(said(&right).contains("alone") && said(&right).contains("batched"), "{}", said(&right));

    let wrong =
        verify(repository.as_os_str(), &vectors(&folder, |row, value| if row == 1 { value + 0.3 } else { value }));
    assert_eq!(wrong.status.code(), Some(1), "{wrong:?}");
    assert!(said(&wrong).contains("does not serve what"), "{}", said(&wrong));
    let worst: String = golden()[1].text.split_whitespace().next().expect("a word").to_owned();
    assert!(said(&wrong).lines().nth(1).is_some_and(|line| line.contains(&worst)), "{}", said(&wrong));

    let none = run(product("trireme").arg("verify").arg(&repository).args(["tiny_embedding", "--vectors", "/nowhere"]));
    assert_eq!(none.status.code(), Some(2), "{none:?}");
    assert!(String::from_utf8_lossy(&none.stderr).contains("/nowhere"), "{none:?}");
}

#[test]
fn a_server_that_runs_is_verified_by_its_address() {
    let sandbox = Sandbox::shared(Mode::Services);
    let folder = ModelFolder::new();
    let url = format!("http://{}", sandbox.address);
    let verified = run(product("trireme")
        .args(["verify", "tiny_embedding", "--server", &url, "--vectors"])
        .arg(vectors(&folder, |_, value| value)));
    assert_eq!(verified.status.code(), Some(0), "{verified:?}");
}

// === Wrong commands ===

/// Each command ends soon, with an exit code that is not zero and a last line with the fault and its remedy.
#[test]
fn a_wrong_command_says_what_to_write() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(path("in.jsonl"), "a text\n").expect("a file");
    let repository = basic_repository().display().to_string();
    let (dead, nobody, nats) = ("http://127.0.0.1:1", "http://127.0.0.1:1", "nats://127.0.0.1:1");
    let (input, output, missing) = (path("in.jsonl"), path("out.jsonl"), path("missing"));
    let unwritable = "/proc/out.jsonl".to_owned();
    let spans = workspace().join("tests/models/spans").display().to_string();
    let short = ["--nats-connect-timeout-secs", "1"];
    let cases: &[(&[&str], &[&str])] = &[
        (&["infer", "m", "a text", "--server", dead], &["no server answers at http://127.0.0.1:1", "trireme serve"]),
        (&["status", "--server", dead], &["no server answers at http://127.0.0.1:1", "--server"]),
        (&["bench", "--model", "m", "--server", nobody], &["127.0.0.1:1", "trireme serve"]),
        (&["bulk", &missing, &output, "--model", &repository], &["cannot read", "missing", "No such file"]),
        (&["bulk", &path(""), &output, "--model", &repository], &["it is a folder", "name a file"]),
        (&["bulk", &input, &path(""), "--model", &repository], &["it is a folder", "name a file"]),
        (&["bulk", &input, &unwritable, "--model", &repository], &["cannot write /proc/out.jsonl"]),
        (&["bulk", &input, &input, "--model", &repository], &["IN and OUT are one file", "choose another OUT"]),
        (&["bulk", &input, &output, "--model", "missing"], &["no such folder", "--server URL"]),
        (&["bulk", &input, "https://host/out", "--model", &repository], &["takes no files", "s3://"]),
        (&["serve", &missing], &["missing"]),
        (&["serve", &path("")], &["expected"]),
        (&["serve", &input], &["in.jsonl"]),
        (&["worker", &repository, "--nats-url", nats, short[0], short[1]], &[nats, "start the broker there"]),
        (&["gateway", "--nats-url", nats, short[0], short[1]], &[nats, "start the broker there"]),
        (&["settings", "--nats-url", nats], &["no broker answers", "--nats-url"]),
        (&["bulk", &input, &output, "--model", "m", "--server", dead], &["no server answers at http://127.0.0.1:1"]),
        (&["init", &missing, &path("new")], &["there is no folder"]),
        (&["optimize", &spans], &["is a model of spans", "--precision int8"]),
        (&["init", &repository, &path("new")], &["no model folder"]),
        (&["validate", &missing], &["missing"]),
    ];
    for (words, said) in cases {
        let ended = run(product("trireme").args(*words));
        let text = self::said(&ended) + &String::from_utf8_lossy(&ended.stderr);
        let last = text.lines().last().unwrap_or_default();
        assert!(!ended.status.success(), "{words:?}: {text}");
        assert!(said.iter().all(|part| last.contains(part)), "{words:?}: expected {said:?} in: {text}");
    }
}

/// A server whose texts would clear the terminal.
#[test]
fn the_texts_of_a_server_steer_no_terminal() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let evil = "\u{1b}[2J\u{9b}31m";
    let metadata = json!({"name": "m", "inputs": [{"name": "T", "datatype": "BYTES", "shape": [-1]}], "outputs": []});
    let output = json!({"name": evil, "datatype": "BYTES", "shape": [1], "data": [evil]});
    // Answers to `infer`, `infer --json`, and twice an error.
    let [metadata, answer, error] =
        [metadata, json!({"outputs": [output]}), json!({"error": format!("no {evil}")})].map(|json| json.to_string());
    let answers = [(200, &metadata), (200, &answer), (200, &metadata), (200, &answer), (400, &error), (400, &error)];
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut bytes = [0; 4096];
                let _ = stream.read(&mut bytes).expect("a request");
                let head =
                    format!("HTTP/1.1 {status} -\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
                stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("it reads");
                // The rest of the request is read, so that the answer arrives.
                let _ = stream.shutdown(std::net::Shutdown::Write);
                let _ = std::io::copy(&mut stream, &mut std::io::sink());
            }
        });
        let commands: [&[&str]; 4] =
            [&["infer", "m", "a text"], &["infer", "m", "a text", "--json"], &["infer", "m", "a text"], &["status"]];
        for words in commands {
            let ended = run(product("trireme").args(words).args(["--server", &url]));
            let text = self::said(&ended) + &String::from_utf8_lossy(&ended.stderr);
            assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{words:?}: {text:?}");
            assert!(text.contains("[2J"), "{words:?}: {text:?}");
        }
    });
}

/// The users of a broker are made of a repository; a model folder has to become one first.
#[test]
fn the_script_of_permissions_names_the_way_from_a_model_folder() {
    let script = trireme_e2e::workspace().join("deploy/nats/permissions.py");
    for folder in ["examples/folders/reranker", "examples/folders"] {
        let folder = trireme_e2e::workspace().join(folder);
        let ended = run(Command::new(trireme_e2e::python()).arg(&script).arg("--repository").arg(folder));
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && text.contains("trireme init ") && text.lines().count() == 1, "{text}");
    }
}
