//! Jobs that end their gateways, lose their bytes, or fail in every line.

use trireme_bus::Change;

use super::*;

/// Deletes all objects, as a broker that was emptied.
async fn lose_objects(bus: &impl Bus) {
    let mut revision = 0;
    while let Some(entry) = bus.next(Bucket::Objects, revision).await.unwrap() {
        revision = entry.revision;
        bus.delete(Bucket::Objects, &entry.key, None).await.unwrap();
    }
}

/// Each gateway ends while it runs the batch, before a line is answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_ends_gateways_is_set_aside_after_the_third() {
    let directory = tempfile::tempdir().unwrap();
    let bus = open(directory.path());
    let mut gateway = Gateway::stuck_on(&bus, "g");
    let kills = gateway.batch(gateway.file(&lines(10)).await).await;
    let fine = gateway.batch(gateway.file(&lines(10)).await).await;
    for _ in 0..6 {
        let is_set_aside = until("a batch runs, or one is set aside", async || {
            let (one, other) = (gateway.jobs.batch(&kills).await.unwrap(), gateway.jobs.batch(&fine).await.unwrap());
            let is_set_aside = [one, other].iter().any(|batch| batch.state == BatchState::Failed);
            (is_set_aside || gateway.jobs.statistics().in_flight >= 10).then_some(is_set_aside)
        });
        if is_set_aside.await {
            break;
        }
        drop(gateway);
        gateway = Gateway::stuck_on(&bus, "g");
    }
    gateway.system.stuck.store(false, Ordering::Relaxed);
    let (one, other) = (ended(&gateway, &kills).await, ended(&gateway, &fine).await);
    // Both stood still each time, so both may be blamed, but not for the same ends.
    let failed: Vec<_> = [&one, &other].into_iter().filter(|batch| batch.state == BatchState::Failed).collect();
    assert!(!failed.is_empty(), "{one:?} {other:?}");
    for batch in failed {
        let why = batch.failure.as_deref().unwrap();
        assert!(why.starts_with("3 gateways have ended while they worked on this batch"), "{why}");
    }
}

/// Each gateway ends while it runs the requests. The third one runs those that ran twice one by one.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_ends_gateways_is_set_aside_after_the_third_and_takes_no_other_one_along() {
    let directory = tempfile::tempdir().unwrap();
    let bus = open(directory.path());
    let mut gateway = Gateway::stuck_on(&bus, "g");
    let mut ids = Vec::new();
    for number in 0..20 {
        ids.push(gateway.jobs.accept(call(&number.to_string()), None).await.unwrap().id);
    }
    for most in [20, 20, 1] {
        until("they run", async || (gateway.jobs.statistics().in_flight == most).then_some(())).await;
        drop(gateway);
        gateway = Gateway::stuck_on(&bus, "g");
    }
    until("one is set aside", async || {
        let mut ended = 0;
        for id in &ids {
            ended += usize::from(gateway.jobs.request(id).await.unwrap().state == RequestState::Completed);
        }
        (ended == 1).then_some(())
    })
    .await;
    gateway.system.stuck.store(false, Ordering::Relaxed);
    let mut failed = 0;
    for id in &ids {
        let request = gateway.jobs.wait(id, Duration::from_secs(60)).await.unwrap();
        let answer = gateway.jobs.answer(&request).await.unwrap().expect("an answer");
        if answer.status != 200 {
            failed += 1;
            let why = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(why.contains("3 gateways have ended while they worked on this request"), "{why}");
        }
    }
    assert_eq!(failed, 1);
}

/// No worker is there while gateways come and go.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_refused_outlives_many_gateways() {
    let directory = tempfile::tempdir().unwrap();
    let bus = open(directory.path());
    let full = || Upper { full: AtomicBool::new(true), ..Upper::default() };
    let start = |system| Gateway::of(Arc::new(bus.clone()), "g", Duration::from_secs(600), system);
    let mut gateway = start(full());
    let id = gateway.jobs.accept(call("a"), None).await.unwrap().id;
    for _ in 0..6 {
        // The second refusal comes after the first one was noted.
        until("refusals", async || (gateway.system.refused.load(Ordering::Relaxed) > 1).then_some(())).await;
        drop(gateway);
        gateway = start(full());
    }
    gateway.system.full.store(false, Ordering::Relaxed);
    let request = gateway.jobs.wait(&id, Duration::from_secs(60)).await.unwrap();
    assert_eq!(gateway.jobs.answer(&request).await.unwrap().expect("an answer").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_body_is_lost_ends_with_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let bus = open(directory.path());
    let gateway = Gateway::stuck_on(&bus, "g");
    let lost = gateway.jobs.accept(call(&"x".repeat(1 << 20)), None).await.unwrap().id;
    drop(gateway);
    lose_objects(&bus).await;
    let gateway = Gateway::on(&bus, "g");
    let other = gateway.jobs.accept(call("other"), None).await.unwrap().id;
    for (id, status) in [(other, 200), (lost, 500)] {
        let request = gateway.jobs.wait(&id, Duration::from_secs(60)).await.unwrap();
        let answer = gateway.jobs.answer(&request).await.unwrap().expect("an answer");
        assert_eq!(answer.status, status);
        assert!(status == 200 || String::from_utf8_lossy(&answer.body).contains("the request is lost: part 0 of"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_input_is_lost_publishes_what_was_answered() {
    let directory = tempfile::tempdir().unwrap();
    let bus = open(directory.path());
    let gateway = Gateway::on(&bus, "g");
    let file = gateway.file(&lines(60_000)).await;
    let record = gateway.jobs.file(&file).await.unwrap();
    assert!(record.bytes > 8 << 19, "several parts");
    let id = gateway.batch(file.clone()).await;
    until("answers", async || (gateway.jobs.batch(&id).await.unwrap().counts.completed > 0).then_some(())).await;
    for part in 8.. {
        if !bus.delete(Bucket::Objects, &format!("{file}.{part}"), None).await.unwrap() {
            break;
        }
    }
    let batch = ended(&gateway, &id).await;
    assert_eq!(batch.state, BatchState::Failed);
    assert!(batch.failure.as_deref().unwrap().contains("is missing"), "{:?}", batch.failure);
    assert_eq!(gateway.lines_of(&batch.output.unwrap()).await.len() as u64, batch.counts.completed);
    assert!(batch.counts.completed > 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_file_has_a_bound() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let text = lines(1) + &"{}\n".repeat(20_000);
    let batch = ended(&gateway, &gateway.batch(gateway.file(&text).await).await).await;
    assert_eq!(batch.state, BatchState::Failed);
    let why = batch.failure.unwrap();
    assert!(why.starts_with("the error file has more than 500000 bytes, after "), "{why}");
    assert_eq!(gateway.lines_of(&batch.output.unwrap()).await.len(), 1);
    let errors = gateway.jobs.file(&batch.errors.unwrap()).await.unwrap();
    assert!(errors.bytes < 1_500_000, "{}", errors.bytes);
}

/// The work stands still in a line of which nothing comes.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_batch_ends_before_anything_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let bus = open(directory.path());
    let gateway = Gateway::on(&bus, "g");
    gateway.system.stuck.store(true, Ordering::Relaxed);
    let id = gateway.batch(gateway.file(&lines(10)).await).await;
    until("the batch runs", async || (gateway.jobs.statistics().in_flight >= 10).then_some(())).await;
    drop(gateway);
    lose_objects(&bus).await;
    let late = Gateway::on(&bus, "late");
    late.jobs.cancel_batch(&id).await.unwrap();
    late.system.gone.lock().push("g".to_owned());
    let began = std::time::Instant::now();
    assert_eq!(ended(&late, &id).await.state, BatchState::Cancelled);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// A broker that crashes may show the last value of a key whose deletion it has dropped. So that value is one that nobody sees.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_is_overwritten_before_it_goes() {
    // A watch of its stores shows every value: that of stores on disk may pass over one that was replaced at once.
    let bus = InProcess::new(&QueueOptions::default());
    let gateway = Gateway::on(&bus, "g");
    let request = gateway.jobs.accept(call("a"), None).await.unwrap().id;
    gateway.jobs.wait(&request, Duration::from_secs(60)).await.unwrap();
    let file = gateway.file(&lines(1)).await;
    let mut changes = bus.watch(Bucket::Jobs).await.unwrap();
    gateway.jobs.cancel_request(&request).await.unwrap();
    gateway.jobs.delete_file(&file).await.unwrap();
    let mut values = HashMap::new();
    let mut gone = Vec::new();
    while gone.len() < 2 {
        match changes.recv().await.unwrap() {
            Change::Put(entry) => _ = values.insert(entry.key, entry.value),
            Change::Deleted { key, .. } => gone.push(key),
            Change::Complete => {}
        }
    }
    assert_eq!(gone, [request.as_str(), file.as_str()]);
    for id in gone {
        let value = String::from_utf8_lossy(&values[&id]).into_owned();
        assert!(value.contains("deleted"), "{id}: {value}");
    }
}

/// A gateway stops while it writes a batch's output, another one ends the batch, and then the first one goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_has_lost_a_batch_writes_nothing_more_into_its_output() {
    let stopped = Refusing::default();
    let bus: Arc<dyn Bus> = Arc::new(stopped.beside());
    let other = Gateway::over(bus.clone(), "other", Duration::from_secs(600));
    let file = other.file(&lines(10)).await;
    let (patience, system) =
        (Duration::from_secs(600), Upper { answer: Some(r#"{"by": "the first"}"#), ..Upper::default() });
    let first = Gateway::of(Arc::new(stopped.clone()), "first", patience, system);
    stopped.refuse([Call::WriteLate(Bucket::Objects)]);
    let batch = first.batch(file).await;
    until("the first gateway's answers", async || (first.system.calls.lock().len() == 10).then_some(())).await;
    // They are on their way to the store.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!matches!(first.jobs.batch(&batch).await.unwrap().state, BatchState::Completed));
    other.system.gone.lock().push("first".to_owned());
    let ended = ended(&other, &batch).await;
    stopped.refuse([]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    let answers = other.lines_of(&ended.output.unwrap()).await;
    assert_eq!((ended.state, answers.len()), (BatchState::Completed, 10));
    let of_first = answers.iter().filter(|line| line.to_string().contains("the first")).count();
    assert_eq!(of_first, 0, "{answers:?}");
}

/// The bytes of a file that has expired take as long as they like.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_go_on_while_a_large_file_is_deleted() {
    let bus = Refusing::default();
    let first = Gateway::over(Arc::new(bus.clone()), "first", Duration::from_secs(600));
    first.system.stuck.store(true, Ordering::Relaxed);
    let left = first.jobs.accept(call("left"), None).await.unwrap().id;
    drop(first);
    let gateway = Gateway::over(Arc::new(bus.clone()), "g", Duration::from_secs(600));
    let mut arrival = gateway.jobs.arrival();
    arrival.write(&vec![0; 2 << 20]).await.unwrap();
    let file = arrival.finish("x", Some(Duration::from_secs(100))).await.unwrap().0;
    bus.refuse([Call::DeleteLate(Bucket::Objects)]);
    bus.advance(Duration::from_secs(101));
    until("the sweep", async || (bus.failures() > 0).then_some(())).await;
    assert!(gateway.jobs.file(&file).await.is_err(), "it is no file any more");
    gateway.system.gone.lock().push("first".to_owned());
    let new = gateway.jobs.accept(call("new"), None).await.unwrap().id;
    for id in [&left, &new] {
        let request = gateway.jobs.wait(id, Duration::from_secs(30)).await.unwrap();
        assert_eq!(request.state, RequestState::Completed);
    }
    bus.refuse([]);
    until("its record is gone", async || bus.get(Bucket::Jobs, &file).await.unwrap().is_none().then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_is_opened_again_after_pauses() {
    let bus = Refusing::default();
    bus.refuse([Call::Watch]);
    let gateway = Gateway::over(Arc::new(bus.clone()), "g", Duration::from_secs(600));
    tokio::time::sleep(Duration::from_secs(60)).await;
    let watches = bus.failures();
    assert!((30..200).contains(&watches), "{watches} watches in a minute");
    bus.refuse([]);
    let id = gateway.jobs.accept(call("a"), None).await.unwrap().id;
    assert_eq!(gateway.jobs.wait(&id, Duration::from_secs(30)).await.unwrap().state, RequestState::Completed);
}

/// The gateway of a job has gone while its webhook waited, and then the job's time to live is over.
#[tokio::test(start_paused = true)]
async fn a_job_that_has_lapsed_is_not_looked_for() {
    let bus = Refusing::default();
    let first = Gateway::over(Arc::new(bus.clone()), "first", Duration::from_secs(600));
    let second = Gateway::over(Arc::new(bus.clone()), "second", Duration::from_secs(600));
    let terms = JobOptions { webhook: Some("https://fails.example".to_owned()), ..JobOptions::default() };
    let id = first.jobs.accept_on(call("a"), None, terms).await.unwrap().id;
    until("a call", async || {
        let webhook = second.jobs.request(&id).await.unwrap().webhook.unwrap();
        (webhook.attempts > 0).then_some(())
    })
    .await;
    drop(first);
    bus.advance(Duration::from_secs(601));
    assert!(second.jobs.request(&id).await.is_err());
    tokio::time::sleep(Duration::from_secs(3)).await;
    bus.refuse([Call::Read(Bucket::Jobs)]);
    second.system.gone.lock().push("first".to_owned());
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bus.failures(), 0, "the record is read");
}
