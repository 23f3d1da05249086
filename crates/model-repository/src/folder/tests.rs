use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::{ModelConfig, ModelFolder, Repository};

mod folds;
mod messages;
mod origins;
mod shown;
mod spans;
mod strange;

/// A folder of these files; an object is written as JSON.
fn folder(files: &[(&str, Value)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        write(folder.path(), name, content.to_string().as_bytes());
    }
    folder
}

/// The ops of a model without the one that folds windows, which has tests of its own.
fn own_ops(config: &ModelConfig) -> String {
    let own = config.parameters["ops"].split(", ").filter(|op| !op.starts_with("fold:"));
    own.collect::<Vec<_>>().join(", ")
}

fn write(folder: &Path, name: &str, content: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A protobuf field of bytes.
fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
    let mut length = content.len();
    let mut out = vec![number << 3 | 2];
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend(content);
    out
}

/// A tensor whose numbers are in another file.
fn external(location: &str) -> Vec<u8> {
    let entry = [bytes(1, b"location"), bytes(2, location.as_bytes())].concat();
    [bytes(8, b"w"), bytes(13, &entry)].concat()
}

/// An ONNX file with weights in these files: those of the graph, of a node, and of a graph within a node.
fn onnx_with_weights(locations: [&str; 3]) -> Vec<u8> {
    let [graph, node, within] = locations.map(external);
    let within = bytes(1, &bytes(5, &bytes(6, &bytes(5, &within))));
    let graph = [bytes(5, &graph), bytes(1, &bytes(5, &bytes(5, &node))), within].concat();
    let model = onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8])]);
    bytes(7, &[inner(&model), &graph].concat())
}

/// The content of the only field of a message.
fn inner(message: &[u8]) -> &[u8] {
    let length = message[1..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    &message[1 + length..]
}

/// The outline of an ONNX file: tensors with their dims, -1 for any size. Inputs are INT64, outputs FP32.
fn onnx(inputs: &[(&str, &[i64])], outputs: &[(&str, &[i64])]) -> Vec<u8> {
    let tensor = |name: &str, datatype: u8, dims: &[i64]| {
        let dim = |&dim: &i64| match dim {
            -1 => bytes(1, &bytes(2, b"any")),
            size => bytes(1, &[8, size as u8]),
        };
        let shape: Vec<u8> = dims.iter().flat_map(dim).collect();
        let kind = [vec![8, datatype], bytes(2, &shape)].concat();
        [bytes(1, name.as_bytes()), bytes(2, &bytes(1, &kind))].concat()
    };
    let inputs = inputs.iter().flat_map(|(name, dims)| bytes(11, &tensor(name, 7, dims)));
    let outputs = outputs.iter().flat_map(|(name, dims)| bytes(12, &tensor(name, 1, dims)));
    let graph: Vec<u8> = inputs.chain(outputs).collect();
    bytes(7, &graph)
}

const IDS: [(&str, &[i64]); 2] = [("input_ids", &[-1, -1]), ("attention_mask", &[-1, -1])];

/// A safetensors file with tensors of these shapes, and no data.
fn safetensors(tensors: Value) -> Vec<u8> {
    let header = tensors.to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()
}

fn tokenizer() -> [(&'static str, Value); 2] {
    [
        ("tokenizer.json", json!({"model": {"vocab": {"a": 0, "[PAD]": 3, "b": 9}}, "added_tokens": []})),
        ("tokenizer_config.json", json!({"model_max_length": 1e30, "pad_token": "[PAD]"})),
    ]
}

/// A folder of sentence-transformers: modules, and an encoder that is 8 wide.
fn encoder(modules: &[(&str, &str)], files: &[(&str, Value)]) -> TempDir {
    let listed: Vec<_> = modules.iter().map(|(kind, path)| json!({"type": kind, "path": path})).collect();
    let config = json!({"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8,
        "max_position_embeddings": 64, "vocab_size": 10});
    let folder = folder(&[("modules.json", json!(listed)), ("config.json", config)]);
    for (name, content) in tokenizer().iter().chain(files) {
        write(folder.path(), name, content.to_string().as_bytes());
    }
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8])]));
    folder
}

const TRANSFORMER: (&str, &str) = ("sentence_transformers.models.Transformer", "");
const POOLING: (&str, &str) = ("sentence_transformers.models.Pooling", "1_Pooling");

/// The models of a folder, read as a repository reads them.
#[track_caller]
fn configs(folder: &TempDir) -> Vec<ModelConfig> {
    let description =
        FolderDescription::read(folder.path(), Precision::Exact).unwrap_or_else(|error| panic!("{error}"));
    let models = description.models("m", 1);
    let parse = |model: &DerivedModel| {
        ModelConfig::parse(&model.config, &model.name).unwrap_or_else(|error| panic!("{error}\n{}", model.config))
    };
    models.iter().map(parse).collect()
}

#[track_caller]
fn faults(folder: &TempDir) -> Vec<String> {
    FolderDescription::read(folder.path(), Precision::Exact).unwrap_err().faults
}

fn output(config: &ModelConfig, name: &str) -> Vec<i64> {
    config.outputs.iter().find(|output| output.name == name).unwrap_or_else(|| panic!("{name}")).dims.to_vec()
}

fn names<'a>(tensors: impl IntoIterator<Item = &'a String>) -> Vec<&'a str> {
    tensors.into_iter().map(String::as_str).collect()
}

#[test]
fn a_large_graph_is_in_memory_once() {
    let layouts = |bytes: u64| {
        let folder = encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", json!({"pooling_mode": "mean"}))]);
        write(
            folder.path(),
            "onnx/model.onnx",
            &onnx_with_weights(["model.onnx_data", "model.onnx_data", "model.onnx_data"]),
        );
        let weights = fs::File::create(folder.path().join("onnx/model.onnx_data")).unwrap();
        weights.set_len(bytes).unwrap();
        configs(&folder)[2].parameters["layouts"].clone()
    };
    assert_eq!((layouts(500 << 20).as_str(), layouts(600 << 20).as_str()), ("by_load", "wide"));
}

#[test]
fn a_sentence_encoder_in_the_older_form() {
    let folder = encoder(
        &[TRANSFORMER, POOLING, ("sentence_transformers.models.Normalize", "2_Normalize")],
        &[
            ("sentence_bert_config.json", json!({"max_seq_length": 32, "do_lower_case": false})),
            (
                "1_Pooling/config.json",
                json!({"word_embedding_dimension": 8, "pooling_mode_cls_token": true,
                "pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": false}),
            ),
        ],
    );
    let [ensemble, tokenizer, model, postprocess] = configs(&folder).try_into().unwrap();
    assert_eq!(ensemble.parameters["task"], "embed");
    assert_eq!(output(&ensemble, "sentence_embedding"), [-1, 16]);
    assert_eq!(ensemble.max_rows_per_message, Some(2));
    assert_eq!(tokenizer.parameters["max_length"], "32");
    let made = ["input_ids", "attention_mask", "windows", "tokens", "decoded_text"];
    assert_eq!(names(tokenizer.outputs.iter().map(|o| &o.name)), made);
    assert_eq!(model.parameters["pad_inputs"], "input_ids:3, attention_mask:0");
    assert_eq!(
        (model.default_model_filename.as_str(), output(&model, "last_hidden_state")),
        ("model.onnx", vec![-1, -1, 8])
    );
    assert_eq!(own_ops(&postprocess), "pool:cls+mean, normalize");
    let steps = ensemble.ensemble.unwrap();
    assert_eq!(names(steps.iter().map(|step| &step.model_name)), ["m_tokenizer", "m_model", "m_postprocess"]);
}

#[test]
fn each_setting_says_where_it_comes_from() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", json!({"pooling_mode": "mean"}))]);
    let description = FolderDescription::read(folder.path(), Precision::Exact).unwrap();
    let origin = |what: &str| description.table().into_iter().find(|row| row.what == what).unwrap().origin;
    assert_eq!(origin("task"), "modules.json: [1].type");
    assert_eq!(origin("max_length"), "config.json: max_position_embeddings");
    assert_eq!(origin("padding"), "tokenizer_config.json: pad_token");
    assert_eq!(origin("op"), "1_Pooling/config.json: pooling_mode");
    assert_eq!(origin("width"), "onnx/model.onnx: last_hidden_state");
    let model = &description.models("m", 1)[1];
    let line = model.config.lines().find(|line| line.contains("max_length")).unwrap();
    assert!(line.ends_with("# config.json: max_position_embeddings"), "{line}");
}

#[test]
fn a_sentence_encoder_in_the_newer_form() {
    let folder = encoder(
        &[
            ("sentence_transformers.base.modules.transformer.Transformer", ""),
            ("sentence_transformers.sentence_transformer.modules.pooling.Pooling", "1_Pooling"),
            ("sentence_transformers.base.modules.dense.Dense", "2_Dense"),
        ],
        &[
            (
                "sentence_bert_config.json",
                json!({"transformer_task": "feature-extraction",
                "processing_kwargs": {"text": {"max_length": 48}}}),
            ),
            (
                "1_Pooling/config.json",
                json!({"embedding_dimension": 8, "include_prompt": false,
                "pooling_mode": ["weightedmean", "lasttoken"]}),
            ),
            ("2_Dense/config.json", json!({"in_features": 16, "out_features": 4})),
            (
                "config_sentence_transformers.json",
                json!({"model_type": "SentenceTransformer",
                "prompts": {"query": "query: ", "passage": "passage: ", "none": null},
                "default_prompt_name": "passage"}),
            ),
        ],
    );
    let dense = json!({"linear.weight": {"dtype": "F32", "shape": [4, 16], "data_offsets": [0, 256]}});
    write(folder.path(), "2_Dense/model.safetensors", &safetensors(dense));
    let [ensemble, tokenizer, _, postprocess] = configs(&folder).try_into().unwrap();
    assert_eq!(own_ops(&postprocess), "pool:weighted_mean+last, dense:2_Dense");
    assert_eq!(
        names(postprocess.inputs.iter().map(|i| &i.name)),
        ["last_hidden_state", "attention_mask", "pooling_mask", "windows"]
    );
    let made = ["input_ids", "attention_mask", "pooling_mask", "windows", "tokens", "decoded_text"];
    assert_eq!(names(tokenizer.outputs.iter().map(|o| &o.name)), made);
    assert_eq!((output(&ensemble, "sentence_embedding"), &tokenizer.parameters["max_length"][..]), (vec![-1, 4], "48"));
    for config in [&ensemble, &tokenizer] {
        let prompts: Value = serde_json::from_str(&config.parameters["prompts"]).unwrap();
        assert_eq!(prompts, json!({"query": "query: ", "passage": "passage: ", "none": ""}));
        assert_eq!(config.parameters["default_prompt"], "passage");
    }
    assert_eq!(
        (&ensemble.parameters["query_prompt"][..], &ensemble.parameters["document_prompt"][..]),
        ("query", "passage")
    );
    let files = FolderDescription::read(folder.path(), Precision::Exact).unwrap().models("m", 1).remove(3).files;
    assert_eq!(names(files.keys()), ["2_Dense/config.json", "2_Dense/model.safetensors"]);
}

#[test]
fn a_folder_of_transformers_alone_is_pooled_as_sentence_transformers_does() {
    let folder = encoder(&[], &[]);
    fs::remove_file(folder.path().join("modules.json")).unwrap();
    let description = FolderDescription::read(folder.path(), Precision::Exact).unwrap();
    let op = description.table().into_iter().find(|row| row.what == "op").unwrap();
    assert_eq!(op.value, "pool:mean");
    assert!(op.origin.starts_with("guessed"), "{}", op.origin);
}

#[test]
fn what_the_graph_has_pooled_is_taken_as_it_is() {
    let folder = encoder(
        &[TRANSFORMER, POOLING, ("sentence_transformers.models.Normalize", "2_Normalize")],
        &[("1_Pooling/config.json", json!({"pooling_mode": "mean", "embedding_dimension": 8}))],
    );
    let outputs: [(&str, &[i64]); 2] = [("token_embeddings", &[-1, -1, 8]), ("sentence_embedding", &[-1, 8])];
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &outputs));
    let [ensemble, _, model, postprocess] = configs(&folder).try_into().unwrap();
    assert_eq!(own_ops(&postprocess), "normalize");
    assert_eq!((output(&model, "sentence_embedding"), model.parameters["unpad_outputs"].as_str()), (vec![-1, 8], ""));
    // The name is the ensemble's output; within the ensemble the model's goes under another.
    assert_eq!(ensemble.ensemble.unwrap()[1].output_map["sentence_embedding"], "model_sentence_embedding");
}

/// A classifier with these fields in config.json and this many logits.
fn classifier(architecture: &str, fields: Value, logits: i64) -> TempDir {
    let mut config = json!({"model_type": "bert", "architectures": [architecture], "hidden_size": 8,
        "max_position_embeddings": 64});
    config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let folder = folder(&[("config.json", config)]);
    for (name, content) in tokenizer() {
        write(folder.path(), name, content.to_string().as_bytes());
    }
    let tokens = architecture.ends_with("TokenClassification");
    let dims: &[i64] = if tokens { &[-1, -1, logits] } else { &[-1, logits] };
    write(folder.path(), "model.onnx", &onnx(&IDS, &[("logits", dims)]));
    folder
}

#[test]
fn classifiers_by_their_problem() {
    let labels = json!({"0": "no", "1": "yes"});
    for (problem, ops) in [
        (json!(null), "softmax"),
        (json!("single_label_classification"), "softmax"),
        (json!("multi_label_classification"), "sigmoid"),
        (json!("regression"), "slice:2"),
    ] {
        let fields = json!({"id2label": labels, "problem_type": problem});
        let folder = classifier("BertForSequenceClassification", fields, 2);
        let [ensemble, tokenizer, _, postprocess] = configs(&folder).try_into().unwrap();
        assert_eq!(
            (&ensemble.parameters["task"][..], &ensemble.parameters["labels"][..]),
            ("classify", r#"["no","yes"]"#)
        );
        assert_eq!((own_ops(&postprocess).as_str(), output(&ensemble, "scores")), (ops, vec![-1, 2]));
        assert!(tokenizer.inputs[1].name == "TEXT_PAIR" && tokenizer.inputs[1].optional);
        let expected = problem.as_str().unwrap_or("single_label_classification");
        assert_eq!(ensemble.parameters["problem_type"], expected);
    }
}

#[test]
fn classifiers_of_pairs_score_the_labels_of_requests() {
    let labels = |names: [&str; 3]| json!({"id2label": {"0": names[0], "1": names[1], "2": names[2]}});
    let of = |names, extra: Value| {
        let mut fields = labels(names);
        fields.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        configs(&classifier("BertForSequenceClassification", fields, 3))[0].parameters["task"].clone()
    };
    assert_eq!(of(["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], json!({})), "classify, zero_shot");
    let cross_encoder = json!({"sentence_transformers": {"version": "5.0.0"}});
    assert_eq!(of(["contradiction", "entailment", "neutral"], cross_encoder), "classify, zero_shot");
    assert_eq!(of(["negative", "neutral", "positive"], json!({})), "classify");
}

#[test]
fn rerankers_by_their_activation() {
    let one = json!({"0": "LABEL_0"});
    for (fields, ops) in [
        (json!({"id2label": one}), "sigmoid"),
        (
            json!({"id2label": one, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}),
            "slice:1",
        ),
        (
            json!({"id2label": one, "sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}),
            "sigmoid",
        ),
    ] {
        let folder = classifier("XLMRobertaForSequenceClassification", fields.clone(), 1);
        let [ensemble, tokenizer, _, postprocess] = configs(&folder).try_into().unwrap();
        assert_eq!(output(&ensemble, "scores"), [-1, 1]);
        assert_eq!(own_ops(&postprocess), ops);
        // Where a file says cross-encoder, the pair is required of clients, but not of a request to tokenize one text.
        let is_told = fields.as_object().unwrap().len() > 1;
        assert_eq!(ensemble.inputs[1].optional, !is_told);
        assert_eq!(ensemble.parameters["task"], if is_told { "rerank" } else { "rerank, classify" });
        assert!(tokenizer.inputs[1].name == "TEXT_PAIR" && tokenizer.inputs[1].optional);
    }
    // A cross-encoder of several labels gives its logits, and is asked for pairs.
    let fields = json!({"id2label": {"0": "a", "1": "b", "2": "c"}, "sentence_transformers": {"version": "4.1.0"}});
    let [ensemble, _, _, postprocess] =
        configs(&classifier("BertForSequenceClassification", fields, 3)).try_into().unwrap();
    assert_eq!((&ensemble.parameters["task"][..], &own_ops(&postprocess)[..]), ("classify", "slice:3"));
}

#[test]
fn token_classifiers_and_sparse_encoders() {
    let folder = classifier("BertForTokenClassification", json!({"id2label": {"0": "O", "1": "B-PER, x"}}), 2);
    let [ensemble, tokenizer, _, postprocess] = configs(&folder).try_into().unwrap();
    assert_eq!((&ensemble.parameters["task"][..], &own_ops(&postprocess)[..]), ("token_classify", "entities:simple"));
    let made = ["input_ids", "attention_mask", "offsets", "special_tokens_mask", "windows", "tokens", "decoded_text"];
    assert_eq!(names(tokenizer.outputs.iter().map(|o| &o.name)), made);
    let models = FolderDescription::read(folder.path(), Precision::Exact).unwrap().models("m", 1);
    assert_eq!(models[3].texts["labels.txt"], "O\nB-PER, x\n");
    assert!(!models[0].config.contains("labels.txt"), "it lies beside the step that reads it: {}", models[0].config);
    let repository = tempfile::tempdir().unwrap();
    place(&models, folder.path(), repository.path(), 1, Placement::Link).unwrap();
    assert_eq!(Repository::open(&[repository.path().to_owned()]).unwrap().models().count(), 4);
    assert!(models[3].files.contains_key("tokenizer.json"));

    let folder = encoder(
        &[
            ("sentence_transformers.sparse_encoder.models.MLMTransformer", ""),
            ("sentence_transformers.sparse_encoder.models.SpladePooling", "1_SpladePooling"),
        ],
        &[("1_SpladePooling/config.json", json!({"pooling_strategy": "sum", "activation_function": "log1p_relu"}))],
    );
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[("logits", &[-1, -1, 10])]));
    let [ensemble, _, _, postprocess] = configs(&folder).try_into().unwrap();
    assert_eq!(
        (&ensemble.parameters["task"][..], &own_ops(&postprocess)[..]),
        ("sparse", "splade:log1p_relu+sum, sparse")
    );
    assert_eq!((output(&ensemble, "sparse_values"), ensemble.max_rows_per_message), (vec![-1, -1], None));
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8])]));
    let found = faults(&folder);
    assert!(found[0].contains("gives no logits over the vocabulary, found last_hidden_state"), "{found:?}");
}

#[test]
fn static_vectors_need_no_graph() {
    let config = json!({"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": true});
    let modules = json!([{"path": ".", "type": "sentence_transformers.models.StaticEmbedding"},
        {"path": "1_Normalize", "type": "sentence_transformers.models.Normalize"}]);
    let folder = folder(&[("config.json", config), ("modules.json", modules)]);
    for (name, content) in tokenizer() {
        write(folder.path(), name, content.to_string().as_bytes());
    }
    let table =
        |rows: i64| safetensors(json!({"embeddings": {"dtype": "F32", "shape": [rows, 4], "data_offsets": [0, 0]}}));
    let vocabulary = json!({"model": {"vocab": {"[UNK]": 0, "b": 9}, "unk_token": "[UNK]"}});
    write(folder.path(), "tokenizer.json", vocabulary.to_string().as_bytes());
    write(folder.path(), "model.safetensors", &table(10));
    let [ensemble, tokenizer, model, postprocess] = configs(&folder).try_into().unwrap();
    assert_eq!((model.backend.as_str(), output(&ensemble, "sentence_embedding")), ("static", vec![-1, 4]));
    assert_eq!(tokenizer.parameters["add_special_tokens"], "false");
    assert_eq!(tokenizer.parameters["max_length"], "512");
    assert_eq!(tokenizer.parameters["max_characters"], (512 * 3).to_string());
    assert_eq!(model.parameters["unknown_token_id"], "0");
    assert_eq!(own_ops(&postprocess), "normalize");
    write(folder.path(), "model.safetensors", &table(9));
    assert_eq!(
        faults(&folder),
        ["tokenizer.json: model.vocab, added_tokens has ids up to 9, but model.safetensors: embeddings has 9 rows"]
    );
}

#[test]
fn an_encoder_decoder_is_generation() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/translation");
    let folder = tempfile::tempdir().unwrap();
    for part in ["generator/1", "tokenizer/1"] {
        for entry in fs::read_dir(path.join(part)).unwrap() {
            let entry = entry.unwrap().path();
            fs::copy(&entry, folder.path().join(entry.file_name().unwrap())).unwrap();
        }
    }
    let [ensemble, tokenizer, model, postprocess] = configs(&folder).try_into().unwrap();
    assert_eq!((&ensemble.parameters["task"][..], model.backend.as_str()), ("generate", "generation"));
    assert!(names(tokenizer.outputs.iter().map(|o| &o.name)).contains(&"forced_bos_token_id"));
    assert_eq!(own_ops(&postprocess), "decode");
}

#[test]
fn all_files_of_weights_come_along() {
    let locations = ["model.onnx_data", "./weights/0", "weights/1"];
    let paths = ["model.onnx_data", "weights/0", "weights/1"];
    let pooling = json!({"embedding_dimension": 8, "pooling_mode": "mean"});
    let folder = encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", pooling)]);
    write(folder.path(), "onnx/model.onnx", &onnx_with_weights(locations));
    let missing = paths.map(|path| format!("onnx/model.onnx: its weights are in onnx/{path}, which is missing"));
    assert_eq!(faults(&folder), missing);
    paths.iter().for_each(|path| write(folder.path(), &format!("onnx/{path}"), b"numbers"));
    let models = FolderDescription::read(folder.path(), Precision::Exact).unwrap().models("m", 1);
    let files = &models.iter().find(|model| model.name == "m_model").unwrap().files;
    for path in paths {
        assert_eq!(files.get(path), Some(&format!("onnx/{path}")), "{files:?}");
    }
    let repository = tempfile::tempdir().unwrap();
    place(&models, folder.path(), repository.path(), 1, Placement::Copy).unwrap();
    assert!(paths.iter().all(|path| repository.path().join("m_model/1").join(path).is_file()));

    // The graphs of encoder-decoder models have files of their own.
    let config = json!({"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"});
    let folder = encoder(&[], &[("config.json", config)]);
    fs::remove_file(folder.path().join("modules.json")).unwrap();
    fs::remove_file(folder.path().join("onnx/model.onnx")).unwrap();
    write(folder.path(), "onnx/encoder_model.onnx", &onnx_with_weights(locations));
    write(folder.path(), "onnx/decoder_model.onnx", &onnx_with_weights(["decoder.bin"; 3]));
    let parts = [paths.as_slice(), &["decoder.bin"]].concat();
    parts.iter().for_each(|path| write(folder.path(), &format!("onnx/{path}"), b"numbers"));
    let models = FolderDescription::read(folder.path(), Precision::Exact).unwrap().models("m", 1);
    let files = &models.iter().find(|model| model.name == "m_model").unwrap().files;
    assert!(parts.iter().all(|path| files.contains_key(&format!("onnx/{path}"))), "{files:?}");
}

#[test]
fn pointers_of_git_lfs_are_named() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
    for file in ["onnx/model.onnx", "tokenizer.json", "config.json", "onnx/model.onnx_data"] {
        let folder = encoder(&[TRANSFORMER], &[]);
        write(folder.path(), "onnx/model.onnx_data", b"numbers");
        write(folder.path(), "onnx/model.onnx", &onnx_with_weights(["model.onnx_data"; 3]));
        write(folder.path(), file, pointer);
        let found = faults(&folder);
        let named =
            format!("{file} is a Git LFS pointer, which stands for the file: fetch the files with git lfs pull");
        assert!(found.iter().any(|fault| fault.starts_with(&named)), "{found:?}");
    }
}

#[test]
fn contradictions_name_both_places() {
    let pooling = |fields: Value| ("1_Pooling/config.json", fields);
    let two = [TRANSFORMER, POOLING];
    let modes = json!({"pooling_mode": "cls", "pooling_mode_mean_tokens": true, "word_embedding_dimension": 8});
    assert_eq!(
        faults(&encoder(&two, &[pooling(modes)])),
        ["1_Pooling/config.json: pooling_mode is cls, but 1_Pooling/config.json: pooling_mode_mean_tokens is true"]
    );
    let wide = json!({"pooling_mode": "mean", "embedding_dimension": 16});
    assert_eq!(
        faults(&encoder(&two, &[pooling(wide)])),
        ["onnx/model.onnx: last_hidden_state is 8 wide, but 1_Pooling/config.json: embedding_dimension is 16"]
    );
    let mean = || pooling(json!({"pooling_mode": "mean"}));
    let length = ("sentence_bert_config.json", json!({"max_seq_length": 128}));
    assert_eq!(
        faults(&encoder(&two, &[mean(), length.clone()])),
        [
            "sentence_bert_config.json: max_seq_length is 128, but config.json: max_position_embeddings allows 64: write that, because \
          longer texts fail in the model"
        ]
    );
    let other = ("sentence_roberta_config.json", json!({"max_seq_length": 32}));
    assert!(faults(&encoder(&two, &[mean(), length, other]))[0].contains("remove one of the files"));
    let ids = ("tokenizer.json", json!({"model": {"vocab": vec![json!(["a", 0.0]); 11]}}));
    assert_eq!(
        faults(&encoder(&two, &[mean(), ids])),
        ["tokenizer.json: model.vocab, added_tokens has ids up to 10, but config.json: vocab_size has 10 rows"]
    );
    let default =
        ("config_sentence_transformers.json", json!({"prompts": {"query": "q"}, "default_prompt_name": "doc"}));
    assert_eq!(
        faults(&encoder(&two, &[mean(), default])),
        [
            "config_sentence_transformers.json: default_prompt_name is 'doc', but config_sentence_transformers.json: prompts has: \
          query"
        ]
    );
    let labels = json!({"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 1, "yes": 0}, "num_labels": 3});
    let found = faults(&classifier("BertForSequenceClassification", labels, 5));
    assert!(found[0].contains("num_labels is 3, but config.json: id2label has 2 labels"), "{found:?}");
    assert!(
        found[1].contains("model.onnx: logits gives 5 scores, but config.json: id2label has 2 labels"),
        "{found:?}"
    );
}

#[test]
fn what_is_not_supported_is_named_all_together() {
    let folder = encoder(
        &[
            TRANSFORMER,
            POOLING,
            ("sentence_transformers.models.LSTM", "2_LSTM"),
            ("sentence_transformers.models.Router", ""),
        ],
        &[],
    );
    let inputs: Vec<(&str, &[i64])> = [&IDS[..], &[("task_id", &[-1])]].concat();
    write(folder.path(), "onnx/model.onnx", &onnx(&inputs, &[("last_hidden_state", &[-1, -1, 8])]));
    let found = faults(&folder);
    assert!(found[1].contains("1_Pooling/config.json is missing"), "{found:?}");
    assert!(
        found[2].starts_with("modules.json: [2].type is 'sentence_transformers.models.LSTM', which is not supported")
    );
    let router = "modules.json: [3].type is a Router, but router_config.json is missing";
    assert!(found.iter().any(|fault| fault.starts_with(router)), "{found:?}");
    assert!(
        found.iter().any(|fault| fault.contains("input task_id, which chooses one of several adapters")),
        "{found:?}"
    );
}

#[test]
fn a_command_is_named_only_where_it_helps() {
    let without_graph = |folder: TempDir| {
        fs::remove_dir_all(folder.path().join("onnx")).unwrap();
        faults(&folder)
    };
    let lstm = ("sentence_transformers.models.LSTM", "1_LSTM");
    let found = without_graph(encoder(&[TRANSFORMER, lstm], &[]));
    assert!(found.len() == 1 && found[0].contains("serve the folder by a model.py"), "{found:?}");
    let bare = folder(&[("config.json", json!({"model_type": "llama"})), ("model.gguf", json!({}))]);
    let found = faults(&bare);
    assert!(
        found[0].contains("no file of a tokenizer") && found[1].contains("only model.gguf (of which none is made)"),
        "{found:?}"
    );
    assert!(!found.concat().contains("trireme export"), "{found:?}");
}

#[test]
fn a_choice_for_another_model_is_a_fault() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", json!({"pooling_mode": "mean"}))]);
    let open = |value: &str| {
        let mut choices = FolderChoices::default();
        choices.add("accept", &[value.to_owned()]).unwrap();
        crate::ModelSources::open([(Some("small"), folder.path())], &choices).map(|_| ())
    };
    open("small:label2id").unwrap();
    let fault = open("smal:label2id").unwrap_err()[0].to_string();
    assert_eq!(fault, "--accept smal:label2id: there is no model folder of that name, only small");
}

#[test]
fn heads_in_pickles_are_named() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", json!({"pooling_mode": "cls"}))]);
    write(folder.path(), "sparse_linear.pt", b"");
    let found = faults(&folder);
    assert!(found[0].starts_with("sparse_linear.pt cannot be read: it is no ZIP archive"), "{found:?}");
    // A graph that pools gives no states for them.
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[("sentence_embedding", &[-1, 8])]));
    let table = FolderDescription::read(folder.path(), Precision::Exact).unwrap().table();
    let row = table.iter().find(|row| row.what == "not served").expect("a line of its own");
    assert!(row.value == "sparse_linear.pt" && row.origin.contains("gives no vectors of tokens"), "{row:?}");
}

#[test]
fn queries_and_documents_of_late_interaction() {
    let expansion = json!({"strategy": "fixed", "attend": false, "token": null, "length": 24});
    let transformer = json!({"query_expansion": expansion, "document_length": 40});
    let mask = json!({"skiplist_words": [".", ","], "skiplist_tasks": ["document"], "keep_only_token_ids": null});
    let modules = [TRANSFORMER, ("sentence_transformers.x.MultiVectorMask", "1_MultiVectorMask")];
    let files = [("sentence_bert_config.json", transformer), ("1_MultiVectorMask/config.json", mask)];
    let [ensemble, tokenizer, _, postprocess] = configs(&encoder(&modules, &files)).try_into().unwrap();
    let parameter = |name: &str| tokenizer.parameters.get(name).map(String::as_str).unwrap_or_default();
    assert_eq!(parameter("query_expansion"), r#"{"attend":false,"length":24,"strategy":"fixed"}"#);
    assert_eq!((parameter("document_length"), parameter("query_length")), ("40", ""));
    assert_eq!((parameter("skiplist_words"), parameter("skiplist_tasks")), (r#"[".",","]"#, r#"["document"]"#));
    assert_eq!(parameter("prompts"), r#"{"document":"","query":""}"#);
    assert_eq!(ensemble.parameters["query_prompt"], "query");
    assert_eq!(names(postprocess.inputs.iter().map(|input| &input.name)), ["last_hidden_state", "scoring_mask"]);

    let long = [("sentence_bert_config.json", json!({"document_length": 65})), files[1].clone()];
    let found = faults(&encoder(&modules, &long));
    let words = "sentence_bert_config.json: document_length is 65, but config.json: max_position_embeddings allows 64: \
                 write that, because longer texts fail in the model";
    assert_eq!(found, [words]);
}

#[test]
fn folders_of_pylate() {
    let own = json!({"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 24});
    let folder = encoder(&[TRANSFORMER], &[("config_sentence_transformers.json", own)]);
    let [_, tokenizer, _, postprocess] = configs(&folder).try_into().unwrap();
    assert_eq!(tokenizer.parameters["prompts"], r#"{"document":"[D] ","query":"[Q] "}"#);
    assert_eq!(tokenizer.parameters["query_expansion"], r#"{"attend":false,"length":24,"strategy":"fixed"}"#);
    assert_eq!(tokenizer.parameters["prompts_as_tokens"], "true");
    assert!(!tokenizer.parameters.contains_key("query_length"));
    let words: Vec<String> = serde_json::from_str(&tokenizer.parameters["skiplist_words"]).unwrap();
    assert!(words.len() == 32 && words.contains(&"!".to_owned()), "{words:?}");
    assert_eq!(own_ops(&postprocess), "mask, normalize");
}

/// A note in an ONNX file's metadata.
fn note(key: &str, value: &str) -> Vec<u8> {
    bytes(14, &[bytes(1, key.as_bytes()), bytes(2, value.as_bytes())].concat())
}

#[test]
fn a_variant_is_served_when_it_is_asked_for() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", json!({"pooling_mode": "mean"}))]);
    let file = |precision| {
        let description = FolderDescription::read(folder.path(), precision);
        description.map(|found| found.table().into_iter().find(|row| row.what == "graph").unwrap())
    };
    let lacking = file(Precision::Int8).unwrap_err().to_string();
    assert!(lacking.contains("--precision int8 asks for an ONNX file of the name model_int8.onnx or "), "{lacking}");
    assert!(lacking.contains("found onnx/model.onnx; make one with: trireme optimize "), "{lacking}");
    let lacking = file(Precision::Fp16).unwrap_err().to_string();
    assert!(lacking.contains("found onnx/model.onnx; leave --precision out to serve"), "{lacking}");
    assert!(lacking.ends_with("--precision int8"), "{lacking}");

    let graph = onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8])]);
    let size = graph.len();
    let notes = [("origin", "model.onnx"), ("origin_bytes", &size.to_string()), ("figures", "lowest likeness 0.9921")];
    let notes: Vec<u8> = notes.iter().flat_map(|(key, value)| note(&format!("trireme.{key}"), value)).collect();
    write(folder.path(), "onnx/model_int8.onnx", &[graph, notes].concat());
    assert_eq!(file(Precision::Exact).unwrap().value, "onnx/model.onnx");
    let row = file(Precision::Int8).unwrap();
    assert_eq!(row.value, "onnx/model_int8.onnx");
    assert_eq!(row.origin, "--precision int8; made of model.onnx: lowest likeness 0.9921");
    assert!(file(Precision::Fp16).unwrap_err().to_string().contains("--precision fp16 asks for"));

    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[("last_hidden_state", &[-1, 4, 8])]));
    let stale = file(Precision::Int8).unwrap_err().to_string();
    assert!(stale.contains(&format!("onnx/model_int8.onnx was made of onnx/model.onnx with {size} bytes")), "{stale}");
}

#[test]
fn an_export_knows_the_task_and_the_place() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", json!({"pooling_mode": "mean"}))]);
    let there = Export::of(folder.path(), &Choices::default()).unwrap_err().to_string();
    assert!(
        there.ends_with("onnx/model.onnx is there already: serve the folder as it is, or move the file away first"),
        "{there}"
    );
    fs::remove_dir_all(folder.path().join("onnx")).unwrap();
    let export = Export::of(folder.path(), &Choices::default()).unwrap();
    assert_eq!((export.export_task, export.made), ("feature-extraction", "model.onnx"));
    assert_eq!(export.output, folder.path().join("onnx"));
    write(folder.path(), "modules.json", br#"[{"type": "sentence_transformers.models.StaticEmbedding", "path": ""}]"#);
    assert!(Export::of(folder.path(), &Choices::default()).unwrap_err().to_string().contains("needs no ONNX file"));
}

#[test]
fn without_onnx_the_export_is_told() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", json!({"pooling_mode": "mean"}))]);
    fs::remove_dir_all(folder.path().join("onnx")).unwrap();
    write(folder.path(), "model.safetensors", b"");
    write(folder.path(), "model.pt", b"");
    let found = faults(&folder).join("; ");
    let path = folder.path().display();
    assert!(found.contains("holds no ONNX file, only model.pt, model.safetensors"), "{found}");
    let command = format!("optimum-cli export onnx --model {path} --task feature-extraction {path}/onnx");
    assert!(found.contains(&command), "{found}");
    assert!(found.contains("TorchScript"), "{found}");
}

#[test]
fn a_written_repository_is_one() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", json!({"pooling_mode": "mean"}))]);
    let description = FolderDescription::read(folder.path(), Precision::Exact).unwrap();
    let repository = tempfile::tempdir().unwrap();
    let write = |placement| place(&description.models("m", 1), folder.path(), repository.path(), 1, placement);
    write(Placement::Link).unwrap();
    let read = Repository::open(&[repository.path().to_owned()]).unwrap();
    assert_eq!(read.models().count(), 4);
    let linked = fs::read(repository.path().join("m_model/1/model.onnx")).unwrap();
    assert_eq!(linked, fs::read(folder.path().join("onnx/model.onnx")).unwrap());
    assert!(repository.path().join("m_tokenizer/1/tokenizer.json").is_file());
    let error = write(Placement::Copy).unwrap_err().to_string();
    assert!(error.contains("it is there already"), "{error}");
}

#[test]
fn versions_of_a_model_are_of_one_kind_and_each_has_its_own_settings() {
    let pooling =
        |mode: &str| encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", json!({"pooling_mode": mode}))]);
    let repository = tempfile::tempdir().unwrap();
    let write = |folder: &TempDir, version| {
        let models = FolderDescription::read(folder.path(), Precision::Exact).unwrap().models("m", version);
        place(&models, folder.path(), repository.path(), version, Placement::Link)
    };
    write(&pooling("mean"), 1).unwrap();
    write(&pooling("cls"), 3).unwrap();
    let reranker = classifier("BertForSequenceClassification", json!({"id2label": {"0": "LABEL_0"}}), 1);
    let error = write(&reranker, 4).unwrap_err().to_string();
    assert!(error.contains("model 'm' version 4: found task 'rerank', expected 'embed'"), "{error}");
    let read = Repository::open(&[repository.path().to_owned()]).unwrap();
    let (ensemble, ops) = (read.model("m").unwrap(), read.model("m_postprocess").unwrap());
    assert_eq!((&ensemble.versions[..], &ops.versions[..]), (&[1, 3][..], &[1, 3][..]));
    for (version, op) in [(1, "pool:mean"), (3, "pool:cls")] {
        assert_eq!(own_ops(ops.config_of(version)), op);
        let steps = ensemble.config_of(version).ensemble.iter().flatten();
        assert!(steps.map(|step| step.model_version).all(|found| found == Some(version)));
    }
    assert_ne!(ops.digest(1, "").unwrap(), ops.digest(3, "").unwrap());
}

#[test]
fn every_choice_that_changes_answers_changes_the_digest_of_a_folder() {
    // A new choice has to be decided about here: it changes the digest, or no answer.
    let Choices {
        precision: _,
        graph: _,
        output: _,
        task: _,
        pooling: _,
        normalize: _,
        padding_side: _,
        strict: _,
        accept: _,
        accelerator: _,
        long_texts: _,
        served_names: _,
    } = Choices::default();
    let folder = encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", json!({"pooling_mode": "mean"}))]);
    let graph = onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8]), ("vector", &[-1, 8])]);
    ["onnx/model.onnx", "onnx/other.onnx", "onnx/model_int8.onnx"]
        .iter()
        .for_each(|name| write(folder.path(), name, &graph));
    let digest_at = |path: &Path, precision, flag: &'static str, value: &str| {
        let mut choices = FolderChoices::from(precision);
        if !flag.is_empty() {
            choices.add(flag, &[value.to_owned()]).unwrap();
        }
        ModelFolder::read(path, Some("m"), &choices).unwrap().digest().unwrap()
    };
    let digest = |flag, value| digest_at(folder.path(), Precision::Exact, flag, value);
    let plain = digest("", "");
    let changing = [
        ("graph", "onnx/other.onnx"),
        ("output", "vector"),
        ("task", "multi_vector"),
        ("pooling", "cls"),
        ("normalize", "true"),
        ("padding-side", "left"),
        ("long-texts", "windows"),
    ];
    let mut all: Vec<String> = changing.iter().map(|(flag, value)| digest(*flag, *value)).collect();
    all.extend([plain.clone(), digest_at(folder.path(), Precision::Int8, "", "")]);
    let (count, distinct) = (all.len(), all.into_iter().collect::<std::collections::BTreeSet<_>>().len());
    assert_eq!(count, distinct, "{changing:?}");
    for (flag, value) in [
        ("accept", "label2id"),
        ("accelerator", "none"),
        ("accelerator", "openvino"),
        ("served-name", "text-embedding-3-small"),
        ("pooling", "mean"),
        ("padding-side", "right"),
    ] {
        assert_eq!(digest(flag, value), plain, "--{flag} {value} changes no answer");
    }
    // A copy elsewhere, and the next version of the same files, are the same content.
    let hub = tempfile::tempdir().unwrap();
    let copy = hub.path().join("models--org--m/snapshots/5617a9f61b");
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    fs::rename(folder.path(), &copy).unwrap();
    assert_eq!(digest_at(&copy, Precision::Exact, "", ""), plain);
    let next = ModelFolder::read(&copy, Some("m@2"), &FolderChoices::default()).unwrap();
    assert_eq!(next.digest().unwrap(), plain);
    fs::create_dir_all(folder.path()).unwrap();
}

#[test]
fn names_come_from_folders_and_caches() {
    let root = tempfile::tempdir().unwrap();
    let name = |path: &str| {
        let path = root.path().join(path);
        fs::create_dir_all(&path).unwrap();
        folder_name(&path)
    };
    assert_eq!(name("bge-small-en-v1.5"), "bge-small-en-v1.5");
    assert_eq!(name("models--BAAI--bge-m3/snapshots/5617a9f61b"), "bge-m3");
    assert_eq!(name("mein Modell"), "mein_Modell");
    let hub = |path: &str| hub_name(&root.path().join(path));
    assert_eq!(hub("models--BAAI--bge-m3/snapshots/5617a9f61b").as_deref(), Some("BAAI/bge-m3"));
    fs::create_dir_all(root.path().join("models--gpt2/snapshots/main")).unwrap();
    assert_eq!(hub("models--gpt2/snapshots/main").as_deref(), Some("gpt2"));
    assert_eq!(hub("bge-small-en-v1.5"), None);
    assert!(!is_model_folder(root.path()));
    assert!(is_model_folder(encoder(&[], &[]).path()));
}
