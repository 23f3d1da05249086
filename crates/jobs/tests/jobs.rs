//! Durable work on the stores of one process: an accepted request is answered once, whichever part stops meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::disallowed_methods, reason = "a gateway that is killed is a task that is aborted")]

mod faults;
mod full;
mod limits;
mod stored;
mod uploads;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::TryStreamExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use trireme_bus::fixtures::refusing::{Call, Refusing};
use trireme_bus::{Bucket, Bus, InProcess, QueueOptions};
use trireme_columns::{Batch, Format, Layout, Writer};
use trireme_jobs::{
    BatchState, CallOf, Client, Execute, Executed, JobAnswer, JobCall, JobError, JobOptions, Jobs, NewBatch, NewUpload,
    Options, Page, Quotas, RequestState, WebhookAnswer, WebhookCall, WebhookState,
};

/// A system that answers with the body it got, in upper case.
#[derive(Default)]
struct Upper {
    /// Calls by their body.
    calls: Mutex<HashMap<Bytes, usize>>,
    in_flight: AtomicUsize,
    most: AtomicUsize,
    /// Refuses everything while set.
    full: AtomicBool,
    /// Answers nothing while set.
    stuck: AtomicBool,
    refused: AtomicUsize,
    /// The answer to everything, in place of the body.
    answer: Option<&'static str>,
    gone: Mutex<Vec<String>>,
}

#[async_trait]
impl Execute for Upper {
    async fn execute(&self, call: JobCall, _: CallOf) -> Executed {
        let is_refused = [b"refused".as_slice(), b"{\"refused"].iter().any(|start| call.body.starts_with(start));
        if self.full.load(Ordering::Relaxed) || is_refused || call.path == "/away" {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Executed::Refused;
        }
        assert!(!call.body.ends_with(b"panic\"}"), "a fault of the system");
        while self.stuck.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        *self.calls.lock().entry(call.body.clone()).or_default() += 1;
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..2000))).await;
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        let text = self.answer.map_or_else(|| String::from_utf8_lossy(&call.body).to_uppercase(), str::to_owned);
        let status = if text.contains("WRONG") { 400 } else { 200 };
        Executed::Answered(JobAnswer { status, headers: Vec::new(), body: text.into() })
    }

    async fn call(&self, call: WebhookCall) -> WebhookAnswer {
        match call.url.contains("hangs") {
            true => std::future::pending().await,
            false if call.url.contains("fails") => WebhookAnswer::failed("it fails"),
            false => WebhookAnswer::Delivered,
        }
    }

    fn lives(&self, gateway: &str) -> bool {
        !self.gone.lock().iter().any(|gone| gone == gateway)
    }
}

/// A gateway on a directory. Dropped, it is killed.
struct Gateway {
    jobs: Jobs,
    system: Arc<Upper>,
    task: JoinHandle<()>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Gateway {
    fn on(bus: &(impl Bus + Clone), name: &str) -> Gateway {
        Gateway::with(bus, name, Duration::from_secs(600))
    }

    /// A gateway whose system answers nothing from the start.
    fn stuck_on(bus: &(impl Bus + Clone), name: &str) -> Gateway {
        let system = Upper { stuck: AtomicBool::new(true), ..Upper::default() };
        Gateway::of(Arc::new(bus.clone()), name, Duration::from_secs(600), system)
    }

    /// A gateway that deletes files without new bytes for this long.
    fn with(bus: &(impl Bus + Clone), name: &str, upload_patience: Duration) -> Gateway {
        Gateway::over(Arc::new(bus.clone()), name, upload_patience)
    }

    fn over(bus: Arc<dyn Bus>, name: &str, upload_patience: Duration) -> Gateway {
        Gateway::of(bus, name, upload_patience, Upper::default())
    }

    fn of(bus: Arc<dyn Bus>, name: &str, upload_patience: Duration, system: Upper) -> Gateway {
        let options = Options {
            max_in_flight: 64,
            time_to_live: Duration::from_secs(600),
            upload_patience,
            max_error_bytes: 500_000,
            max_bytes: 64 << 20,
            quotas: Quotas::default(),
        };
        let system = Arc::new(system);
        let (jobs, run) = Jobs::open(bus, name, system.clone(), options);
        Gateway { jobs, system, task: tokio::spawn(run) }
    }

    async fn file(&self, lines: &str) -> String {
        let mut upload = self.jobs.arrival();
        upload.write(lines.as_bytes()).await.unwrap();
        upload.finish("lines.jsonl", None).await.unwrap().0
    }

    async fn batch(&self, input: String) -> String {
        self.batch_to("/run", input).await
    }

    async fn batch_to(&self, endpoint: &str, input: String) -> String {
        let window = Duration::from_secs(600);
        let new = NewBatch {
            input,
            endpoint: endpoint.to_owned(),
            window,
            output_lapse: None,
            if_space: None,
            traceparent: None,
            metadata: BTreeMap::new(),
            rows: Default::default(),
        };
        self.jobs.begin_batch(new).await.unwrap().0
    }

    async fn lines_of(&self, file: &str) -> Vec<Value> {
        let file = self.jobs.file(file).await.unwrap();
        let parts: Vec<Bytes> = self.jobs.content(&file).try_collect().await.unwrap();
        let text = parts.concat();
        text.split(|&byte| byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }
}

fn open(directory: &Path) -> InProcess {
    trireme_bus_disk::open(&QueueOptions::default(), directory).unwrap()
}

fn call(body: &str) -> JobCall {
    let headers = vec![("content-type".to_owned(), Bytes::from_static(b"text/plain"))];
    JobCall { path: "/run".to_owned(), headers, body: Bytes::copy_from_slice(body.as_bytes()) }
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..1500 {
        if let Some(found) = look().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what} did not happen within 30 s");
}

async fn ended(gateway: &Gateway, batch: &str) -> trireme_jobs::Batch {
    until("the end of the batch", async || {
        let batch = gateway.jobs.batch(batch).await.unwrap();
        matches!(batch.state, BatchState::Completed | BatchState::Cancelled | BatchState::Failed | BatchState::Expired)
            .then_some(batch)
    })
    .await
}

/// A gateway follows the jobs through one broker, and may read a record from another one that does not have it yet.
#[tokio::test]
async fn jobs_are_not_forgotten_when_a_broker_that_is_behind_lacks_their_records() {
    let bus = Refusing::default();
    let gateway = Gateway::over(Arc::new(bus.clone()), "a", Duration::from_secs(600));
    let file = gateway.file("{\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/run\", \"body\": \"x\"}").await;
    let batch = gateway.batch(file).await;
    bus.refuse([Call::ReadBehind(Bucket::Jobs)]);
    let request = gateway.jobs.accept(call("later"), None).await.unwrap();
    // Longer than a read looks for a record.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!gateway.system.calls.lock().contains_key(b"later".as_slice()));
    bus.refuse([]);
    until("the answer", async || {
        let request = gateway.jobs.request(&request.id).await.unwrap();
        (request.state == RequestState::Completed).then_some(())
    })
    .await;
    assert_eq!(ended(&gateway, &batch).await.state, BatchState::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_once_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let large = "x".repeat(2 << 20);
    for body in ["small", &large] {
        let accepted = gateway.jobs.accept(call(body), None).await.unwrap();
        let request = gateway.jobs.wait(&accepted.id, Duration::from_secs(30)).await.unwrap();
        assert_eq!(request.state, RequestState::Completed);
        let answer = gateway.jobs.answer(&request).await.unwrap().unwrap();
        assert_eq!((answer.status, answer.body.as_ref()), (200, body.to_uppercase().as_bytes()));
        let deleted = gateway.jobs.cancel_request(&accepted.id).await.unwrap();
        assert_eq!(deleted.state, RequestState::Completed);
        let gone = gateway.jobs.request(&accepted.id).await.unwrap_err();
        assert!(matches!(gone, JobError::Unknown { kind: "request", .. }), "{gone}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_request_with_the_same_key_is_the_first_one() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let (one, two) =
        tokio::join!(gateway.jobs.accept(call("a"), Some("key")), gateway.jobs.accept(call("a"), Some("key")));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.id, two.id);
    assert_eq!([one.was_there, two.was_there].iter().filter(|there| **there).count(), 1);
    let request = gateway.jobs.wait(&one.id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(request.state, RequestState::Completed);
    assert!(gateway.jobs.accept(call("a"), Some("key")).await.unwrap().was_there);
    assert_eq!(gateway.system.calls.lock()["a".as_bytes()], 1);
    let other = gateway.jobs.accept(call("b"), Some("key")).await.unwrap_err();
    assert!(matches!(other, JobError::OtherRequest), "{other}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_room_and_can_be_cancelled_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    gateway.system.full.store(true, Ordering::Relaxed);
    let waits = gateway.jobs.accept(call("waits"), None).await.unwrap();
    let cancelled = gateway.jobs.accept(call("cancelled"), None).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(gateway.jobs.request(&waits.id).await.unwrap().state, RequestState::Queued);
    assert_eq!(gateway.jobs.cancel_request(&cancelled.id).await.unwrap().state, RequestState::Queued);
    gateway.system.full.store(false, Ordering::Relaxed);
    let request = gateway.jobs.wait(&waits.id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(request.state, RequestState::Completed);
    assert_eq!(gateway.jobs.request(&cancelled.id).await.unwrap().state, RequestState::Cancelled);
    assert!(!gateway.system.calls.lock().contains_key("cancelled".as_bytes()));
}

/// A request whose call is always refused, those of a destination that is away, and lines of batches to it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_always_refused_delays_nothing_else_and_can_be_cancelled() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let refused = gateway.jobs.accept(call("refused"), None).await.unwrap().id;
    let mut away = Vec::new();
    for number in 0..200 {
        let call = JobCall { path: "/away".to_owned(), ..call(&format!("{number}")) };
        away.push(gateway.jobs.accept(call, None).await.unwrap().id);
    }
    let stands = gateway.batch_to("/away", gateway.file(&lines(50).replace("/run", "/away")).await).await;
    // Until the gateway knows which model is away.
    until("refusals", async || (gateway.system.refused.load(Ordering::Relaxed) > 40).then_some(())).await;
    let began = std::time::Instant::now();
    let mut others = Vec::new();
    for number in 0..300 {
        others.push(gateway.jobs.accept(call(&format!("other {number}")), None).await.unwrap().id);
    }
    let batch = gateway.batch(gateway.file(&lines(300)).await).await;
    for id in &others {
        let request = gateway.jobs.wait(id, Duration::from_secs(30)).await.unwrap();
        assert_eq!(request.state, RequestState::Completed);
    }
    assert_eq!(ended(&gateway, &batch).await.counts.completed, 300);
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    for id in away.iter().take(3).chain([&refused]) {
        assert_eq!(gateway.jobs.cancel_request(id).await.unwrap().state, RequestState::Queued);
        assert_eq!(gateway.jobs.request(id).await.unwrap().state, RequestState::Cancelled);
    }
    gateway.jobs.cancel_batch(&stands).await.unwrap();
    assert_eq!(ended(&gateway, &stands).await.state, BatchState::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_panics_ends_its_job_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let line = |text: &str| json!({"custom_id": "c", "url": "/run", "body": {"text": text}}).to_string();
    let batch = gateway.batch(gateway.file(&line("panic")).await).await;
    let fine = gateway.batch(gateway.file(&line("fine")).await).await;
    let request = gateway.jobs.accept(call("{\"text\":\"panic\"}"), None).await.unwrap().id;
    let other = gateway.jobs.accept(call("other"), None).await.unwrap().id;
    let found = ended(&gateway, &batch).await;
    assert_eq!(found.state, BatchState::Failed);
    assert!(found.failure.unwrap().contains("the gateway's log"));
    assert_eq!(ended(&gateway, &fine).await.state, BatchState::Completed);
    for (id, status) in [(request, 500), (other, 200)] {
        let request = gateway.jobs.wait(&id, Duration::from_secs(30)).await.unwrap();
        assert_eq!(gateway.jobs.answer(&request).await.unwrap().unwrap().status, status);
    }
}

/// Two record batches, the second with texts that are no UTF-8.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_columns_that_is_damaged_ends_its_batch_and_the_answers_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let texts = |text: &str| Batch::of_texts(vec![("text", vec![Some(text.to_owned()); 600])]).unwrap();
    let mut writer = Writer::new(Format::Arrow, &Layout::plain(&texts("a")), Vec::new()).unwrap();
    writer.write(&texts("fine")).unwrap();
    writer.write(&texts("#damaged#")).unwrap();
    let mut bytes = writer.finish().unwrap();
    let is_text = |(at, text): (usize, &[u8])| (text == b"#damaged#").then_some(at);
    let places: Vec<_> = bytes.windows(9).enumerate().filter_map(is_text).collect();
    assert_eq!(places.len(), 600);
    bytes[places[7]] = 0xff;
    let mut upload = gateway.jobs.arrival();
    upload.write(&bytes).await.unwrap();
    let file = upload.finish("rows.arrow", None).await.unwrap().0;
    let batch = ended(&gateway, &gateway.batch(file).await).await;
    assert_eq!(batch.state, BatchState::Failed);
    assert!(batch.failure.as_deref().is_some_and(|why| why.to_lowercase().contains("utf")), "{:?}", batch.failure);
    assert_eq!((batch.counts.total, batch.counts.completed, batch.counts.failed), (1200, 600, 600));
    assert_eq!(gateway.lines_of(&batch.output.unwrap()).await.len(), 600);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_outlive_their_process() {
    let directory = tempfile::tempdir().unwrap();
    let bus = open(directory.path());
    let gateway = Gateway::on(&bus, "g");
    gateway.system.stuck.store(true, Ordering::Relaxed);
    let mut ids = Vec::new();
    for number in 0..50 {
        ids.push(gateway.jobs.accept(call(&format!("n{number}")), None).await.unwrap().id);
    }
    drop((gateway, bus));
    let bus = reopened(directory.path()).await;
    let gateway = Gateway::on(&bus, "g");
    for (number, id) in ids.iter().enumerate() {
        let request = gateway.jobs.wait(id, Duration::from_secs(30)).await.unwrap();
        let answer = gateway.jobs.answer(&request).await.unwrap().expect("an answer");
        assert_eq!(answer.body, format!("N{number}"));
    }
}

/// The bus on a directory whose last user has just been killed.
async fn reopened(directory: &Path) -> InProcess {
    until("the file is free", async || trireme_bus_disk::open(&QueueOptions::default(), directory).ok()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_gateway_takes_over_the_jobs_of_one_that_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let bus = open(directory.path());
    let (first, second) = (Gateway::on(&bus, "first"), Gateway::on(&bus, "second"));
    first.system.stuck.store(true, Ordering::Relaxed);
    let id = first.jobs.accept(call("a"), None).await.unwrap().id;
    let batch = first.batch(first.file(&lines(10)).await).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(second.jobs.request(&id).await.unwrap().owner, "first", "it lives");
    second.system.gone.lock().push("first".to_owned());
    let request = second.jobs.wait(&id, Duration::from_secs(30)).await.unwrap();
    assert_eq!((request.state, request.owner.as_str()), (RequestState::Completed, "second"));
    assert_eq!(ended(&second, &batch).await.counts.completed, 10);
    // The first gateway was only halted: it goes on, and changes nothing.
    first.system.stuck.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(second.jobs.request(&id).await.unwrap(), request);
}

fn page(limit: usize) -> Page {
    Page { limit, ..Page::default() }
}

/// Lines of a batch.
fn lines(count: usize) -> String {
    let line = |number: usize| {
        let body = json!({"text": format!("{number} {}", "long ".repeat(number % 7))});
        json!({"custom_id": format!("c{number}"), "method": "POST", "url": "/run", "body": body}).to_string() + "\n"
    };
    (0..count).map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_answers_every_line_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let mut text = lines(3000);
    text.push_str("\n{\"custom_id\": \"bad\"\n");
    text.push_str(r#"{"custom_id": "wrong", "method": "POST", "url": "/run", "body": {"text": "wrong"}}"#);
    let id = gateway.batch(gateway.file(&text).await).await;
    let batch = ended(&gateway, &id).await;
    assert_eq!(batch.state, BatchState::Completed);
    assert_eq!((batch.counts.total, batch.counts.completed, batch.counts.failed), (3002, 3000, 2));
    let file = gateway.jobs.file(batch.output.as_deref().unwrap()).await.unwrap();
    let whole: Vec<Bytes> = gateway.jobs.content(&file).try_collect().await.unwrap();
    assert!(whole.len() > 2, "the output of several checkpoints");
    let whole = whole.concat();
    for _ in 0..50 {
        let offset = fastrand::usize(..whole.len());
        let part: Vec<Bytes> = gateway.jobs.content_from(&file, offset as u64).try_collect().await.unwrap();
        assert!(part.concat() == whole[offset..], "from byte {offset}");
    }
    let output = gateway.lines_of(&batch.output.unwrap()).await;
    assert_eq!(output.len(), 3000);
    for (number, line) in output.iter().enumerate() {
        assert_eq!(line["custom_id"], format!("c{number}"));
        assert!(line["response"]["body"]["TEXT"].as_str().unwrap().starts_with(&format!("{number} ")), "{line}");
        assert_eq!(line["response"]["status_code"], 200);
    }
    let errors = gateway.lines_of(&batch.errors.unwrap()).await;
    assert_eq!(errors[0]["error"]["code"], "invalid_line");
    assert!(errors[0]["error"]["message"].as_str().unwrap().starts_with("line 3002 of file"), "{}", errors[0]);
    assert_eq!((&errors[1]["custom_id"], &errors[1]["response"]["status_code"]), (&json!("wrong"), &json!(400)));
    assert!(gateway.system.most.load(Ordering::Relaxed) <= 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_goes_on_from_its_checkpoint_when_its_process_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let mut bus = open(directory.path());
    let mut gateway = Gateway::on(&bus, "g");
    let id = gateway.batch(gateway.file(&lines(20_000)).await).await;
    let (mut kills, mut reached) = (0, 0);
    loop {
        let batch = gateway.jobs.batch(&id).await.unwrap();
        match batch.state {
            BatchState::Completed => break,
            BatchState::Validating | BatchState::InProgress => {}
            _ => panic!("{batch:?}"),
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(20..200))).await;
        // A batch on which gateways end again and again, and that gets no further, is set aside.
        if kills < 4 && batch.counts.completed > reached {
            drop(gateway);
            drop(bus);
            bus = reopened(directory.path()).await;
            gateway = Gateway::on(&bus, "g");
            (kills, reached) = (kills + 1, batch.counts.completed);
        }
    }
    assert!(kills > 0, "the batch ended before the first kill");
    let batch = gateway.jobs.batch(&id).await.unwrap();
    assert_eq!((batch.counts.total, batch.counts.completed, batch.counts.failed), (20_000, 20_000, 0));
    let output = gateway.lines_of(&batch.output.unwrap()).await;
    let ids: Vec<&str> = output.iter().map(|line| line["custom_id"].as_str().unwrap()).collect();
    let expected: Vec<String> = (0..20_000).map(|number| format!("c{number}")).collect();
    assert_eq!(ids, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_batch_does_not_wait_for_a_large_one_and_a_cancelled_one_keeps_what_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let large = gateway.batch(gateway.file(&lines(200_000)).await).await;
    until("the large one runs", async || {
        (gateway.jobs.batch(&large).await.unwrap().counts.completed > 0).then_some(())
    })
    .await;
    let small = gateway.batch(gateway.file(&lines(10)).await).await;
    assert_eq!(ended(&gateway, &small).await.counts.completed, 10);
    assert_eq!(gateway.jobs.batch(&large).await.unwrap().state, BatchState::InProgress);
    gateway.jobs.cancel_batch(&large).await.unwrap();
    let batch = ended(&gateway, &large).await;
    assert_eq!(batch.state, BatchState::Cancelled);
    let output = gateway.lines_of(&batch.output.unwrap()).await;
    assert_eq!(output.len() as u64, batch.counts.completed);
    assert!(output.len() < 200_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_without_lines_or_file_fails_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let empty = gateway.batch(gateway.file("\n\n").await).await;
    let batch = ended(&gateway, &empty).await;
    assert_eq!(batch.state, BatchState::Failed);
    assert!(batch.failure.unwrap().contains("no lines, expected"));
    let twice = gateway.batch(gateway.file(&(lines(5) + "rubbish\n" + &lines(4))).await).await;
    let batch = ended(&gateway, &twice).await;
    assert_eq!(batch.state, BatchState::Failed);
    assert!(
        batch
            .failure
            .unwrap()
            .ends_with("lines 1 and 7 have the same 'custom_id' \"c0\": give each line one of its own")
    );
    let input = "file-none".to_owned();
    let window = Duration::from_secs(60);
    let new = NewBatch {
        input,
        endpoint: "/run".to_owned(),
        window,
        output_lapse: None,
        if_space: None,
        traceparent: None,
        metadata: BTreeMap::new(),
        rows: Default::default(),
    };
    let missing = gateway.jobs.begin_batch(new).await.unwrap_err();
    assert!(missing.to_string().starts_with("no file with id 'file-none'"), "{missing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_stops_to_arrive_leaves_nothing() {
    let bus = InProcess::default();
    let gateway = Gateway::with(&bus, "one", Duration::from_secs(600));
    let whole = gateway.file("{\"whole\": 1}\n").await;
    let mut upload = gateway.jobs.arrival();
    upload.write(&vec![0; 3 << 20]).await.unwrap();
    drop(upload);
    assert_eq!(gateway.jobs.files(&page(10)).await.unwrap().items.len(), 1, "a file that arrives is not listed");
    let keys = async |bucket| {
        let (mut keys, mut revision) = (Vec::new(), 0);
        while let Some(entry) = bus.next(bucket, revision).await.unwrap() {
            revision = entry.revision;
            keys.push(entry.key);
        }
        keys
    };
    assert!(keys(Bucket::Objects).await.len() > 2, "some parts are in the store");
    bus.advance(Duration::from_secs(601));
    until("only the whole file is left", async || {
        (keys(Bucket::Objects).await.len() == 1 && keys(Bucket::Jobs).await == [whole.clone()]).then_some(())
    })
    .await;
    assert_eq!(gateway.lines_of(&whole).await, [json!({"whole": 1})]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_counts_its_work() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    gateway.system.stuck.store(true, Ordering::Relaxed);
    gateway.jobs.accept(call("a request"), None).await.unwrap();
    let wrong = lines(1).replace("text", "wrong").replace("c0", "wrong");
    let batch = gateway.batch(gateway.file(&(lines(3) + &wrong + "rubbish\n")).await).await;
    let count = |load: &trireme_jobs::Load, wanted| -> u64 {
        load.batches.iter().filter(|(state, _)| *state == wanted).map(|(_, count)| count).sum()
    };
    until("all calls are in flight", async || {
        let now = gateway.jobs.statistics();
        let (load, runs) = (&now.load, count(&now.load, BatchState::InProgress));
        ((now.in_flight, load.running, runs, load.lines_left) == (5, 1, 1, 5)).then_some(())
    })
    .await;
    gateway.system.stuck.store(false, Ordering::Relaxed);
    assert_eq!(ended(&gateway, &batch).await.counts.failed, 2);
    until("nothing is left", async || {
        let now = gateway.jobs.statistics();
        let load = trireme_jobs::Load { batches: Vec::new(), ..now.load.clone() };
        let is_empty = load == trireme_jobs::Load::default() && now.load.batches.iter().all(|(_, count)| *count == 0);
        (is_empty && (now.in_flight, now.completed, now.failed) == (0, 3, 2)).then_some(())
    })
    .await;
}
