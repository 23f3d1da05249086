//! Entities, classes and records that a request names, by folders of GLiNER and GLiNER2. The expected ones are those of their libraries
//! (`tests/models/spans.py`, `tests/models/spans_of_gliner2.py`).

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, Process, Request, Response, Sandbox, Setup, in_one_mode, product, workspace};

in_one_mode!(
    entities_of_any_labels_are_those_of_the_library,
    entities_of_gliner2_are_those_of_its_library,
    classes_of_gliner2_are_those_of_its_library,
    records_of_gliner2_are_those_of_its_library,
    a_graph_without_records_says_how_to_get_them,
    a_long_text_takes_the_memory_of_a_few_rows,
);

fn post(sandbox: &Sandbox, path: &str, body: &Value) -> Response {
    sandbox.send(&Request::post(path, body.to_string().into_bytes()))
}

fn request_of(texts: &[&str], parameters: &Value) -> Value {
    let input = json!({"name": "TEXT", "datatype": "BYTES", "shape": [texts.len()], "data": texts});
    json!({"parameters": parameters, "inputs": [input]})
}

/// An output of an answer over the v2 protocol.
fn output<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let outputs = answer["outputs"].as_array().expect("a list");
    outputs.iter().find(|output| output["name"] == name).unwrap_or_else(|| panic!("no output {name}: {answer}"))
}

/// The rows of JSON of an output.
fn rows_of(answer: &Value, name: &str) -> Vec<Value> {
    let rows = output(answer, name)["data"].as_array().expect("a list");
    rows.iter().map(|row| serde_json::from_str(row.as_str().expect("a text")).expect("JSON")).collect()
}

fn answered(sandbox: &Sandbox, request: &Value) -> Value {
    let answer = post(sandbox, "/v2/models/any/infer", request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

/// The entities of texts over the v2 protocol.
fn infer(sandbox: &Sandbox, texts: &[&str], parameters: &Value) -> Vec<Vec<Value>> {
    let answer = answered(sandbox, &request_of(texts, parameters));
    assert_eq!(answer["outputs"].as_array().map(Vec::len), Some(1), "entities alone: {answer}");
    rows_of(&answer, "entities").into_iter().map(|row| row.as_array().expect("a JSON array").clone()).collect()
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
    let expected = fs::read_to_string(folder.join("expected.json")).expect("the expected entities");
    (serving(mode, &folder), serde_json::from_str(&expected).expect("JSON"))
}

/// A server of a folder.
fn serving(mode: Mode, folder: &Path) -> Sandbox {
    let named = format!("any={}", folder.display());
    let mut setup = Setup::new(mode).worker_arguments(&["--model", &named]);
    if setup.is_services() {
        setup = setup.gateway_arguments(&["--model", &named]);
    }
    setup.start()
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

/// Whether labels that count are those of the library, in the order of the tasks.
fn assert_same_choice(found: &Value, expected: &Value, text: &str) {
    let tasks = |value: &Value| value.as_object().expect("tasks").keys().cloned().collect::<Vec<_>>();
    assert_eq!(tasks(found), tasks(expected), "{text:?}");
    for (task, expected) in expected.as_object().expect("tasks") {
        let labels = |said: &Value| said.as_array().cloned().unwrap_or_else(|| vec![said.clone()]);
        assert_eq!(found[task].is_array(), expected.is_array(), "{text:?}: {found}");
        let (one, other) = (labels(&found[task]), labels(expected));
        assert_eq!(one.len(), other.len(), "{text:?}: {found} {expected}");
        for (one, other) in one.iter().zip(&other) {
            assert_eq!(one["label"], other["label"], "{text:?}: {found} {expected}");
            assert!((number(one, "score") - number(other, "score")).abs() < 1e-5, "{text:?}: {one} {other}");
        }
    }
}

fn assert_close(found: &[Value], expected: &[Value], text: &str) {
    assert_eq!(found.len(), expected.len(), "{text:?}");
    let number = |value: &Value| value.as_f64().expect("a number");
    let differs = |(one, other): (&Value, &Value)| (number(one) - number(other)).abs() >= 1e-5;
    assert!(!found.iter().zip(expected).any(differs), "{text:?}: {found:?} {expected:?}");
}

fn classes_of_gliner2_are_those_of_its_library(mode: Mode) {
    let (sandbox, _) = served(mode, "gliner2");
    let cases =
        fs::read_to_string(workspace().join("tests/models/gliner2/classes.json")).expect("the expected classes");
    let cases: Vec<Value> = serde_json::from_str(&cases).expect("JSON");
    let text = |case: &'_ Value| case["text"].as_str().expect("a text").to_owned();
    for alike in cases.chunk_by(|one, other| one["classifications"] == other["classifications"]) {
        let texts: Vec<String> = alike.iter().map(text).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let mut parameters = json!({"classifications": alike[0]["classifications"].to_string()});
        let finds = alike[0]["labels"].is_array();
        if finds {
            parameters["labels"] = alike[0]["labels"].to_string().into();
        }
        // A request gets the outputs that its labels ask for.
        let together = answered(&sandbox, &request_of(&texts, &parameters));
        assert_eq!(together["outputs"].as_array().map(Vec::len), Some(1 + usize::from(finds)), "{together}");
        let mut with_scores = request_of(&texts, &parameters);
        with_scores["outputs"] = json!([{"name": "scores"}, {"name": "classes"}]);
        let scored = answered(&sandbox, &with_scores);
        let scores = output(&scored, "scores")["data"].as_array().expect("numbers").clone();
        let width = scores.len() / texts.len();
        assert_eq!(output(&scored, "scores")["shape"], json!([texts.len(), width]));
        for (at, case) in alike.iter().enumerate() {
            let expected = case["scores"].as_array().expect("numbers");
            assert_close(&scores[at * width..][..width], expected, texts[at]);
            assert_same_choice(&rows_of(&together, "classes")[at], &case["classes"], texts[at]);
            assert_same_choice(&rows_of(&scored, "classes")[at], &case["classes"], texts[at]);
            if finds {
                let found = rows_of(&together, "entities")[at].as_array().expect("a list").clone();
                assert_alike(&found, &entities_of(case), 0, texts[at]);
            }
        }
        let alone = answered(&sandbox, &request_of(&texts[..1], &parameters));
        assert_same_choice(&rows_of(&alone, "classes")[0], &alike[0]["classes"], texts[0]);
    }
    assert!(cases.len() > 30, "there are cases");
    labels_of_clients_are_a_task(&sandbox, &cases[0]);
    a_text_of_several_windows_has_one_judgement(&sandbox);
    what_cannot_be_asked_for_is_refused(&sandbox);
}

/// `candidate_labels`, over v2 and as huggingface_hub's `zero_shot_classification` sends them: the task's name stands in the place of the template.
fn labels_of_clients_are_a_task(sandbox: &Sandbox, case: &Value) {
    let (task, text) = (&case["classifications"][0], case["text"].as_str().expect("a text"));
    let parameters = json!({"candidate_labels": task["labels"].to_string(), "hypothesis_template": task["task"]});
    let answer = answered(sandbox, &request_of(&[text], &parameters));
    assert_eq!(answer["outputs"].as_array().map(Vec::len), Some(1), "{answer}");
    assert_close(
        output(&answer, "scores")["data"].as_array().expect("numbers"),
        case["scores"].as_array().expect("numbers"),
        text,
    );
    let parameters = json!({"candidate_labels": task["labels"], "hypothesis_template": task["task"]});
    let answer = post(sandbox, "/tei/any", &json!({"inputs": text, "parameters": parameters}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut expected: Vec<(f64, &Value)> = case["scores"]
        .as_array()
        .expect("numbers")
        .iter()
        .map(|score| score.as_f64().expect("a number"))
        .zip(task["labels"].as_array().expect("labels"))
        .collect();
    expected.sort_by(|one, other| other.0.total_cmp(&one.0));
    for (one, (score, label)) in answer.json().as_array().expect("labels").iter().zip(&expected) {
        assert!(
            one["label"] == **label && (number(one, "score") - score).abs() < 1e-5,
            "{} {expected:?}",
            answer.text()
        );
    }
    let parameters = json!({"candidate_labels": task["labels"], "multi_label": true});
    let several = post(sandbox, "/tei/any", &json!({"inputs": [text, text], "parameters": parameters}));
    let sum: f64 = several.json()[1].as_array().expect("labels").iter().map(|label| number(label, "score")).sum();
    assert!((sum - 1.0).abs() > 1e-3, "each label has a probability of its own: {}", several.text());
}

/// The highest logit of a label among the windows is the text's, as in `classify_long` of the library.
fn a_text_of_several_windows_has_one_judgement(sandbox: &Sandbox) {
    let tasks = json!([{"task": "sea", "labels": ["calm", "storm", "no sea"], "multi_label": true}]).to_string();
    let long = (0..400).map(|day| format!("On day {day} the crew is on the ship.")).collect::<Vec<_>>().join(" ");
    let ask = |more: Value| {
        let mut parameters = json!({"classifications": tasks, "raw_scores": true});
        parameters.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let mut request = request_of(&[&long, "The sea is calm."], &parameters);
        request["outputs"] = json!([{"name": "scores"}]);
        let answer = answered(sandbox, &request);
        let numbers = output(&answer, "scores")["data"].as_array().expect("numbers").clone();
        numbers.iter().map(|number| number.as_f64().expect("a number")).collect::<Vec<_>>()
    };
    let (highest, each) = (ask(json!({})), ask(json!({"fold": "keep"})));
    assert!(highest.len() == 6 && each.len() > 9 && each.len() % 3 == 0, "{highest:?} {each:?}");
    for label in 0..3 {
        let of_text = each[..each.len() - 3].chunks(3).map(|window| window[label]).fold(f64::MIN, f64::max);
        assert!((of_text - highest[label]).abs() < 1e-6, "{highest:?} {each:?}");
    }
    assert!((ask(json!({"windows": false}))[0] - each[0]).abs() < 1e-6, "a cut text is its first window");
}

fn what_cannot_be_asked_for_is_refused(sandbox: &Sandbox) {
    let refused = |parameters: Value, words: &[&str]| {
        let answer = post(sandbox, "/v2/models/any/infer", &request_of(&["a"], &parameters));
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(words.iter().all(|word| answer.text().contains(word)), "{words:?}: {}", answer.text());
    };
    let task = |name: &str, labels: &[&str]| json!([{"task": name, "labels": labels}]).to_string();
    refused(json!({"classifications": "safe, unsafe"}), &["parameter 'classifications': is not a JSON array of tasks"]);
    refused(json!({"classifications": task("t", &["a", "b [L] c"])}), &["'classifications': a label holds '[L]'"]);
    refused(json!({"classifications": task("t [E]", &["a"])}), &["'classifications': a label holds '[E]'"]);
    refused(json!({"classifications": task("t", &["a"]), "candidate_labels": "a"}), &["are both given, expected one"]);
    refused(json!({"candidate_labels": "a", "hypothesis_template": "It is {}."}), &["write the name of the task"]);
    refused(json!({"candidate_labels": "a, a"}), &["has label 'a', expected labels that are not empty, each once"]);
    refused(json!({}), &["parameter 'labels' is missing"]);
}

/// Whether records are those of the library: everything but scores is equal, and these are close.
fn assert_same_records(found: &Value, expected: &Value, text: &str) {
    match (found, expected) {
        (Value::Object(one), Value::Object(other)) => {
            assert_eq!(
                one.keys().collect::<Vec<_>>(),
                other.keys().collect::<Vec<_>>(),
                "{text:?}: {found} {expected}"
            );
            one.iter().for_each(|(name, value)| assert_same_records(value, &other[name], text));
        }
        (Value::Array(one), Value::Array(other)) => {
            assert_eq!(one.len(), other.len(), "{text:?}: {found} {expected}");
            one.iter().zip(other).for_each(|(one, other)| assert_same_records(one, other, text));
        }
        (Value::Number(one), Value::Number(other)) => {
            let number = |value: &serde_json::Number| value.as_f64().expect("a number");
            assert!((number(one) - number(other)).abs() < 1e-5, "{text:?}: {found} {expected}");
        }
        _ => assert_eq!(found, expected, "{text:?}"),
    }
}

fn records_of_gliner2_are_those_of_its_library(mode: Mode) {
    const ASKED: [&str; 4] = ["structures", "relations", "labels", "classifications"];
    let (sandbox, _) = served(mode, "gliner2");
    let cases =
        fs::read_to_string(workspace().join("tests/models/gliner2/records.json")).expect("the expected records");
    let cases: Vec<Value> = serde_json::from_str(&cases).expect("JSON");
    let is_alike = |one: &Value, other: &Value| ASKED.iter().all(|name| one[name] == other[name]);
    let mut of_two = 0;
    for alike in cases.chunk_by(is_alike) {
        let texts: Vec<&str> = alike.iter().map(|case| case["text"].as_str().expect("a text")).collect();
        let mut parameters = json!({"threshold": alike[0]["threshold"]});
        for name in ASKED.iter().filter(|name| !alike[0][**name].is_null()) {
            parameters[name] = alike[0][name].to_string().into();
        }
        let together = answered(&sandbox, &request_of(&texts, &parameters));
        let alone = answered(&sandbox, &request_of(&texts[..1], &parameters));
        assert_same_records(&rows_of(&alone, "records")[0], &alike[0]["records"], texts[0]);
        let (rows, asks_more) = (rows_of(&together, "records"), alike[0]["labels"].is_array());
        assert_eq!(together["outputs"].as_array().map(Vec::len), Some(if asks_more { 3 } else { 1 }), "{together}");
        for (at, case) in alike.iter().enumerate() {
            assert_same_records(&rows[at], &case["records"], texts[at]);
            of_two += usize::from(case["records"].to_string().matches("\"start\"").count() > 1);
            if asks_more {
                let found = rows_of(&together, "entities")[at].as_array().expect("a list").clone();
                assert_alike(&found, &entities_of(case), 0, texts[at]);
                assert_same_choice(&rows_of(&together, "classes")[at], &case["classes"], texts[at]);
            }
        }
    }
    assert!(cases.len() > 15 && of_two > 10, "texts have records: {of_two} of {}", cases.len());
    records_of_a_long_text_are_those_of_its_windows(&sandbox);
    records_that_cannot_be_asked_for_are_refused(&sandbox);
}

/// Each record is there once, with its characters in the whole text.
fn records_of_a_long_text_are_those_of_its_windows(sandbox: &Sandbox) {
    let long = (0..400).map(|day| format!("On day {day} the crew is on the ship.")).collect::<Vec<_>>().join(" ");
    let parameters = json!({"structures": r#"{"s": {"fields": [{"name": "a"}, {"name": "b"}]}}"#, "threshold": 0.3});
    let answer = answered(sandbox, &request_of(&[&long, "The crew is on the ship."], &parameters));
    let rows = rows_of(&answer, "records");
    let records = rows[0]["structures"]["s"].as_array().expect("a list");
    let ends: Vec<u64> = records
        .iter()
        .flat_map(|record| record.as_object().expect("fields").values())
        .flat_map(|values| values.as_array().expect("a list"))
        .inspect(|value| {
            let at = |place: &str| value[place].as_u64().expect("a number") as usize;
            assert_eq!(value["word"], &long[at("start")..at("end")]);
        })
        .map(|value| value["end"].as_u64().expect("a number"))
        .collect();
    assert!(
        records.len() > 1 && ends.iter().any(|&end| end > 10_000),
        "{} records, {:?}",
        records.len(),
        ends.iter().max()
    );
    assert!(rows[1]["structures"]["s"].is_array());
}

/// An export of a revision that knew entities and classes alone.
fn a_graph_without_records_says_how_to_get_them(mode: Mode) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("encoder_config")).expect("a folder");
    let from = workspace().join("tests/models/gliner2");
    for name in ["config.json", "encoder_config/config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(from.join(name), folder.path().join(name)).expect("a copy");
    }
    let mut graph = fs::read(from.join("model.onnx")).expect("the graph");
    let name = b"record_logits";
    for at in 0..=graph.len() - name.len() {
        if graph[at..].starts_with(name) {
            graph[at..at + name.len()].copy_from_slice(b"others_logits");
        }
    }
    fs::write(folder.path().join("model.onnx"), graph).expect("the graph");
    let sandbox = serving(mode, folder.path());
    let asked = |parameters: Value| post(&sandbox, "/v2/models/any/infer", &request_of(&["a ship"], &parameters));
    let refused = asked(json!({"relations": r#"["sails_on"]"#}));
    assert_eq!(refused.status, 501, "{}", refused.text());
    let words = ["'relations' asks for records", "'record_logits'", "trireme export"];
    assert!(words.iter().all(|word| refused.text().contains(word)), "{}", refused.text());
    let classes = asked(json!({"classifications": r#"[{"task": "t", "labels": ["a", "b"]}]"#, "labels": "ship"}));
    assert_eq!(classes.status, 200, "{}", classes.text());
}

/// The windows of a text are rows of one request, which has several runs. Its answer is that of one run.
fn a_long_text_takes_the_memory_of_a_few_rows(mode: Mode) {
    const MOST: u64 = 1 << 30;
    let (folder, models) = (workspace().join("tests/models/gliner2"), tempfile::tempdir().expect("a folder"));
    for (name, budget) in [("any", None), ("rows", Some("1")), ("whole", Some("1000000"))] {
        let mut init = product("trireme");
        init.arg("init").arg(format!("{name}={}", folder.display())).arg(models.path());
        assert!(init.output().expect("the command runs").status.success());
        let config = models.path().join(format!("{name}_model/config.pbtxt"));
        let text = fs::read_to_string(&config).expect("the model has a configuration");
        let derived = r#"key: "token_budget" value { string_value: "1024" }"#;
        assert!(text.contains(derived), "{text}");
        let changed = budget.map_or(text.clone(), |budget| text.replace(derived, &derived.replace("1024", budget)));
        fs::write(config, changed).expect("the configuration is written");
    }
    let sandbox = Setup::new(mode).repository(models.path()).start();
    let day = |day| format!("On day {day} the crew is on the ship.");
    let parameters = json!({
        "labels": "person, ship", "threshold": 0.3, "relations": r#"["sails_on"]"#,
        "classifications": r#"[{"task": "sea", "labels": ["calm", "storm"], "multi_label": true}]"#,
    });
    let ask = |model: &str, texts: &[&str]| {
        let answer = post(&sandbox, &format!("/v2/models/{model}/infer"), &request_of(texts, &parameters));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    };

    let long = (0..2000).map(day).collect::<Vec<_>>().join(" ");
    let entities = &rows_of(&ask("any", &[&long]), "entities")[0];
    assert!(entities[entities.as_array().expect("a list").len() - 1]["start"].as_u64() > Some(70_000), "{entities}");
    let peak = sandbox.processes().map(Process::most_resident_bytes).max();
    assert!(peak < Some(MOST), "{peak:?} bytes; in one run 40 rows of 2048 tokens take more than 5 GB");

    others_run_between_the_windows(&|texts| ask("any", texts), &long);

    // Windows beside a text of a few words, and one without any.
    let texts = [&(0..300).map(day).collect::<Vec<_>>().join(" "), "Ada sails.", ""];
    let whole = ask("whole", &texts);
    for name in ["any", "rows"] {
        let found = ask(name, &texts);
        for output in ["entities", "classes", "records"] {
            for (text, (one, other)) in texts.iter().zip(rows_of(&found, output).iter().zip(&rows_of(&whole, output))) {
                assert_same_records(one, other, text);
            }
        }
    }
}

/// More long texts than the model has instances stop no other request: it is answered while all of them run.
fn others_run_between_the_windows(ask: &(dyn Fn(&[&str]) -> Value + Sync), long: &str) {
    const LONG: usize = 4;
    let answered = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for _ in 0..LONG {
            threads.spawn(|| {
                ask(&[long]);
                answered.fetch_add(1, Ordering::SeqCst);
            });
        }
        // Each of them runs for seconds from its first run on.
        std::thread::sleep(Duration::from_millis(500));
        for _ in 0..3 {
            ask(&["Ada sails."]);
        }
        assert_eq!(answered.load(Ordering::SeqCst), 0, "a short request waited for a long one");
    });
}

fn records_that_cannot_be_asked_for_are_refused(sandbox: &Sandbox) {
    let refused = |parameters: Value, words: &[&str]| {
        let answer = post(sandbox, "/v2/models/any/infer", &request_of(&["a"], &parameters));
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(words.iter().all(|word| answer.text().contains(word)), "{words:?}: {}", answer.text());
    };
    let of = |field: Value| json!({"structures": json!({"s": {"fields": [field]}}).to_string()});
    refused(json!({"structures": "s"}), &["parameter 'structures': is not a JSON object of structures"]);
    refused(json!({"relations": "works_for"}), &["parameter 'relations': is not a JSON array of relations"]);
    refused(of(json!({"name": "a [R] b"})), &["'structures': a label holds '[R]'"]);
    refused(of(json!({"name": "a", "choices": ["[P]"]})), &["'structures': a label holds '[P]'"]);
    refused(of(json!({"name": "a", "dtype": "int"})), &["unknown variant `int`"]);
    refused(json!({"relations": r#"{"r [C]": null}"#}), &["'relations': a label holds '[C]'"]);
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
    let classes = post(&sandbox, "/tei/any", &json!({"inputs": "a", "parameters": {"candidate_labels": ["a", "b"]}}));
    assert!(classes.status >= 400 && classes.text().contains("'zero_shot'"), "{}", classes.text());
    let tasks = json!({"classifications": json!([{"task": "t", "labels": ["a", "b"]}]).to_string()});
    let structures = json!({"structures": r#"{"s": {"fields": [{"name": "a"}]}}"#, "labels": "person"});
    for other in [tasks, structures, json!({"relations": r#"["works_for"]"#})] {
        let refused = post(&sandbox, "/v2/models/any/infer", &request_of(&["a"], &other));
        assert!(refused.status >= 400 && refused.text().contains("finds entities alone"), "{}", refused.text());
    }
    let missing = post(&sandbox, "/tei/any", &json!({"inputs": "a"}));
    assert_eq!(missing.status, 422, "{}", missing.text());
    assert!(missing.text().contains("parameter 'labels' is missing"), "{}", missing.text());

    // A text of several windows: each word belongs to one window, and no entity is found twice.
    let long = ["The crew is on the ship, and the sea is calm."; 30].join(" ");
    let rows = infer(&sandbox, &[&long], &json!({"labels": "person, place", "threshold": 0.3}));
    let ends: Vec<(f64, f64)> = rows[0].iter().map(|entity| (number(entity, "start"), number(entity, "end"))).collect();
    assert!(ends.last().is_some_and(|last| last.0 > 1000.0), "entities are found at the end: {ends:?}");
    assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "entities lie side by side: {ends:?}");
    let cut = infer(&sandbox, &[&long], &json!({"labels": "person, place", "threshold": 0.3, "windows": false}));
    assert!(cut[0].len() < rows[0].len(), "one row has the beginning alone");
    let endless = long.repeat(10);
    let refused = post(&sandbox, "/v2/models/any/infer", &request_of(&[&endless], &json!({"labels": "person"})));
    let words = "windows or more of at most 24 words and 502 tokens, expected at most 128";
    assert!(refused.status == 400 && refused.text().contains(words), "{}", refused.text());
    let characters: Vec<char> = long.chars().collect();
    for entity in &rows[0] {
        let (start, end) = (number(entity, "start") as usize, number(entity, "end") as usize);
        assert_eq!(entity["word"], characters[start..end].iter().collect::<String>().as_str());
    }
}
