//! `If-Space`: requests of every kind name the spaces that their answers may have.

use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Response, Sandbox, Setup, golden, in_one_mode, product};

use crate::durable::{answer, content, ended, upload};
use crate::folders::tiny;

in_one_mode!(a_request_names_the_spaces_that_its_answer_may_have);

/// When the newest file of the folder was changed.
const CHANGED: u64 = 1_750_000_000;

const WRONG: &str = "000000000000.000000000000.000000000000";

/// Sets the time of all files.
fn change_at(folder: &Path, seconds: u64) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        match entry.file_type().expect("a kind").is_dir() {
            true => change_at(&entry.path(), seconds),
            false => {
                let file = fs::File::open(entry.path()).expect("it is there");
                file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).expect("its time can be set");
            }
        }
    }
}

/// Asserts that lists, metadata, the status and commands tell the space of the model.
fn tells_the_space(sandbox: &Sandbox, space: &str) {
    for path in ["/v1/models", "/vllm/v1/models", "/infinity/models", "/nim/v1/models"] {
        let listed = sandbox.get(path).json();
        let model = &listed["data"][0];
        assert_eq!((&model["space"], &model["created"]), (&json!(space), &json!(CHANGED)), "{path}: {listed}");
    }
    assert_eq!(sandbox.get("/v1/models/boats").json()["created"], CHANGED);
    assert_eq!(sandbox.get("/cohere/v1/models/boats").json()["space"], space);
    assert_eq!(sandbox.get("/v2/models/boats").json()["properties"], json!({"space": space}));
    let tokenizer = sandbox.get("/v2/models/boats_tokenizer").json();
    assert_eq!(tokenizer["properties"]["space"], space.split('.').next().expect("a part"), "{tokenizer}");
    let status = sandbox.get("/v2/trireme/status").json();
    let models = status["models"].as_array().expect("models");
    let boats = models.iter().find(|model| model["name"] == "boats").expect("the model");
    assert_eq!((&boats["space"], &boats["files_changed_at"]), (&json!(space), &json!(CHANGED)), "{boats}");
    let server = sandbox.address.to_string();
    for (words, line) in [
        (&["infer", "boats", "a boat", "--server", &server][..], format!("\nspace  {space}\n")),
        (&["status", "--server", &server], format!("\n    space: {space}\n")),
    ] {
        let output = product("trireme").args(words).output().expect("the command runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(&line), "{words:?}: {said}");
    }
}

fn a_request_names_the_spaces_that_its_answer_may_have(mode: Mode) {
    let (folder, jobs) = (tiny(), tempfile::tempdir().expect("a temporary folder"));
    change_at(folder.path(), CHANGED - 1000);
    let file = fs::File::open(folder.path().join("onnx/model.onnx")).expect("it is there");
    file.set_modified(UNIX_EPOCH + Duration::from_secs(CHANGED)).expect("its time can be set");
    let named = format!("boats={}", folder.path().display());
    let (words, jobs) = (["--model", &named], jobs.path().display().to_string());
    let setup = Setup::new(mode).worker_arguments(&words);
    let setup = match setup.is_services() {
        true => setup.gateway_arguments(&words),
        false => setup.gateway_arguments(&["--data-dir", &jobs]),
    };
    let mut sandbox = setup.start();
    let text = &golden()[0].text;
    let embed = |model: &str| {
        let body = json!({"model": model, "input": text}).to_string();
        Request::post("/v1/embeddings", body).header("Content-Type", "application/json")
    };
    let space = sandbox.send(&embed("boats")).header("trireme-space").expect("a space").to_owned();
    assert_eq!(space.split('.').count(), 3, "{space}");
    tells_the_space(&sandbox, &space);
    let refused = |answer: &Response| {
        let message = answer.text();
        assert_eq!(answer.status, 412, "{message}");
        let words = [WRONG, &space, "model 'boats'"];
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };

    let list = format!("{WRONG}, {space}");
    for right in [space.as_str(), &list] {
        let answer = sandbox.send(&embed("boats").header("If-Space", right));
        assert_eq!((answer.status, answer.header("trireme-space")), (200, Some(space.as_str())), "{}", answer.text());
    }
    let two_lines = embed("boats").header("If-Space", WRONG).header("If-Space", &space);
    assert_eq!(sandbox.send(&two_lines).status, 200, "two lines of a header are one list");
    refused(&sandbox.send(&embed("boats").header("If-Space", WRONG)));
    assert_eq!(sandbox.send(&embed("boats").header("If-Space", "")).status, 400, "no space at all");

    // v2, by the header and by the parameter, of which the request's own has the last word.
    let input = json!({"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [text]});
    let infer = |parameter: Option<&str>, header: Option<&str>| {
        let mut body = json!({"inputs": [input]});
        if let Some(spaces) = parameter {
            body["parameters"] = json!({"trireme_if_space": spaces});
        }
        let request = Request::infer("boats", &body);
        sandbox.send(&header.into_iter().fold(request, |request, spaces| request.header("If-Space", spaces)))
    };
    for (parameter, header) in [(Some(&*space), None), (None, Some(&*list)), (Some(&*space), Some(WRONG))] {
        assert_eq!(infer(parameter, header).status, 200, "{parameter:?} {header:?}");
    }
    for (parameter, header) in [(Some(WRONG), None), (None, Some(WRONG)), (Some(WRONG), Some(&*space))] {
        refused(&infer(parameter, header));
    }
    let plain = Request::post("/v2/models/boats/generate", json!({"TEXT": [text]}).to_string());
    refused(&sandbox.send(&plain.header("If-Space", WRONG)));

    // Durable work: its answers, and each line of a batch.
    let durable = |spaces: &str| embed("boats").header("If-Space", spaces).header("Prefer", "respond-async");
    let later = |spaces: &str| {
        let accepted = sandbox.send(&durable(spaces));
        answer(sandbox.address, accepted.header("location").expect("it was accepted"))
    };
    assert_eq!(later(&space).status, 200);
    refused(&later(WRONG));
    let line = |number: usize| {
        let body = json!({"model": "boats", "input": text});
        json!({"custom_id": format!("{number}"), "method": "POST", "url": "/v1/embeddings", "body": body}).to_string()
    };
    let file = upload(sandbox.address, &format!("{}\n{}\n", line(1), line(2)));
    let begin = |spaces: &str| {
        let body = json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"});
        sandbox.send(&Request::post("/v1/batches", body.to_string()).header("If-Space", spaces))
    };
    let batch = |spaces: &str| -> Value {
        let begun = begin(spaces).json();
        assert_eq!(begun["if_space"], spaces, "{begun}");
        ended(sandbox.address, begun["id"].as_str().expect("an id"))
    };
    let right = batch(&space);
    for line in content(sandbox.address, &right["output_file_id"]) {
        assert_eq!(line["response"]["space"], space, "{line}");
    }
    assert_eq!(right["request_counts"], json!({"total": 2, "completed": 2, "failed": 0}), "{right}");
    let wrong = batch(WRONG);
    assert_eq!(wrong["request_counts"], json!({"total": 2, "completed": 0, "failed": 2}), "{wrong}");
    for line in content(sandbox.address, &wrong["error_file_id"]) {
        assert_eq!(line["response"]["status_code"], 412, "{line}");
    }
    assert_eq!(begin("no space").status, 400);

    crate::clients::run_at(sandbox.grpc_address(), "grpc_spaces.py", &["--space", &space]);
}
