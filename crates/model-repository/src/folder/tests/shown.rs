//! What graphs show about their outputs, and what is told about guesses.

use super::*;

/// An ONNX file with these nodes (op, inputs, output); inputs in capitals are weights.
fn graph(inputs: &[(&str, &[i64])], outputs: &[(&str, &[i64])], nodes: &[(&str, &[&str], &str)]) -> Vec<u8> {
    let node = |(op, inputs, output): &(&str, &[&str], &str)| {
        let inputs: Vec<u8> = inputs.iter().flat_map(|input| bytes(1, input.as_bytes())).collect();
        bytes(1, &[inputs, bytes(2, output.as_bytes()), bytes(4, op.as_bytes())].concat())
    };
    let names = nodes.iter().flat_map(|(_, inputs, _)| inputs.iter());
    let weights = names.filter(|name| name.chars().all(char::is_uppercase));
    let weights: Vec<u8> = weights.flat_map(|name| bytes(5, &bytes(8, name.as_bytes()))).collect();
    let nodes: Vec<u8> = nodes.iter().flat_map(node).collect();
    bytes(7, &[nodes, weights, inner(&onnx(inputs, outputs)).to_vec()].concat())
}

fn read(folder: &TempDir) -> Result<FolderDescription, String> {
    FolderDescription::read(folder.path(), Precision::Exact).map_err(|error| error.to_string())
}

/// What the chain makes of the graph's output: its name and the ops.
fn chain(folder: &TempDir) -> (String, String) {
    let models = configs(folder);
    let model = models.iter().find(|model| model.name == "m_model").unwrap();
    let post = models.iter().find(|model| model.name == "m_postprocess").unwrap();
    (model.outputs[0].name.clone(), post.parameters["ops"].clone())
}

const NORMALIZE: (&str, &str) = ("sentence_transformers.models.Normalize", "2_Normalize");

fn pooled_by_mean(graph: &[u8]) -> TempDir {
    let folder = encoder(
        &[TRANSFORMER, POOLING, NORMALIZE],
        &[("1_Pooling/config.json", json!({"pooling_mode": "mean", "embedding_dimension": 8}))],
    );
    write(folder.path(), "onnx/model.onnx", graph);
    folder
}

#[test]
fn probabilities_are_not_made_twice() {
    for (op, expected) in [("Softmax", "slice:3"), ("Sigmoid", "slice:3"), ("Identity", "softmax")] {
        let folder =
            classifier("BertForSequenceClassification", json!({"id2label": {"0": "a", "1": "b", "2": "c"}}), 3);
        let nodes = [("Gemm", &["x", "W"] as &[_], "z"), (op, &["z"], "probabilities")];
        write(folder.path(), "model.onnx", &graph(&IDS, &[("probabilities", &[-1, 3])], &nodes));
        assert_eq!(chain(&folder), ("probabilities".to_owned(), expected.to_owned()), "{op}");
    }
}

#[test]
fn the_vector_of_several_outputs_is_taken_by_its_name_or_by_what_the_graph_shows() {
    let heads = |vector: &'static str, tokens: &'static str| {
        let nodes = [
            ("LayerNormalization", &["h", "G", "B"] as &[_], "n"),
            ("Gather", &["n", "I"], vector),
            ("MatMul", &["n", "W"], tokens),
        ];
        graph(&IDS, &[(vector, &[-1, 8]), (tokens, &[-1, -1, 16])], &nodes)
    };
    for (vector, tokens) in [("dense_vecs", "colbert_vecs"), ("embeddings", "token_vectors"), ("out_0", "out_1")] {
        assert_eq!(chain(&pooled_by_mean(&heads(vector, tokens))).0, vector);
    }
    // States of the layers are pooled, whatever stands beside them.
    let nodes = [
        ("LayerNormalization", &["h", "G", "B"] as &[_], "states"),
        ("Gather", &["states", "I"], "first"),
        ("Gemm", &["first", "W", "B"], "layer"),
        ("Tanh", &["layer"], "pooled"),
    ];
    let states = graph(&IDS, &[("states", &[-1, -1, 8]), ("pooled", &[-1, 8])], &nodes);
    assert_eq!(chain(&pooled_by_mean(&states)), ("states".to_owned(), "pool:mean, normalize".to_owned()));
}

#[test]
fn a_layer_that_the_graph_shows_is_not_run_again() {
    let nodes = [
        ("LayerNormalization", &["h", "G", "B"] as &[_], "n"),
        ("MatMul", &["n", "W"], "p"),
        ("ReduceL2", &["p"], "l"),
        ("Div", &["p", "l"], "output"),
    ];
    let dense = ("pylate.models.Dense.Dense", "1_Dense");
    let own = json!({"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 24,
        "document_length": 48});
    let files = [
        ("config_sentence_transformers.json", own.clone()),
        (
            "1_Dense/config.json",
            json!({"in_features": 8, "out_features": 8, "bias": false,
            "activation_function": "torch.nn.modules.linear.Identity"}),
        ),
    ];
    let folder = encoder(&[TRANSFORMER, dense], &files);
    write(
        folder.path(),
        "1_Dense/model.safetensors",
        &safetensors(json!({"linear.weight": {"dtype": "F32", "shape": [8, 8], "data_offsets": [0, 256]}})),
    );
    write(folder.path(), "onnx/model.onnx", &graph(&IDS, &[("output", &[-1, -1, -1])], &nodes));
    assert_eq!(chain(&folder), ("output".to_owned(), "mask, normalize".to_owned()));
    // Without the layer in the graph it is run.
    write(folder.path(), "onnx/model.onnx", &graph(&IDS, &[("output", &[-1, -1, 8])], &nodes[..1]));
    assert_eq!(chain(&folder).1, "dense:1_Dense, mask, normalize");
}

#[test]
fn what_is_no_vector_is_refused_with_the_remedy() {
    let pooler = [("Gather", &["n", "I"] as &[_], "f"), ("Gemm", &["f", "W", "B"], "g"), ("Tanh", &["g"], "out")];
    for name in ["pooler_output", "out"] {
        let folder = pooled_by_mean(&graph(&IDS, &[(name, &[-1, 8])], &pooler));
        let refused = read(&folder).unwrap_err();
        assert!(refused.contains("BERT's pooler") && refused.contains("trireme export"), "{refused}");
        assert!(refused.contains("--accept pooler-output"), "{refused}");
    }
    let config = json!({"model_type": "bert", "architectures": ["Custom"], "hidden_size": 8, "vocab_size": 10,
        "max_position_embeddings": 64, "id2label": {"0": "a", "1": "b", "2": "c"}});
    let other = |width: i64| {
        let folder = folder(&[("config.json", config.clone())]);
        for (name, content) in tokenizer() {
            write(folder.path(), name, content.to_string().as_bytes());
        }
        write(folder.path(), "model.onnx", &onnx(&IDS, &[("output", &[-1, width])]));
        read(&folder)
    };
    let scores = other(3).unwrap_err();
    assert!(scores.contains("id2label") && scores.contains("--task classify"), "{scores}");
    let weights = other(10).unwrap_err();
    assert!(weights.contains("vocab_size") && weights.contains("--task sparse"), "{weights}");
    assert!(other(8).is_ok());
}

#[test]
fn without_a_mask_each_text_runs_alone() {
    let folder = pooled_by_mean(&onnx(&IDS[..1], &[("last_hidden_state", &[-1, -1, 8])]));
    let models = configs(&folder);
    assert_eq!(models[0].max_rows_per_message, Some(1));
    assert!(models.iter().all(|model| !model.parameters.contains_key("pad_inputs")));
    let tokens = classifier("BertForTokenClassification", json!({"id2label": {"0": "O", "1": "B-A"}}), 2);
    write(tokens.path(), "model.onnx", &onnx(&IDS[..1], &[("logits", &[-1, -1, 2])]));
    let refused = read(&tokens).unwrap_err();
    assert!(refused.contains("no input attention_mask") && refused.contains("trireme export"), "{refused}");
}

#[test]
fn a_graph_in_any_folder_is_found_and_named() {
    let folder = pooled_by_mean(&onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8])]));
    fs::create_dir_all(folder.path().join("onnx_cpu/fp32")).unwrap();
    fs::rename(folder.path().join("onnx/model.onnx"), folder.path().join("onnx_cpu/fp32/model.onnx")).unwrap();
    assert_eq!(read(&folder).unwrap().graph(), Some("onnx_cpu/fp32/model.onnx"));
    write(folder.path(), "other/second.onnx", &onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8])]));
    let choices = Choices { graph: Some("other/second.onnx".to_owned()), ..Choices::default() };
    assert_eq!(FolderDescription::read(folder.path(), choices).unwrap().graph(), Some("other/second.onnx"));
}

#[test]
fn each_value_has_an_origin_and_each_guess_is_told() {
    let mut folders = vec![pooled_by_mean(&onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8])]))];
    let bare = tempfile::tempdir().unwrap();
    write(bare.path(), "tokenizer.json", tokenizer()[0].1.to_string().as_bytes());
    write(bare.path(), "model.onnx", &onnx(&IDS, &[("a", &[-1, -1, 8]), ("b", &[-1, -1])]));
    folders.push(bare);
    folders.push(classifier("BertForSequenceClassification", json!({"id2label": {"0": "a"}}), 1));
    let mut guesses = 0;
    for folder in folders {
        let description = read(&folder).unwrap_or_else(|error| panic!("{error}"));
        for row in description.table() {
            assert!(!row.origin.is_empty(), "{row:?}");
            let told = description.warnings().iter().filter(|told| told.contains(&row.origin)).count();
            assert_eq!(told > 0, row.is_guess, "{row:?}: {:?}", description.warnings());
            guesses += usize::from(row.is_guess);
        }
        let strict = FolderDescription::read(folder.path(), Choices { strict: true, ..Choices::default() });
        assert_eq!(strict.is_err(), description.table().iter().any(|row| row.is_guess));
    }
    assert!(guesses >= 5, "{guesses}");
}
