//! `trireme bulk`: a file of texts becomes a file of vectors, and goes on where it was.

use std::fs;
use std::process::Output;

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Sandbox, Setup, product, workspace};

fn bulk(sandbox: &Sandbox, folder: &std::path::Path) -> Output {
    let mut command = product("trireme");
    command.arg("bulk").args([folder.join("in.jsonl"), folder.join("out.jsonl")]);
    command.args([
        "--model",
        "embedding",
        "--texts",
        "7",
        "--window",
        "4",
        "--server",
        &format!("http://{}", sandbox.address),
    ]);
    command.output().expect("the command runs")
}

#[test]
fn a_file_of_texts_becomes_a_file_of_vectors_and_goes_on_where_it_was() {
    let sandbox = Setup::new(Mode::AllInOne).repository(&workspace().join("tests/repositories/texts")).start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut lines: Vec<String> = (0..100).map(|n| format!("text {n} {}", "again ".repeat(n % 5))).collect();
    lines[10] = json!({"id": "ten", "text": "what cause covid"}).to_string();
    lines[20] = String::new();
    fs::write(folder.path().join("in.jsonl"), lines.join("\n") + "\n").expect("the input is written");
    let output = bulk(&sandbox, folder.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "one line has no text: {said}");
    assert!(said.contains("100 of 100 texts") && said.contains("1 errors, done"), "{said}");
    let path = folder.path().join("out.jsonl");
    let whole = fs::read(&path).expect("the output is there");
    let found: Vec<Value> =
        whole.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    assert_eq!(found.len(), 100);
    assert_eq!((&found[0]["id"], &found[10]["id"], &found[99]["id"]), (&json!(1), &json!("ten"), &json!(100)));
    assert!(found[20]["error"].as_str().is_some_and(|error| error.contains("empty")), "{}", found[20]);
    let body = json!({"model": "embedding", "input": "what cause covid"}).to_string();
    let live = sandbox.send(&Request::post("/v1/embeddings", body)).json();
    let numbers = |vector: &Value| -> Vec<f64> {
        vector.as_array().expect("a vector").iter().filter_map(Value::as_f64).collect()
    };
    let (bulk_vector, live_vector) = (numbers(&found[10]["embedding"]), numbers(&live["data"][0]["embedding"]));
    assert!(bulk_vector.iter().zip(&live_vector).all(|(a, b)| (a - b).abs() < 1e-5), "{bulk_vector:?} {live_vector:?}");

    // A run that was cut off in a line.
    let cut = whole.len() / 2;
    fs::write(&path, &whole[..cut]).expect("the output is cut");
    let again = bulk(&sandbox, folder.path());
    let kept = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains(&format!("goes on behind line {kept} of 100")), "{said}");
    let ids = |bytes: &[u8]| -> Vec<Value> {
        let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        lines.map(|line| line["id"].clone()).collect()
    };
    assert_eq!(ids(&fs::read(&path).expect("the output is there")), ids(&whole));
}
