//! Tests of the room of instances, with and without a known pace.

use super::*;

const MS: Duration = Duration::from_millis(1);

fn intake(instances: usize, batch: usize) -> Intake {
    Intake::new(instances, Appetite { batch, look_ahead: 20 * MS })
}

/// An intake with idle instances, and runs that took `took` with `requests` requests each.
fn paced(instances: usize, batch: usize, took: Duration, requests: usize) -> (Intake, Instant) {
    let (mut intake, start) = (intake(instances, batch), Instant::now());
    let id = intake.begin(1.0, start);
    intake.end(id, requests, start + took);
    (intake, start + took)
}

#[test]
fn idle_instances_want_a_batch_each_whatever_their_pace() {
    let now = Instant::now();
    assert_eq!(intake(2, 4).room(0, now), Room::Now(8));
    assert_eq!(intake(2, 4).room(7, now), Room::Now(1));
    assert_eq!(intake(2, 4).room(8, now), Room::None);
    let (slow, now) = paced(2, 4, 1000 * MS, 1);
    assert_eq!(slow.room(0, now), Room::Now(8), "runs of one say nothing of runs of four");
}

#[test]
fn nothing_is_taken_for_an_instance_of_unknown_pace_that_is_busy() {
    let (mut intake, now) = (intake(2, 4), Instant::now());
    intake.begin(1.0, now);
    assert_eq!(intake.room(0, now + 1000 * MS), Room::Now(4), "for the other one");
    intake.begin(1.0, now);
    assert_eq!(intake.room(0, now + 1000 * MS), Room::None);
}

#[test]
fn a_slow_instance_takes_its_next_batch_shortly_before_it_is_free() {
    let (mut intake, now) = paced(1, 4, 200 * MS, 4);
    intake.begin(1.0, now);
    let Room::At(at) = intake.room(0, now) else { panic!("room comes with time") };
    assert!(at >= now + 180 * MS && at < now + 181 * MS, "{:?}", at - now);
    assert_eq!(intake.room(0, at), Room::Now(4));
    assert_eq!(intake.room(4, at), Room::None, "one batch is enough for it");
    assert_eq!(intake.room(0, now + 1000 * MS), Room::Now(4), "a run that takes longer than expected");
}

#[test]
fn a_fast_instance_takes_what_it_can_begin_within_the_horizon() {
    let (mut intake, now) = paced(1, 1, MS, 1);
    assert_eq!(intake.room(0, now), Room::Now(20));
    intake.begin(1.0, now);
    assert_eq!(intake.room(0, now), Room::Now(19));
    let Room::At(at) = intake.room(18, now) else { panic!("room comes with time") };
    assert!(at > now && intake.room(18, at) == Room::Now(2), "a portion, {:?}", at - now);
}

#[test]
fn background_instances_choose_among_more() {
    let (mut background, now) = (intake(1, 1).for_background(), Instant::now());
    let id = background.begin(1.0, now);
    background.end(id, 1, now + MS);
    assert_eq!(background.room(0, now + MS), Room::Now(100), "five times 20 ms, at 1 ms each");
}

#[test]
fn costs_tell_when_a_run_ends() {
    let (mut intake, now) = paced(1, 1, 100 * MS, 1);
    intake.begin(3.0, now);
    let Room::At(at) = intake.room(0, now) else { panic!("room comes with time") };
    assert!(at >= now + 280 * MS && at < now + 281 * MS, "{:?}", at - now);
}

#[test]
fn the_pace_follows_and_what_was_not_executed_does_not_count() {
    let (mut intake, mut now) = paced(1, 1, 100 * MS, 1);
    let id = intake.begin(1.0, now);
    intake.end(id, 0, now + MS);
    assert_eq!(intake.pace.run(1.0), Some(0.1));
    for _ in 0..40 {
        let id = intake.begin(1.0, now);
        now += 10 * MS;
        intake.end(id, 1, now);
    }
    assert!((intake.pace.run(1.0).unwrap() - 0.01).abs() < 0.001);
    assert_eq!(intake.room(0, now), Room::Now(1), "21 ms and 10.4 ms each");
}

#[test]
fn where_messages_come_late_they_are_asked_for_earlier() {
    let (mut intake, now) = paced(1, 1, 200 * MS, 1);
    intake.begin(1.0, now);
    assert_eq!(intake.room(0, now + 150 * MS), Room::At(now + 180 * MS + TOO_EARLY));
    intake.fetched(30 * MS);
    assert_eq!(intake.room(0, now + 150 * MS), Room::Now(1));
    intake.fetched(Duration::from_secs(3600));
    assert!(intake.horizon(Instant::now()) <= 0.3, "one that took very long is no reason to hoard");
}

/// Expected duration of a run that contains a request of this cost, in milliseconds.
fn run_with(intake: &Intake, cost: f64, now: Instant) -> u128 {
    intake.outlook(cost, 0, now).expect("runs have been seen").0.as_millis()
}

#[test]
fn a_request_begins_after_those_that_wait() {
    let (mut intake, now) = paced(2, 4, 20 * MS, 4);
    let wait = |intake: &Intake, waiting| intake.outlook(1.0, waiting, now).expect("a run has been seen").1.as_millis();
    assert_eq!([0, 3, 4, 7].map(|waiting| wait(&intake, waiting)), [0; 4], "two runs begin at once");
    assert_eq!([8, 15, 16].map(|waiting| wait(&intake, waiting)), [20, 20, 40]);
    intake.begin(1.0, now - 5 * MS);
    assert_eq!([0, 4, 8, 12].map(|waiting| wait(&intake, waiting)), [0, 15, 20, 35], "one of them has begun before");
    intake.begin(1.0, now);
    assert_eq!([0, 4, 8, 12].map(|waiting| wait(&intake, waiting)), [15, 20, 35, 40]);
}

#[test]
fn a_request_is_judged_by_what_it_costs() {
    let (mut mixed, mut now) = (intake(1, 8), Instant::now());
    for _ in 0..20 {
        for (cost, requests, took) in [(8.0, 8, 20 * MS), (400.0, 1, 1000 * MS)] {
            let id = mixed.begin(cost, now);
            now += took;
            mixed.end(id, requests, now);
        }
    }
    let (short, long) = (run_with(&mixed, 1.0, now), run_with(&mixed, 400.0, now));
    assert!((5..=20).contains(&short), "{short} ms, however long others are");
    let (run, wait) = mixed.outlook(1.0, 8, now).expect("runs have been seen");
    assert_eq!(wait, run, "behind eight short ones it waits for a short run");
    assert!((450..=600).contains(&long), "{long} ms: no longer than runs are, what is odd is corrected by being tried");

    let (mut alike, mut now) = (intake(1, 8), Instant::now());
    let id = alike.begin(8.0, now);
    now += 80 * MS;
    alike.end(id, 8, now);
    assert_eq!(run_with(&alike, 1.0, now), 80, "it will have company");
}

/// In every state: an idle instance has room for a batch, the worker takes nothing beyond the horizon, there is no room
/// before [`Room::At`], and a caller that asks again at each [`Room::At`] gets room after a limited number of calls.
#[test]
fn its_promises_hold() {
    let mut state = 7u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..300 {
        let (instances, batch) = (1 + random(4) as usize, 1 + random(16) as usize);
        let (mut intake, mut now, mut running) = (intake(instances, batch), Instant::now(), Vec::new());
        for _ in 0..60 {
            now += Duration::from_micros(random(30_000));
            match random(2) {
                0 if running.len() < instances => running.push(intake.begin(0.5 + random(8) as f64, now)),
                _ if !running.is_empty() => {
                    let ended = running.swap_remove(random(running.len() as u64) as usize);
                    intake.end(ended, random(batch as u64 + 1) as usize, now);
                }
                _ => {}
            }
            let (idle, waiting) = (instances - running.len(), random(40) as usize);
            let most = intake.pace.request().map_or(0.0, |each| instances as f64 * 0.02 / each);
            match intake.room(waiting, now) {
                Room::Now(room) => assert!((waiting + room) as f64 <= most.max((instances * batch) as f64)),
                Room::At(at) => {
                    assert!(at > now && waiting >= idle * batch);
                    let before = (at - 2 * TOO_EARLY).max(now);
                    assert!(!matches!(intake.room(waiting, before), Room::Now(_)), "{intake:?}");
                    let next = |at: &Room| match at {
                        Room::At(at) => Some(intake.room(waiting, *at)),
                        _ => None,
                    };
                    let asked = std::iter::successors(Some(Room::At(at)), next).take(20).count();
                    assert!(asked < 12, "{intake:?}");
                }
                Room::None => assert!(waiting >= idle * batch),
            }
        }
    }
}
