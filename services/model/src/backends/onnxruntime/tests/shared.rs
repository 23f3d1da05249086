//! Instances that share a session, and staging memory: on the CPU here, which runs the same code as a GPU.

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

/// `count` instances of `model` with one session; `staged` if their inputs and outputs are in memory of its allocator.
fn instances(model: &Path, config: &ModelConfig, count: usize, staged: bool) -> Vec<OnnxInstance> {
    let options = OnnxRuntimeOptions::default();
    let settings = Settings::new(config, &options, 2, &[]).unwrap();
    let environment = library::environment(None).unwrap();
    let sessions = Sessions::prepare(&config.name, &environment, &settings, &options, model);
    let session = sessions.make(InstanceDevice::Cpu, 1).unwrap();
    let schema = Schema::new(&config.name, session.inputs(), session.outputs()).unwrap();
    let (mut shared, mut session) = (HashMap::new(), Some(session));
    let instance = |_| {
        let make = || session.take().ok_or("one session is enough");
        let held = InstanceSession::at(InstanceDevice::Cpu, Some(&mut shared), make).unwrap();
        let mut instance = OnnxInstance::new(config, &schema, held, None, None);
        if staged {
            instance.stage(Memory::Plain);
            assert!(instance.is_staged());
        }
        instance
    };
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
    for staged in [false, true] {
        let instances = instances(&committed("tiny_encoder").join("1/model.onnx"), &config, 3, staged);
        answer_as_expected(instances, &requests, &expected);
    }
}

fn answer_as_expected(mut instances: Vec<OnnxInstance>, requests: &[ExecuteRequest], expected: &[Tensor]) {
    std::thread::scope(|scope| {
        for (start, instance) in instances.iter_mut().enumerate() {
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

#[test]
fn staging_memory_takes_every_number_whatever_its_alignment_or_size() {
    for (datatype, number) in [(DataType::Fp32, 1), (DataType::Int64, 7), (DataType::Bool, 9), (DataType::Fp16, 10)] {
        let directory = identity_model(number, &["b", "n"]);
        let io = |list: &str, name: &str| {
            format!("{list} [{{ name: '{name}' data_type: {} dims: [-1, -1] }}] ", datatype.config_name())
        };
        let config = config("m", &(io("input", "x") + &io("output", "y")));
        let mut instance = instances(&directory.path().join("1/model.onnx"), &config, 1, true).remove(0);
        let size = datatype.element_size().unwrap();
        for (rows, columns, offset) in [(2, 3, 0), (2, 3, 1), (2, 0, 0), (0, 3, 0)] {
            let tensor = |name: &str| {
                let bytes: Vec<u8> = (0..(rows * columns) as usize * size + offset).map(|i| (i % 2) as u8).collect();
                Tensor::new(name, datatype, [rows, columns], Bytes::from(bytes).slice(offset..)).unwrap()
            };
            let results = instance.execute(&[request(&[tensor("x")], &["y"])]);
            assert_eq!(*output(&results[0]), tensor("y"), "{datatype} {rows}x{columns}+{offset}");
        }
    }
    let directory = identity_model(9, &["b"]);
    let config = config(
        "m",
        "input [{ name: 'x' data_type: TYPE_BOOL dims: [-1] }] output [{ name: 'y' data_type: TYPE_BOOL dims: [-1] }]",
    );
    let mut instance = instances(&directory.path().join("1/model.onnx"), &config, 1, true).remove(0);
    let tensor = Tensor::new("x", DataType::Bool, [3], Bytes::from_static(&[0, 1, 255])).unwrap();
    let results = instance.execute(&[request(&[tensor], &["y"])]);
    assert_eq!(output(&results[0]).data()[..], [0, 1, 1]);
}

#[test]
fn pinned_memory_that_a_provider_lacks_is_no_error() {
    let config = encoder();
    let mut instance = instances(&committed("tiny_encoder").join("1/model.onnx"), &config, 1, false).remove(0);
    instance.stage(Memory::Pinned(0));
    assert!(!instance.is_staged());
    assert!(instance.execute(&[tokens(2, 4, 1)])[0].is_ok());
}
