//! Packed graphs: the rows of a run give what each gives alone on the plain graph. The encoders are those of tests/models/packing.py.

use std::time::{Duration, Instant};

use trireme_engine::{Candidate, Decision};

use super::*;

/// An encoder of tests/models/packing, as a model folder.
fn encoder(name: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("1")).unwrap();
    let file = committed("../../models/packing").join(format!("{name}.onnx"));
    std::fs::copy(file, directory.path().join("1/model.onnx")).unwrap();
    directory
}

fn packed(packing: &str, dims: &str, more: &str) -> ModelConfig {
    let text = format!(
        "max_batch_size: 64 {more}
         input [{{ name: 'input_ids' data_type: TYPE_INT64 dims: [-1] }}, {{ name: 'attention_mask' data_type: TYPE_INT64 dims: [-1] }}]
         output [{{ name: 'output' data_type: TYPE_FP32 dims: [{dims}] }}]
         parameters {{ key: 'pad_inputs' value {{ string_value: 'input_ids:0, attention_mask:0' }} }}
         parameters {{ key: 'packing' value {{ string_value: '{packing}' }} }}"
    );
    config("encoder", &text)
}

/// `rows` texts of `length` tokens.
fn texts(rows: usize, length: usize) -> Vec<Tensor> {
    let ints = |name, values: Vec<i64>| Tensor::from_values(name, [rows as i64, length as i64], values).unwrap();
    let ids = (0..rows * length).map(|i| 2 + (i * 7 + length * 3) as i64 % 50).collect();
    vec![ints("input_ids", ids), ints("attention_mask", vec![1; rows * length])]
}

fn runs(model: &mut LoadedModel, requests: &[Vec<Tensor>]) -> Vec<Tensor> {
    let requests: Vec<_> = requests.iter().map(Vec::as_slice).collect();
    let results = execute(model, &requests, "output");
    let rows: i64 = requests.iter().map(|inputs| inputs[0].shape()[0]).sum();
    for result in &results {
        let ran = result.as_ref().expect("the request is valid").timing.batch_size;
        assert_eq!(i64::from(ran), rows, "they did not run together");
    }
    results.iter().map(|result| output(result).clone()).collect()
}

/// Each request's results, alone on the plain graph and with the others on the packed one.
fn compare(name: &str, dims: &str, more: &str) {
    let directory = encoder(name);
    let mut plain = load(&directory, &packed("off", dims, more)).unwrap();
    let mut packed = load(&directory, &packed("on", dims, more)).unwrap();
    let sizes = [(1, 7), (1, 30), (3, 4), (1, 1), (2, 30), (1, 12), (1, 75), (1, 29), (2, 9)];
    let requests = sizes.map(|(rows, length)| texts(rows, length)).to_vec();
    let together = runs(&mut packed, &requests);
    let few = runs(&mut packed, &requests[..2]);
    for (at, request) in requests.iter().enumerate() {
        let [alone, lone] = [&mut plain, &mut packed].map(|model| runs(model, std::slice::from_ref(request)).remove(0));
        for found in [&together[at], &lone].into_iter().chain(few.get(at)) {
            assert_eq!(found.shape(), alone.shape(), "{name}");
            let (alone, found) = (alone.values::<f32>().unwrap(), found.values::<f32>().unwrap());
            let largest = alone.iter().zip(&*found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(alone.iter().all(|value| value.is_finite()) && largest <= 1e-5, "{name}: {largest:e}");
        }
    }
}

#[test]
fn rows_of_all_lengths_give_what_they_give_alone() {
    for name in [
        "bert",
        "bert_dynamo",
        "roberta",
        "mpnet_dynamo",
        "distilbert",
        "electra_dynamo",
        "albert",
        "deberta",
        "modernbert",
        "qwen3",
        "t5_encoder",
    ] {
        compare(name, "-1, 8", "");
    }
    compare("classifier", "2", "");
    compare("qwen3", "-1, 8", "parameters { key: 'padding_side' value { string_value: 'left' } }");
    compare("bert", "-1, 8", "parameters { key: 'layouts' value { string_value: 'by_load' } }");
}

#[test]
fn conforms() {
    let inputs = [3, 9, 4, 1].map(|length| texts(1, length)).to_vec();
    let case = Case { inputs, outputs: vec!["output".into()] };
    conformance::check(&backend(), &packed("on", "-1, 8", ""), encoder("bert"), &case);
}

#[test]
fn a_run_is_in_the_order_of_arrival() {
    let model = load(encoder("bert"), &packed("on", "-1, 8", "")).unwrap();
    let now = Instant::now();
    let waiting = [40, 3, 75, 9].map(|length| Candidate {
        arrived: now,
        priority: 0,
        description: model.policy.describe(&texts(1, length)),
    });
    assert_eq!(model.policy.decide(&waiting, now), Decision::Run(vec![0, 1, 2, 3]));
}

#[test]
fn a_graph_that_cannot_be_packed_is_served_as_it_is_or_refused() {
    let directory = encoder("convbert");
    let mut model = load(&directory, &packed("auto", "-1, 8", "")).expect("the plain graph serves");
    assert_eq!(runs(&mut model, &[texts(1, 5)])[0].shape()[..], [1, 5, 8]);
    let error = load_error(&directory, &packed("on", "-1, 8", ""));
    let start = "model 'encoder': packing is on, but the graph cannot be served packed: ";
    assert!(error.starts_with(start) && error.contains("% of its weights work on each token alone"), "{error}");
    let wide = "parameters { key: 'layouts' value { string_value: 'wide' } }";
    let error = load_error(encoder("bert"), &packed("on", "-1, 8", wide));
    assert!(error.contains("its one session is wide"), "{error}");
    let error = load_error(encoder("bert"), &packed("yes", "-1, 8", ""));
    assert_eq!(error, "model 'encoder': parameter 'packing' has to be off, auto or on, found 'yes'");
}

#[test]
fn the_faster_graph_is_found_once_and_kept() {
    let (directory, costs, models) = (encoder("bert"), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = OnnxRuntimeOptions {
        cost_model_cache: Some(costs.path().to_owned()),
        model_cache: Some(models.path().to_owned()),
        packing: Packing::Auto,
        ..OnnxRuntimeOptions::default()
    };
    let mut config = packed("auto", "-1, 8", "");
    config.parameters.remove("packing");
    // The requests that fill a run, if the packed graph serves.
    let batch = || {
        let mut model = conformance::load(&OnnxRuntime::new(options.clone()), &config, &directory).unwrap();
        let requests = [5, 20, 9].map(|length| texts(1, length));
        assert_eq!(runs(&mut model, &requests)[1].shape()[1], 20);
        // Batches by length look further ahead, to choose among more requests.
        let appetite = model.policy.appetite();
        (appetite.look_ahead < Duration::from_millis(100)).then_some(appetite.batch)
    };
    batch();
    let entries = || std::fs::read_dir(costs.path()).unwrap().map(|entry| entry.unwrap().path());
    let kept = entries().find(|path| std::fs::read_to_string(path).unwrap().starts_with("trireme packing"));
    let kept = kept.expect("the rates are kept");
    let text = std::fs::read_to_string(&kept).unwrap();
    let rates = |plain: &str, other: &str| {
        let key = text.lines().take(2).collect::<Vec<_>>().join("\n");
        std::fs::write(&kept, format!("{key}\nplain: {plain}\nother: {other}\nbudget: 64\n")).unwrap();
    };
    rates("1", "2");
    assert_eq!(batch(), Some(2), "the packed graph is the faster one, and 64 tokens are two usual texts");
    rates("2", "1");
    assert_eq!(batch(), None, "the plain graph is the faster one");
}

#[test]
fn a_request_without_tokens_is_refused() {
    let mut model = load(encoder("bert"), &packed("on", "-1, 8", "")).unwrap();
    let empty = texts(1, 0);
    let error = execute(&mut model, &[&empty], "output").remove(0).unwrap_err();
    assert_eq!((error.code, &*error.message), (ErrorCode::InvalidArg, "model 'encoder': the request has no tokens"));
}
