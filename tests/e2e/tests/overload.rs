//! The short form of `make overload`. Its demands are low, so that it passes on a busy machine.

use std::sync::Mutex;
use std::time::Duration;

use trireme_e2e::{Bound, Demands, Level, Mode, Scene, Summary, in_every_mode, overload};

in_every_mode!(a_short_queue_keeps_goodput_under_overload, deadlines_keep_goodput_under_overload,);

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
