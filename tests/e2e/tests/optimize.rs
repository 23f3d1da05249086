//! `trireme export` and `trireme optimize`, which work with a Python of the user's. Tests that need torch, or ONNX Runtime's tools, say
//! that they are skipped where no Python has them: `TRIREME_VERIFY_PYTHON` names one, and `scripts/setup-verify.sh` makes one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use trireme_e2e::{Process, basic_repository, product, python, wait_until, workspace};
use trireme_testkit::HubServer;

use super::folders::files;

/// How long an export with torch, and the comparison behind it, may take.
const EXPORT_LIMIT: Duration = Duration::from_secs(180);

/// The tiny encoder of the basic repository as sentence-transformers would have saved it.
fn tiny() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let copy = |from: &str, to: &str| {
        let to = folder.path().join(to);
        fs::create_dir_all(to.parent().expect("a file lies in a folder")).expect("a folder can be made");
        fs::copy(basic_repository().join(from), to).expect("the basic repository has the file");
    };
    copy("tiny_encoder/1/model.onnx", "onnx/model.onnx");
    copy("tiny_tokenizer/1/tokenizer.json", "tokenizer.json");
    copy("tiny_tokenizer/1/tokenizer_config.json", "tokenizer_config.json");
    let module = |kind: &str, path: &str| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
    write(&folder, "modules.json", &json!([module("Transformer", ""), module("Pooling", "1_Pooling")]));
    write(&folder, "config.json", &json!({"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 8}));
    write(&folder, "sentence_bert_config.json", &json!({"max_seq_length": 16}));
    write(&folder, "1_Pooling/config.json", &json!({"pooling_mode": "mean"}));
    folder
}

fn write(folder: &TempDir, name: &str, content: &Value) {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().expect("a file lies in a folder")).expect("a folder can be made");
    fs::write(path, content.to_string()).expect("a file can be written");
}

pub(super) fn run(command: &str, folder: &Path, python: &Path, arguments: &[&str]) -> Output {
    let mut trireme = product("trireme");
    trireme.arg(command).arg(folder).arg("--python").arg(python).args(arguments);
    trireme.output().expect("the command runs")
}

/// Standard output and standard error.
pub(super) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A Python that can import all of these; without one the test is skipped, and says so.
pub(super) fn python_with(packages: &str) -> Option<PathBuf> {
    let named = std::env::var_os("TRIREME_VERIFY_PYTHON").map(PathBuf::from);
    let made = [".tools/verify-python/bin/python", ".tools/bench-python/bin/python"].map(|path| workspace().join(path));
    let can = |python: &PathBuf| {
        let tried = Command::new(python).args(["-c", &format!("import {packages}")]).output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    let found = named.into_iter().chain(made).chain([python()]).find(can);
    if found.is_none() {
        eprintln!(
            "skipped: no Python has {packages}; name one by TRIREME_VERIFY_PYTHON, or make one: scripts/setup-verify.sh"
        );
    }
    found
}

#[test]
fn an_export_says_why_it_makes_no_file() {
    let folder = tiny();
    let there = run("export", folder.path(), Path::new("python3"), &[]);
    assert!(!there.status.success() && said(&there).contains("onnx/model.onnx is there already"), "{}", said(&there));
    fs::remove_dir_all(folder.path().join("onnx")).expect("it was there");
    let gone = run("export", folder.path(), Path::new("/nowhere/python"), &[]);
    assert!(said(&gone).contains("cannot start /nowhere/python: name a Python by --python"), "{}", said(&gone));
    let empty = run("export", folder.path(), &python(), &[]);
    let words = "holds no weights: expected model.safetensors or pytorch_model.bin";
    assert!(empty.status.code() == Some(1) && said(&empty).contains(words), "{}", said(&empty));
    fs::write(folder.path().join("model.pt"), "").expect("a file can be written");
    let traced = run("export", folder.path(), &python(), &[]);
    assert!(
        said(&traced).contains("only model.pt, a TorchScript file, whose inputs a model folder does not say"),
        "{}",
        said(&traced)
    );
    assert!(!folder.path().join("onnx").exists(), "nothing is left behind");
    let served = product("trireme").args(["serve", "--http-port=0"]).arg(folder.path()).output().expect("it runs");
    let command = format!("or with: trireme export {}", folder.path().display());
    assert!(said(&served).contains(&command), "{}", said(&served));
}

/// Makes a model folder of sentence-transformers without an ONNX file at `path`.
fn make_without_graph(path: &Path, python: &Path) {
    let script = "import sys; sys.path.insert(0, sys.argv[1]); import folders, pathlib, shutil
path = pathlib.Path(sys.argv[2]); folders.make('mean-normalized', path); shutil.rmtree(path / 'onnx')";
    let made = Command::new(python).args(["-c", script]).arg(workspace().join("tests/verify")).arg(path).output();
    let made = made.expect("Python runs");
    assert!(made.status.success(), "{}", said(&made));
}

#[test]
fn an_export_by_torch_is_served_as_the_library_computes() {
    let Some(python) = python_with("torch, transformers, sentence_transformers") else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("made");
    make_without_graph(&path, &python);
    let exported = run("export", &path, &python, &["--log-level", "warning"]);
    assert!(exported.status.success() && said(&exported).contains("serves what the library of"), "{}", said(&exported));
    assert!(path.join("onnx/model.onnx").is_file());
    // Answers that are not alike enough: the file is kept where no process serves it.
    fs::remove_dir_all(path.join("onnx")).expect("it was made");
    let rejected = run("export", &path, &python, &["--log-level", "warning", "--min-cosine", "1.1"]);
    assert_eq!(rejected.status.code(), Some(1), "{}", said(&rejected));
    assert!(path.join("onnx/model.onnx.rejected").is_file() && !path.join("onnx/model.onnx").exists());
}

/// The log of `serve --export` with this Python and cache, until the server is ready, or has ended.
fn serve_exporting(folder: &Path, python: &Path, cache: &Path) -> String {
    serve_exporting_with(&folder.display().to_string(), python, cache, &[])
}

/// As [`serve_exporting`], of a word for a model and with these variables.
fn serve_exporting_with(model: &str, python: &Path, cache: &Path, environment: &[(&str, &str)]) -> String {
    let logs = tempfile::tempdir().expect("a temporary folder");
    let mut trireme = product("trireme");
    trireme.args(["serve", "--allow-grpc=false", "--allow-metrics=false", "--export", "--export-python"]);
    trireme.arg(python).arg("--export-cache").arg(cache).arg(model).envs(environment.iter().copied());
    let mut process = Process::start("serve", &mut trireme, logs.path());
    wait_until("it is ready, or ends", EXPORT_LIMIT, || {
        (process.count("ready") > 0 || process.exited().is_some()).then_some(())
    });
    process.log()
}

#[test]
fn serving_without_a_graph_says_what_makes_one() {
    let (folder, cache) = (tiny(), tempfile::tempdir().expect("a temporary folder"));
    fs::remove_dir_all(folder.path().join("onnx")).expect("it was there");
    let text = serve_exporting(folder.path(), Path::new("/nowhere/python"), cache.path());
    let command =
        format!("trireme serve {} --export --export-python export-python/bin/python", folder.path().display());
    assert!(text.contains("/nowhere/python cannot make one") && text.contains(&command), "{text}");
    assert!(fs::read_dir(cache.path()).expect("it is there").next().is_none(), "nothing is left behind");
    let serve =
        || said(&product("trireme").args(["serve", "--http-port=0"]).arg(folder.path()).output().expect("it runs"));
    let served = serve();
    assert!(served.contains("no ONNX file, and no weights that one is made of"), "{served}");
    fs::write(folder.path().join("model.safetensors"), "").expect("the folder can be written");
    let (served, command) = (serve(), format!("trireme serve {} --export", folder.path().display()));
    assert!(served.contains(&command), "{served}");
}

#[test]
fn serving_makes_a_graph_once() {
    let Some(python) = python_with("torch, transformers, sentence_transformers") else { return };
    let (folder, cache) =
        (tempfile::tempdir().expect("a temporary folder"), tempfile::tempdir().expect("a temporary folder"));
    let path = folder.path().join("made");
    make_without_graph(&path, &python);
    let first = serve_exporting(&path, &python, cache.path());
    assert!(first.contains("made its ONNX file") && first.contains("serves what the library of"), "{first}");
    assert!(!path.join("onnx").exists(), "the folder stays as it is");
    let again = serve_exporting(&path, Path::new("/nowhere/python"), cache.path());
    assert!(again.contains("served with the ONNX file that was made before"), "{again}");
}

#[test]
fn a_model_of_the_hub_without_a_graph_is_downloaded_with_its_weights() {
    let (folder, caches) = (tiny(), tempfile::tempdir().expect("a temporary folder"));
    fs::remove_dir_all(folder.path().join("onnx")).expect("it was there");
    for name in ["model.safetensors", "pytorch_model.bin"] {
        fs::write(folder.path().join(name), "weights").expect("the folder can be written");
    }
    let hub = HubServer::start("org/bare", files(folder.path(), ""));
    let (url, downloads) = (hub.url(), caches.path().join("hub").display().to_string());
    let environment = [("HF_ENDPOINT", url.as_str()), ("HF_HUB_CACHE", downloads.as_str())];
    let plain = product("trireme").args(["serve", "--http-port=0", "hf://org/bare"]).envs(environment).output();
    let plain = said(&plain.expect("it runs"));
    assert!(plain.contains("there is no ONNX file") && plain.contains("trireme serve MODEL --export"), "{plain}");
    let exports = caches.path().join("exports");
    let text = serve_exporting_with("hf://org/bare", Path::new("/nowhere/python"), &exports, &environment);
    let command = "trireme serve hf://org/bare --export --export-python export-python/bin/python";
    assert!(text.contains("/nowhere/python cannot make one") && text.contains(command), "{text}");
    let asked = |name: &str| hub.requests().iter().any(|request| request.contains(name));
    assert!(asked("model.safetensors") && !asked("pytorch_model.bin"), "{:?}", hub.requests());
}

#[test]
fn a_graph_of_a_model_of_the_hub_is_made_once() {
    let Some(python) = python_with("torch, transformers, sentence_transformers") else { return };
    let (folder, caches) =
        (tempfile::tempdir().expect("a temporary folder"), tempfile::tempdir().expect("a temporary folder"));
    let path = folder.path().join("made");
    make_without_graph(&path, &python);
    let hub = HubServer::start("org/made", files(&path, ""));
    let (url, downloads) = (hub.url(), caches.path().join("hub").display().to_string());
    let environment = [("HF_ENDPOINT", url.as_str()), ("HF_HUB_CACHE", downloads.as_str())];
    let exports = caches.path().join("exports");
    let first = serve_exporting_with("hf://org/made", &python, &exports, &environment);
    assert!(first.contains("made its ONNX file") && first.contains("serves what the library of"), "{first}");
    let again = serve_exporting_with("hf://org/made", Path::new("/nowhere/python"), &exports, &environment);
    assert!(again.contains("served with the ONNX file that was made before"), "{again}");
}

#[test]
fn a_variant_is_written_measured_and_served_when_it_is_asked_for() {
    let folder = tiny();
    let asked = product("trireme").args(["validate", "--precision", "int8"]).arg(folder.path()).output();
    let asked = asked.expect("the command runs");
    let words = "--precision int8 asks for an ONNX file of the name model_int8.onnx";
    assert!(!asked.status.success() && said(&asked).contains(words), "{}", said(&asked));
    assert!(said(&asked).contains("make one with: trireme optimize"), "{}", said(&asked));

    let Some(python) = python_with("onnxruntime.quantization, onnx") else { return };
    let quick = ["--seconds", "0.2", "--rounds", "1", "--log-level", "warning", "--min-speedup", "0"];
    let strict = run("optimize", folder.path(), &python, &[&quick[..], &["--min-cosine", "1.1"]].concat());
    assert_eq!(strict.status.code(), Some(1), "{}", said(&strict));
    let places = ["no variant was written", "fidelity fails", "expected a lowest likeness of at least 1.1"];
    assert!(places.iter().all(|place| said(&strict).contains(place)), "{}", said(&strict));
    let written = run("optimize", folder.path(), &python, &[&quick[..], &["--min-cosine", "0.9"]].concat());
    let places = ["top 10", "texts/s on this processor, ", "On other processors: not measured; run optimize there"];
    let tells = places.iter().all(|place| said(&written).contains(place));
    assert!(written.status.success() && tells, "{}", said(&written));
    assert!(folder.path().join("onnx/model_int8.onnx").is_file());
    let again = run("optimize", folder.path(), &python, &quick);
    assert!(!again.status.success() && said(&again).contains("is there already"), "{}", said(&again));

    let init = |precision: &str| {
        let repository = tempfile::tempdir().expect("a temporary folder");
        let mut command = product("trireme");
        command.args(["init", "--precision", precision]).arg(folder.path()).arg(repository.path());
        said(&command.output().expect("the command runs"))
    };
    assert!(!init("exact").contains("model_int8.onnx"), "{}", init("exact"));
    let table = init("int8");
    let places =
        ["onnx/model_int8.onnx", "--precision int8; made of model.onnx: ", "times the texts/s on ", ", by onnxruntime"];
    assert!(places.iter().all(|place| table.contains(place)), "{table}");

    let graph = folder.path().join("onnx/model.onnx");
    let mut changed = fs::read(&graph).expect("it is there");
    // A field that readers skip: doc_string of the model.
    changed.extend([0x32, 1, b'x']);
    fs::write(&graph, changed).expect("it can be written");
    let old = init("int8");
    assert!(old.contains("onnx/model_int8.onnx was made of onnx/model.onnx with"), "{old}");
}
