//! Hostile models and requests.

use super::*;

/// A model whose output is a tensor of four floats that lie in the file `location`.
fn with_weights_in(location: &str) -> TempDir {
    let entry = |key: &str, value: &str| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
    let tensor = [
        vec![1 << 3, 4, 2 << 3, 1],
        field(8, b"w"),
        entry("location", location),
        entry("length", "16"),
        vec![14 << 3, 1],
    ];
    let shape = field(2, &field(1, &[1 << 3, 4]));
    let value = |name: &str| {
        let tensor_type = [vec![1 << 3, 1], shape.clone()].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor_type))].concat()
    };
    let node = [field(1, b"x"), field(1, b"w"), field(2, b"y"), field(4, b"Add")].concat();
    let graph =
        [field(1, &node), field(2, b"g"), field(5, &tensor.concat()), field(11, &value("x")), field(12, &value("y"))];
    let model = [vec![1 << 3, 8], field(7, &graph.concat()), field(8, &[2 << 3, 17])].concat();
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("1")).unwrap();
    std::fs::write(directory.path().join("1/model.onnx"), model).unwrap();
    directory
}

fn zeros() -> Vec<Tensor> {
    vec![Tensor::from_values("x", [4], vec![0f32; 4]).unwrap()]
}

/// A model file that came with a request may name any file as its weights.
#[test]
fn weights_lie_beside_their_model_or_nowhere() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "sixteen letters.").unwrap();
    let outside = secret.path().to_str().unwrap();
    for location in [outside, &format!("../../{}", secret.path().file_name().unwrap().display())] {
        let error = load_error(with_weights_in(location), &config("m", ""));
        assert!(error.starts_with("model 'm': ") && !error.contains("sixteen"), "{error}");
    }
    let beside = with_weights_in("weights");
    std::fs::write(beside.path().join("1/weights"), [0, 0, 128, 63].repeat(4)).unwrap();
    let mut model = load(&beside, &config("m", "")).unwrap();
    assert_eq!(*output(&execute(&mut model, &[&zeros()], "y")[0]).values::<f32>().unwrap(), [1.0; 4]);
}

/// A row without tokens costs nothing, but a graph may make a vector of it.
#[test]
fn rows_without_elements_do_not_become_gigabytes() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/repositories/seed/embedding_model");
    let text = std::fs::read_to_string(directory.join("config.pbtxt")).unwrap();
    let mut model = load(&directory, &ModelConfig::parse(&text, "embedding_model").unwrap()).unwrap();
    let empty =
        ["input_ids", "attention_mask"].map(|name| Tensor::new(name, DataType::Int64, [1 << 16, 0], Bytes::new()));
    let inputs = empty.map(Result::unwrap);
    let results = execute(&mut model, &[&inputs], "3391");
    let error = results[0].as_ref().unwrap_err();
    assert_eq!(
        error.message,
        "model 'embedding_model': tensor '3391' of shape [65536,1024] takes 268435456 bytes, and a request may ask for 134217728 at most: \
         send fewer rows"
    );
}

#[test]
fn one_bad_request_costs_its_batch_some_runs_and_not_one_for_each_member() {
    let encoder = "max_batch_size: 16
        input [{ name: 'input_ids' data_type: TYPE_INT64 dims: [-1] }, { name: 'attention_mask' data_type: TYPE_INT64 dims: [-1] }]
        output [{ name: 'last_hidden_state' data_type: TYPE_FP32 dims: [-1, 8] }]";
    let mut model = load(committed("tiny_encoder"), &config("tiny_encoder", encoder)).unwrap();
    let text = |id: i64| {
        let ints = |name, values: [i64; 3]| Tensor::from_values(name, [1, 3], values.to_vec()).unwrap();
        [ints("input_ids", [2, id, 3]), ints("attention_mask", [1; 3])]
    };
    let mut batch = vec![text(7); 16];
    batch[5] = text(1 << 40);
    let results = execute(&mut model, &batch.iter().map(|inputs| &inputs[..]).collect::<Vec<_>>(), "last_hidden_state");
    assert_eq!(results[5].as_ref().unwrap_err().code, ErrorCode::InvalidArg);
    let sizes: Vec<u32> = results.iter().flatten().map(|response| response.timing.batch_size).collect();
    assert_eq!(sizes, [[4; 4].as_slice(), &[1], &[2, 2], &[8; 8]].concat(), "the halves without it run whole");
}
