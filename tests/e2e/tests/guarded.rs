//! The example of docs/guards-and-personal-data.md: names are out of a text before another model reads it.

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Sandbox, Setup, in_one_mode, workspace};

in_one_mode!(a_model_reads_texts_without_the_names_in_them);

fn infer(sandbox: &Sandbox, model: &str, text: &str) -> Value {
    let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [text]}]});
    let answer = sandbox.send(&Request::post(&format!("/v2/models/{model}/infer"), body.to_string().into_bytes()));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

fn output<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let outputs = answer["outputs"].as_array().expect("a list");
    &outputs.iter().find(|output| output["name"] == name).expect("an output of this name")["data"]
}

fn a_model_reads_texts_without_the_names_in_them(mode: Mode) {
    let folder = |name: &str| format!("{name}={}", workspace().join("examples/folders").join(name).display());
    let (names, sentiment) = (folder("names"), folder("sentiment"));
    let arguments = ["--model", names.as_str(), "--model", sentiment.as_str()];
    let mut setup = Setup::new(mode).repository(&workspace().join("examples/guarded")).worker_arguments(&arguments);
    if setup.is_services() {
        setup = setup.gateway_arguments(&arguments);
    }
    let sandbox = setup.start();
    let text = "Wanjiru is great, and the boat is fast.";
    let guarded = infer(&sandbox, "guarded", text);
    assert_eq!(output(&guarded, "redacted"), &json!(["[PER] is great, and the boat is fast."]));
    let behind = infer(&sandbox, "sentiment", "[PER] is great, and the boat is fast.");
    assert_eq!(output(&guarded, "scores"), output(&behind, "scores"), "the classifier reads what is left");

    // A name behind the longest row is found, too.
    let long = format!("{} Amina is on the boat.", "The crew is on the ship, and the sea is calm.".repeat(20));
    let redacted = output(&infer(&sandbox, "guarded", &long), "redacted")[0].as_str().expect("a text").to_owned();
    assert!(redacted.ends_with(" [PER] is on the boat.") && !redacted.contains("Amina"), "{redacted}");
    // The page shows the configuration that runs here.
    let page = std::fs::read_to_string(workspace().join("docs/guards-and-personal-data.md")).expect("the page");
    for name in ["redact", "guarded"] {
        let config = workspace().join("examples/guarded").join(name).join("config.pbtxt");
        let config = std::fs::read_to_string(config).expect("a configuration");
        assert!(
            page.contains(config.trim_end()),
            "docs/guards-and-personal-data.md has another configuration of {name}"
        );
    }
}
