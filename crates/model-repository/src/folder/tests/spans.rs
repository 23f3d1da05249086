//! Folders of GLiNER, and those of its kinds that are not served.

use super::*;
use crate::Task;

const FILES: [&str; 4] = ["gliner_config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"];

/// Of a folder of GLiNER2.
const FILES_2: [&str; 5] =
    ["config.json", "encoder_config/config.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"];

/// The folder of the end-to-end tests without these files.
fn without(left_out: &[&str]) -> TempDir {
    copied("spans", &FILES, left_out)
}

fn copied(name: &str, files: &[&str], left_out: &[&str]) -> TempDir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models").join(name);
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("encoder_config")).unwrap();
    for file in files.iter().filter(|file| !left_out.contains(file)) {
        fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    folder
}

/// The folder with another value of a field of a JSON file.
fn with(file: &str, field: &str, value: Value) -> TempDir {
    changed(without(&[]), file, field, value)
}

fn changed(folder: TempDir, file: &str, field: &str, value: Value) -> TempDir {
    let path = folder.path().join(file);
    let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    json[field] = value;
    fs::write(path, json.to_string()).unwrap();
    folder
}

fn configured(field: &str, value: Value) -> TempDir {
    with("gliner_config.json", field, value)
}

/// The folder has one fault, with all of these words.
#[track_caller]
fn refused(folder: &TempDir, words: &[&str]) {
    let found = faults(folder);
    assert!(found.len() == 1 && words.iter().all(|word| found[0].contains(word)), "{words:?}: {found:?}");
}

#[test]
fn a_folder_of_spans_is_a_token_classifier_with_the_librarys_bounds() {
    let folder = without(&[]);
    let description =
        FolderDescription::read(folder.path(), Precision::Exact).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(description.tasks(), [Task::TokenClassify]);
    let spans = description.spans.as_ref().expect("rows of spans");
    assert_eq!((spans.value.max_words, spans.value.max_width), (24, 4));
    let folder = configured("max_width", Value::Null);
    let description =
        FolderDescription::read(folder.path(), Precision::Exact).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(description.spans.as_ref().expect("rows of spans").value.max_width, 12, "the library's default");
}

#[test]
fn other_kinds_of_gliner_are_refused_with_what_to_do_instead() {
    let instead = "a model.py that uses the library gliner";
    for (field, value, what) in [
        ("labels_encoder", json!("bert-base-uncased"), "tells a bi-encoder"),
        ("labels_decoder", json!("gpt2"), "tells a decoder of labels"),
        ("relations_layer", json!("dot"), "tells relations"),
        ("span_mode", json!("token_level"), "span_mode is token_level"),
        ("precomputed_prompts_mode", json!(true), "precomputed_prompts_mode is true"),
        ("words_splitter_type", json!("mecab"), "is mecab, expected whitespace"),
    ] {
        refused(&configured(field, value), &["gliner_config.json", field, what, instead]);
    }
}

#[test]
fn the_label_token_is_the_one_that_the_graph_looks_for() {
    refused(&configured("ent_token", json!("[ENT]")), &["added_tokens has no '[ENT]'", "gliner_config.json"]);
    refused(
        &configured("class_token_index", json!(7)),
        &["class_token_index is 7", "the id 201", "would find no label"],
    );
    // The library's value for "not known".
    let folder = configured("class_token_index", json!(-1));
    assert!(FolderDescription::read(folder.path(), Precision::Exact).is_ok());
}

#[test]
fn what_a_folder_of_spans_lacks_is_named_with_a_command() {
    refused(&without(&["tokenizer.json"]), &["no tokenizer.json", "save_pretrained"]);
    refused(&without(&["model.onnx"]), &["no ONNX file", "trireme export", "pip install gliner onnx"]);
}

#[test]
fn a_graph_of_another_kind_is_refused_by_its_inputs_and_outputs() {
    let folder = without(&["model.onnx"]);
    write(folder.path(), "model.onnx", &onnx(&IDS, &[("logits", &[-1, -1, -1, -1])]));
    refused(&folder, &["model.onnx", "lacks", "words_mask", "span_idx", "trireme export"]);
    let inputs: Vec<(&str, &[i64])> = [("token_type_ids", &[-1, -1][..])].into_iter().chain(IDS).collect();
    write(folder.path(), "model.onnx", &onnx(&inputs, &[("logits", &[-1, -1, -1, -1])]));
    refused(&folder, &["it has token_type_ids"]);
}

#[test]
fn a_folder_of_gliner2_has_rows_with_a_schema_and_entities_by_label() {
    let folder = copied("gliner2", &FILES_2, &[]);
    let description =
        FolderDescription::read(folder.path(), Precision::Exact).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(description.tasks(), [Task::TokenClassify, Task::ZeroShot, Task::Extract]);
    assert_eq!(description.ops[0].value, "spans:by_label");
    let models = description.models("any", 1);
    let config = |name: &str| models.iter().find(|model| model.name == name).map(|model| model.config.as_str());
    let ensemble = config("any").expect("an ensemble");
    let has = |text: &str, words: &[&str]| words.iter().all(|word| text.contains(word));
    assert!(
        has(
            ensemble,
            &[
                "token_classify, zero_shot, extract",
                "zero_shot",
                "schema",
                "any_classes",
                "any_records",
                "max_rows_per_message"
            ]
        ),
        "{ensemble}"
    );
    let classes = config("any_classes").expect("a step of classes");
    assert!(has(classes, &["fold:max, classes", "class_logits", "windows", "scores"]), "{classes}");
    let records = config("any_records").expect("a step of records");
    assert!(has(records, &["record_logits", "word_offsets", "windows", "TEXT"]), "{records}");
    let spans = &description.spans.as_ref().expect("rows of spans").value;
    assert_eq!((spans.form, spans.max_words, spans.max_width), ("gliner2", 512, 4));
    assert_eq!(description.special_tokens.as_ref().map(|flag| flag.value), Some(false));
    assert_eq!(description.tokenizer.max_length.as_ref().map(|length| length.value), Some(2048));
}

#[test]
fn a_graph_of_gliner2_without_an_output_is_served_for_the_other_tasks() {
    for (output, other, tasks, what) in [
        ("class_logits", "other_logits", &[Task::TokenClassify][..], "entities alone are found"),
        ("record_logits", "others_logits", &[Task::TokenClassify, Task::ZeroShot], "relations are not found"),
    ] {
        let folder = copied("gliner2", &FILES_2, &[]);
        let path = folder.path().join("model.onnx");
        let renamed = replaced(&fs::read(&path).unwrap(), output.as_bytes(), other.as_bytes());
        fs::write(&path, renamed).unwrap();
        let description =
            FolderDescription::read(folder.path(), Precision::Exact).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(description.tasks(), tasks, "{output}");
        let warnings = description.warnings();
        let says = |warning: &String| [output, what, "trireme export"].iter().all(|word| warning.contains(word));
        assert!(warnings.len() == 1 && says(&warnings[0]), "{warnings:?}");
    }
}

/// The bytes with others of the same length in the places of some.
fn replaced(bytes: &[u8], of: &[u8], by: &[u8]) -> Vec<u8> {
    assert_eq!(of.len(), by.len());
    let mut replaced = bytes.to_vec();
    let places: Vec<usize> =
        bytes.windows(of.len()).enumerate().filter(|(_, part)| *part == of).map(|(at, _)| at).collect();
    places.iter().for_each(|&at| replaced[at..at + by.len()].copy_from_slice(by));
    replaced
}

#[test]
fn other_kinds_of_gliner2_and_what_a_folder_lacks_are_refused() {
    for (field, value, what) in
        [("architecture", "boundary", "expected span"), ("token_pooling", "mean", "expected first")]
    {
        let folder = changed(copied("gliner2", &FILES_2, &[]), "config.json", field, json!(value));
        refused(&folder, &["config.json", field, value, what, "a model.py that uses the library gliner2"]);
    }
    let pieces = copied("gliner2", &FILES_2, &["tokenizer.json"]);
    let pieces = changed(pieces, "tokenizer_config.json", "tokenizer_class", json!("T5Tokenizer"));
    fs::write(pieces.path().join("spiece.model"), b"").unwrap();
    refused(&pieces, &["no tokenizer.json", "tells the words of tokens", "from gliner2 import GLiNER2"]);
    refused(&copied("gliner2", &FILES_2, &["model.onnx"]), &["no ONNX file", "trireme export", "'gliner2[local]'"]);
    refused(&copied("gliner2", &FILES_2, &["encoder_config/config.json"]), &["encoder_config/config.json"]);
}
