//! Writes that the store has and does not confirm, and gateways that end after any of their writes: no byte that was acknowledged is lost, and
//! none is left that nothing names.

use futures_util::future::join_all;

use super::*;

const PATIENCE: Duration = Duration::from_secs(600);

/// A file of two parts.
fn text(first: &str) -> String {
    first.to_owned() + &"x".repeat(600_000)
}

async fn upload(jobs: &Jobs, text: &str, key: Option<&str>) -> Result<String, JobError> {
    let mut arrival = jobs.arrival();
    match arrival.write(text.as_bytes()).await {
        Ok(()) => arrival.finish_once("x.jsonl", None, key).await.map(|(id, _)| id),
        Err(error) => {
            let _ = arrival.abandon().await;
            Err(error)
        }
    }
}

/// A client that repeats a request to which the gateway has no answer.
async fn insist<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<T, JobError>) -> T {
    for _ in 0..3 {
        match ask().await {
            Ok(answer) => return answer,
            Err(JobError::Bus(_)) => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
    panic!("{what} fails again and again");
}

/// Deletes, and takes it for done when it is gone.
async fn insist_on_end<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<T, JobError>) {
    insist(what, async || match ask().await {
        Ok(_) | Err(JobError::Unknown { .. }) => Ok(()),
        Err(error) => Err(error),
    })
    .await;
}

async fn content(jobs: &Jobs, id: &str) -> String {
    let file = jobs.file(id).await.unwrap();
    let parts: Vec<Bytes> = jobs.content(&file).try_collect().await.unwrap();
    String::from_utf8(parts.concat()).unwrap()
}

/// The objects in the store, without the reserve; those of requests and of outputs lapse by themselves.
async fn objects(bus: &Refusing) -> Vec<String> {
    let (mut revision, mut names) = (0, Vec::new());
    while let Some(entry) = bus.next(Bucket::Objects, revision).await.unwrap() {
        revision = entry.revision;
        let (name, _) = entry.key.rsplit_once('.').unwrap();
        if name != "reserve" && !names.iter().any(|other| other == name) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    names
}

/// Waits until the store has the bytes of the files that are listed, and no others. Returns the files and their contents.
async fn tidied(bus: &Refusing, gateway: &Gateway, what: &str) -> Vec<(String, String)> {
    until(&format!("only bytes of files are left, {what}"), async || {
        let listed = gateway.jobs.files(&page(100)).await.unwrap().items;
        let mut files = Vec::new();
        for (id, file) in listed {
            let parts: Option<Vec<Bytes>> = gateway.jobs.content(&file).try_collect().await.ok();
            files.push((id, String::from_utf8(parts?.concat()).unwrap()));
        }
        // Each part of an upload is an object.
        let expected: usize = files.iter().map(|(_, content)| if *content == text("joined") { 2 } else { 1 }).sum();
        (objects(bus).await.len() == expected).then_some(files)
    })
    .await
}

/// Asks for everything that is written once, while the confirmation of one write is lost.
async fn ask_for_everything(unheard: usize) -> bool {
    let bus = Refusing::default();
    let gateway = Gateway::over(Arc::new(bus.clone()), "g", PATIENCE);
    let jobs = &gateway.jobs;
    bus.refuse_after(unheard, Call::AnyUnheard);
    let what = format!("with the confirmation of write {unheard} lost");

    let keyed = insist(&what, async || upload(jobs, &text("keyed"), Some("k")).await).await;
    let plain = insist(&what, async || upload(jobs, &lines(4), None).await).await;
    let deleted = insist(&what, async || upload(jobs, &text("deleted"), None).await).await;
    insist_on_end(&what, async || jobs.delete_file(&deleted).await).await;

    let whole = text("joined");
    let new = || NewUpload { name: "j".to_owned(), bytes: whole.len() as u64, time: PATIENCE, lapse: None };
    let parted = insist(&what, async || jobs.begin_upload(new()).await.map(|(id, _)| id)).await;
    let mut parts = Vec::new();
    for bytes in whole.as_bytes().chunks(550_000) {
        let part = insist(&what, async || {
            let (mut part, upload) = jobs.begin_part(&parted).await?;
            match part.write(bytes).await {
                Ok(()) => jobs.finish_part(part, &parted, &upload).await.map(|(id, _)| id),
                Err(error) => {
                    let _ = part.abandon().await;
                    Err(error)
                }
            }
        });
        parts.push(part.await);
    }
    let joined = insist(&what, async || jobs.complete_upload(&parted, &parts, None).await).await.1.0;
    let cancelled = insist(&what, async || jobs.begin_upload(new()).await.map(|(id, _)| id)).await;
    insist_on_end(&what, async || jobs.cancel_upload(&cancelled).await).await;

    let body = "x".repeat(530_000);
    let request = insist(&what, async || jobs.accept(call(&body), Some("r")).await).await.id;
    let new = || NewBatch {
        input: plain.clone(),
        endpoint: "/run".to_owned(),
        window: PATIENCE,
        output_lapse: None,
        if_space: None,
        traceparent: None,
        metadata: BTreeMap::new(),
        rows: Default::default(),
    };
    let batch =
        insist(&what, async || jobs.begin_batch_on(new(), JobOptions::default(), Some(("b", b"sent"))).await).await.0;

    let request = jobs.wait(&request, Duration::from_secs(60)).await.unwrap();
    assert_eq!(request.state, RequestState::Completed, "{what}");
    let answer = jobs.answer(&request).await.unwrap().expect("an answer");
    assert_eq!((answer.status, answer.body.len()), (200, body.len()), "{what}");
    let batch = ended(&gateway, &batch).await;
    assert_eq!((batch.state, batch.counts.completed), (BatchState::Completed, 4), "{what}: {:?}", batch.failure);
    assert_eq!(gateway.lines_of(&batch.output.unwrap()).await.len(), 4, "{what}");

    // Whatever nobody has heard of is looked after.
    bus.advance(2 * PATIENCE + Duration::from_secs(2 * 3600));
    for (id, expected) in [(&keyed, text("keyed")), (&plain, lines(4)), (&joined, text("joined"))] {
        assert!(content(jobs, id).await == expected, "{what}");
    }
    let files = tidied(&bus, &gateway, &what).await;
    // A file without a key that was not heard of is another one when it is sent again.
    assert!((3..=4).contains(&files.len()), "{} files, {what}", files.len());
    bus.failures() > 0
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_the_confirmation_of_any_write_is() {
    const AT_A_TIME: usize = 25;
    for first in (0..).step_by(AT_A_TIME) {
        let reached = join_all((first..first + AT_A_TIME).map(ask_for_everything)).await;
        if reached.contains(&false) {
            assert!(first > 25, "there are more writes");
            return;
        }
    }
}

/// A gateway ends after any number of writes of an act. Another one finds whole files, and the bytes of no others.
async fn stopped_at_each_write(act: impl AsyncFn(&Gateway, &Refusing, String), most_files: usize) {
    let mut kept = Vec::new();
    for writes in 0.. {
        let bus = Refusing::default();
        let first = Gateway::over(Arc::new(bus.clone()), "a", PATIENCE);
        // The reserve is laid down.
        until("the reserve", async || bus.get(Bucket::Objects, "reserve.7").await.unwrap()).await;
        let mut arrival = first.jobs.arrival();
        arrival.write(text("whole").as_bytes()).await.unwrap();
        let file = arrival.finish("x.jsonl", Some(Duration::from_secs(5000))).await.unwrap().0;
        bus.refuse_after(writes, Call::AnyWrite);
        act(&first, &bus, file).await;
        let is_done = bus.failures() == 0;
        drop(first);
        let second = Gateway::over(Arc::new(bus.beside()), "b", PATIENCE);
        kept.push((bus.beside(), second));
        if is_done {
            break;
        }
    }
    assert!(kept.len() > 3, "{} writes", kept.len());
    join_all(kept.iter().enumerate().map(async |(writes, (bus, gateway))| {
        bus.advance(PATIENCE + Duration::from_secs(1));
        let files = tidied(bus, gateway, &format!("stopped after {writes} writes")).await;
        assert!(files.len() <= most_files, "{} files, stopped after {writes} writes", files.len());
        assert!(files.iter().all(|(_, content)| [text("whole"), text("other")].contains(content)));
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_deleted_leaves_no_bytes_wherever_its_gateway_ends() {
    stopped_at_each_write(async |gateway, _, file| drop(gateway.jobs.delete_file(&file).await), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_expires_leaves_no_bytes_wherever_its_gateway_ends() {
    let sweep = async |_: &Gateway, bus: &Refusing, file: String| {
        bus.advance(Duration::from_secs(5001));
        until("a sweep, or its end", async || {
            let is_gone = bus.get(Bucket::Jobs, &file).await.unwrap().is_none();
            (bus.failures() > 0 || is_gone).then_some(())
        })
        .await;
    };
    stopped_at_each_write(sweep, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_under_a_key_leaves_no_bytes_but_its_own_wherever_its_gateway_ends() {
    let twice = async |gateway: &Gateway, _: &Refusing, _: String| {
        // The second one is the first one: its own bytes go.
        for _ in 0..2 {
            if upload(&gateway.jobs, &text("other"), Some("k")).await.is_err() {
                return;
            }
        }
    };
    stopped_at_each_write(twice, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_stops_to_arrive_leaves_no_bytes_wherever_its_gateway_ends() {
    let given_up = async |gateway: &Gateway, _: &Refusing, _: String| {
        let mut arrival = gateway.jobs.arrival();
        if arrival.write(text("other").as_bytes()).await.is_ok() {
            let _ = arrival.abandon().await;
        }
    };
    stopped_at_each_write(given_up, 1).await;
}

/// Its parts came after its last note, and its deletion is interrupted after each of them.
#[tokio::test(flavor = "multi_thread")]
async fn parts_that_no_record_counts_yet_are_deleted_all_the_same() {
    let bus = Refusing::default();
    let mut gateway = Gateway::over(Arc::new(bus.clone()), "a", PATIENCE);
    let mut arrival = gateway.jobs.arrival();
    arrival.write(&vec![0; 3 << 20]).await.unwrap();
    drop(arrival);
    bus.advance(PATIENCE + Duration::from_secs(1));
    for writes in [3, 2] {
        let failing = bus.beside();
        failing.refuse_after(writes, Call::AnyWrite);
        gateway = Gateway::over(Arc::new(failing.clone()), "b", PATIENCE);
        until("its end", async || (failing.failures() > 0).then_some(())).await;
    }
    drop(gateway);
    let last = Gateway::over(Arc::new(bus.beside()), "c", PATIENCE);
    tidied(&bus, &last, "after three gateways").await;
}
