//! Parts are read once and in order. A reader that does not read costs the others nothing.

use proptest::prelude::*;
use trireme_inference::{Ledger, Tensor, UnixMicros};

use super::*;
use crate::Output;

fn part(sequence: u32, last: bool) -> Reply {
    Reply {
        request_id: "r".into(),
        gateway: "g".into(),
        sequence,
        last,
        outcome: Ok(Output::default()),
        ledger: Ledger::default(),
        sent_at: UnixMicros(0),
    }
}

fn error(sequence: u32) -> Reply {
    Reply { outcome: Err(InferError::internal("failed")), ..part(sequence, true) }
}

fn drain(replies: &mut Replies) -> Vec<(u32, bool)> {
    std::iter::from_fn(|| replies.take()).map(|reply| (reply.sequence, reply.outcome.is_ok())).collect()
}

proptest! {
    /// In whatever order and however often parts arrive, each is read once and in order.
    #[test]
    fn parts_are_read_in_order(
        count in 1u32..40,
        arrivals in proptest::collection::vec((any::<u32>(), any::<bool>()), 0..200),
    ) {
        let mut replies = Replies::default();
        let mut read = Vec::new();
        let all = arrivals.iter().map(|&(number, take)| (number % count, take)).chain((0..count).map(|n| (n, false)));
        for (number, take) in all {
            prop_assert_eq!(replies.put(part(number, number + 1 == count)), None);
            if take {
                read.extend(replies.take().map(|reply| reply.sequence));
            }
        }
        read.extend(drain(&mut replies).into_iter().map(|(sequence, _)| sequence));
        prop_assert_eq!(read, (0..count).collect::<Vec<_>>());
        prop_assert_eq!(replies.put(part(count, false)), None);
        prop_assert_eq!(replies.take(), None, "nothing follows the last one");
    }
}

#[test]
fn an_error_comes_after_the_parts_before_it_and_ends_the_answer() {
    let mut replies = Replies::default();
    assert_eq!(replies.put(error(2)), None);
    assert_eq!(replies.put(part(1, false)), None);
    assert_eq!(drain(&mut replies), []);
    assert_eq!(replies.put(part(0, false)), None);
    assert_eq!(drain(&mut replies), [(0, true), (1, true), (2, false)]);
    assert_eq!(replies.put(part(3, true)), None);
    assert_eq!(drain(&mut replies), []);
}

#[test]
fn an_error_of_a_worker_that_knows_of_no_parts_ends_the_answer_too() {
    let mut replies = Replies::default();
    assert_eq!(replies.put(part(0, false)), None);
    assert_eq!(replies.put(part(1, false)), None);
    assert_eq!(drain(&mut replies), [(0, true), (1, true)]);
    assert_eq!(replies.put(part(2, false)), None);
    assert_eq!(replies.put(error(0)), None);
    assert_eq!(replies.put(error(0)), None);
    assert_eq!(drain(&mut replies), [(2, true), (3, false)], "after the parts that have come");
}

#[test]
fn a_reader_that_is_too_far_behind_gets_an_error_and_nothing_is_kept() {
    let mut replies = Replies::default();
    for sequence in 0..BACKLOG as u32 {
        assert_eq!(replies.put(part(sequence, false)), None);
    }
    assert_eq!(replies.put(part(BACKLOG as u32, false)).as_deref(), Some("r"));
    assert_eq!(replies.put(part(BACKLOG as u32 + 1, false)), None, "said once");
    assert_eq!(replies.kept.len(), 1);
    assert_eq!(drain(&mut replies), [(0, false)]);

    let mut replies = Replies::default();
    // Leaves room for one reply without tensors.
    let size = BACKLOG_BYTES - 1000;
    let heavy = Tensor::from_values("x", [size as i64], vec![0u8; size]).unwrap();
    let heavy = |sequence| Reply {
        outcome: Ok(Output { tensors: vec![heavy.clone()], ..Output::default() }),
        ..part(sequence, false)
    };
    assert_eq!(replies.put(heavy(0)), None);
    assert_eq!(drain(&mut replies), [(0, true)], "a reply by itself may be of any size");
    assert_eq!(replies.put(heavy(1)), None);
    assert_eq!(replies.put(part(2, false)), None);
    assert_eq!(replies.put(heavy(3)).as_deref(), Some("r"));
    assert_eq!(drain(&mut replies), [(1, false)]);
}

#[test]
fn a_place_ends_with_its_deadline_though_nobody_looks() {
    let inbox = Inbox::new("g");
    let model = trireme_inference::ModelKey { name: "m".into(), version: 1 };
    let request = |id: &str, deadline| WorkMessage {
        request_id: id.into(),
        deadline: UnixMicros(deadline),
        ..crate::fixtures::full_message(&model)
    };
    let (overdue, _patient) = (inbox.expect(&request("r", 1000)), inbox.expect(&request("s", 1001)));
    assert_eq!(inbox.dispatch(part(0, false)), None);
    assert_ne!(inbox.kept.load(Ordering::Relaxed), 0);
    assert_eq!(inbox.end_overdue(UnixMicros(999)), [""; 0]);
    assert_eq!(inbox.end_overdue(UnixMicros(1000)), ["r"]);
    assert_eq!(inbox.waiting(), 1);
    assert_eq!(inbox.dispatch(part(1, true)), None, "nobody waits for it");
    let told = overdue.waiter.replies.lock().take().unwrap();
    assert_eq!(told.outcome.unwrap_err().message, "Request timeout expired");
    assert!(told.last && overdue.waiter.replies.lock().take().is_none());
    assert_eq!(inbox.kept.load(Ordering::Relaxed), 0);
}

#[test]
fn what_is_kept_for_all_readers_is_bounded() {
    let all = Arc::new(AtomicUsize::new(KEPT_BYTES - 1000));
    let replies = || Replies::counted_in(all.clone());
    let (mut one, mut two) = (replies(), replies());
    assert_eq!(one.put(part(0, false)), None);
    let mut heavy = part(0, true);
    let tensor = Tensor::from_values("x", [1000], vec![0u8; 1000]).unwrap();
    heavy.outcome = Ok(Output { tensors: vec![tensor], ..Output::default() });
    assert_eq!(two.put(heavy.clone()).as_deref(), Some("r"));
    assert_eq!(drain(&mut two), [(0, false)]);
    assert_eq!(drain(&mut one), [(0, true)], "others keep what they have");
    assert_eq!(one.put(part(1, false)), None);
    drop(one);
    assert_eq!(all.load(Ordering::Relaxed), KEPT_BYTES - 1000, "nothing is forgotten");
}
