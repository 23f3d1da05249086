use std::fs;

use crate::Repository;

/// A tokenizer with this configuration and these files of version 1.
fn space(name: &str, config: &str, files: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let version = folder.path().join(name).join("1");
    fs::create_dir_all(&version).unwrap();
    let io = r#"input [ { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] } ] output [ { name: "input_ids" data_type: TYPE_INT64 dims: [ -1, -1 ] } ]"#;
    let config = format!("backend: \"tokenizer\" max_batch_size: 0 {io} {config}");
    fs::write(folder.path().join(name).join("config.pbtxt"), config).unwrap();
    files.iter().for_each(|(file, text)| fs::write(version.join(file), text).unwrap());
    let repository = Repository::open(&[folder.path().to_owned()]).unwrap();
    repository.models().find(|model| model.name == name).unwrap().space(1).unwrap()
}

#[test]
fn what_changes_no_row_changes_no_space() {
    const LENGTH: &str = r#"parameters { key: "max_length" value { string_value: "512" } }"#;
    let files =
        [("tokenizer.json", r#"{"model":{"vocab":{"a":0,"b":1}}}"#), ("config.json", r#"{"_name_or_path":"x","h":1}"#)];
    let first = space("one", LENGTH, &files);
    assert_eq!(first.len(), 32);
    let again = [
        ("tokenizer.json", "{\n \"model\": {\"vocab\": {\"b\": 1, \"a\": 0}}}"),
        ("config.json", r#"{"h": 1, "_name_or_path": "/home/y", "transformers_version": "5"}"#),
    ];
    let other_config =
        format!("{LENGTH} instance_group [ {{ count: 4 kind: KIND_CPU }} ] version_policy {{ all {{ }} }}");
    assert_eq!(space("two", &other_config, &again), first);

    let shorter = LENGTH.replace("512", "128");
    assert_ne!(space("one", &shorter, &files), first, "another length");
    let prompt = format!(r#"{LENGTH} parameters {{ key: "prefix" value {{ string_value: "q: " }} }}"#);
    assert_ne!(space("one", &prompt, &files), first, "a prompt");
    let swapped = [("tokenizer.json", r#"{"model":{"vocab":{"a":1,"b":0}}}"#), files[1]];
    assert_ne!(space("one", LENGTH, &swapped), first, "other tokens");
}
