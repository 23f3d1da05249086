//! Which of two entries for the same key counts.

use std::path::Path;
use std::time::Duration;

use trireme_inference::{Lane, ModelKey, UnixMicros};

use super::*;

fn state() -> State {
    let control = ControlOptions { mode: ControlMode::Explicit, ..ControlOptions::default() };
    State::new("g", Repository::default(), &control, false)
}

fn entry(state: ModelState, since: u64) -> WorkerEntry {
    WorkerEntry {
        worker: "w".to_owned(),
        service: "model".to_owned(),
        host: "h".to_owned(),
        model: ModelKey { name: "m".into(), version: 1 },
        state,
        config: r#"{"name":"m","backend":"identity"}"#.to_owned(),
        capacity: 1,
        bulk: true,
        content: None,
        since: UnixMicros(since),
    }
}

/// The bus brings an entry.
fn bring(state: &mut State, entry: WorkerEntry) -> bool {
    let revision = state.last_revision + 1;
    state.read(entry, revision, Instant::now())
}

fn is_ready(state: &State) -> bool {
    state.catalog().find("m", None).is_ok()
}

#[test]
fn what_was_taken_ahead_of_the_bus_is_not_undone_by_older_words() {
    let mut state = state();
    let (ready, unloading) = (entry(ModelState::Ready, 1), entry(ModelState::Unloading, 2));
    assert!(bring(&mut state, ready.clone()));
    assert!(state.take(unloading.clone()));
    assert!(!is_ready(&state));
    assert!(!bring(&mut state, ready.clone()), "a renewal that is late");
    assert!(!bring(&mut state, unloading), "no news");
    assert!(!is_ready(&state));

    // The model was loaded again, while the withdrawal of its earlier entry is still on its way.
    let again = entry(ModelState::Ready, 3);
    assert!(state.take(again.clone()));
    assert!(!state.delete(&again.key()));
    assert!(is_ready(&state));
    assert!(!bring(&mut state, again.clone()), "no news, but what follows is newer");
    assert!(state.delete(&again.key()));
    assert!(!is_ready(&state));
}

#[test]
fn what_the_bus_has_brought_already_is_not_taken_again() {
    let mut state = state();
    let failed = entry(ModelState::Unavailable("broken".to_owned()), 1);
    let ready = entry(ModelState::Ready, 2);
    assert!(bring(&mut state, ready.clone()));
    assert!(!state.take(failed), "an answer that is late");
    assert!(is_ready(&state));
    assert!(!state.take(ready.clone()));
    assert!(state.delete(&ready.key()), "the bus is not behind");
    // Entries of a worker without a clock, or whose clock was set back, count in the order in which they arrive.
    assert!(bring(&mut state, ready) && bring(&mut state, entry(ModelState::Unloading, 0)));
    assert!(!is_ready(&state));
}

#[test]
fn configurations_go_with_the_last_entry_that_has_them() {
    let mut state = state();
    let of = |worker: &str, config: &str| WorkerEntry {
        worker: worker.to_owned(),
        config: format!(r#"{{"name":"m","backend":"identity","maxBatchSize":{config}}}"#),
        ..entry(ModelState::Ready, 1)
    };
    bring(&mut state, of("a", "1"));
    bring(&mut state, of("b", "1"));
    let parsed = Arc::downgrade(&state.entries[&of("a", "1").key()].config);
    assert_eq!(parsed.strong_count(), 2, "shared");
    bring(&mut state, of("a", "2"));
    assert_eq!(parsed.strong_count(), 1);
    assert_eq!(state.entries[&of("b", "1").key()].whole(), of("b", "1"), "as it was written");
    let key = of("b", "1").key();
    let revision = state.entries[&key].revision;
    assert!(state.lapsed(&key, revision));
    assert_eq!(parsed.strong_count(), 0, "lapsed");
    let parsed = Arc::downgrade(&state.entries[&of("a", "2").key()].config);
    assert!(state.delete(&of("a", "2").key()));
    assert_eq!(parsed.strong_count(), 0, "dropped");
}

#[test]
fn a_stranger_that_has_gone_is_not_waited_for_where_a_repository_says_what_is_wanted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/repositories/basic");
    let stranger = entry(ModelState::Ready, 1);
    for (repository, waits) in [(Repository::default(), true), (Repository::open(&[folder]).unwrap(), false)] {
        let mut state = State::new("g", repository, &ControlOptions::default(), false);
        let before = state.catalog().unready().len();
        bring(&mut state, stranger.clone());
        assert!(is_ready(&state), "served while it is there");
        assert!(state.delete(&stranger.key()));
        let unready = state.catalog().unready();
        assert_eq!(unready.len() > before, waits, "{unready:?}");
        assert!(state.catalog().find("m", None).is_err());
    }
}

#[test]
fn made_up_models_do_not_add_up() {
    let mut state = State::new("g", Repository::default(), &ControlOptions::default(), false);
    let made_up = |version: usize| WorkerEntry {
        model: ModelKey { name: "m".into(), version: version as i64 },
        ..entry(ModelState::Ready, 1)
    };
    for version in 0..MAX_KNOWN {
        assert!(bring(&mut state, made_up(version)));
    }
    assert!(!bring(&mut state, made_up(MAX_KNOWN)), "one more");
    assert!(!bring(&mut state, made_up(0)), "no news of one that is there");
    let keys: Vec<_> = state.entries.keys().cloned().collect();
    assert!(keys.iter().all(|key| state.delete(key)));
    assert!(state.owners.is_empty());
    let another = WorkerEntry { model: ModelKey { name: "n".into(), version: 1 }, ..entry(ModelState::Ready, 1) };
    assert!(bring(&mut state, another), "what has gone made room");
}

const SECOND: Duration = Duration::from_secs(1);

/// A heartbeat of a process with this number of entries, all written at time 1.
fn beat(state: &mut State, process: &str, number: u64, entries: u32, now: Instant) -> bool {
    let heartbeat = Heartbeat {
        process: process.to_owned(),
        started: UnixMicros(1),
        number,
        entries,
        since_sum: u64::from(entries),
        in_flight: None,
        clock_offset_us: 0,
    };
    state.hear(heartbeat, now)
}

fn of(worker: &str, version: i64) -> WorkerEntry {
    let model = ModelKey { name: "m".into(), version };
    WorkerEntry { worker: worker.to_owned(), model, ..entry(ModelState::Ready, 1) }
}

#[test]
fn entries_of_a_silent_worker_lapse_when_the_store_has_lost_them() {
    let (mut state, start) = (state(), Instant::now());
    state.read(of("gone", 1), 1, start);
    state.read(of("gone", 2), 2, start);
    state.read(of("alive", 1), 3, start);
    let late = start + Heartbeat::TIME_TO_LIVE + SECOND;
    beat(&mut state, "g", 1, 0, start);
    beat(&mut state, "alive", 1, 1, late);
    assert_eq!(state.lapsing(late, 9), [], "this process may hear nobody");
    beat(&mut state, "g", 2, 0, late);
    assert_eq!(state.lapsing(late, 9), [], "it hears again");
    let late = late + Heartbeat::TIME_TO_LIVE + SECOND;
    for n in 0..5 {
        beat(&mut state, "g", 3 + n, 0, late - (8 - 2 * n as u32) * SECOND);
    }
    beat(&mut state, "alive", 2, 1, late);
    let (first, second) = ((of("gone", 1).key(), Some(1)), (of("gone", 2).key(), Some(2)));
    assert_eq!(state.lapsing(late, 1), std::slice::from_ref(&first), "no more at a time than may be");
    assert_eq!(state.lapsing(late, 9), std::slice::from_ref(&second));
    assert_eq!(state.lapsing(late, 9), [], "both are being deleted");
    state.stays(&first.0, late);
    assert!(state.entries.contains_key(&first.0), "the store does not answer");
    assert_eq!(state.lapsing(late + SECOND, 9), []);
    assert_eq!(state.lapsing(late + 2 * SECOND, 9), std::slice::from_ref(&first), "tried again");
    // Its worker has come back meanwhile.
    assert!(!state.find(of("gone", 1), 7, late));
    assert!(!state.lapsed(&first.0, first.1), "another revision");
    assert!(state.lapsed(&second.0, second.1));
    assert!(state.entries.contains_key(&first.0) && !state.entries.contains_key(&second.0));
    assert_eq!(state.lapsing(late + 3 * SECOND, 9), [], "it has its time anew");
}

#[test]
fn what_the_store_has_lost_is_asked_for() {
    let (mut state, start) = (state(), Instant::now());
    let asked = |state: &mut State, from: u64| -> bool {
        (from..from + 5).filter(|&n| beat(state, "w", n, 2, start + 2 * SECOND * n as u32)).count() > 0
    };
    state.read(of("w", 1), 11, start);
    state.read(of("w", 2), 12, start);
    state.complete();
    assert!(!asked(&mut state, 0), "all is there");
    // The store is read again, and has one of the two.
    state.read(of("w", 2), 12, start);
    state.complete();
    assert!(is_ready(&state) && asked(&mut state, 5));
    state.read(of("w", 1), 13, start);
    assert!(!asked(&mut state, 10), "written again");
    // Now it is empty.
    state.complete();
    assert!(is_ready(&state) && asked(&mut state, 20));
    state.read(of("w", 1), 1, start);
    state.read(of("w", 2), 2, start);
    state.complete();
    assert!(!asked(&mut state, 30));
}

#[test]
fn entries_of_a_worker_that_had_the_same_name_lapse() {
    let (mut state, start) = (state(), Instant::now());
    state.read(of("w", 1), 1, start);
    state.read(of("w", 2), 2, start);
    beat(&mut state, "g", 1, 0, start + 10 * SECOND);
    let asked: Vec<_> = (0..5).filter(|n| beat(&mut state, "w", *n, 1, start + 2 * SECOND * *n as u32)).collect();
    assert_eq!(asked, [2]);
    let now = start + 10 * SECOND;
    assert_eq!(state.lapsing(now, 9), [], "it has not written its own yet");
    state.read(of("w", 1), 3, now);
    beat(&mut state, "w", 5, 1, now);
    assert_eq!(state.lapsing(now, 9), [(of("w", 2).key(), Some(2))]);
}

#[test]
fn bulk_requests_go_to_the_bulk_lane_where_a_worker_takes_from_it() {
    let mut state = state();
    let step = ModelKey { name: "m".into(), version: 1 };
    let lane = |state: &State| state.catalog().lane_at(&step, Lane::Bulk);
    let of =
        |worker: &str, bulk, since| WorkerEntry { worker: worker.to_owned(), bulk, ..entry(ModelState::Ready, since) };
    bring(&mut state, of("older", false, 1));
    assert_eq!((lane(&state), state.catalog().lane_at(&step, Lane::Live)), (Lane::Live, Lane::Live));
    bring(&mut state, of("newer", true, 2));
    assert_eq!(lane(&state), Lane::Bulk, "one of them is enough");
    state.delete(&of("newer", true, 2).key());
    assert_eq!(lane(&state), Lane::Live);
    state.delete(&of("older", false, 1).key());
    assert_eq!(lane(&state), Lane::Bulk, "requests wait for the next worker");
}

#[test]
fn queues_are_wanted_for_what_workers_serve_or_are_about_to_serve() {
    let mut state = state();
    let of = |worker: &str, model: &str, status: ModelState, batching: &str| WorkerEntry {
        worker: worker.to_owned(),
        model: ModelKey { name: model.into(), version: 1 },
        config: format!(r#"{{"name":"{model}","backend":"identity","max_batch_size":8{batching}}}"#),
        capacity: 4,
        ..entry(status, 1)
    };
    let limited = r#","dynamic_batching":{"default_queue_policy":{"max_queue_size":3}}"#;
    let levels = r#","dynamic_batching":{"priority_levels":2,"default_priority_level":1}"#;
    // Each level with a policy has a queue of its own, and so have those between them together.
    let policies: Vec<String> =
        (100..700).map(|number| format!(r#""{}":{{"max_queue_size":1}}"#, 2 * number)).collect();
    let policies = policies.join(",");
    let many = &format!(
        r#","dynamic_batching":{{"priority_levels":5000,"default_priority_level":1,"priority_queue_policy":{{{policies}}}}}"#
    );
    let loading = || ModelState::Loading("waiting for its queue".to_owned());
    for entry in [
        of("w", "limited", loading(), limited),
        of("v", "limited", ModelState::Ready, limited),
        of("w", "plain", ModelState::Ready, ""),
        of("v", "plain", ModelState::Ready, levels),
        of("w", "broken", ModelState::Unavailable("why".to_owned()), ""),
        of("w", "many", ModelState::Ready, many),
    ] {
        bring(&mut state, entry);
    }
    let queues = state.queues();
    let of = |name: &str| &queues[&ModelKey { name: name.into(), version: 1 }];
    assert_eq!(queues.len(), 2, "{queues:?}");
    assert_eq!((of("limited").in_hand, of("limited").levels[&0].max_waiting), (8, Some(3)));
    assert_eq!(of("plain").levels.keys().copied().collect::<Vec<_>>(), [0, 1, 2], "during a change workers have both");
    assert_eq!(of("plain").in_hand, 0, "nothing is limited");
}
