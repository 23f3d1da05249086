//! The short form of `make overload`. Its demands are low, so that it passes on a busy machine.

use std::sync::Mutex;
use std::time::Duration;

use trireme_e2e::{Bound, Demands, Level, Loop, Mode, Round, Scene, Summary, in_one_mode, overload};

in_one_mode!(a_short_queue_keeps_goodput_under_overload, deadlines_keep_goodput_under_overload,);

/// Without admission control, goodput under overload is a tenth of the best or less.
const DEMANDS: Demands = Demands {
    of_capacity: 0.5,
    of_best: 0.5,
    refusal: Duration::from_secs(3),
    of_median: 3.0,
    overdue: Duration::from_secs(3),
};

/// Long, so that a load of ten times the model's capacity is little work for the machine.
const RUN: Duration = Duration::from_millis(200);

/// How long a request may take: ten runs.
const TIMEOUT: Duration = Duration::from_secs(2);

/// How many times the median the 99th percentile of a closed loop may take. A system in which some requests wait until the load ends
/// reaches ten times and more; a busy machine has reached twice.
const IN_TURN: f64 = 4.0;

/// Held during a measurement: two at the same time would overload the machine.
static ALONE: Mutex<()> = Mutex::new(());

fn keeps_goodput(mode: Mode, bound: Bound) {
    let _alone = ALONE.lock();
    let scene = Scene { mode, pipeline: true, bound, run: RUN };
    println!("{scene}\n{}", Level::HEAD);
    let levels = overload(scene, &[1.0, 2.0, 10.0], Duration::from_secs(3), |level| println!("{level}"));
    let summary = Summary::of(&levels);
    println!("{summary}");
    assert_eq!(summary.shortfalls(&DEMANDS), [""; 0]);
}

fn a_short_queue_keeps_goodput_under_overload(mode: Mode) {
    keeps_goodput(mode, Bound::Queue);
}

fn deadlines_keep_goodput_under_overload(mode: Mode) {
    keeps_goodput(mode, Bound::Deadline(TIMEOUT));
}

/// A worker that hosts the next step, too, hands results over past the queue; those that found no room there must not wait until the
/// load ends.
#[test]
#[ignore = "make test-all runs it"]
fn a_closed_loop_is_served_in_turn() {
    let _alone = ALONE.lock();
    for (mode, apart) in [(Mode::AllInOne, false), (Mode::Services, false), (Mode::Services, true)] {
        let scene = Loop { mode, apart };
        println!("{scene}\n{}", Round::HEAD);
        for round in scene.measure(&[4], Duration::from_secs(5), |round| println!("{round}")) {
            assert!(round.of_median() <= IN_TURN && round.other == 0, "{scene}: {round:?}");
        }
    }
}
