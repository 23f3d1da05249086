//! Zero-shot classification: labels of a request become hypotheses, which a model of a folder with a label `entailment` judges.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use trireme_e2e::{Mode, Request, Sandbox, Setup, in_one_mode, workspace};

in_one_mode!(labels_of_a_request_are_scored_as_by_transformers);

/// The classifier of the examples, whose classes are called as those of an NLI model.
fn nli_folder() -> TempDir {
    let (from, folder) =
        (workspace().join("examples/folders/sentiment"), tempfile::tempdir().expect("a temporary folder"));
    fs::create_dir(folder.path().join("onnx")).expect("a folder can be made");
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "onnx/model.onnx"] {
        let content = fs::read(from.join(name)).expect("the example has the file");
        fs::write(folder.path().join(name), content).expect("a file can be written");
    }
    let config = fs::read_to_string(folder.path().join("config.json")).expect("a text");
    let named = config.replace("negative", "contradiction").replace("positive", "entailment");
    fs::write(folder.path().join("config.json"), named).expect("a file can be written");
    folder
}

fn post(sandbox: &Sandbox, path: &str, body: &Value) -> (u16, Value) {
    let answer = sandbox.send(&Request::post(path, body.to_string().into_bytes()));
    (answer.status, answer.json())
}

fn texts(name: &str, texts: &[&str]) -> Value {
    json!({"name": name, "datatype": "BYTES", "shape": [texts.len()], "data": texts})
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    logits.iter().map(|logit| logit.exp() / sum).collect()
}

fn labels_of_a_request_are_scored_as_by_transformers(mode: Mode) {
    let folder = nli_folder();
    let named = format!("nli={}", folder.path().display());
    let mut setup = Setup::new(mode).worker_arguments(&["--model", &named]);
    if setup.is_services() {
        setup = setup.gateway_arguments(&["--model", &named]);
    }
    let sandbox = setup.start();
    let sentences = ["The crew is great, and the boat is fast.", "The report is late."];
    let labels = ["great", "late", "fast"];
    let template = "The ship is {}.";

    // The expected scores, of the logits of each pair.
    let firsts: Vec<&str> = sentences.iter().flat_map(|text| [*text; 3]).collect();
    let hypotheses: Vec<String> = labels.iter().map(|label| template.replace("{}", label)).collect();
    let seconds: Vec<&str> = [&hypotheses, &hypotheses].into_iter().flatten().map(String::as_str).collect();
    let plain =
        json!({"parameters": {"raw_scores": true}, "inputs": [texts("TEXT", &firsts), texts("TEXT_PAIR", &seconds)]});
    let (status, plain) = post(&sandbox, "/v2/models/nli/infer", &plain);
    assert_eq!((status, &plain["outputs"][0]["shape"]), (200, &json!([6, 3])), "{plain}");
    let logits = numbers(&plain["outputs"][0]["data"]);
    let of_all: Vec<f64> = logits.chunks(9).flat_map(|text| softmax(&[text[2], text[5], text[8]])).collect();
    let of_each: Vec<f64> = logits.chunks(3).map(|pair| softmax(&[pair[0], pair[2]])[1]).collect();
    assert!(of_all[0] > of_all[1], "the labels have scores of their own: {of_all:?}");

    let ask = |parameters: Value| {
        let body = json!({"parameters": parameters, "inputs": [texts("TEXT", &sentences)]});
        post(&sandbox, "/v2/models/nli/infer", &body)
    };
    let close = |found: &[f64], expected: &[f64]| {
        assert_eq!(found.len(), expected.len());
        found
            .iter()
            .zip(expected)
            .for_each(|(one, other)| assert!((one - other).abs() < 1e-5, "{found:?} {expected:?}"));
    };
    for (multi, expected) in [(false, &of_all), (true, &of_each)] {
        let (status, found) = ask(json!({
            "candidate_labels": json!(labels).to_string(), "hypothesis_template": template, "multi_label": multi}));
        assert_eq!((status, &found["outputs"][0]["shape"]), (200, &json!([2, 3])), "{found}");
        close(&numbers(&found["outputs"][0]["data"]), expected);
        // huggingface_hub's clients: a list of labels, the best first; for a list of texts a list of lists.
        let parameters = json!({"candidate_labels": labels, "hypothesis_template": template, "multi_label": multi});
        let body = json!({"inputs": sentences, "parameters": parameters});
        let (status, found) = post(&sandbox, "/tei/nli", &body);
        assert_eq!(status, 200, "{found}");
        let (_, one) = post(&sandbox, "/tei/nli", &json!({"inputs": sentences[0], "parameters": parameters}));
        assert_eq!(one, found[0]);
        for (text, expected) in found.as_array().expect("a list").iter().zip(expected.chunks(3)) {
            let mut ranked: Vec<(f64, &str)> = expected.iter().copied().zip(labels).collect();
            ranked.sort_by(|one, two| two.0.total_cmp(&one.0));
            let found: Vec<f64> =
                text.as_array().expect("labels").iter().map(|one| one["score"].as_f64().expect("a number")).collect();
            close(&found, &ranked.iter().map(|one| one.0).collect::<Vec<_>>());
            assert_eq!(text[0]["label"], ranked[0].1);
        }
    }
    // Labels with commas between them, and transformers' own template.
    let (status, found) = ask(json!({"candidate_labels": "great, late"}));
    assert_eq!((status, &found["outputs"][0]["shape"]), (200, &json!([2, 2])), "{found}");
    // Without labels it classifies, pairs as well.
    assert_eq!(post(&sandbox, "/predict", &json!({"inputs": [sentences]})).0, 200);

    let refused = |(status, body): (u16, Value), expected: &str| {
        assert!(status == 400 || status == 422, "{status} {body}");
        assert!(body["error"].as_str().is_some_and(|error| error.contains(expected)), "{body}");
    };
    refused(
        ask(json!({"candidate_labels": "a", "hypothesis_template": "It is so."})),
        "'hypothesis_template' is 'It is so.'",
    );
    let many: Vec<String> = (0..9000).map(|label| format!("l{label}")).collect();
    refused(
        ask(json!({"candidate_labels": many.join(",")})),
        "2 texts with 9000 labels are 18000 pairs, expected at most 16384",
    );
    let both = json!({"parameters": {"candidate_labels": "a"},
        "inputs": [texts("TEXT", &["a"]), texts("TEXT_PAIR", &["b"])]});
    refused(
        post(&sandbox, "/v2/models/nli/infer", &both),
        "'TEXT_PAIR' and parameter 'candidate_labels' are both given",
    );
    let none = json!({"inputs": "a", "parameters": {"candidate_labels": []}});
    refused(post(&sandbox, "/tei/nli", &none), "'candidate_labels' is empty");
}
