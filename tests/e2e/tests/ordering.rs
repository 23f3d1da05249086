//! `preserve_ordering`: answers come in the order of their requests, whichever is computed first.

use std::process::Command;

use trireme_e2e::{Mode, ModelFolder, Setup, Stage, in_one_mode, python, workspace};

in_one_mode!(answers_come_in_the_order_of_their_requests);

/// An identity model with two instances; the second one takes `slower` times as long as the first.
fn uneven(ordered: bool, slower: u32) -> String {
    format!(
        "backend: 'identity' dynamic_batching {{ preserve_ordering: {ordered} }}
         input [{{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }}]
         output [{{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }}]
         instance_group [{{ count: 2 kind: KIND_CPU }}]
         parameters {{ key: 'execute_delay_ms' value {{ string_value: '300' }} }}
         parameters {{ key: 'instance_wise_delay_multiplier' value {{ string_value: '{slower}' }} }}"
    )
}

fn answers_come_in_the_order_of_their_requests(mode: Mode) {
    let models = ModelFolder::new().model("ordered", &uneven(true, 10)).model("unordered", &uneven(false, 10));
    let models = models.model("late_timeout", &uneven(true, 100)).model("late_gone", &uneven(true, 100));
    let setup = Setup::new(mode).repository(models.path());
    let mut sandbox = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start();
    let (http, grpc) = (sandbox.address.to_string(), sandbox.grpc_address().to_string());
    let script = workspace().join("tests/clients/ordering.py");
    let output = Command::new(python()).arg(script).args(["--url", &http, "--grpc-url", &grpc]).output();
    let output = output.unwrap_or_else(|error| panic!("python does not run: {error}; run `make setup`"));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    println!("{said}");
}
