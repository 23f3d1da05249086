//! Uploads and files: their parts, their lifetime and their owners.

use super::*;

async fn begin(jobs: &Jobs, bytes: u64, lapse: Option<Duration>) -> String {
    let new = NewUpload { name: "a.jsonl".to_owned(), bytes, time: Duration::from_secs(600), lapse };
    jobs.begin_upload(new).await.unwrap().0
}

async fn part(jobs: &Jobs, upload: &str, bytes: &[u8]) -> String {
    let (mut part, record) = jobs.begin_part(upload).await.unwrap();
    part.write(bytes).await.unwrap();
    jobs.finish_part(part, upload, &record).await.unwrap().0
}

async fn refused(jobs: &Jobs, upload: &str, parts: &[&str], md5: Option<&str>) -> String {
    let parts: Vec<_> = parts.iter().map(|part| (*part).to_owned()).collect();
    jobs.complete_upload(upload, &parts, md5).await.map(|_| ()).unwrap_err().to_string()
}

fn owner(name: &str) -> Client {
    Client::Owner(name.into())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_takes_its_own_parts_each_once_and_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let jobs = &gateway.jobs;
    let file = gateway.file("{\"a\": 1}").await;
    let (upload, other) = (begin(jobs, 8, None).await, begin(jobs, 4, None).await);
    let (one, two) = (part(jobs, &upload, b"{\"b\"").await, part(jobs, &upload, b": 2}").await);
    let foreign = part(jobs, &other, b"abcd").await;
    for (parts, words) in [
        (vec![file.as_str()], "is no part of upload"),
        (vec![&foreign, &one], "is no part of upload"),
        (vec![&upload], "is no part of upload"),
        (vec![&one, &one], "more than once"),
        (vec![&one], "the parts have 4 bytes, but the upload announced 8"),
        (vec![], "has 0 ids"),
        (vec![one.as_str(); 20_000], "has 20000 ids"),
    ] {
        let why = refused(jobs, &upload, &parts, None).await;
        assert!(why.contains(words), "{why}");
    }
    assert!(refused(jobs, &upload, &[&one, &two], Some(&"0".repeat(32))).await.contains("'md5' is"));
    assert!(refused(jobs, &file, &[&one, &two], None).await.contains("no upload with id"));
    assert!(jobs.cancel_upload(&file).await.is_err() && jobs.delete_file(&one).await.is_err());
    assert!(jobs.file(&one).await.is_err() && jobs.file(&upload).await.is_err(), "neither is a file");
    assert_eq!(gateway.lines_of(&file).await, [json!({"a": 1})]);
    let md5 = "0D5A4AA4B3E73CC7EBB86B2E54A43A53";
    let parts = [one.clone(), two.clone()];
    let found = jobs.complete_upload(&upload, &parts, None).await.map(|(_, (id, _))| id).unwrap();
    assert_eq!(gateway.lines_of(&found).await, [json!({"b": 2})]);
    assert!(jobs.begin_part(&upload).await.is_err() && jobs.cancel_upload(&upload).await.is_err(), "it is a file now");
    assert_eq!(jobs.files(&page(10)).await.unwrap().items.len(), 2, "parts are not listed");
    // The client lost the answer.
    let again = jobs.complete_upload(&upload, &parts, Some(md5)).await.unwrap();
    assert_eq!((again.0.bytes, &again.1.0), (8, &found));
    assert!(refused(jobs, &upload, &[&two, &one], None).await.contains("it became a file of other parts"));
    jobs.delete_file(&found).await.unwrap();
    assert!(refused(jobs, &upload, &[&one, &two], None).await.contains("no upload"), "the file is gone");
}

/// How many parts of objects with bytes of parts of uploads there are.
async fn objects(bus: &Refusing) -> usize {
    let (mut revision, mut count) = (0, 0);
    while let Some(entry) = bus.next(Bucket::Objects, revision).await.unwrap() {
        (revision, count) = (entry.revision, count + usize::from(entry.key.starts_with("part_")));
    }
    count
}

/// A gateway ends an upload and stops after each of its writes. With `again` the client asks another one, which finishes; without, the bytes
/// are those of a file, or are deleted when the upload's time is over.
async fn stopped_at_each_write(again: bool) {
    let mut uploads = Vec::new();
    for writes in 0.. {
        let bus = Refusing::default();
        let first = Gateway::over(Arc::new(bus.clone()), "a", Duration::from_secs(600));
        let new = NewUpload { name: "a".to_owned(), bytes: 8, time: Duration::from_secs(600), lapse: None };
        let upload = first.jobs.begin_upload(new).await.unwrap().0;
        let parts = [part(&first.jobs, &upload, b"{\"b\"").await, part(&first.jobs, &upload, b": 2}").await];
        part(&first.jobs, &upload, b"unused").await;
        bus.refuse_after(writes, Call::Write(Bucket::Jobs));
        let is_done = first.jobs.complete_upload(&upload, &parts, None).await.is_ok();
        drop(first);
        let second = Gateway::over(Arc::new(bus.beside()), "b", Duration::from_secs(600));
        if again {
            let found = second.jobs.complete_upload(&upload, &parts, None).await.unwrap().1.0;
            assert_eq!(second.lines_of(&found).await, [json!({"b": 2})], "stopped after {writes} writes");
        }
        uploads.push((bus.beside(), second));
        if is_done {
            break;
        }
    }
    assert!(uploads.len() >= 7, "{} writes", uploads.len());
    for (writes, (bus, gateway)) in uploads.into_iter().enumerate() {
        // The time of the upload.
        bus.advance(Duration::from_secs(601));
        let (is_left, files) = until("no bytes are left but those of files", async || {
            let files = gateway.jobs.files(&page(10)).await.unwrap().items;
            // A part of bytes is an object.
            let expected = 2 * files.len();
            (objects(&bus).await == expected).then_some((expected > 0, files))
        })
        .await;
        assert_eq!(is_left, again || files.len() == 1, "stopped after {writes} writes");
        for (id, _) in files {
            assert_eq!(gateway.lines_of(&id).await, [json!({"b": 2})], "stopped after {writes} writes");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_gateway_stops_is_completed_by_another() {
    stopped_at_each_write(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_gateway_stops_leaves_a_whole_file_or_none() {
    stopped_at_each_write(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_digest_of_all_parts_is_checked() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let upload = begin(&gateway.jobs, 3, None).await;
    let parts = [part(&gateway.jobs, &upload, b"a").await, part(&gateway.jobs, &upload, b"bc").await];
    let md5 = "900150983CD24FB0D6963F7D28E17F72";
    gateway.jobs.complete_upload(&upload, &parts, Some(md5)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn announced_sizes_are_in_range() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    for bytes in [0, 1 << 63, u64::MAX] {
        let new = NewUpload { name: "a".to_owned(), bytes, time: Duration::from_secs(600), lapse: None };
        let error = gateway.jobs.begin_upload(new).await.unwrap_err();
        assert!(matches!(error, JobError::Invalid(_)), "{error}");
    }
}

/// The parts' own time is over long before.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_parts_lives_as_a_file() {
    let bus = InProcess::default();
    let gateway = Gateway::on(&bus, "g");
    let jobs = &gateway.jobs;
    let new = |lapse| NewUpload { name: "a".to_owned(), bytes: 2, time: Duration::from_secs(200), lapse };
    let kept = jobs.begin_upload(new(None)).await.unwrap().0;
    let lapses = jobs.begin_upload(new(Some(Duration::from_secs(300)))).await.unwrap().0;
    let dropped = jobs.begin_upload(new(None)).await.unwrap().0;
    part(jobs, &dropped, b"xy").await;
    let mut files = Vec::new();
    for upload in [&kept, &lapses] {
        let parts = [part(jobs, upload, b"7 ").await];
        files.push(jobs.complete_upload(upload, &parts, None).await.unwrap().1);
    }
    assert_eq!((files[0].1.expires, files[1].1.expires.map(|at| at - files[1].1.created)), (None, Some(300)));
    bus.advance(Duration::from_secs(301));
    until("the file that expires is gone", async || jobs.file(&files[1].0).await.is_err().then_some(())).await;
    assert_eq!(gateway.lines_of(&files[0].0).await, [json!(7)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_in_use_is_held() {
    let bus = InProcess::default();
    let gateway = Gateway::on(&bus, "g");
    gateway.system.stuck.store(true, Ordering::Relaxed);
    let mut arrival = gateway.jobs.arrival();
    arrival.write(lines(5).as_bytes()).await.unwrap();
    let file = arrival.finish("a.jsonl", Some(Duration::from_secs(100))).await.unwrap().0;
    let batch = gateway.batch(file.clone()).await;
    bus.advance(Duration::from_secs(101));
    // A file that is not in use is swept.
    let mut other = gateway.jobs.arrival();
    other.write(b"x").await.unwrap();
    let other = other.finish("a.jsonl", Some(Duration::ZERO)).await.unwrap().0;
    until("a sweep", async || gateway.jobs.file(&other).await.is_err().then_some(())).await;
    let error = gateway.jobs.delete_file(&file).await.unwrap_err();
    assert!(matches!(&error, JobError::InUse { batch: user, .. } if *user == batch), "{error}");
    gateway.system.stuck.store(false, Ordering::Relaxed);
    assert_eq!(ended(&gateway, &batch).await.counts.completed, 5);
    gateway.jobs.delete_file(&file).await.unwrap();
    assert!(gateway.jobs.file(&file).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_one_owner_is_not_there_for_another() {
    let directory = tempfile::tempdir().unwrap();
    let gateway = Gateway::on(&open(directory.path()), "g");
    let (alice, bob) = (gateway.jobs.of(owner("alice")), gateway.jobs.of(owner("bob")));
    let request = alice.accept(call("a"), Some("order-1")).await.unwrap();
    let other = bob.accept(call("b"), Some("order-1")).await.unwrap();
    assert!(!other.was_there && other.id != request.id);
    assert!(alice.accept(call("a"), Some("order-1")).await.unwrap().was_there);
    alice.wait(&request.id, Duration::from_secs(30)).await.unwrap();
    assert!(bob.request(&request.id).await.is_err() && bob.cancel_request(&request.id).await.is_err());
    assert_eq!(alice.request(&request.id).await.unwrap().state, RequestState::Completed);

    let mut arrival = alice.arrival();
    arrival.write(lines(3).as_bytes()).await.unwrap();
    let file = arrival.finish("a.jsonl", None).await.unwrap().0;
    let new = |input: &str| NewBatch {
        input: input.to_owned(),
        endpoint: "/run".to_owned(),
        window: Duration::from_secs(60),
        output_lapse: None,
        if_space: None,
        traceparent: None,
        metadata: BTreeMap::new(),
        rows: Default::default(),
    };
    assert!(bob.begin_batch(new(&file)).await.is_err() && bob.delete_file(&file).await.is_err());
    let batch = alice.begin_batch(new(&file)).await.unwrap().0;
    let output = ended(&gateway, &batch).await.output.unwrap();
    assert!(bob.batch(&batch).await.is_err() && bob.cancel_batch(&batch).await.is_err());
    assert!(alice.file(&output).await.is_ok() && bob.file(&output).await.is_err(), "the output is hers, too");
    let upload = begin(&alice, 1, None).await;
    assert!(bob.begin_part(&upload).await.is_err() && bob.cancel_upload(&upload).await.is_err());
    for (jobs, files, batches) in [(&alice, 2, 1), (&bob, 0, 0), (&gateway.jobs, 2, 1)] {
        let found =
            (jobs.files(&page(10)).await.unwrap().items.len(), jobs.batches(&page(10)).await.unwrap().items.len());
        assert_eq!(found, (files, batches));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_reads_its_own_records() {
    let directory = tempfile::tempdir().unwrap();
    let bus = open(directory.path());
    let gateway = Gateway::on(&bus, "g");
    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(gateway.file("{}").await);
    }
    let ids = |listed: &trireme_jobs::Listed<trireme_jobs::File>| {
        (listed.items.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), listed.has_more)
    };
    let (first, more) = ids(&gateway.jobs.files(&page(3)).await.unwrap());
    assert!(more && first.len() == 3);
    let next = Page { after: first.last().cloned(), ..page(3) };
    let (second, more) = ids(&gateway.jobs.files(&next).await.unwrap());
    assert!(!more && second.len() == 2);
    let mut found = [first, second].concat();
    found.sort();
    all.sort();
    assert_eq!(found, all);
    // Another gateway on the same store has the same list, and one that is gone is not on it.
    let other = Gateway::on(&bus, "other");
    gateway.jobs.delete_file(&all[0]).await.unwrap();
    until("the same list", async || (other.jobs.files(&page(9)).await.unwrap().items.len() == 4).then_some(())).await;
}
