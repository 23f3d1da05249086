//! A graph with adapters: requests of different tasks that wait together run apart.

use std::fs;
use std::sync::Arc;

use trireme_engine::ExecuteRequest;
use trireme_inference::ParameterValue;

use super::*;

/// A request for these tokens, of the task.
fn asked(tokens: &[i64], task: Option<&str>) -> ExecuteRequest {
    let ids = Tensor::from_values("input_ids", [1, tokens.len() as i64], tokens.to_vec()).unwrap();
    let parameters = task.map(|task| ("task_id".to_owned(), ParameterValue::from(task)));
    ExecuteRequest { parameters: Arc::new(parameters.into_iter().collect()), ..request(&[ids], &["y"]) }
}

#[test]
fn requests_of_different_tasks_run_apart() {
    let directory = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tasks/model.onnx");
    fs::create_dir(directory.path().join("1")).unwrap();
    fs::copy(model, directory.path().join("1/model.onnx")).unwrap();
    let config = config(
        "tasks",
        "max_batch_size: 8
         input [ { name: 'input_ids' data_type: TYPE_INT64 dims: [ -1 ] } ]
         output [ { name: 'y' data_type: TYPE_FP32 dims: [ -1 ] } ]
         parameters { key: 'task_ids' value { string_value: '[\"first\", \"second\"]' } }",
    );
    let mut loaded = load(directory.path(), &config).unwrap_or_else(|error| panic!("{error}"));
    let instance = loaded.instances[0].as_batch().unwrap();
    let tasks = [Some("first"), Some("second"), Some("second"), None, Some("first"), Some("third")];
    let requests: Vec<_> = (1..).zip(tasks).map(|(token, task)| asked(&[token, 7], task)).collect();
    let results = instance.execute(&requests);
    let values = |at: usize| output(&results[at]).values::<f32>().unwrap().to_vec();
    assert_eq!([0, 1, 2, 4].map(values), [[1.0, 7.0], [102.0, 107.0], [103.0, 107.0], [5.0, 7.0]]);
    let batches: Vec<_> = results.iter().flatten().map(|response| response.timing.batch_size).collect();
    assert_eq!(batches, [1, 2, 2, 1], "requests of one task share a run");
    for (at, found) in [(3, "missing"), (5, "'third'")] {
        let error = &results[at].as_ref().err().unwrap().message;
        let expected = format!("parameter 'task_id' is {found}, expected one of first, second, or its number from 0");
        assert!(error.contains(&expected), "{error}");
    }
}
