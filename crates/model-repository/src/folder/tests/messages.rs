//! Folders whose texts become messages of a chat, and those whose model judges pairs by the logits of two tokens.

use super::*;
use crate::Task;

const CHATML: &[u8] = b"{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}";

fn mean() -> (&'static str, Value) {
    ("1_Pooling/config.json", json!({"pooling_mode": "mean", "embedding_dimension": 8}))
}

fn with_own(own: Value) -> TempDir {
    let folder = encoder(&[TRANSFORMER, POOLING], &[mean(), ("sentence_bert_config.json", own)]);
    write(folder.path(), "chat_template.jinja", CHATML);
    folder
}

fn parameters(folder: &TempDir) -> std::collections::BTreeMap<String, String> {
    configs(folder).remove(1).parameters
}

fn tokenizer_files(folder: &TempDir) -> Vec<String> {
    let description = FolderDescription::read(folder.path(), Precision::Exact).unwrap();
    description.models("m", 1).remove(1).files.into_keys().collect()
}

#[test]
fn a_template_is_applied_where_the_library_applies_it() {
    let message = with_own(json!({
        "modality_config": {"text": {}, "message": {"format": "structured"}},
        "processing_kwargs": {"chat_template": {"add_generation_prompt": true, "max_length": null}}
    }));
    let found = parameters(&message);
    assert_eq!(found["message_format"], "structured");
    assert_eq!(found["chat_template_kwargs"], r#"{"add_generation_prompt":true}"#);
    assert!(tokenizer_files(&message).contains(&"chat_template.jinja".to_owned()));
    // An older file knows no messages, so that a template beside it is for requests with conversations alone.
    let older = with_own(json!({"max_seq_length": 32}));
    assert!(!parameters(&older).contains_key("message_format"));
    assert!(tokenizer_files(&older).contains(&"chat_template.jinja".to_owned()));
    // Without modules.json the library takes any template; a classifier's pipeline takes none.
    let pairs = classifier("Qwen3ForSequenceClassification", json!({"id2label": {"0": "LABEL_0"}}), 1);
    write(pairs.path(), "chat_template.jinja", CHATML);
    assert_eq!(parameters(&pairs)["message_format"], "flat");
    let two = classifier("Qwen3ForSequenceClassification", json!({"id2label": {"0": "a", "1": "b"}}), 2);
    write(two.path(), "chat_template.jinja", CHATML);
    assert!(!parameters(&two).contains_key("message_format"));
}

#[test]
fn the_form_of_contents_is_told_by_the_template() {
    let format = |files: &[(&str, &[u8])]| {
        let folder = with_own(json!({"modality_config": {"message": {"format": "auto"}}}));
        for (name, content) in files {
            write(folder.path(), name, content);
        }
        parameters(&folder)["message_format"].clone()
    };
    assert_eq!(format(&[]), "flat");
    assert_eq!(format(&[("chat_template.jinja", b"{{ messages[0]['content'][0]['text'] }}")]), "flat");
    assert_eq!(format(&[("chat_template.jinja", b"{% if item['type'] == 'text' %}{% endif %}")]), "structured");
    assert_eq!(format(&[("chat_template.jinja", b"{{ m.content[0].text }}")]), "structured");
    let flat = br#"{"model_type": "gpt_oss", "hidden_size": 8, "vocab_size": 10, "max_position_embeddings": 64}"#;
    assert_eq!(format(&[("chat_template.jinja", b"{{ m.content[0].text }}"), ("config.json", flat)]), "flat");
}

#[test]
fn a_template_that_cannot_be_applied_is_a_fault_or_passed_over_by_choice() {
    let message = json!({"modality_config": {"message": {"format": "flat"}}});
    let folder = with_own(message.clone());
    fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    let found = faults(&folder);
    assert!(
        found.len() == 1 && found[0].contains("modality_config.message is given, but the folder has no chat template"),
        "{found:?}"
    );
    let several = br#"{"pad_token": "[PAD]", "chat_template": [{"name": "tool_use", "template": "x"}]}"#;
    write(folder.path(), "tokenizer_config.json", several);
    assert!(faults(&folder)[0].contains("none of the name default"));
    let mut choices = FolderChoices::default();
    choices.add("accept", &["chat-template".to_owned()]).unwrap();
    let plain = FolderDescription::read(with_own(message).path(), choices.of("m")).unwrap();
    assert!(plain.warnings().iter().any(|warning| warning.contains("is not applied")), "{:?}", plain.warnings());
    let kwargs = json!({"modality_config": {"message": {"format": "flat"}},
        "processing_kwargs": {"chat_template": {"truncation": false, "restore_suffix": false}}});
    let found = faults(&with_own(kwargs)).join("; ");
    assert!(
        found.contains("chat_template.truncation is false") && found.contains("chat_template.restore_suffix is false"),
        "{found}"
    );
}

const LOGIT_SCORE: (&str, &str) =
    ("sentence_transformers.cross_encoder.modules.logit_score.LogitScore", "1_LogitScore");

/// A causal language model with logits of these dims.
fn causal(modules: &[(&str, &str)], inputs: &[(&str, &[i64])], files: &[(&str, Value)]) -> TempDir {
    let folder = encoder(modules, files);
    let config =
        json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 8, "vocab_size": 10});
    write(folder.path(), "config.json", config.to_string().as_bytes());
    write(folder.path(), "onnx/model.onnx", &onnx(inputs, &[("logits", &[-1, -1, 10])]));
    if modules.is_empty() {
        fs::remove_file(folder.path().join("modules.json")).unwrap();
    }
    folder
}

#[test]
fn the_logits_of_two_tokens_are_a_score() {
    let score = json!({"true_token_id": 7, "false_token_id": 2, "module_input_name": "causal_logits"});
    let folder = causal(&[TRANSFORMER, LOGIT_SCORE], &IDS, &[("1_LogitScore/config.json", score)]);
    let models = configs(&folder);
    assert_eq!(models[0].parameters["task"], "rerank");
    assert_eq!(own_ops(&models[3]), "logit_score:7-2, sigmoid");
    assert_eq!(output(&models[3], "scores"), [-1, 1]);
    assert!(models[3].inputs.iter().any(|input| input.name == "attention_mask"));
    // Beside the model's worker, so that no vocabulary crosses the broker.
    assert!(!models[3].parameters.contains_key("beside_model"));
    let one = json!({"true_token_id": 7, "false_token_id": null});
    let folder = causal(&[TRANSFORMER, LOGIT_SCORE], &IDS, &[("1_LogitScore/config.json", one)]);
    assert_eq!(own_ops(&configs(&folder)[3]), "logit_score:7, sigmoid");
    let none = causal(&[TRANSFORMER, LOGIT_SCORE], &IDS, &[("1_LogitScore/config.json", json!({}))]);
    assert!(faults(&none)[0].contains("true_token_id is missing"), "{:?}", faults(&none));
}

#[test]
fn a_graph_that_gives_the_last_logits_alone_has_its_rows_filled_up_on_the_left() {
    let score = ("1_LogitScore/config.json", json!({"true_token_id": 7, "false_token_id": 2}));
    let inputs = [IDS[0], IDS[1], ("num_logits_to_keep", &[][..])];
    let models = configs(&causal(&[TRANSFORMER, LOGIT_SCORE], &inputs, &[score]));
    assert_eq!(models[1].parameters["padding_side"], "left");
    assert_eq!(output(&models[2], "logits"), [-1, 1, 10]);
}

#[test]
fn a_causal_language_model_without_modules_judges_by_yes_and_no() {
    let words = ("tokenizer.json", json!({"model": {"vocab": {"[PAD]": 3, "yes": 5, "no": 6}}, "added_tokens": []}));
    let told = ("config_sentence_transformers.json", json!({"model_type": "CrossEncoder"}));
    let folder = causal(&[], &IDS, &[words.clone(), told]);
    assert_eq!(own_ops(&configs(&folder)[3]), "logit_score:5-6, sigmoid");
    let folder = causal(&[], &IDS, &[words]);
    let mut choices = FolderChoices::default();
    choices.add("task", &["rerank".to_owned()]).unwrap();
    let described = FolderDescription::read(folder.path(), choices.of("m")).unwrap();
    assert_eq!(described.tasks(), [Task::Rerank]);
    let told = ("config_sentence_transformers.json", json!({"model_type": "CrossEncoder"}));
    let without = causal(&[], &IDS, &[told]);
    assert!(faults(&without)[0].contains("the vocabulary lacks the token yes or no"), "{:?}", faults(&without));
}

#[test]
fn a_missing_graph_of_such_a_model_is_one_of_logits_over_the_vocabulary() {
    let score = ("1_LogitScore/config.json", json!({"true_token_id": 7, "false_token_id": 2}));
    let told = ("config_sentence_transformers.json", json!({"model_type": "CrossEncoder"}));
    for folder in [causal(&[TRANSFORMER, LOGIT_SCORE], &IDS, &[score]), causal(&[], &IDS, &[told])] {
        fs::remove_dir_all(folder.path().join("onnx")).unwrap();
        write(folder.path(), "model.safetensors", b"");
        assert_eq!(Export::of(folder.path(), &Choices::default()).unwrap().export_task, "text-generation");
        let found = faults(&folder).join("; ");
        assert!(found.contains("--task text-generation "), "{found}");
    }
}

#[test]
fn files_of_the_folder_are_linked_and_keep_one_name() {
    use std::os::unix::fs::MetadataExt;
    let folder = encoder(&[TRANSFORMER, POOLING], &[mean()]);
    let description = FolderDescription::read(folder.path(), Precision::Exact).unwrap();
    let models = description.models("m", 1);
    let graph = folder.path().join("onnx/model.onnx");
    for (placement, is_link) in [(Placement::Link, true), (Placement::Copy, false)] {
        let repository = tempfile::tempdir().unwrap();
        place(&models, folder.path(), repository.path(), 1, placement).unwrap();
        let placed = repository.path().join("m_model/1/model.onnx");
        assert_eq!(fs::symlink_metadata(&placed).unwrap().is_symlink(), is_link);
        assert_eq!(fs::read(&placed).unwrap(), fs::read(&graph).unwrap());
        // Python's onnx opens no weights that have a second name.
        assert_eq!(fs::metadata(&graph).unwrap().nlink(), 1);
    }
}

#[test]
fn a_model_answers_to_further_names() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[mean()]);
    let mut choices = FolderChoices::default();
    choices.add("served-name", &["m:BAAI/bge-m3".to_owned(), "other".to_owned()]).unwrap();
    let description = FolderDescription::read(folder.path(), choices.of("m")).unwrap();
    let ensemble = description.models("m", 1).remove(0);
    let parsed = ModelConfig::parse(&ensemble.config, "m").unwrap();
    assert_eq!(parsed.parameters["served_names"], "other, BAAI/bge-m3");
    assert!(description.table().iter().any(|row| row.what == "served_names"));
}
