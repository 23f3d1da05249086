//! The models of the load: one for every path that a request can take through the system.
//!
//! Not here: the requests (`questions`).

use super::member::Role;
use crate::ModelFolder;

/// The broker's `max_payload`. It is small, so that even moderate bodies travel by claim.
pub(super) const MAX_PAYLOAD: usize = 128 << 10;

/// Rows of `tiny_embedding` in one message; requests with more rows travel in parts.
pub(super) const ROWS_IN_A_PART: usize = 8;

const TWO_INPUTS: &str =
    "input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }, { name: 'INPUT1' data_type: TYPE_FP32 dims: [-1] }]";
const TWO_OUTPUTS: &str =
    "output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }, { name: 'OUTPUT1' data_type: TYPE_FP32 dims: [-1] }]";

const ONE_TENSOR: &str = "input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }]
        output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }]";

/// Answers with its input, a little later: its process may be killed meanwhile.
const SNAKE: &str = "
import time
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.002)
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUTPUT0', array)]) for array in arrays]
";

/// `slow` has priority levels, and faults change its backlog all the time.
const LEVELS: &str = "dynamic_batching {
    priority_levels: 2 default_priority_level: 2
    default_queue_policy { max_queue_size: 5000 default_timeout_microseconds: 200000 timeout_action: DELAY }
}";

/// `large` has a limit on its queue that the load does not reach.
const LIMIT: &str = "dynamic_batching { default_queue_policy { max_queue_size: 5000 } }";

/// Inputs of `repeat`: the numbers to return one after the other, and the milliseconds before each.
const NUMBERS: &str =
    "input [{ name: 'IN' data_type: TYPE_INT32 dims: [-1] }, { name: 'DELAY' data_type: TYPE_UINT32 dims: [-1] }]";

/// - `tiny_embedding`: three stages, one after the other, whose states cross the broker; many rows travel in parts.
/// - `slow`, `snail`: one step that takes some time, or longer than the timeout of a caller in a hurry; `slow` has
///   priority levels.
/// - `diamond`: two branches, which join.
/// - `heavy`: two steps, for tensors beyond the broker's limit; the first has a queue policy.
/// - `snake`: a model in Python, each instance a process of its own.
/// - `repeat_echo`: an answer in parts, through a step in which they overtake one another.
pub(super) fn models() -> ModelFolder {
    let rows = format!("parameters {{ key: 'max_rows_per_message' value {{ string_value: '{ROWS_IN_A_PART}' }} }}");
    ModelFolder::basic(&["tiny_embedding", "tiny_tokenizer", "tiny_encoder", "tiny_pool"])
        .with_pooling_apart()
        .with_setting("tiny_embedding", &rows)
        .slow("slow", 2)
        .with_setting("slow", LEVELS)
        .slow("snail", 20)
        .slow("left", 1)
        .slow("right", 1)
        .model("pair", &format!("backend: 'identity' {TWO_INPUTS} {TWO_OUTPUTS}"))
        .model("diamond", &diamond())
        .slow("large", 0)
        .with_setting("large", LIMIT)
        .slow("large_on", 0)
        .model("heavy", &heavy())
        .model("snake", &format!("backend: 'python' {ONE_TENSOR} instance_group [{{ count: 2 kind: KIND_CPU }}]"))
        .file("snake/1/model.py", SNAKE)
        .model("repeat", &repeat())
        .model("echo", &echo())
        .model("repeat_echo", &repeat_echo())
}

/// Every model that workers execute, with the role that executes it; ensembles are not executed by a worker.
const EXECUTED: [(Role, &str); 13] = [
    (Role::Tokenizer, "tiny_tokenizer"),
    (Role::Model, "tiny_encoder"),
    (Role::Model, "slow"),
    (Role::Model, "snail"),
    (Role::Model, "left"),
    (Role::Model, "right"),
    (Role::Model, "pair"),
    (Role::Model, "large"),
    (Role::Model, "large_on"),
    (Role::Model, "repeat"),
    (Role::Model, "echo"),
    (Role::Postprocess, "tiny_pool"),
    (Role::Python, "snake"),
];

/// The models that a process of this role executes.
pub(super) fn models_of(role: Role) -> impl Iterator<Item = &'static str> {
    let executes = move |by| by == role || (role == Role::Both && matches!(by, Role::Model | Role::Postprocess));
    EXECUTED.into_iter().filter(move |(by, _)| executes(*by)).map(|(_, model)| model)
}

/// A step of an ensemble: its model, and its maps as `model's name: ensemble's tensor`.
fn step(model: &str, inputs: &[(&str, &str)], outputs: &[(&str, &str)]) -> String {
    let maps = |name: &str, pairs: &[(&str, &str)]| -> String {
        pairs.iter().map(|(key, value)| format!("{name} {{ key: '{key}' value: '{value}' }} ")).collect()
    };
    let (inputs, outputs) = (maps("input_map", inputs), maps("output_map", outputs));
    format!("step {{ model_name: '{model}' model_version: -1 {inputs} {outputs} }}")
}

fn ensemble(inputs_and_outputs: &str, steps: &[String]) -> String {
    format!("platform: 'ensemble' {inputs_and_outputs} ensemble_scheduling {{ {} }}", steps.join(" "))
}

fn diamond() -> String {
    let steps = [
        step("left", &[("INPUT0", "INPUT0")], &[("OUTPUT0", "left")]),
        step("right", &[("INPUT0", "INPUT1")], &[("OUTPUT0", "right")]),
        step("pair", &[("INPUT0", "left"), ("INPUT1", "right")], &[("OUTPUT0", "OUTPUT0"), ("OUTPUT1", "OUTPUT1")]),
    ];
    ensemble(&format!("{TWO_INPUTS} {TWO_OUTPUTS}"), &steps)
}

fn heavy() -> String {
    let steps = [
        step("large", &[("INPUT0", "INPUT0")], &[("OUTPUT0", "between")]),
        step("large_on", &[("INPUT0", "between")], &[("OUTPUT0", "OUTPUT0")]),
    ];
    ensemble(ONE_TENSOR, &steps)
}

fn repeat() -> String {
    format!(
        "backend: 'repeat' {NUMBERS} model_transaction_policy {{ decoupled: true }}
         output [{{ name: 'OUT' data_type: TYPE_INT32 dims: [1] }}, {{ name: 'IDX' data_type: TYPE_UINT32 dims: [1] }}]
         instance_group [{{ count: 1 kind: KIND_CPU }}]
         parameters {{ key: 'max_requests' value {{ string_value: '64' }} }}"
    )
}

fn echo() -> String {
    "backend: 'identity' input [{ name: 'INPUT0' data_type: TYPE_INT32 dims: [1] }]
     output [{ name: 'OUTPUT0' data_type: TYPE_INT32 dims: [1] }] instance_group [{ count: 2 kind: KIND_CPU }]
     parameters { key: 'execute_delay_ms' value { string_value: '1' } }
     parameters { key: 'instance_wise_delay_multiplier' value { string_value: '3' } }"
        .to_owned()
}

fn repeat_echo() -> String {
    let steps = [
        step("repeat", &[("IN", "IN"), ("DELAY", "DELAY")], &[("OUT", "raw")]),
        step("echo", &[("INPUT0", "raw")], &[("OUTPUT0", "OUT")]),
    ];
    ensemble(&format!("{NUMBERS} output [{{ name: 'OUT' data_type: TYPE_INT32 dims: [1] }}]"), &steps)
}
