use trireme_inference::ModelKey;

use super::*;
use crate::registry::tests;

/// A worker's entry for model `m` of folder `f`.
fn entry(worker: &str, digest: &str, since: u64) -> WorkerEntry {
    of("m", worker, digest, since)
}

fn of(model: &str, worker: &str, digest: &str, since: u64) -> WorkerEntry {
    let content = Content {
        of: "f".to_owned(),
        digest: digest.to_owned(),
        space: None,
        equivalences: Vec::new(),
        files_at: None,
        yields_to: None,
    };
    WorkerEntry { content: Some(content), since: UnixMicros(since), ..tests::entry(worker, model) }
}

fn yielding(entry: WorkerEntry, number: u64) -> WorkerEntry {
    let content = entry.content.map(|content| Content { yields_to: Some(number), ..content });
    WorkerEntry { content, ..entry }
}

fn chosen(digest: &str, number: u64) -> Choices {
    let mut choices = Choices::default();
    let choice = ContentChoice { of: "f".to_owned(), version: 1, digest: digest.to_owned(), number };
    choices.take(choice, 10 + number, 0, true);
    choices
}

fn ask(entry: &WorkerEntry, switch: bool, choices: &Choices, all: &[&WorkerEntry]) -> Judgement {
    judge(entry, switch, choices, all.iter().filter_map(|entry| Rival::of(entry)))
}

/// The digest and the expected revision of a choice that is to be made.
fn choice(judgement: Judgement) -> (String, u64) {
    match judgement {
        Judgement::Choose(choice, revision) => (choice.digest, revision),
        other => panic!("expected a choice, found {other:?}"),
    }
}

fn is_refused(judgement: &Judgement) -> bool {
    matches!(judgement, Judgement::Pass(Verdict::Yield { .. }))
}

const SERVES: Judgement = Judgement::Pass(Verdict::Serve);

#[test]
fn the_first_content_is_served_and_another_one_waits_for_it() {
    let (old, new) = (entry("a", "x", 1), entry("b", "y", 2));
    assert_eq!(choice(ask(&old, false, &Choices::default(), &[&old])), ("x".to_owned(), 0));
    let first = chosen("x", 5);
    assert_eq!(ask(&old, false, &first, &[&old]), SERVES);
    let refused = ask(&new, false, &first, &[&old, &new]);
    let Judgement::Pass(Verdict::Yield { number: 5, reason }) = &refused else { panic!("{refused:?}") };
    assert!(reason.contains("other files, flags or packages (y) under the name 'f' version 1 than a (x)"), "{reason}");
    assert_eq!(choice(ask(&new, false, &first, &[&new])), ("y".to_owned(), 15));
}

#[test]
fn models_of_a_folder_change_together() {
    let (tokenizer, model, new) =
        (of("f_tokenizer", "a", "x", 1), of("f_model", "b", "x", 1), of("f_tokenizer", "c", "y", 2));
    let first = chosen("x", 5);
    assert!(is_refused(&ask(&new, false, &first, &[&tokenizer, &model, &new])));
    assert!(is_refused(&ask(&new, false, &first, &[&model, &new])), "its old model would get the new one's tokens");
    let other_version = WorkerEntry { model: ModelKey { name: "f_model".into(), version: 2 }, ..model };
    assert_eq!(choice(ask(&new, false, &first, &[&other_version, &new])).0, "y");
}

#[test]
fn a_switch_waits_until_the_others_have_yielded_to_it() {
    let (old, new) = (entry("a", "x", 1), entry("b", "y", 2));
    assert_eq!(choice(ask(&new, true, &chosen("x", 5), &[&old, &new])), ("y".to_owned(), 15));
    let second = chosen("y", 6);
    let waits = ask(&new, false, &second, &[&old, &new]);
    assert!(
        matches!(&waits, Judgement::Pass(Verdict::Wait { reason }) if reason.contains("until a finish")),
        "{waits:?}"
    );
    assert!(is_refused(&ask(&old, false, &second, &[&old, &new])));
    let earlier = yielding(old.clone(), 4);
    assert!(matches!(ask(&new, false, &second, &[&earlier, &new]), Judgement::Pass(Verdict::Wait { .. })));
    assert_eq!(ask(&new, false, &second, &[&yielding(old, 6), &new]), SERVES);
}

#[test]
fn a_store_that_lost_the_choice_keeps_what_was_served() {
    let (old, new) = (entry("a", "x", 1), yielding(entry("b", "y", 0), 5));
    let mut lost = chosen("x", 5);
    lost.lose(|pass| pass != 1);
    assert_eq!(lost.len(), 0);
    assert_eq!(choice(ask(&new, false, &lost, &[&old, &new])).0, "x");
}

#[test]
fn workers_are_told_while_something_is_contested() {
    let (old, new) = (entry("a", "x", 1), entry("b", "y", 2));
    let told =
        |all: &[&WorkerEntry], choices| contested(choices, all.iter().filter_map(|entry| Rival::of(entry))).len();
    let first = chosen("x", 5);
    assert_eq!(told(&[&old], &first), 0);
    assert_eq!(told(&[&old, &new], &first), 1, "one has not yielded");
    let waits = yielding(new, 5);
    assert_eq!(told(&[&old, &waits], &first), 0);
    assert_eq!(told(&[&waits], &first), 1, "it may take over");
    assert_eq!(told(&[], &first), 0);
}

#[test]
fn what_has_no_digest_is_not_compared() {
    let (old, new) = (WorkerEntry { content: None, ..entry("a", "x", 1) }, entry("b", "y", 2));
    assert_eq!(ask(&old, true, &chosen("y", 5), &[&old, &new]), SERVES);
    assert_eq!(ask(&new, false, &chosen("y", 5), &[&old, &new]), SERVES);
}
