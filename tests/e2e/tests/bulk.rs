//! `trireme bulk`: a file of texts becomes a file of vectors, and goes on where it was.
//!
//! Not here: outputs that no job knows, and rows that are tried again (`bulk/tests.rs` of the cli).

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trireme_columns::{Format, Table};
use trireme_e2e::{Mode, Request, Sandbox, Setup, basic_repository, product, texts_repository, workspace};
use trireme_testkit::assert_close;

use crate::folds::{LONG, infer, tensor};

fn bulk(sandbox: &Sandbox, folder: &std::path::Path) -> Output {
    let mut command = product("trireme");
    command.arg("bulk").args([folder.join("in.jsonl"), folder.join("out.jsonl")]);
    command.args([
        "--model",
        "embedding",
        "--texts",
        "7",
        "--window",
        "4",
        "--server",
        &format!("http://{}", sandbox.address),
    ]);
    command.output().expect("the command runs")
}

#[test]
fn a_server_makes_a_file_of_vectors_of_a_file_of_texts() {
    let sandbox = Setup::new(Mode::AllInOne).repository(&texts_repository()).shared();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut lines: Vec<String> = (0..100).map(|n| format!("text {n} {}", "again ".repeat(n % 5))).collect();
    lines[10] = json!({"id": "ten", "text": "what cause covid"}).to_string();
    lines[20] = String::new();
    fs::write(folder.path().join("in.jsonl"), lines.join("\n") + "\n").expect("the input is written");
    let output = bulk(&sandbox, folder.path());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "one line has no text: {said}");
    assert!(said.contains("100 of 100 texts") && said.contains("1 errors, done"), "{said}");
    let path = folder.path().join("out.jsonl");
    let whole = fs::read(&path).expect("the output is there");
    let found: Vec<Value> =
        whole.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    assert_eq!(found.len(), 100);
    assert_eq!((&found[0]["id"], &found[10]["id"], &found[99]["id"]), (&json!(1), &json!("ten"), &json!(100)));
    assert!(found[20]["error"].as_str().is_some_and(|error| error.contains("empty")), "{}", found[20]);
    let body = json!({"model": "embedding", "input": "what cause covid"}).to_string();
    let live = sandbox.send(&Request::post("/v1/embeddings", body)).json();
    let numbers = |vector: &Value| -> Vec<f64> {
        vector.as_array().expect("a vector").iter().filter_map(Value::as_f64).collect()
    };
    let (bulk_vector, live_vector) = (numbers(&found[10]["embedding"]), numbers(&live["data"][0]["embedding"]));
    assert!(bulk_vector.iter().zip(&live_vector).all(|(a, b)| (a - b).abs() < 1e-5), "{bulk_vector:?} {live_vector:?}");

    // The same command tries the line again, and a file that is not the one that was written stays as it is.
    let again = bulk(&sandbox, folder.path());
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains("tries its 1 rows without a vector again"), "{said}");
    assert_eq!(fs::read(&path).expect("the output is there"), whole);
    let cut = &whole[..whole.len() / 2];
    fs::write(&path, cut).expect("the output is cut");
    let said = String::from_utf8_lossy(&bulk(&sandbox, folder.path()).stderr).into_owned();
    assert!(said.contains("is not the file that trireme bulk has written"), "{said}");
    assert_eq!(fs::read(&path).expect("the output is there"), cut);
}

/// The command that embeds a file in its own process.
fn alone(input: &Path, output: &Path) -> Command {
    let mut command = product("trireme");
    command.arg("bulk").args([input, output]).arg("--model").arg(workspace().join("tests/repositories/texts"));
    command
}

fn run(mut command: Command) -> String {
    let output = command.output().expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

fn table(path: &Path, format: Format) -> Table {
    let bytes: bytes::Bytes = fs::read(path).expect("the file is there").into();
    Table::open(Arc::new(bytes), format).expect("the file is whole")
}

#[test]
fn one_process_embeds_between_all_formats() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let lines: Vec<String> =
        (0..3000).map(|n| json!({"id": n, "text": format!("text {n} again")}).to_string()).collect();
    fs::write(path("in.jsonl"), lines.join("\n")).expect("the input is written");
    // Variables of a server that others ask, as images set them, are not meant for the one in this process.
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("its address").to_string();
    let mut first = alone(&path("in.jsonl"), &path("lines.jsonl"));
    first
        .env("TRIREME_ADMIN_ADDRESS", address)
        .env("TRIREME_MODEL_REPOSITORY", path("none"))
        .env("TRIREME_HTTPS_KEY", path("none"));
    let said = run(first);
    assert!(said.contains("3000 of 3000 texts"), "{said}");
    for (name, format) in [("out.parquet", Format::Parquet), ("out.feather", Format::Arrow)] {
        run(alone(&path("in.jsonl"), &path(name)));
        let table = table(&path(name), format);
        assert_eq!((table.rows(), table.columns().as_str()), (3000, "'id', 'embedding', 'error'"));
        let batches: Vec<_> = table.batches(0, 4096).expect("rows").collect::<Result<_, _>>().expect("rows");
        let ids: Vec<_> = batches.iter().flat_map(|batch| batch.ids("id").expect("ids")).collect();
        assert_eq!(ids, (0..3000).map(|n| json!(n.to_string())).collect::<Vec<_>>());
        assert!(batches.iter().all(|batch| batch.texts("error").expect("errors").iter().all(Option::is_none)));
        assert!(!path(&format!("{name}.parts")).exists() && path(&format!("{name}.job.json")).exists());

        // Its ids are texts too.
        let mut back = alone(&path(name), &path(&format!("{name}.jsonl")));
        back.args(["--text-column", "id"]);
        run(back);
        let text = fs::read_to_string(path(&format!("{name}.jsonl"))).expect("lines");
        let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert!(found.len() == 3000 && found[2999]["id"] == "2999" && found[7]["embedding"].is_array());
        let again = alone(&path("in.jsonl"), &path(name)).output().expect("the command runs");
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(!again.status.success() && said.contains("is there already"), "{said}");
    }
    let mut taken = alone(&path("out.parquet"), &path("twice.parquet"));
    taken.args(["--text-column", "id"]);
    let said = String::from_utf8_lossy(&taken.output().expect("the command runs").stderr).into_owned();
    assert!(said.contains("column 'embedding' already"), "{said}");
}

#[test]
fn a_file_of_columns_goes_on_after_kills_and_never_looks_whole_before_it_is() {
    const ROWS: u64 = 30_000;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let mut lines: Vec<String> = (0..ROWS).map(|n| format!("text {n}")).collect();
    // One row has no text, and one has more tokens than the model takes.
    (lines[5], lines[7]) = (String::new(), "again ".repeat(1000));
    fs::write(path("in.jsonl"), lines.join("\n")).expect("the input is written");
    let (output, parts) = (path("out.parquet"), path("out.parquet.parts"));
    let count = || fs::read_dir(&parts).map_or(0, |entries| entries.flatten().count());
    for kill in 1..=2 {
        let before = count();
        let mut child = alone(&path("in.jsonl"), &output).spawn().expect("the command runs");
        let until = Instant::now() + Duration::from_secs(120);
        // The lock, and a part and its counts more than before.
        while count() < before.max(1) + 2 && Instant::now() < until && child.try_wait().expect("a child").is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().expect("the child is killed");
        child.wait().expect("the child ends");
        assert!(!output.exists(), "nothing looks whole after kill {kill}");
    }
    let other = alone(&path("in.jsonl"), &output).args(["--texts", "3", "--json"]).output().expect("the command runs");
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(other.status.code() == Some(1) && said.contains("goes on behind line"), "{said}");
    assert!(said.contains(&format!("{ROWS} of {ROWS} texts")) && said.contains("1 errors, done"), "{said}");
    assert!(said.contains(&format!("1 of {ROWS} texts are longer than")), "{said}");
    let summary: Value = serde_json::from_slice(&other.stdout).expect("a summary");
    assert_eq!((&summary["texts"], &summary["errors"], &summary["cut_texts"]), (&json!(ROWS), &json!(1), &json!(1)));
    assert!(summary["tokens"].as_u64() > Some(3 * ROWS) && summary["most_tokens"].is_number(), "{summary}");
    let errors = fs::read_to_string(path("out.parquet.errors.jsonl")).expect("the file of errors");
    assert_eq!(
        serde_json::from_str::<Value>(&errors).expect("one line"),
        json!({"row": 6, "id": "6", "error": "an empty text"})
    );
    let table = table(&output, Format::Parquet);
    let ids = table.batches(0, 4096).expect("rows").flat_map(|batch| batch.expect("rows").ids("id").expect("ids"));
    assert!(ids.eq((1..=ROWS).map(|n| json!(n.to_string()))), "every row once, in order");
    assert!(!parts.exists(), "the parts are gone");
}

/// A folder, its other choice, and its other files: the vectors of a job are those of one model.
#[test]
fn a_job_of_a_model_folder_is_continued_with_the_same_files_and_choices_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (input, output, model) =
        (folder.path().join("in.jsonl"), folder.path().join("out.parquet"), folder.path().join("model"));
    // The second line has no text, so that one line is left to try again.
    fs::write(&input, "a text\n\n").expect("the input is written");
    fs::create_dir(&model).expect("a folder");
    for file in ["tiny_encoder/1/model.onnx", "tiny_tokenizer/1/tokenizer.json"] {
        let to = model.join(Path::new(file).file_name().expect("a name"));
        fs::copy(basic_repository().join(file), to).expect("the basic repository has the file");
    }
    let config = |extra: &str| {
        let config = format!(r#"{{"model_type": "bert", "architectures": ["BertModel"], "hidden_size": 8{extra}}}"#);
        fs::write(model.join("config.json"), config).expect("a file");
    };
    config("");
    let said = |pooling: &str| {
        let mut command = product("trireme");
        command.arg("bulk").args([&input, &output]).arg("--model").arg(&model);
        command.args(["--task=embed", "--normalize=true"]).arg(format!("--pooling={pooling}"));
        String::from_utf8_lossy(&command.output().expect("the command runs").stderr).into_owned()
    };
    let first = said("mean");
    assert!(first.contains("2 of 2 texts") && first.contains("1 errors"), "{first}");
    let whole = fs::read(&output).expect("the output is there");
    let other = said("cls");
    assert!(
        other.contains("'choices.pooling' is \"mean\" in") && other.contains("and \"cls\" for this command"),
        "{other}"
    );
    config(r#", "vocab_size": 64"#);
    let other = said("mean");
    assert!(other.contains("'content' is \"sha256:"), "{other}");
    assert_eq!(fs::read(&output).expect("the output is there"), whole);
    config("");
    let again = said("mean");
    assert!(again.contains("tries its 1 rows without a vector again"), "{again}");

    let mut missing = product("trireme");
    missing.arg("bulk").args([&input, &folder.path().join("new.jsonl")]).args(["--model", "my-model"]);
    let said = String::from_utf8_lossy(&missing.output().expect("the command runs").stderr).into_owned();
    assert!(said.contains("no such folder") && said.contains("--server"), "{said}");
}

#[test]
fn two_runs_never_write_one_output() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.jsonl"));
    fs::write(&input, "a text").expect("the input is written");
    // A server that takes a request and gives no answer.
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut first = product("trireme");
    first.arg("bulk").args([&input, &output]).args(["--model", "m", "--server"]);
    first.arg(format!("http://{}", server.local_addr().expect("an address")));
    let mut first = first.spawn().expect("the command runs");
    let connection = server.accept().expect("the first run asks");
    let second = alone(&input, &output).output().expect("the command runs");
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(!second.status.success() && said.contains("another run of trireme bulk writes"), "{said}");
    assert!(!output.exists(), "the second run has written nothing");
    first.kill().expect("the first run is killed");
    first.wait().expect("the first run ends");
    drop(connection);
    run(alone(&input, &output));
}

#[test]
fn each_window_of_a_long_text_has_a_row_in_every_format() {
    let model = crate::folders::tiny();
    let named = format!("boats={}", model.path().display());
    let sandbox = Setup::new(Mode::AllInOne).worker_arguments(&["--model", &named]).start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let japanese = "東京は日本の首都です。".repeat(5);
    let texts = ["the sea is calm", LONG, &japanese, "e\u{301}te\u{301} 👩\u{200d}👧 🙂"];
    let lines: Vec<String> = texts.iter().map(|text| json!({"id": "x", "text": text}).to_string()).collect();
    // The last row has no text.
    fs::write(path("in.jsonl"), lines.join("\n") + "\n\n").expect("the input is written");
    let asked = json!({"windows": true, "fold": "keep", "overlap": 0, "max_tokens": 12});
    let expected = infer(&sandbox, "boats", &[tensor("TEXT", &texts)], &asked);
    let (windows, vectors) = (expected.numbers("windows"), expected.numbers("sentence_embedding"));
    let places: Vec<[f32; 3]> = windows.chunks(6).map(|window| [window[0] + 1.0, window[1], window[2]]).collect();
    assert!(places.len() > 2 * texts.len(), "{places:?}");

    let url = format!("http://{}", sandbox.address);
    for name in ["own.jsonl", "own.parquet", "own.arrow", "asked.jsonl", "asked.parquet"] {
        let mut command = product("trireme");
        command.arg("bulk").args([path("in.jsonl"), path(name)]);
        command.args(["--chunk", "--chunk-overlap", "0", "--chunk-tokens", "12", "--model"]);
        match name.starts_with("asked") {
            true => command.args(["boats", "--server", &url]),
            false => command.arg(model.path()),
        };
        let output = command.output().expect("the command runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains("5 of 5 texts"), "{name}: {said}");
        let column = |column: &str| -> Vec<Value> {
            let Some(format) = Format::of_name(name) else {
                let text = fs::read_to_string(path(name)).expect("lines");
                let line = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")[column].take();
                return text.lines().map(line).collect();
            };
            let batches = table(&path(name), format).batches(0, 4096).expect("rows");
            batches.flat_map(|batch| batch.expect("rows").json(column).expect("a column")).collect()
        };
        let [mut rows, numbers, starts, ends, mut embeddings] =
            ["row", "window", "start", "end", "embedding"].map(column);
        assert_eq!((rows.pop(), embeddings.pop()), (Some(json!(5)), Some(Value::Null)), "{name}");
        let number = |value: &Value| value.as_f64().expect("a number") as f32;
        let found: Vec<[f32; 3]> = rows
            .iter()
            .zip(starts.iter().zip(&ends))
            .map(|(row, (start, end))| [number(row), number(start), number(end)])
            .collect();
        assert_eq!(found, places, "{name}");
        assert_eq!(numbers[..3], [json!(0), json!(0), json!(1)], "{name}");
        let found: Vec<f32> = embeddings.iter().flat_map(trireme_e2e::numbers).collect();
        assert_close(&found, &vectors, 1e-5);
        let errors = fs::read_to_string(path(&format!("{name}.errors.jsonl"))).expect("the file of errors");
        assert!(errors.contains("{\"row\":5,") && errors.contains("an empty text"), "{errors}");
    }
}
