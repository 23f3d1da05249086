//! Stores over a broker: deletions that it keeps, parts of large values, and streams that are created again.

use std::time::Duration;

use async_nats::jetstream;
use bytes::Bytes;
use tokio::sync::mpsc;
use trireme_bus::fixtures::{LARGE, message, model, within};
use trireme_bus::{Bucket, Bus, BusError, Change, DeadLetter};
use trireme_inference::InferError;
use trireme_testkit::NatsServer;

use super::{connect, connect_stage, entry};

async fn raw(server: &NatsServer) -> jetstream::Context {
    jetstream::new(async_nats::connect(server.url()).await.expect("the server was started"))
}

async fn next(watch: &mut mpsc::Receiver<Change>) -> Change {
    within("a change", watch.recv()).await.expect("the watch stays open")
}

/// Puts a value, with retries while the broker is away.
async fn put(bus: &dyn Bus, key: &str, value: &'static str) -> u64 {
    within("a write", async {
        loop {
            match bus.put(Bucket::Models, key, Bytes::from_static(value.as_bytes()), None, None).await {
                Ok(revision) => return revision,
                Err(BusError::Unreachable(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_key_can_be_written_for_the_first_time_again_after_it_was_deleted() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    for _ in 0..3 {
        let first = bus.put(Bucket::Models, "k", Bytes::new(), Some(0), None).await.unwrap();
        let second = bus.put(Bucket::Models, "k", "other".into(), Some(0), None).await;
        assert!(matches!(second, Err(BusError::Conflict { ref key }) if key == "k"), "{second:?}");
        assert!(bus.delete(Bucket::Models, "k", Some(first)).await.unwrap());
        assert!(!bus.delete(Bucket::Models, "k", Some(first)).await.unwrap());
    }
    // Only one of many concurrent writers is the first.
    let writers = (0..20).map(|n| {
        let bus = &bus;
        async move { bus.put(Bucket::Models, "k", format!("{n}").into(), Some(0), None).await.is_ok() }
    });
    let written = futures_util::future::join_all(writers).await;
    assert_eq!(written.into_iter().filter(|written| *written).count(), 1);
}

/// Writers at the same time share atomic batches. Each of them learns the revision of its own value, and a batch that is
/// refused for one value costs the others nothing.
#[tokio::test]
async fn records_that_are_written_at_the_same_time_are_stored_in_batches() {
    let server = NatsServer::start();
    let put = async |bus: &dyn Bus, key: &str| bus.put(Bucket::Jobs, key, key.to_owned().into(), Some(0), None).await;
    for with_conflict in [false, true] {
        let bus = connect(&server).await;
        // The first wave shows how long a message takes alone.
        for wave in 0..2 {
            let key = |number| format!("{with_conflict}-{wave}-{number}");
            let write = |number| {
                let (key, bus) = (key(number), &*bus);
                async move { (put(bus, &key).await, key) }
            };
            let written = futures_util::future::join_all((0..200).map(write));
            let again = async {
                if with_conflict && wave == 1 {
                    let again = bus.put(Bucket::Jobs, "false-0-0", "other".into(), Some(0), None).await;
                    assert!(matches!(again, Err(BusError::Conflict { .. })), "{again:?}");
                }
            };
            for (revision, key) in within("200 writes", async { tokio::join!(written, again).0 }).await {
                let entry = bus.get(Bucket::Jobs, &key).await.unwrap().expect("it was written");
                assert_eq!((entry.revision, entry.value), (revision.unwrap(), Bytes::from(key)));
            }
        }
    }
    let stream = raw(&server).await.get_stream("trireme_jobs").await.unwrap();
    let mut batches = Vec::new();
    let state = &stream.cached_info().state;
    for sequence in state.first_sequence..=state.last_sequence {
        let headers = stream.get_raw_message(sequence).await.map(|message| message.headers);
        batches.extend(headers.ok().and_then(|headers| headers.get("Nats-Batch-Id").cloned()));
    }
    assert!(batches.len() >= 100, "{} of 800 records were in batches", batches.len());
}

/// Each of them reads the value before any of them has deleted it, most of the time.
#[tokio::test]
async fn of_many_that_delete_a_value_one_has_done_it() {
    let server = NatsServer::start();
    let buses = futures_util::future::join_all((0..4).map(|_| connect(&server))).await;
    for round in 0..20 {
        let key = format!("k{round}");
        let revision = put(&*buses[0], &key, "1").await;
        let deletions = buses.iter().map(|bus| bus.delete(Bucket::Models, &key, Some(revision)));
        let deleted = futures_util::future::join_all(deletions).await;
        let mine = deleted.iter().filter(|deleted| matches!(deleted, Ok(true))).count();
        assert_eq!(mine, 1, "{deleted:?}");
    }
}

#[tokio::test]
async fn deletions_are_passed_over_by_who_reads_in_order() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let mut revisions = Vec::new();
    for key in ["a", "b", "c", "d"] {
        revisions.push(put(&*bus, key, "1").await);
    }
    for key in ["a", "c"] {
        assert!(bus.delete(Bucket::Models, key, None).await.unwrap());
    }
    let mut found = Vec::new();
    let mut last = 0;
    while let Some(entry) = bus.next(Bucket::Models, last).await.unwrap() {
        last = entry.revision;
        found.push(entry.key);
    }
    assert_eq!(found, ["b", "d"]);
    assert_eq!(bus.next(Bucket::Models, u64::MAX).await.unwrap(), None);
    assert_eq!(bus.next(Bucket::Attempts, 0).await.unwrap(), None, "nothing was ever written");

    // Removed letters are not found, although their deletions are still in the stream.
    let letter = |n| DeadLetter { message: message(&model("dead"), n), reason: InferError::internal("x"), attempts: 1 };
    for n in 0..3 {
        bus.dead_letter(letter(n)).await.unwrap();
    }
    while let Some(letter) = bus.dead_letter_after(0).await.unwrap() {
        assert!(bus.remove_dead_letter(letter.number).await.unwrap());
        assert!(!bus.remove_dead_letter(letter.number).await.unwrap());
    }
}

#[tokio::test]
async fn one_step_is_set_aside_once() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let message = message(&model("poison"), 1);
    for attempts in [3, 4] {
        let reason = InferError::internal("worker\ndied").at("m:1", "worker-1");
        bus.dead_letter(DeadLetter { message: message.clone(), reason, attempts }).await.unwrap();
    }
    let stored = bus.dead_letter_after(0).await.unwrap().expect("a letter");
    assert_eq!((&stored.letter.message, stored.letter.attempts), (&message, 4));
    assert_eq!(stored.letter.reason.message, "worker\ndied");
    assert!(bus.dead_letter_after(stored.number).await.unwrap().is_none());
    // A letter that cannot be decoded is skipped.
    let raw = raw(&server).await;
    raw.publish("trireme.dead.m.1.x", "rubbish".into()).await.unwrap().await.unwrap();
    assert!(bus.dead_letter_after(stored.number).await.unwrap().is_none());
}

#[tokio::test]
async fn an_empty_store_is_complete_at_once() {
    let server = NatsServer::start();
    let (gateway, stage) = (connect(&server).await, connect_stage(&server).await);
    for bus in [&gateway, &stage] {
        assert_eq!(next(&mut bus.watch(Bucket::Models).await.unwrap()).await, Change::Complete);
    }
    // The same if the stream has nothing but a deletion.
    put(&*gateway, "k", "1").await;
    assert!(gateway.delete(Bucket::Models, "k", None).await.unwrap());
    let mut watch = stage.watch(Bucket::Models).await.unwrap();
    assert!(matches!(next(&mut watch).await, Change::Deleted { key, .. } if key == "k"));
    assert_eq!(next(&mut watch).await, Change::Complete);
}

#[tokio::test]
async fn a_watch_begins_anew_when_the_broker_was_away() {
    let mut server = NatsServer::start();
    let (gateway, stage) = (connect(&server).await, connect_stage(&server).await);
    put(&*gateway, "k", "1").await;
    let mut watch = stage.watch(Bucket::Models).await.unwrap();
    assert!(matches!(next(&mut watch).await, Change::Put(entry) if entry.key == "k"));
    assert_eq!(next(&mut watch).await, Change::Complete);
    // The values on disk are sent again, and `Complete` after them.
    server.stop();
    server.restart();
    assert!(matches!(next(&mut watch).await, Change::Put(entry) if entry.value == "1"));
    assert_eq!(next(&mut watch).await, Change::Complete);
    let revision = put(&*gateway, "k", "2").await;
    assert!(matches!(next(&mut watch).await, Change::Put(entry) if entry.revision == revision));
}

#[tokio::test]
async fn a_watch_goes_on_with_a_store_that_is_made_anew() {
    let server = NatsServer::start();
    let (gateway, stage) = (connect(&server).await, connect_stage(&server).await);
    let before = put(&*gateway, "k", "1").await;
    let mut watches = [stage.watch(Bucket::Models).await.unwrap(), gateway.watch(Bucket::Models).await.unwrap()];
    for watch in &mut watches {
        assert!(matches!(next(watch).await, Change::Put(entry) if entry.key == "k"));
        assert_eq!(next(watch).await, Change::Complete);
    }
    raw(&server).await.delete_stream("KV_trireme_models").await.unwrap();
    for watch in &mut watches {
        assert_eq!(next(watch).await, Change::Complete, "the new one is empty");
    }
    let after = put(&*stage, "k", "2").await;
    assert!(after > before, "{after} after {before}");
    for watch in &mut watches {
        assert!(matches!(next(watch).await, Change::Put(entry) if entry.revision == after));
    }

    // The value is written before the watch starts again.
    raw(&server).await.delete_stream("KV_trireme_models").await.unwrap();
    put(&*stage, "k", "3").await;
    for watch in &mut watches {
        while !matches!(next(watch).await, Change::Put(entry) if entry.value == "3") {}
        assert_eq!(next(watch).await, Change::Complete);
    }
}

#[tokio::test]
async fn parts_of_a_large_value_end_with_it() {
    let server = NatsServer::start();
    let bus = connect(&server).await;
    let raw = raw(&server).await;
    let messages_are = async |count: u64, why: &str| {
        within(why, async {
            while raw.get_stream("KV_trireme_models").await.unwrap().cached_info().state.messages != count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    };
    let large = |filler: u8| Bytes::from(vec![filler; LARGE]);
    let first = bus.put(Bucket::Models, "k", large(1), Some(0), None).await.unwrap();
    let parts = raw.get_stream("KV_trireme_models").await.unwrap().cached_info().state.messages;
    assert_eq!(parts, 25, "the value, and 24 MiB in parts of 1 MiB");
    bus.put(Bucket::Models, "k", large(2), Some(first), None).await.unwrap();
    messages_are(parts, "the end of what was replaced").await;
    let refused = bus.put(Bucket::Models, "k", large(3), Some(first), None).await;
    assert!(matches!(refused, Err(BusError::Conflict { .. })), "{refused:?}");
    messages_are(parts, "the end of what was refused").await;
    assert!(bus.get(Bucket::Models, "k").await.unwrap().unwrap().value == large(2));
    // Reads by key do not see the parts.
    let mut watch = bus.watch(Bucket::Models).await.unwrap();
    assert!(matches!(next(&mut watch).await, Change::Put(entry) if entry.value == large(2)));
    assert_eq!(next(&mut watch).await, Change::Complete);
    put(&*bus, "k", "small").await;
    messages_are(1, "the end of the parts").await;
    bus.put(Bucket::Models, "k", large(4), None, None).await.unwrap();
    assert!(bus.delete(Bucket::Models, "k", None).await.unwrap());
    messages_are(1, "all but the deletion").await;
}

/// A reader that is overtaken by a writer gets one of the two values, not an error.
#[tokio::test]
async fn a_large_value_can_be_read_while_it_is_replaced() {
    let server = NatsServer::start_with_max_payload(4096);
    let (writer, reader) = (connect(&server).await, connect(&server).await);
    let large = |filler: u8| Bytes::from(vec![filler; 40_000]);
    writer.put(Bucket::Models, "k", large(0), None, None).await.unwrap();
    let writing = async {
        for filler in 1..60 {
            writer.put(Bucket::Models, "k", large(filler), None, None).await.unwrap();
        }
    };
    let reading = async {
        loop {
            let value = reader.get(Bucket::Models, "k").await.unwrap().expect("a value").value;
            assert!(value == large(value[0]));
            if value[0] == 59 {
                return;
            }
        }
    };
    within("the last value", async { tokio::join!(writing, reading) }).await;
}

#[tokio::test]
async fn who_asks_to_announce_is_heard() {
    let server = NatsServer::start();
    let (gateway, worker) = (connect(&server).await, connect_stage(&server).await);
    let mut asked = worker.asked_to_announce().await.unwrap();
    let mut beats = gateway.heartbeats().await.unwrap();
    gateway.ask_to_announce("worker-1").await.unwrap();
    assert_eq!(within("a request", asked.recv()).await.as_deref(), Some("worker-1"));
    let beat = trireme_bus::Heartbeat {
        process: "worker-1".to_owned(),
        started: trireme_inference::UnixMicros(1),
        number: 2,
        entries: 1,
        since_sum: entry("x").since.0,
        in_flight: None,
        clock_offset_us: -3,
    };
    worker.beat(&beat).await.unwrap();
    assert_eq!(within("a heartbeat", beats.recv()).await, Some(beat));
}

/// Deleting takes no room, and gives bytes back at once.
#[tokio::test]
async fn values_are_deleted_from_a_broker_whose_store_is_full() {
    const JETSTREAM: &str = "jetstream { store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 8MB }\n";
    let server = NatsServer::start_with_files(&[("nats.conf", JETSTREAM)]);
    let bus = connect(&server).await;
    let large = Bytes::from(vec![7; 256 << 10]);
    let kept = bus.put(Bucket::Jobs, "kept", "x".into(), Some(0), None).await.unwrap();
    let mut parts = 0;
    let full = loop {
        match bus.put(Bucket::Objects, &format!("o.{parts}"), large.clone(), None, None).await {
            Ok(_) => parts += 1,
            Err(error) => break error,
        }
        assert!(parts < 100, "the limit is below that");
    };
    assert!(matches!(full, BusError::StoreFull { .. }), "{full:?}");
    let refused = bus.put(Bucket::Jobs, "new", "x".into(), Some(0), None).await.unwrap_err();
    assert!(matches!(refused, BusError::StoreFull { .. }), "{refused:?}");

    let wrong = bus.delete(Bucket::Jobs, "kept", Some(kept + 1)).await;
    assert!(!matches!(wrong, Ok(true)), "another revision: {wrong:?}");
    assert!(bus.delete(Bucket::Jobs, "kept", Some(kept)).await.unwrap());
    assert_eq!(bus.get(Bucket::Jobs, "kept").await.unwrap(), None);
    assert!(bus.delete(Bucket::Objects, "o.0", None).await.unwrap());
    assert!(!bus.delete(Bucket::Objects, "o.0", None).await.unwrap());
    assert_eq!(bus.get(Bucket::Objects, "o.0").await.unwrap(), None);
    assert!(bus.get(Bucket::Objects, "o.1").await.unwrap().is_some());
    bus.put(Bucket::Jobs, "new", "x".into(), Some(0), None).await.unwrap();
}
