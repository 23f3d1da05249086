//! The targets: each takes bytes and returns the outcome as text. An accepted input also has to survive being written
//! and read again.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use prost::Message;
use trireme_bus::{AnswerForm, ReplyHeaders, WorkHeaders, decode_reply, decode_work, encode_reply, encode_work};
use trireme_columns::{Format, Table};
use trireme_inference::{InferRequest, Owner, UnixMicros};
use trireme_model_repository::ModelConfig;
use trireme_protocol::infer::InferTarget;
use trireme_protocol::logging::LogSettings;
use trireme_protocol::{generate, grpc, infer, json, logging, repository};

/// A parser.
pub struct Target {
    /// Its name, which is also the name of its corpus.
    pub name: &'static str,
    /// Runs it and returns the outcome.
    pub run: fn(&[u8]) -> String,
    /// Pieces of its format.
    pub words: &'static [&'static str],
}

const JSON_WORDS: &[&str] = &[
    "\"inputs\":",
    "\"outputs\":",
    "\"parameters\":",
    "\"shape\":",
    "\"data\":",
    "\"datatype\":\"BYTES\"",
    "[[[[",
    "]]]]",
    "\"binary_data_size\":",
    "\"classification\":",
    "1e999",
    "-0",
    "NaN",
    "Infinity",
    "18446744073709551616",
    "\\ud800",
    "\"shared_memory_region\":\"r\"",
    "null",
    "true",
    "9223372036854775807",
    "{}",
    ",",
];

const PBTXT_WORDS: &[&str] = &[
    "input [",
    "output {",
    "dims: [ -1 ]",
    "data_type: TYPE_STRING",
    "dynamic_batching { }",
    "ensemble_scheduling { step [",
    "input_map { key: \"a\" value: \"b\" }",
    "version_policy: { all {} }",
    "max_batch_size: 2147483648",
    "# ",
    "\"",
    "<",
    ">",
    "model_warmup",
    "instance_group [ { count: 4294967295 } ]",
    "reshape { shape: [ ] }",
    "parameters { key: \"k\" }",
];

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "infer-json", run: infer_json, words: JSON_WORDS },
    Target { name: "infer-binary", run: infer_binary, words: JSON_WORDS },
    Target { name: "generate", run: generate, words: JSON_WORDS },
    Target { name: "control-json", run: control_json, words: JSON_WORDS },
    Target { name: "infer-grpc", run: infer_grpc, words: &["BYTES", "FP32", "INPUT0"] },
    Target { name: "config-pbtxt", run: config_pbtxt, words: PBTXT_WORDS },
    Target { name: "config-json", run: config_json, words: JSON_WORDS },
    Target { name: "columns-parquet", run: columns_parquet, words: &["PAR1", "text", "embedding"] },
    Target { name: "columns-arrow", run: columns_arrow, words: &["ARROW1", "text", "embedding"] },
    Target { name: "envelope-work", run: envelope_work, words: &["tensors", "route", "steps", "data", "shape"] },
    Target { name: "envelope-reply", run: envelope_reply, words: &["tensors", "error", "ledger"] },
];

/// The model that requests are for.
static MODEL: LazyLock<ModelConfig> = LazyLock::new(|| {
    let config = r#"backend: "identity" max_batch_size: 8
        input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "INPUT1" data_type: TYPE_STRING dims: [ 2 ] optional: true } ]
        output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "OUTPUT1" data_type: TYPE_STRING dims: [ 2 ] } ]"#;
    ModelConfig::parse(config, "m").expect("a valid configuration")
});

fn admit(request: InferRequest) -> String {
    let checked = MODEL.check_outputs(&request.outputs, &request.id);
    match checked.and_then(|()| MODEL.admit(&request.id, request.inputs)) {
        Ok(tensors) => format!("admitted {} tensors", tensors.len()),
        Err(error) => error.to_string(),
    }
}

fn infer_http(body: &[u8], header_length: Option<&str>) -> String {
    let inputs = MODEL.input_specs();
    let target = InferTarget { model: "m", inputs: &inputs, max_batch_size: 8, max_json_size: 1 << 20 };
    match infer::decode_infer_request(&target, &Bytes::copy_from_slice(body), header_length, &mut |_| Ok(())) {
        Ok(decoded) => admit(decoded.request),
        Err(error) => error.to_string(),
    }
}

fn infer_json(body: &[u8]) -> String {
    infer_http(body, None)
}

/// The input begins with the header length, up to a line feed.
fn infer_binary(input: &[u8]) -> String {
    let end = input.iter().position(|&byte| byte == b'\n').unwrap_or(0);
    let header = String::from_utf8_lossy(&input[..end]);
    infer_http(input.get(end + 1..).unwrap_or_default(), Some(&header))
}

fn generate(body: &[u8]) -> String {
    match generate::decode_generate_request("m", &MODEL.input_specs(), body, &mut |_| Ok(())) {
        Ok(request) => admit(request),
        Err(error) => error.to_string(),
    }
}

fn control_json(body: &[u8]) -> String {
    let settings =
        LogSettings { info: true, warning: true, error: true, verbose_level: 0, format: "default".to_owned() };
    let told = [
        json::parse(body).map(|_| "json".to_owned()).unwrap_or_else(|error| error.to_string()),
        repository::decode_index_request(body).map_or_else(|error| error.to_string(), |ready| ready.to_string()),
        repository::decode_load_request(body)
            .map_or_else(|error| error.to_string(), |load| load.files.len().to_string()),
        repository::decode_unload_request(body).to_string(),
        logging::decode_log_settings(settings, body).map_or_else(|error| error.to_string(), |_| "settings".to_owned()),
    ];
    told.join("; ")
}

fn infer_grpc(body: &[u8]) -> String {
    match grpc::wire::ModelInferRequest::decode(body) {
        Ok(message) => match grpc::decode_infer_request(message, &MODEL.input_specs()) {
            Ok(request) => admit(request),
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    }
}

fn config_pbtxt(text: &[u8]) -> String {
    config(ModelConfig::parse(&String::from_utf8_lossy(text), "m"))
}

fn config_json(text: &[u8]) -> String {
    config(ModelConfig::from_json(&String::from_utf8_lossy(text)))
}

fn config(read: Result<ModelConfig, trireme_model_repository::RepositoryError>) -> String {
    match read {
        Ok(config) => {
            let json = config.to_json();
            let again = ModelConfig::from_json(&json).expect("what was written can be read");
            assert_eq!(again.to_json(), json, "a configuration is the same when it was written and read");
            "valid".to_owned()
        }
        Err(error) => error.to_string(),
    }
}

fn envelope_work(body: &[u8]) -> String {
    let headers = || WorkHeaders {
        request_id: "r".into(),
        gateway: "g".into(),
        deadline: UnixMicros(1),
        priority: 0,
        traceparent: None,
        tracestate: None,
        answer: AnswerForm::Whole,
        job: None,
        owner: Owner::default(),
    };
    match decode_work(headers(), &Bytes::copy_from_slice(body)) {
        Ok(message) => {
            let written = encode_work(&message).expect("what was read can be written");
            let again = decode_work(headers(), &written).expect("what was written can be read");
            assert_eq!(encode_work(&again).ok(), Some(written), "a message is the same when it was written and read");
            "valid".to_owned()
        }
        Err(error) => error.to_string(),
    }
}

fn envelope_reply(body: &[u8]) -> String {
    let headers = || ReplyHeaders { request_id: "r".into(), gateway: "g".into(), sequence: 0, last: true };
    match decode_reply(headers(), &Bytes::copy_from_slice(body)) {
        Ok(reply) => {
            let written = encode_reply(&reply).expect("what was read can be written");
            let again = decode_reply(headers(), &written).expect("what was written can be read");
            assert_eq!(encode_reply(&again).ok(), Some(written), "a reply is the same when it was written and read");
            "valid".to_owned()
        }
        Err(error) => error.to_string(),
    }
}

fn columns_parquet(file: &[u8]) -> String {
    columns(file, Format::Parquet)
}

fn columns_arrow(file: &[u8]) -> String {
    columns(file, Format::Arrow)
}

/// Reads all rows of a file of columns, each column as a job and as `trireme bulk` would.
fn columns(file: &[u8], format: Format) -> String {
    const ROWS: usize = 64;
    let source = Arc::new(Bytes::copy_from_slice(file));
    let read = Table::open(source, format).and_then(|table| {
        let mut rows = 0;
        for batch in table.batches(0, ROWS)?.take(ROWS) {
            let batch = batch?;
            rows += batch.rows();
            for column in ["id", "text", "kind", "list", "vector"] {
                let _ = (batch.texts(column), batch.ids(column), batch.json(column));
            }
        }
        Ok(rows)
    });
    match read {
        Ok(rows) => format!("{rows} rows"),
        Err(error) => error.to_string(),
    }
}
