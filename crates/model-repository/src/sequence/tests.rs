use super::*;
use crate::AutoComplete;
use trireme_inference::TensorSpec;

const CONTROLS: &str = "
    control_input [ { name: 'START' control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 7] } ] },
                    { name: 'END' control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [0.5, 1.5] } ] },
                    { name: 'READY' control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } ] },
                    { name: 'ID' control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 } ] } ]";
const STATE: &str = "state [ { input_name: 'IN' output_name: 'OUT' data_type: TYPE_FP32 dims: [-1, 2] } ]";

fn try_config(max_batch_size: u32, batching: &str) -> Result<ModelConfig, String> {
    let text = format!(
        "backend: 'onnxruntime' max_batch_size: {max_batch_size}
         input [ {{ name: 'X' data_type: TYPE_INT32 dims: [1] }} ] output [ {{ name: 'Y' data_type: TYPE_INT32 dims: [1] }} ]
         sequence_batching {{ {batching} }}"
    );
    ModelConfig::parse(&text, "m").map_err(|error| error.to_string())
}

fn config(max_batch_size: u32, batching: &str) -> ModelConfig {
    try_config(max_batch_size, batching).unwrap()
}

fn request(id: CorrelationId, start: bool) -> Membership {
    Membership { id, start, end: !start }
}

fn called(name: &str) -> String {
    name.to_owned()
}

#[test]
fn the_execution_has_tensors_that_clients_do_not_see() {
    let config = config(4, &format!("{CONTROLS} {STATE}"));
    let names = |config: &ModelConfig| -> (Vec<String>, Vec<String>) {
        let inputs = config.input_specs().into_iter().map(|spec| spec.name.to_string()).collect();
        (inputs, config.output_specs().into_iter().map(|spec| spec.name.to_string()).collect())
    };
    assert_eq!(names(&config), (vec!["X".to_owned()], vec!["Y".to_owned()]));
    let executed = config.for_execution();
    let inputs = ["X", "START", "END", "READY", "ID", "IN"].map(str::to_owned);
    assert_eq!(names(&executed), (inputs.to_vec(), vec!["Y".to_owned(), "OUT".to_owned()]));
    assert_eq!(executed.input_specs()[5].shape[..], [-1, -1, 2]);
    assert_eq!(executed.to_json(), config.to_json());
    assert_eq!(names(&executed.for_clients()), names(&config));
    assert_eq!(names(&executed.for_execution()), names(&executed), "once");
    assert_eq!(config.sequence_batching.unwrap().max_idle, Duration::from_secs(1));
}

#[test]
fn a_state_may_also_be_an_output_of_its_data_type() {
    let state =
        |data_type| format!("state [ {{ input_name: 'IN' output_name: 'Y' data_type: {data_type} dims: [1] }} ]");
    assert_eq!(config(0, &state("TYPE_INT32")).for_execution().outputs.len(), 1);
    let fault = try_config(0, &state("TYPE_FP32")).unwrap_err();
    assert!(fault.contains("has data type TYPE_FP32, but the output of this name has TYPE_INT32"), "{fault}");
}

#[test]
fn controls_tell_of_the_request() {
    let config = config(2, CONTROLS);
    let tensors = config.control_tensors(&request(CorrelationId::Number(9), true), called).unwrap();
    assert_eq!(*tensors[0].values::<i32>().unwrap(), [7]);
    assert_eq!(*tensors[1].values::<f32>().unwrap(), [0.5]);
    assert_eq!(tensors[2].data()[..], [1]);
    assert_eq!(*tensors[3].values::<i32>().unwrap(), [9]);
    assert!(tensors.iter().all(|tensor| tensor.shape()[..] == [1, 1]));
    let last = config.control_tensors(&request(CorrelationId::Number(9), false), called).unwrap();
    assert_eq!((*last[0].values::<i32>().unwrap())[0], 0);
    assert_eq!((*last[1].values::<f32>().unwrap())[0], 1.5);
}

#[test]
fn a_correlation_id_has_to_fit_its_input() {
    let numbers = config(0, CONTROLS);
    for id in [CorrelationId::Text("five".to_owned()), CorrelationId::Number(1 << 31)] {
        let error = numbers.control_tensors(&request(id, true), called).unwrap_err();
        assert!(
            error.message.contains("does not fit the control input 'ID' of model 'm', whose data type is TYPE_INT32")
        );
    }
    let texts = config(0, &CONTROLS.replace("data_type: TYPE_INT32", "data_type: TYPE_STRING"));
    for (id, text) in [(CorrelationId::Text("five".to_owned()), "five"), (CorrelationId::Number(5), "5")] {
        let tensors = texts.control_tensors(&request(id, true), called).unwrap();
        assert_eq!(tensors[3].shape()[..], [1]);
        assert_eq!(tensors[3].bytes_elements().unwrap().collect::<Vec<_>>(), [text.as_bytes()]);
    }
}

#[test]
fn initial_states_are_zeros_or_files() {
    let folder = tempfile::tempdir().unwrap();
    let zeros = config(4, STATE).initial_states(folder.path()).unwrap();
    assert_eq!((zeros[0].name(), &zeros[0].shape()[..]), ("IN", &[1, 1, 2][..]));
    let initial = |data: &str| {
        let initial =
            format!("dims: [-1, 2] initial_state [ {{ name: 'i' data_type: TYPE_FP32 dims: [3, 2] {data} }} ]");
        STATE.replace("dims: [-1, 2]", &initial)
    };
    let zeros = config(0, &initial("zero_data: true")).initial_states(folder.path()).unwrap();
    assert_eq!(zeros[0].shape()[..], [3, 2]);
    let from_file = config(0, &initial("data_file: 'first'"));
    let missing = from_file.initial_states(folder.path()).unwrap_err();
    assert!(missing.starts_with("cannot read the initial state of 'IN' from"), "{missing}");
    let values: Vec<u8> = (0..6).flat_map(|value| (value as f32).to_le_bytes()).collect();
    std::fs::create_dir(folder.path().join("initial_state")).unwrap();
    std::fs::write(folder.path().join("initial_state/first"), values).unwrap();
    let states = from_file.initial_states(folder.path()).unwrap();
    assert_eq!(*states[0].values::<f32>().unwrap(), [0., 1., 2., 3., 4., 5.]);
    let outside = try_config(0, &initial("data_file: '../first'")).unwrap_err();
    assert!(outside.contains("'data_file' is '../first'"), "{outside}");
}

#[test]
fn faults_are_named() {
    let control =
        |kind: &str| format!("control_input [ {{ name: 'C' control [ {{ kind: CONTROL_SEQUENCE_{kind} }} ] }} ]");
    let state = |fields: &str| format!("state [ {{ input_name: 'I' output_name: 'O' {fields} }} ]");
    let cases = [
        (control("START"), "exactly one of 'int32_false_true', 'fp32_false_true' and 'bool_false_true'"),
        (
            control("START int32_false_true: [1]"),
            "must have exactly 2 entries for CONTROL_SEQUENCE_START of 'C', found 1",
        ),
        (control("CORRID data_type: TYPE_FP32"), "unexpected data type of control CONTROL_SEQUENCE_CORRID 'C'"),
        (control("CORRID data_type: TYPE_INT32 int32_false_true: [0, 1]"), "must not specify either"),
        ("control_input [ { name: 'C' } ]".to_owned(), "'C' has 0 controls, expected one"),
        ("control_input [ {} ]".to_owned(), "must have a name"),
        (CONTROLS.replace("_END", "_START"), "specifies multiple CONTROL_SEQUENCE_START tensors for m"),
        (CONTROLS.replace("'END'", "'X'"), "input 'X' is declared more than once"),
        (state("dims: [1]"), "state 'I' must specify 'data_type'"),
        (state("data_type: TYPE_FP32"), "must have 'dims' of at least one dimension"),
        (
            state("data_type: TYPE_FP32 dims: [2] initial_state { data_type: TYPE_INT8 dims: [2] }"),
            "'initial_state' another",
        ),
        (state("data_type: TYPE_FP32 dims: [2] initial_state { data_type: TYPE_FP32 dims: [3] }"), "does not fit"),
        (
            state("data_type: TYPE_FP32 dims: [2] initial_state { data_type: TYPE_FP32 dims: [2] }"),
            "without 'zero_data'",
        ),
        (STATE.replace("'OUT'", "''"), "must specify 'input_name' and 'output_name'"),
    ];
    for (batching, expected) in cases {
        let fault = try_config(0, &batching).unwrap_err();
        assert!(fault.contains(expected), "{batching}: {fault}");
    }
}

#[test]
fn sequences_share_batches_as_the_strategy_says() {
    let oldest = "oldest { preferred_batch_size: [2] max_queue_delay_microseconds: 30 preserve_ordering: true }";
    let batching = config(4, oldest).dynamic_batching.unwrap();
    assert_eq!((batching.preferred_batch_sizes, batching.max_queue_delay), (vec![2], Duration::from_micros(30)));
    assert!(batching.preserve_ordering);
    let direct = config(4, "direct { max_queue_delay_microseconds: 30 }").dynamic_batching.unwrap();
    assert!(direct.max_queue_delay.is_zero());
    assert_eq!(config(0, "oldest {}").dynamic_batching, None);
}

#[test]
fn completion_leaves_the_hidden_tensors_out() {
    let text = format!("backend: 'onnxruntime' max_batch_size: 4 sequence_batching {{ {CONTROLS} {STATE} }}");
    let mut config = ModelConfig::parse(&text, "m").unwrap().for_execution();
    assert!(config.is_incomplete());
    let tensor =
        |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, shape: [-1, 1].into(), optional: false };
    let inputs = ["X", "START", "END", "READY", "ID", "IN"].map(tensor).to_vec();
    let found = AutoComplete { inputs, outputs: ["Y", "OUT"].map(tensor).to_vec(), default_max_batch_size: 4 };
    config.complete(found).unwrap();
    assert_eq!((config.inputs.len(), config.outputs.len()), (6, 2));
    let shown = ModelConfig::from_json(&config.to_json()).unwrap();
    assert_eq!((shown.inputs.len(), shown.outputs.len()), (1, 1));
}
