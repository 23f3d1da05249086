//! Models with `sequence_batching`: their states are on the bus, so sequences outlive workers and gateways.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Response, Sandbox, Setup, Stage, in_every_mode, product, python, wait_until,
    workspace,
};

in_every_mode!(
    the_clients_of_triton_s_examples_work,
    an_idle_sequence_is_over,
    steps_of_an_ensemble_have_states_of_their_own,
    a_state_may_be_larger_than_a_message,
);

const LIMIT: Duration = Duration::from_secs(60);

fn repository() -> PathBuf {
    workspace().join("tests/repositories/sequences")
}

fn setup(mode: Mode) -> Setup {
    Setup::new(mode).repository(&repository()).replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0)
}

/// A request of a sequence with one number.
fn body(id: u64, value: i64, start: bool, end: bool) -> Value {
    json!({
        "parameters": {"sequence_id": id, "sequence_start": start, "sequence_end": end},
        "inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 1], "data": [value]}]
    })
}

fn send(address: SocketAddr, model: &str, body: &Value) -> Response {
    Request::infer(model, body).send(address).expect("the gateway answers")
}

fn the_clients_of_triton_s_examples_work(mode: Mode) {
    let mut sandbox = setup(mode).start();
    let (http, grpc) = (sandbox.address.to_string(), sandbox.grpc_address().to_string());
    let script = workspace().join("tests/clients/sequences.py");
    let output = Command::new(python()).arg(script).args(["--url", &http, "--grpc-url", &grpc]).output();
    let output = output.unwrap_or_else(|error| panic!("python does not run: {error}; run `make setup`"));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    println!("{said}");
}

fn an_idle_sequence_is_over(mode: Mode) {
    let models = ModelFolder::copy_of(&repository()).model_like("accumulator", "hasty");
    let config = std::fs::read_to_string(models.path().join("hasty/config.pbtxt")).expect("it was copied");
    let models = models.file("hasty/config.pbtxt", config.replace("60000000", "1000"));
    let sandbox = setup(mode).repository(models.path()).start();
    assert_eq!(sandbox.infer("hasty", &body(7, 1, true, false)).numbers("OUTPUT"), [1.]);
    std::thread::sleep(Duration::from_millis(100));
    let late = sandbox.infer("hasty", &body(7, 1, false, false));
    assert_eq!(late.status, 400);
    assert!(late.error().ends_with(
        "inference request for sequence 7 to model 'hasty' must specify the START flag on the first request of the sequence"
    ));
}

fn steps_of_an_ensemble_have_states_of_their_own(mode: Mode) {
    let step = |model: &str, input: &str, output: &str| {
        format!(
            "{{ model_name: '{model}' model_version: -1 input_map {{ key: 'INPUT' value: '{input}' }}
               output_map {{ key: 'OUTPUT' value: '{output}' }} }}"
        )
    };
    let output = |name: &str| format!("{{ name: '{name}' data_type: TYPE_INT32 dims: [1] }}");
    let config = format!(
        "platform: 'ensemble' max_batch_size: 8 input [ {} ] output [ {}, {}, {} ] ensemble_scheduling {{ step [ {}, {}, {} ] }}",
        output("INPUT"),
        output("SUM"),
        output("TOTAL"),
        output("OTHER"),
        step("accumulator", "INPUT", "SUM"),
        step("second", "SUM", "TOTAL"),
        step("second", "INPUT", "OTHER"),
    );
    let models = ModelFolder::copy_of(&repository()).model_like("accumulator", "second").model("sums", &config);
    let sandbox = setup(mode).repository(models.path()).start();
    let sums = [(1, [1., 1., 1.]), (2, [3., 4., 3.]), (3, [6., 10., 6.])];
    for (value, expected) in sums {
        let answer = sandbox.infer("sums", &body(5, value, value == 1, false));
        let found = ["SUM", "TOTAL", "OTHER"].map(|name| answer.numbers(name)[0]);
        assert_eq!(found, expected);
        assert_eq!(answer.json()["outputs"].as_array().map(Vec::len), Some(3), "no state shows");
    }
    // The model's own sequence of this id is another one.
    assert_eq!(sandbox.infer("accumulator", &body(5, 1, false, false)).status, 400);
    let mut only_other = body(5, 4, false, false);
    only_other["outputs"] = json!([{"name": "OTHER"}]);
    assert_eq!(sandbox.infer("sums", &only_other).numbers("OTHER"), [10.]);
    let answer = sandbox.infer("sums", &body(5, 1, false, true));
    assert_eq!(answer.numbers("SUM"), [7.], "the step that was left out has kept its state");
    assert_eq!(answer.numbers("OTHER"), [11.]);

    // A step that did not take part in the beginning.
    only_other["parameters"]["sequence_start"] = json!(true);
    assert_eq!(sandbox.infer("sums", &only_other).numbers("OTHER"), [4.]);
    let error = sandbox.infer("sums", &body(5, 1, false, false)).error();
    assert!(
        error.contains("in ensemble 'sums', ")
            && error.contains("sequence 5 to model 'accumulator' must specify the START"),
        "{error}"
    );
}

fn a_state_may_be_larger_than_a_message(mode: Mode) {
    // The brokers of tests take messages of 8 MiB.
    const COUNT: usize = 1_000_000;
    let sandbox = setup(mode).start();
    let bytes: Vec<u8> = std::iter::repeat_n(1f32.to_le_bytes(), COUNT).flatten().collect();
    for number in 1..=3 {
        let header = json!({
            "parameters": {"sequence_id": "large", "sequence_start": number == 1, "sequence_end": number == 3},
            "inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [COUNT], "parameters": {"binary_data_size": bytes.len()}}],
            "outputs": [{"name": "COUNT"}]
        });
        let answer = sandbox.send(&Request::infer_binary("memory", &header, &bytes));
        // Two values are in the file of the initial state.
        assert_eq!(answer.numbers("COUNT"), [(number * COUNT + 2) as f32]);
    }
    let first = json!({
        "parameters": {"sequence_id": "small", "sequence_start": true},
        "inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1], "data": [3]}]
    });
    assert_eq!(sandbox.infer("memory", &first).numbers("SEEN"), [1., 2., 3.], "a state that is also an output");
}

/// Another gateway of the same system, and where it listens.
fn second_gateway(sandbox: &Sandbox, folder: &std::path::Path) -> (Process, SocketAddr) {
    let nats = sandbox.nats.as_ref().expect("services have a broker").url();
    let mut command = product("trireme-gateway");
    command.args(["--nats-url", &nats, "--model-repository"]).arg(repository());
    let gateway = Process::start("second-gateway", &mut command, folder);
    let address = wait_until("the second gateway listens", LIMIT, || {
        let listener = gateway.events().into_iter().find(|event| event["message"] == "HTTP listener")?;
        listener["address"].as_str()?.parse().ok()
    });
    wait_until("the second gateway is ready", LIMIT, || {
        let ready = Request::get("/v2/models/accumulator/ready").send(address).ok()?;
        (ready.status == 200).then_some(())
    });
    (gateway, address)
}

/// Interleaved sequences, whose requests come through two gateways in turn, while a worker and then a gateway are killed.
#[test]
fn sequences_outlive_workers_and_gateways() {
    const SEQUENCES: usize = 6;
    const REQUESTS: usize = 24;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut sandbox = setup(Mode::Services).replicas(Stage::Model, 2).start();
    let (mut other, address) = second_gateway(&sandbox, folder.path());
    let answered: Arc<Vec<AtomicUsize>> = Arc::new((0..SEQUENCES).map(|_| AtomicUsize::new(0)).collect());
    let clients: Vec<_> = (0..SEQUENCES)
        .map(|sequence| {
            let (answered, gateways) = (answered.clone(), [sandbox.address, address]);
            std::thread::spawn(move || {
                let (id, mut sum) = (sequence as u64 + 1, 0);
                for number in 1..=REQUESTS {
                    let value = (number * (sequence + 1)) as i64;
                    sum += value;
                    // The second half goes through one gateway, because the other one is killed.
                    let gateway = if number > REQUESTS / 2 { gateways[0] } else { gateways[number % 2] };
                    let answer = send(gateway, "accumulator", &body(id, value, number == 1, number == REQUESTS));
                    assert_eq!(answer.numbers("OUTPUT"), [sum as f32], "sequence {id}, request {number}");
                    answered[sequence].store(number, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // A client that has failed ends early.
    let wait_answered = |count: usize| {
        wait_until("every client has its answers", LIMIT, || {
            let mut all = clients.iter().zip(answered.iter());
            all.all(|(client, answered)| answered.load(Ordering::Relaxed) >= count || client.is_finished())
                .then_some(())
        });
    };
    wait_answered(REQUESTS / 4);
    sandbox.worker(Stage::Model, 0).kill();
    wait_answered(REQUESTS / 2 + 1);
    other.kill();
    for client in clients {
        client.join().expect("every sum is right");
    }
}
