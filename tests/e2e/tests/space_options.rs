//! Whatever an option of a model changes, its space tells: models of one space give one row, for every option of folders and repositories.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;
use trireme_e2e::{Mode, ModelFolder, Sandbox, Setup, basic_repository, golden, in_one_mode, workspace};

use crate::folders::{external, tiny, write};

in_one_mode!(options_of_folders_change_the_space_or_no_row, parameters_change_the_space_or_no_row);

/// Rows of one space differ by no more.
const TOLERANCE: f32 = 1e-6;

/// The effect of an option on the space of the plain model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Space {
    /// The option changes no row, and no space.
    Stays,
    /// It changes rows, and the space.
    Changes,
    /// It changes the space, whether or not these texts show it.
    IsStrict,
}

use Space::{Changes, IsStrict, Stays};

/// A model that was asked: its name, its expected space, the space and the rows of its answer.
struct Seen {
    name: String,
    expected: Space,
    space: String,
    rows: Vec<f32>,
}

fn ask(sandbox: &Sandbox, name: &str, expected: Space, output: &str) -> Seen {
    let mut texts: Vec<String> = golden().into_iter().map(|golden| golden.text).collect();
    texts.extend(["The ROWER, takes: q", "q: a boat"].map(str::to_owned));
    let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [texts.len()], "data": texts}]});
    let answer = sandbox.infer(name, &body);
    assert_eq!(answer.status, 200, "{name}: {}", answer.text());
    let space = answer.header("trireme-space").unwrap_or_else(|| panic!("{name}: {answer:?}")).to_owned();
    Seen { name: name.to_owned(), expected, space, rows: answer.numbers(output) }
}

fn differ(one: &Seen, other: &Seen) -> bool {
    one.rows.len() != other.rows.len()
        || !one.rows.iter().zip(&other.rows).all(|(one, other)| (one - other).abs() <= TOLERANCE)
}

/// Asserts the property for each two of these models, of which the first is the plain one.
#[track_caller]
fn check(all: &[Seen]) {
    let (plain, mut faults) = (&all[0], Vec::new());
    for seen in &all[1..] {
        let found = match (seen.space != plain.space, differ(seen, plain)) {
            (false, _) => Stays,
            (true, true) => Changes,
            (true, false) => IsStrict,
        };
        if found != seen.expected && (seen.expected, found) != (IsStrict, Changes) {
            faults.push(format!("{}: expected {:?}, found {found:?}", seen.name, seen.expected));
        }
    }
    for (number, one) in all.iter().enumerate() {
        for other in all[number + 1..].iter().filter(|other| other.space == one.space && differ(one, other)) {
            faults.push(format!("'{}' and '{}' have space {} and other rows", one.name, other.name, one.space));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

fn change(folder: &TempDir, file: &str, change: impl FnOnce(&mut Value)) {
    let text = fs::read(folder.path().join(file)).expect("the file is there");
    let mut value: Value = serde_json::from_slice(&text).expect("JSON");
    change(&mut value);
    write(folder, file, &value);
}

/// Sentence-transformers' description with these fields.
fn described(folder: &TempDir, fields: &Value) {
    write(folder, "config_sentence_transformers.json", fields);
}

fn pooled(folder: &TempDir, mode: &str) {
    write(folder, "1_Pooling/config.json", &json!({"word_embedding_dimension": 8, "pooling_mode": mode}));
}

/// A layer whose only weights are this number on the diagonal.
fn with_dense(folder: &TempDir, diagonal: f32) {
    let kind = |name: &str| format!("sentence_transformers.models.{name}");
    let module = |name: &str, path: &str| json!({"type": kind(name), "path": path});
    let modules = json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Dense", "2_Dense")]);
    write(folder, "modules.json", &modules);
    let config = json!({"in_features": 8, "out_features": 8, "bias": false,
        "activation_function": "torch.nn.modules.linear.Identity"});
    write(folder, "2_Dense/config.json", &config);
    let header = json!({"linear.weight": {"dtype": "F32", "shape": [8, 8], "data_offsets": [0, 256]}}).to_string();
    let weights = (0..64).flat_map(|at| if at % 9 == 0 { diagonal } else { 0.0 }.to_le_bytes());
    let file = (header.len() as u64).to_le_bytes().into_iter().chain(header.into_bytes()).chain(weights);
    fs::write(folder.path().join("2_Dense/model.safetensors"), file.collect::<Vec<u8>>()).expect("it can be written");
}

fn prompt() -> Value {
    json!({"prompts": {"query": "q: "}, "default_prompt_name": "query"})
}

/// An option of a folder: a name, its effect on the space, and the change.
type FolderOption = (&'static str, Space, fn(&TempDir));

const FOLDER_OPTIONS: [FolderOption; 30] = [
    ("readme", Stays, |folder| fs::write(folder.path().join("README.md"), "A model.").expect("it can be written")),
    ("described", Stays, |folder| {
        described(folder, &json!({"__version__": {"pytorch": "9"}, "similarity_fn_name": "cosine"}))
    }),
    ("origin", Stays, |folder| change(folder, "config.json", |it| it["_name_or_path"] = json!("elsewhere"))),
    ("version", Stays, |folder| change(folder, "config.json", |it| it["transformers_version"] = json!("5.9"))),
    ("pretty", Stays, |folder| {
        let path = folder.path().join("tokenizer.json");
        let value: Value = serde_json::from_slice(&fs::read(&path).expect("it is there")).expect("JSON");
        fs::write(path, serde_json::to_string_pretty(&value).expect("JSON")).expect("it can be written");
    }),
    ("at_root", Stays, |folder| {
        fs::rename(folder.path().join("onnx/model.onnx"), folder.path().join("model.onnx")).expect("it can be moved");
    }),
    ("pooling_mode", Stays, |folder| pooled(folder, "mean")),
    ("served_name", Stays, |_| {}),
    ("flag_mean", Stays, |_| {}),
    ("flag_normalize", Stays, |_| {}),
    ("shorter", Changes, |folder| {
        write(folder, "sentence_bert_config.json", &json!({"max_seq_length": 8, "do_lower_case": false}))
    }),
    ("left", Changes, |folder| change(folder, "tokenizer_config.json", |it| it["truncation_side"] = json!("left"))),
    ("cased", Changes, |folder| {
        change(folder, "tokenizer.json", |it| it["normalizer"]["lowercase"] = json!(false));
        change(folder, "tokenizer_config.json", |it| it["do_lower_case"] = json!(false));
    }),
    ("bare", Changes, |folder| change(folder, "tokenizer.json", |it| it["post_processor"] = Value::Null)),
    ("swapped", Changes, |folder| {
        change(folder, "tokenizer.json", |it| {
            let words = it["model"]["vocab"].as_object_mut().expect("a vocabulary");
            let (a, q) = (words["a"].clone(), words["q"].clone());
            words.extend([("a".to_owned(), q), ("q".to_owned(), a)]);
        });
    }),
    ("prompt", Changes, |folder| described(folder, &prompt())),
    ("other_prompt", Changes, |folder| {
        described(folder, &json!({"prompts": {"query": "a: "}, "default_prompt_name": "query"}));
    }),
    ("prompt_left_out", Changes, |folder| {
        described(folder, &prompt());
        let pooling = json!({"word_embedding_dimension": 8, "pooling_mode": "mean", "include_prompt": false});
        write(folder, "1_Pooling/config.json", &pooling);
    }),
    ("prompt_for_some", IsStrict, |folder| described(folder, &json!({"prompts": {"query": "q: "}}))),
    ("cls", Changes, |folder| pooled(folder, "cls")),
    ("max", Changes, |folder| pooled(folder, "max")),
    ("weighted", Changes, |folder| pooled(folder, "weightedmean")),
    ("last", Changes, |folder| pooled(folder, "lasttoken")),
    // After a normalisation it is the mean.
    ("mean_sqrt", IsStrict, |folder| pooled(folder, "mean_sqrt_len_tokens")),
    ("flag_cls", Changes, |_| {}),
    ("flag_raw", Changes, |_| {}),
    ("truncated", Changes, |folder| described(folder, &json!({"truncate_dim": 4}))),
    ("layer", Changes, |folder| with_dense(folder, 2.0)),
    ("other_layer", Changes, |folder| with_dense(folder, 2.001)),
    ("trained", Changes, |folder| {
        let (graph, other) = (folder.path().join("onnx/model.onnx"), external("one"));
        let mut names =
            fs::read_dir(other.path().join("onnx")).expect("a folder").flatten().map(|entry| entry.file_name());
        let data = names.find(|name| name != "model.onnx").expect("weights beside the graph");
        fs::copy(other.path().join("onnx/model.onnx"), graph).expect("it can be copied");
        let mut weights = fs::read(other.path().join("onnx").join(&data)).expect("weights");
        let (numbers, _) = weights.as_chunks_mut::<4>();
        numbers.iter_mut().for_each(|number| *number = (f32::from_le_bytes(*number) * 1.01).to_le_bytes());
        fs::write(folder.path().join("onnx").join(data), weights).expect("it can be written");
    }),
];

/// Flags, each for a single folder.
const FLAGS: [[&str; 2]; 5] = [
    ["--served-name", "served_name:boats"],
    ["--pooling", "flag_mean:mean"],
    ["--normalize", "flag_normalize:true"],
    ["--pooling", "flag_cls:cls"],
    ["--normalize", "flag_raw:false"],
];

fn options_of_folders_change_the_space_or_no_row(mode: Mode) {
    let plain = ("plain", Stays, (|_| {}) as fn(&TempDir));
    let options: Vec<FolderOption> = std::iter::once(plain).chain(FOLDER_OPTIONS).collect();
    let folders: Vec<TempDir> = options.iter().map(|_| tiny()).collect();
    options.iter().zip(&folders).for_each(|((_, _, change), folder)| change(folder));
    let named = options.iter().zip(&folders).map(|((name, ..), folder)| format!("{name}={}", folder.path().display()));
    let named: Vec<String> = named.collect();
    let words = named.iter().flat_map(|named| ["--model", named.as_str()]).chain(FLAGS.into_iter().flatten());
    let words: Vec<&str> = words.collect();
    let mut setup = Setup::new(mode).worker_arguments(&words);
    if setup.is_services() {
        setup = setup.gateway_arguments(&words);
    }
    let sandbox = setup.start();
    let seen = |(name, expected, _): &FolderOption| ask(&sandbox, name, *expected, "sentence_embedding");
    check(&options.iter().map(seen).collect::<Vec<_>>());
}

/// A step of the basic repository, what some parameters of it do to the space, and these parameters.
type StepOption = (&'static str, Space, &'static [(&'static str, &'static str)]);

const PARAMETERS: [StepOption; 43] = [
    ("tokenizer", Changes, &[("max_length", "8")]),
    ("tokenizer", Changes, &[("max_characters", "5")]),
    ("tokenizer", IsStrict, &[("truncation", "only_first")]),
    ("tokenizer", Changes, &[("truncation_side", "left")]),
    ("tokenizer", IsStrict, &[("padding", "max_length")]),
    ("tokenizer", IsStrict, &[("padding_side", "left")]),
    ("tokenizer", IsStrict, &[("pad_token", "[MASK]")]),
    ("tokenizer", Stays, &[("pad_to_multiple_of", "8")]),
    ("tokenizer", Changes, &[("prefix", "q: ")]),
    ("tokenizer", IsStrict, &[("prompts", r#"{"query": "q: "}"#)]),
    ("tokenizer", Changes, &[("prompts", r#"{"query": "q: "}"#), ("default_prompt", "query")]),
    ("tokenizer", IsStrict, &[("prompts", r#"{"query": "q: "}"#), ("prompts_as_tokens", "true")]),
    ("tokenizer", Changes, &[("add_special_tokens", "false")]),
    ("tokenizer", IsStrict, &[("query_length", "8")]),
    ("tokenizer", IsStrict, &[("document_length", "8")]),
    ("tokenizer", IsStrict, &[("query_expansion", r#"{"strategy": "fixed", "attend": false, "length": 8}"#)]),
    ("tokenizer", IsStrict, &[("skiplist_words", r#"["."]"#)]),
    ("tokenizer", IsStrict, &[("skiplist_words", r#"["."]"#), ("skiplist_tasks", r#"["query"]"#)]),
    ("encoder", Stays, &[("intra_op_thread_count", "1")]),
    ("encoder", Stays, &[("inter_op_thread_count", "1")]),
    ("encoder", Stays, &[("execution_mode", "1")]),
    ("encoder", Stays, &[("enable_mem_arena", "0")]),
    ("encoder", Stays, &[("enable_mem_pattern", "1")]),
    ("encoder", Stays, &[("memory.enable_memory_arena_shrinkage", "cpu:0")]),
    ("encoder", Stays, &[("session.use_device_allocator_for_initializers", "1")]),
    ("encoder", IsStrict, &[("session.intra_op.allow_spinning", "0")]),
    ("encoder", Stays, &[("layouts", "wide")]),
    ("encoder", Stays, &[("share_weights", "1")]),
    ("encoder", Stays, &[("accelerator", "none")]),
    ("encoder", IsStrict, &[("accuracy_level", "graph")]),
    ("encoder", IsStrict, &[("precision_check", "warn")]),
    ("encoder", IsStrict, &[("precision_min_cosine", "0.9")]),
    ("encoder", IsStrict, &[("cudnn_conv_algo_search", "1")]),
    ("encoder", Stays, &[("gpu_mem_limit", "1000000000")]),
    ("encoder", Stays, &[("arena_extend_strategy", "1")]),
    ("encoder", Stays, &[("do_copy_in_default_stream", "1")]),
    ("pool", Changes, &[("ops", "pool:cls, normalize")]),
    ("pool", Changes, &[("ops", "pool:mean")]),
    ("pool", Changes, &[("ops", "pool:max, normalize")]),
    ("pool", IsStrict, &[("ops", "pool:mean_sqrt_len, normalize")]),
    ("pool", IsStrict, &[("labels", "a, b")]),
    ("pool", IsStrict, &[("graph_ends_with", "normalize")]),
    ("pool", Stays, &[("beside_model", "false")]),
];

/// Documented parameters that need another model. All of them count, because none is in the list of parameters that do not.
const OF_OTHER_MODELS: [&str; 7] = [
    "long_texts",
    "spans",
    "windows_of",
    "source_language",
    "target_language",
    "message_format",
    "chat_template_kwargs",
];

/// The parameters of these backends that docs/model-repository.md lists.
fn documented() -> BTreeSet<String> {
    let page = fs::read_to_string(workspace().join("docs/model-repository.md")).expect("the page is there");
    let (mut backend, mut is_table, mut found) = (String::new(), false, BTreeSet::new());
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            backend = heading.trim_matches('`').to_owned();
        }
        is_table = line.starts_with("| parameter |") || (is_table && line.starts_with('|'));
        let cell = line.trim_start_matches("| ").split(" | ").next().unwrap_or_default();
        if is_table && ["tokenizer", "onnxruntime", "postprocess"].contains(&backend.as_str()) && !cell.contains('…')
        {
            found.extend(cell.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

fn parameters_change_the_space_or_no_row(mode: Mode) {
    let known = documented();
    let keys = || PARAMETERS.iter().flat_map(|(_, _, parameters)| parameters.iter().map(|(key, _)| *key));
    let tried: BTreeSet<&str> = keys().chain(OF_OTHER_MODELS).collect();
    let missing: Vec<_> = known.iter().filter(|key| !tried.contains(key.as_str())).collect();
    assert!(known.len() > 30 && missing.is_empty(), "parameters that are not tried: {missing:?} of {}", known.len());

    let ensemble = fs::read_to_string(basic_repository().join("tiny_embedding/config.pbtxt")).expect("it is there");
    let mut models = ModelFolder::basic(&["tiny_tokenizer", "tiny_encoder", "tiny_pool", "tiny_embedding"]);
    for (number, (step, _, parameters)) in PARAMETERS.iter().enumerate() {
        let (step, own, whole) = (format!("tiny_{step}"), format!("step{number}"), format!("model{number}"));
        let path = format!("{own}/config.pbtxt");
        models = models.model_like(&step, &own);
        let mut config = fs::read_to_string(models.path().join(&path)).expect("it is there").replace(&step, &own);
        for (key, value) in *parameters {
            let is_own = |line: &&str| !line.contains(&format!("key: \"{key}\""));
            config = config.lines().filter(is_own).map(|line| format!("{line}\n")).collect();
            config += &format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n");
        }
        models = models.file(&path, config);
        let ensemble = ensemble.replace("tiny_embedding", &whole).replace(&step, &own);
        models = models.model(&whole, &ensemble);
    }
    let sandbox = Setup::new(mode).repository(models.path()).start();
    let mut seen = vec![ask(&sandbox, "tiny_embedding", Stays, "embedding")];
    for (number, (step, expected, parameters)) in PARAMETERS.iter().enumerate() {
        let seen_here = ask(&sandbox, &format!("model{number}"), *expected, "embedding");
        seen.push(Seen { name: format!("{step} with {parameters:?}"), ..seen_here });
    }
    check(&seen);
}
