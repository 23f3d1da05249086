//! Which records the index knows, how it counts them, and when it forgets them.

use std::ops::Range;

use serde_json::json;
use trireme_bus::InProcess;

use super::*;
use crate::record::{File, Purpose};

const TIME_TO_LIVE: Duration = Duration::from_secs(600);

fn index(bus: &InProcess) -> Arc<Index> {
    Arc::new(Index::new(Arc::new(bus.clone()), TIME_TO_LIVE, true))
}

fn ids(index: &Index, page: &Page, owner: &str) -> Vec<String> {
    index.ids(Kind::File, page, |client| owner.is_empty() || client == owner, 3)
}

#[test]
fn pages_are_in_order_and_one_owners() {
    let index = index(&InProcess::default());
    for n in 0..7u64 {
        let purpose = if n % 3 == 0 { Purpose::BatchOutput } else { Purpose::Batch };
        let client = if n % 2 == 0 { "a" } else { "b" };
        let file = File { created: 10 + n, ..File::new(client, "x", purpose, 0) };
        index.put(&format!("f{n}"), &Record::File(file), n);
    }
    index.put("u", &Record::File(File::new("a", "x", Purpose::Upload, 0)), 9);
    let page = Page { limit: 3, ..Page::default() };
    assert_eq!(ids(&index, &page, ""), ["f6", "f5", "f4"]);
    assert_eq!(ids(&index, &Page { after: Some("f4".to_owned()), ..page.clone() }, ""), ["f3", "f2", "f1"]);
    let ascending = Page { is_ascending: true, ..page.clone() };
    assert_eq!(ids(&index, &ascending, "a"), ["f0", "f2", "f4"]);
    assert_eq!(ids(&index, &Page { after: Some("f4".to_owned()), ..ascending.clone() }, "a"), ["f6"]);
    let outputs = Page { purpose: Some("batch_output".to_owned()), ..page.clone() };
    assert_eq!(ids(&index, &outputs, ""), ["f6", "f3", "f0"]);
    assert!(ids(&index, &Page { after: Some("none".to_owned()), ..page.clone() }, "").is_empty());
    index.remove("f5");
    assert_eq!(ids(&index, &page, ""), ["f6", "f4", "f3"]);
    assert!(index.ids(Kind::Batch, &page, |_| true, 3).is_empty());
}

/// A file of `a` with so many bytes.
fn file(bytes: u64, expires: Option<u64>, purpose: Purpose) -> Record {
    Record::File(File { bytes, expires, ..File::new("a", "x", purpose, 0) })
}

fn bytes(bytes: u64) -> Usage {
    Usage { files: 1, bytes, ..Usage::default() }
}

fn used(index: &Index) -> Usage {
    index.places().by_owner.get("a").copied().unwrap_or_default()
}

#[test]
fn room_is_promised_once_and_a_record_takes_it_over() {
    let index = index(&InProcess::default());
    let quotas = Quotas { bytes: Some(100), files: Some(2), ..Quotas::default() };
    let one = index.promise("1", "a", bytes(40), &quotas).unwrap();
    let two = index.promise("2", "a", bytes(40), &quotas).unwrap();
    assert!(index.promise("3", "a", bytes(0), &quotas).is_err(), "the files are promised");
    index.promise("3", "b", bytes(100), &quotas).expect("another owner has room of its own");
    assert!(one.grow(bytes(61), &quotas).is_err());
    one.grow(bytes(60), &quotas).unwrap();
    // The record is older than the last promise.
    index.put("1", &file(40, None, Purpose::Arriving), 1);
    assert_eq!(used(&index), Usage { files: 2, bytes: 100, ..Usage::default() });
    drop(two);
    assert_eq!(used(&index), bytes(60));
    index.put("1", &file(60, None, Purpose::Batch), 2);
    drop(one);
    assert_eq!(used(&index), bytes(60));
    // The watch shows what this gateway has replaced.
    index.put("1", &file(40, None, Purpose::Arriving), 1);
    assert_eq!(used(&index), bytes(60));
    index.remove("1");
    assert_eq!(used(&index), Usage::default());
    assert!(index.places().promises.is_empty() && index.places().by_owner.is_empty());
}

#[test]
fn the_same_record_is_promised_once_and_may_get_another_id() {
    let index = index(&InProcess::default());
    let quotas = Quotas { bytes: Some(100), files: Some(1), ..Quotas::default() };
    let mut first = index.promise("arrives", "a", bytes(50), &quotas).unwrap();
    index.put("arrives", &file(50, None, Purpose::Arriving), 1);
    let arrived = File { file: Some("keyed".to_owned()), ..File::new("a", "x", Purpose::Arriving, 0) };
    index.put("arrives", &Record::File(File { bytes: 50, ..arrived }), 2);
    first.move_to("keyed");
    assert_eq!(used(&index), bytes(50));
    let second = index.promise("keyed", "a", bytes(50), &quotas).expect("it is the same file");
    index.put("keyed", &file(50, None, Purpose::Batch), 3);
    assert_eq!(used(&index), bytes(50));
    drop(first);
    drop(second);
    assert_eq!(used(&index), bytes(50));
}

#[test]
fn records_leave_the_index_when_they_lapse() {
    let bus = InProcess::default();
    let index = index(&bus);
    let now = seconds(bus.now());
    let expires = Some(now + 100);
    index.put("output", &file(1, expires, Purpose::BatchOutput), 1);
    index.put("upload", &file(1, expires, Purpose::Upload), 2);
    let joined = File { file: Some("f".to_owned()), ..File::new("a", "x", Purpose::Joined, 0) };
    index.put("joined", &Record::File(File { expires, ..joined }), 3);
    let object = json!({"name": "", "parts": 0, "bytes": 0});
    let batch = json!({
        "owner": "g", "endpoint": "", "input": "", "metadata": {}, "state": "completed", "client": "a", "created": 0, "expires": 0,
        "counts": {"total": 0, "completed": 0, "failed": 0}, "ended": now - 500,
        "checkpoint": {"offset": 0, "lines": 0, "output": object, "errors": object},
        "usage": {"input": 0, "output": 0}, "ahead": {"total": 0, "completed": 0, "failed": 0}, "digest": [],
        "attempts": {"begun": 0, "by": ""}, "rows": {"body": {}},
    });
    index.put("batch", &Record::Batch(serde_json::from_value(batch).unwrap()), 4);
    // The driver deletes this one, which may be in use.
    index.put("file", &file(1, expires, Purpose::Batch), 5);
    let known = |index: &Index| ["output", "upload", "joined", "batch", "file"].map(|id| index.knows(id));
    bus.advance(Duration::from_secs(98));
    assert_eq!(known(&index), [true; 5]);
    bus.advance(Duration::from_secs(3));
    assert_eq!(known(&index), [false, false, false, false, true]);
    assert_eq!(used(&index), bytes(1));
    index.put("output", &file(1, expires, Purpose::BatchOutput), 1);
    assert!(!index.knows("output"), "the watch was behind");
    assert!(index.places().by_lapse.is_empty() && index.places().by_time.len() == 1);
}

/// Records that were deleted while the watch was broken have left no mark.
#[test]
fn records_that_a_watch_does_not_show_again_are_gone() {
    let index = index(&InProcess::default());
    let show = |revisions: Range<u64>| {
        for revision in revisions {
            index.see(revision);
            index.put(&format!("f{revision}"), &file(1, None, Purpose::Batch), revision);
        }
    };
    show(1..4);
    index.complete();
    show(4..6);
    // It starts again, breaks, and starts again.
    show(2..3);
    show(2..4);
    show(5..7);
    index.complete();
    let known = |index: &Index| (1..7).filter(|n| index.knows(&format!("f{n}"))).collect::<Vec<u64>>();
    assert_eq!(known(&index), [2, 3, 5, 6]);
    assert_eq!(used(&index).files, 4);
    // Nothing that was there is there any more.
    show(7..8);
    show(8..9);
    index.complete();
    index.complete();
    assert_eq!(known(&index), [] as [u64; 0]);
}
