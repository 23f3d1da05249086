//! Facts that graphs show about their outputs, and warnings about guesses.

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

/// The name of the graph's output, and the chain's ops on it.
fn chain(folder: &TempDir) -> (String, String) {
    let models = configs(folder);
    let model = models.iter().find(|model| model.name == "m_model").unwrap();
    let post = models.iter().find(|model| model.name == "m_postprocess").unwrap();
    (model.outputs[0].name.clone(), own_ops(post))
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
        let end = configs(&folder)[3].parameters.get("graph_ends_with").cloned();
        assert_eq!(end, (op != "Identity").then(|| op.to_lowercase()));
        // The labels of the folder are for softmax.
        assert_eq!(read(&folder).unwrap().warnings().len(), usize::from(op == "Sigmoid"));
    }
}

#[test]
fn layers_of_the_library_are_run_once_however_many_the_graph_has() {
    let own = json!({"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 24,
        "document_length": 48});
    let names = ["1_Dense", "2_Dense", "3_Dense"];
    let folder = |widths: [i64; 4], has: usize, output: &str, width: i64| {
        let mut modules = vec![TRANSFORMER];
        modules.extend(names.map(|name| ("pylate.models.Dense.Dense", name)));
        let folder = encoder(&modules, &[("config_sentence_transformers.json", own.clone())]);
        for (at, name) in names.into_iter().enumerate() {
            let [from, to] = [widths[at], widths[at + 1]];
            let config = json!({"in_features": from, "out_features": to, "bias": false,
                "activation_function": "torch.nn.modules.linear.Identity"});
            write(folder.path(), &format!("{name}/config.json"), config.to_string().as_bytes());
            let weight = json!({"linear.weight": {"dtype": "F32", "shape": [to, from], "data_offsets": [0, 0]}});
            write(folder.path(), &format!("{name}/model.safetensors"), &safetensors(weight));
        }
        let layers = [
            ("LayerNormalization", &["h", "G", "B"] as &[_], "n"),
            ("MatMul", &["n", "W"], "p"),
            ("Gelu", &["p"], "g"),
            ("MatMul", &["g", "W"], "q"),
            ("MatMul", &["q", "W"], "r"),
            ("MatMul", &["r", "W"], "s"),
        ];
        let last = ["n", "p", "q", "r", "s"][has];
        let last = [last];
        let nodes: Vec<_> = layers.iter().copied().chain([("Identity", &last as &[_], output)]).collect();
        write(folder.path(), "onnx/model.onnx", &graph(&IDS, &[(output, &[-1, -1, width])], &nodes));
        folder
    };
    let left = |has: usize| names[has..].iter().map(|name| format!("dense:{name}, ")).collect::<String>();
    for has in 0..=3 {
        assert_eq!(chain(&folder([8; 4], has, "output", -1)).1, format!("{}mask, normalize", left(has)), "{has} of 3");
    }
    let narrower = [8, 6, 4, 2];
    for has in 0..=3 {
        let found = chain(&folder(narrower, has, "output", narrower[has])).1;
        assert_eq!(found, format!("{}mask, normalize", left(has)), "{has} of 3");
    }
    let refused = read(&folder([8; 4], 4, "output", -1)).unwrap_err();
    assert!(refused.contains("4 linear layers") && refused.contains("modules.json: [3]"), "{refused}");
    assert!(refused.contains("trireme export") && refused.contains("--accept modules-in-graph"), "{refused}");
    // A graph whose nodes show nothing: the width does, or it is a guess.
    let dark = |widths, output: &'static str, width| {
        let folder = folder(widths, 0, "output", 8);
        write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[(output, &[-1, -1, width])]));
        folder
    };
    assert_eq!(chain(&dark(narrower, "output", 4)).1, "dense:3_Dense, mask, normalize");
    let guessed = dark([8; 4], "output", 8);
    assert_eq!(chain(&guessed).1, format!("{}mask, normalize", left(0)));
    let told = read(&guessed).unwrap().warnings().join("; ");
    assert!(told.contains("nothing shows whether the graph runs") && told.contains("trireme export"), "{told}");
    assert!(read(&dark([8; 4], "last_hidden_state", 8)).unwrap().warnings().is_empty());
}

#[test]
fn layers_behind_a_pooling_within_the_graph_are_counted() {
    let dense = |name| ("sentence_transformers.models.Dense", name);
    let folder = |has: usize, to: i64| {
        let folder = encoder(
            &[TRANSFORMER, POOLING, dense("2_Dense"), dense("3_Dense")],
            &[("1_Pooling/config.json", json!({"pooling_mode": "mean", "embedding_dimension": 8}))],
        );
        for name in ["2_Dense", "3_Dense"] {
            let config = json!({"in_features": 8, "out_features": 8, "bias": false,
                "activation_function": "torch.nn.modules.activation.Tanh"});
            write(folder.path(), &format!("{name}/config.json"), config.to_string().as_bytes());
            let weight = json!({"linear.weight": {"dtype": "F32", "shape": [8, 8], "data_offsets": [0, 0]}});
            write(folder.path(), &format!("{name}/model.safetensors"), &safetensors(weight));
        }
        let last = [["mean", "a", "b", "z"][has]];
        let nodes = [
            ("Unsqueeze", &["attention_mask", "A"] as &[_], "u"),
            ("Mul", &["h", "u"], "m"),
            ("ReduceSum", &["m", "A"], "t"),
            ("ReduceSum", &["u", "A"], "c"),
            ("Div", &["t", "c"], "mean"),
            ("Gemm", &["mean", "W"], "p"),
            ("Tanh", &["p"], "a"),
            ("Gemm", &["a", "W"], "q"),
            ("Tanh", &["q"], "b"),
            ("Gemm", &["b", "W"], "z"),
            ("Identity", &last, "sentence_embedding"),
        ];
        write(folder.path(), "onnx/model.onnx", &graph(&IDS, &[("sentence_embedding", &[-1, to])], &nodes));
        folder
    };
    for to in [8, -1] {
        assert_eq!(chain(&folder(0, to)).1, "dense:2_Dense, dense:3_Dense");
        assert_eq!(chain(&folder(1, to)).1, "dense:3_Dense");
        assert_eq!(chain(&folder(2, to)).1, "slice:8");
        let refused = read(&folder(3, to)).unwrap_err();
        assert!(refused.contains("3 linear layers") && refused.contains("--accept modules-in-graph"), "{refused}");
    }
}

#[test]
fn a_graph_that_pools_in_another_way_than_the_folder_says_is_refused() {
    let pooled = |nodes: &[(&str, &[&str], &str)], mode: &str| {
        let folder = encoder(
            &[TRANSFORMER, POOLING],
            &[("1_Pooling/config.json", json!({"pooling_mode": mode, "embedding_dimension": 8}))],
        );
        write(folder.path(), "onnx/model.onnx", &graph(&IDS, &[("sentence_embedding", &[-1, 8])], nodes));
        read(&folder).map(|_| ())
    };
    let first: [(&str, &[&str], &str); 1] = [("Gather", &["h", "I"], "sentence_embedding")];
    let all: [(&str, &[&str], &str); 1] = [("ReduceMean", &["h", "A"], "sentence_embedding")];
    pooled(&first, "cls").unwrap();
    pooled(&all, "mean").unwrap();
    for (nodes, mode, found) in [(&first, "mean", "the vector of one token"), (&all, "cls", "pooled over all tokens")] {
        let refused = pooled(nodes, mode).unwrap_err();
        assert!(refused.contains(found) && refused.contains("--accept pooling-in-graph"), "{refused}");
        assert!(
            refused.contains("1_Pooling/config.json: pooling_mode is") && refused.contains("trireme export"),
            "{refused}"
        );
    }
}

#[test]
fn vectors_of_late_interaction_are_not_pooled_and_opts_own_layer_is_the_models() {
    let nodes = [("LayerNormalization", &["h", "G", "B"] as &[_], "n"), ("MatMul", &["n", "W"], "token_embeddings")];
    let projected = graph(&IDS, &[("token_embeddings", &[-1, -1, 8])], &nodes);
    let folder = pooled_by_mean(&projected);
    let refused = read(&folder).unwrap_err();
    assert!(refused.contains("a linear layer") && refused.contains("--task multi_vector"), "{refused}");
    let config = json!({"model_type": "opt", "architectures": ["OPTModel"], "hidden_size": 16, "word_embed_proj_dim": 8,
        "max_position_embeddings": 64, "vocab_size": 10});
    write(folder.path(), "config.json", config.to_string().as_bytes());
    assert_eq!(chain(&folder).1, "pool:mean, normalize");
}

#[test]
fn the_vector_of_several_outputs_is_taken_by_its_name_or_by_what_the_graph_shows() {
    let heads = |vector: &'static str, tokens: &'static str| {
        let nodes = [
            ("LayerNormalization", &["h", "G", "B"] as &[_], "n"),
            ("ReduceMean", &["n", "A"], vector),
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

fn choose(flags: &[(&'static str, &str)]) -> Choices {
    let mut choices = FolderChoices::default();
    flags.iter().for_each(|(flag, value)| choices.add(flag, &[(*value).to_owned()]).unwrap());
    choices.of("m")
}

#[test]
fn a_flag_names_the_output() {
    let nodes = [
        ("LayerNormalization", &["h", "G", "B"] as &[_], "n"),
        ("ReduceMean", &["n", "A"], "dense_vecs"),
        ("MatMul", &["n", "W"], "colbert_vecs"),
        ("MatMul", &["n", "W"], "z"),
        ("Relu", &["z"], "sparse_vecs"),
        ("Slice", &["n", "I"], "s"),
        ("MatMul", &["s", "W"], "sliced"),
    ];
    let outputs: [(&str, &[i64]); 5] = [
        ("dense_vecs", &[-1, 8]),
        ("colbert_vecs", &[-1, -1, 16]),
        ("second", &[-1, 8]),
        ("sparse_vecs", &[-1, -1, 1]),
        ("sliced", &[-1, -1, 16]),
    ];
    let folder = pooled_by_mean(&graph(&IDS, &outputs, &nodes));
    let with = |flags: &[(&'static str, &str)]| {
        FolderDescription::read(folder.path(), choose(flags)).map_err(|error| error.to_string())
    };
    let taken = |flags: &[(&'static str, &str)]| {
        let description = with(flags).unwrap_or_else(|error| panic!("{error}"));
        let models = description.models("m", 1);
        let parse = |at: usize| ModelConfig::parse(&models[at].config, &models[at].name).unwrap();
        assert_eq!(description.warnings(), [""; 0]);
        (parse(2).outputs[0].name.clone(), own_ops(&parse(3)))
    };
    let own = |output: &str, ops: &str| (output.to_owned(), ops.to_owned());
    assert_eq!(taken(&[]), own("dense_vecs", "normalize"));
    assert_eq!(taken(&[("output", "second")]), own("second", "normalize"));
    let late = [("output", "colbert_vecs"), ("task", "multi_vector")];
    assert_eq!(taken(&late), own("colbert_vecs", "mask"));
    assert_eq!(taken(&[("output", "sparse_vecs"), ("task", "sparse")]), own("sparse_vecs", "lexical:3"));
    let refused = with(&[("output", "sliced"), ("task", "multi_vector")]).unwrap_err();
    assert!(refused.contains("leaves out the vectors of some tokens"), "{refused}");
    let refused = with(&[("output", "colbert_vecs")]).unwrap_err();
    assert!(refused.contains("--task multi_vector"), "{refused}");
    let refused = with(&[("output", "dense")]).unwrap_err();
    assert!(
        refused.contains("--output dense: onnx/model.onnx gives dense_vecs [-1, 8], colbert_vecs [-1, -1, 16]"),
        "{refused}"
    );
    // Outputs without a known name: the one that is taken is a guess.
    let outputs: [(&str, &[i64]); 2] = [("a", &[-1, 8]), ("b", &[-1, -1, 16])];
    let nodes = [
        ("LayerNormalization", &["h", "G", "B"] as &[_], "n"),
        ("ReduceMean", &["n", "A"], "a"),
        ("MatMul", &["n", "W"], "b"),
    ];
    let guessed = read(&pooled_by_mean(&graph(&IDS, &outputs, &nodes))).unwrap();
    assert!(guessed.warnings().iter().any(|told| told.contains("with --output")), "{:?}", guessed.warnings());
}

#[test]
fn classifiers_of_other_forms_are_refused_with_what_helps() {
    let labels = json!({"id2label": {"0": "a", "1": "b"}});
    let folder = classifier("BertForSequenceClassification", labels.clone(), 2);
    write(folder.path(), "model.onnx", &onnx(&IDS, &[("intent", &[-1, 2]), ("topic", &[-1, 2])]));
    let refused = read(&folder).unwrap_err();
    assert!(refused.contains("intent [-1, 2], topic [-1, 2]; name the one that is meant with --output"), "{refused}");
    let topic = FolderDescription::read(folder.path(), choose(&[("output", "topic")])).unwrap();
    assert!(topic.table().iter().any(|row| row.what == "output" && row.value == "topic"));
    write(folder.path(), "model.onnx", &onnx(&IDS, &[("logits", &[-1, -1, 2])]));
    let refused = read(&folder).unwrap_err();
    assert!(refused.contains("a score for each token") && !refused.contains("export"), "{refused}");
}

#[test]
fn weights_that_no_exporter_reads_are_named_with_the_reason() {
    for (file, why) in [
        ("tf_model.h5", "transformers 5 does not read"),
        ("saved_model/saved_model.pb", "transformers 5 does not read"),
        ("flax_model.msgpack", "transformers 5 does not read"),
        ("model.ort", "ONNX Runtime's own form"),
    ] {
        let folder = encoder(&[TRANSFORMER, POOLING], &[("1_Pooling/config.json", json!({"pooling_mode": "mean"}))]);
        fs::remove_dir_all(folder.path().join("onnx")).unwrap();
        write(folder.path(), file, b"");
        let refused = read(&folder).unwrap_err();
        assert!(refused.contains(file) && refused.contains(why), "{refused}");
        assert!(
            !refused.contains("trireme export") && !refused.contains("optimum-cli"),
            "advice in a circle: {refused}"
        );
    }
}

#[test]
fn added_tokens_beyond_the_table_are_told_and_others_refused() {
    let json = |vocab: Value| json!({"model": {"vocab": vocab}, "added_tokens": [{"id": 12, "content": "<extra>"}]});
    let of = |vocab: Value| {
        encoder(
            &[TRANSFORMER, POOLING],
            &[("1_Pooling/config.json", json!({"pooling_mode": "mean"})), ("tokenizer.json", json(vocab))],
        )
    };
    let told = read(&of(json!({"a": 0, "[PAD]": 3, "b": 9}))).unwrap().warnings().join("; ");
    assert!(told.contains("added tokens with ids up to 12") && told.contains("vocab_size has 10 rows"), "{told}");
    let refused = read(&of(json!({"a": 0, "[PAD]": 3, "b": 10}))).unwrap_err();
    assert!(refused.contains("has ids up to 12") && refused.contains("10 rows"), "{refused}");
}

#[test]
fn one_bad_folder_is_a_broken_model_beside_the_others() {
    let good = pooled_by_mean(&onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8])]));
    let bad = pooled_by_mean(b"no graph");
    let all = [(Some("good"), good.path()), (Some("bad"), bad.path()), (Some("worse"), bad.path())];
    let faults = crate::ModelSources::open(all, &FolderChoices::default()).unwrap_err();
    assert_eq!(faults.len(), 2, "{faults:?}");
    let sources = crate::ModelSources::open_what_can_be_served(all, &FolderChoices::default()).unwrap();
    assert_eq!(sources.broken.iter().map(|broken| broken.name.as_str()).collect::<Vec<_>>(), ["bad", "worse"]);
    let repository = Repository::read_what_is_there(&sources.repositories, &[]);
    let names: Vec<_> = repository.models().map(|model| model.name.as_str()).collect();
    assert_eq!(names, ["good", "good_model", "good_postprocess", "good_tokenizer"]);
    for (name, broken) in repository.broken() {
        assert!(["bad", "worse"].contains(&name), "{name}");
        assert_eq!(broken.versions, [1]);
        assert!(broken.fault.to_string().contains("onnx/model.onnx cannot be read"), "{}", broken.fault);
    }
    assert_eq!(repository.broken().count(), 2);
}

#[test]
fn weights_of_queries_that_are_not_read_are_told() {
    let splade = ("sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling", "1_Splade");
    let folder = encoder(&[TRANSFORMER, splade], &[("1_Splade/config.json", json!({"pooling_strategy": "max"}))]);
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[("logits", &[-1, -1, 10])]));
    assert_eq!(read(&folder).unwrap().warnings(), [""; 0]);
    write(folder.path(), "idf.json", b"{}");
    let told = read(&folder).unwrap().warnings().join("; ");
    assert!(told.contains("idf.json") && told.contains("is not read"), "{told}");
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
