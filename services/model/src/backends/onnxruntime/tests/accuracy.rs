//! `accuracy_level`: the choice, and the sessions of the changed graph. The graphs are those of tests/models/nbits.py.

use super::accelerated::{ONE, parameter};
use super::*;

const LAYOUTS: [&str; 2] = ["one", "beside"];

/// A model folder with the files of a layout.
fn folder(layout: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("1");
    std::fs::create_dir(&target).unwrap();
    for file in std::fs::read_dir(committed("../../models/nbits").join(layout)).unwrap().flatten() {
        std::fs::copy(file.path(), target.join(file.file_name())).unwrap();
    }
    directory
}

fn encoder(more: &str) -> ModelConfig {
    let text = format!(
        "max_batch_size: 64 {more}
         input [{{ name: 'input_ids' data_type: TYPE_INT64 dims: [-1] }}, {{ name: 'attention_mask' data_type: TYPE_INT64 dims: [-1] }}]
         output [{{ name: 'last_hidden_state' data_type: TYPE_FP32 dims: [-1, 128] }}]"
    );
    config("packed_weights", &(text + &parameter("pad_inputs", "input_ids:0, attention_mask:0")))
}

fn options(cache: &TempDir) -> OnnxRuntimeOptions {
    OnnxRuntimeOptions { cost_model_cache: Some(cache.path().to_owned()), ..OnnxRuntimeOptions::default() }
}

/// The answer of each instance to one request.
fn answers(options: &OnnxRuntimeOptions, config: &ModelConfig, directory: &TempDir) -> Vec<Vec<f32>> {
    let loaded = conformance::load(&OnnxRuntime::new(options.clone()), config, directory.path());
    let mut loaded = loaded.unwrap_or_else(|error| panic!("{error}"));
    let ints = |name: &str, values: Vec<i64>| Tensor::from_values(name, [2, 9], values).unwrap();
    let inputs = [ints("input_ids", (0..18).map(|i| 1 + i * 7 % 60).collect()), ints("attention_mask", vec![1; 18])];
    let asked = request(&inputs, &["last_hidden_state"]);
    let mut answer = |instance: &mut trireme_engine::Instance| {
        let results = instance.as_batch().unwrap().execute(std::slice::from_ref(&asked));
        output(&results[0]).values::<f32>().unwrap().to_vec()
    };
    loaded.instances.iter_mut().map(&mut answer).collect()
}

fn cosine(one: &[f32], other: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(one, other) / (dot(one, one) * dot(other, other)).sqrt()
}

/// The file in which the choice is kept.
fn kept(cache: &TempDir) -> Option<PathBuf> {
    let files = std::fs::read_dir(cache.path()).into_iter().flatten().flatten().map(|file| file.path());
    files.into_iter().find(|file| std::fs::read_to_string(file).is_ok_and(|text| text.contains("accuracy level")))
}

/// Makes int8 so fast, whatever was measured.
fn decide(cache: &TempDir, rate: &str) {
    let file = kept(cache).expect("a choice is kept");
    let text = std::fs::read_to_string(&file).unwrap();
    let head = text.split("other: ").next().unwrap();
    std::fs::write(file, format!("{head}other: {rate}\n")).unwrap();
}

#[test]
fn int8_serves_where_it_pays_and_the_graph_as_it_is_elsewhere() {
    for layout in LAYOUTS {
        let directory = folder(layout);
        for more in [ONE.to_owned(), parameter("layouts", "by_load"), parameter("packing", "on") + ONE] {
            let (cache, untouched) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let config = encoder(&more);
            if layout == "beside" && more.contains("packing") {
                continue;
            }
            let graph = encoder(&(parameter("accuracy_level", "graph") + &more));
            let as_it_is = answers(&options(&untouched), &graph, &directory);
            let asked = OnnxRuntimeOptions { accuracy_level: AccuracyLevel::Graph, ..options(&untouched) };
            assert_eq!(answers(&asked, &config, &directory), as_it_is);
            assert_eq!(kept(&untouched), None, "nothing was measured");

            answers(&options(&cache), &config, &directory);
            decide(&cache, "0");
            assert_eq!(answers(&options(&cache), &config, &directory), as_it_is, "{layout} {more}");
            decide(&cache, "1e9");
            let model_cache = Some(cache.path().join("models"));
            let kept_graphs = OnnxRuntimeOptions { model_cache, ..options(&cache) };
            for options in [options(&cache), kept_graphs.clone(), kept_graphs] {
                for (int8, plain) in answers(&options, &config, &directory).iter().zip(&as_it_is) {
                    assert_ne!(int8, plain, "{layout} {more}: the level has no effect");
                    let cosine = cosine(int8, plain);
                    assert!(cosine > 0.999, "{layout} {more}: {cosine}");
                }
            }
        }
    }
}

#[test]
fn int8_that_is_not_precise_enough_does_not_serve() {
    let (directory, cache) = (folder("one"), tempfile::tempdir().unwrap());
    let strict = encoder(&(parameter("precision_min_cosine", "1") + ONE));
    let as_it_is = answers(&options(&cache), &encoder(&(parameter("accuracy_level", "graph") + ONE)), &directory);
    assert_eq!(answers(&options(&cache), &strict, &directory), as_it_is);
    let text = std::fs::read_to_string(kept(&cache).unwrap()).unwrap();
    assert!(text.ends_with("other: 0\n"), "{text}");
}

#[test]
fn a_level_that_is_unknown_is_refused() {
    let refused = load_error(folder("one"), &encoder(&(parameter("accuracy_level", "4") + ONE)));
    assert!(refused.contains("parameter 'accuracy_level' has to be auto or graph, found '4'"), "{refused}");
}

/// Its warm-up has a token that the graph does not know, so nothing can be measured.
#[test]
fn what_ails_a_model_is_said_where_it_is_loaded_and_not_by_the_measurement() {
    let directory = folder("one");
    let unknown = "model_warmup [{ name: 'unknown' batch_size: 1 count: 0
        inputs: [{ key: 'input_ids' value: { data_type: TYPE_INT64 dims: [3] input_data_file: 'ids' } },
                 { key: 'attention_mask' value: { data_type: TYPE_INT64 dims: [3] input_data_file: 'ids' } }] }]";
    std::fs::create_dir(directory.path().join("warmup")).unwrap();
    std::fs::write(directory.path().join("warmup/ids"), [9999i64; 3].map(i64::to_le_bytes).concat()).unwrap();
    let error = load_error(&directory, &encoder(&format!("{unknown} {ONE}")));
    assert!(error.contains("failed to run warmup sample 'unknown'"), "{error}");
}
