//! Configurations as text and as JSON; no text makes the parser panic.

use std::collections::BTreeSet;

use proptest::prelude::*;
use prost_reflect::Value;

use super::*;
use crate::{InstanceKind, compile_ensemble};

/// Sets everything that a model with a dynamic batcher can have.
const BATCHING: &str = r#"
# Comments, separators, both kinds of brackets and strings in pieces are all part of the format.
name: "m", platform: 'tensorrt_plan'; backend: "tensor" "rt"
runtime: "libx.so"
version_policy: { specific { versions: [1, 9223372036854775807] } }
max_batch_size: 16
input < name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [3, -1, 2] reshape { shape: [3, -1, 2, 1] }
        is_shape_tensor: true allow_ragged_batch: true optional: true is_non_linear_format_io: true >
output [ { name: "y" data_type: TYPE_STRING dims: 4 dims: 2 reshape { shape: [8] } label_filename: "labels.txt"
           is_shape_tensor: true is_non_linear_format_io: true } ]
batch_input [ { kind: BATCH_ITEM_SHAPE target_name: "t" data_type: TYPE_INT64 source_input: "x" } ]
batch_output [ { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" } ]
optimization {
  graph { level: -1 } priority: PRIORITY_MAX
  cuda { graphs: true busy_wait_events: true output_copy_stream: true graph_spec [ {
    batch_size: 2 input { key: "x" value { dim: [3, 4, 2] } }
    graph_lower_bound { batch_size: 1 input { key: "x" value { dim: 3 } } } } ] }
  execution_accelerators {
    gpu_execution_accelerator [ { name: "tensorrt" parameters { key: "precision_mode" value: "FP16" } } ]
    cpu_execution_accelerator [ { name: "openvino" } ] }
  input_pinned_memory { enable: false } output_pinned_memory { enable: true }
  gather_kernel_buffer_threshold: 7 eager_batching: true
}
dynamic_batching {
  preferred_batch_size: [4, 8] max_queue_delay_microseconds: 18446744073709551615
  preserve_ordering: true priority_levels: 1 default_priority_level: 1
  default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 5 allow_timeout_override: true
                         max_queue_size: 3 }
  priority_queue_policy [ { key: 1 value { timeout_action: DELAY max_queue_size: 9 } } ]
}
instance_group [ {
  name: "g" kind: KIND_GPU count: 2 gpus: [0, 1] secondary_devices [ { kind: KIND_NVDLA device_id: -4 } ]
  rate_limiter { resources [ { name: "r" global: true count: 4 } ] priority: 2 }
  profile: "0" passive: true host_policy: "gpu_0" } ]
default_model_filename: "a.plan"
cc_model_filenames { key: "7.5" value: "b.plan" }
metric_tags [ { key: "team" value: "näive \"quoted\"\n" }, { key: "a" value: "b" } ]
parameters { key: "p" value: { string_value: "${V}" } }
model_warmup [ { name: "w" batch_size: 1 count: 2
  inputs [ { key: "x" value { data_type: TYPE_FP32 dims: [3, 1, 2] zero_data: true } },
           { key: "y" value { data_type: TYPE_FP32 dims: 1 random_data: true } },
           { key: "z" value { data_type: TYPE_FP32 dims: 1 input_data_file: "f" } } ] } ]
model_operations { op_library_filename: "ops.so" }
model_transaction_policy { decoupled: true }
model_repository_agents { agents [ { name: "checksum" parameters { key: "k" value: "v" } } ] }
response_cache { enable: false }
model_metrics { metric_control [ { metric_identifier { family: "f" }
                                   histogram_options { buckets: [0.5, 1e3, inf] } } ] }
"#;

/// And a model that keeps sequences apart.
const SEQUENCES: &str = r#"
backend: "b" max_batch_size: 4 version_policy { all {} }
sequence_batching {
  direct { max_queue_delay_microseconds: 3 minimum_slot_utilization: 0.1 }
  max_sequence_idle_microseconds: 4 iterative_sequence: true
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } ] },
                  { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 1.5] } ] },
                  { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } ] },
                  { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ]
  state [ { input_name: "i" output_name: "o" data_type: TYPE_INT32 dims: [-1]
            use_same_buffer_for_input_output: true use_growable_memory: true
            initial_state [ { name: "s" data_type: TYPE_INT32 dims: [1] zero_data: true } ] },
          { input_name: "j" output_name: "p" data_type: TYPE_INT32 dims: [1]
            initial_state [ { name: "t" data_type: TYPE_INT32 dims: [1] data_file: "f" } ] } ]
}
"#;

const CACHED: &str = r#"
backend: "b" max_batch_size: 4 version_policy { latest { num_versions: 3 } } response_cache { enable: true }
model_transaction_policy {}
"#;

const OLDEST_SEQUENCES: &str = r#"
backend: "b" max_batch_size: 4
sequence_batching { oldest { max_candidate_sequences: 8 preferred_batch_size: [2] max_queue_delay_microseconds: 1
                             preserve_ordering: true } }
"#;

const ENSEMBLE: &str = r#"
platform: "ensemble"
input { name: "A" data_type: TYPE_FP32 dims: 1 }
output { name: "B" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling { max_inflight_requests: 5 step {
  model_name: "n" model_version: -1 model_namespace: "ns"
  input_map { key: "a" value: "A" } output_map { key: "b" value: "B" } } }
"#;

fn parse(text: &str) -> ModelConfig {
    ModelConfig::parse(text, "m").unwrap_or_else(|error| panic!("{error}"))
}

/// The full names of fields that are set in `message` or below it.
fn set_fields(message: &DynamicMessage, found: &mut BTreeSet<String>) {
    fn below(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Message(message) => set_fields(message, found),
            Value::List(values) => values.iter().for_each(|value| below(value, found)),
            Value::Map(values) => values.values().for_each(|value| below(value, found)),
            _ => {}
        }
    }
    for (field, value) in message.fields() {
        found.insert(field.full_name().to_owned());
        below(value, found);
    }
}

#[test]
fn json_keeps_every_field_of_the_schema() {
    let mut set = BTreeSet::new();
    for text in [BATCHING, SEQUENCES, OLDEST_SEQUENCES, CACHED, ENSEMBLE] {
        let config = parse(text);
        let json = config.to_json();
        let back = ModelConfig::from_json(&json).unwrap();
        assert_eq!(back.message, config.message);
        assert_eq!(back.to_json(), json);
        let mut message = DynamicMessage::new(SCHEMA.clone());
        message.transcode_from(&back.message).unwrap();
        set_fields(&message, &mut set);
    }
    // Enums whose only value is the default cannot be seen to be set.
    let unseen = ["inference.ModelInstanceGroup.SecondaryDevice.kind", "inference.BatchOutput.kind"];
    for message in SCHEMA.parent_pool().all_messages().filter(|message| !message.is_map_entry()) {
        for field in message.fields().filter(|field| !unseen.contains(&field.full_name())) {
            assert!(set.contains(field.full_name()), "no sample sets {}", field.full_name());
        }
    }
}

#[test]
fn json_prints_defaults_numbers_and_names_as_config_does() {
    let config = parse(
        "backend: 'onnxruntime' max_batch_size: 8 dynamic_batching {}
         input { name: 'x' data_type: TYPE_INT32 dims: [-1, 16] }",
    );
    let json: serde_json::Value = serde_json::from_str(&config.to_json()).unwrap();
    assert_eq!(
        json,
        serde_json::json!({
            "name": "m", "platform": "onnxruntime_onnx", "backend": "onnxruntime", "runtime": "",
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": 8,
            "input": [{
                "name": "x", "data_type": "TYPE_INT32", "format": "FORMAT_NONE", "dims": [-1, 16],
                "is_shape_tensor": false, "allow_ragged_batch": false, "optional": false,
                "is_non_linear_format_io": false
            }],
            "output": [], "batch_input": [], "batch_output": [],
            "optimization": {
                "priority": "PRIORITY_DEFAULT", "input_pinned_memory": {"enable": true},
                "output_pinned_memory": {"enable": true}, "gather_kernel_buffer_threshold": 0, "eager_batching": false
            },
            "dynamic_batching": {
                "preferred_batch_size": [8], "max_queue_delay_microseconds": 0, "preserve_ordering": false,
                "priority_levels": 0, "default_priority_level": 0, "priority_queue_policy": {}
            },
            "instance_group": [{
                "name": "m", "kind": "KIND_CPU", "count": 2, "gpus": [], "secondary_devices": [], "profile": [],
                "passive": false, "host_policy": ""
            }],
            "default_model_filename": "model.onnx", "cc_model_filenames": {}, "metric_tags": {}, "parameters": {},
            "model_warmup": []
        })
    );
}

#[test]
fn json_may_hold_numbers_as_strings_and_nothing_unknown() {
    let json = r#"{"name": "m", "backend": "b", "input": [{"name": "x", "dataType": "TYPE_FP32", "dims": ["-1", 3]}]}"#;
    assert_eq!(ModelConfig::from_json(json).unwrap().inputs[0].dims[..], [-1, 3]);
    for bad in ["", "{", r#"{"name": "m", "backend": "b"} x"#, r#"{"nam": "m"}"#, r#"{"name": 7}"#] {
        assert!(matches!(ModelConfig::from_json(bad), Err(RepositoryError::Json { .. })), "{bad}");
    }
    let unnamed = ModelConfig::from_json(r#"{"backend": "b"}"#).unwrap_err();
    assert_eq!(unnamed.to_string(), "model configuration must specify 'name'");
}

#[test]
fn characters_of_editors_and_web_pages_are_named() {
    let message = |text: &str| read_text(text, "m/config.pbtxt").unwrap_err().to_string();
    assert_eq!(
        message("\u{feff}name: \"m\""),
        "failed to read text proto from m/config.pbtxt: line 1: found a byte order mark (U+FEFF): save the file as UTF-8 without one"
    );
    assert_eq!(
        message("# “fine”\nname: “m”"),
        "failed to read text proto from m/config.pbtxt: line 2: found the quotation mark “ (U+201C), expected \""
    );
    assert!(message("name:\u{a0}\"m\"").contains("U+00A0"));
    assert_eq!(read_text("name: \"“m”\\\"\" # ‘’", "m").unwrap().name, "“m”\"");
}

#[test]
fn faults_in_the_text_name_file_line_and_field() {
    for (text, expected) in [
        ("name: 'm'\nbackend: 'b'\nfoo: 1", "line 3: field 'foo' not found for message 'inference.ModelConfig'"),
        ("input [\n{ nam: 'x' }\n]", "line 2: field 'nam' not found for message 'inference.ModelInput'"),
        ("\n\nmax_batch_size: 'x'", "line 3: expected an integer, but found '\"x\"'"),
        (
            "max_batch_size: 3000000000",
            "line 1: expected value to be a signed 32-bit integer, but the value 3000000000",
        ),
        ("input {\n data_type: TYPE_FP31 }", "line 2: value 'TYPE_FP31' was not found for enum 'inference.DataType'"),
        ("name: 'a'\nname: 'b'", "line 2: 'name' is already set"),
        ("dynamic_batching {}\nsequence_batching {}", "line 2: a value is already set for oneof 'scheduling_choice'"),
        ("input {\n\n", "line 3: expected '}' or a field name, but reached end of input"),
        ("name: \"un\nterminated\"", "line 1: "),
    ] {
        let error = ModelConfig::parse(text, "m").unwrap_err().to_string();
        let expected = format!("failed to read text proto from m/config.pbtxt: {expected}");
        assert!(error.starts_with(&expected), "{error}\n{expected}");
    }
}

#[test]
fn brackets_in_strings_and_comments_are_left_alone() {
    let config =
        parse("backend: 'a[b' # name [ \"\n parameters [ { key: \"it's [\\\"\" value { string_value: 'c [' } } ]");
    assert_eq!(config.backend, "a[b");
    assert_eq!(config.parameters["it's [\""], "c [");
}

/// The three configurations of a tokenizer, a model and their ensemble, as tutorials write them.
#[test]
fn a_tutorial_repository_parses_and_compiles() {
    let tokenizer = ModelConfig::parse(
        r#"
        name: "tokenizer"
        max_batch_size: 0
        backend: "python"

        input [
        {
            name: "TEXT"
            data_type: TYPE_STRING
            dims: [ -1 ]
        }
        ]
        output [
        { name: "input_ids" data_type: TYPE_INT64 dims: [-1, -1] },
        { name: "attention_mask" data_type: TYPE_INT64 dims: [-1, -1] }
        ]
        instance_group [ { count: 1 kind: KIND_CPU } ]
        "#,
        "tokenizer",
    )
    .unwrap();
    assert_eq!(tokenizer.backend, "python");
    assert_eq!(tokenizer.instance_groups[0].name, "tokenizer_0");
    assert_eq!((tokenizer.instance_groups[0].kind, tokenizer.instance_groups[0].count), (InstanceKind::Cpu, 1));

    let model = ModelConfig::parse(
        r#"
        name: "embedding_model"
        platform: "onnxruntime_onnx"
        backend: "onnxruntime"
        default_model_filename: "embedder.onnx"
        max_batch_size: 0
        input [
          { name: "input_ids" data_type: TYPE_INT64 dims: [ -1, -1 ] },
          { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1, -1 ] }
        ]
        output [
          {
            name: "3391"  # the exporter's own idea of a name
            data_type: TYPE_FP32
            dims: [ -1, 1024 ]
          }
        ]
        "#,
        "embedding_model",
    )
    .unwrap();
    assert_eq!(model.default_model_filename, "embedder.onnx");

    let ensemble = ModelConfig::parse(
        r#"
        name: "ensemble_model"
        platform: "ensemble"
        input [ { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] } ]
        output { name: "3391" data_type: TYPE_FP32 dims: [-1, 1024] }
        ensemble_scheduling {
          step [
            {
              model_name: "tokenizer"
              model_version: -1
              input_map { key: "TEXT" value: "TEXT" }
              output_map [
                { key: "input_ids" value: "input_ids" },
                { key: "attention_mask" value: "attention_mask" }
              ]
            },
            {
              model_name: "embedding_model"
              model_version: -1
              input_map [
                { key: "input_ids" value: "input_ids" },
                { key: "attention_mask" value: "attention_mask" }
              ]
              output_map { key: "3391" value: "3391" }
            }
          ]
        }
        "#,
        "ensemble_model",
    )
    .unwrap();
    let models = [tokenizer, model].map(std::sync::Arc::new);
    let lookup = |name: &str, _| models.iter().find(|model| model.name == name).cloned();
    let plan = compile_ensemble(&std::sync::Arc::new(ensemble), &lookup).unwrap().plan;
    let steps: Vec<_> = plan.steps.iter().map(|step| step.model.as_str()).collect();
    assert_eq!(steps, ["tokenizer", "embedding_model"]);
    assert_eq!(plan.outputs, ["3391"]);
    assert_eq!(plan.steps[1].inputs.len(), 2);
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in ".{0,200}") {
        let _ = ModelConfig::parse(&text, "m");
        let _ = ModelConfig::from_json(&text);
    }

    /// Pieces of real configurations in any order get past the lexer, unlike most arbitrary text.
    #[test]
    fn shuffled_configuration_never_panics(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..40)) {
        let text = pieces.join(" ");
        if let Ok(config) = ModelConfig::parse(&text, "m") {
            prop_assert_eq!(ModelConfig::from_json(&config.to_json()).unwrap().message, config.message);
        }
    }

    #[test]
    fn cut_or_bitten_configuration_never_panics(at in 0..BATCHING.len(), with in any::<char>()) {
        let cut: String = BATCHING.chars().take(at).collect();
        let _ = ModelConfig::parse(&cut, "m");
        let bitten: String = BATCHING.chars().enumerate().map(|(i, c)| if i == at { with } else { c }).collect();
        let _ = ModelConfig::parse(&bitten, "m");
    }
}

const PIECES: &[&str] = &[
    "name: 'm'",
    "backend: 'b'",
    "backend: 'onnxruntime'",
    "platform: 'ensemble'",
    "max_batch_size: 4",
    "max_batch_size:",
    "-1",
    "input",
    "output",
    "{",
    "}",
    "[",
    "]",
    ",",
    ";",
    ":",
    "<",
    ">",
    "'",
    "\"",
    "#",
    "\\",
    "0x7f",
    "1e400",
    "nan",
    "name: 'x'",
    "data_type: TYPE_FP32",
    "data_type: 99",
    "dims: [-1, 3]",
    "dims: [9223372036854775807, 2]",
    "reshape { shape: [3, -1] }",
    "input { name: 'x' data_type: TYPE_FP32 dims: -1 }",
    "dynamic_batching {}",
    "output { name: 'y' data_type: TYPE_STRING dims: [9223372036854775807, 9] reshape { shape: [-1] } }",
    "instance_group [{ count: -3 }]",
    "instance_group { kind: 7 }",
    "version_policy { all {} }",
    "[a.b/c] {}",
    "ensemble_scheduling { step { model_name: 'n' input_map { key: 'a' value: 'x' } output_map { key: 'b' value: 'y' } } }",
    "parameters { key: 'k' value { string_value: 'v' } }",
    "sequence_batching { oldest {} }",
    "model_warmup { inputs {} }",
];

#[test]
fn of_a_great_many_priority_levels_those_that_are_named_have_queues_of_their_own() {
    let io = "[{ name: 'x' data_type: TYPE_FP32 dims: [1] }]";
    let config = |batching: &str| {
        let text = format!("backend: 'b' max_batch_size: 8 input {io} output {io} dynamic_batching {{ {batching} }}");
        ModelConfig::parse(&text, "m").unwrap()
    };
    let few = config("priority_levels: 3 default_priority_level: 2");
    assert_eq!([0, 1, 2, 3, 4].map(|priority| few.priority_level(priority)), [2, 1, 2, 3, 2]);
    let many = config(
        "priority_levels: 18446744073709551615 default_priority_level: 4294967295
         priority_queue_policy { key: 5000000000 value { max_queue_size: 7 } }",
    );
    let level = |priority| many.priority_level(priority);
    assert_eq!(many.queue_levels().len(), 32 + 5);
    assert_eq!([1, 32, 33, 4294967294, 0, 4294967295].map(level), [1, 32, 33, 33, 34, 34]);
    assert_eq!([4294967296, 4999999999, 5000000000, 5000000001, u64::MAX].map(level), [35, 35, 36, 37, 37]);
    let policies = many.dynamic_batching.as_ref().unwrap();
    assert_eq!([35, 36, 37].map(|level| policies.policy(level).max_queue_size), [0, 7, 0]);
}
