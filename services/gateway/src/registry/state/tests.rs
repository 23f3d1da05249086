//! Which of two words about a model counts.

use std::path::Path;

use trireme_inference::{ModelKey, UnixMicros};

use super::*;

fn state() -> State {
    let control = ControlOptions { mode: ControlMode::Explicit, ..ControlOptions::default() };
    State::new(Repository::default(), &control, false)
}

fn entry(state: ModelState, since: u64) -> WorkerEntry {
    WorkerEntry {
        worker: "w".to_owned(),
        service: "model".to_owned(),
        host: "h".to_owned(),
        model: ModelKey { name: "m".to_owned(), version: 1 },
        state,
        config: r#"{"name":"m","backend":"identity"}"#.to_owned(),
        capacity: 1,
        since: UnixMicros(since),
    }
}

fn is_ready(state: &State) -> bool {
    state.catalog().find("m", None).is_ok()
}

#[test]
fn what_was_taken_ahead_of_the_bus_is_not_undone_by_older_words() {
    let mut state = state();
    let (ready, unloading) = (entry(ModelState::Ready, 1), entry(ModelState::Unloading, 2));
    assert!(state.put(ready.clone(), false));
    assert!(state.put(unloading.clone(), true));
    assert!(!is_ready(&state));
    assert!(!state.put(ready.clone(), false), "a renewal that is late");
    assert!(!state.put(unloading, false), "no news");
    assert!(!is_ready(&state));

    // Loaded again, while it still comes that the one before was taken back.
    let again = entry(ModelState::Ready, 3);
    assert!(state.put(again.clone(), true));
    assert!(!state.delete(&again.key()));
    assert!(is_ready(&state));
    assert!(!state.put(again.clone(), false), "no news, but what follows is newer");
    assert!(state.delete(&again.key()));
    assert!(!is_ready(&state));
}

#[test]
fn what_the_bus_has_brought_already_is_not_taken_again() {
    let mut state = state();
    let failed = entry(ModelState::Unavailable("broken".to_owned()), 1);
    let ready = entry(ModelState::Ready, 2);
    assert!(state.put(ready.clone(), false));
    assert!(!state.put(failed, true), "an answer that is late");
    assert!(is_ready(&state));
    assert!(!state.put(ready.clone(), true));
    assert!(state.delete(&ready.key()), "the bus is not behind");
    // A worker that has no clock, or one that went back, is believed in the order it speaks.
    assert!(state.put(ready, false) && state.put(entry(ModelState::Unloading, 0), false));
    assert!(!is_ready(&state));
}

#[test]
fn time_in_which_the_process_stood_still_does_not_count() {
    let mut state = state();
    let ready = entry(ModelState::Ready, 1);
    state.put(ready.clone(), false);
    let before = state.entries[&ready.key()].renewed;
    state.excuse(Duration::from_secs(3600));
    let excused = state.entries[&ready.key()].renewed;
    assert!(excused >= before && excused <= Instant::now(), "renewed now, and not in an hour");
    let past = excused.checked_sub(Duration::from_secs(5)).expect("clocks did not start just now");
    state.entries.values_mut().for_each(|live| live.renewed = past);
    state.excuse(Duration::from_secs(2));
    assert_eq!(state.entries[&ready.key()].renewed, past + Duration::from_secs(2));
}

#[test]
fn configurations_go_with_the_last_entry_that_has_them() {
    let mut state = state();
    let of = |worker: &str, config: &str| WorkerEntry {
        worker: worker.to_owned(),
        config: format!(r#"{{"name":"m","backend":"identity","maxBatchSize":{config}}}"#),
        ..entry(ModelState::Ready, 1)
    };
    state.put(of("a", "1"), false);
    state.put(of("b", "1"), false);
    let parsed = Arc::downgrade(&state.entries[&of("a", "1").key()].config);
    assert_eq!(parsed.strong_count(), 2, "shared");
    state.put(of("a", "2"), false);
    assert_eq!(parsed.strong_count(), 1);
    let key = of("b", "1").key();
    state.entries.values_mut().for_each(|live| {
        if live.entry.key() == key {
            live.renewed =
                live.renewed.checked_sub(WorkerEntry::TIME_TO_LIVE * 2).expect("a clock that runs for a while");
        }
    });
    assert!(state.sweep());
    assert_eq!(parsed.strong_count(), 0, "lapsed");
    let parsed = Arc::downgrade(&state.entries[&of("a", "2").key()].config);
    assert!(state.delete(&of("a", "2").key()));
    assert_eq!(parsed.strong_count(), 0, "taken back");
}

#[test]
fn a_stranger_that_has_gone_is_not_waited_for_where_a_repository_says_what_is_wanted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/repositories/basic");
    let stranger = entry(ModelState::Ready, 1);
    for (repository, waits) in [(Repository::default(), true), (Repository::open(&[folder]).unwrap(), false)] {
        let mut state = State::new(repository, &ControlOptions::default(), false);
        let before = state.catalog().unready().len();
        state.put(stranger.clone(), false);
        assert!(is_ready(&state), "served while it is there");
        assert!(state.delete(&stranger.key()));
        let unready = state.catalog().unready();
        assert_eq!(unready.len() > before, waits, "{unready:?}");
        assert!(state.catalog().find("m", None).is_err());
    }
}

#[test]
fn made_up_models_do_not_add_up() {
    let mut state = State::new(Repository::default(), &ControlOptions::default(), false);
    let made_up = |version: usize| WorkerEntry {
        model: ModelKey { name: "m".to_owned(), version: version as i64 },
        ..entry(ModelState::Ready, 1)
    };
    for version in 0..MAX_KNOWN {
        assert!(state.put(made_up(version), false));
    }
    assert!(!state.put(made_up(MAX_KNOWN), false), "one more");
    assert!(!state.put(made_up(0), false), "no news of one that is there");
    state.entries.clear();
    let another = WorkerEntry { model: ModelKey { name: "n".to_owned(), version: 1 }, ..entry(ModelState::Ready, 1) };
    assert!(state.put(another, false), "what has gone made room");
}
