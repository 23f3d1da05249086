//! Every fault of a configuration, with Triton's text.

use crate::ModelConfig;

fn input(text: &str) -> String {
    format!("backend: 'b' input {{ {text} }}")
}

#[test]
fn faults_have_triton_texts() {
    let batching = |text: &str| format!("backend: 'b' max_batch_size: 8 dynamic_batching {{ {text} }}");
    let sequences = |text: &str| format!("backend: 'b' max_batch_size: 8 sequence_batching {{ {text} }}");
    let buckets = |bounds: &str| {
        format!(
            "backend: 'b' model_metrics {{ metric_control {{ metric_identifier {{ family: 'f' }}
             histogram_options {{ buckets: [{bounds}] }} }} }}"
        )
    };
    let warmup = |text: &str| {
        format!("backend: 'b' model_warmup {{ name: 'w' batch_size: 1 inputs {{ key: 'x' value {{ {text} }} }} }}")
    };
    let table = [
        ("name: 'n' backend: 'b'".to_owned(), "unexpected directory name 'm' for model 'n', directory name must equal model name"),
        (String::new(), "must specify 'platform' or 'backend' for 'm'"),
        ("platform: 'caffe'".into(), "unexpected platform type 'caffe' for m"),
        ("platform: 'ensemble' backend: 'b'".into(), "Ensemble model 'm' must have platform type 'ensemble' and empty backend type"),
        ("platform: 'ensemble'".into(), "ensemble scheduling must be set for ensemble m whose platform is ensemble"),
        ("backend: 'b' ensemble_scheduling {}".into(), "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble"),
        ("platform: 'tensorrt_plan' backend: 'onnxruntime'".into(), "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime"),
        ("backend: 'b' max_batch_size: -1".into(), "'max_batch_size' must be non-negative value for m"),
        (batching("preferred_batch_size: [4, 0]"), "dynamic batching preferred size must be positive for m"),
        (batching("preferred_batch_size: 9"), "dynamic batching preferred size must be <= max batch size for m"),
        (batching("priority_levels: 2"), "default priority level must be in range [1, 2] for m"),
        (batching("priority_levels: 2 default_priority_level: 3"), "default priority level must be in range [1, 2] for m"),
        (
            batching("priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value {} }"),
            "priority queue policy must have priority level in range [1, 2] for m",
        ),
        (
            batching("priority_levels: 2 default_priority_level: 1 preserve_ordering: true"),
            "Only one priority level is allowed when 'preserve_ordering' is true for m",
        ),
        (
            batching("preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }"),
            "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for m",
        ),
        (sequences("oldest { preferred_batch_size: 0 }"), "sequence batching preferred batch size must be positive for m"),
        (sequences("oldest { preferred_batch_size: 9 }"), "sequence batching preferred batch size must be <= max batch size for m"),
        (sequences("direct { minimum_slot_utilization: nan }"), "sequence batching minimum slot utilization must be in range (0.0, 1.0] for m"),
        (
            "backend: 'b' model_transaction_policy { decoupled: true } response_cache { enable: true }".into(),
            "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the response cache.",
        ),
        (
            format!("{} response_cache {{ enable: true }}", sequences("")),
            "Response Cache does not currently support model m with sequence batching scheduler. Please disable the response cache.",
        ),
        ("backend: 'b' instance_group { kind: KIND_CPU gpus: 0 }".into(), "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs"),
        ("backend: 'b' instance_group { kind: KIND_MODEL gpus: 0 }".into(), "instance group m_0 of model m has kind KIND_MODEL but specifies one or more GPUs"),
        (
            "backend: 'b' instance_group { count: 1000 kind: KIND_CPU } instance_group { count: 25 }".into(),
            "the instance groups of model m have 1025 instances, expected 1024 at most: each has a thread of its own, write a smaller 'count'",
        ),
        ("backend: 'b' instance_group { kind: 9 }".into(), "instance group m_0 of model m has unexpected kind 9"),
        (input("data_type: TYPE_FP32 dims: 1"), "model input must specify 'name' for m"),
        (input("name: 'x' dims: 1"), "model input 'x' must specify 'data_type' for m"),
        (input("name: 'x' data_type: 77 dims: 1"), "model input 'x' must specify 'data_type' for m"),
        ("backend: 'b' output { name: 'y' data_type: TYPE_FP32 }".into(), "model output 'y' must specify 'dims' for m"),
        (
            input("name: 'x' data_type: TYPE_FP32 dims: [1, 0]"),
            "model input 'x' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
        (
            input("name: 'x' data_type: TYPE_FP32 dims: 1 reshape {}"),
            "model input 'x' cannot have empty reshape for non-batching model as scalar tensors are not supported for m",
        ),
        (
            input("name: 'x' data_type: TYPE_FP32 dims: 1 reshape { shape: -2 }"),
            "model input 'x' reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        ),
        (
            input("name: 'x' data_type: TYPE_FP32 dims: [2, 4] reshape { shape: [3, 3] }"),
            "model input 'x' has different size for dims and reshape for m",
        ),
        (
            input("name: 'x' data_type: TYPE_FP32 dims: [2, -1] reshape { shape: [-1, 2] }"),
            "model input 'x' has different size for dims and reshape for m",
        ),
        (
            input("name: 'x' data_type: TYPE_FP32 dims: [-1, -1] reshape { shape: -1 }"),
            "model input 'x' has different number of variable-size dimensions for dims and reshape for m",
        ),
        (
            input("name: 'x' data_type: TYPE_FP32 dims: 4 reshape { shape: [9223372036854775807, 9] }"),
            "model input 'x' exceeds maximum size of 9223372036854775807 elements for m",
        ),
        (input("name: 'x' data_type: TYPE_FP32 format: FORMAT_NHWC dims: 1"), "model input NHWC/NCHW require 3 dims for m"),
        (input("name: 'x' data_type: TYPE_FP32 dims: 1 is_shape_tensor: true"), "shape tensors are only supported for TensorRT platform for m"),
        (
            "backend: 'b' input [{ name: 'x' data_type: TYPE_FP32 dims: 1 }, { name: 'x' data_type: TYPE_FP32 dims: 1 }]".into(),
            "model input 'x' is declared more than once for m",
        ),
        (
            warmup("data_type: TYPE_FP32 dims: -1 zero_data: true"),
            "warmup setting expects all variable-size dimensions are specified for input 'x'; model 'm', warmup sample 'w'",
        ),
        (
            warmup("data_type: TYPE_FP32 dims: 1"),
            "warmup setting expects input 'x' to have input_data_type set; model 'm', warmup sample 'w'",
        ),
        (
            warmup("dims: 1 zero_data: true"),
            "warmup setting expects input 'x' to have data_type set; model 'm', warmup sample 'w'",
        ),
        (buckets(""), "buckets of metric 'f' must increase, found [], for m"),
        (buckets("1, 3, 2"), "buckets of metric 'f' must increase, found [1.0, 3.0, 2.0], for m"),
        (buckets("1, 2.5, 2.5"), "buckets of metric 'f' must increase, found [1.0, 2.5, 2.5], for m"),
        (buckets("nan"), "buckets of metric 'f' must increase, found [NaN], for m"),
        (buckets("1, nan, 2"), "buckets of metric 'f' must increase, found [1.0, NaN, 2.0], for m"),
    ];
    for (text, expected) in table {
        assert_eq!(ModelConfig::parse(&text, "m").unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn what_only_looks_odd_is_accepted() {
    for text in [
        "backend: 'b' max_batch_size: 1 input { name: 'x' data_type: TYPE_FP32 dims: 1 reshape {} }",
        "backend: 'b' input { name: 'x' data_type: TYPE_FP32 dims: [2, 4, -1, 6] reshape { shape: [8, -1, 1, 6] } }",
        // An input and an output may share a name.
        "backend: 'b' input { name: 'x' data_type: TYPE_FP32 dims: 1 } output { name: 'x' data_type: TYPE_FP32 dims: 1 }",
        "backend: 'tokenizer' platform: 'anything'",
        "backend: 'b' instance_group { kind: KIND_GPU gpus: 3 }",
        // A histogram's bounds may begin below nothing and end with infinity.
        "backend: 'b' model_metrics { metric_control { metric_identifier { family: 'f' }
         histogram_options { buckets: [-1, 0.5, 1e3, inf] } } }",
        "backend: 'b' model_metrics { metric_control { metric_identifier { family: 'f' }
         histogram_options { buckets: 7 } } }",
    ] {
        ModelConfig::parse(text, "m").unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

/// It makes no difference whether the file exists: no file is looked up.
#[test]
fn paths_outside_the_model_s_folder_are_refused() {
    let warmup = |file: &str| {
        format!(
            "model_warmup {{ name: 'w' batch_size: 1 inputs {{ key: 'x' value {{ data_type: TYPE_INT32 dims: 1
             input_data_file: '{file}' }} }} }}"
        )
    };
    let fault =
        |text: String| ModelConfig::parse(&format!("backend: 'b' {text}"), "m").map(drop).map_err(|e| e.to_string());
    for outside in ["/etc/passwd", "/no/such/file", "../other/1/model.onnx", "a/../../b", ".."] {
        let expected = |field: &str| {
            let rest = "which is outside the model's folder; expected a path beneath it, without '..'";
            Err(format!("'{field}' is '{outside}' for m, {rest}"))
        };
        assert_eq!(fault(format!("default_model_filename: '{outside}'")), expected("default_model_filename"));
        assert_eq!(fault(warmup(outside)), expected("input_data_file"));
    }
    for beneath in ["model.onnx", "onnx/model.onnx", "./model.onnx", "..model"] {
        assert_eq!(fault(format!("default_model_filename: '{beneath}' {}", warmup(beneath))), Ok(()), "{beneath}");
    }
}
