//! Every decision about a folder has an origin, and no guess goes without a warning.

use super::*;
use crate::Task;
use crate::folder::guesses::REMEDIES;

const POOLED_BY_MEAN: (&str, &str) = ("1_Pooling/config.json", r#"{"pooling_mode": "mean", "embedding_dimension": 8}"#);

fn read(folder: &TempDir, choices: Choices) -> Result<FolderDescription, String> {
    FolderDescription::read(folder.path(), choices).map_err(|error| error.to_string())
}

/// A folder of sentence-transformers whose graph has these outputs and shows nothing of its nodes.
fn sentence(modules: &[(&str, &str)], outputs: &[(&str, &[i64])]) -> TempDir {
    let folder = encoder(modules, &[]);
    write(folder.path(), POOLED_BY_MEAN.0, POOLED_BY_MEAN.1.as_bytes());
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, outputs));
    folder
}

/// Folders of every task, and for each value that is ever guessed one that leaves it open.
fn folders() -> Vec<TempDir> {
    let states: [(&str, &[i64]); 1] = [("last_hidden_state", &[-1, -1, 8])];
    let labels = |count: i64| -> Value { (0..count).map(|at| (at.to_string(), json!(format!("l{at}")))).collect() };
    let mut all = vec![sentence(&[TRANSFORMER, POOLING], &states)];

    // Without modules.json: the pooling is open, and with a template whether texts are messages.
    let plain = sentence(&[], &states);
    fs::remove_file(plain.path().join("modules.json")).unwrap();
    write(plain.path(), "chat_template.jinja", b"{{ messages[0]['content'] }}");
    all.push(plain);

    // Without config.json: the task, the length, the padding, and which of two outputs.
    let bare = tempfile::tempdir().unwrap();
    write(bare.path(), "tokenizer.json", tokenizer()[0].1.to_string().as_bytes());
    write(bare.path(), "model.onnx", &onnx(&IDS, &[("a", &[-1, -1, 8]), ("b", &[-1, -1])]));
    all.push(bare);

    // A layer of the folder that the graph may run or not.
    let late = sentence(&[TRANSFORMER, ("pylate.models.Dense.Dense", "1_Dense")], &[("output", &[-1, -1, 8])]);
    let own = json!({"model_type": "ColBERT", "query_prefix": "", "document_prefix": "", "query_length": 24, "document_length": 48});
    write(late.path(), "config_sentence_transformers.json", own.to_string().as_bytes());
    let dense = json!({"in_features": 8, "out_features": 8, "bias": false, "activation_function": "torch.nn.modules.linear.Identity"});
    write(late.path(), "1_Dense/config.json", dense.to_string().as_bytes());
    let weight = json!({"linear.weight": {"dtype": "F32", "shape": [8, 8], "data_offsets": [0, 256]}});
    write(late.path(), "1_Dense/model.safetensors", &safetensors(weight));
    all.push(late);

    // Three results of one graph.
    all.push(sentence(
        &[TRANSFORMER, POOLING],
        &[("dense_vecs", &[-1, 8]), ("sparse_vecs", &[-1, -1, 1]), ("colbert_vecs", &[-1, -1, 16])],
    ));
    for count in [1, 3] {
        all.push(classifier("BertForSequenceClassification", json!({"id2label": labels(count)}), count));
    }
    let chat = classifier("Qwen3ForSequenceClassification", json!({"id2label": labels(1)}), 1);
    write(chat.path(), "chat_template.jinja", b"{{ messages[0]['content'] }}");
    all.push(chat);
    let tokens = classifier("BertForTokenClassification", json!({"id2label": labels(3)}), 3);
    write(tokens.path(), "model.onnx", &onnx(&IDS, &[("logits", &[-1, -1, 3])]));
    all.push(tokens);
    let masked = classifier("BertForMaskedLM", json!({"vocab_size": 10}), 2);
    write(masked.path(), "model.onnx", &onnx(&IDS, &[("logits", &[-1, -1, 10])]));
    all.push(masked);
    all
}

#[test]
fn each_value_has_an_origin_and_each_guess_is_told() {
    let mut reached = std::collections::BTreeSet::new();
    for folder in folders() {
        let description = read(&folder, Choices::default()).unwrap_or_else(|error| panic!("{error}"));
        let (rows, warnings) = (description.table(), description.warnings());
        for row in &rows {
            assert!(!row.origin.is_empty(), "{row:?}");
            let told = warnings.iter().filter(|told| told.contains(&row.origin)).count();
            assert_eq!(told > 0, row.is_guess, "{row:?}: {warnings:?}");
            if row.is_guess {
                let is_layer = row.value.starts_with("dense:");
                reached.insert(if is_layer { "layer" } else { row.what });
            }
        }
        // Also of values that have no row.
        for guess in format!("{description:?}").split("origin: \"guessed").skip(1) {
            let why = guess.split('"').next().unwrap();
            assert!(warnings.iter().any(|told| told.contains(why)), "guessed{why}: {warnings:?}");
        }
        // `--strict`, and with it `trireme validate`, refuses each of them by its name.
        let guesses: Vec<_> = rows.iter().filter(|row| row.is_guess).collect();
        match read(&folder, Choices { strict: true, ..Choices::default() }) {
            Ok(_) => assert_eq!(guesses.len(), 0, "{guesses:?}"),
            Err(refused) => {
                assert!(!guesses.is_empty() && refused.contains("--strict allows no guess"), "{refused}");
                assert!(guesses.iter().all(|row| refused.contains(&row.origin)), "{refused}: {guesses:?}");
            }
        }
    }
    // Each value that may be guessed, was.
    let known: std::collections::BTreeSet<_> = REMEDIES.iter().map(|(name, _)| *name).collect();
    assert_eq!(reached, known);
}

#[test]
fn a_classifier_with_one_label_scores_pairs_and_single_texts() {
    let folder = classifier("BertForSequenceClassification", json!({"id2label": {"0": "toxic"}}), 1);
    let description = read(&folder, Choices::default()).unwrap();
    assert_eq!((description.tasks(), description.warnings()), (vec![Task::Rerank, Task::Classify], &[] as &[String]));
    let ensemble = configs(&folder).remove(0);
    assert_eq!(ensemble.parameters["task"], "rerank, classify");
    let optional: Vec<_> = ensemble.inputs.iter().map(|input| (input.name.as_str(), input.optional)).collect();
    assert_eq!(optional, [("TEXT", false), ("TEXT_PAIR", true)]);
    // A cross-encoder says that it takes pairs.
    let fields =
        json!({"id2label": {"0": "score"}, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"});
    let pairs = classifier("BertForSequenceClassification", fields, 1);
    assert_eq!(read(&pairs, Choices::default()).unwrap().tasks(), [Task::Rerank]);
    assert!(configs(&pairs)[0].inputs.iter().all(|input| !input.optional));
}

#[test]
fn three_results_of_one_graph_are_one_model() {
    let outputs: [(&str, &[i64]); 3] =
        [("dense_vecs", &[-1, 8]), ("sparse_vecs", &[-1, -1, 1]), ("colbert_vecs", &[-1, -1, 16])];
    let folder = sentence(&[TRANSFORMER, POOLING], &outputs);
    let description = read(&folder, Choices::default()).unwrap();
    assert_eq!(description.tasks(), [Task::Embed, Task::Sparse, Task::MultiVector]);
    let models = configs(&folder);
    let named = |name: &str| models.iter().find(|model| model.name == name).unwrap();
    let given = |name: &str| named(name).outputs.iter().map(|output| output.name.as_str()).collect::<Vec<_>>();
    let all = ["sentence_embedding", "sparse_indices", "sparse_values", "token_embeddings", "token_mask"];
    assert_eq!(given("m"), all);
    assert_eq!(given("m_model"), ["dense_vecs", "sparse_vecs", "colbert_vecs"]);
    assert_eq!(named("m_model").parameters["unpad_outputs"], "sparse_vecs, colbert_vecs");
    for (model, input, ops) in [
        ("m_postprocess", "dense_vecs", "slice:8"),
        ("m_sparse", "sparse_vecs", "lexical:3"),
        ("m_multi_vector", "colbert_vecs", "mask, normalize"),
    ] {
        assert_eq!((named(model).inputs[0].name.as_str(), own_ops(named(model)).as_str()), (input, ops));
    }
    // Without a mask the padding of a request counts as text: only the dense vectors, one text a run, are served.
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS[..1], &outputs));
    let dense = read(&folder, Choices::default()).unwrap();
    assert_eq!(dense.tasks(), [Task::Embed]);
    let told = dense.table().into_iter().find(|row| row.what == "not served").unwrap();
    assert!(told.origin.contains("without an input attention_mask"), "{told:?}");
    assert_eq!(configs(&folder)[0].parameters["max_rows_per_message"], "1");
    // A flag names a single output.
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &outputs));
    let mut choices = FolderChoices::default();
    choices.add("output", &["dense_vecs".to_owned()]).unwrap();
    assert_eq!(read(&folder, choices.of("m")).unwrap().tasks(), [Task::Embed]);
}

#[test]
fn names_of_tensorflow_are_refused_with_what_renames_them() {
    let inputs: [(&str, &[i64]); 2] = [("input_ids:0", &[-1, -1]), ("attention_mask:0", &[-1, -1])];
    let folder = sentence(&[TRANSFORMER, POOLING], &[]);
    write(folder.path(), "onnx/model.onnx", &onnx(&inputs, &[("Identity:0", &[-1, -1, 8])]));
    let refused = read(&folder, Choices::default()).unwrap_err();
    assert!(refused.contains("input_ids:0, attention_mask:0") && refused.contains("python -c"), "{refused}");
    assert!(!refused.contains("which no tokenizer makes"), "one fault: {refused}");
}

#[test]
fn vectors_of_an_open_width_have_that_of_the_model() {
    // DPR's vector, that of the first token, has the name of BERT's pooler.
    for name in ["embeddings", "pooler_output"] {
        let folder = sentence(&[], &[]);
        fs::remove_file(folder.path().join("modules.json")).unwrap();
        let node = |op: &str, input: &str, output: &str| {
            bytes(1, &[bytes(1, input.as_bytes()), bytes(2, output.as_bytes()), bytes(4, op.as_bytes())].concat())
        };
        let nodes = [node("LayerNormalization", "h", "states"), node("Gather", "states", name)].concat();
        let graph = onnx(&IDS, &[(name, &[-1, -1])]);
        write(folder.path(), "onnx/model.onnx", &bytes(7, &[&nodes, inner(&graph)].concat()));
        let description = read(&folder, Choices::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(output(&configs(&folder)[0], "sentence_embedding"), [-1, 8]);
        assert!(description.warnings().is_empty(), "{name}: {:?}", description.warnings());
    }
}
