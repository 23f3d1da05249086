//! Bodies that travel by claim when something fails: a reply is lost, or the store is full.

use std::time::Duration;

use serde_json::json;
use trireme_e2e::{Mode, ModelFolder, Request, Response, Setup, Stage, Wire, WireMessage};
use trireme_testkit::NatsServer;

/// Small, so that bodies of moderate size travel by claim.
const MAX_PAYLOAD: usize = 4096;

const PATIENCE: Duration = Duration::from_secs(60);

fn identity(parameters: &str) -> String {
    format!(
        "backend: 'identity' {parameters} instance_group [{{ count: 1 kind: KIND_CPU }}]
         input [{{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }}]
         output [{{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }}]"
    )
}

fn only_models(models: &ModelFolder) -> Setup {
    Setup::new(Mode::Services).repository(models.path()).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0)
}

fn numbers(model: &str, count: usize) -> Request {
    let input = json!({"name": "INPUT0", "datatype": "FP32", "shape": [count], "data": vec![1; count]});
    Request::infer(model, &json!({"inputs": [input]}))
}

/// A reply whose claim cannot be read arrives before the answer: the gateway ignores it, and the worker's answer
/// counts.
#[test]
fn a_reply_whose_body_is_lost_is_no_answer() {
    let nats = NatsServer::start_with_max_payload(MAX_PAYLOAD);
    let url = nats.url();
    let slow = identity("parameters { key: 'execute_delay_ms' value { string_value: '3000' } }");
    let models = ModelFolder::new().model("slow", &slow);
    let sandbox = only_models(&models).start_on(Some(nats));
    let mut wire = Wire::open(&url);
    wire.subscribe("trireme.work.slow.>");
    let mut waiting = numbers("slow", 2).start(sandbox.address).expect("the gateway listens");

    let work = wire.next(PATIENCE).expect("the request is published");
    let header = |name| work.header(name).unwrap_or_else(|| panic!("work has {name}")).to_owned();
    let (request, gateway) = (header("Trireme-Request"), header("Trireme-Gateway"));
    let headers = [
        ("Trireme-Contract", "4"),
        ("Trireme-Request", &request),
        ("Trireme-Gateway", &gateway),
        ("Trireme-Sequence", "0"),
        ("Trireme-Final", "true"),
        ("Trireme-Claim", "nobodys"),
        ("Trireme-Claim-Bytes", "5000"),
        ("Trireme-Claim-Parts", "2"),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let subject = format!("trireme.reply.{gateway}.{request}");
    wire.publish(&WireMessage { subject, headers, ..WireMessage::default() });

    let response = Response::read(&mut waiting).expect("an answer");
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.numbers("OUTPUT0"), [1.0, 1.0]);
}

/// There is room for the request's claim, but not also for that of its answer.
#[test]
fn a_full_store_of_claims_is_answered_soon_and_runs_nothing_again() {
    let nats = NatsServer::start_with_max_payload(MAX_PAYLOAD);
    let mut wire = Wire::open(&nats.url());
    let config = json!({
        "name": "trireme_claims", "subjects": ["trireme.claim.>"], "storage": "memory", "discard": "new",
        "max_msgs_per_subject": 1, "max_bytes": 66_000, "allow_direct": true, "allow_msg_ttl": true,
    });
    wire.publish(&WireMessage {
        subject: "$JS.API.STREAM.CREATE.trireme_claims".to_owned(),
        body: config.to_string().into_bytes(),
        ..WireMessage::default()
    });
    wire.flush();
    let mut dead = Wire::open(&nats.url());
    dead.subscribe("trireme.dead.>");
    let models = ModelFolder::new().model("echo", &identity(""));
    let setup = only_models(&models).gateway_arguments(&["--full-queue-status", "429"]);
    let sandbox = setup.start_on(Some(nats));
    assert_eq!(sandbox.send(&numbers("echo", 2000)).status, 200, "both find room");

    let response = sandbox.send(&numbers("echo", 10_000));
    assert_eq!(response.status, 429, "{}", response.text());
    assert!(response.error().contains("stream trireme_claims is full"), "{}", response.error());
    let statistics = sandbox.get("/v2/models/echo/stats").json();
    let model = &statistics["model_stats"][0];
    assert_eq!(model["execution_count"], 2, "{statistics}");
    assert_eq!(model["inference_stats"]["fail"]["count"], 1, "{statistics}");
    assert_eq!(dead.next(Duration::from_millis(500)), None, "nothing was given up");
}
