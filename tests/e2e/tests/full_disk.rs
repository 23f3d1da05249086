//! A disk that gets full under the stores of durable work (`--data-dir`).

use std::fs;
use std::time::Duration;

use serde_json::json;
use trireme_e2e::chaos::SmallDisk;
use trireme_e2e::{Mode, Request, Response, Sandbox, Setup, wait_until, workspace};

const SOON: Duration = Duration::from_secs(30);

fn start(disk: &SmallDisk) -> Sandbox {
    let data = disk.store().join("data");
    fs::create_dir_all(&data).expect("the disk can be written");
    let data = data.to_str().expect("UTF-8");
    let setup = Setup::new(Mode::AllInOne).repository(&workspace().join("tests/repositories/texts"));
    setup.gateway_arguments(&["--data-dir", data, "--http-max-input-size", "100000000"]).start()
}

/// Sends a file of this many bytes.
fn upload(sandbox: &Sandbox, bytes: usize) -> Response {
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "embedding", "input": "a"}});
    let lines = format!("{}{line}\n", " ".repeat(bytes));
    let form = format!(
        "--edge\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\nContent-Disposition: form-data; \
         name=\"file\"; filename=\"lines.jsonl\"\r\n\r\n{lines}\r\n--edge--\r\n"
    );
    sandbox.send(&Request::post("/v1/files", form).header("Content-Type", "multipart/form-data; boundary=edge"))
}

fn id(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["id"].as_str().expect("an id").to_owned()
}

fn problems(sandbox: &Sandbox) -> String {
    sandbox.get("/v2/trireme/status").json()["problems"].to_string()
}

/// New files leave a reserve free, in which all other work goes on. The space of a deleted file is free again.
#[test]
fn uploads_end_before_the_disk_is_full_and_go_on_when_files_are_deleted() {
    let Some(disk) = SmallDisk::mount() else {
        return println!("not run: mounting a small disk takes root's rights");
    };
    const FILE: usize = 8 << 20;
    let sandbox = start(&disk);
    disk.leave(120 << 20);
    let mut files = Vec::new();
    let refused = loop {
        match upload(&sandbox, FILE) {
            response if response.status == 200 => files.push(id(&response)),
            response => break response,
        }
        assert!(files.len() < 40, "the disk has no room for so many");
    };
    assert_eq!(refused.status, 507, "{}", refused.text());
    assert!(files.len() >= 2, "{} files", files.len());
    assert!(problems(&sandbox).contains("--data-dir"), "{}", problems(&sandbox));
    // A batch over a file that is there, and a request, run in the reserve.
    let body = json!({"input_file_id": files[0], "endpoint": "/v1/embeddings", "completion_window": "24h"}).to_string();
    let batch = id(&sandbox.send(&Request::post("/v1/batches", body)));
    let ended = wait_until("the batch ends", SOON, || {
        let batch = sandbox.get(&format!("/v1/batches/{batch}")).json();
        batch["completed_at"].is_u64().then_some(batch)
    });
    assert_eq!(ended["request_counts"]["completed"], 1, "{ended}");
    for file in files.drain(1..) {
        let deleted = sandbox.send(&Request::new("DELETE", &format!("/v1/files/{file}")));
        assert_eq!(deleted.status, 200, "{}", deleted.text());
    }
    id(&upload(&sandbox, FILE));
    wait_until("the status has no problem", SOON, || (problems(&sandbox) == "[]").then_some(()));
}

/// Another program takes the last byte. The file of the stores is opened again by itself when there is room.
#[test]
fn a_disk_that_another_program_fills_stops_durable_work_until_there_is_room() {
    let Some(disk) = SmallDisk::mount() else {
        return println!("not run: mounting a small disk takes root's rights");
    };
    let sandbox = start(&disk);
    let kept = id(&upload(&sandbox, 1 << 20));
    disk.fill();
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(upload(&sandbox, 1 << 20).status);
        statuses.push(sandbox.send(&Request::new("DELETE", "/v1/files/file-unknown")).status);
    }
    assert!(statuses.iter().all(|status| [404, 503, 507].contains(status)), "{statuses:?}");
    assert_eq!(sandbox.get(&format!("/v1/files/{kept}")).status, 200, "what was kept is read");
    disk.free();
    wait_until("an upload", SOON, || (upload(&sandbox, 1 << 20).status == 200).then_some(()));
    let deleted = sandbox.send(&Request::new("DELETE", &format!("/v1/files/{kept}")));
    assert_eq!(deleted.status, 200, "{}", deleted.text());
}
