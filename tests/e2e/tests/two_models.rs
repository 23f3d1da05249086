//! `trireme verify A B`: what happened to a model in the field, and what its space and the comparison say to it.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use trireme_e2e::{golden, product};

use crate::folders::{external, tiny, write};

/// What is said of a changed model: whether it has the plain one's space, and whether its vectors may be compared with the plain one's.
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
fn half_precision(folder: &TempDir) {
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

/// What happens to a copy of the model folder.
type Change = fn(&TempDir);

const CASES: [(&str, Said, Change); 6] = [
    ("the same weights with other names of nodes", Said::Same, renamed),
    ("weights of half precision", Said::Alike, half_precision),
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
