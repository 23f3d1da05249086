use futures_util::FutureExt;

use super::taking::PASSED_OVER;
use super::*;
use crate::batching::Decision;
use crate::{Appetite, OneAtATime};

/// Takes pairs, newest first, and waits a limited time for a second request.
struct Pairs;

impl BatchPolicy for Pairs {
    fn decide(&self, waiting: &[Candidate], now: Instant) -> Decision {
        let patience = waiting[0].arrived + Duration::from_millis(20);
        match waiting.len() {
            1 if now < patience => Decision::WaitUntil(patience),
            1 => Decision::Run(vec![0]),
            n => Decision::Run(vec![n - 1, 0]),
        }
    }

    fn max_rows(&self) -> u32 {
        2
    }
}

fn candidate() -> Candidate {
    Candidate { arrived: Instant::now(), priority: 0, description: Description::exact(&[]) }
}

#[test]
fn batches_come_in_the_order_of_the_decision() {
    let queue = WorkQueue::new(Box::new(Pairs), 8, None);
    for item in 0..5 {
        queue.push(Lane::Live, candidate(), item);
    }
    assert_eq!(queue.take(usize::MAX, &mut 0), Some(vec![4, 0]));
    assert_eq!(queue.take(usize::MAX, &mut 0), Some(vec![3, 1]));
    assert_eq!(queue.take(usize::MAX, &mut 0), Some(vec![2]), "after its patience has run out");
    queue.close();
    assert_eq!(queue.take(usize::MAX, &mut 0), None);
}

#[test]
fn no_more_is_taken_than_the_limit() {
    let queue = WorkQueue::new(Box::new(Pairs), 8, None);
    assert_eq!(queue.try_take(1), None);
    for item in 0..3 {
        queue.push(Lane::Live, candidate(), item);
    }
    assert_eq!((queue.take(1, &mut 0), queue.try_take(2)), (Some(vec![2]), Some(vec![1, 0])));
    // An arrival in the future, so that it is new however late this thread runs.
    queue.push(Lane::Live, Candidate { arrived: Instant::now() + Duration::from_secs(3600), ..candidate() }, 3);
    assert_eq!(queue.try_take(2), None, "the policy would wait for a second one");
}

#[test]
fn what_runs_alone_comes_first_and_joins_nobody() {
    let queue = WorkQueue::new(Box::new(Pairs), 8, None);
    for item in 0..2 {
        queue.push(Lane::Live, candidate(), item);
    }
    queue.push_alone(candidate(), 7);
    assert_eq!((queue.load().waiting, queue.try_take(2)), (3, None), "nobody joins others before it");
    assert_eq!(queue.take(usize::MAX, &mut 0), Some(vec![7]));
    assert_eq!(queue.try_take(2), Some(vec![1, 0]));
    queue.push_alone(candidate(), 8);
    queue.push_alone(candidate(), 9);
    assert_eq!(queue.remove_where(|item| *item == 8), [8]);
    queue.close();
    assert_eq!((queue.take(1, &mut 0), queue.take(1, &mut 0)), (Some(vec![9]), None));
}

#[test]
fn one_instance_is_enough_for_what_runs_alone() {
    let queue = WorkQueue::new(Box::new(OneAtATime), 8, None);
    queue.push(Lane::Live, candidate(), 0);
    queue.push_alone(candidate(), 7);
    assert_eq!(queue.try_take(1), None, "this one is to be empty");
    let other = queue.clone();
    assert_eq!(std::thread::spawn(move || other.try_take(1)).join().unwrap(), Some(vec![0]), "others go on");
    assert_eq!(queue.try_take(1), None);
    assert_eq!(queue.take(1, &mut 0), Some(vec![7]));
    queue.push(Lane::Live, candidate(), 1);
    assert_eq!(queue.try_take(1), Some(vec![1]));
}

#[test]
fn a_closed_queue_is_emptied_first() {
    let queue = WorkQueue::new(Box::new(OneAtATime), 8, None);
    queue.push(Lane::Live, candidate(), "last");
    queue.close();
    assert_eq!(queue.take(usize::MAX, &mut 0), Some(vec!["last"]));
    assert_eq!(queue.take(usize::MAX, &mut 0), None);
}

#[test]
fn what_is_delayed_goes_behind_all_others_of_its_level_and_before_the_next() {
    let queue = WorkQueue::new(Box::new(OneAtATime), 8, None);
    for (item, level) in [("late", 1), ("next level", 2), ("fresh", 1)] {
        queue.push(Lane::Live, Candidate { priority: level * 2, ..candidate() }, item);
    }
    queue.delay_where(|item| *item == "late");
    let taken: Vec<_> = (0..3).filter_map(|_| queue.try_take(1)).flatten().collect();
    assert_eq!(taken, ["fresh", "late", "next level"]);
}

#[test]
fn who_is_idle_is_called_once_and_after_all_work() {
    let queue = WorkQueue::new(Box::new(OneAtATime), 8, None);
    queue.push(Lane::Live, candidate(), "work");
    queue.call_idle();
    let (mut one, mut other) = (0, 0);
    assert_eq!(queue.take(1, &mut one), Some(vec!["work"]));
    assert_eq!((queue.take(1, &mut one), queue.take(1, &mut other)), (Some(vec![]), Some(vec![])));
    queue.close();
    assert_eq!((queue.take(1, &mut one), queue.take(1, &mut other)), (None, None));
}

#[test]
fn work_wakes_idle_instances() {
    let queue = WorkQueue::new(Box::new(OneAtATime), 8, None);
    let takers: Vec<_> = (0..3)
        .map(|_| {
            let queue = queue.clone();
            std::thread::spawn(move || queue.take(usize::MAX, &mut 0))
        })
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    for item in 0..3 {
        queue.push(Lane::Live, candidate(), item);
    }
    let mut taken: Vec<_> = takers.into_iter().flat_map(|t| t.join().unwrap().unwrap()).collect();
    taken.sort_unstable();
    assert_eq!(taken, [0, 1, 2]);
}

fn taken_run(queue: &Arc<WorkQueue<()>>) -> Run<()> {
    match queue.take_run(Role::Main, &mut 0, |(), _| false) {
        Some(Taken::Batch(_, run)) => run,
        Some(Taken::Late(_)) | None => panic!("it is to be executed"),
    }
}

#[test]
fn what_is_too_late_takes_no_place_in_a_batch() {
    let appetite = Appetite { batch: 2, look_ahead: Duration::from_millis(20) };
    let queue = WorkQueue::new(Box::new(Pairs), 8, Some(Intake::new(1, appetite)));
    let take = |late: &[i32]| match queue.take_run(Role::Main, &mut 0, |item, _| late.contains(item)) {
        Some(Taken::Batch(batch, mut run)) => {
            run.executed = 2;
            (batch, vec![])
        }
        Some(Taken::Late(late)) => (vec![], late),
        None => (vec![], vec![]),
    };
    for item in 0..6 {
        queue.push(Lane::Live, candidate(), item);
    }
    assert_eq!(take(&[0, 5]), (vec![5, 0], vec![]), "nobody knows how long a run takes");
    assert_eq!(take(&[1, 2]), (vec![], vec![1]));
    assert_eq!(take(&[2]), (vec![], vec![2]));
    assert_eq!(take(&[]), (vec![4, 3], vec![]), "a full batch of the others");
}

#[test]
fn more_is_asked_for_while_all_that_comes_is_late() {
    let appetite = Appetite { batch: 1, look_ahead: Duration::ZERO };
    let queue: Arc<WorkQueue<()>> = WorkQueue::new(Box::new(OneAtATime), 4, Some(Intake::new(1, appetite)));
    let room = || queue.state.lock().room(Lane::Live, 4, Instant::now());
    assert_eq!(room(), Room::Now(1));
    for _ in 0..2 {
        queue.came_late();
    }
    assert_eq!(room(), Room::Now(2));
    let _permits: Vec<_> = (0..3).map(|_| queue.permit(Lane::Live, false)).collect();
    assert_eq!(room(), Room::Now(1), "never more than it may hold");
    queue.push(Lane::Live, candidate(), ());
    assert_eq!(queue.state.lock().late, 0);
}

#[test]
fn a_request_waits_for_those_that_wait_here() {
    let appetite = Appetite { batch: 1, look_ahead: Duration::from_millis(20) };
    let queue = WorkQueue::new(Box::new(OneAtATime), 8, Some(Intake::new(1, appetite)));
    let outlook = || queue.outlook(Lane::Live, &Description::exact(&[]));
    queue.push(Lane::Live, candidate(), ());
    assert_eq!(outlook(), None, "nobody knows how long a run takes");
    let mut run = taken_run(&queue);
    std::thread::sleep(Duration::from_millis(5));
    run.executed = 1;
    drop(run);
    for waiting in 0..3 {
        let (run, wait) = outlook().unwrap();
        assert!(wait.abs_diff(run * waiting) < Duration::from_micros(1), "{wait:?} behind {waiting} of {run:?}");
        queue.push(Lane::Live, candidate(), ());
    }
}

#[tokio::test]
async fn room_opens_shortly_before_the_instance_is_free() {
    let appetite = Appetite { batch: 1, look_ahead: Duration::from_millis(20) };
    let queue = WorkQueue::new(Box::new(OneAtATime), 8, Some(Intake::new(1, appetite)));
    assert_eq!(queue.room_beyond(Lane::Live, 0).await.0, 1, "it is free");
    queue.push(Lane::Live, candidate(), ());
    let mut run = taken_run(&queue);
    let waiting = tokio::time::timeout(Duration::from_millis(100), queue.room_beyond(Lane::Live, 0)).await;
    assert!(waiting.is_err(), "nobody knows how long this takes");
    run.executed = 1;
    drop(run);
    queue.push(Lane::Live, candidate(), ());
    let begun = Instant::now();
    let _run = taken_run(&queue);
    assert_eq!(queue.room_beyond(Lane::Live, 0).await.0, 1);
    assert!(begun.elapsed() >= Duration::from_millis(80), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn room_follows_permits() {
    let queue: Arc<WorkQueue<()>> = WorkQueue::new(Box::new(OneAtATime), 2, None);
    let first = queue.try_permit(Lane::Live).unwrap();
    let _second = queue.permit(Lane::Live, false);
    assert!(queue.try_permit(Lane::Live).is_none());
    let waiting = tokio::time::timeout(Duration::from_millis(20), queue.room_beyond(Lane::Live, 0)).await;
    assert!(waiting.is_err(), "no room while all permits are out");
    drop(first);
    assert_eq!(queue.room_beyond(Lane::Live, 0).await.0, 1);
}

#[test]
fn a_request_of_this_process_does_not_pass_those_in_the_shared_queue() {
    let queue: Arc<WorkQueue<()>> = WorkQueue::new(Box::new(OneAtATime), 3, None);
    let mut permits: Vec<_> = std::iter::from_fn(|| queue.try_permit(Lane::Live)).collect();
    assert_eq!(permits.len(), 3);
    permits.pop();
    assert!(queue.try_permit(Lane::Live).is_none(), "the refused request waits in the shared queue");
    drop(queue.permit(Lane::Live, true));
    assert!(queue.try_permit(Lane::Live).is_none(), "others wait behind the one that was received");
    drop(queue.permit(Lane::Bulk, false));
    assert!(queue.try_permit(Lane::Live).is_none(), "the lanes are queues of their own");
    drop(queue.permit(Lane::Live, false));
    permits.extend(queue.try_permit(Lane::Live));
    assert_eq!(permits.len(), 3);
    // Nothing was asked of the shared queue while all permits were out.
    permits.pop();
    assert!(queue.try_permit(Lane::Live).is_none());
}

#[test]
fn bulk_requests_of_this_process_leave_the_last_permit_to_the_shared_queue() {
    let queue: Arc<WorkQueue<()>> = WorkQueue::new(Box::new(OneAtATime), 4, None);
    let mut permits: Vec<_> = std::iter::from_fn(|| queue.try_permit(Lane::Bulk)).collect();
    assert_eq!(permits.len(), 2, "half of the places");
    permits.pop();
    assert!(queue.try_permit(Lane::Bulk).is_none());
    permits.pop();
    permits.extend(queue.try_permit(Lane::Bulk));
    assert_eq!(permits.len(), 1, "two are free, and requests wait in the shared queue");
}

#[test]
fn a_worker_asks_for_one_request_while_others_go_past_the_shared_queue() {
    let intake = Intake::new(1, Appetite { batch: 1, look_ahead: Duration::ZERO });
    let queue: Arc<WorkQueue<()>> = WorkQueue::new(Box::new(OneAtATime), 4, Some(intake));
    let room = || queue.state.lock().room(Lane::Live, 4, Instant::now());
    queue.push(Lane::Live, candidate(), ());
    let _run = taken_run(&queue);
    assert_eq!(room(), Room::None, "the instance is busy, nobody knows for how long");
    let _permit = queue.try_permit(Lane::Live).unwrap();
    assert_eq!(room(), Room::Now(1));
    drop(queue.permit(Lane::Live, true));
    assert_eq!(room(), Room::None, "no more than usual while requests wait in the shared queue");
}

#[test]
fn bulk_requests_run_when_no_live_request_waits() {
    let queue = WorkQueue::new(Box::new(Pairs), 8, None);
    for item in 0..3 {
        queue.push(Lane::Bulk, candidate(), item);
    }
    for item in 10..12 {
        queue.push(Lane::Live, candidate(), item);
    }
    assert_eq!(queue.load().waiting, 5);
    assert_eq!(queue.take(usize::MAX, &mut 0), Some(vec![11, 10]));
    assert_eq!(queue.take(usize::MAX, &mut 0), Some(vec![2, 0]));
    queue.push(Lane::Live, Candidate { arrived: Instant::now() + Duration::from_secs(3600), ..candidate() }, 12);
    assert_eq!(queue.try_take(2), None, "the policy waits for a second live request; no bulk request goes first");
    assert_eq!(queue.remove_where(|item| *item == 12), [12]);
    assert_eq!(queue.take(usize::MAX, &mut 0), Some(vec![1]));
}

/// Takes everything; a run costs as much as it has requests.
struct All;

impl BatchPolicy for All {
    fn decide(&self, waiting: &[Candidate], _now: Instant) -> Decision {
        Decision::Run((0..waiting.len()).collect())
    }

    fn max_rows(&self) -> u32 {
        64
    }

    fn cost(&self, members: &[Description]) -> f64 {
        members.len() as f64
    }
}

#[test]
fn runs_of_bulk_requests_are_short_while_there_are_live_ones() {
    let queue = WorkQueue::new(Box::new(All), 64, None);
    let run = || match queue.take_run(Role::Main, &mut 0, |_, _| false) {
        Some(Taken::Batch(batch, _)) => batch.len(),
        _ => panic!("a batch is there"),
    };
    let push = |lane, count| (0..count).for_each(|_| queue.push(lane, candidate(), ()));
    push(Lane::Bulk, 20);
    assert_eq!(run(), 20, "no live request has run");
    push(Lane::Live, 4);
    push(Lane::Bulk, 20);
    assert_eq!([run(), run(), run()], [4, 6, 6], "live ones first, then one and a half times as many");
    queue.state.lock().live_ran = Instant::now().checked_sub(Duration::from_secs(3));
    assert_eq!(run(), 8, "that is over");
}

#[test]
fn live_requests_that_never_pause_leave_bulk_requests_a_share() {
    let queue = WorkQueue::new(Box::new(OneAtATime), 8, None);
    (0..3).for_each(|_| queue.push(Lane::Bulk, candidate(), "bulk"));
    let mut order = Vec::new();
    for _ in 0..2 * (PASSED_OVER + 1) {
        queue.push(Lane::Live, candidate(), "live");
        order.extend(queue.try_take(1).unwrap());
    }
    let places: Vec<_> = (0..order.len()).filter(|&at| order[at] == "bulk").collect();
    assert_eq!(places, [PASSED_OVER as usize, 2 * PASSED_OVER as usize + 1]);
}

#[tokio::test]
async fn bulk_requests_take_no_room_from_live_ones() {
    let appetite = Appetite { batch: 2, look_ahead: Duration::from_millis(20) };
    let queue = WorkQueue::new(Box::new(Pairs), 4, Some(Intake::new(1, appetite)));
    let mut permits: Vec<_> = (0..4).map(|_| queue.permit(Lane::Bulk, false)).collect();
    for _ in 0..2 {
        queue.push(Lane::Bulk, candidate(), ());
    }
    assert_eq!(queue.room_beyond(Lane::Live, 0).await.0, 2);
    assert!(queue.try_permit(Lane::Bulk).is_none());
    let none = tokio::time::timeout(Duration::from_millis(20), queue.room_beyond(Lane::Bulk, 0)).await;
    assert!(none.is_err(), "their own places are taken");
    permits.clear();
    queue.push(Lane::Live, candidate(), ());
    assert_eq!(queue.room_beyond(Lane::Bulk, 0).await.0, 2, "a batch for the turn that they get beside live requests");
    assert_eq!(queue.room_beyond(Lane::Live, 0).await.0, 1);
}

#[test]
fn a_stepwise_instance_keeps_half_of_its_places_for_live_requests() {
    let queue: Arc<WorkQueue<()>> = WorkQueue::new(Box::new(OneAtATime), 5, None);
    let bulk: Vec<_> = std::iter::from_fn(|| queue.try_permit(Lane::Bulk)).collect();
    let live: Vec<_> = std::iter::from_fn(|| queue.try_permit(Lane::Live)).collect();
    assert_eq!((bulk.len(), live.len()), (3, 5));
}

#[tokio::test]
async fn background_instances_have_the_bulk_lane_to_themselves() {
    let appetite = Appetite { batch: 2, look_ahead: Duration::from_millis(20) };
    let queue = WorkQueue::new(Box::new(All), 64, Some(Intake::new(1, appetite)));
    let take = |role| match queue.take_run(role, &mut 0, |_, _| false) {
        Some(Taken::Batch(batch, run)) => (batch, run),
        _ => panic!("a batch is there"),
    };
    queue.push(Lane::Live, candidate(), "live");
    drop(take(Role::Main));
    (0..20).for_each(|_| queue.push(Lane::Bulk, candidate(), "bulk"));
    queue.add_background();
    queue.push(Lane::Live, candidate(), "live");
    let (bulk, run) = take(Role::Background);
    assert_eq!(bulk.len(), 20, "no run is short for the sake of live requests");
    assert_eq!(queue.room_beyond(Lane::Live, 0).await.0, 1, "a bulk run leaves the room for live requests as it is");
    queue.push(Lane::Bulk, candidate(), "bulk");
    let (live, _run) = take(Role::Main);
    assert_eq!(live, ["live"]);
    let mut calls = 0;
    queue.call_idle();
    let (called, _run) = match queue.take_run(Role::Main, &mut calls, |_, _| false) {
        Some(Taken::Batch(batch, run)) => (batch, run),
        _ => panic!("idle instances were called"),
    };
    assert!(called.is_empty() && calls == 1, "the main instances have nothing to do");
    drop(run);
    assert_eq!(take(Role::Background).0, ["bulk"]);
}

#[test]
fn main_instances_execute_bulk_requests_while_the_background_starves() {
    let appetite = Appetite { batch: 2, look_ahead: Duration::from_millis(20) };
    let queue = WorkQueue::new(Box::new(All), 64, Some(Intake::new(1, appetite)));
    let take = |role| match queue.take_run(role, &mut 0, |_, _| false) {
        Some(Taken::Batch(batch, _)) => batch,
        _ => panic!("a batch is there"),
    };
    queue.add_background();
    queue.push(Lane::Live, candidate(), "live");
    assert_eq!(take(Role::Main), ["live"]);
    (0..9).for_each(|_| queue.push(Lane::Bulk, candidate(), "bulk"));
    queue.background_starves();
    queue.push(Lane::Live, candidate(), "live");
    assert_eq!(take(Role::Main), ["live"], "live requests go first");
    assert_eq!(take(Role::Main), ["bulk"], "a short run, because a live request has just run");
    queue.state.lock().starves_until = Some(Instant::now());
    assert_eq!(take(Role::Background).len(), 8, "that is over");
}

#[test]
fn an_idle_queue_dismisses_its_instances_and_keeps_what_comes() {
    let queue = WorkQueue::new(Box::new(OneAtATime), 8, None);
    let waits = {
        let queue = queue.clone();
        std::thread::spawn(move || queue.take(1, &mut 0).is_none())
    };
    let keep = Duration::from_secs(3600);
    assert!(queue.dismiss_if_idle(keep).is_err_and(|at| at > Instant::now()), "it was in use");
    queue.pause(true);
    assert!(queue.dismiss_if_idle(Duration::ZERO).is_err(), "its backend is about to replace an instance");
    queue.pause(false);
    assert!(queue.dismiss_if_idle(Duration::ZERO).is_ok());
    assert!(waits.join().unwrap(), "the instance ends");
    assert!(!queue.bulk_comes(), "and so do those for bulk requests");

    let permit = queue.permit(Lane::Live, false);
    queue.push(Lane::Live, candidate(), 1);
    assert!(queue.called().now_or_never().is_some());
    assert_eq!((queue.load().asleep.is_some(), queue.take(1, &mut 0)), (true, None));
    queue.recall();
    assert_eq!((queue.load().asleep, queue.take(1, &mut 0)), (None, Some(vec![1])));
    assert!(queue.dismiss_if_idle(Duration::ZERO).is_err(), "the request is still in this worker");
    drop(permit);
    assert!(queue.dismiss_if_idle(Duration::ZERO).is_ok());
    assert!(queue.called().now_or_never().is_none(), "no request waits");

    queue.expect();
    assert!(queue.called().now_or_never().is_some(), "one is on its way");
    assert!(queue.called().now_or_never().is_none(), "it calls once");
    queue.recall();
    let keep = Duration::from_secs(3600);
    assert!(queue.dismiss_if_idle(keep).is_err(), "instances wait for it as long as after a request");
    queue.expect();
    assert!(queue.dismiss_if_idle(Duration::ZERO).is_ok());
    assert!(queue.called().now_or_never().is_none(), "instances were there");
}
