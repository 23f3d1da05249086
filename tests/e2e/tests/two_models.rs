//! `trireme verify A B`: changes of models in the field, and the findings of the space and of the comparison.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use trireme_e2e::{Mode, Process, Request, Response, Sandbox, Setup, golden, in_one_mode, product, wait_until};

use crate::folders::{external, tiny, write};

in_one_mode!(a_recorded_equivalence_is_told_and_counts);

/// The verdict on a changed model: whether it has the plain model's space, and whether its vectors may be compared with the plain model's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Said {
    /// Nothing that decides a row has changed.
    Same,
    /// The spaces are two, and the vectors are alike.
    Alike,
    /// Stored vectors have to be made again.
    Other,
}

fn change(folder: &TempDir, name: &str, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(folder.path().join(name)).expect("it is there")).expect("JSON");
    change(&mut value);
    write(folder, name, &value);
}

/// The same weights with the ten bits of half precision, exported beside the graph.
fn rounded(folder: &TempDir) {
    let other = external("one");
    for name in ["model.onnx", "model.onnx_data"] {
        let mut bytes = fs::read(other.path().join("onnx").join(name)).expect("it is there");
        if name == "model.onnx_data" {
            let (numbers, _) = bytes.as_chunks_mut::<4>();
            numbers.iter_mut().for_each(|number| *number = (u32::from_le_bytes(*number) & !0x1fff).to_le_bytes());
        }
        fs::write(folder.path().join("onnx").join(name), bytes).expect("it can be written");
    }
}

/// The same model whose weights and operations are in FP16 (`tests/models/external.py`).
fn half_precision(folder: &TempDir) {
    let half = external("half");
    fs::copy(half.path().join("onnx/model.onnx"), folder.path().join("onnx/model.onnx")).expect("it can be written");
}

/// Another export: nodes and tensors have other names.
fn renamed(folder: &TempDir) {
    let path = folder.path().join("onnx/model.onnx");
    let mut graph = fs::read(&path).expect("it is there");
    for (name, other) in [(b"context", b"kontext"), (b"tokens\x22", b"outset\x22")] {
        let places: Vec<usize> = (0..graph.len() - name.len()).filter(|&at| graph[at..].starts_with(name)).collect();
        assert!(!places.is_empty(), "the graph has no such name");
        places.into_iter().for_each(|at| graph[at..at + name.len()].copy_from_slice(other));
    }
    // The rest of the uses of the second name, which no quotation mark follows.
    let uses: Vec<usize> = (0..graph.len() - 6).filter(|&at| graph[at..].starts_with(b"tokens")).collect();
    uses.into_iter().for_each(|at| graph[at..at + 6].copy_from_slice(b"outset"));
    fs::write(path, graph).expect("it can be written");
}

/// A change of a copy of the model folder.
type Change = fn(&TempDir);

const CASES: [(&str, Said, Change); 7] = [
    ("the same weights with other names of nodes", Said::Same, renamed),
    ("weights that were rounded to half precision", Said::Alike, rounded),
    ("a graph of half precision", Said::Alike, half_precision),
    ("a prompt", Said::Other, |folder| {
        let prompts = json!({"prompts": {"query": "q: "}, "default_prompt_name": "query"});
        write(folder, "config_sentence_transformers.json", &prompts);
    }),
    ("another length", Said::Other, |folder| {
        write(folder, "sentence_bert_config.json", &json!({"max_seq_length": 8, "do_lower_case": false}));
    }),
    ("a tokenizer that was written again", Said::Same, |folder| {
        let path = folder.path().join("tokenizer.json");
        let value: Value = serde_json::from_slice(&fs::read(&path).expect("it is there")).expect("JSON");
        fs::write(path, serde_json::to_string_pretty(&value).expect("JSON")).expect("it can be written");
    }),
    ("another origin", Said::Same, |folder| {
        change(folder, "config.json", |config| config["_name_or_path"] = json!("elsewhere"));
    }),
];

/// The exit code and the standard output of a comparison.
fn verify(one: &Path, other: &Path, flags: &[&str]) -> (Option<i32>, String) {
    let mut command = product("trireme");
    command.arg("verify").args([one, other]).args(flags);
    let found = command.output().expect("the command runs");
    let said = String::from_utf8_lossy(&found.stdout).into_owned();
    assert_ne!(found.status.code(), Some(2), "{said}{}", String::from_utf8_lossy(&found.stderr));
    (found.status.code(), said)
}

#[test]
fn what_happened_to_a_model_is_told_by_its_space_and_by_the_comparison() {
    let plain = tiny();
    let mut faults = Vec::new();
    for (what, expected, change) in CASES {
        let changed = tiny();
        change(&changed);
        let (code, said) = verify(plain.path(), changed.path(), &["--json"]);
        let told: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{what}: {error}: {said}"));
        let figures = &told["tasks"]["embed"];
        let found = match (told["one_space"] == true, told["alike"] == true) {
            (true, true) => Said::Same,
            (false, true) => Said::Alike,
            (_, false) => Said::Other,
        };
        if found != expected || code != Some(i32::from(found == Said::Other)) {
            faults.push(format!("{what}: expected {expected:?}, found {found:?} (exit code {code:?}): {told}"));
        }
        // Every kind of text is there, with figures of its own.
        for kind in ["short", "long", "other_scripts", "code", "empty"] {
            assert!(figures["kinds"][kind]["lowest"].is_f64(), "{what}: {kind}: {figures}");
        }
        assert!(figures["all"]["overlap"].as_f64().is_some_and(|share| (0.0..=1.0).contains(&share)), "{figures}");
        if found == Said::Same {
            assert_eq!(figures["all"]["overlap"], 1.0, "{what}");
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn people_read_a_table_and_what_to_do_and_bring_their_own_texts() {
    let (plain, half) = (tiny(), tiny());
    half_precision(&half);
    let texts = plain.path().join("texts.txt");
    fs::write(&texts, golden().into_iter().map(|golden| golden.text + "\n").collect::<String>()).expect("a file");
    let texts = texts.display().to_string();
    let (code, said) = verify(plain.path(), half.path(), &["--texts", &texts]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("may be compared with") && said.contains("clients that take both send 'If-Space: "),
        "{said}"
    );
    let (code, said) = verify(plain.path(), half.path(), &["--texts", &texts, "--min-cosine", "1"]);
    assert!(code == Some(1) && said.contains("may not be compared with"), "{said}");
    let mut wrong = product("trireme");
    let wrong = wrong.arg("verify").arg(plain.path()).arg("http://127.0.0.1:1").output().expect("the command runs");
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(wrong.status.code() == Some(2) && said.contains("expected URL/NAME"), "{said}");
}

/// The name of a record, and a space that nothing has.
const RECORD: &str = "equivalent_spaces.json";
const NOBODYS: &str = "000000000000.000000000000.000000000000";

fn serve(mode: Mode, folder: &Path) -> Sandbox {
    let model = format!("boats={}", folder.display());
    let words = ["--model", &model];
    let setup = Setup::new(mode).worker_arguments(&words);
    if setup.is_services() { setup.gateway_arguments(&words).start() } else { setup.start() }
}

fn request() -> Request {
    let body = json!({"model": "boats", "input": "a boat"}).to_string();
    Request::post("/v1/embeddings", body).header("Content-Type", "application/json")
}

/// An answer of a space that is asked for.
fn ask(sandbox: &Sandbox, space: &str) -> Response {
    sandbox.send(&request().header("If-Space", space))
}

/// Warnings about the record in the logs of all processes.
fn warnings(sandbox: &Sandbox) -> Vec<String> {
    let of =
        |process: &Process| process.log().lines().filter(|line| line.contains(RECORD)).map(str::to_owned).collect();
    sandbox.processes().flat_map::<Vec<String>, _>(of).collect()
}

fn a_recorded_equivalence_is_told_and_counts(mode: Mode) {
    let (plain, half) = (tiny(), tiny());
    half_precision(&half);
    let (code, said) = verify(plain.path(), half.path(), &["--json", "--record", "--min-cosine", "1"]);
    assert!(code == Some(1) && !half.path().join(RECORD).exists(), "nothing is recorded below the bar: {said}");
    let told: Value = serde_json::from_str(&said).expect("JSON");
    let [space, own] =
        [&told["spaces"][0], &told["spaces"][1]].map(|space| space.as_str().expect("a space").to_owned());

    let sandbox = serve(mode, half.path());
    let answer = ask(&sandbox, &space);
    assert_eq!((answer.status, answer.header("trireme-equivalent-spaces")), (412, None), "{}", answer.text());
    let created = sandbox.get("/v1/models/boats").json()["created"].clone();
    drop(sandbox);

    let (code, said) = verify(plain.path(), half.path(), &["--record"]);
    assert!(code == Some(0) && said.contains(RECORD), "{said}");
    let record: Value = serde_json::from_slice(&fs::read(half.path().join(RECORD)).expect("a record")).expect("JSON");
    let measured = &record["measured"][0];
    assert_eq!((&measured["space"], &measured["to"], &measured["task"]), (&json!(own), &json!(space), &json!("embed")));
    assert!(measured["figures"]["all"]["lowest"].as_f64().is_some_and(|lowest| lowest >= 0.9999), "{record}");

    let sandbox = serve(mode, half.path());
    for right in [&space, &own] {
        let answer = ask(&sandbox, right);
        assert_eq!((answer.status, answer.header("trireme-space")), (200, Some(own.as_str())), "{}", answer.text());
        assert_eq!(answer.header("trireme-equivalent-spaces"), Some(space.as_str()));
    }
    assert_eq!(ask(&sandbox, NOBODYS).status, 412);
    let listed = sandbox.get("/v1/models/boats").json();
    assert_eq!((&listed["space"], &listed["equivalent_spaces"]), (&json!(own), &json!([space])));
    assert_eq!(listed["created"], created, "the record is no file of the model");
    let metadata = sandbox.get("/v2/models/boats").json();
    assert_eq!(metadata["properties"], json!({"space": own, "equivalent_spaces": space}));
    let status = sandbox.get("/v2/trireme/status").json();
    let models = status["models"].as_array().expect("models");
    let boats = models.iter().find(|model| model["name"] == "boats").expect("the model");
    assert_eq!(boats["equivalent_spaces"], json!([space]));
    assert_eq!(warnings(&sandbox), [""; 0]);
    drop(sandbox);

    // The record of one graph in the folder of another, with an equivalence that was never measured.
    let mut planted = record.clone();
    planted["measured"][0]["to"] = json!(NOBODYS);
    write(&plain, RECORD, &planted);
    let sandbox = serve(mode, plain.path());
    let answer = ask(&sandbox, NOBODYS);
    assert_eq!(answer.status, 412, "{}", answer.text());
    assert_eq!(ask(&sandbox, &space).header("trireme-equivalent-spaces"), None);
    let warned = warnings(&sandbox);
    assert!(warned.len() == 1 && warned[0].contains("WARN") && warned[0].contains("measure again"), "{warned:?}");
    drop(sandbox);

    fs::write(plain.path().join(RECORD), "{").expect("a file");
    let broken = product("trireme").arg("validate").arg(plain.path()).output().expect("the command runs");
    let said = [broken.stdout, broken.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(!broken.status.success() && said.contains(RECORD) && said.contains("remove the file"), "{said}");
}

/// The folder becomes its next version beside the record that it gets.
#[test]
fn a_record_counts_for_the_next_version_of_a_folder_that_is_followed() {
    let (plain, half, followed) = (tiny(), tiny(), tiny());
    half_precision(&half);
    let (code, said) = verify(plain.path(), half.path(), &["--record"]);
    assert_eq!(code, Some(0), "{said}");
    let model = format!("boats={}", followed.path().display());
    let words = ["--model", &model, "--model-control-mode", "poll", "--repository-poll-secs", "1"];
    let sandbox = Setup::new(Mode::AllInOne).worker_arguments(&words).start();
    let space = sandbox.send(&request()).header("trireme-space").expect("a space").to_owned();
    for name in [RECORD, "onnx/model.onnx"] {
        fs::copy(half.path().join(name), followed.path().join(name)).expect("it can be written");
    }
    wait_until("the next version answers", Duration::from_secs(60), || {
        let answer = sandbox.send(&request());
        assert_eq!(answer.status, 200, "{}", answer.text());
        (answer.header("trireme-space") != Some(space.as_str())).then_some(())
    });
    let answer = ask(&sandbox, &space);
    assert_eq!((answer.status, answer.header("trireme-equivalent-spaces")), (200, Some(space.as_str())));
    assert_eq!(warnings(&sandbox), [""; 0]);
}

#[test]
fn a_record_is_only_written_into_a_folder_on_this_machine() {
    let (plain, cache) = (tiny(), tempfile::tempdir().expect("a temporary folder"));
    let kept = cache.path().join("models--org--m/snapshots/1");
    fs::create_dir_all(&kept).expect("folders");
    fs::copy(plain.path().join("config.json"), kept.join("config.json")).expect("a file");
    for (second, words) in [
        ("http://127.0.0.1:1/m".to_owned(), "is a model of a server"),
        ("hf://org/m".to_owned(), "lies elsewhere"),
        (kept.display().to_string(), "the hub's cache"),
    ] {
        let mut command = product("trireme");
        let refused = command.arg("verify").arg(plain.path()).args([&second, "--record"]).output().expect("it runs");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(2) && said.contains(words), "{second}: {said}");
    }
}
