//! Model folders as sentence-transformers writes them: served as they are, written as repositories, refused with both places.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Sandbox, Setup, Stage, basic_repository, golden, in_one_mode, load_during,
    product, wait_until,
};
use trireme_testkit::{HubFault, HubServer, assert_close};

in_one_mode!(
    a_folder_answers_as_the_repository_written_by_hand,
    queries_and_documents_go_their_own_ways_through_a_router,
    grpc_calls_take_every_name_of_a_model,
    an_answer_names_its_space,
    a_model_of_the_hub_is_downloaded_once_and_served,
    two_versions_of_a_folder_are_served_beside_one_another,
);

/// Layouts of weights beside the graph, in `tests/models/external`.
const LAYOUTS: [&str; 3] = ["one", "nested", "several"];

/// How long a command may take that serves nothing.
const LIMIT: Duration = Duration::from_secs(60);

/// The tiny encoder of the basic repository as sentence-transformers would have saved it.
pub(crate) fn tiny() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let models = basic_repository();
    let copy = |from: &str, to: &str| {
        let to = folder.path().join(to);
        fs::create_dir_all(to.parent().expect("a file lies in a folder")).expect("a folder can be made");
        fs::copy(models.join(from), to).expect("the basic repository has the file");
    };
    copy("tiny_encoder/1/model.onnx", "onnx/model.onnx");
    copy("tiny_tokenizer/1/tokenizer.json", "tokenizer.json");
    copy("tiny_tokenizer/1/tokenizer_config.json", "tokenizer_config.json");
    let module = |kind: &str, path: &str| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
    let modules =
        json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")]);
    write(&folder, "modules.json", &modules);
    write(&folder, "config.json", &json!({"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 8}));
    write(&folder, "sentence_bert_config.json", &json!({"max_seq_length": 16, "do_lower_case": false}));
    let pooling =
        json!({"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false});
    write(&folder, "1_Pooling/config.json", &pooling);
    folder
}

/// The same folder with its weights in files beside the graph.
pub fn external(layout: &str) -> TempDir {
    let folder = tiny();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/external").join(layout);
    for (name, content) in files(&models, "") {
        let path = folder.path().join("onnx").join(name);
        fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("a folder can be made");
        fs::write(path, content).expect("a file can be written");
    }
    folder
}

/// The folder as Hugging Face's cache has it: links to files with other names, which lie together.
fn linked(folder: &TempDir) -> TempDir {
    let cache = tempfile::tempdir().expect("a temporary folder");
    for (number, (name, content)) in files(folder.path(), "").into_iter().enumerate() {
        let (blob, link) = (cache.path().join(format!("blobs/{number}")), cache.path().join("snapshots/1").join(name));
        for path in [&blob, &link] {
            fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("a folder can be made");
        }
        fs::write(&blob, content).expect("a file can be written");
        std::os::unix::fs::symlink(&blob, link).expect("a link can be made");
    }
    cache
}

pub fn write(folder: &TempDir, name: &str, content: &Value) {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("a folder can be made");
    fs::write(path, content.to_string()).expect("a file can be written");
}

fn run(arguments: &[&str], paths: &[&Path]) -> std::process::Output {
    product("trireme").args(arguments).args(paths).output().expect("the command runs")
}

fn a_folder_answers_as_the_repository_written_by_hand(mode: Mode) {
    let folder = tiny();
    let named = format!("derived={}", folder.path().display());
    let mut setup = Setup::new(mode).worker_arguments(&["--model", &named]);
    if setup.is_services() {
        setup = setup.gateway_arguments(&["--model", &named]);
    }
    let sandbox = setup.start();
    let texts: Vec<String> = golden().into_iter().map(|golden| golden.text).collect();
    let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [texts.len()], "data": texts}]});
    let by_hand = sandbox.infer("tiny_embedding", &input);
    let derived = sandbox.infer("derived", &input);
    assert_eq!(derived.output("sentence_embedding")["shape"], json!([texts.len(), 8]));
    assert_close(&derived.numbers("sentence_embedding"), &by_hand.numbers("embedding"), 1e-5);
    for golden in golden() {
        let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden.text]}]});
        assert_close(&sandbox.infer("derived", &input).numbers("sentence_embedding"), &golden.embedding, 1e-5);
    }
}

/// A folder of two encoders: of queries the first token's vector counts, of documents the mean.
fn router() -> TempDir {
    let (folder, tiny) = (tempfile::tempdir().expect("a temporary folder"), tiny());
    let kind = |name: &str| format!("sentence_transformers.models.{name}");
    let types = json!({"query_0_Transformer": kind("Transformer"), "query_1_Pooling": kind("Pooling"),
        "document_0_Transformer": kind("Transformer"), "document_1_Pooling": kind("Pooling")});
    let structure = json!({"query": ["query_0_Transformer", "query_1_Pooling"],
        "document": ["document_0_Transformer", "document_1_Pooling"]});
    let parameters = json!({"default_route": "document", "allow_empty_key": true, "route_mappings": {}});
    write(&folder, "modules.json", &json!([{"type": kind("Router"), "path": ""}]));
    write(&folder, "router_config.json", &json!({"types": types, "structure": structure, "parameters": parameters}));
    for (side, mode) in [("query", "cls"), ("document", "mean")] {
        for name in
            ["config.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json", "onnx/model.onnx"]
        {
            let target = folder.path().join(format!("{side}_0_Transformer/{name}"));
            fs::create_dir_all(target.parent().expect("a file lies in a folder")).expect("a folder can be made");
            fs::copy(tiny.path().join(name), target).expect("the folder has the file");
        }
        write(&folder, &format!("{side}_1_Pooling/config.json"), &json!({"pooling_mode": mode}));
    }
    folder
}

fn queries_and_documents_go_their_own_ways_through_a_router(mode: Mode) {
    let (folder, alone) = (router(), tiny());
    let modules = json!([{"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]);
    write(&alone, "modules.json", &modules);
    let named = |name: &str, folder: &TempDir| format!("{name}={}", folder.path().display());
    let (routed, mean, cls) = (named("routed", &folder), named("mean", &alone), named("cls", &alone));
    let words = ["--model", &routed, "--model", &mean, "--model", &cls, "--pooling", "cls:cls"];
    let mut setup = Setup::new(mode).worker_arguments(&words);
    if setup.is_services() {
        setup = setup.gateway_arguments(&words);
    }
    let sandbox = setup.start();
    let ask = |model: &str, prompt: Option<&str>| {
        let mut input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["the boat"]}]});
        if let Some(prompt) = prompt {
            input["parameters"] = json!({"prompt_name": prompt});
        }
        let answer = sandbox.infer(model, &input);
        assert_eq!(answer.status, 200, "{model}: {}", answer.text());
        assert_eq!(answer.json()["model_name"], json!(model));
        answer.numbers("sentence_embedding")
    };
    let (query, document) = (ask("cls", None), ask("mean", None));
    assert!(query.iter().zip(&document).any(|(query, document)| (query - document).abs() > 1e-3));
    assert_close(&ask("routed", Some("query")), &query, 1e-6);
    assert_close(&ask("routed", Some("document")), &document, 1e-6);
    assert_close(&ask("routed", None), &document, 1e-6);
    // Vectors of both ways can be compared, although their spaces are two.
    let told = |parameters: Value| {
        let input = json!({"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["the boat"]});
        let answer = sandbox.infer("routed", &json!({"inputs": [input], "parameters": parameters}));
        assert_eq!(answer.status, 200, "{}", answer.text());
        ["trireme-space", "trireme-equivalent-spaces"].map(|name| answer.header(name).unwrap_or_default().to_owned())
    };
    let [of_queries, equals_of_queries] = told(json!({"prompt_name": "query"}));
    let [of_documents, equals_of_documents] = told(json!({"prompt_name": "document"}));
    assert_ne!(of_queries, of_documents);
    assert_eq!((&equals_of_queries, &equals_of_documents), (&of_documents, &of_queries));
    told(json!({"prompt_name": "query", "trireme_if_space": of_documents}));
    // A dialect says by itself that a text is a query.
    let body =
        json!({"model": "routed", "texts": ["the boat"], "input_type": "search_query", "embedding_types": ["float"]});
    let answer = sandbox.send(&Request::post("/v2/embed", body.to_string()));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let vector: Vec<f32> = serde_json::from_value(answer.json()["embeddings"]["float"][0].clone()).expect("a vector");
    assert_close(&vector, &query, 1e-6);
    let listed = sandbox.get("/v1/models").json()["data"].clone();
    let is_listed = |name: &str| listed.as_array().expect("a list").iter().any(|model| model["id"] == json!(name));
    assert!(is_listed("routed"));
    assert!(!is_listed("routed_query") && !is_listed("routed_document"), "routes are no models for clients: {listed}");
}

fn grpc_calls_take_every_name_of_a_model(mode: Mode) {
    let folder = tiny();
    let named = format!("org/boats={}", folder.path().display());
    let words = ["--model", &named, "--served-name", "harbour"];
    let mut setup = Setup::new(mode).worker_arguments(&words);
    if setup.is_services() {
        setup = setup.gateway_arguments(&words);
    }
    let mut sandbox = setup.start();
    crate::clients::run_at(sandbox.grpc_address(), "grpc_names.py", &[]);
}

fn an_answer_names_its_space(mode: Mode) {
    let (plain, outside, rewritten, shorter, first) = (tiny(), external("one"), tiny(), tiny(), tiny());
    let read = |folder: &TempDir, name: &str| -> Value {
        serde_json::from_slice(&fs::read(folder.path().join(name)).expect("the file is there")).expect("JSON")
    };
    let tokenizer = serde_json::to_string_pretty(&read(&rewritten, "tokenizer.json")).expect("JSON");
    fs::write(rewritten.path().join("tokenizer.json"), tokenizer).expect("a file can be written");
    let mut config = read(&rewritten, "config.json");
    config["_name_or_path"] = json!("elsewhere");
    write(&rewritten, "config.json", &config);
    write(&shorter, "sentence_bert_config.json", &json!({"max_seq_length": 8, "do_lower_case": false}));
    let pooling =
        json!({"word_embedding_dimension": 8, "pooling_mode_mean_tokens": false, "pooling_mode_cls_token": true});
    write(&first, "1_Pooling/config.json", &pooling);

    let folders =
        [("plain", &plain), ("outside", &outside), ("rewritten", &rewritten), ("shorter", &shorter), ("first", &first)];
    let named = folders.map(|(name, folder)| format!("{name}={}", folder.path().display()));
    let words: Vec<&str> = named.iter().flat_map(|named| ["--model", named.as_str()]).collect();
    let mut setup = Setup::new(mode).worker_arguments(&words);
    if setup.is_services() {
        setup = setup.gateway_arguments(&words);
    }
    let sandbox = setup.start();
    let space = |name: &str| {
        let asked = json!({"model": name, "input": golden()[0].text});
        let answer = sandbox.send(&Request::post("/v1/embeddings", asked.to_string()));
        answer.header("trireme-space").unwrap_or_else(|| panic!("{name}: {answer:?}")).to_owned()
    };
    let plain = space("plain");
    assert_eq!(space("outside"), plain, "the same weights in a file beside the graph");
    assert_eq!(space("rewritten"), plain, "another form of the same files");
    let parts = |space: &str| space.split('.').map(str::to_owned).collect::<Vec<_>>();
    let (plain, shorter, first) = (parts(&plain), parts(&space("shorter")), parts(&space("first")));
    assert_eq!(plain.len(), 3);
    assert!(shorter[0] != plain[0] && shorter[1..] == plain[1..], "another length: {shorter:?}");
    assert!(first[2] != plain[2] && first[..2] == plain[..2], "another pooling: {first:?}");
}

/// Hugging Face's cache, and a folder beside it that is no model.
#[test]
fn a_folder_of_model_folders_is_served_whole() {
    let (cache, first, second) = (tempfile::tempdir().expect("a temporary folder"), tiny(), tiny());
    let place = cache.path().join("models--org--boats");
    fs::create_dir_all(place.join("snapshots/other")).expect("a folder can be made");
    fs::create_dir_all(place.join("refs")).expect("a folder can be made");
    fs::write(place.join("refs/main"), "abc").expect("a file can be written");
    fs::rename(first.path(), place.join("snapshots/abc")).expect("a folder can be moved");
    fs::rename(second.path(), cache.path().join("harbour")).expect("a folder can be moved");
    fs::create_dir(cache.path().join(".locks")).expect("a folder can be made");
    let path = cache.path().display().to_string();
    let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden()[0].text]}]});
    for words in [&[path.as_str()][..], &["--model-repository", &path]] {
        let sandbox = Setup::new(Mode::AllInOne).worker_arguments(words).start();
        for name in ["boats", "org/boats", "harbour"] {
            assert_close(&sandbox.infer(name, &input).numbers("sentence_embedding"), &golden()[0].embedding, 1e-5);
        }
    }
    let named = product("trireme").args(["validate", "--model", &format!("m={path}")]).output().expect("it runs");
    let said = format!("{}{}", String::from_utf8_lossy(&named.stdout), String::from_utf8_lossy(&named.stderr));
    assert!(!named.status.success(), "{said}");
    let known = run(&["init"], &[cache.path(), &cache.path().join("written")]);
    let said = String::from_utf8_lossy(&known.stderr).into_owned();
    assert!(said.contains("holds several model folders: name one of them: ") && said.contains("/harbour"), "{said}");
    let one = run(&["init"], &[&place, &cache.path().join("written")]);
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
}

/// The tiny encoder in the hub's cache, and with a template that its library applies.
#[test]
fn a_model_of_the_hub_answers_to_both_of_its_names_and_follows_instructions() {
    let (cache, folder) = (tempfile::tempdir().expect("a temporary folder"), tiny());
    let own = json!({"max_seq_length": 16, "modality_config": {"text": {}, "message": {"format": "flat"}}});
    write(&folder, "sentence_bert_config.json", &own);
    let template = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}";
    fs::write(folder.path().join("chat_template.jinja"), template).expect("a file can be written");
    let place = cache.path().join("models--org--boats/snapshots/1");
    fs::create_dir_all(place.parent().expect("a folder above")).expect("a folder can be made");
    fs::rename(folder.path(), &place).expect("a folder can be moved");
    let path = place.display().to_string();
    let sandbox = Setup::new(Mode::AllInOne).worker_arguments(&[&path, "--served-name", "harbour"]).start();
    let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["the boat"]}]});
    let vector = |model: &str, parameters: Value| {
        let mut input = input.clone();
        input["parameters"] = parameters;
        let answer = sandbox.infer(model, &input);
        assert_eq!(answer.status, 200, "{model}: {}", answer.text());
        answer.numbers("sentence_embedding")
    };
    let own = vector("boats", json!({}));
    for name in ["org/boats", "org%2Fboats", "harbour", "org/boats/versions/1"] {
        assert_close(&vector(name, json!({})), &own, 1e-6);
    }
    assert_eq!(sandbox.get("/v2/models/org/boats/ready").status, 200);
    assert_eq!(sandbox.get("/v2/models/org/other/ready").status, 404);
    let embed = |model: &str, instruction: Option<&str>| {
        let mut body = json!({"model": model, "input": "the boat"});
        if let Some(instruction) = instruction {
            body["instruction"] = json!(instruction);
        }
        let answer = sandbox.send(&Request::post("/v1/embeddings", body.to_string()));
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_value::<Vec<f32>>(answer.json()["data"][0]["embedding"].clone()).expect("a vector")
    };
    assert_close(&embed("org/boats", None), &own, 1e-6);
    let instructed = embed("boats", Some("deep water"));
    assert_close(&instructed, &vector("boats", json!({"instruction": "deep water"})), 1e-6);
    assert!(
        instructed.iter().zip(&own).any(|(ours, plain)| (ours - plain).abs() > 1e-4),
        "the instruction has an effect"
    );
    let broken = tiny();
    write(
        &broken,
        "sentence_bert_config.json",
        &json!({"modality_config": {"text": {}, "message": {"format": "flat"}}}),
    );
    fs::write(broken.path().join("chat_template.jinja"), "{% for %}").expect("a file can be written");
    let refused = run(&["serve", "--http-port=0"], &[broken.path()]);
    let (said, file) =
        (String::from_utf8_lossy(&refused.stderr).into_owned(), broken.path().join("chat_template.jinja"));
    assert!(said.contains(&file.canonicalize().expect("it is there").display().to_string()), "{said}");
    let tokens = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["the boat"]}],
        "outputs": [{"name": "decoded_text"}], "parameters": {"instruction": "deep water"}});
    let answer = sandbox.infer("boats_tokenizer", &tokens);
    assert_eq!(answer.output("decoded_text")["data"], json!(["system deep water user the boat"]));
}

/// The tiny encoder as it might be trained anew: its vectors have other lengths, and texts are cut earlier.
fn next() -> TempDir {
    let folder = tiny();
    let module = |kind: &str, path: &str| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
    write(&folder, "modules.json", &json!([module("Transformer", ""), module("Pooling", "1_Pooling")]));
    write(&folder, "sentence_bert_config.json", &json!({"max_seq_length": 4, "do_lower_case": false}));
    folder
}

fn length(vector: &[f32]) -> f32 {
    vector.iter().map(|value| value * value).sum::<f32>().sqrt()
}

/// Version 1 of the model `name` answers as the tiny encoder in all of its steps, and version 2, which clients get that name none,
/// as the next one.
#[track_caller]
fn assert_versions(sandbox: &Sandbox, name: &str) {
    let ready = format!("/v2/models/{name}/versions/2/ready");
    wait_until("version 2 is ready", LIMIT, || (sandbox.get(&ready).status == 200).then_some(()));
    let long = "boat ".repeat(12);
    for text in golden().into_iter().map(|golden| golden.text).chain([long]) {
        let ask = |path: &str| {
            let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [text]}]});
            let answer = sandbox.infer(path, &input);
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            let vector = answer.numbers("sentence_embedding");
            (answer.json()["model_version"].clone(), vector)
        };
        let tokens = |version: i64| {
            let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [text]}],
                "outputs": [{"name": "input_ids"}]});
            sandbox.infer(&format!("{name}_tokenizer/versions/{version}"), &input).output("input_ids")["shape"][1]
                .clone()
        };
        let (latest, vector) = ask(name);
        assert_eq!(latest, json!("2"), "{text}");
        assert_close(&vector, &ask(&format!("{name}/versions/2")).1, 1e-6);
        let first = ask(&format!("{name}/versions/1")).1;
        assert!(
            (length(&first) - 1.0).abs() < 1e-4 && (length(&vector) - 1.0).abs() > 1e-3,
            "{text}: {first:?} {vector:?}"
        );
        assert!(tokens(2).as_u64() <= Some(4), "{text}");
    }
}

fn two_versions_of_a_folder_are_served_beside_one_another(mode: Mode) {
    let (first, second) = (tiny(), next());
    let named = [format!("m={}", first.path().display()), format!("m@2={}", second.path().display())];
    let words = ["--model", &named[0], "--model", &named[1]];
    let mut setup = Setup::new(mode).worker_arguments(&words);
    if setup.is_services() {
        setup = setup.gateway_arguments(&words);
    }
    let sandbox = setup.start();
    assert_versions(&sandbox, "m");
    for golden in golden() {
        let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden.text]}]});
        let answer = sandbox.infer("m/versions/1", &input);
        assert_close(&answer.numbers("sentence_embedding"), &golden.embedding, 1e-5);
    }
}

#[test]
fn a_folder_whose_files_change_becomes_its_next_version() {
    let (folder, second) = (tiny(), next());
    let named = format!("m={}", folder.path().display());
    let words = ["--model", &named, "--model-control-mode", "poll", "--repository-poll-secs", "1"];
    let sandbox = Setup::new(Mode::AllInOne).worker_arguments(&words).start();
    let warned = |times: usize| {
        let said = "its folder has changed but cannot be served; this version stays";
        wait_until("the fault is told", LIMIT, || (sandbox.gateway.count(said) >= times).then_some(()));
        assert_eq!(sandbox.gateway.count(said), times);
    };
    // A tokenizer that is written over in place, as a copy that has only begun, changes nothing that is served.
    fs::write(folder.path().join("tokenizer.json"), "{").expect("a file can be written");
    warned(1);
    let index = || sandbox.send(&Request::post("/v2/repository/index", "{}")).text();
    assert!(index().contains(r#""version":"1","state":"READY","reason":"its folder has changed: "#), "{}", index());
    assert_stays(&sandbox, true);
    for (name, content) in files(second.path(), "") {
        fs::write(folder.path().join(name), content).expect("a file can be written");
    }
    // Each answer is of one folder in all of its steps, and the old version goes.
    let (mut answers, text) = (Vec::new(), "boat ".repeat(12));
    let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [text]}]});
    wait_until("the old version is gone", LIMIT, || {
        let answer = sandbox.infer("m", &input);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let version = answer.json()["model_version"].clone();
        answers.push((version == json!("2"), answer.numbers("sentence_embedding")));
        (sandbox.get("/v2/models/m_model/versions/1/ready").status != 200).then_some(())
    });
    let turn = answers.partition_point(|(is_new, _)| !is_new);
    let (old, new) = answers.split_at(turn);
    assert!(!new.is_empty() && new.iter().all(|(is_new, _)| *is_new), "{answers:?}");
    for (_, vector) in old {
        assert!((length(vector) - 1.0).abs() < 1e-4, "{vector:?}");
    }
    for (_, vector) in new {
        assert!((length(vector) - 1.0).abs() > 1e-3, "{vector:?}");
        assert_close(vector, &new[0].1, 1e-6);
    }
    warned(1);
    assert!(!index().contains("its folder has changed"), "{}", index());
}

#[test]
fn versions_that_cannot_be_are_refused_in_words() {
    let folder = tiny();
    let logs = tempfile::tempdir().expect("a temporary folder");
    let mut command = product("trireme");
    command.arg("serve");
    for name in ["m@x", "m@0", "m@01", "m@", "@2", "n@2", "n@2", "o", "o@1"] {
        command.arg("--model").arg(format!("{name}={}", folder.path().display()));
    }
    let mut process = Process::start("serve", &mut command, logs.path());
    assert_eq!(process.wait_exit(LIMIT).code(), Some(1));
    let [words] = process.last_words().try_into().expect("one line");
    for name in ["m@x", "m@0", "m@01", "m@", "@2"] {
        assert!(words.contains(&format!("'{name}' is no model name")), "{name}: {words}");
    }
    for (name, version) in [("n", 2), ("o", 1)] {
        assert!(words.contains(&format!("would both be version {version} of '{name}'")), "{name}: {words}");
    }
}

#[test]
fn a_folder_alone_is_enough_and_the_log_says_what_was_derived() {
    let folder = tiny();
    let named = folder.path().to_str().expect("a plain path").to_owned();
    // The sandbox names a repository as well, which may be empty of models.
    let sandbox = Setup::new(Mode::AllInOne).worker_arguments(&[&named]).start();
    let name = folder.path().file_name().expect("a folder has a name").to_string_lossy();
    let name = name.trim_start_matches('.');
    let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a boat"]}]});
    assert_eq!(sandbox.infer(name, &input).status, 200);
    let derived: Vec<String> = sandbox
        .gateway
        .events()
        .iter()
        .filter(|event| event["message"] == "model folder")
        .map(|event| event["derived"].as_str().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(derived.len(), 4, "{derived:#?}");
    assert!(
        derived[1].contains("tokenizer: max_length 16 (sentence_bert_config.json: max_seq_length)"),
        "{derived:#?}"
    );
}

#[test]
fn weights_beside_the_graph_come_along() {
    let (folders, cache) = (LAYOUTS.map(external), tempfile::tempdir().expect("a temporary folder"));
    let caches = folders.each_ref().map(linked);
    let (copied, kept) = (cache.path().join("repository"), cache.path().join("kept").display().to_string());
    let mut words = vec!["--model-cache".to_owned(), kept];
    let mut names = Vec::new();
    for ((layout, folder), cache) in LAYOUTS.iter().zip(&folders).zip(&caches) {
        for (kind, path) in [("folder", folder.path()), ("linked", &cache.path().join("snapshots/1"))] {
            let name = format!("{layout}_{kind}");
            words.extend(["--model".to_owned(), format!("{name}={}", path.display())]);
            names.push(name);
        }
        let name = format!("{layout}_copied");
        let written = run(&["init", "--copy", "--name", &name], &[folder.path(), &copied]);
        assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
        names.push(name);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    // The second process finds optimised models that the first one kept.
    for start in ["first", "second"] {
        let sandbox = Setup::new(Mode::AllInOne).repository(&copied).worker_arguments(&words).start();
        for golden in golden() {
            let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden.text]}]});
            for name in &names {
                let answer = sandbox.infer(name, &input);
                assert_eq!(answer.status, 200, "{name}, {start} start: {}", answer.text());
                assert_close(&answer.numbers("sentence_embedding"), &golden.embedding, 1e-5);
            }
        }
        let warned = sandbox.gateway.events().into_iter().filter(|event| event["level"] == "WARN");
        let warned: Vec<_> = warned.filter(|event| event.to_string().contains("optimised")).collect();
        assert!(warned.is_empty(), "{start} start: {warned:#?}");
    }
}

#[test]
fn init_writes_what_can_be_served() {
    let folder = tiny();
    let repository = tempfile::tempdir().expect("a temporary folder");
    let written = run(&["init", "--name", "mine"], &[folder.path(), repository.path()]);
    let table = String::from_utf8_lossy(&written.stdout);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    assert!(table.contains("max_length  16") && table.contains("sentence_bert_config.json: max_seq_length"), "{table}");
    let config = fs::read_to_string(repository.path().join("mine_postprocess/config.pbtxt")).expect("it was written");
    assert!(config.contains("# normalize: modules.json: [2]"), "{config}");
    for path in [repository.path(), folder.path()] {
        let checked = run(&["validate"], &[path]);
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success() && said.contains("all 4 models load"), "{said}");
    }
    // A next version leaves the first one as it is, and may be served beside it.
    let (second, before) = (next(), files(repository.path(), ""));
    let written = run(&["init", "--name", "mine@2"], &[second.path(), repository.path()]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let after: BTreeMap<_, _> = files(repository.path(), "").into_iter().collect();
    assert!(before.iter().all(|(name, content)| after.get(name) == Some(content)), "{:?}", after.keys());
    let checked = run(&["validate"], &[repository.path()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    for name in ["mine", "mine@1", "mine@2"] {
        let again = run(&["init", "--name", name], &[folder.path(), repository.path()]);
        let said = String::from_utf8_lossy(&again.stderr);
        assert!(!again.status.success() && said.contains("it is there already"), "{name}: {said}");
    }
    assert_versions(&Setup::new(Mode::AllInOne).repository(repository.path()).start(), "mine");
}

#[test]
fn init_refuses_a_template_that_cannot_be_applied_and_names_the_folder_s_file() {
    let (folder, repository) = (tiny(), tempfile::tempdir().expect("a temporary folder"));
    write(&folder, "sentence_bert_config.json", &json!({"modality_config": {"message": {"format": "flat"}}}));
    let template = folder.path().join("chat_template.jinja");
    for (text, fault) in
        [("{% for m in messages %}", "is not valid: "), ("no content", "it leaves out messages of the role 'user'")]
    {
        fs::write(&template, text).expect("a file can be written");
        let tried = run(&["init", "--name", "mine"], &[folder.path(), repository.path()]);
        let said = String::from_utf8_lossy(&tried.stderr);
        assert!(!tried.status.success() && said.contains(fault), "{said}");
        assert!(said.contains(&folder.path().display().to_string()) && !said.contains("trireme-init"), "{said}");
    }
    assert_eq!(fs::read_dir(repository.path()).expect("a folder").count(), 0, "nothing was written");
    let plain = run(&["init", "--name", "mine", "--accept", "chat-template"], &[folder.path(), repository.path()]);
    assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
}

#[test]
fn what_the_files_leave_open_is_said_by_flags() {
    let folder = tiny();
    fs::remove_file(folder.path().join("modules.json")).expect("it is there");
    let init = |flags: &[&str]| {
        let repository = tempfile::tempdir().expect("a temporary folder");
        let written = run(&[&["init", "--name", "mine"], flags].concat(), &[folder.path(), repository.path()]);
        let said = [written.stdout, written.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        (written.status.success(), said)
    };
    let (served, said) = init(&[]);
    assert!(served && said.contains("warning:") && said.contains("say it with --pooling"), "{said}");
    let (served, said) = init(&["--pooling", "mine:cls", "--normalize", "true"]);
    assert!(served && said.contains("pool:cls") && !said.contains("warning:"), "{said}");
    let (served, said) = init(&["--pooling", "median"]);
    assert!(!served && said.contains("--pooling: found 'median', expected one of cls, max, mean"), "{said}");
    // The command names a field that it does not understand, and a contradiction is accepted by its name.
    write(
        &folder,
        "modules.json",
        &json!([{"type": "own.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]),
    );
    write(&folder, "sentence_bert_config.json", &json!({"max_seq_length": 16, "reverse_texts": true}));
    let (served, said) = init(&[]);
    assert!(!served && said.contains("--accept custom-module"), "{said}");
    let (served, said) = init(&["--accept", "custom-module"]);
    assert!(served && said.contains("reverse_texts is not understood and has no effect"), "{said}");
}

#[test]
fn a_folder_that_contradicts_itself_ends_the_start() {
    let folder = tiny();
    write(&folder, "1_Pooling/config.json", &json!({"embedding_dimension": 16, "pooling_mode": "mean"}));
    write(&folder, "sentence_roberta_config.json", &json!({"max_seq_length": 32}));
    let logs = tempfile::tempdir().expect("a temporary folder");
    let mut process = Process::start("serve", product("trireme").arg("serve").arg(folder.path()), logs.path());
    assert_eq!(process.wait_exit(LIMIT).code(), Some(1));
    let [words] = process.last_words().try_into().expect("one line");
    assert!(
        words.contains("last_hidden_state is 8 wide, but 1_Pooling/config.json: embedding_dimension is 16"),
        "{words}"
    );
    assert!(
        words.contains(
            "sentence_bert_config.json: max_seq_length is 16, but sentence_roberta_config.json: max_seq_length is 32"
        ),
        "{words}"
    );
}

#[test]
fn verify_serves_a_folder_under_its_own_name_or_another() {
    let folder = tiny();
    let line = |golden: trireme_e2e::Golden| json!({"text": golden.text, "embedding": golden.embedding}).to_string();
    let vectors = folder.path().join("vectors.jsonl");
    fs::write(&vectors, golden().into_iter().map(line).collect::<Vec<_>>().join("\n")).expect("a file can be written");
    let verify = |name: &[&str]| {
        let mut command = product("trireme");
        command.arg("verify").arg(folder.path()).args(name).arg("--vectors").arg(&vectors);
        command.output().expect("the command runs")
    };
    for (name, shown) in [(vec![], "model '"), (vec!["other"], "model 'other' serves what")] {
        let verified = verify(&name);
        let said = String::from_utf8_lossy(&verified.stdout);
        assert!(
            verified.status.success() && said.contains(shown),
            "{said}{}",
            String::from_utf8_lossy(&verified.stderr)
        );
    }
}

#[test]
fn verify_goes_through_a_folder_of_folders_and_tells_why_one_is_not_compared() {
    let (root, whole, bare) = (tempfile::tempdir().expect("a temporary folder"), tiny(), tiny());
    fs::remove_dir_all(bare.path().join("onnx")).expect("it was there");
    fs::create_dir(root.path().join("team")).expect("a folder can be made");
    for (folder, name) in [(&whole, "team/whole"), (&bare, "bare")] {
        fs::rename(folder.path(), root.path().join(name)).expect("both are in the same file system");
    }
    let mut command = product("trireme");
    command.args(["verify", "--all"]).arg(root.path()).args(["--python", "/nowhere/python"]);
    let verified = command.output().expect("the command runs");
    let said = String::from_utf8_lossy(&verified.stdout);
    assert_eq!(verified.status.code(), Some(2), "{said}{}", String::from_utf8_lossy(&verified.stderr));
    let reason = |name: &str, reason: &str| said.lines().any(|line| line.contains(name) && line.contains(reason));
    assert!(reason("bare", "not compared: ") && reason("bare", "holds no ONNX file"), "{said}");
    assert!(reason("team/whole", "not compared: cannot start /nowhere/python"), "{said}");
    assert!(said.ends_with("0 are served as their libraries compute, 0 differ, 2 could not be compared\n"), "{said}");
}

/// The files of a folder, by their paths in it.
pub(super) fn files(root: &Path, inner: &str) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(root.join(inner)).expect("a folder").flatten();
    let file = |entry: fs::DirEntry| {
        let name = format!("{inner}{}", entry.file_name().to_string_lossy());
        match entry.path().is_dir() {
            true => files(root, &format!("{name}/")),
            false => vec![(name, fs::read(entry.path()).expect("a file"))],
        }
    };
    entries.flat_map(file).collect()
}

fn a_model_of_the_hub_is_downloaded_once_and_served(mode: Mode) {
    let (folder, cache) = (external("nested"), tempfile::tempdir().expect("a temporary folder"));
    let hub = HubServer::start("org/mini", files(folder.path(), ""));
    hub.set_fault("onnx/weights/model.onnx.data", Some(HubFault::Cut(1000)));
    let words = ["hf://org/mini@v1", "--model", "other=hf://org/mini"];
    let mut setup = Setup::new(mode).worker_arguments(&words);
    if setup.is_services() {
        setup = setup.gateway_arguments(&words);
    }
    let cache = cache.path().display().to_string();
    let sandbox = setup.environment(&[("HF_ENDPOINT", &hub.url()), ("HF_HUB_CACHE", &cache)]).start();
    let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden()[0].text]}]});
    for name in ["mini", "other"] {
        assert_close(&sandbox.infer(name, &input).numbers("sentence_embedding"), &golden()[0].embedding, 1e-5);
    }
    let graphs = hub.requests().into_iter().filter(|request| request.contains("/cdn/")).count();
    assert_eq!(graphs, 3, "the graph, then its weights to the cut, then from there: {:?}", hub.requests());
}

#[test]
fn a_folder_or_repository_that_a_web_server_lists_is_served() {
    let (root, cache) =
        (tempfile::tempdir().expect("a temporary folder"), tempfile::tempdir().expect("a temporary folder"));
    let (folder, repository) = (tiny(), root.path().join("repository"));
    fs::rename(folder.path(), root.path().join("mini")).expect("both are in the same file system");
    let written = run(&["init", "--copy", "--name", "mine"], &[&root.path().join("mini"), &repository]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let server = WebServer::start(root.path());
    for (word, models) in [("mini", 4), ("repository", 4)] {
        let checked = product("trireme")
            .args(["validate", &format!("{}/{word}", server.url)])
            .env("TRIREME_DOWNLOAD_CACHE", cache.path())
            .output()
            .expect("the command runs");
        let said = String::from_utf8_lossy(&checked.stdout);
        assert!(
            said.contains(&format!("all {models} models load")),
            "{said}{}",
            String::from_utf8_lossy(&checked.stderr)
        );
    }
    let checked =
        product("trireme").args(["validate", &format!("{}/nothing", server.url)]).output().expect("the command runs");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(
        !checked.status.success()
            && said.contains("/nothing/: the server does not list the files of this folder (it answered 404)"),
        "{said}"
    );
}

/// `python3 -m http.server`, which lists folders.
struct WebServer {
    process: std::process::Child,
    url: String,
}

impl WebServer {
    fn start(root: &Path) -> WebServer {
        let python = std::env::var("TRIREME_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let mut process = std::process::Command::new(python)
            .args(["-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory"])
            .arg(root)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("Python starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("it is a pipe");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("it says its address");
        let port = line.split_whitespace().skip_while(|word| *word != "port").nth(1).expect("it names the port");
        WebServer { process, url: format!("http://127.0.0.1:{port}") }
    }
}

impl Drop for WebServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A gateway on a broker, with the model `m` of a folder, and no worker.
fn gateway_for(folder: &Path) -> Sandbox {
    let none = ModelFolder::new();
    let named = format!("m={}", folder.display());
    let setup = Setup::new(Mode::Services).repository(none.path()).gateway_arguments(&["--model", &named]);
    let stages = [Stage::Tokenizer, Stage::Model, Stage::Postprocess];
    let mut sandbox = stages.into_iter().fold(setup, |setup, stage| setup.replicas(stage, 0)).start_gateway();
    sandbox.wait_listening();
    sandbox
}

/// A worker with all steps of the model `m` of a folder.
fn worker(sandbox: &Sandbox, name: &str, stages: &str, folder: &Path, flags: &[&str]) -> Process {
    let url = sandbox.nats.as_ref().expect("there is a broker").url();
    let mut command = product("trireme");
    command.args(["worker", "--stages", stages, "--nats-url", &url, "--worker-name", name]).args(flags);
    command.arg("--model").arg(format!("m={}", folder.display()));
    Process::start(name, &mut command, sandbox.folder())
}

const STAGES: &str = "tokenizer,model,postprocess";

/// Whether an answer is the first folder's, whose vectors have length 1; `None` without an answer.
fn is_of_first(sandbox: &Sandbox) -> Option<bool> {
    let input = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a boat"]}]});
    let answer = sandbox.infer("m", &input);
    (answer.status == 200).then(|| (length(&answer.numbers("sentence_embedding")) - 1.0).abs() < 1e-3)
}

/// Every request from now on is answered by the present content, until one is answered by the other: then all of the next ones are.
#[track_caller]
fn assert_turns(sandbox: &Sandbox, to_first: bool) {
    wait_until("the other content is served", LIMIT, || {
        let answer = is_of_first(sandbox).expect("every request is answered");
        (answer == to_first).then_some(())
    });
    assert_stays(sandbox, to_first);
}

#[track_caller]
fn assert_stays(sandbox: &Sandbox, first: bool) {
    let answers: Vec<_> = (0..40).map(|_| is_of_first(sandbox)).collect();
    assert!(answers.iter().all(|answer| *answer == Some(first)), "{answers:?}");
}

#[track_caller]
fn wait_said(process: &Process, message: &str, times: usize) {
    wait_until(message, LIMIT, || (process.count(message) >= times).then_some(()));
}

#[test]
fn a_second_content_under_one_name_waits_or_is_switched_to_and_never_answers_in_turn() {
    let (first, second) = (tiny(), tiny());
    let module = |kind: &str, path: &str| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
    write(&second, "modules.json", &json!([module("Transformer", ""), module("Pooling", "1_Pooling")]));
    let sandbox = gateway_for(first.path());
    let a = worker(&sandbox, "a", STAGES, first.path(), &[]);
    wait_said(&a, "ready", 1);
    let mut b = worker(&sandbox, "b", STAGES, second.path(), &[]);
    wait_said(&b, "takes no work", 3);
    assert_stays(&sandbox, true);
    let status = sandbox.get("/v2/trireme/status").text();
    let reason = "under the name 'm' version 1 than a (sha256:";
    assert!(b.log().contains(reason) && status.contains(reason), "{status}");

    // The second content takes over when the first one has gone, and no request is lost or answered by a mixture.
    a.terminate();
    assert_turns(&sandbox, false);

    // A third worker brings the first content back, and the second one yields.
    let mut c = worker(&sandbox, "c", STAGES, first.path(), &["--other-content=switch"]);
    assert_turns(&sandbox, true);
    wait_said(&b, "takes no work", 6);
    // A worker that dies holds nothing for ever.
    c.kill();
    assert_turns(&sandbox, false);
    b.terminate();
    assert!(b.wait_exit(LIMIT).success());
}

#[test]
fn a_flag_makes_another_content_and_a_worker_that_was_halted_answers_no_request_for_it() {
    let folder = tiny();
    let sandbox = gateway_for(folder.path());
    let a = worker(&sandbox, "a", STAGES, folder.path(), &[]);
    wait_said(&a, "ready", 1);
    let b = worker(&sandbox, "b", STAGES, folder.path(), &["--normalize", "m:false"]);
    wait_said(&b, "takes no work", 3);
    assert_stays(&sandbox, true);

    // The first worker hears nothing while it is halted, and goes on with the deliveries and the verdict that it had.
    a.pause();
    wait_said(&b, "takes work: its content is served now", 3);
    assert_stays(&sandbox, false);
    let load = load_during(
        4,
        |_| assert_eq!(is_of_first(&sandbox), Some(false)),
        || {
            a.resume();
            wait_said(&a, "takes no work", 3);
        },
    );
    assert!(load.wrong.is_empty() && load.right > 0, "{load:?}");
    assert_stays(&sandbox, false);
}

#[test]
fn the_steps_of_a_folder_change_together() {
    let (first, second) = (tiny(), tiny());
    write(&second, "sentence_bert_config.json", &json!({"max_seq_length": 8, "do_lower_case": false}));
    let sandbox = gateway_for(first.path());
    let tokenizer = worker(&sandbox, "tokenizer", "tokenizer", first.path(), &[]);
    let mut rest = worker(&sandbox, "rest", "model,postprocess", first.path(), &[]);
    [&tokenizer, &rest].into_iter().for_each(|worker| wait_said(worker, "ready", 1));
    let new = worker(&sandbox, "new", STAGES, second.path(), &[]);
    wait_said(&new, "takes no work", 3);
    tokenizer.terminate();
    wait_said(&tokenizer, "stopped", 1);
    let back = worker(&sandbox, "back", "tokenizer", first.path(), &[]);
    wait_said(&back, "ready", 1);
    assert_eq!(new.count("takes work: its content is served now"), 0, "one step of the first content is there");
    assert_stays(&sandbox, true);
    [&back, &rest].into_iter().for_each(Process::terminate);
    wait_said(&new, "takes work: its content is served now", 3);
    assert_stays(&sandbox, true);
    assert!(rest.wait_exit(LIMIT).success());
}
