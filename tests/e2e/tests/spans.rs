//! Entities of the labels that a request names, by folders of GLiNER and GLiNER2. The expected ones are those of their libraries
//! (`tests/models/spans.py`, `tests/models/spans_of_gliner2.py`).

use std::fs;

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Response, Sandbox, Setup, in_one_mode, workspace};

in_one_mode!(entities_of_any_labels_are_those_of_the_library, entities_of_gliner2_are_those_of_its_library);

fn post(sandbox: &Sandbox, path: &str, body: &Value) -> Response {
    sandbox.send(&Request::post(path, body.to_string().into_bytes()))
}

/// The entities of texts over the v2 protocol.
fn infer(sandbox: &Sandbox, texts: &[&str], parameters: &Value) -> Vec<Vec<Value>> {
    let input = json!({"name": "TEXT", "datatype": "BYTES", "shape": [texts.len()], "data": texts});
    let answer = post(sandbox, "/v2/models/any/infer", &json!({"parameters": parameters, "inputs": [input]}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let rows = answer.json()["outputs"][0]["data"].as_array().expect("a list").clone();
    let row = |row: &Value| serde_json::from_str(row.as_str().expect("a text")).expect("a JSON array");
    rows.iter().map(row).collect()
}

fn number(entity: &Value, name: &str) -> f64 {
    entity[name].as_f64().unwrap_or_else(|| panic!("no number {name}: {entity}"))
}

/// Whether entities are those of the library.
fn assert_alike(found: &[Value], expected: &[Value], by: usize, text: &str) {
    assert_eq!(found.len(), expected.len(), "{text:?}: {found:?} {expected:?}");
    for (one, other) in found.iter().zip(expected) {
        assert_eq!((&one["entity_group"], &one["word"]), (&other["label"], &other["text"]), "{text:?}");
        for place in ["start", "end"] {
            assert_eq!(number(one, place), number(other, place) + by as f64, "{text:?}: {one} {other}");
        }
        assert!((number(one, "score") - number(other, "score")).abs() < 1e-5, "{text:?}: {one} {other}");
    }
}

/// A server of a folder of `tests/models`, and what the library finds.
fn served(mode: Mode, folder: &str) -> (Sandbox, Vec<Value>) {
    let folder = workspace().join("tests/models").join(folder);
    let named = format!("any={}", folder.display());
    let mut setup = Setup::new(mode).worker_arguments(&["--model", &named]);
    if setup.is_services() {
        setup = setup.gateway_arguments(&["--model", &named]);
    }
    let expected = fs::read_to_string(folder.join("expected.json")).expect("the expected entities");
    (setup.start(), serde_json::from_str(&expected).expect("JSON"))
}

fn entities_of(case: &Value) -> Vec<Value> {
    case["entities"].as_array().expect("a list").clone()
}

/// The entities of each text are those of the library, together with others and alone.
fn assert_as_library(sandbox: &Sandbox, cases: &[Value]) {
    let of = |case: &Value| {
        json!({
            "labels": case["labels"].to_string(), "threshold": case["threshold"], "flat_ner": case["flat_ner"], "multi_label": case["multi_label"]
        })
    };
    // Texts of one request share a run.
    let mut found_any = 0;
    for alike in cases.chunk_by(|one, other| one["labels"] == other["labels"]) {
        let texts: Vec<&str> = alike.iter().map(|case| case["text"].as_str().expect("a text")).collect();
        let rows = infer(sandbox, &texts, &of(&alike[0]));
        for (case, row) in alike.iter().zip(&rows) {
            assert_alike(row, &entities_of(case), 0, case["text"].as_str().expect("a text"));
            found_any += row.len();
        }
        let alone = infer(sandbox, &texts[..1], &of(&alike[0]));
        assert_alike(&alone[0], &entities_of(&alike[0]), 0, texts[0]);
    }
    assert!(found_any > 20, "the texts have entities");
}

fn entities_of_gliner2_are_those_of_its_library(mode: Mode) {
    let (sandbox, cases) = served(mode, "gliner2");
    assert_as_library(&sandbox, &cases);
    // A label that would look like the start of another one.
    let input = json!({"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a"]});
    let asked = json!({"parameters": {"labels": "[\"a [E] b\"]"}, "inputs": [input]});
    let refused = post(&sandbox, "/v2/models/any/infer", &asked);
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("a label holds '[E]'"), "{}", refused.text());
}

fn entities_of_any_labels_are_those_of_the_library(mode: Mode) {
    let (sandbox, cases) = served(mode, "spans");
    assert_as_library(&sandbox, &cases);

    // The dialect of text-embeddings-inference has the same fields.
    let parameters = json!({"labels": cases[0]["labels"], "threshold": 0.5});
    let answer = post(&sandbox, "/tei/any", &json!({"inputs": cases[0]["text"], "parameters": parameters}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_alike(answer.json().as_array().expect("a list"), &entities_of(&cases[0]), 0, "over /tei");
    let high = json!({"labels": {"person": 1, "organization": 1, "place": 1, "date": 1}});
    let answer = post(&sandbox, "/tei/any", &json!({"inputs": cases[0]["text"], "parameters": high}));
    assert_eq!((answer.status, answer.json()), (200, json!([])), "no score is above the labels' own threshold");
    let missing = post(&sandbox, "/tei/any", &json!({"inputs": "a"}));
    assert_eq!(missing.status, 422, "{}", missing.text());
    assert!(missing.text().contains("parameter 'labels' is missing"), "{}", missing.text());

    // A text of several windows: each word is in one of them, and no entity is found twice.
    let long = ["The crew is on the ship, and the sea is calm."; 30].join(" ");
    let rows = infer(&sandbox, &[&long], &json!({"labels": "person, place", "threshold": 0.3}));
    let ends: Vec<(f64, f64)> = rows[0].iter().map(|entity| (number(entity, "start"), number(entity, "end"))).collect();
    assert!(ends.last().is_some_and(|last| last.0 > 1000.0), "entities are found at the end: {ends:?}");
    assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "entities lie side by side: {ends:?}");
    let cut = infer(&sandbox, &[&long], &json!({"labels": "person, place", "threshold": 0.3, "windows": false}));
    assert!(cut[0].len() < rows[0].len(), "one row has the beginning alone");
    let characters: Vec<char> = long.chars().collect();
    for entity in &rows[0] {
        let (start, end) = (number(entity, "start") as usize, number(entity, "end") as usize);
        assert_eq!(entity["word"], characters[start..end].iter().collect::<String>().as_str());
    }
}
