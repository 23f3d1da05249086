//! The short form of `make chaos`, and that it would notice.

use std::time::Duration;

use trireme_e2e::chaos::{Fault, Options, SmallDisk, run, run_faults};

const SHORT: Options = Options {
    seed: 7,
    faults: 12,
    overlap: 0.2,
    requests: 1000,
    concurrency: 16,
    deadline: Duration::from_secs(60),
    hand_over: false,
    acknowledge_early: false,
};

/// Of [`SHORT`]'s members, those that execute models.
const MODELS: [usize; 3] = [4, 5, 6];

/// Time enough for several workers' deaths on a busy machine, and not much to wait for what is lost.
const HASTY: Options = Options { deadline: Duration::from_secs(25), requests: 300, ..SHORT };

/// One after the other of the workers that execute models is killed.
fn kills() -> Vec<Vec<Fault>> {
    let kill = |member: usize| vec![Fault::Kill(member, Duration::from_millis(100))];
    MODELS.into_iter().cycle().take(8).map(kill).collect()
}

fn say(fault: &str) {
    println!("{fault}");
}

#[test]
fn whatever_fails_callers_notice_a_delay_at_most() {
    let report = run(&SHORT, None, say);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert!(report.requests() >= SHORT.requests);
}

/// The same kills twice, with the same deadline: it is the early acknowledgement that loses requests.
#[test]
fn work_acknowledged_before_it_is_done_gets_lost_and_that_is_noticed() {
    let report = run_faults(&Options { acknowledge_early: true, ..HASTY }, None, &kills(), say);
    println!("{report}");
    assert!(report.lost() > 0, "{report}");
    let control = run_faults(&HASTY, None, &kills(), say);
    println!("{control}");
    assert_eq!(control.lost(), 0, "{control}");
}

/// Answers that were sent while a gateway was not connected are lost, though everything else works: it has to ask again.
#[test]
fn a_gateway_that_loses_its_connection_gets_every_answer() {
    let unplug = || vec![Fault::Unplug(0, Duration::from_millis(300))];
    let report = run_faults(&SHORT, None, &[unplug(), unplug(), unplug(), unplug()], say);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
}

/// What is on its way to a gateway that is told to stop is answered by it, also on connections that clients keep. That takes
/// many clients: it is a matter of less than a millisecond.
#[test]
fn gateways_that_are_told_to_stop_answer_what_is_on_its_way() {
    let stop = |number: usize| vec![if number < 6 { Fault::Roll(number % 2) } else { Fault::Terminate(number % 2) }];
    let rounds: Vec<_> = (0..12).map(stop).collect();
    let report = run_faults(&Options { concurrency: 48, ..SHORT }, None, &rounds, say);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
}

/// Queues in files on a disk that gets full: callers are told so, or wait, and what was taken in is answered.
#[test]
fn a_full_disk_loses_nothing_and_is_got_over() {
    let Some(disk) = SmallDisk::mount() else {
        return println!("not run: mounting a small disk takes root's rights");
    };
    let fill = || vec![Fault::FullDisk(Duration::from_secs(2))];
    let report = run_faults(&SHORT, Some(disk), &[fill(), fill()], say);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
}
