//! Accelerators, shared weights, layouts and cached graphs: the answers have to equal those of the plain model.

use trireme_engine::Instance;

use super::*;

const IO: &str = "input [
      { name: 'input_ids' data_type: TYPE_INT64 dims: [ -1, -1 ] },
      { name: 'attention_mask' data_type: TYPE_INT64 dims: [ -1, -1 ] }
    ]
    output [ { name: 'last_hidden_state' data_type: TYPE_FP32 dims: [ -1, -1, 8 ] } ]";
pub(super) const ONE: &str = "instance_group [{ count: 1 kind: KIND_CPU }]";

pub(super) fn encoder(text: &str) -> ModelConfig {
    config("tiny_encoder", &format!("{IO} {text}"))
}

pub(super) fn parameter(key: &str, value: &str) -> String {
    format!(" parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}")
}

fn openvino(parameters: &str) -> String {
    format!(
        "optimization {{ execution_accelerators {{ cpu_execution_accelerator: [{{ name: 'openvino' {parameters} }}] }} }}"
    )
}

fn tokens(rows: i64, length: i64) -> [Tensor; 2] {
    let ids = (0..rows * length).map(|index| 1 + index % 7).collect::<Vec<_>>();
    let ones = vec![1i64; ids.len()];
    [("input_ids", ids), ("attention_mask", ones)]
        .map(|(name, values)| Tensor::from_values(name, [rows, length], values).unwrap())
}

pub(super) fn answers(instance: &mut Instance) -> Vec<f32> {
    let instance = instance.as_batch().expect("it executes batches");
    let mut answers = Vec::new();
    for (rows, length) in [(1, 3), (2, 5), (4, 9)] {
        let results = instance.execute(&[request(&tokens(rows, length), &["last_hidden_state"])]);
        answers.extend(output(&results[0]).values::<f32>().unwrap().iter());
    }
    answers
}

pub(super) fn plain() -> Vec<f32> {
    answers(&mut load(committed("tiny_encoder"), &encoder(ONE)).unwrap().instances[0])
}

pub(super) fn assert_near(found: &[f32], expected: &[f32], most: f32) {
    assert_eq!(found.len(), expected.len());
    let difference = found.iter().zip(expected).map(|(f, e)| (f - e).abs()).fold(0.0, f32::max);
    assert!(difference <= most, "differs by {difference}");
}

/// Whether there is an OpenVINO that supports this processor. If not, checks that a model that asks for it fails to load.
#[cfg(target_arch = "x86_64")]
fn openvino_serves_this_processor() -> bool {
    if providers::has_openvino(&library::environment(None).unwrap(), None).unwrap() {
        return true;
    }
    let error = load_error(committed("tiny_encoder"), &encoder(&openvino("")));
    assert!(error.contains("'openvino' is not available") && error.contains("processors of Intel only"), "{error}");
    eprintln!("skipped: OpenVINO's plugin does not serve this processor");
    false
}

#[cfg(target_arch = "x86_64")]
#[test]
fn openvino_answers_like_the_plain_model_and_leaves_others_plain() {
    if !openvino_serves_this_processor() {
        return;
    }
    let expected = plain();
    let text = openvino("parameters { key: 'precision' value: 'FP32' }");
    let mut model = load(committed("tiny_encoder"), &encoder(&format!("{text} {ONE}"))).unwrap();
    assert_near(&answers(&mut model.instances[0]), &expected, 1e-4);
    // The plugin is registered from here on. A session that does not ask for it would fail to load if the plugin took
    // part.
    assert_eq!(plain(), expected);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn openvino_keeps_compiled_models_and_says_what_it_does_not_know() {
    if !openvino_serves_this_processor() {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let options = OnnxRuntimeOptions { model_cache: Some(cache.path().join("models")), ..Default::default() };
    let expected = plain();
    for _ in 0..2 {
        let config = encoder(&format!("{} {ONE}", openvino("parameters { key: 'precision' value: 'FP32' }")));
        let mut model =
            conformance::load(&OnnxRuntime::new(options.clone()), &config, committed("tiny_encoder")).unwrap();
        assert_near(&answers(&mut model.instances[0]), &expected, 1e-4);
    }
    let unknown = openvino("parameters { key: 'NO_SUCH_PROPERTY' value: '1' }");
    let unknown = load_error(committed("tiny_encoder"), &encoder(&unknown));
    assert!(unknown.contains("NO_SUCH_PROPERTY") && !unknown.contains('\n'), "{unknown}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn too_little_precision_is_refused_or_warned_of() {
    if !openvino_serves_this_processor() {
        return;
    }
    let low = openvino("parameters { key: 'precision' value: 'BF16' }") + &parameter("precision_min_cosine", "1");
    let refused = load_error(committed("tiny_encoder"), &encoder(&low));
    assert!(refused.starts_with("model 'tiny_encoder': precision check: the lowest cosine"), "{refused}");
    assert!(refused.contains("run by OpenVINOExecutionProvider on CPU)"), "{refused}");
    for how in ["warn", "off"] {
        let text = format!("{low} {}", parameter("precision_check", how));
        assert!(load(committed("tiny_encoder"), &encoder(&text)).is_ok(), "{how}");
    }
}

#[test]
fn declared_warmup_is_what_precision_is_checked_on() {
    let sample = "model_warmup [{ name: 's' batch_size: 1
        inputs { key: 'input_ids' value { data_type: TYPE_INT64 dims: [2, 3] random_data: true } }
        inputs { key: 'attention_mask' value { data_type: TYPE_INT64 dims: [2, 4] zero_data: true } } }]";
    let text = format!("{} {sample}", parameter("precision_check", "refuse"));
    let error = load_error(committed("tiny_encoder"), &encoder(&text));
    assert!(error.starts_with("model 'tiny_encoder': precision check: cannot run the plain model: "), "{error}");
    let checked = encoder(&parameter("precision_check", "refuse"));
    assert!(load(committed("tiny_encoder"), &checked).is_ok(), "plain is as precise as plain");
}

#[test]
fn a_provider_that_cannot_be_had_is_an_error() {
    // No machine has a GPU with this number. A library with CUDA gets further, and reports the missing GPU.
    let gpu = "instance_group [{ kind: KIND_GPU gpus: [1000] count: 1 }]";
    let tensorrt = "optimization { execution_accelerators { gpu_execution_accelerator: [{ name: 'tensorrt' }] } }";
    for (name, provider, text) in [("cuda", "CUDA", ""), ("tensorrt", "Tensorrt", tensorrt)] {
        let error = load_error(committed("tiny_encoder"), &encoder(&format!("{gpu} {text}")));
        let start = format!("model 'tiny_encoder': execution accelerator '{name}' ");
        let lacks = error.starts_with(&format!("{start}is not available: "))
            && error.contains(&format!("has no {provider}ExecutionProvider; to run on the CPU, write "));
        assert!(lacks || error.starts_with(&format!("{start}cannot be used here: ")), "{error}");
    }
}

/// A model on the first GPU answers like the plain one. Where there is no GPU, or the library cannot use it, the test says that it is
/// skipped, and checks that the model is refused.
fn on_a_gpu(accelerator: &str, provider: &str) {
    let text = format!("instance_group [{{ kind: KIND_GPU gpus: [0] count: 1 }}] {accelerator}");
    match load(committed("tiny_encoder"), &encoder(&text)) {
        Ok(mut model) => {
            assert_near(&answers(&mut model.instances[0]), &plain(), 1e-3);
            eprintln!("ran on a GPU: {provider}");
        }
        Err(error) => {
            let error = error.to_string();
            let refused = ["is not available: ", "cannot be used here: "].iter().any(|words| error.contains(words));
            assert!(refused, "{error}");
            eprintln!("skipped: {error}");
        }
    }
}

#[test]
fn cuda_answers_like_the_plain_model() {
    on_a_gpu("", "CUDA");
}

#[test]
fn tensorrt_answers_like_the_plain_model() {
    on_a_gpu(
        "optimization { execution_accelerators { gpu_execution_accelerator: [{ name: 'tensorrt' }] } }",
        "TensorRT",
    );
}

#[test]
fn shared_weights_and_layouts_by_load_change_no_answer() {
    let expected = plain();
    for text in [parameter("share_weights", "1"), parameter("layouts", "by_load")] {
        let mut model = load(committed("tiny_encoder"), &encoder(&text)).unwrap();
        for instance in &mut model.instances {
            assert_near(&answers(instance), &expected, 1e-6);
        }
        // At the same time: one run is wide, or all are narrow.
        std::thread::scope(|scope| {
            for instance in &mut model.instances {
                scope.spawn(|| (0..20).for_each(|_| assert_near(&answers(instance), &expected, 1e-6)));
            }
        });
    }
}

#[test]
fn a_kept_graph_is_used_again_and_made_anew_when_damaged() {
    let cache = tempfile::tempdir().unwrap();
    let options = OnnxRuntimeOptions { model_cache: Some(cache.path().to_owned()), ..Default::default() };
    let expected = plain();
    let run = || {
        let backend = OnnxRuntime::new(options.clone());
        let mut model = conformance::load(&backend, &encoder(ONE), committed("tiny_encoder")).unwrap();
        assert_near(&answers(&mut model.instances[0]), &expected, 1e-6);
        let entries: Vec<_> = std::fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries[0].join("model.onnx")
    };
    let model = run();
    let made = std::fs::metadata(&model).unwrap().modified().unwrap();
    assert_eq!(run(), model);
    assert_eq!(std::fs::metadata(&model).unwrap().modified().unwrap(), made, "it was there");
    std::fs::write(&model, "damaged").unwrap();
    run();
    assert!(std::fs::metadata(&model).unwrap().len() > 100, "it was made anew");
}

#[test]
fn settings_of_the_library_are_passed_on() {
    let threads = parameter("intra_op_thread_count", "2");
    let affinities =
        |value: &str| encoder(&format!("{threads} {}", parameter("session.intra_op_thread_affinities", value)));
    assert!(load(committed("tiny_encoder"), &affinities("1")).is_ok());
    // The library expects one affinity for each thread that it creates.
    let wrong = load_error(committed("tiny_encoder"), &affinities("1;1;1"));
    assert!(
        wrong.starts_with("model 'tiny_encoder': ") && wrong.contains("affinities") && !wrong.contains('\n'),
        "{wrong}"
    );
}
