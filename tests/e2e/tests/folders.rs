//! Model folders as sentence-transformers writes them: served as they are, written as repositories, refused with both places.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use trireme_e2e::{Mode, Process, Setup, basic_repository, golden, in_every_mode, product};
use trireme_testkit::assert_close;

in_every_mode!(a_folder_answers_as_the_repository_written_by_hand);

/// How long a command may take that serves nothing.
const LIMIT: Duration = Duration::from_secs(60);

/// The tiny encoder of the basic repository as sentence-transformers would have saved it.
fn tiny() -> TempDir {
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

fn write(folder: &TempDir, name: &str, content: &Value) {
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
    let again = run(&["init", "--name", "mine"], &[folder.path(), repository.path()]);
    assert!(!again.status.success() && String::from_utf8_lossy(&again.stderr).contains("it is there already"));
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
