//! Instances that share a session: on the CPU here, which runs the same code as a GPU.

use trireme_engine::ExecuteRequest;

use super::*;

fn encoder() -> ModelConfig {
    config(
        "tiny_encoder",
        "input [
           { name: 'input_ids' data_type: TYPE_INT64 dims: [ -1, -1 ] },
           { name: 'attention_mask' data_type: TYPE_INT64 dims: [ -1, -1 ] }
         ]
         output [ { name: 'last_hidden_state' data_type: TYPE_FP32 dims: [ -1, -1, 8 ] } ]",
    )
}

/// `count` instances of `model` with one session.
fn instances(model: &Path, config: &ModelConfig, count: usize) -> Vec<OnnxInstance> {
    let options = OnnxRuntimeOptions::default();
    let settings = Settings::new(config, &options, 2, &[]).unwrap();
    let environment = library::environment(None).unwrap();
    let sessions = Sessions::prepare(&config.name, &environment, &settings, &options, model);
    let session = sessions.make(InstanceDevice::Cpu, 1).unwrap();
    let schema = Schema::new(&config.name, session.inputs(), session.outputs()).unwrap();
    let shared = Arc::new(Mutex::new(session));
    let instance = |_| OnnxInstance::new(config, &schema, Held::Shared(shared.clone()), None, None);
    (0..count).map(instance).collect()
}

fn tokens(rows: i64, length: i64, first: i64) -> ExecuteRequest {
    let ids = (0..rows * length).map(|index| 1 + (first + index) % 7).collect::<Vec<_>>();
    let ones = vec![1i64; ids.len()];
    let inputs = [("input_ids", ids), ("attention_mask", ones)];
    let inputs = inputs.map(|(name, values)| Tensor::from_values(name, [rows, length], values).unwrap());
    request(&inputs, &["last_hidden_state"])
}

#[test]
fn instances_that_share_a_session_answer_as_if_alone() {
    let config = encoder();
    let requests: Vec<_> = (1..8).map(|size| tokens(1 + size % 3, size, size)).collect();
    let mut alone = load(committed("tiny_encoder"), &config).unwrap();
    let alone = alone.instances[0].as_batch().unwrap();
    let expected: Vec<_> =
        requests.iter().map(|request| output(&alone.execute(std::slice::from_ref(request))[0]).clone()).collect();
    let mut instances = instances(&committed("tiny_encoder").join("1/model.onnx"), &config, 3);
    std::thread::scope(|scope| {
        for (start, instance) in instances.iter_mut().enumerate() {
            let (requests, expected) = (&requests, &expected);
            scope.spawn(move || {
                for round in 0..70 {
                    let at = (start * 2 + round) % requests.len();
                    let results = instance.execute(std::slice::from_ref(&requests[at]));
                    assert_eq!(output(&results[0]), &expected[at], "instance {start}, round {round}");
                }
            });
        }
    });
    let unknown = tokens(1, 3, 0);
    let bad = Tensor::from_values("input_ids", [1, 3], vec![1i64 << 40; 3]).unwrap();
    let bad = request(&[bad, unknown.inputs[1].clone()], &["last_hidden_state"]);
    assert_eq!(instances[0].execute(&[bad])[0].as_ref().unwrap_err().code, ErrorCode::InvalidArg);
    assert!(instances[1].execute(&[unknown])[0].is_ok(), "the error of one instance is not the other's");
}
