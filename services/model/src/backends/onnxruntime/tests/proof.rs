//! Rows of the tokenizer at the load: graphs that do not give a result for each row are refused, or run each row alone.

use super::padding::{made, node, plus};
use super::*;

/// AttributeProto: its name, its numbers (field 8), and its type `INTS` (field 20).
fn numbers(name: &str, values: &[u8]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|value| vec![8 << 3, *value]).collect();
    [field(1, name.as_bytes()), values, vec![0xa0, 0x01, 7]].concat()
}

/// A configuration with rows, and more parameters.
fn rows(length: i64, more: &[(&str, &str)]) -> ModelConfig {
    let io = format!(
        "input [{{ name: 'input_ids' data_type: TYPE_INT64 dims: [-1, {length}] }}]
         output [{{ name: 'y' data_type: TYPE_FP32 dims: [-1, {length}] }}]"
    );
    let mut config = config("m", &io);
    let sample = [("sample_rows", "[[2, 3], [2, 9, 5, 7, 3]]"), ("longest_row", "12")];
    config.parameters.extend([&sample, more].concat().into_iter().map(|(key, value)| (key.into(), value.into())));
    config
}

/// The largest number of each token among all rows, or among all tokens.
fn largest(axes: &[u8]) -> Vec<u8> {
    let axes: Vec<_> = (!axes.is_empty()).then(|| numbers("axes", axes)).into_iter().collect();
    node("ReduceMax", &["x"], "more", &axes)
}

const PADDED: [(&str, &str); 1] = [("pad_inputs", "input_ids:0")];

#[test]
fn a_graph_with_the_sequence_first_is_refused_with_what_turns_it_around() {
    let given = made(&[node("Transpose", &["x"], "y", &[numbers("perm", &[1, 0])])]);
    // A token's number depends on the same place of other rows, and on no other token of its own row.
    let taken = plus(&[largest(&[0])]);
    for (graph, side) in [(&given, "gives"), (&taken, "takes")] {
        for more in [&[][..], &PADDED] {
            let error = load_error(graph, &rows(-1, more));
            assert!(error.contains(&format!("{side} the tokens of a row as the first dimension")), "{error}");
            assert!(error.contains("trireme export FOLDER") && error.contains("'Transpose'"), "{error}");
        }
    }
}

#[test]
fn a_graph_that_gives_the_same_for_every_text_is_refused() {
    let largest = |from, to, axis| node("ReduceMax", &[from], to, &[numbers("axes", &[axis])]);
    let graph = made(&[largest("x", "row", 1), largest("row", "all", 0), node("Div", &["row", "all"], "y", &[])]);
    for more in [&[][..], &PADDED] {
        let error = load_error(&graph, &rows(-1, more));
        assert!(error.contains("the number 1 for every text") && error.contains("trireme export"), "{error}");
    }
}

#[test]
fn rows_that_depend_on_one_another_run_alone() {
    let graph = plus(&[largest(&[])]);
    let request = |rows: &[[i64; 3]]| {
        let shape = [rows.len() as i64, 3];
        [Tensor::from_values("input_ids", shape, rows.concat()).unwrap()]
    };
    // The rows of one length have no padding, or the graph insists on it.
    for length in [3, -1] {
        let mut model = load(&graph, &rows(length, &[])).unwrap();
        let results = execute(&mut model, &[&request(&[[1, 2, 3], [40, 50, 60]])], "y");
        let found = output(&results[0]).values::<f32>().unwrap().to_vec();
        assert_eq!(found, [4.0, 5.0, 6.0, 100.0, 110.0, 120.0], "length {length}");
    }
    // Rows that do not depend on one another share a run.
    let graph = made(&[node("Identity", &["x"], "y", &[])]);
    let mut model = load(&graph, &rows(3, &[])).unwrap();
    let results = execute(&mut model, &[&request(&[[1, 2, 3], [40, 50, 60]])], "y");
    assert_eq!(results[0].as_ref().unwrap().timing.batch_size, 1, "one run of the whole request");
}
