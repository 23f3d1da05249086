//! Properties of last-value stores.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::setup::Setup;
use trireme_bus::fixtures::{LARGE, unique, within};
use trireme_bus::{Bucket, BusError, Change, Entry, escape_token};

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub async fn the_last_value_of_a_key_is_kept(setup: &Setup) {
    let (one, two) = (setup.connect().await, setup.connect().await);
    let key = escape_token(&unique("kept"));
    assert_eq!(within("a look", two.get(Bucket::Models, &key)).await.expect("a look"), None);
    let first = within("a write", one.put(Bucket::Models, &key, bytes("1"), Some(0), None)).await.expect("written");
    let taken = one.put(Bucket::Models, &key, bytes("other"), Some(0), None).await;
    assert!(matches!(taken, Err(BusError::Conflict { .. })), "there is a value: {taken:?}");
    let second = one.put(Bucket::Models, &key, bytes("2"), Some(first), None).await.expect("written over");
    assert!(second > first);
    let late = two.put(Bucket::Models, &key, bytes("late"), Some(first), None).await;
    assert!(matches!(late, Err(BusError::Conflict { .. })), "another revision: {late:?}");
    let third = two.put(Bucket::Models, &key, bytes("3"), None, None).await.expect("written whatever was there");
    let found = two.get(Bucket::Models, &key).await.expect("a look").expect("a value");
    assert_eq!((found.key, found.value, found.revision), (key.clone(), bytes("3"), third));
    assert!(found.at.0 > 0);
    let next = one.next(Bucket::Models, third - 1).await.expect("a look").expect("a value");
    assert_eq!((next.revision, next.value), (third, bytes("3")));

    assert!(matches!(one.delete(Bucket::Models, &key, Some(second)).await, Err(BusError::Conflict { .. })));
    assert!(one.delete(Bucket::Models, &key, Some(third)).await.expect("deleted"));
    assert!(!one.delete(Bucket::Models, &key, None).await.expect("a look"), "it is gone");
    assert_eq!(two.get(Bucket::Models, &key).await.expect("a look"), None);
    let again = two.put(Bucket::Models, &key, bytes("4"), Some(0), None).await.expect("there is no value");
    assert!(again > third);
}

pub async fn a_watcher_sees_what_is_there_and_then_every_change(setup: &Setup) {
    let (writer, reader) = (setup.connect().await, setup.connect().await);
    let key = escape_token(&unique("watched"));
    let first = writer.put(Bucket::Models, &key, bytes("1"), None, None).await.expect("written");
    let mut watch = reader.watch(Bucket::Models).await.expect("a watch");
    let (mut seen, mut complete) = (None, false);
    while !complete {
        match within("what is there", watch.recv()).await.expect("the watch stays open") {
            Change::Complete => complete = true,
            Change::Put(entry) if entry.key == key => seen = Some((entry.value, entry.revision)),
            _ => {}
        }
    }
    assert_eq!(seen, Some((bytes("1"), first)));
    let second = writer.put(Bucket::Models, &key, bytes("2"), None, None).await.expect("written");
    match next(&mut watch, &key).await {
        Change::Put(Entry { value, revision, .. }) => assert_eq!((value, revision), (bytes("2"), second)),
        other => panic!("{other:?}"),
    }
    assert!(writer.delete(Bucket::Models, &key, None).await.expect("deleted"));
    match next(&mut watch, &key).await {
        Change::Deleted { revision, .. } => assert!(revision > second),
        other => panic!("{other:?}"),
    }
}

pub async fn a_value_lapses(setup: &Setup) {
    let bus = setup.connect().await;
    let key = escape_token(&unique("lapses"));
    let lapse = Some(Duration::from_secs(1));
    within("a write", bus.put(Bucket::Attempts, &key, bytes("1"), None, lapse)).await.expect("written");
    within("its end", async {
        while bus.get(Bucket::Attempts, &key).await.expect("a look").is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

pub async fn a_large_value_passes(setup: &Setup) {
    let (one, two) = (setup.connect().await, setup.connect().await);
    let key = escape_token(&unique("large"));
    let mut watch = two.watch(Bucket::Models).await.expect("a watch");
    for filler in [1u8, 2] {
        let value = Bytes::from(vec![filler; LARGE]);
        within("a write", one.put(Bucket::Models, &key, value.clone(), None, None)).await.expect("written");
        let found = within("a look", two.get(Bucket::Models, &key)).await.expect("a look").expect("a value");
        assert!(found.value == value, "{} bytes", found.value.len());
        match next(&mut watch, &key).await {
            Change::Put(entry) => assert!(entry.value == value, "{} bytes", entry.value.len()),
            other => panic!("{other:?}"),
        }
    }
}

/// The next change of a key; other tests write as well.
async fn next(watch: &mut mpsc::Receiver<Change>, key: &str) -> Change {
    loop {
        let change = within("a change", watch.recv()).await.expect("the watch stays open");
        match &change {
            Change::Put(entry) if entry.key == key => return change,
            Change::Deleted { key: deleted, .. } if deleted == key => return change,
            _ => {}
        }
    }
}
