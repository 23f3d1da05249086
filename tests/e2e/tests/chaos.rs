//! The short form of `make chaos`, and that it would notice.

use std::time::Duration;

use trireme_e2e::chaos::{Fault, Options, SmallDisk, run, run_faults};

const SHORT: Options = Options { seed: 7, faults: 14, requests: 1500, concurrency: 16, acknowledge_early: false };

#[test]
fn whatever_fails_callers_notice_a_delay_at_most() {
    let report = run(&SHORT, None, |fault| println!("{fault}"));
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert!(report.requests() >= SHORT.requests);
}

#[test]
fn work_acknowledged_before_it_is_done_gets_lost_and_that_is_noticed() {
    let report = run(&Options { acknowledge_early: true, ..SHORT }, None, |fault| println!("{fault}"));
    println!("{report}");
    assert!(report.lost() > 0, "{report}");
}

/// Answers that were sent while a gateway was not connected are lost, though everything else works: it has to ask again.
#[test]
fn a_gateway_that_loses_its_connection_gets_every_answer() {
    let report = run_faults(&SHORT, None, vec![Fault::Unplug(0, Duration::from_millis(300)); 4], |fault| {
        println!("{fault}");
    });
    println!("{report}");
    assert!(report.is_clean(), "{report}");
}

/// Queues in files on a disk that gets full: callers are told so, or wait, and what was taken in is answered.
#[test]
fn a_full_disk_loses_nothing_and_is_got_over() {
    let Some(disk) = SmallDisk::mount() else {
        return println!("not run: mounting a small disk takes root's rights");
    };
    let faults = vec![Fault::FullDisk(Duration::from_secs(2)); 2];
    let report = run_faults(&SHORT, Some(disk), faults, |fault| println!("{fault}"));
    println!("{report}");
    assert!(report.is_clean(), "{report}");
}
