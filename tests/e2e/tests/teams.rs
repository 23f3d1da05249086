//! Durable work of several owners, and the doors through which their files come.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, Request, Response, Sandbox, Setup, wait_until, workspace};

const KEYS: [&str; 4] =
    ["--api-key=alice=KEY-A", "--api-key=bob=KEY-B", "--bulk-api-key=night=KEY-N", "--admin-api-key=KEY-ADMIN"];

fn start(folder: &tempfile::TempDir, flags: &[&str]) -> Sandbox {
    let data = folder.path().to_str().expect("UTF-8");
    let flags = [&["--data-dir", data], flags].concat();
    let setup = Setup::new(Mode::AllInOne).repository(&workspace().join("tests/repositories/texts"));
    setup.gateway_arguments(&flags).start()
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn with(key: &str, request: Request) -> Request {
    request.header("X-API-Key", key)
}

fn embed(text: &str) -> Request {
    let body = json!({"model": "embedding", "input": text}).to_string();
    Request::post("/v1/embeddings", body).header("Content-Type", "application/json")
}

/// A form with these fields in their order; the one called `file` or `data` is a file.
fn form(path: &str, fields: &[(&str, &str)]) -> Request {
    let mut body = String::new();
    for (name, value) in fields {
        let file = if ["file", "data"].contains(name) { "; filename=\"lines.jsonl\"" } else { "" };
        body += &format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"{file}\r\n\r\n{value}\r\n");
    }
    Request::post(path, body + "--edge--\r\n").header("Content-Type", "multipart/form-data; boundary=edge")
}

fn upload(lines: &str) -> Request {
    form("/v1/files", &[("purpose", "batch"), ("file", lines)])
}

fn line(id: &str) -> String {
    let body = json!({"model": "embedding", "input": "a text"});
    json!({"custom_id": id, "method": "POST", "url": "/v1/embeddings", "body": body}).to_string() + "\n"
}

fn batch(file: &str) -> Request {
    let body = json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"});
    Request::post("/v1/batches", body.to_string())
}

fn id(response: &Response) -> String {
    assert!([200, 202].contains(&response.status), "{} {}", response.status, response.text());
    response.json()["id"].as_str().expect("an id").to_owned()
}

fn ids(response: &Response) -> Vec<String> {
    let list = response.json();
    let data = list["data"].as_array().unwrap_or_else(|| panic!("{list}"));
    data.iter().map(|item| item["id"].as_str().expect("an id").to_owned()).collect()
}

/// Each route: with the owner's key, another's, none and the administrator's.
#[test]
fn what_one_owner_has_is_not_there_for_another() {
    let (folder, keys) = (folder(), KEYS);
    let sandbox = start(&folder, &keys);
    let send = |key: &str, request: Request| sandbox.send(&with(key, request));
    let begin_upload = || {
        Request::post(
            "/v1/uploads",
            json!({"filename": "a", "purpose": "batch", "bytes": 2, "mime_type": "x"}).to_string(),
        )
    };
    let request = id(&send("KEY-A", embed("a").header("Prefer", "respond-async").header("Idempotency-Key", "order-1")));
    let file = id(&send("KEY-A", upload(&line("1"))));
    let pending = id(&send("KEY-A", begin_upload()));
    let work = id(&send("KEY-A", batch(&file)));
    let state = wait_until("the end of the batch", Duration::from_secs(60), || {
        let state = send("KEY-A", Request::get(&format!("/v1/batches/{work}"))).json();
        (state["status"] == "completed").then_some(state)
    });
    let output = state["output_file_id"].as_str().expect("an output").to_owned();
    wait_until("the answer", Duration::from_secs(60), || {
        (send("KEY-A", Request::get(&format!("/v1/requests/{request}/response"))).status == 200).then_some(())
    });
    let part = format!("/v1/uploads/{pending}/parts");
    // The last requests delete the records.
    let routes = [
        Request::get(&format!("/v1/requests/{request}")),
        Request::get(&format!("/v1/requests/{request}/response")),
        Request::get(&format!("/v1/files/{file}")),
        Request::get(&format!("/v1/files/{output}/content")),
        Request::get(&format!("/v1/batches/{work}")),
        Request::post(&format!("/v1/batches/{work}/cancel"), ""),
        batch(&file),
        form(&part, &[("data", "ab")]),
        Request::post(&format!("/v1/uploads/{pending}/cancel"), ""),
        Request::new("DELETE", &format!("/v1/requests/{request}")),
    ];
    for (place, route) in routes.into_iter().enumerate() {
        assert_eq!(sandbox.send(&route).status, 401, "route {place} without a key");
        for other in ["KEY-B", "KEY-N"] {
            let found = send(other, route.clone());
            assert_eq!(found.status, 404, "route {place} with {other}: {}", found.text());
        }
        let key = if place < 5 { "KEY-ADMIN" } else { "KEY-A" };
        let own = send(key, route);
        assert!(own.status < 300, "route {place} with {key}: {} {}", own.status, own.text());
    }
    let others = id(&send("KEY-B", embed("b").header("Prefer", "respond-async").header("Idempotency-Key", "order-1")));
    assert_ne!(others, request, "a key of his own");
    for (key, files, batches) in [("KEY-A", true, 2), ("KEY-B", false, 0), ("KEY-ADMIN", true, 2)] {
        assert_eq!(ids(&send(key, Request::get("/v1/files"))).contains(&file), files, "{key}");
        assert_eq!(ids(&send(key, Request::get("/v1/batches"))).len(), batches, "{key}");
    }
    let control = [
        Request::post("/v2/logging", "{}"),
        Request::post("/v2/trace/setting", "{}"),
        Request::post("/v2/repository/models/embedding/unload", "{}"),
    ];
    for (place, route) in control.into_iter().enumerate() {
        for key in ["KEY-A", "KEY-N"] {
            assert_eq!(send(key, route.clone()).status, 403, "control {place} with {key}");
        }
        assert_ne!(send("KEY-ADMIN", route).status, 403, "control {place}");
    }
}

#[test]
fn a_request_is_the_same_by_its_body_route_and_meaning() {
    let folder = folder();
    let sandbox = start(&folder, &[]);
    let later = |text: &str, key: &str| embed(text).header("Prefer", "respond-async").header("Idempotency-Key", key);
    let traced = |n: u32| format!("00-{n:032x}-{n:016x}-01");
    let first = id(&sandbox.send(&later("a", "k").header("traceparent", &traced(1))));
    assert_eq!(id(&sandbox.send(&later("a", "k").header("traceparent", &traced(2)))), first);
    let body = json!({"model": "embedding", "input": "a"}).to_string();
    let charset = Request::post("/v1/embeddings", body).header("Content-Type", "application/json; charset=utf-8");
    assert_eq!(id(&sandbox.send(&charset.header("Prefer", "respond-async").header("Idempotency-Key", "k"))), first);
    assert_eq!(sandbox.send(&later("b", "k")).status, 422);

    let keyed = |request: Request, key: &str| sandbox.send(&request.header("Idempotency-Key", key));
    let file = id(&keyed(upload(&line("1")), "f"));
    assert_eq!(id(&keyed(upload(&line("1")), "f")), file);
    assert_eq!(keyed(upload(&line("2")), "f").status, 422);
    assert_eq!(sandbox.send(&Request::get(&format!("/v1/files/{file}/content"))).text(), line("1"));
    let other = id(&sandbox.send(&upload(&line("2"))));
    let work = id(&keyed(batch(&file), "b"));
    assert_eq!(id(&keyed(batch(&file), "b")), work);
    assert_eq!(keyed(batch(&other), "b").status, 422);
    assert_eq!(ids(&sandbox.send(&Request::get("/v1/files?purpose=batch"))).len(), 2, "no other copy is left");
}

#[test]
fn a_stored_answer_has_the_headers_of_the_live_one() {
    let folder = folder();
    let sandbox = start(&folder, &[]);
    for path in ["/v1/embeddings", "/tei/embed"] {
        let text = "word ".repeat(600);
        let body = match path {
            "/v1/embeddings" => json!({"model": "embedding", "input": text}),
            _ => json!({"model": "embedding", "inputs": text, "truncate": true}),
        };
        let request = Request::post(path, body.to_string()).header("Content-Type", "application/json");
        let live = sandbox.send(&request);
        let stored = sandbox.send(&request.header("Prefer", "respond-async, wait=30"));
        // Each answer has an id of its own.
        let without_id = |answer: &Response| {
            let mut answer = answer.json();
            drop(answer.as_object_mut().and_then(|members| members.remove("id")));
            answer
        };
        assert_eq!((stored.status, without_id(&stored)), (live.status, without_id(&live)), "{path}");
        for name in
            ["trireme-tokens", "trireme-truncated-texts", "x-compute-characters", "x-compute-tokens", "content-type"]
        {
            assert_eq!(stored.header(name), live.header(name), "{path} {name}");
        }
        assert!(live.header("trireme-tokens").is_some(), "{path}");
        assert!(stored.header("server-timing").is_some(), "{path}");
    }
}

#[test]
fn routes_that_execute_nothing_answer_at_once() {
    let folder = folder();
    let sandbox = start(&folder, &[]);
    let prefers = |request: Request| sandbox.send(&request.header("Prefer", "respond-async"));
    assert_eq!(prefers(batch("file-none")).status, 404);
    assert_eq!(prefers(upload(&line("1"))).status, 200);
    let begun = json!({"filename": "a", "purpose": "batch", "bytes": 1, "mime_type": "x"}).to_string();
    assert_eq!(prefers(Request::post("/v1/uploads", begun)).status, 200);
    assert_eq!(prefers(embed("a")).status, 202);
}

#[test]
fn a_form_is_read_in_any_order_and_leaves_nothing_when_it_is_refused() {
    let folder = folder();
    let sandbox = start(&folder, &[]);
    let lives = [("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "3600")];
    let (purpose, file) = (("purpose", "batch"), ("file", "x\n"));
    for fields in [vec![purpose, lives[0], lives[1], file], vec![file, lives[1], lives[0], purpose]] {
        let found = sandbox.send(&form("/v1/files", &fields)).json();
        let (created, expires) = (found["created_at"].as_u64(), found["expires_at"].as_u64());
        assert_eq!(expires.zip(created).map(|(end, begin)| end - begin), Some(3600), "{found}");
    }
    let list = || ids(&sandbox.send(&Request::get("/v1/files"))).len();
    let before = list();
    let many: Vec<_> = std::iter::once(file).chain(std::iter::repeat_n(("n", "v"), 100)).collect();
    for fields in [
        vec![file, ("purpose", "assistants")],
        vec![file, file],
        vec![file, ("expires_after[seconds]", "1")],
        vec![file, ("expires_after[seconds]", "soon")],
        vec![purpose],
        many,
    ] {
        let refused = sandbox.send(&form("/v1/files", &fields));
        assert_eq!(refused.status, 400, "{fields:?}: {}", refused.text());
    }
    assert_eq!(list(), before);
}

/// The headers of a field that go on and on.
#[test]
fn the_headers_of_a_form_are_bounded() {
    let folder = folder();
    let sandbox = start(&folder, &[]);
    let mut stream = TcpStream::connect(sandbox.address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    let head = "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=edge\r\n\
                Transfer-Encoding: chunked\r\nConnection: close\r\n\r\na\r\n--edge\r\nX:\r\n";
    stream.write_all(head.as_bytes()).expect("it reads");
    let piece = format!("{:x}\r\n{}\r\n", 16_000, "b".repeat(16_000));
    let mut sent = 0;
    while sent < 64 << 20 && stream.write_all(piece.as_bytes()).is_ok() {
        sent += 16_000;
        stream.set_nonblocking(true).expect("a mode");
        let answered = stream.peek(&mut [0]).is_ok();
        stream.set_nonblocking(false).expect("a mode");
        if answered {
            break;
        }
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("headers of a field have more than"), "{answer}");
    assert!(sent < 48 << 20, "the answer came before the end: {sent} bytes");
    // Ordinary headers are none of that.
    assert_eq!(sandbox.send(&upload(&line("1"))).status, 200);
}

#[test]
fn an_upload_becomes_a_file_of_its_own() {
    let folder = folder();
    let sandbox = start(&folder, &[]);
    let announced = |bytes: Value| {
        let body = json!({"filename": "a.jsonl", "purpose": "batch", "bytes": bytes, "mime_type": "x",
            "expires_after": {"anchor": "created_at", "seconds": 2_592_000}});
        sandbox.send(&Request::post("/v1/uploads", body.to_string()))
    };
    for bytes in [json!(0), json!(-1), json!(u64::MAX), json!(1u64 << 63)] {
        assert_eq!(announced(bytes.clone()).status, 400, "{bytes}");
    }
    let file = id(&sandbox.send(&upload(&line("1"))));
    let pending = id(&announced(json!(2)));
    let complete = |upload: &str, parts: Value, md5: Option<&str>| {
        let body = json!({"part_ids": parts, "md5": md5}).to_string();
        sandbox.send(&Request::post(&format!("/v1/uploads/{upload}/complete"), body))
    };
    for parts in [json!([file]), json!(vec![&file; 20_000]), json!(["part_none"])] {
        assert_eq!(complete(&pending, parts, None).status, 400);
    }
    assert_eq!(sandbox.send(&Request::post(&format!("/v1/uploads/{file}/cancel"), "")).status, 404);
    assert_eq!(sandbox.send(&Request::get(&format!("/v1/files/{file}"))).status, 200);
    let part = id(&sandbox.send(&form(&format!("/v1/uploads/{pending}/parts"), &[("data", "ab")])));
    assert_eq!(complete(&pending, json!([part]), Some("wrong")).status, 400);
    let made = complete(&pending, json!([part]), Some("187ef4436122d1cc2f40dc2b92f0eba0"));
    assert_eq!(made.status, 200, "{}", made.text());
    let made = made.json()["file"].clone();
    let (created, expires) = (made["created_at"].as_u64(), made["expires_at"].as_u64());
    assert_eq!(expires.zip(created).map(|(end, begin)| end - begin), Some(2_592_000), "{made}");
}

#[test]
fn lists_are_pages() {
    let folder = folder();
    let sandbox = start(&folder, &[]);
    let mut files: Vec<_> = (0..5).map(|n| id(&sandbox.send(&upload(&line(&n.to_string()))))).collect();
    let page = |query: &str| sandbox.send(&Request::get(&format!("/v1/files?{query}")));
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let found = page(&format!("limit=2&order=asc{after}"));
        let these = ids(&found);
        assert_eq!(
            (found.json()["first_id"].as_str(), found.json()["last_id"].as_str()),
            (these.first().map(String::as_str), these.last().map(String::as_str))
        );
        all.extend(these);
        if found.json()["has_more"] == false {
            break;
        }
        after = format!("&after={}", all.last().expect("a file"));
    }
    let newest = ids(&page("limit=10&order=desc"));
    assert_eq!(newest.iter().rev().cloned().collect::<Vec<_>>(), all);
    all.sort();
    files.sort();
    assert_eq!(all, files);
    assert!(ids(&page("purpose=batch_output")).is_empty() && ids(&page("purpose=batch")).len() == 5);
    for query in ["limit=many", "order=up"] {
        assert_eq!(page(query).status, 400, "{query}");
    }
    let missing = page("after=file-none");
    assert_eq!((missing.status, missing.text().contains("no file with id 'file-none'")), (404, true));
}

#[test]
fn a_file_is_sent_in_parts_and_a_batch_sums_its_lines() {
    let folder = folder();
    let sandbox = start(&folder, &[]);
    let text = (0..5).map(|n| line(&n.to_string())).collect::<String>();
    let file = id(&sandbox.send(&upload(&text)));
    let content = |file: &str, range: Option<&str>| {
        let request = Request::get(&format!("/v1/files/{file}/content"));
        sandbox.send(&range.into_iter().fold(request, |request, range| request.header("Range", range)))
    };
    let whole = content(&file, None);
    assert_eq!((whole.status, whole.text()), (200, text.clone()));
    assert_eq!(whole.header("content-length"), Some(text.len().to_string().as_str()));
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    let part = content(&file, Some("bytes=5-14"));
    assert_eq!((part.status, part.text().as_str()), (206, &text[5..15]));
    assert_eq!(part.header("content-range"), Some(format!("bytes 5-14/{}", text.len()).as_str()));
    assert_eq!(content(&file, Some("bytes=-7")).text(), text[text.len() - 7..]);
    let none = content(&file, Some("bytes=100000-"));
    assert_eq!((none.status, none.header("content-range")), (416, Some(format!("bytes */{}", text.len()).as_str())));

    let begin = |expires: Value| {
        let body = json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h",
            "output_expires_after": expires});
        sandbox.send(&Request::post("/v1/batches", body.to_string()))
    };
    for wrong in [json!({"anchor": "created_at", "seconds": 1}), json!({"anchor": "now", "seconds": 3600})] {
        assert_eq!(begin(wrong.clone()).status, 400, "{wrong}");
    }
    let batch = id(&begin(json!({"anchor": "created_at", "seconds": 3600})));
    let ended = wait_until("the batch ends", Duration::from_secs(60), || {
        let batch = sandbox.get(&format!("/v1/batches/{batch}")).json();
        batch["completed_at"].is_u64().then_some(batch)
    });
    let output = ended["output_file_id"].as_str().expect("an output").to_owned();
    let lines = content(&output, None).text();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let total: u64 =
        lines.map(|line| line["response"]["body"]["usage"]["total_tokens"].as_u64().expect("tokens")).sum();
    assert!(total > 0);
    assert_eq!((&ended["usage"]["total_tokens"], &ended["usage"]["input_tokens"]), (&json!(total), &json!(total)));
    let record = sandbox.get(&format!("/v1/files/{output}")).json();
    let lives = record["expires_at"].as_u64().zip(record["created_at"].as_u64()).map(|(end, begin)| end - begin);
    assert!(lives.is_some_and(|lives| (3599..=3601).contains(&lives)), "{record}");
}

#[test]
fn an_owner_may_have_so_much() {
    let folder = folder();
    let flags = ["--jobs-owner-files=2", "--jobs-owner-bytes=1000", "--api-key=alice=KEY-A", "--api-key=bob=KEY-B"];
    let sandbox = start(&folder, &flags);
    let send = |key: &str, bytes: usize| sandbox.send(&with(key, upload(&" ".repeat(bytes))));
    id(&send("KEY-A", 600));
    let large = send("KEY-A", 401);
    assert_eq!(large.status, 413, "{}", large.text());
    assert!(large.text().contains("has 600 bytes of files and asks for 40"), "{}", large.text());
    id(&send("KEY-A", 100));
    let many = send("KEY-A", 100);
    assert_eq!(many.status, 429, "{}", many.text());
    assert!(many.text().contains("has 2 files and asks for 1 more, but may have 2"), "{}", many.text());
    id(&send("KEY-B", 900));
}
