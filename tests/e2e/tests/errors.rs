//! Wrong requests: each is answered at once, with Triton's status and text, and does not affect others.

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Sandbox, Setup, golden, in_one_mode, load};
use trireme_testkit::assert_close;

/// The prefix of every message about a request without an id.
const UNKNOWN_ID: &str = "[request id: <id_unknown>] ";

const MAX_INPUT_SIZE: usize = 65_536;

in_one_mode!(
    each_fault_has_its_answer,
    a_fault_inside_an_ensemble_names_it,
    one_text_that_is_no_text_fails_alone,
    models_that_fail_to_run_say_why,
);

/// A wrong request and the expected answer.
struct Case {
    what: &'static str,
    request: Request,
    status: u16,
    /// The message, or parts of it in this order.
    message: Message,
}

enum Message {
    Is(String),
    Has(&'static [&'static str]),
}

use Message::Has;

fn is(text: &str) -> Message {
    Message::Is(text.to_owned())
}

/// A message with the prefix for a request without an id.
fn unknown_id(text: &str) -> Message {
    Message::Is(format!("{UNKNOWN_ID}{text}"))
}

#[track_caller]
fn check(sandbox: &Sandbox, case: &Case) {
    let response = sandbox.send(&case.request);
    let (what, found) = (case.what, response.error());
    assert_eq!(response.status, case.status, "{what}: {found}");
    match &case.message {
        Message::Is(text) => assert_eq!(&found, text, "{what}"),
        Message::Has(parts) => {
            let mut rest = found.as_str();
            for part in *parts {
                rest = match rest.split_once(part) {
                    Some((_, rest)) => rest,
                    None => panic!("{what}: expected a message with {part:?} in {parts:?}, found {found:?}"),
                };
            }
        }
    }
    assert!(!found.contains('\n'), "{what}: the message is one line: {found:?}");
}

// === Requests ===

fn input(name: &str, datatype: &str, shape: Value, data: Value) -> Value {
    json!({"name": name, "datatype": datatype, "shape": shape, "data": data})
}

fn row(name: &str) -> Value {
    input(name, "INT32", json!([1, 16]), json!(vec![7; 16]))
}

fn simple(inputs: &[Value]) -> Request {
    Request::infer("simple", &json!({ "inputs": inputs }))
}

/// A request of `simple` with one field of its first input replaced, or removed where it is null.
fn field(name: &str, value: Value) -> Request {
    let mut first = row("INPUT0");
    let fields = first.as_object_mut().expect("an input is an object");
    match value {
        Value::Null => drop(fields.remove(name)),
        value => drop(fields.insert(name.to_owned(), value)),
    }
    simple(&[first, row("INPUT1")])
}

/// A request of `simple` with an additional member at the top level.
fn member(name: &str, value: Value) -> Request {
    Request::infer("simple", &json!({"inputs": [row("INPUT0"), row("INPUT1")], name: value}))
}

/// A binary request of `simple` with these declared sizes and this many bytes.
fn binary(sizes: [usize; 2], bytes: usize) -> Request {
    let input = |name, size| json!({"name": name, "datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": size}});
    let header = json!({"inputs": [input("INPUT0", sizes[0]), input("INPUT1", sizes[1])]});
    Request::infer_binary("simple", &header, &vec![0; bytes])
}

/// A binary request with one BYTES input.
fn strings(model: &str, name: &str, count: usize, bytes: &[u8]) -> Request {
    let input =
        json!({"name": name, "datatype": "BYTES", "shape": [count], "parameters": {"binary_data_size": bytes.len()}});
    Request::infer_binary(model, &json!({"inputs": [input]}), bytes)
}

fn element(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("test data is small");
    [&length.to_le_bytes()[..], bytes].concat()
}

// === Cases ===

fn paths_and_bodies() -> Vec<Case> {
    let good = || json!({"inputs": [row("INPUT0"), row("INPUT1")]}).to_string();
    let post = |path: &str| Request::post(path, good());
    let malformed = |text: &str| Request::post("/v2/models/simple/infer", text);
    let large = format!("{}{}", good(), " ".repeat(MAX_INPUT_SIZE));
    let too_large = format!(
        "request JSON size of {} bytes exceeds the maximum allowed input size of {MAX_INPUT_SIZE} bytes. Use \
         --http-max-input-size to increase the limit.",
        large.len()
    );
    let compressed = malformed("{}").header("Content-Encoding", "br");
    let header_length = |value| malformed("{}").header("Inference-Header-Content-Length", value);
    let case = |what, request, status, message| Case { what, request, status, message };
    vec![
        case("unknown path", Request::get("/v3"), 404, is("Not Found")),
        case("trailing slash", post("/v2/models/simple/infer/"), 404, is("Not Found")),
        case("version is no number", post("/v2/models/simple/versions/abc/infer"), 404, is("Not Found")),
        case("version is negative", post("/v2/models/simple/versions/-1/infer"), 404, is("Not Found")),
        case("GET infer", Request::get("/v2/models/simple/infer"), 405, is("Method Not Allowed")),
        case("POST health", post("/v2/health/ready"), 405, is("Method Not Allowed")),
        case("DELETE model", Request::new("DELETE", "/v2/models/simple"), 405, is("Method Not Allowed")),
        case("unknown model", post("/v2/models/nix/infer"), 404, is("Request for unknown model: 'nix' is not found")),
        case(
            "unknown model's metadata",
            Request::get("/v2/models/nix"),
            404,
            is("Request for unknown model: 'nix' is not found"),
        ),
        case(
            "unknown model's readiness",
            Request::get("/v2/models/nix/ready"),
            404,
            is("Request for unknown model: 'nix' is not found"),
        ),
        case(
            "unknown version",
            post("/v2/models/simple/versions/99/infer"),
            404,
            is("Request for unknown model: 'simple' version 99 is not found"),
        ),
        case("JSON ends", malformed("{"), 500, Has(&["failed to parse the request JSON buffer: ", " at 1"])),
        case(
            "JSON is wrong inside",
            malformed(r#"{"inputs": [nix]}"#),
            500,
            is("failed to parse the request JSON buffer: Invalid value. at 13"),
        ),
        case("JSON is no object", malformed("[]"), 500, Has(&["Unable to parse 'inputs'"])),
        case(
            "empty body",
            malformed(""),
            400,
            Has(&[UNKNOWN_ID, "Raw request must only have 1 input", "got 2 inputs"]),
        ),
        case("too large", malformed(&large), 400, is(&too_large)),
        case("compressed in an unknown way", compressed, 501, is("Unsupported compression type")),
        case(
            "header length is no number",
            header_length("nix"),
            400,
            is("Unable to parse Inference-Header-Content-Length, got: nix"),
        ),
        case(
            "header longer than the body",
            header_length("3"),
            400,
            is("inference header size should be in range (0, 2), got: 3"),
        ),
    ]
}

fn fields() -> Vec<Case> {
    const NUMBER_AS_TEXT: &str = "attempt to access JSON non-string as string";
    let case = |what, request, status, message| Case { what, request, status, message };
    vec![
        case("name is no text", field("name", json!(7)), 500, is(&format!("Unable to parse 'name': {NUMBER_AS_TEXT}"))),
        case("no name", field("name", Value::Null), 500, Has(&["Unable to parse 'name'"])),
        case(
            "datatype is no text",
            field("datatype", json!(7)),
            500,
            is(&format!("Unable to parse 'datatype': {NUMBER_AS_TEXT}")),
        ),
        case("unknown datatype", field("datatype", json!("INT99")), 400, Has(&["datatype", "INPUT0"])),
        case(
            "wrong datatype",
            field("datatype", json!("INT64")),
            400,
            unknown_id("inference input 'INPUT0' data-type is 'INT64', but model 'simple' expects 'INT32'"),
        ),
        case(
            "datatype without a JSON form",
            field("datatype", json!("FP16")),
            400,
            is("receiving FP16 data via JSON is not supported. Please use the binary data format for input INPUT0"),
        ),
        case(
            "shape is no list",
            field("shape", json!("16")),
            500,
            is("Unable to parse 'shape': attempt to access JSON non-array as array"),
        ),
        case(
            "shape is negative",
            field("shape", json!([-1, 16])),
            500,
            is("Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ),
        case(
            "shape is beyond all memory",
            field("shape", json!([i64::MAX, 16])),
            400,
            Has(&["INPUT0", "causes total element count to exceed maximum size of 9223372036854775807"]),
        ),
        case(
            "wrong shape",
            simple(&[input("INPUT0", "INT32", json!([1, 15]), json!(vec![7; 15])), row("INPUT1")]),
            400,
            Has(&[
                UNKNOWN_ID,
                "unexpected shape for input 'INPUT0' for model 'simple'. Expected [-1,16], got [1,15]. NOTE: Setting a \
                 non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input shape.",
            ]),
        ),
        case(
            "no batch dimension",
            simple(&[input("INPUT0", "INT32", json!([]), json!([7])), row("INPUT1")]),
            400,
            unknown_id("input 'INPUT0' has no shape but model requires batch dimension for 'simple'"),
        ),
        case(
            "data is too short",
            field("data", json!(vec![7; 15])),
            500,
            is("Failed to parse 'data' field: shape does not match true shape"),
        ),
        case(
            "data is too long",
            field("data", json!(vec![7; 17])),
            500,
            is("Unable to parse 'data': Shape does not match true shape of 'data' field"),
        ),
        case(
            "data of another type",
            field("data", json!(vec!["7"; 16])),
            500,
            is("Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        ),
        case(
            "data is too deep",
            field("data", (0..101).fold(json!(7), |inner, _| json!([inner]))),
            400,
            Has(&["JSON nesting depth exceeds maximum allowed limit (100)"]),
        ),
        case(
            "no data",
            field("data", Value::Null),
            400,
            is("Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
                'shared_memory_region' in 'parameters'. But no field is set"),
        ),
        case(
            "data twice",
            field("parameters", json!({"binary_data_size": 64})),
            400,
            is("Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', \
                'shared_memory_region' in 'parameters'. But set 'data' 'binary_data_size'"),
        ),
        case(
            "parameter of no type",
            member("parameters", json!({"x": []})),
            400,
            is("parameter 'x' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ),
        case(
            "reserved parameter",
            member("parameters", json!({"triton_x": 1})),
            400,
            is("parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."),
        ),
        case(
            "timeout is no number",
            member("parameters", json!({"timeout": "1 s"})),
            500,
            Has(&["Unable to parse 'timeout'"]),
        ),
    ]
}

fn inputs_and_outputs() -> Vec<Case> {
    let rows = |name: &str, count: usize| input(name, "INT32", json!([count, 16]), json!(vec![7; 16 * count]));
    let case = |what, request, status, message| Case { what, request, status, message };
    vec![
        case(
            "missing input",
            simple(&[row("INPUT0")]),
            400,
            unknown_id(
                "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required \
                 input(s) ['INPUT1']. Please provide all required input(s).",
            ),
        ),
        case("extra input", simple(&[row("INPUT0"), row("INPUT1"), row("INPUT2")]), 400, Has(&["input", "INPUT2"])),
        case("input of another name", simple(&[row("INPUT0"), row("INPUT2")]), 400, Has(&["input", "INPUT2"])),
        case(
            "no inputs",
            simple(&[]),
            400,
            Has(&[UNKNOWN_ID, "expected 2 inputs but got 0 inputs for model 'simple'"]),
        ),
        case(
            "same input twice",
            simple(&[row("INPUT0"), row("INPUT0")]),
            400,
            Has(&["input 'INPUT0' already exists in request"]),
        ),
        case(
            "unexpected output",
            member("outputs", json!([{"name": "OUTPUT2"}])),
            400,
            Has(&["unexpected inference output 'OUTPUT2'", "allowed outputs are: OUTPUT0, OUTPUT1"]),
        ),
        case(
            "same output twice",
            member("outputs", json!([{"name": "OUTPUT0"}, {"name": "OUTPUT0"}])),
            400,
            Has(&["output 'OUTPUT0' already exists in request"]),
        ),
        case(
            "batch is too big",
            simple(&[rows("INPUT0", 9), rows("INPUT1", 9)]),
            400,
            unknown_id("inference request batch-size must be <= 8 for 'simple'"),
        ),
        case(
            "batches differ",
            simple(&[rows("INPUT0", 2), rows("INPUT1", 1)]),
            400,
            unknown_id("input 'INPUT1' batch size does not match other inputs for 'simple'"),
        ),
        case(
            "binary data ends",
            binary([64, 64], 120),
            400,
            is("unexpected size for input 'INPUT1', expecting 8 additional bytes for model 'simple'"),
        ),
        case(
            "binary data goes on",
            binary([64, 64], 130),
            400,
            is("unexpected additional input data for model 'simple'"),
        ),
        case(
            "binary size does not fit the shape",
            binary([64, 60], 124),
            400,
            unknown_id("input byte size mismatch for input 'INPUT1' for model 'simple'. Expected 64, got 60"),
        ),
        case(
            "fewer strings than the shape says",
            strings("identity_bytes", "INPUT0", 2, &element(b"one")),
            400,
            unknown_id("expected 2 string elements for inference input 'INPUT0' for model 'identity_bytes', got 1"),
        ),
        case(
            "a string without its length",
            strings("identity_bytes", "INPUT0", 2, &[element(b"one"), vec![3, 0]].concat()),
            400,
            Has(&[
                UNKNOWN_ID,
                "incomplete string length indicator for inference input 'INPUT0' for model 'identity_bytes'",
            ]),
        ),
        case(
            "a string shorter than its length",
            strings("identity_bytes", "INPUT0", 1, &[9, 0, 0, 0, b'x']),
            400,
            Has(&[UNKNOWN_ID, "INPUT0", "identity_bytes", "only 1 bytes available"]),
        ),
    ]
}

// === Tests ===

fn each_fault_has_its_answer(mode: Mode) {
    let sandbox = Setup::new(mode).gateway_arguments(&["--http-max-input-size", &MAX_INPUT_SIZE.to_string()]).start();
    for case in [paths_and_bodies(), fields(), inputs_and_outputs()].iter().flatten() {
        check(&sandbox, case);
    }
    let with_id = Request::infer("simple", &json!({"id": "seven", "inputs": [row("INPUT0")]}));
    check(
        &sandbox,
        &Case { what: "id", request: with_id, status: 400, message: Has(&["[request id: seven] expected 2 inputs"]) },
    );

    assert!(sandbox.is_ready());
    assert_eq!(sandbox.send(&simple(&[row("INPUT0"), row("INPUT1")])).numbers("OUTPUT0"), [14.0; 16]);
}

fn a_fault_inside_an_ensemble_names_it(mode: Mode) {
    let sandbox = Sandbox::shared(mode);
    let texts = [element(b"fine"), element(b"not \xff text")].concat();
    let no_text = "tensor 'TEXT': element 1 is not valid UTF-8 at byte 4, expected UTF-8 text";
    let case = |what, request, message| Case { what, request, status: 400, message };
    check(&sandbox, &case("alone", strings("tiny_tokenizer", "TEXT", 2, &texts), unknown_id(no_text)));
    let in_ensemble = unknown_id(&format!("in ensemble 'tiny_embedding', {no_text}"));
    check(&sandbox, &case("in a step", strings("tiny_embedding", "TEXT", 2, &texts), in_ensemble));
}

fn one_text_that_is_no_text_fails_alone(mode: Mode) {
    let sandbox = Sandbox::shared(mode);
    let golden = golden();
    let ask = |number: usize| {
        if number.is_multiple_of(8) {
            let response = sandbox.send(&strings("tiny_embedding", "TEXT", 1, &element(b"\xc3\x28")));
            assert_eq!(response.status, 400, "{}", response.text());
            return;
        }
        let expected = &golden[number % golden.len()];
        let response = sandbox.send(&strings("tiny_embedding", "TEXT", 1, &element(expected.text.as_bytes())));
        assert_close(&response.numbers("embedding"), &expected.embedding, 1e-5);
    };
    load(128, 32, ask, || {}).assert_all_right(128);
}

fn models_that_fail_to_run_say_why(mode: Mode) {
    let sandbox = Sandbox::shared(mode);
    let ids = |name: &str, value: i64| input(name, "INT64", json!([1, 3]), json!(vec![value; 3]));
    let beyond_the_vocabulary =
        Request::infer("tiny_encoder", &json!({"inputs": [ids("input_ids", 1_000_000), ids("attention_mask", 1)]}));
    let response = sandbox.send(&beyond_the_vocabulary);
    let message = response.error();
    assert!(response.status >= 400, "{message}");
    assert!(message.starts_with(&format!("{UNKNOWN_ID}model 'tiny_encoder': onnxruntime: ")), "{message}");
    assert!(message.contains("1000000"), "the message names what was found: {message}");

    let good = Request::infer("tiny_encoder", &json!({"inputs": [ids("input_ids", 5), ids("attention_mask", 1)]}));
    assert_eq!(sandbox.send(&good).output("last_hidden_state")["shape"], json!([1, 3, 8]));
}
