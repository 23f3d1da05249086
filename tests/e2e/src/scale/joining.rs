//! Workers that join and leave at once while requests are answered.

use std::time::{Duration, Instant};

use super::deployment::Deployment;
use super::findings::figure::WHOLE_MACHINE;
use super::findings::{Finding, Findings};
use super::load::Load;
use super::plan::Plan;
use super::usage::{MachineWatch, median_and_worst};

/// How long the load goes on before, between and after the workers join and leave.
const AROUND: Duration = Duration::from_secs(5);

/// Lets workers join and leave under load, and adds to the findings how requests were affected.
pub fn run(plan: &Plan, at: &str, deployment: &mut Deployment, findings: &mut Findings) {
    let load = Load::start(deployment.addresses.clone(), deployment.models(), plan.rate);
    let (started, machine) = (Instant::now(), MachineWatch::start());
    std::thread::sleep(AROUND);
    let joining = Instant::now();
    let joined = deployment.add_workers(plan.joining);
    let joining = joining.elapsed();
    std::thread::sleep(AROUND);
    let leaving = Instant::now();
    Deployment::stop(joined);
    let leaving = leaving.elapsed();
    std::thread::sleep(AROUND);
    let machine = machine.percent();
    let seconds = started.elapsed().as_secs_f64();
    let tally = load.stop();
    tally.show_faults();

    let scene = format!("{} workers join and leave", plan.joining);
    let mut add = |finding: Finding| findings.add(finding);
    let figure = |name: &str, value: f64, unit: &'static str| Finding::new(&scene, at, name, value, unit);
    add(figure("requests", tally.requests() as f64, ""));
    add(figure("requests a second", tally.requests() as f64 / seconds, "1/s"));
    add(figure("refused", tally.refused as f64, "").at_most(0.0));
    add(figure("unanswered", tally.unanswered as f64, "").at_most(0.0));
    add(figure("wrong", tally.wrong as f64, "").at_most(0.0));
    let [median, worst] = median_and_worst(tally.times).map(|time| time.as_secs_f64() * 1e3);
    add(figure("answer, median", median, "ms"));
    add(figure("answer, slowest", worst, "ms"));
    add(figure(WHOLE_MACHINE, machine, "%"));
    add(figure("all have joined after", joining.as_secs_f64(), "s"));
    add(figure("all have left after", leaving.as_secs_f64(), "s"));
}
