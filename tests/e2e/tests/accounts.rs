//! A broker whose account has limits, as a hosted NATS has.

use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Setup, Stage, product, wait_until};
use trireme_testkit::NatsServer;

const CONFIG: &str = "backend: 'identity'
    input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }]
    output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }]";

/// A broker whose clients without a login are in an account with these limits.
fn account(limits: &str) -> NatsServer {
    let config = format!(
        "jetstream {{ store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 64GB }}
         accounts {{ A: {{ jetstream {{ {limits} }}, users: [ {{ user: a, password: a }} ] }} }}
         no_auth_user: a\n"
    );
    NatsServer::start_with_files(&[("nats.conf", &config)])
}

/// A model without a queue is not ready and says why; nothing ends, and the models with a queue serve.
#[test]
fn a_model_beyond_the_account_s_streams_is_not_ready_and_its_worker_goes_on() {
    let nats = account("max_mem: 1GB, max_file: 1GB, max_streams: 12");
    let names = ["one", "two", "three", "four"];
    let models = names.iter().fold(ModelFolder::new(), |models, name| models.model(name, CONFIG));
    let mut sandbox = Setup::new(Mode::Services).repository(models.path()).start_gateway_on(Some(nats));
    sandbox.start_worker(Stage::Model);
    sandbox.wait_listening();
    let index = || sandbox.send(&Request::post("/v2/repository/index", "{}")).json();
    let is_refused = |model: &Value| {
        let reason = model["reason"].as_str().unwrap_or_default();
        reason.contains("the account allows 12 streams, has 1") && reason.contains(", and needs one more")
    };
    let models = wait_until("each model is ready or says what it lacks", Duration::from_secs(60), || {
        let models = index().as_array()?.clone();
        let settled = models.iter().filter(|model| model["state"] == "READY" || is_refused(model)).count();
        (settled == names.len()).then_some(models)
    });
    let (refused, ready): (Vec<_>, Vec<_>) = models.iter().partition(|model| is_refused(model));
    assert!(!ready.is_empty() && !refused.is_empty(), "{models:?}");
    let input = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1.5]}]});
    for model in ready {
        let answer = sandbox.infer(model["name"].as_str().expect("a name"), &input);
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    sandbox.check_running();
}

/// It counts what a deployment needs before one starts, and makes nothing.
#[test]
fn the_doctor_says_what_an_account_lacks() {
    let models =
        ["one", "two", "three", "four"].iter().fold(ModelFolder::new(), |models, name| models.model(name, CONFIG));
    let examine = |limits: &str, arguments: &[&str]| {
        let nats = account(limits);
        let mut command = product("trireme");
        command.arg("doctor").arg(models.path()).args(["--nats-url", &nats.url()]).args(arguments);
        let output = command.output().expect("the binary runs");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (is_well, text) = examine("max_mem: 1GB, max_file: 1GB, max_streams: 10", &[]);
    assert!(
        !is_well
            && text.contains("the account allows 10, 0 are in use and 15 more are needed: raise its max_streams to 15"),
        "{text}"
    );
    let (is_well, text) = examine("max_mem: 1GB, max_file: 1GB, max_streams: 15", &["--json"]);
    let found: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(is_well && found["faults"] == json!([]), "{text}");
    let library = &found["onnxruntime"];
    assert!(library["version"].as_str().is_some_and(|version| version.starts_with("1.")), "{text}");
    let names: Vec<_> = found["streams"].as_array().expect("streams").iter().map(|stream| &stream["name"]).collect();
    assert!(names.len() == 15 && names.contains(&&json!("trireme_work_four_1")), "{text}");
    assert!(found["streams"].as_array().expect("streams").iter().all(|stream| stream["exists"] == false), "{text}");
    let (is_well, text) = examine("max_mem: 1GB, max_file: 1GB", &["--queue-replicas", "3"]);
    assert!(!is_well && text.contains("3 copies of each stream need as many brokers"), "{text}");
    let (is_well, text) =
        examine("max_mem: 1GB, max_file: 1GB", &["--onnxruntime-library", "/nowhere/libonnxruntime.so"]);
    let advice = "advice: workers of ONNX models could not run on this machine: no ONNX Runtime library found, looked for /nowhere/";
    assert!(is_well && text.contains(advice), "a machine without the library is no fault of the account: {text}");
}
