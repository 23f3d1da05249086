//! Bounds of durable work: what an owner may have, bytes in memory, pages, keys.

use super::*;

fn limited(bus: &(impl Bus + Clone), options: Options) -> Gateway {
    let system = Arc::new(Upper::default());
    let (jobs, run) = Jobs::open(Arc::new(bus.clone()), "g", system.clone(), options);
    Gateway { jobs, system, task: tokio::spawn(run) }
}

fn options() -> Options {
    Options {
        max_in_flight: 64,
        time_to_live: Duration::from_secs(600),
        upload_patience: Duration::from_secs(600),
        max_error_bytes: 500_000,
        max_bytes: 64 << 20,
        quotas: Quotas::default(),
    }
}

#[track_caller]
fn refused<T>(result: Result<T, JobError>, numbers: &str) {
    let error = result.err().expect("a refusal");
    assert!(matches!(error, JobError::Quota { .. }) && error.to_string().contains(numbers), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_has_no_more_than_its_quotas_and_others_have_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let quotas = Quotas { bytes: Some(3000), files: Some(3), batches: Some(1), requests: Some(2) };
    let gateway = limited(&open(directory.path()), Options { quotas, ..options() });
    gateway.system.full.store(true, Ordering::Relaxed);
    let [alice, bob] = ["alice", "bob"].map(|name| gateway.jobs.of(Client::Owner(name.into())));
    let upload = async |jobs: &Jobs, bytes: usize| {
        let mut arrival = jobs.arrival();
        match arrival.write(&vec![b'x'; bytes]).await {
            Ok(()) => arrival.finish("x.jsonl", None).await.map(|(id, _)| id),
            Err(error) => {
                arrival.abandon().await.unwrap();
                Err(error)
            }
        }
    };
    let file = upload(&alice, 2000).await.unwrap();
    refused(upload(&alice, 1001).await, "has 2000 bytes of files and asks for 1001 more, but may have 3000");
    upload(&alice, 500).await.unwrap();
    let other = upload(&alice, 500).await.unwrap();
    refused(upload(&alice, 0).await.and(upload(&alice, 1).await), "but may have 3");
    upload(&bob, 3000).await.unwrap();
    alice.delete_file(&other).await.unwrap();
    upload(&alice, 400).await.unwrap();

    let batch = async |jobs: &Jobs| {
        let new = NewBatch {
            input: file.clone(),
            endpoint: "/away".to_owned(),
            window: Duration::from_secs(60),
            output_lapse: None,
            if_space: None,
            traceparent: None,
            metadata: BTreeMap::new(),
            rows: Default::default(),
        };
        jobs.begin_batch(new).await.map(|(id, _)| id)
    };
    let first = batch(&alice).await.unwrap();
    refused(batch(&alice).await, "has 1 batches that have not ended and asks for 1 more, but may have 1");
    alice.cancel_batch(&first).await.unwrap();
    ended(&gateway, &first).await;
    batch(&alice).await.unwrap();

    let one = alice.accept(call("a"), Some("k")).await.unwrap().id;
    alice.accept(call("b"), None).await.unwrap();
    refused(alice.accept(call("c"), None).await, "has 2 durable requests that have not ended");
    assert!(alice.accept(call("a"), Some("k")).await.unwrap().was_there, "a repetition is no other request");
    bob.accept(call("c"), None).await.unwrap();
    gateway.jobs.accept(call("d"), None).await.unwrap();
    alice.cancel_request(&one).await.unwrap();
    alice.accept(call("c"), None).await.unwrap();
}

/// Asks for 24 things at the same time: none is in the store before all of them were asked for. Returns how many were accepted.
async fn at_once<F: Future<Output = Result<(), JobError>> + Send + 'static>(
    bus: &Refusing,
    ask: impl Fn(usize) -> F,
) -> usize {
    bus.refuse([Call::WriteLate(Bucket::Jobs)]);
    let asked: Vec<_> = (0..24).map(|number| tokio::spawn(ask(number))).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    bus.refuse([]);
    let answers = futures_util::future::join_all(asked).await;
    answers.into_iter().filter(|answer| answer.as_ref().unwrap().is_ok()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_has_no_more_than_its_quotas_however_much_comes_at_once() {
    let bus = Refusing::default();
    let quotas = Quotas { bytes: Some(1000), files: Some(3), batches: Some(2), requests: Some(2) };
    let gateway = limited(&bus, Options { quotas, ..options() });
    gateway.system.stuck.store(true, Ordering::Relaxed);
    let alice = gateway.jobs.of(Client::Owner("alice".into()));
    let jobs = alice.clone();
    let files = at_once(&bus, move |number| {
        let jobs = jobs.clone();
        async move {
            let mut arrival = jobs.arrival();
            match arrival.write(lines(1).as_bytes()).await {
                Ok(()) => arrival.finish_once("x", None, Some(&format!("f{number}"))).await.map(drop),
                Err(error) => arrival.abandon().await.and(Err(error)),
            }
        }
    });
    assert_eq!(files.await, 3);
    let file = alice.files(&page(1)).await.unwrap().items.remove(0).0;
    let jobs = alice.clone();
    let batches = at_once(&bus, move |_| {
        let (jobs, input) = (jobs.clone(), file.clone());
        let new = NewBatch {
            input,
            endpoint: "/run".to_owned(),
            window: Duration::from_secs(60),
            output_lapse: None,
            if_space: None,
            traceparent: None,
            metadata: BTreeMap::new(),
            rows: Default::default(),
        };
        async move { jobs.begin_batch(new).await.map(drop) }
    });
    assert_eq!(batches.await, 2);
    let jobs = alice.clone();
    let requests = at_once(&bus, move |number| {
        let jobs = jobs.clone();
        async move { jobs.accept(call(&number.to_string()), None).await.map(drop) }
    });
    assert_eq!(requests.await, 2);
    // Files that arrive together, each smaller than the bound.
    for (id, _) in alice.files(&page(9)).await.unwrap().items.into_iter().skip(1) {
        alice.delete_file(&id).await.unwrap();
    }
    let jobs = alice.clone();
    let large = at_once(&bus, move |_| {
        let jobs = jobs.clone();
        async move {
            let mut arrival = jobs.arrival();
            for _ in 0..6 {
                if let Err(error) = arrival.write(&[b'x'; 100]).await {
                    return arrival.abandon().await.and(Err(error));
                }
            }
            arrival.finish("x", None).await.map(drop)
        }
    });
    assert!(large.await <= 1);
    let bytes: u64 = alice.files(&page(9)).await.unwrap().items.iter().map(|(_, file)| file.bytes).sum();
    assert!(bytes <= 1000, "{bytes}");
}

/// The store tells nobody that a value has lapsed.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_lapsed_counts_no_more() {
    let bus = InProcess::default();
    let quotas = Quotas { files: Some(3), ..Quotas::default() };
    let gateway = limited(&bus, Options { quotas, ..options() });
    let alice = gateway.jobs.of(Client::Owner("alice".into()));
    let upload = async || {
        let mut arrival = alice.arrival();
        match arrival.write(lines(1).as_bytes()).await {
            Ok(()) => arrival.finish("x", None).await.map(|(id, _)| id),
            Err(error) => arrival.abandon().await.and(Err(error)),
        }
    };
    let new = NewBatch {
        input: upload().await.unwrap(),
        endpoint: "/run".to_owned(),
        window: Duration::from_secs(60),
        output_lapse: None,
        if_space: None,
        traceparent: None,
        metadata: BTreeMap::new(),
        rows: Default::default(),
    };
    let batch = alice.begin_batch(new).await.unwrap().0;
    assert!(ended(&gateway, &batch).await.output.is_some());
    let announced = NewUpload { name: "x".to_owned(), bytes: 8, time: Duration::from_secs(300), lapse: None };
    alice.begin_upload(announced).await.unwrap();
    refused(upload().await, "has 3 files and asks for 1 more");
    bus.advance(Duration::from_secs(301));
    upload().await.expect("the upload has lapsed");
    refused(upload().await, "has 3 files and asks for 1 more");
    bus.advance(Duration::from_secs(301));
    upload().await.expect("the output has lapsed");
    assert!(alice.batches(&page(9)).await.unwrap().items.is_empty());
}

/// One line of the only chunk is refused again and again.
#[tokio::test(flavor = "multi_thread")]
async fn the_counts_of_a_batch_move_while_a_chunk_is_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let text = lines(9) + r#"{"custom_id": "last", "method": "POST", "url": "/run", "body": {"refused": 1}}"#;
    let id = gateway.batch(gateway.file(&text).await).await;
    let counts = until("progress", async || {
        let batch = gateway.jobs.batch(&id).await.unwrap();
        let counts = batch.progress();
        (counts.completed >= 9).then_some(counts)
    })
    .await;
    assert_eq!((counts.total, counts.completed, counts.failed), (10, 9, 0));
}

/// Lines of 1 MiB of eight batches, of which all together may fill 8 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn the_lines_of_batches_in_memory_are_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let bus = open(directory.path());
    let gateway = limited(&bus, Options { max_bytes: 8 << 20, ..options() });
    gateway.system.stuck.store(true, Ordering::Relaxed);
    let long = "x".repeat(1 << 20);
    let line = |n| {
        let body = json!({"text": long});
        json!({"custom_id": format!("c{n}"), "method": "POST", "url": "/run", "body": body}).to_string() + "\n"
    };
    let file = gateway.file(&(0..20).map(line).collect::<String>()).await;
    let mut batches = Vec::new();
    for _ in 0..8 {
        batches.push(gateway.batch(file.clone()).await);
    }
    until("each batch has a line under way", async || (gateway.jobs.statistics().in_flight >= 8).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let in_flight = gateway.jobs.statistics().in_flight;
    assert!(in_flight <= 16, "{in_flight} lines of 1 MiB");
    gateway.system.stuck.store(false, Ordering::Relaxed);
    for batch in batches {
        let batch = ended(&gateway, &batch).await;
        assert_eq!((batch.state, batch.counts.completed), (BatchState::Completed, 20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_stands_for_one_request_on_one_route() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let upload = async |key: &str| {
        let mut arrival = gateway.jobs.arrival();
        arrival.write(lines(1).as_bytes()).await.unwrap();
        arrival.finish_once("x.jsonl", None, Some(key)).await.map(|(id, _)| id)
    };
    let file = upload("k").await.unwrap();
    assert_eq!(upload("k").await.unwrap(), file);
    assert!(matches!(gateway.jobs.accept(call("a"), Some("k")).await, Err(JobError::OtherRequest)));
    gateway.jobs.accept(call("a"), Some("other")).await.unwrap();
    assert!(matches!(upload("other").await, Err(JobError::OtherRequest)));
    let new = NewBatch {
        input: file,
        endpoint: "/run".to_owned(),
        window: Duration::from_secs(60),
        output_lapse: None,
        if_space: None,
        traceparent: None,
        metadata: BTreeMap::new(),
        rows: Default::default(),
    };
    for key in ["k", "other"] {
        let begun = gateway.jobs.begin_batch_on(new.clone(), Default::default(), Some((key, b"sent"))).await;
        assert!(matches!(begun, Err(JobError::OtherRequest)), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_behind_something_that_is_not_there_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let file = gateway.file(&lines(1)).await;
    let page = |after: &str| Page { after: Some(after.to_owned()), limit: 10, ..Page::default() };
    assert!(gateway.jobs.files(&page(&file)).await.unwrap().items.is_empty());
    let batch = ended(&gateway, &gateway.batch(file).await).await;
    for after in ["file-none", "", batch.input.replace("file", "batch").as_str()] {
        let error = gateway.jobs.files(&page(after)).await.expect_err("an error");
        assert!(matches!(error, JobError::Unknown { .. }), "{after}: {error}");
    }
    assert!(gateway.jobs.batches(&page(&batch.input)).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parts_of_a_cancelled_upload_go_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let bus = open(directory.path());
    let gateway = Gateway::on(&bus, "g");
    let new = NewUpload { name: "x".to_owned(), bytes: 8, time: Duration::from_secs(600), lapse: None };
    let (id, _) = gateway.jobs.begin_upload(new).await.unwrap();
    for _ in 0..2 {
        let (mut part, upload) = gateway.jobs.begin_part(&id).await.unwrap();
        part.write(b"abcd").await.unwrap();
        gateway.jobs.finish_part(part, &id, &upload).await.unwrap();
    }
    let (mut late, upload) = gateway.jobs.begin_part(&id).await.unwrap();
    late.write(b"late").await.unwrap();
    assert!(bus.next(Bucket::Objects, 0).await.unwrap().is_some());
    gateway.jobs.cancel_upload(&id).await.unwrap();
    assert!(bus.next(Bucket::Objects, 0).await.unwrap().is_none());
    assert!(gateway.jobs.finish_part(late, &id, &upload).await.is_err());
    assert!(bus.next(Bucket::Objects, 0).await.unwrap().is_none());
    assert!(bus.next(Bucket::Jobs, 0).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn receivers_that_hang_delay_no_other_one() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let accept = async |url: &str| {
        let terms = JobOptions { webhook: Some(url.to_owned()), ..JobOptions::default() };
        gateway.jobs.accept_on(call("a"), None, terms).await.unwrap().id
    };
    for _ in 0..600 {
        let id = accept("https://hangs.example").await;
        gateway.jobs.wait(&id, Duration::from_secs(60)).await.unwrap();
    }
    let id = accept("https://fine.example").await;
    until("the call", async || {
        let webhook = gateway.jobs.request(&id).await.unwrap().webhook.unwrap();
        (webhook.state == WebhookState::Delivered).then_some(())
    })
    .await;
}

/// Many destinations, batches and requests, each of which would take more alone.
#[tokio::test(flavor = "multi_thread")]
async fn calls_in_flight_have_one_bound_for_all_jobs() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = limited(&open(directory.path()), Options { max_in_flight: 8, ..options() });
    let mut batches = Vec::new();
    for number in 0..12 {
        let endpoint = format!("/run{number}");
        let file = gateway.file(&lines(60).replace("\"/run\"", &format!("\"{endpoint}\""))).await;
        batches.push(gateway.batch_to(&endpoint, file).await);
    }
    let mut requests = Vec::new();
    for number in 0..60 {
        let call = JobCall { path: format!("/other{}", number % 6), ..call(&number.to_string()) };
        requests.push(gateway.jobs.accept(call, None).await.unwrap().id);
    }
    for id in batches {
        let batch = ended(&gateway, &id).await;
        assert_eq!((batch.state, batch.counts.completed), (BatchState::Completed, 60));
    }
    for id in requests {
        let request = gateway.jobs.wait(&id, Duration::from_secs(60)).await.unwrap();
        assert_eq!(request.state, RequestState::Completed);
    }
    assert_eq!(gateway.system.most.load(Ordering::Relaxed), 8);
}
