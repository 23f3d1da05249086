//! `trireme bulk`: a file of texts becomes a file of vectors, and goes on where it was.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trireme_columns::{Format, Table};
use trireme_e2e::{Mode, Request, Sandbox, Setup, product, workspace};

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
fn a_file_of_texts_becomes_a_file_of_vectors_and_goes_on_where_it_was() {
    let sandbox = Setup::new(Mode::AllInOne).repository(&workspace().join("tests/repositories/texts")).start();
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

    // A run that was cut off in a line.
    let cut = whole.len() / 2;
    fs::write(&path, &whole[..cut]).expect("the output is cut");
    let again = bulk(&sandbox, folder.path());
    let kept = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(said.contains(&format!("goes on behind line {kept} of 100")), "{said}");
    let ids = |bytes: &[u8]| -> Vec<Value> {
        let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Value>(line).ok());
        lines.map(|line| line["id"].clone()).collect()
    };
    assert_eq!(ids(&fs::read(&path).expect("the output is there")), ids(&whole));
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
    let said = run(alone(&path("in.jsonl"), &path("lines.jsonl")));
    assert!(said.contains("3000 of 3000 texts"), "{said}");
    for (name, format) in [("out.parquet", Format::Parquet), ("out.feather", Format::Arrow)] {
        run(alone(&path("in.jsonl"), &path(name)));
        let table = table(&path(name), format);
        assert_eq!((table.rows(), table.columns().as_str()), (3000, "'id', 'embedding', 'error'"));
        let batches: Vec<_> = table.batches(0, 4096).expect("rows").collect::<Result<_, _>>().expect("rows");
        let ids: Vec<_> = batches.iter().flat_map(|batch| batch.ids("id").expect("ids")).collect();
        assert_eq!(ids, (0..3000).map(|n| json!(n.to_string())).collect::<Vec<_>>());
        assert!(batches.iter().all(|batch| batch.texts("error").expect("errors").iter().all(Option::is_none)));
        assert!(!path(name).with_extension("parquet.parts").exists());

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
        // The description of the job, and a part and its counts more than before.
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

#[test]
fn parts_of_another_job_are_not_continued() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (input, output) = (folder.path().join("in.jsonl"), folder.path().join("out.parquet"));
    fs::write(&input, "a text").expect("the input is written");
    let parts = folder.path().join("out.parquet.parts");
    fs::create_dir(&parts).expect("a folder");
    fs::write(parts.join("job.json"), r#"{"input": "other"}"#).expect("a file");
    let said = String::from_utf8_lossy(&alone(&input, &output).output().expect("the command runs").stderr).into_owned();
    assert!(said.contains("parts of another job") && said.contains("remove that folder"), "{said}");
    let mut missing = product("trireme");
    missing.arg("bulk").args([&input, &output]).args(["--model", "my-model"]);
    let said = String::from_utf8_lossy(&missing.output().expect("the command runs").stderr).into_owned();
    assert!(said.contains("no such folder") && said.contains("--server"), "{said}");
}

/// All outputs: the rows without a vector are tried again, and no others.
#[test]
fn the_same_command_tries_the_rows_without_a_vector_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    let mut lines: Vec<String> = (1..=5000).map(|n| format!("text {n}")).collect();
    for name in ["out.jsonl", "out.parquet", "out.arrow"] {
        let failing = [1, 700, 4999];
        failing.iter().for_each(|row| lines[row - 1].clear());
        fs::write(path("in.jsonl"), lines.join("\n")).expect("the input is written");
        let (output, errors) = (path(name), path(&format!("{name}.errors.jsonl")));
        let asked = |expected: i32| -> Value {
            let ran = alone(&path("in.jsonl"), &output).arg("--json").output().expect("the command runs");
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert_eq!(ran.status.code(), Some(expected), "{name}: {said}");
            serde_json::from_slice(&ran.stdout).expect("a summary")
        };
        let failed = || -> Vec<Value> {
            let text = fs::read_to_string(&errors).expect("the file of errors");
            text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["row"].clone()).collect()
        };
        let summary = asked(1);
        assert_eq!((&summary["texts"], &summary["errors"]), (&json!(5000), &json!(3)));
        assert_eq!(summary["error_file"], errors.to_str().expect("UTF-8"));
        assert_eq!(failed(), [1, 700, 4999]);
        let before = rows(&output);

        // One row stays without a text.
        for row in [1, 4999] {
            lines[row - 1] = "a text".to_owned();
        }
        fs::write(path("in.jsonl"), lines.join("\n")).expect("the input is written");
        let summary = asked(1);
        assert_eq!((&summary["texts"], &summary["errors"]), (&json!(3), &json!(1)));
        assert_eq!(failed(), [700]);
        lines[699] = "a text".to_owned();
        fs::write(path("in.jsonl"), lines.join("\n")).expect("the input is written");
        let summary = asked(0);
        assert_eq!((&summary["errors"], &summary["error_file"]), (&json!(0), &Value::Null));
        assert!(!errors.exists(), "{name}: no row is left");
        let after = rows(&output);
        assert_eq!(after.len(), 5000);
        for (row, (before, after)) in (1..).zip(before.iter().zip(&after)) {
            assert_eq!(before == after, !failing.contains(&row), "{name}: row {row}");
            assert!(after["embedding"].is_array() && after["error"].is_null(), "{name}: row {row}");
        }
        let left: Vec<_> =
            fs::read_dir(folder.path()).expect("a folder").flatten().map(|entry| entry.file_name()).collect();
        assert!(left.iter().all(|left| left.to_string_lossy().rsplit('.').next() != Some("lock")), "{left:?}");
        assert!(left.iter().all(|left| !left.to_string_lossy().contains(&format!("{name}."))), "{left:?}");
    }
}

/// The rows of an output as JSON.
fn rows(output: &Path) -> Vec<Value> {
    let format = match output.extension().and_then(|extension| extension.to_str()) {
        Some("parquet") => Format::Parquet,
        Some("arrow") => Format::Arrow,
        _ => {
            let text = fs::read_to_string(output).expect("lines");
            return text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        }
    };
    let batches = table(output, format).batches(0, 4096).expect("rows");
    let rows = batches.flat_map(|batch| {
        let batch = batch.expect("rows");
        let [ids, vectors, errors] = ["id", "embedding", "error"].map(|column| batch.json(column).expect("cells"));
        let row = |((id, vector), error)| json!({"id": id, "embedding": vector, "error": error});
        ids.into_iter().zip(vectors).zip(errors).map(row).collect::<Vec<_>>()
    });
    rows.collect()
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
