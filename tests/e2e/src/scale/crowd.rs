//! More idle workers on one model than the pull requests that a JetStream consumer lets wait by default, which is 512.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::broker::{self, Broker};
use super::client;
use super::deployment::Deployment;
use super::findings::{Finding, Findings, figure};
use super::flags::Settings;
use super::plan::Plan;
use super::shape::Shape;
use super::usage::{CpuWatch, MachineWatch, median_and_worst};

/// Requests that are sent one after the other.
const REQUESTS: usize = 50;

/// The longest time that an idle deployment may take for a request, in milliseconds.
const BAR_MS: f64 = 500.0;

/// An answer that takes longer counts as missing.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts the workers, watches the deployment at rest, and sends it requests.
pub fn run(plan: &Plan, at: &str, findings: &mut Findings) {
    let shape = Shape {
        groups: 1,
        models_per_group: 1,
        workers_per_group: plan.crowd,
        gateways: 1,
        model: "max_batch_size: 0",
    };
    let settings = Settings { worker_log: "info,trireme_bus::nats::source=debug", ..Settings::default() };
    let mut deployment = Deployment::start(Broker::single(), shape, settings, plan.ready_limit);
    let figure =
        |name: &str, value: f64, unit: &'static str| Finding::new("workers on one model", at, name, value, unit);
    findings.add(figure("everything is ready after", deployment.ready_after.as_secs_f64(), "s"));
    std::thread::sleep(plan.settle);

    let (complaints, turned_down) = (deployment.complaints(), deployment.count(is_turned_down));
    let before = broker::traffic(deployment.broker.monitors()).expect("a broker at rest answers about itself");
    let machine = MachineWatch::start();
    let (since, cpu) = (Instant::now(), CpuWatch::start(deployment.broker.processes()));
    std::thread::sleep(plan.watch);
    let (cpu, machine) = (cpu.percent(), machine.percent());
    let after = broker::traffic(deployment.broker.monitors()).expect("a broker at rest answers about itself");
    let seconds = since.elapsed().as_secs_f64();
    findings.add(figure(figure::BROKER_CPU, cpu, "%"));
    findings.add(figure(figure::WHOLE_MACHINE, machine, "%"));
    findings.add(figure(figure::MESSAGES_IN, (after.messages_in - before.messages_in) / seconds, "1/s"));
    findings.add(figure(figure::MESSAGES_OUT, (after.messages_out - before.messages_out) / seconds, "1/s"));
    let meanwhile = (deployment.complaints() - complaints) as f64;
    findings.add(figure("warnings and errors at rest", meanwhile, "").at_most(0.0));
    let meanwhile = (deployment.count(is_turned_down) - turned_down) as f64;
    findings.add(figure("pull requests that the broker turned down", meanwhile / seconds, "1/s").at_most(0.0));
    if let Some(stored) = deployment.broker.stored() {
        findings.add(figure("pull requests that wait", stored.pulls_waiting, ""));
    }

    let (times, wrong) = ask(&deployment);
    let [median, worst] = median_and_worst(times).map(|time| time.as_secs_f64() * 1e3);
    findings.add(figure("requests that went wrong, of 50", wrong as f64, "").at_most(0.0));
    findings.add(figure("answer, median", median, "ms"));
    findings.add(figure("answer, slowest", worst, "ms").at_most(BAR_MS));
    findings.add(figure("warnings and errors from the start", deployment.complaints() as f64, "").at_most(0.0));
    deployment.show_complaints();
    deployment.check_running();
}

/// Whether a worker has logged that the broker ended a pull request early.
fn is_turned_down(event: &Value) -> bool {
    event["message"] == "a pull request ended"
}

/// Sends requests one after the other. Returns how long each took, and how many failed.
fn ask(deployment: &Deployment) -> (Vec<Duration>, usize) {
    let (gateway, model) = (deployment.addresses[0], deployment.shape.model_name(0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let (mut times, mut wrong) = (Vec::new(), 0);
    for number in 0..REQUESTS {
        let started = Instant::now();
        let answer = runtime.block_on(client::ask(gateway, &client::echo(&model, number), LIMIT));
        times.push(started.elapsed());
        wrong += usize::from(client::fault(&answer, number).is_some());
    }
    (times, wrong)
}
