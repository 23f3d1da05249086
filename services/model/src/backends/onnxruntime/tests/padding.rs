//! Requests of differing lengths in one run: a request's result does not depend on the others.

use std::time::{Duration, Instant};

use trireme_engine::{Candidate, Decision};

use super::*;

const ENCODER: &str = "input [{ name: 'input_ids' data_type: TYPE_INT64 dims: [-1, -1] },
                              { name: 'attention_mask' data_type: TYPE_INT64 dims: [-1, -1] }]
                       output [{ name: 'last_hidden_state' data_type: TYPE_FP32 dims: [-1, -1, 8] }]";

fn padded(io: &str, pad_inputs: &str) -> ModelConfig {
    let pad = format!("parameters {{ key: 'pad_inputs' value {{ string_value: '{pad_inputs}' }} }}");
    config("tiny_encoder", &format!("{io} {pad}"))
}

fn load_encoder() -> LoadedModel {
    load(committed("tiny_encoder"), &padded(ENCODER, "input_ids:0, attention_mask:0")).unwrap()
}

/// `rows` texts of `length` tokens.
fn texts(rows: usize, length: usize) -> Vec<Tensor> {
    let ints = |name, values: Vec<i64>| Tensor::from_values(name, [rows as i64, length as i64], values).unwrap();
    let ids = (0..rows * length).map(|i| 2 + (i * 7 + length) as i64 % 20).collect();
    vec![ints("input_ids", ids), ints("attention_mask", vec![1; rows * length])]
}

/// The encoder's answers to valid requests of one run.
fn hidden(model: &mut LoadedModel, requests: &[&[Tensor]]) -> Vec<Tensor> {
    let results = execute(model, requests, "last_hidden_state");
    let rows: i64 = requests.iter().map(|inputs| inputs[0].shape()[0]).sum();
    for result in &results {
        let ran = result.as_ref().expect("the request is valid").timing.batch_size;
        assert_eq!(i64::from(ran), rows, "they did not run together");
    }
    results.iter().map(|result| output(result).clone()).collect()
}

/// The largest difference between two tensors of one shape.
fn difference(left: &Tensor, right: &Tensor) -> f32 {
    assert_eq!((left.name(), left.shape()), (right.name(), right.shape()));
    let (left, right) = (left.values::<f32>().unwrap(), right.values::<f32>().unwrap());
    assert!(left.iter().chain(&*right).all(|value| value.is_finite()), "not a number");
    left.iter().zip(&*right).map(|(l, r)| (l - r).abs()).fold(0.0, f32::max)
}

#[test]
fn conforms_with_either_form_of_the_batch_dimension() {
    let implied = ENCODER.replace("[-1, -1", "[-1");
    for io in [ENCODER.to_owned(), format!("max_batch_size: 16 {implied}")] {
        let config = padded(&io, "input_ids:0, attention_mask:0");
        let inputs = [3, 9, 4, 1].map(|length| texts(1, length)).to_vec();
        let case = Case { inputs, outputs: vec!["last_hidden_state".into()] };
        conformance::check(&backend(), &config, committed("tiny_encoder"), &case);
    }
}

#[test]
fn requests_of_several_rows_keep_their_lengths() {
    let mut model = load_encoder();
    let requests = [texts(3, 2), texts(1, 5), texts(2, 4)];
    let requests: Vec<_> = requests.iter().map(Vec::as_slice).collect();
    let together = hidden(&mut model, &requests);
    for (request, together) in requests.iter().zip(&together) {
        assert!(difference(together, &hidden(&mut model, &[request])[0]) <= 1e-5);
    }
    let result = &execute(&mut model, &requests, "last_hidden_state")[0];
    assert_eq!(result.as_ref().unwrap().timing.batch_size, 6);
}

#[test]
fn requests_that_padding_changes_do_not_share_a_run() {
    let mut wrong = padded(ENCODER, "input_ids:0, attention_mask:1");
    let (short, long) = (texts(1, 2), texts(1, 9));
    let mut model = load(committed("tiny_encoder"), &wrong).expect("a warning, no fault");
    let alone = hidden(&mut model, &[&short]);
    let results = execute(&mut model, &[&short, &long], "last_hidden_state");
    assert_eq!(*output(&results[0]), alone[0]);
    assert_ne!(model.policy.describe(&short).signature, model.policy.describe(&long).signature);
    // Nor do the rows of one request: the short one is the first of two, padded as a tokenizer does it.
    let pair = |name: &str, of: usize| {
        let own = short[of].values::<i64>().unwrap();
        let first = own.iter().copied().chain(std::iter::repeat_n(0, 7));
        let all = first.chain(long[of].values::<i64>().unwrap().iter().copied()).collect();
        Tensor::from_values(name, [2, 9], all).unwrap()
    };
    let result = &execute(&mut model, &[&[pair("input_ids", 0), pair("attention_mask", 1)]], "last_hidden_state")[0];
    let (both, alone) = (output(result).values::<f32>().unwrap(), alone[0].values::<f32>().unwrap());
    assert_eq!(both[..alone.len()], *alone);
    assert!(both[alone.len()..9 * 8].iter().all(|&value| value == 0.0), "padding has no states");
    let alone = hidden(&mut model, &[&short]);
    // With `padding_check: off` they run together all the same.
    wrong.parameters.insert("padding_check".into(), "off".into());
    let mut model = load(committed("tiny_encoder"), &wrong).unwrap();
    let together = hidden(&mut model, &[&short, &long]);
    assert!(difference(&alone[0], &together[0]) > 1e-3, "the model does not look at its mask");
}

#[test]
fn a_wide_model_finds_out_while_it_serves_that_rows_may_share_a_run() {
    let mut config = padded(ENCODER, "input_ids:0, attention_mask:0");
    config.parameters.insert("layouts".into(), "wide".into());
    let mut model = load(committed("tiny_encoder"), &config).unwrap();
    let (short, long) = (texts(1, 2), texts(1, 9));
    let alone = [&short, &long].map(|request| hidden(&mut model, &[request]).remove(0));
    let shares =
        |model: &LoadedModel| model.policy.describe(&short).signature == model.policy.describe(&long).signature;
    let began = Instant::now();
    while !shares(&model) {
        // The answers are right meanwhile, too.
        let results = execute(&mut model, &[&short, &long], "last_hidden_state");
        assert!(results.iter().zip(&alone).all(|(result, alone)| difference(output(result), alone) <= 1e-5));
        assert!(began.elapsed() < Duration::from_secs(60), "the trial does not end");
    }
    let together = hidden(&mut model, &[&short, &long]);
    assert!(together.iter().zip(&alone).all(|(one, alone)| difference(one, alone) <= 1e-5));
}

#[test]
fn rows_for_the_check_are_those_of_the_configuration() {
    // A token beyond the table cannot run, and shows that these rows are taken; the model serves all the same.
    let mut config = padded(ENCODER, "input_ids:0, attention_mask:0");
    config.parameters.insert("sample_rows".into(), "[[2, 3], [2, 99999, 3]]".into());
    let mut model = load(committed("tiny_encoder"), &config).unwrap();
    let (short, long) = (texts(1, 2), texts(1, 9));
    assert_ne!(model.policy.describe(&short).signature, model.policy.describe(&long).signature);
    let results = execute(&mut model, &[&short, &long], "last_hidden_state");
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    config.parameters.insert("sample_rows".into(), "[[2, 3], [2, 9, 3]]".into());
    let model = load(committed("tiny_encoder"), &config).unwrap();
    assert_eq!(model.policy.describe(&short).signature, model.policy.describe(&long).signature);
}

/// A model of `input_ids` [b, n] whose `y` [b, n] is the ids and what `nodes` make of them (`more`).
pub(super) fn plus(nodes: &[Vec<u8>]) -> TempDir {
    made(&[nodes, &[node("Add", &["x", "more"], "y", &[])]].concat())
}

/// The same whose `y` the nodes make of `x`, the ids as numbers.
pub(super) fn made(nodes: &[Vec<u8>]) -> TempDir {
    let directory = identity_model(1, &["b", "n"]);
    let value = |name: &str, kind: u8| {
        let shape: Vec<u8> = ["b", "n"].iter().flat_map(|dim| field(1, &field(2, dim.as_bytes()))).collect();
        let tensor_type = [vec![1 << 3, kind], field(2, &shape)].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor_type))].concat()
    };
    let cast = node("Cast", &["input_ids"], "x", &[number("to", 1)]);
    let nodes: Vec<u8> = [&[cast], nodes].concat().iter().flat_map(|node| field(1, node)).collect();
    let graph = [nodes, field(2, b"g"), field(11, &value("input_ids", 7)), field(12, &value("y", 1))].concat();
    let model = [vec![1 << 3, 8], field(7, &graph), field(8, &[2 << 3, 17])].concat();
    std::fs::write(directory.path().join("1/model.onnx"), model).unwrap();
    directory
}

pub(super) fn node(kind: &str, inputs: &[&str], output: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    let inputs: Vec<u8> = inputs.iter().flat_map(|input| field(1, input.as_bytes())).collect();
    let attributes: Vec<u8> = attributes.iter().flat_map(|attribute| field(5, attribute)).collect();
    [inputs, field(2, output.as_bytes()), field(4, kind.as_bytes()), attributes].concat()
}

/// AttributeProto: its name, its value, and that it is a number (field 20).
fn number(name: &str, value: u8) -> Vec<u8> {
    [field(1, name.as_bytes()), vec![3 << 3, value, 0xa0, 0x01, 2]].concat()
}

/// The same of floats: a constant of one dimension.
fn floats(values: &[f32]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    node("Constant", &[], "constant", &[[field(1, b"value_floats"), field(7, &values), vec![0xa0, 0x01, 6]].concat()])
}

const PLUS: &str = "input [{ name: 'input_ids' data_type: TYPE_INT64 dims: [-1, -1] }]
                    output [{ name: 'y' data_type: TYPE_FP32 dims: [-1, -1] }]";

/// Whether requests of different lengths share a run of this model.
fn shares(directory: &TempDir) -> bool {
    let model = load(directory, &padded(PLUS, "input_ids:0")).unwrap();
    let ids = |length: i64| [Tensor::from_values("input_ids", [1, length], vec![3i64; length as usize]).unwrap()];
    model.policy.describe(&ids(2)).signature == model.policy.describe(&ids(9)).signature
}

#[test]
fn a_small_difference_by_neighbors_is_no_rounding_and_one_by_shapes_is() {
    let scaled = |by: f32| {
        [
            floats(&[by]),
            node("Cast", &["found"], "float", &[number("to", 1)]),
            node("Mul", &["float", "constant"], "more", &[]),
        ]
    };
    let mean = [&[node("ReduceMean", &["x"], "found", &[])], &scaled(1e-3)[..]].concat();
    assert!(!shares(&plus(&mean)), "a row's result has a little of its neighbors");
    // As sums in another order do, with numbers of few bits.
    let size = [&[node("Size", &["x"], "found", &[])], &scaled(1e-4)[..]].concat();
    assert!(shares(&plus(&size)), "a row's result does not depend on its neighbors' tokens");
    let size = [&[node("Size", &["x"], "found", &[])], &scaled(1e-2)[..]].concat();
    assert!(!shares(&plus(&size)), "so large a difference is no rounding");
}

#[test]
fn a_graph_that_keeps_the_length_of_its_trace_is_refused() {
    let directory = plus(&[floats(&[0.0; 5]), node("Identity", &["constant"], "more", &[])]);
    let mut config = padded(PLUS, "input_ids:0");
    // Without rows of a tokenizer nothing shows that rows of other lengths come.
    load(&directory, &config).expect("a warning");
    config.parameters.insert("sample_rows".into(), "[[2, 3, 4, 5, 3], [2, 9, 3]]".into());
    let error = load_error(&directory, &config);
    assert!(error.contains("does not run for a row of 3 tokens") && error.contains("trireme export"), "{error}");
}

#[test]
fn rows_on_the_left_are_as_they_are_alone() {
    let mut config = padded(ENCODER, "input_ids:0, attention_mask:0");
    let (short, long) = (texts(1, 2), texts(1, 9));
    let alone = hidden(&mut load_encoder(), &[&short]);
    config.parameters.insert("padding_side".into(), "left".into());
    config.parameters.insert("padding_check".into(), "off".into());
    let mut model = load(committed("tiny_encoder"), &config).unwrap();
    // The encoder's positions are those of the row, so that only the shape and the place are compared.
    assert_eq!(hidden(&mut model, &[&short, &long])[0].shape(), alone[0].shape());
}

#[test]
fn what_is_not_declared_is_not_padded() {
    let mut model = load(committed("tiny_encoder"), &padded(ENCODER, "input_ids:0")).unwrap();
    // Their masks differ in length, so each runs alone.
    let (short, long) = (texts(1, 2), texts(1, 9));
    assert_ne!(model.policy.describe(&short).signature, model.policy.describe(&long).signature);
    let results = execute(&mut model, &[&short, &long], "last_hidden_state");
    assert_eq!(*output(&results[0]), hidden(&mut model, &[&short])[0]);
}

#[test]
fn odd_requests_share_with_nobody_and_harm_nobody() {
    let mut model = load_encoder();
    let good = texts(1, 4);
    // A mask of one element for all tokens, which broadcasting allows.
    let odd = vec![texts(1, 6)[0].clone(), texts(1, 1)[1].clone()];
    assert_ne!(model.policy.describe(&odd).signature, model.policy.describe(&good).signature);
    let alone = hidden(&mut model, &[&odd]);
    let mixed = execute(&mut model, &[&good, &odd, &texts(1, 9)], "last_hidden_state");
    assert_eq!(*output(&mixed[1]), alone[0]);
    assert!(difference(output(&mixed[0]), &hidden(&mut model, &[&good])[0]) <= 1e-5);
}

#[test]
fn a_declaration_that_the_model_contradicts_fails_the_load() {
    // The model copies `[b, n]`.
    let directory = identity_model(1, &["b", "n"]);
    let io = "input [{ name: 'x' data_type: TYPE_FP32 dims: [-1, -1] }]
              output [{ name: 'y' data_type: TYPE_FP32 dims: [-1, -1] }]";
    let mut good = padded(io, "x:7");
    let mut model = load(&directory, &good).unwrap();
    let row = |name: &str, length: usize| Tensor::from_values(name, [1, length as i64], vec![1.5f32; length]).unwrap();
    let results = execute(&mut model, &[&[row("x", 2)], &[row("x", 3)]], "y");
    assert_eq!((output(&results[0]), output(&results[1])), (&row("y", 2), &row("y", 3)));

    good.parameters.insert("unpad_outputs".into(), String::new());
    assert_eq!(
        load_error(&directory, &good),
        "model 'tiny_encoder': output 'y' of a padded request has shape [1,8], alone it has [1,3]: 'unpad_outputs' has \
         to name the outputs that are as long as the padded inputs"
    );
    // The masks would not be padded, and would not fit the padded ids.
    let unpadded = "input [{ name: 'input_ids' data_type: TYPE_INT64 dims: [-1, -1] },
                           { name: 'attention_mask' data_type: TYPE_INT64 dims: [-1, 3] }]
                    output [{ name: 'last_hidden_state' data_type: TYPE_FP32 dims: [-1, -1, 8] }]";
    let model = load(committed("tiny_encoder"), &padded(unpadded, "input_ids:0")).expect("its requests run alone");
    assert_ne!(model.policy.describe(&texts(1, 2)).signature, model.policy.describe(&texts(1, 9)).signature);
}

#[test]
fn costs_are_measured_once_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let options =
        OnnxRuntimeOptions { cost_model_cache: Some(directory.path().join("costs")), ..OnnxRuntimeOptions::default() };
    let config = padded(ENCODER, "input_ids:0, attention_mask:0");
    let in_hand = || {
        let model = conformance::load(&OnnxRuntime::new(options.clone()), &config, committed("tiny_encoder")).unwrap();
        model.policy.in_hand(1)
    };
    in_hand();
    let entries: Vec<_> =
        std::fs::read_dir(directory.path().join("costs")).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(entries.len(), 1);
    // Changes the entry, to see that the next load reads it.
    let text = std::fs::read_to_string(&entries[0]).unwrap();
    let changed: String = text
        .lines()
        .map(|line| match line.starts_with("budget: ") {
            true => "budget: 320\n".to_owned(),
            false => format!("{line}\n"),
        })
        .collect();
    std::fs::write(&entries[0], changed).unwrap();
    assert_eq!(in_hand(), 64 + 40);
}

/// Runs only if TRIREME_REFERENCE_DIR names a folder with `data/texts-dev.jsonl` and the published model.
#[test]
fn real_texts_are_the_same_alone_and_together() {
    let Some(reference) = std::env::var_os("TRIREME_REFERENCE_DIR").map(PathBuf::from) else {
        eprintln!("TRIREME_REFERENCE_DIR is not set: nothing compared");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("1")).unwrap();
    let file = reference.join("models/minilm-l6-v2-fp32/model.onnx");
    std::os::unix::fs::symlink(file, directory.path().join("1/model.onnx")).unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo/minilm/config.pbtxt");
    // Costs that are measured on a busy machine may leave each request a run of its own.
    let unmeasured = r#"parameters { key: "cost_model" value { string_value: "off" } }"#;
    let config = std::fs::read_to_string(demo).unwrap() + unmeasured;
    let mut model = load(&directory, &ModelConfig::parse(&config, "minilm").unwrap()).unwrap();

    let lines = std::fs::read_to_string(reference.join("data/texts-dev.jsonl")).unwrap();
    let requests: Vec<Vec<Tensor>> = lines.lines().step_by(3).map(text_inputs).collect();
    let mut largest = 0f32;
    let mut compare = |model: &mut LoadedModel, batch: &[&[Tensor]]| {
        for (inputs, together) in batch.iter().zip(hidden(model, batch)) {
            largest = largest.max(difference(&together, &hidden(model, &[inputs])[0]));
        }
    };
    // Runs chosen by the policy.
    let (mut runs, mut batched) = (0, 0);
    for window in requests.chunks(64) {
        let mut waiting: Vec<&[Tensor]> = window.iter().map(Vec::as_slice).collect();
        while !waiting.is_empty() {
            let now = Instant::now();
            let candidate = |inputs: &&[Tensor]| Candidate {
                arrived: now,
                priority: 1,
                description: model.policy.describe(inputs),
            };
            let candidates: Vec<_> = waiting.iter().map(candidate).collect();
            let Decision::Run(members) = model.policy.decide(&candidates, now) else { panic!("there is no delay") };
            compare(&mut model, &members.iter().map(|&member| waiting[member]).collect::<Vec<_>>());
            (runs, batched) = (runs + 1, batched + usize::from(members.len() > 1));
            let mut index = 0;
            waiting.retain(|_| {
                index += 1;
                !members.contains(&(index - 1))
            });
        }
    }
    // Runs that no policy would choose: mostly padding.
    for batch in requests.chunks(8).step_by(4) {
        compare(&mut model, &batch.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    println!("{} texts in {runs} runs, {batched} of several: largest difference {largest:e}", requests.len());
    assert!(batched * 4 > runs, "hardly any batches");
    assert!(largest <= 1e-5, "{largest:e}");
}

/// The model's inputs for a line of the reference texts.
fn text_inputs(line: &str) -> Vec<Tensor> {
    let (_, ids) = line.split_once("\"input_ids\": [").unwrap();
    let ids: Vec<i64> = ids.split(']').next().unwrap().split(',').map(|id| id.trim().parse().unwrap()).collect();
    let shape = [1, ids.len() as i64];
    let fill = |name, value| Tensor::from_values(name, shape, vec![value; shape[1] as usize]).unwrap();
    let (mask, types) = (fill("attention_mask", 1i64), fill("token_type_ids", 0i64));
    vec![Tensor::from_values("input_ids", shape, ids).unwrap(), mask, types]
}

/// A model that puts a cache before its input: `[batch, past]` and `[batch, n]`, joined.
fn decoder() -> TempDir {
    let directory = identity_model(1, &["b", "n"]);
    let value = |name: &str, length: &str| {
        let shape: Vec<u8> = ["b", length].iter().flat_map(|dim| field(1, &field(2, dim.as_bytes()))).collect();
        let tensor_type = [vec![1 << 3, 1], field(2, &shape)].concat();
        [field(1, name.as_bytes()), field(2, &field(1, &tensor_type))].concat()
    };
    let past = "past_key_values.0.key";
    let node = node("Concat", &[past, "x"], "y", &[number("axis", 1)]);
    let inputs = [field(11, &value(past, "past")), field(11, &value("x", "n"))].concat();
    let graph = [field(1, &node), field(2, b"g"), inputs, field(12, &value("y", "all"))].concat();
    let model = [vec![1 << 3, 8], field(7, &graph), field(8, &[2 << 3, 17])].concat();
    std::fs::write(directory.path().join("1/model.onnx"), model).unwrap();
    directory
}

#[test]
fn a_decoder_gets_an_empty_cache_that_no_configuration_declares() {
    let io = "input [{ name: 'x' data_type: TYPE_FP32 dims: [-1, -1] }]
              output [{ name: 'y' data_type: TYPE_FP32 dims: [-1, -1] }]";
    let mut model = load(decoder(), &padded(io, "x:7")).unwrap();
    let rows = |rows: i64, length: i64| {
        let values: Vec<f32> = (0..rows * length).map(|value| value as f32).collect();
        Tensor::from_values("x", [rows, length], values).unwrap()
    };
    let requests = [[rows(2, 3)], [rows(1, 5)]];
    let results = execute(&mut model, &[&requests[0], &requests[1]], "y");
    for (result, [request]) in results.iter().zip(&requests) {
        let found = output(result);
        assert_eq!((found.shape(), found.data()), (request.shape(), request.data()));
    }
}
