//! The short form of `make overload`: what is asked here is little, so that it holds on a machine that is busy otherwise.

use std::sync::Mutex;
use std::time::Duration;

use trireme_e2e::{Bound, Level, Mode, Scene, in_every_mode, overload};

in_every_mode!(a_short_queue_keeps_goodput_under_overload, deadlines_keep_goodput_under_overload,);

/// The share of what the model can do that has to be left.
const KEEPS: f64 = 0.8;

/// Long, so that a load of ten times what the model can do is little for the machine.
const RUN: Duration = Duration::from_millis(200);

/// How long a request may take: ten runs.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Held while one is measured: beside each other they would overload the machine.
static ALONE: Mutex<()> = Mutex::new(());

fn keeps_goodput(mode: Mode, bound: Bound) {
    let _alone = ALONE.lock();
    let scene = Scene { mode, pipeline: true, bound, run: RUN };
    println!("{scene}\n{}", Level::HEAD);
    let levels = overload(scene, &[1.0, 2.0, 10.0], Duration::from_secs(3), |level| println!("{level}"));
    let best = levels.iter().map(|level| level.goodput).fold(0.0, f64::max);
    for level in levels {
        assert_eq!(level.other, 0, "an answer is a result or 503, at {} times what it can do", level.load);
        let is_enough = level.load <= 1.0 || level.goodput >= KEEPS * best;
        assert!(is_enough, "{} of {best} a second at a load of {}", level.goodput, level.load);
    }
}

fn a_short_queue_keeps_goodput_under_overload(mode: Mode) {
    keeps_goodput(mode, Bound::Queue);
}

fn deadlines_keep_goodput_under_overload(mode: Mode) {
    keeps_goodput(mode, Bound::Deadline(TIMEOUT));
}
