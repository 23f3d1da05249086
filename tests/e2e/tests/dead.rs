//! Dead letters: `trireme dead` lists the messages that were given up and sends them again.

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Sandbox, Setup, Stage, product, wait_until};

/// Services whose messages are given up after one attempt.
fn start(models: &ModelFolder) -> Sandbox {
    Setup::new(Mode::Services)
        .repository(models.path())
        .replicas(Stage::Tokenizer, 0)
        .replicas(Stage::Postprocess, 0)
        .queue_arguments(&["--max-deliver", "1", "--ack-wait-ms", "300"])
        .start()
}

fn dead(sandbox: &Sandbox, arguments: &[&str]) -> (bool, String, String) {
    let url = sandbox.nats.as_ref().expect("this mode has a broker").url();
    let output = product("trireme").arg("dead").args(arguments).args(["--nats-url", &url]).output();
    let output = output.expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn what_killed_its_workers_can_be_looked_at_and_sent_again() {
    let models = ModelFolder::new().slow("poison", 3_600_000);
    let mut sandbox = start(&models);
    assert_eq!(dead(&sandbox, &["list", "--json"]).1, "", "nothing was given up yet");
    let address = sandbox.address;
    let body =
        json!({"id": "mine", "inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]}]});
    let waiting = std::thread::spawn(move || trireme_e2e::Request::infer("poison", &body).send(address));
    // Its worker is idle, so the message is delivered to it.
    sandbox.wait_queued("poison", 1);
    std::thread::sleep(std::time::Duration::from_millis(500));
    sandbox.worker(Stage::Model, 0).kill();
    let next = sandbox.start_worker(Stage::Model);
    let response = waiting.join().expect("no panic").expect("an answer");
    assert_eq!(response.status, 500, "{}", response.text());

    let (listed, lines, errors) = dead(&sandbox, &["list", "--json"]);
    assert!(listed, "{errors}");
    let letter: Value = serde_json::from_str(lines.trim()).unwrap_or_else(|error| panic!("{error}: {lines}"));
    assert_eq!(
        (&letter["stage"], &letter["attempts"], &letter["client_id"]),
        (&json!("poison:1"), &json!(1), &json!("mine"))
    );
    assert_eq!(letter["code"], json!("INTERNAL"));
    assert!(letter["reason"].as_str().is_some_and(|reason| reason.contains("given up after 1 attempts")), "{letter}");
    assert_eq!(letter["tensors"], json!([{"name": "INPUT0", "datatype": "FP32", "shape": [3], "bytes": 12}]));
    let number = letter["number"].to_string();
    assert!(dead(&sandbox, &["list", "--model", "other"]).1.lines().count() == 1, "the heading alone");
    let (_, shown, _) = dead(&sandbox, &["show", &number]);
    assert!(shown.contains("tensor    INPUT0 FP32 [3] (12 bytes)"), "{shown}");

    // The model is mended: other files under its name.
    sandbox.worker(Stage::Model, next).terminate();
    sandbox.worker(Stage::Model, next).wait_exit(std::time::Duration::from_secs(60));
    let models = models.slow("poison", 0);
    sandbox.start_worker(Stage::Model);
    let (replayed, outcome, errors) = dead(&sandbox, &["replay", &number, "--wait", "--json"]);
    assert!(replayed, "{errors}");
    let outcome: Value = serde_json::from_str(outcome.trim()).unwrap_or_else(|error| panic!("{error}: {outcome}"));
    assert_eq!(outcome["outputs"], json!([{"name": "OUTPUT0", "datatype": "FP32", "shape": [3], "bytes": 12}]));
    assert_eq!(dead(&sandbox, &["list", "--json"]).1, "", "it is done with");
    let (found, _, errors) = dead(&sandbox, &["replay", &number]);
    assert!(!found && errors.contains(&format!("there is no dead letter of number {number}")), "{errors}");
    drop(models);
}

#[test]
fn a_message_of_a_batch_names_batch_and_line() {
    let models = ModelFolder::new().slow("poison", 3_600_000);
    let mut sandbox = start(&models);
    let route = "/v2/models/poison/infer";
    let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]});
    let line = json!({"custom_id": "1", "method": "POST", "url": route, "body": body});
    // The second line of the file is the first that is not empty.
    let form = format!(
        "--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\nContent-Disposition: \
         form-data; name=\"file\"; filename=\"lines.jsonl\"\r\n\r\n\n{line}\n\r\n--edge--\r\n"
    );
    let upload = Request::post("/v1/files", form).header("Content-Type", "multipart/form-data; boundary=edge");
    let file = sandbox.send(&upload).json()["id"].clone();
    let begin = json!({"input_file_id": file, "endpoint": route, "completion_window": "24h"});
    let batch = sandbox.send(&Request::post("/v1/batches", begin.to_string())).json();
    let id = batch["id"].as_str().expect("an id");
    sandbox.wait_delivered("poison", 1);
    sandbox.worker(Stage::Model, 0).kill();
    sandbox.start_worker(Stage::Model);
    let lines = wait_until("the dead letter", std::time::Duration::from_secs(60), || {
        let (_, lines, _) = dead(&sandbox, &["list", "--json"]);
        (!lines.is_empty()).then_some(lines)
    });
    let letter: Value = serde_json::from_str(lines.trim()).unwrap_or_else(|error| panic!("{error}: {lines}"));
    let job = format!("{id} line 2");
    assert_eq!(letter["job"], json!(job), "{letter}");
    let (_, listed, _) = dead(&sandbox, &["list"]);
    assert!(listed.contains(&job), "{listed}");
    let (_, shown, _) = dead(&sandbox, &["show", &letter["number"].to_string()]);
    assert!(shown.contains(&format!("job       {job}\n")), "{shown}");
    drop(models);
}
