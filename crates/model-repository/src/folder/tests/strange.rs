//! Folders whose files contradict each other, or say what libraries understand and few folders have.

use super::*;
use crate::Task;

const DENSE: (&str, &str) = ("sentence_transformers.base.modules.dense.Dense", "2_Dense");

fn mean() -> (&'static str, Value) {
    ("1_Pooling/config.json", json!({"pooling_mode": "mean", "embedding_dimension": 8}))
}

/// A folder with a Dense behind its pooling, from 8 to this width.
fn with_dense(to: i64, files: &[(&str, Value)]) -> TempDir {
    let dense = json!({"in_features": 8, "out_features": to, "bias": false,
        "activation_function": "torch.nn.modules.linear.Identity"});
    let files: Vec<_> = [&[mean(), ("2_Dense/config.json", dense)], files].concat();
    let folder = encoder(&[TRANSFORMER, POOLING, DENSE], &files);
    let weight = json!({"linear.weight": {"dtype": "F32", "shape": [to, 8], "data_offsets": [0, 0]}});
    write(folder.path(), "2_Dense/model.safetensors", &safetensors(weight));
    folder
}

fn choose(flag: &'static str, value: &str) -> Choices {
    let mut choices = FolderChoices::default();
    choices.add(flag, &[value.to_owned()]).unwrap();
    choices.of("m")
}

#[track_caller]
fn read(folder: &TempDir, choices: Choices) -> FolderDescription {
    FolderDescription::read(folder.path(), choices).unwrap_or_else(|error| panic!("{error}"))
}

fn config(description: &FolderDescription, at: usize) -> ModelConfig {
    let model = description.models("m", 1).remove(at);
    ModelConfig::parse(&model.config, &model.name).unwrap_or_else(|error| panic!("{error}\n{}", model.config))
}

fn ops(description: &FolderDescription) -> String {
    own_ops(&config(description, 3))
}

/// The contradiction is one fault, which names the flag; with the flag the folder is served, and a warning says so.
#[track_caller]
fn is_settled_by_accept(folder: &TempDir, name: &str) -> FolderDescription {
    let found = faults(folder);
    let flag = format!("--accept {name}");
    assert!(found.len() == 1 && found[0].contains(&flag), "{found:?}");
    let accepted = read(folder, choose("accept", name));
    assert!(accepted.warnings().iter().any(|warning| warning.contains(&flag)), "{:?}", accepted.warnings());
    accepted
}

#[test]
fn classes_of_the_folders_own_code_are_not_those_of_a_library() {
    let folder = encoder(&[("custom_st.Transformer", ""), POOLING], &[mean()]);
    is_settled_by_accept(&folder, "custom-module");
}

#[test]
fn scores_behind_a_pooling_are_those_of_a_cross_encoder() {
    let own = json!({"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"});
    let one = read(&with_dense(1, &[("config_sentence_transformers.json", own)]), Choices::default());
    assert_eq!((one.tasks(), ops(&one).as_str()), (vec![Task::Rerank], "pool:mean, dense:2_Dense"));
    assert_eq!(output(&config(&one, 0), "scores"), [-1, 1]);
    let own = json!({"model_type": "CrossEncoder"});
    let one = read(&with_dense(1, &[("config_sentence_transformers.json", own.clone())]), Choices::default());
    assert!(ops(&one).ends_with(", sigmoid"), "the library's default for one score");
    let three = read(&with_dense(3, &[("config_sentence_transformers.json", own)]), Choices::default());
    assert_eq!((three.tasks(), output(&config(&three, 0), "scores")), (vec![Task::Classify], vec![-1, 3]));
}

#[test]
fn a_dense_behind_a_graph_that_pools_is_in_the_graph_or_follows_it() {
    let pooled = |to: i64, graph: i64| {
        let folder = with_dense(to, &[]);
        write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[("sentence_embedding", &[-1, graph])]));
        folder
    };
    assert_eq!(ops(&read(&pooled(4, 8), Choices::default())), "dense:2_Dense", "the graph gives the pooling's width");
    assert_eq!(ops(&read(&pooled(4, 4), Choices::default())), "slice:4", "the graph gives the Dense's width");
    is_settled_by_accept(&pooled(8, 8), "modules-in-graph");
    is_settled_by_accept(&pooled(4, -1), "modules-in-graph");
    // The vectors of tokens leave all modules to the ops.
    let both = with_dense(8, &[]);
    let outputs = [("token_embeddings", &[-1, -1, 8][..]), ("sentence_embedding", &[-1, 8])];
    write(both.path(), "onnx/model.onnx", &onnx(&IDS, &outputs));
    assert_eq!(ops(&read(&both, Choices::default())), "pool:mean, dense:2_Dense");
}

#[test]
fn logits_of_a_head_are_no_vectors() {
    for (name, dims) in [("logits", &[-1, 2][..]), ("prediction_logits", &[-1, -1, 8])] {
        let folder =
            encoder(&[], &[("config.json", json!({"architectures": ["BertForPreTraining"], "hidden_size": 8}))]);
        fs::remove_file(folder.path().join("modules.json")).unwrap();
        write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[(name, dims)]));
        let found = faults(&folder);
        assert!(
            found.len() == 1 && found[0].contains("--task classify") && found[0].contains("trireme export"),
            "{found:?}"
        );
    }
}

#[test]
fn a_graph_of_one_row_is_one_fault_with_its_command() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[mean()]);
    let inputs = ["input_ids", "attention_mask"].map(|name| (name, &[1, -1][..]));
    write(folder.path(), "onnx/model.onnx", &onnx(&inputs, &[("last_hidden_state", &[1, -1, 8])]));
    let found = faults(&folder);
    assert!(found.len() == 1 && found[0].contains("attention_mask has dims [1, -1]"), "{found:?}");
    assert!(found[0].contains("onnx/model.onnx.fixed && trireme export"), "{found:?}");
}

#[test]
fn vectors_are_cut_behind_all_modules() {
    let own = ("config_sentence_transformers.json", json!({"truncate_dim": 3}));
    let description = read(&encoder(&[TRANSFORMER, POOLING], &[mean(), own]), Choices::default());
    assert_eq!(ops(&description), "pool:mean, slice:3");
    assert_eq!(output(&config(&description, 0), "sentence_embedding"), [-1, 3]);
}

#[test]
fn a_person_settles_what_the_files_leave_open() {
    let folder = encoder(&[], &[]);
    fs::remove_file(folder.path().join("modules.json")).unwrap();
    let guessed = read(&folder, Choices::default());
    assert!(guessed.warnings()[0].contains("say it with --pooling"), "{:?}", guessed.warnings());
    let told = read(&folder, choose("pooling", "lasttoken"));
    assert_eq!((ops(&told).as_str(), told.warnings()), ("pool:last", &[] as &[String]));
    assert_eq!(ops(&read(&folder, choose("normalize", "true"))), "pool:mean, normalize");

    let one = classifier("BertForSequenceClassification", json!({"id2label": {"0": "score"}}), 1);
    let told = read(&one, choose("task", "classify"));
    assert_eq!((told.tasks(), ops(&told).as_str()), (vec![Task::Classify], "sigmoid"));

    let several = encoder(&[TRANSFORMER, POOLING], &[mean()]);
    let graph = fs::read(several.path().join("onnx/model.onnx")).unwrap();
    fs::remove_file(several.path().join("onnx/model.onnx")).unwrap();
    for name in ["model_q4.onnx", "model_q4f16.onnx"] {
        write(several.path(), &format!("onnx/{name}"), &graph);
    }
    assert!(faults(&several)[0].contains("name one of them, as in --graph onnx/"));
    for name in ["model_q4.onnx", "onnx/model_q4.onnx"] {
        assert_eq!(read(&several, choose("graph", name)).graph(), Some("onnx/model_q4.onnx"));
    }
    let missing = FolderDescription::read(several.path(), choose("graph", "model_q8.onnx")).unwrap_err();
    assert_eq!(
        missing.faults,
        ["--graph names model_q8.onnx, but the ONNX files are: onnx/model_q4.onnx, onnx/model_q4f16.onnx"]
    );
}

#[test]
fn what_the_two_releases_of_transformers_read_differently_is_a_contradiction() {
    let template = |tokens: Value| {
        json!({"model": {"vocab": {"a": 0, "b": 9}},
        "added_tokens": [], "post_processor": {"type": "TemplateProcessing", "single": tokens}})
    };
    let text = json!({"Sequence": {"id": "A"}});
    let token = |name: &str| json!({"SpecialToken": {"id": name}});
    let config = |fields: Value| ("tokenizer_config.json", fields);
    let eos = config(json!({"eos_token": "</s>", "add_eos_token": true, "tokenizer_class": "LlamaTokenizerFast"}));
    let of = |json: Value, config: (&'static str, Value)| {
        encoder(&[TRANSFORMER, POOLING], &[mean(), ("tokenizer.json", json), config])
    };
    let without = of(template(json!([text])), eos.clone());
    assert!(
        faults(&without)[0].contains(r#"single="$A:0 </s>:0", pair="$A:0 </s>:0 $B:1 </s>:1""#),
        "{:?}",
        faults(&without)
    );
    is_settled_by_accept(&without, "add_eos_token");
    read(&of(template(json!([text, token("</s>")])), eos), Choices::default());
    let bos = config(json!({"bos_token": "<s>", "add_bos_token": false}));
    is_settled_by_accept(&of(template(json!([token("<s>"), text])), bos), "add_bos_token");
    // The space before the first word: a class that makes its pre-tokenizer anew decides, others do not agree.
    let bytes =
        json!({"model": {"vocab": {"a": 0}}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}});
    let space = |class: &str| config(json!({"add_prefix_space": true, "tokenizer_class": class}));
    is_settled_by_accept(&of(bytes.clone(), space("PreTrainedTokenizerFast")), "add_prefix_space");
    read(&of(bytes, space("RobertaTokenizerFast")), Choices::default());
}

#[test]
fn pieces_are_read_as_their_class_has_them_or_not_at_all() {
    let pieces = |class: Value| {
        let folder = encoder(&[TRANSFORMER, POOLING], &[mean(), ("tokenizer_config.json", class)]);
        fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
        write(folder.path(), "spiece.model", b"");
        folder
    };
    for class in ["AlbertTokenizer", "PegasusTokenizerFast", "XLMRobertaTokenizer"] {
        let found = faults(&pieces(json!({"tokenizer_class": class})));
        assert!(found[0].contains("AutoTokenizer as T; T.from_pretrained("), "{found:?}");
    }
    read(&pieces(json!({"tokenizer_class": "T5TokenizerFast"})), Choices::default());
    assert!(
        faults(&pieces(json!({})))[0].contains("no tokenizer_class that says how to read it"),
        "a BERT by config.json"
    );
    for class in ["ByT5Tokenizer", "EsmTokenizer"] {
        let never = faults(&pieces(json!({"tokenizer_class": class})));
        assert!(never[0].contains("transformers cannot write one: tokenize in a model.py"), "{never:?}");
    }
}

#[test]
fn the_librarys_arguments_are_read_or_refused() {
    let own = |fields: Value| encoder(&[TRANSFORMER, POOLING], &[mean(), ("sentence_bert_config.json", fields)]);
    let plain = read(&own(json!({"processing_kwargs": {"text": {"add_special_tokens": false}}})), Choices::default());
    assert_eq!(config(&plain, 1).parameters["add_special_tokens"], "false");
    let padded = read(
        &own(json!({"processing_kwargs": {"text": {"padding": "max_length", "max_length": 16}}})),
        Choices::default(),
    );
    let tokenizer = config(&padded, 1);
    assert_eq!(
        (tokenizer.parameters["padding"].as_str(), tokenizer.parameters["max_length"].as_str()),
        ("max_length", "16")
    );
    let found =
        faults(&own(json!({"processing_kwargs": {"text": {"stride": 4}}, "tokenizer_args": {"do_lower_case": true}})));
    assert!(found[0].contains("processing_kwargs.text.stride is 4, which is not supported"), "{found:?}");
    assert!(
        found[1].contains("tokenizer_args.do_lower_case is true")
            && found[1].ends_with("write it into tokenizer_config.json")
    );
    let unknown = read(&own(json!({"reverse_texts": true, "max_seq_length": 32})), Choices::default());
    assert_eq!(unknown.warnings(), ["sentence_bert_config.json: reverse_texts is not understood and has no effect"]);
    assert_eq!(
        config(&read(&own(json!({"tokenizer_args": {"model_max_length": 20}})), Choices::default()), 1).parameters["max_length"],
        "20"
    );
}

#[test]
fn a_graph_of_one_length_gets_rows_of_it_with_the_texts_cut_before() {
    let folder =
        encoder(&[TRANSFORMER, POOLING], &[mean(), ("sentence_bert_config.json", json!({"max_seq_length": 24}))]);
    let fixed: [(&str, &[i64]); 2] = [("input_ids", &[-1, 32]), ("attention_mask", &[-1, 32])];
    write(folder.path(), "onnx/model.onnx", &onnx(&fixed, &[("last_hidden_state", &[-1, 32, 8])]));
    let description = read(&folder, Choices::default());
    let parameters = config(&description, 1).parameters;
    assert_eq!((parameters["max_length"].as_str(), parameters["padding"].as_str()), ("24", "32"));
    let shown = description.table().into_iter().find(|row| row.what == "max_length").unwrap();
    assert_eq!(shown.value, "24");
}

#[test]
fn rows_are_filled_up_on_the_side_that_a_graph_of_one_vector_expects() {
    let left = ("tokenizer_config.json", json!({"padding_side": "left", "pad_token": "[PAD]"}));
    let folder = encoder(&[TRANSFORMER, POOLING], &[mean(), left]);
    let side = |folder: &TempDir, choices: Choices| {
        let description = read(folder, choices);
        let model = config(&description, 2).parameters.get("padding_side").cloned().unwrap_or_default();
        (config(&description, 1).parameters["padding_side"].clone(), model)
    };
    let both = |tokenizer: &str, model: &str| (tokenizer.to_owned(), model.to_owned());
    assert_eq!(side(&folder, Choices::default()), both("right", ""), "the mask says what is padding");
    assert_eq!(side(&folder, choose("padding-side", "left")), both("left", "left"));
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[("sentence_embedding", &[-1, 8])]));
    assert_eq!(side(&folder, Choices::default()), both("left", "left"));
    assert_eq!(side(&folder, choose("padding-side", "right")), both("right", ""));
}

#[test]
fn positions_of_robertas_kin_begin_behind_the_padding_id() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[mean()]);
    let config_json = json!({"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "hidden_size": 8,
        "max_position_embeddings": 66, "pad_token_id": 1, "vocab_size": 10});
    write(folder.path(), "config.json", config_json.to_string().as_bytes());
    write(folder.path(), "sentence_bert_config.json", br#"{"max_seq_length": 66}"#);
    let inputs: Vec<(&str, &[i64])> = [&IDS[..], &[("position_ids", &[-1, -1])]].concat();
    write(folder.path(), "onnx/model.onnx", &onnx(&inputs, &[("last_hidden_state", &[-1, -1, 8])]));
    let description = read(&folder, Choices::default());
    assert_eq!(config(&description, 1).parameters["first_position"], "2");
    assert!(config(&description, 2).parameters["pad_inputs"].ends_with("position_ids:1"));
    assert_eq!(config(&description, 1).parameters["max_length"], "64", "two positions are no row's");
    assert!(description.warnings()[0].contains("max_seq_length is 66"), "{:?}", description.warnings());
}

#[test]
fn caches_are_left_to_the_backend_and_other_inputs_say_what_to_do() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[mean()]);
    let with = |more: &[(&'static str, &'static [i64])]| {
        let inputs: Vec<(&str, &[i64])> = [&IDS[..], more].concat();
        write(folder.path(), "onnx/model.onnx", &onnx(&inputs, &[("last_hidden_state", &[-1, -1, 8])]));
    };
    with(&[("past_key_values.0.key", &[-1, 2, -1, 4]), ("past_key_values.0.value", &[-1, 2, -1, 4])]);
    let inputs: Vec<_> =
        config(&read(&folder, Choices::default()), 2).inputs.into_iter().map(|input| input.name).collect();
    assert_eq!(inputs, ["input_ids", "attention_mask"]);
    for (input, remedy) in [
        ("adapter_mask", "make_tensor('adapter_mask'"),
        ("pixel_values", "CLIPTextModelWithProjection"),
        ("span_idx", "library gliner"),
    ] {
        with(&[(input, &[])]);
        let found = faults(&folder);
        assert!(found.len() == 1 && found[0].contains(remedy), "{found:?}");
    }
}

#[test]
fn the_task_of_a_graph_with_adapters_is_left_to_requests() {
    let prompts =
        json!({"prompts": {"retrieval.query": "Find: ", "separation": ""}, "default_prompt_name": "separation"});
    let folder = encoder(&[TRANSFORMER, POOLING], &[mean(), ("config_sentence_transformers.json", prompts)]);
    let inputs = [IDS[0], IDS[1], ("task_id", &[][..])];
    write(folder.path(), "onnx/model.onnx", &onnx(&inputs, &[("text_embeds", &[-1, -1, 8])]));
    let description = read(&folder, Choices::default());
    let model = config(&description, 2);
    assert_eq!(names(model.inputs.iter().map(|input| &input.name)), ["input_ids", "attention_mask"]);
    assert_eq!((&*model.parameters["task_ids"], model.parameters.get("default_task_id")), ("[]", None));
    assert_eq!(config(&description, 0).parameters["query_prompt"], "retrieval.query");
    let named = json!({"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8, "vocab_size": 10,
        "max_position_embeddings": 64, "lora_adaptations": ["retrieval.query", "separation"]});
    write(folder.path(), "config.json", named.to_string().as_bytes());
    let model = config(&read(&folder, Choices::default()), 2);
    assert_eq!(model.parameters["task_ids"], r#"["retrieval.query","separation"]"#);
    assert_eq!(model.parameters["default_task_id"], "separation");
}

#[test]
fn text_towers_give_the_vector_that_is_compared_with_images() {
    let folder =
        classifier("CLIPTextModelWithProjection", json!({"model_type": "clip_text_model", "projection_dim": 4}), 1);
    write(folder.path(), "model.onnx", &onnx(&IDS, &[("text_embeds", &[-1, 4]), ("last_hidden_state", &[-1, -1, 8])]));
    let description = read(&folder, Choices::default());
    assert_eq!(output(&config(&description, 2), "text_embeds"), [-1, 4]);
    let siglip = classifier("SiglipTextModel", json!({"model_type": "siglip_text_model"}), 1);
    write(
        siglip.path(),
        "model.onnx",
        &onnx(&IDS[..1], &[("last_hidden_state", &[-1, -1, 8]), ("pooler_output", &[-1, 8])]),
    );
    let description = read(&siglip, Choices::default());
    assert_eq!(config(&description, 1).parameters["padding"], "max_length");
    assert_eq!(output(&config(&description, 2), "pooler_output"), [-1, 8]);
}

#[test]
fn a_graph_that_quantizes_by_run_has_a_run_for_each_text() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[mean()]);
    let node = bytes(1, &bytes(4, b"DynamicQuantizeLinear"));
    let model = onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8])]);
    write(folder.path(), "onnx/model.onnx", &bytes(7, &[inner(&model), &node].concat()));
    let description = read(&folder, Choices::default());
    assert_eq!(config(&description, 0).parameters["max_rows_per_message"], "1");
    let model = config(&description, 2);
    assert_eq!(model.parameters["padding_check"], "alone");
    // The padding of a request goes before its rows run.
    assert_eq!(model.parameters["pad_inputs"], "input_ids:3, attention_mask:0");
}

#[test]
fn what_the_libraries_take_with_a_shrug_is_a_warning() {
    let labels = json!({"id2label": {"0": "no", "1": "yes"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}});
    let stale = read(&classifier("BertForSequenceClassification", labels, 2), Choices::default());
    assert!(stale.warnings()[0].contains("id2label has 'no' there, which counts"), "{:?}", stale.warnings());
    let folder = classifier("BertForSequenceClassification", json!({"id2label": {"0": 7, "1": 8}}), 2);
    read(&folder, Choices::default());
    let text = fs::read_to_string(folder.path().join("config.json")).unwrap();
    write(folder.path(), "config.json", text.replacen('{', r#"{"x": NaN, "y": [-Infinity, "NaN"], "#, 1).as_bytes());
    assert!(read(&folder, Choices::default()).warnings()[0].contains("config.json has NaN or Infinity"));
}

#[test]
fn an_adapter_says_how_it_is_merged() {
    let folder = encoder(
        &[TRANSFORMER, POOLING],
        &[mean(), ("adapter_config.json", json!({"base_model_name_or_path": "org/base"}))],
    );
    fs::remove_dir_all(folder.path().join("onnx")).unwrap();
    let found = faults(&folder);
    assert!(
        found[0].contains("adapter of org/base: merge them first") && found[0].contains("merge_and_unload()"),
        "{found:?}"
    );
}

/// A Router with these parameters: queries by weights of tokens, documents by a masked language model whose graph is at the top.
fn router(parameters: Value) -> TempDir {
    let router = "sentence_transformers.base.modules.router.Router";
    let of = |kind: &str| format!("sentence_transformers.sparse_encoder.modules.{kind}");
    let types = json!({"query_0": of("x.SparseStaticEmbedding"), "document_0": of("x.MLMTransformer"), "document_1": of("x.SpladePooling")});
    let structure = json!({"query": ["query_0"], "document": ["document_0", "document_1"]});
    let folder = folder(&[
        ("modules.json", json!([{"type": router, "path": ""}])),
        ("router_config.json", json!({"types": types, "structure": structure, "parameters": parameters})),
        ("config_sentence_transformers.json", json!({"model_type": "SparseEncoder", "max_active_dims": 5})),
        ("query_0/config.json", json!({"frozen": false})),
        ("document_1/config.json", json!({"pooling_strategy": "max"})),
        ("document_0/config.json", json!({"architectures": ["BertForMaskedLM"], "vocab_size": 10, "hidden_size": 8})),
    ]);
    for (name, content) in tokenizer() {
        write(folder.path(), &format!("document_0/{name}"), content.to_string().as_bytes());
        write(folder.path(), &format!("query_0/{name}"), content.to_string().as_bytes());
    }
    write(folder.path(), "query_0/model.safetensors", &safetensors(json!({"weight": {"dtype": "F32", "shape": [10]}})));
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[("logits", &[-1, -1, 10])]));
    folder
}

#[test]
fn each_route_of_a_router_is_a_model_and_the_usual_one_the_folders() {
    let folder = router(json!({"default_route": "document"}));
    let configs = configs(&folder);
    let found: Vec<_> = configs.iter().map(|config| config.name.as_str()).collect();
    let of = |route: &str| ["", "_tokenizer", "_model", "_postprocess"].map(|step| format!("m_{route}{step}"));
    assert_eq!(found, [&["m".to_owned()][..], &of("document"), &of("query")].concat());
    let named = |name: &str| configs.iter().find(|config| config.name == name).unwrap();
    let steps =
        |name: &str| named(name).ensemble.iter().flatten().map(|step| step.model_name.clone()).collect::<Vec<_>>();
    assert_eq!(steps("m"), of("document")[1..]);
    assert_eq!(steps("m_query"), of("query")[1..]);
    let parameter = |name: &str, key: &str| named(name).parameters.get(key).cloned();
    assert_eq!(parameter("m", "routes").unwrap(), r#"{"document":"m_document","query":"m_query"}"#);
    assert_eq!(parameter("m", "default_route").unwrap(), "m_document");
    assert_eq!(parameter("m_query", "route_of").unwrap(), "m");
    assert_eq!(parameter("m_query_postprocess", "ops").unwrap(), "distinct:5");
    assert_eq!(named("m_query_model").backend, "static");
    assert_eq!(output(named("m_query_model"), "token_weights"), [-1, -1, 1]);
    assert_eq!(parameter("m_query_tokenizer", "add_special_tokens").unwrap(), "false");
    assert_eq!(parameter("m_query_tokenizer", "max_length"), None, "no file says a length");
    let there = Export::of(folder.path(), &Choices::default()).unwrap_err().to_string();
    assert!(there.contains("onnx/model.onnx is there already") && there.contains("needs no ONNX file"), "{there}");
    for tokenizer in ["m_query_tokenizer", "m_document_tokenizer"] {
        assert_eq!(parameter(tokenizer, "prompts").unwrap(), r#"{"document":"","query":""}"#);
    }
}

#[test]
fn routes_are_found_in_the_librarys_order() {
    let usual = |parameters: Value| {
        let configs = configs(&router(parameters));
        let whole = configs.into_iter().find(|config| config.name == "m").unwrap();
        let parameter = |key: &str| whole.parameters.get(key).cloned();
        (parameter("routes").unwrap(), parameter("default_route"))
    };
    let both = r#"{"document":"m_document","query":"m_query"}"#;
    // Two routes and none of them the usual one: requests have to say which.
    assert_eq!(usual(json!({})), (both.to_owned(), None));
    let mapped = json!({"route_mappings": {"(None, 'text')": "query", "('search', None)": "document"}});
    let tasks = r#"{"document":"m_query","query":"m_query","search":"m_document"}"#;
    assert_eq!(usual(mapped), (tasks.to_owned(), Some("m_query".to_owned())));
    let found = faults(&router(json!({"default_route": "passage"})));
    assert!(found[0].contains("parameters names route 'passage', but structure has: document, query"), "{found:?}");
}

#[test]
fn faults_of_all_routes_are_told_together() {
    let folder = router(json!({"default_route": "document"}));
    write(folder.path(), "query_0/model.safetensors", &safetensors(json!({"weight": {"dtype": "F32", "shape": [9]}})));
    fs::remove_dir_all(folder.path().join("onnx")).unwrap();
    let found = faults(&folder);
    assert!(found.len() == 2 && found[0].contains("document_0 holds no ONNX file"), "{found:?}");
    assert!(found[1].contains("has ids up to 9, but query_0/model.safetensors: weight has 9 numbers"), "{found:?}");
    let export = Export::of(folder.path(), &Choices::default()).unwrap();
    assert_eq!((export.folder, export.export_task), (folder.path().join("document_0/"), "fill-mask"));
}

#[test]
fn the_files_of_all_routes_are_downloaded() {
    let folder = router(json!({"default_route": "document"}));
    write(folder.path(), "document_0/model.safetensors", b"");
    let listed = ["document_0/model.safetensors", "onnx/model.onnx", "query_0/model.safetensors", "modules.json"];
    let read = read_files(folder.path(), &listed, &Choices::default()).unwrap();
    assert_eq!(read, ["modules.json", "onnx/model.onnx", "query_0/model.safetensors"]);
}

#[test]
fn a_classifier_that_is_not_run_is_a_warning() {
    let folder = encoder(&[TRANSFORMER, POOLING], &[mean()]);
    assert_eq!(read(&folder, Choices::default()).warnings(), [""; 0]);
    write(folder.path(), "model_head.pkl", b"");
    let warnings = read(&folder, Choices::default()).warnings().to_vec();
    assert!(warnings.len() == 1 && warnings[0].contains("the classifier of SetFit"), "{warnings:?}");
}

#[test]
fn a_causal_language_model_is_no_encoder_as_it_lies() {
    let folder = classifier("Qwen3ForCausalLM", json!({}), 1);
    write(folder.path(), "model.onnx", &onnx(&IDS, &[("logits", &[-1, -1, 600])]));
    let found = faults(&folder);
    assert!(found.len() == 1 && found[0].contains("export it without the head"), "{found:?}");
    assert!(found[0].contains(".logits && trireme export "), "{found:?}");
}

#[test]
fn a_causal_language_model_is_pooled_by_its_last_token() {
    for (architecture, more, op) in [
        ("Qwen3ForCausalLM", json!({}), "pool:last"),
        ("Qwen3ForCausalLM", json!({"is_causal": false}), "pool:mean"),
        ("Qwen3Model", json!({}), "pool:mean"),
    ] {
        let folder = classifier(architecture, more, 1);
        write(folder.path(), "model.onnx", &onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8])]));
        let read = read(&folder, Choices::default());
        assert_eq!(ops(&read), op, "{architecture}");
        assert!(read.warnings()[0].contains("say it with --pooling"), "{:?}", read.warnings());
    }
}

#[test]
fn an_activation_that_no_op_has_is_told_before_it_is_served() {
    let dense = |activation: &str| {
        let folder = with_dense(4, &[]);
        let config = json!({"in_features": 8, "out_features": 4, "bias": false, "activation_function": activation});
        write(folder.path(), "2_Dense/config.json", config.to_string().as_bytes());
        folder
    };
    read(&dense("torch.nn.modules.activation.LeakyReLU"), Choices::default());
    let found = faults(&dense("torch.nn.modules.activation.PReLU"));
    assert!(found[0].contains("PReLU', which is not supported, expected torch.nn's Identity"), "{found:?}");
}

#[test]
fn a_sparse_encoder_keeps_as_many_weights_as_its_file_says() {
    let splade = ("sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling", "1_Splade");
    let own = ("config_sentence_transformers.json", json!({"model_type": "SparseEncoder", "max_active_dims": 16}));
    let folder = encoder(&[TRANSFORMER, splade], &[("1_Splade/config.json", json!({"pooling_strategy": "max"})), own]);
    write(folder.path(), "onnx/model.onnx", &onnx(&IDS, &[("logits", &[-1, -1, 10])]));
    assert!(ops(&read(&folder, Choices::default())).ends_with(", sparse:16"));
}

#[test]
fn routes_of_one_transformer_run_one_model() {
    let types = json!({"t": TRANSFORMER.0, "q": POOLING.0, "d": POOLING.0});
    let structure = json!({"query": ["t", "q"], "document": ["t", "d"]});
    let folder = folder(&[
        ("modules.json", json!([{"type": "sentence_transformers.base.modules.router.Router", "path": ""}])),
        (
            "router_config.json",
            json!({"types": types, "structure": structure, "parameters": {"default_route": "query"}}),
        ),
        ("q/config.json", json!({"pooling_mode": "cls"})),
        ("d/config.json", json!({"pooling_mode": "mean"})),
        (
            "t/config.json",
            json!({"architectures": ["BertModel"], "vocab_size": 10, "hidden_size": 8, "max_position_embeddings": 64}),
        ),
    ]);
    for (name, content) in tokenizer() {
        write(folder.path(), &format!("t/{name}"), content.to_string().as_bytes());
    }
    write(folder.path(), "t/onnx/model.onnx", &onnx(&IDS, &[("last_hidden_state", &[-1, -1, 8])]));
    let configs = configs(&folder);
    let runs: Vec<_> =
        configs.iter().filter(|config| config.backend == "onnxruntime").map(|config| &config.name).collect();
    assert_eq!(runs, ["m_document_model"]);
    for ensemble in configs.iter().filter_map(|config| config.ensemble.as_ref()) {
        assert_eq!(ensemble[1].model_name, "m_document_model");
    }
    let steps: Vec<_> = configs[0].ensemble.iter().flatten().map(|step| step.model_name.as_str()).collect();
    assert_eq!(steps, ["m_query_tokenizer", "m_document_model", "m_query_postprocess"]);
}
