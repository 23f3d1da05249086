//! The short form of `make chaos`, and tests that it would notice lost work.

use std::time::Duration;

use trireme_e2e::chaos::{Aim, Fault, Harm, NodeFault, Options, PROMPT, SmallDisk, Trouble, run, run_faults};

const SHORT: Options = Options {
    seed: 7,
    faults: 12,
    only: None,
    overlap: 0.2,
    requests: 1000,
    prompt: PROMPT,
    lines: 0,
    concurrency: 16,
    deadline: Duration::from_secs(60),
    hand_over: false,
    brokers: 1,
    files: false,
    clocks: Duration::ZERO,
    acknowledge_early: false,
};

/// The members of [`SHORT`] that execute models.
const MODELS: [usize; 3] = [4, 5, 6];

/// The deadline is long enough for the deaths of several workers on a busy machine, and short enough to wait for lost
/// requests.
const HASTY: Options = Options { deadline: Duration::from_secs(25), requests: 300, ..SHORT };

/// Kills the workers that execute models, one after the other.
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

/// Work that is acknowledged before it is done is lost when its worker dies. The gateway notices that and publishes the
/// work again, which takes longer than a deadline of four seconds. So with that deadline the harness has to notice the
/// lost requests.
#[test]
#[ignore = "make test-all runs it"]
fn work_acknowledged_before_it_is_done_is_noticed_and_published_again() {
    let early = Options { acknowledge_early: true, ..HASTY };
    let report = run_faults(&Options { deadline: Duration::from_secs(4), ..early }, None, &kills(), say);
    println!("{report}");
    assert!(report.lost() > 0, "{report}");
    let patient = run_faults(&early, None, &kills(), say);
    println!("{patient}");
    assert_eq!(patient.lost(), 0, "{patient}");
}

/// Answers that were sent while a gateway was not connected are lost, so the gateway has to ask for them again.
#[test]
#[ignore = "make test-all runs it"]
fn a_gateway_that_loses_its_connection_gets_every_answer() {
    let unplug = || vec![Fault::Unplug(0, Duration::from_millis(300))];
    let report = run_faults(&SHORT, None, &[unplug(), unplug(), unplug(), unplug()], say);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
}

/// A gateway that is being stopped answers the requests that are on their way to it, also on kept connections. The time
/// window is less than a millisecond, so this takes many clients.
#[test]
#[ignore = "make test-all runs it"]
fn gateways_that_are_told_to_stop_answer_what_is_on_its_way() {
    let stop = |number: usize| vec![if number < 6 { Fault::Roll(number % 2) } else { Fault::Terminate(number % 2) }];
    let rounds: Vec<_> = (0..12).map(stop).collect();
    let report = run_faults(&Options { concurrency: 48, ..SHORT }, None, &rounds, say);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
}

/// Durable requests and batches, while everything that they need is killed: every one that was accepted is answered once and rightly.
#[test]
fn durable_work_outlives_gateways_workers_and_the_broker() {
    let kill = |member| Fault::Kill(member, Duration::from_millis(300));
    let rounds = [
        vec![kill(0)],
        vec![Fault::Broker(Duration::from_millis(500))],
        vec![kill(MODELS[0]), kill(1)],
        vec![Fault::Pause(0, Duration::from_millis(2500))],
        vec![Fault::Roll(1)],
        vec![Fault::Broker(Duration::from_millis(100)), kill(2)],
    ];
    let report = run_faults(&Options { lines: 3000, requests: 300, ..SHORT }, None, &rounds, say);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    let (requests, lines) = report.job_answers();
    assert!(requests > 20 && lines >= 3000, "{report}");
}

/// Brokers that sync each message before they confirm it lose no accepted request in a power cut.
#[test]
#[ignore = "make test-all runs it"]
fn a_power_cut_loses_nothing_that_was_accepted() {
    let Some(disk) = SmallDisk::mount() else {
        return println!("not run: mounting a small disk takes root's rights");
    };
    let cut = || vec![Fault::PowerCut(Duration::from_millis(500))];
    let report = run_faults(&Options { lines: 2000, requests: 300, ..SHORT }, Some(disk), &[cut(), cut()], say);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert!(report.job_answers().1 >= 2000, "{report}");
}

/// The same for three brokers that lose power together.
#[test]
#[ignore = "make test-all runs it"]
fn a_power_cut_of_three_brokers_loses_nothing_that_was_accepted() {
    let Some(disk) = SmallDisk::mount() else {
        return println!("not run: mounting a small disk takes root's rights");
    };
    let cut = || vec![Fault::PowerCut(Duration::from_millis(500))];
    let options = Options { brokers: 3, lines: 500, requests: 300, prompt: Duration::from_secs(30), ..SHORT };
    let report = run_faults(&options, Some(disk), &[cut(), cut()], say);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert!(report.job_answers().1 >= 500, "{report}");
}

/// Brokers that sync their files every two minutes lose accepted requests in a power cut, and the harness has to notice.
#[test]
#[ignore = "make test-all runs it"]
fn a_power_cut_without_syncs_is_noticed() {
    let Some(disk) = SmallDisk::mount().map(SmallDisk::with_default_sync) else {
        return println!("not run: mounting a small disk takes root's rights");
    };
    let rounds = [vec![Fault::Reset(0)], vec![Fault::PowerCut(Duration::from_millis(500))]];
    let report = run_faults(&Options { lines: 2000, requests: 300, ..SHORT }, Some(disk), &rounds, say);
    println!("{report}");
    assert!(!report.job_complaints().is_empty(), "{report}");
}

/// With queues in files on a full disk, requests are refused or wait, and accepted requests are answered.
#[test]
#[ignore = "make test-all runs it"]
fn a_full_disk_loses_nothing_and_is_got_over() {
    let Some(disk) = SmallDisk::mount() else {
        return println!("not run: mounting a small disk takes root's rights");
    };
    let fill = || vec![Fault::FullDisk(Duration::from_secs(2))];
    let report = run_faults(&SHORT, Some(disk), &[fill(), fill()], say);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
}

/// The short form of `make chaos BROKERS=3`: while two of three brokers are up, and when work is deleted, callers
/// notice at most a delay, although the clocks of all processes differ. Here three brokers share the cores with other
/// tests: a replaced broker has needed up to 8 s to be in sync, and a request up to 21 s after the end of a fault. So requests may
/// take longer than there.
#[test]
#[ignore = "make test-all runs it"]
fn chaos_on_three_brokers() {
    let node =
        |trouble, aim, millis| vec![Fault::Node(NodeFault { trouble, aim, lasts: Duration::from_millis(millis) })];
    let rounds = [
        node(Trouble::Kill, Aim::Work, 2000),
        node(Trouble::Halt, Aim::Registry, 2000),
        node(Trouble::Replace, Aim::Claims, 1000),
        node(Trouble::Partition, Aim::Leader, 5000),
        vec![Fault::Data(Harm::Empty, Duration::ZERO)],
    ];
    let options =
        Options { brokers: 3, lines: 1000, prompt: Duration::from_secs(30), clocks: Duration::from_secs(60), ..SHORT };
    let report = run_faults(&options, None, &rounds, say);
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert!(report.requests() >= SHORT.requests);
}
