//! Batches over files of columns: each row is a request, and the output has the rows with their answers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_columns::{Batch, Format, Layout, Table, Writer};
use trireme_e2e::{Mode, Request, Response, Setup, in_one_mode, wait_until, workspace};

in_one_mode!(a_batch_of_rows_is_a_table_in_and_a_table_out);

const ROWS: usize = 2500;

/// A table of texts; each hundredth row has no text.
fn table(format: Format) -> Vec<u8> {
    let text = |row: usize| (row % 100 != 7).then(|| format!("text {row} {}", "again ".repeat(row % 5)));
    let note = |row: usize| Some(format!("note {row}"));
    let columns = vec![("text", (0..ROWS).map(text).collect()), ("note", (0..ROWS).map(note).collect())];
    let batch = Batch::of_texts(columns).expect("two columns");
    let mut writer = Writer::new(format, &Layout::plain(&batch), Vec::new()).expect("a file");
    writer.write(&batch).expect("rows");
    writer.finish().expect("a whole file")
}

fn send(address: SocketAddr, request: &Request) -> Response {
    request.send(address).expect("the gateway answers")
}

fn upload(address: SocketAddr, name: &str, bytes: &[u8]) -> String {
    let head = format!(
        "--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\nContent-Disposition: \
         form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n"
    );
    let body = [head.as_bytes(), bytes, b"\r\n--edge--\r\n"].concat();
    let file = Request::post("/v1/files", body).header("Content-Type", "multipart/form-data; boundary=edge");
    let file = send(address, &file);
    assert_eq!(file.status, 200, "{}", file.text());
    file.json()["id"].as_str().expect("an id").to_owned()
}

/// A batch over a file, once it has ended.
fn ended(address: SocketAddr, file: &str, endpoint: &str, rows: &Value) -> Value {
    let mut body = json!({"input_file_id": file, "endpoint": endpoint, "completion_window": "24h"});
    body.as_object_mut().expect("an object").extend(rows.as_object().expect("an object").clone());
    let batch = send(address, &Request::post("/v1/batches", body.to_string()));
    assert_eq!(batch.status, 200, "{}", batch.text());
    let id = batch.json()["id"].as_str().expect("an id").to_owned();
    wait_until("the end of the batch", Duration::from_secs(180), || {
        let batch = Request::get(&format!("/v1/batches/{id}")).send(address).ok()?.json();
        let state = batch["status"].as_str().unwrap_or_default().to_owned();
        ["completed", "failed"].contains(&state.as_str()).then_some(batch)
    })
}

fn content(address: SocketAddr, file: &Value) -> Vec<u8> {
    let path = format!("/v1/files/{}/content", file.as_str().expect("a file"));
    send(address, &Request::get(&path)).body.to_vec()
}

fn a_batch_of_rows_is_a_table_in_and_a_table_out(mode: Mode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let setup = Setup::new(mode).repository(&workspace().join("tests/repositories/texts"));
    let sandbox = match mode {
        Mode::Services => setup.start(),
        _ => setup.gateway_arguments(&["--data-dir", folder.path().to_str().expect("UTF-8")]).start(),
    };
    let address = sandbox.address;
    for (name, format) in [("rows.parquet", Format::Parquet), ("rows.arrow", Format::Arrow)] {
        let file = upload(address, name, &table(format));
        let batch = ended(address, &file, "/v1/embeddings", &json!({"body": {"model": "embedding"}}));
        assert_eq!(batch["status"], "completed", "{batch}");
        assert_eq!(batch["request_counts"], json!({"total": 2500, "completed": 2475, "failed": 25}), "{batch}");
        let listed =
            send(address, &Request::get(&format!("/v1/files/{}", batch["output_file_id"].as_str().expect("a file"))));
        assert!(listed.json()["filename"].as_str().expect("a name").ends_with(&format!("_output.{}", format.suffix())));
        let found = content(address, &batch["output_file_id"]);
        let found = Table::open(Arc::new(bytes::Bytes::from(found)), format).expect("a whole table");
        assert_eq!(found.columns(), "'text', 'note', 'embedding', 'error'");
        let batches: Vec<Batch> = found.batches(0, 1000).expect("rows").collect::<Result<_, _>>().expect("rows");
        let notes: Vec<Value> = batches.iter().flat_map(|batch| batch.ids("note").expect("notes")).collect();
        assert_eq!(notes, (0..ROWS).map(|row| json!(format!("note {row}"))).collect::<Vec<_>>(), "in order");
        let errors: Vec<Option<String>> =
            batches.iter().flat_map(|batch| batch.texts("error").expect("errors")).collect();
        assert!(errors.iter().enumerate().all(|(row, error)| error.is_some() == (row % 100 == 7)), "{:?}", errors[7]);
        let vectors: Vec<Value> = batches.iter().flat_map(|batch| batch.json("embedding").expect("vectors")).collect();
        let live = json!({"model": "embedding", "input": format!("text 4 {}", "again ".repeat(4))}).to_string();
        let live = send(address, &Request::post("/v1/embeddings", live)).json();
        let numbers = |vector: &Value| -> Vec<f64> {
            vector.as_array().expect("a vector").iter().filter_map(Value::as_f64).collect()
        };
        let (own, live) = (numbers(&vectors[4]), numbers(&live["data"][0]["embedding"]));
        assert!(
            own.len() == live.len() && own.iter().zip(&live).all(|(a, b)| (a - b).abs() < 1e-5),
            "{own:?} {live:?}"
        );
        let failed = String::from_utf8(content(address, &batch["error_file_id"])).expect("lines");
        assert!(failed.lines().count() == 25 && failed.lines().all(|line| line.contains("custom_id")));
    }

    let file = upload(address, "rows.parquet", &table(Format::Parquet));
    let rerank = json!({"body": {"model": "reranker", "documents": ["one", "two"]}, "columns": {"query": "note"}});
    let batch = ended(address, &file, "/v2/rerank", &rerank);
    assert_eq!(batch["request_counts"], json!({"total": 2500, "completed": 2500, "failed": 0}), "{batch}");
    let found = content(address, &batch["output_file_id"]);
    let found = Table::open(Arc::new(bytes::Bytes::from(found)), Format::Parquet).expect("a whole table");
    let first = found.batches(2499, 10).expect("rows").next().expect("a batch").expect("rows");
    let answer: Value =
        serde_json::from_str(first.texts("response").expect("answers")[0].as_deref().expect("an answer"))
            .expect("JSON");
    assert!(answer["results"].as_array().is_some_and(|results| results.len() == 2), "{answer}");

    let batch = ended(address, &file, "/v1/embeddings", &json!({"columns": {"input": "words"}}));
    let why = batch["errors"]["data"][0]["message"].as_str().expect("a reason");
    assert!(batch["status"] == "failed" && why.contains("names 'words', there are 'text', 'note'"), "{batch}");
    let file = upload(address, "rows.parquet", b"no table");
    let batch = ended(address, &file, "/v1/embeddings", &json!({}));
    let why = batch["errors"]["data"][0]["message"].as_str().expect("a reason");
    assert!(why.contains("cannot be read as Parquet"), "{batch}");
}
