//! Folders whose long texts may be read in windows.

use super::*;

fn choose(value: &str) -> Choices {
    let mut choices = FolderChoices::default();
    choices.add("long-texts", &[value.to_owned()]).unwrap();
    choices.of("m")
}

/// The models of a folder: ensemble, tokenizer, model, postprocess.
#[track_caller]
fn models(folder: &TempDir, choices: impl Into<Choices>) -> Vec<ModelConfig> {
    let description = FolderDescription::read(folder.path(), choices).unwrap_or_else(|error| panic!("{error}"));
    let parse = |model: DerivedModel| ModelConfig::parse(&model.config, &model.name).unwrap();
    description.models("m", 1).into_iter().map(parse).collect()
}

fn embedding(normalizes: bool) -> TempDir {
    let modules = [TRANSFORMER, POOLING, ("sentence_transformers.models.Normalize", "2_Normalize")];
    encoder(&modules[..2 + usize::from(normalizes)], &[("1_Pooling/config.json", json!({"pooling_mode": "mean"}))])
}

#[test]
fn each_task_folds_in_its_way_where_a_request_or_a_flag_asks_for_it() {
    let problem = |problem: &str| json!({"id2label": {"0": "no", "1": "yes"}, "problem_type": problem});
    let classes = |name| classifier("BertForSequenceClassification", problem(name), 2);
    let one = json!({"id2label": {"0": "LABEL_0"}});
    for (folder, ops, windows_of) in [
        (embedding(true), "pool:mean, normalize, fold:mean+normalize", None),
        (embedding(false), "pool:mean, fold:mean", None),
        (classes("single_label_classification"), "softmax, fold:mean", Some("longer")),
        (classes("multi_label_classification"), "sigmoid, fold:max", Some("longer")),
        (classes("regression"), "slice:2, fold:mean", Some("longer")),
        (classifier("BertForSequenceClassification", one, 1), "fold:max, sigmoid", None),
    ] {
        for (choices, long_texts) in
            [(Choices::default(), None), (choose("windows"), Some("windows")), (choose("cut"), None)]
        {
            let [_, tokenizer, _, postprocess] = models(&folder, choices).try_into().unwrap();
            assert_eq!(postprocess.parameters["ops"], ops);
            assert_eq!(output(&tokenizer, "windows"), [-1, 6]);
            assert!(postprocess.inputs.iter().any(|input| input.name == "windows"), "{ops}");
            let told = |name: &str| tokenizer.parameters.get(name).map(String::as_str);
            assert_eq!((told("long_texts"), told("windows_of")), (long_texts, windows_of), "{ops}");
        }
    }
}

#[test]
fn entities_are_read_in_windows_unless_a_person_has_texts_cut() {
    let labels = json!({"id2label": {"0": "O", "1": "B-PER"}});
    let folder = classifier("BertForTokenClassification", labels, 2);
    for (choices, expected) in
        [(Choices::default(), Some("windows")), (choose("windows"), Some("windows")), (choose("cut"), None)]
    {
        let tokenizer = models(&folder, choices).remove(1);
        assert_eq!(tokenizer.parameters.get("long_texts").map(String::as_str), expected);
    }
}

#[test]
fn folders_without_windows_are_served_and_refuse_the_flag_with_the_reason() {
    let transformer = ("sentence_transformers.sparse_encoder.models.MLMTransformer", "");
    let pooling = ("sentence_transformers.sparse_encoder.models.SpladePooling", "1_SpladePooling");
    let settings = json!({"pooling_strategy": "sum", "activation_function": "log1p_relu"});
    let sparse = encoder(&[transformer, pooling], &[("1_SpladePooling/config.json", settings)]);
    write(sparse.path(), "onnx/model.onnx", &onnx(&IDS, &[("logits", &[-1, -1, 10])]));
    let tokenizer = models(&sparse, Choices::default()).remove(1);
    assert!(tokenizer.outputs.iter().all(|output| output.name != "windows"));
    let refused = FolderDescription::read(sparse.path(), choose("windows")).unwrap_err().faults;
    assert_eq!(
        refused,
        ["--long-texts windows: its task makes no one row of several windows; leave the flag out, or say cut"]
    );
    assert!(FolderDescription::read(sparse.path(), choose("cut")).is_ok());
}
