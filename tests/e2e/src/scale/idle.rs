//! The cost of a deployment without requests, and of its queues alone.

use std::time::{Duration, Instant};

use super::broker;
use super::broker::Traffic;
use super::deployment::Deployment;
use super::findings::{Finding, Findings, figure};
use super::plan::Plan;
use super::shape::Size;
use super::usage::{CpuWatch, MachineWatch, resident_mebibytes};
use crate::Process;

/// Percent of one core that the broker may use.
const BROKER_BAR: f64 = 5.0;

/// Percent of one core that a gateway may use.
const GATEWAY_BAR: f64 = 1.0;

/// How long the pull requests of workers that were killed may stay with the broker.
const PULLS_END: Duration = Duration::from_secs(30);

/// The CPU of every part of a deployment, watched at the same time.
struct Watches {
    brokers: Vec<CpuWatch>,
    gateway: CpuWatch,
    gateways: Option<CpuWatch>,
    workers: CpuWatch,
    machine: MachineWatch,
}

/// Watches a deployment at rest and adds its cost to the findings.
pub fn run(plan: &Plan, scene: &str, size: Size, deployment: &Deployment, findings: &mut Findings) {
    let shape = &deployment.shape;
    let mut add = |figure: &str, value: f64, unit: &'static str, bar: Option<f64>| {
        let finding = Finding::new(scene, size.name(), figure, value, unit).of(shape);
        findings.add(bar.map_or(finding.clone(), |bar| finding.at_most(bar)));
    };
    add("everything is ready after", deployment.ready_after.as_secs_f64(), "s", None);
    std::thread::sleep(plan.settle);

    let (complaints, of_broker) = (deployment.complaints(), deployment.broker.complaints());
    let before = traffic(deployment);
    let since = Instant::now();
    let watches = Watches::start(deployment);
    std::thread::sleep(plan.watch);
    let busiest = busiest(&watches.brokers);
    let (gateway, workers) = (watches.gateway.percent(), watches.workers.percent());
    let hosted = watches.gateways.as_ref().map(CpuWatch::percent);
    let ours = watches.brokers.iter().map(CpuWatch::percent).sum::<f64>() + gateway + hosted.unwrap_or(0.0) + workers;
    let others = (watches.machine.percent() - ours).max(0.0);
    let after = traffic(deployment);
    let seconds = since.elapsed().as_secs_f64();

    add(figure::BROKER_CPU, busiest, "%", Some(BROKER_BAR));
    add(figure::GATEWAY_CPU, gateway, "%", Some(GATEWAY_BAR));
    if let Some(hosted) = hosted {
        add("gateway that is hosted, CPU", hosted / (shape.gateways - 1) as f64, "%", None);
    }
    add(figure::WORKER_CPU, workers / shape.workers() as f64, "%", None);
    // Shows whether other processes have distorted the figures.
    add("everything else on the machine, CPU", others, "%", None);
    let memory = deployment.broker.processes().into_iter().map(resident_mebibytes).fold(0.0, f64::max);
    add("broker, memory", memory, "MiB", None);
    add("gateway, memory", resident_mebibytes(deployment.gateway.id()), "MiB", None);
    let memory: f64 = deployment.worker_hosts().iter().map(|host| resident_mebibytes(host.id())).sum();
    add("worker, memory", memory / shape.workers() as f64, "MiB", None);
    let a_second = |of: fn(&Traffic) -> f64| (of(&after) - of(&before)) / seconds;
    add(figure::MESSAGES_IN, a_second(|traffic| traffic.messages_in), "1/s", None);
    add(figure::MESSAGES_OUT, a_second(|traffic| traffic.messages_out), "1/s", None);
    add("bytes into the broker", a_second(|traffic| traffic.bytes_in) / 1024.0, "KiB/s", None);
    add(figure::BYTES_OUT, a_second(|traffic| traffic.bytes_out) / 1024.0, "KiB/s", None);
    add("connections", after.connections, "", None);
    if let Some(stored) = deployment.broker.stored() {
        add("streams", stored.streams, "", None);
        add("consumers", stored.consumers, "", None);
        add("memory that streams reserve", stored.reserved / f64::from(1 << 20), "MiB", None);
    }
    add("warnings and errors meanwhile", (deployment.complaints() - complaints) as f64, "", Some(0.0));
    add("warnings and errors of the broker meanwhile", (deployment.broker.complaints() - of_broker) as f64, "", None);
    add("connections cut for reading too slowly", after.slow_consumers, "", Some(0.0));
    deployment.show_complaints();
    deployment.broker.show_complaints();
}

/// Watches the brokers after every process of the product was killed: the queues are still there.
pub fn queues_alone(plan: &Plan, scene: &str, size: Size, deployment: &Deployment, findings: &mut Findings) {
    std::thread::sleep(plan.settle.max(PULLS_END));
    let watches = brokers(deployment);
    std::thread::sleep(plan.watch);
    let finding = Finding::new(scene, size.name(), "broker without workers and gateways, CPU", busiest(&watches), "%");
    findings.add(finding.of(&deployment.shape));
}

fn brokers(deployment: &Deployment) -> Vec<CpuWatch> {
    deployment.broker.processes().into_iter().map(|id| CpuWatch::start(vec![id])).collect()
}

fn busiest(brokers: &[CpuWatch]) -> f64 {
    brokers.iter().map(CpuWatch::percent).fold(0.0, f64::max)
}

fn traffic(deployment: &Deployment) -> Traffic {
    broker::traffic(deployment.broker.monitors()).expect("a broker at rest answers about itself")
}

// === impl Watches ===

impl Watches {
    fn start(deployment: &Deployment) -> Watches {
        let of = |processes: &[Process]| CpuWatch::start(processes.iter().map(Process::id).collect());
        Watches {
            brokers: brokers(deployment),
            gateway: CpuWatch::start(vec![deployment.gateway.id()]),
            gateways: deployment.gateway_host().map(|host| CpuWatch::start(vec![host.id()])),
            workers: of(deployment.worker_hosts()),
            machine: MachineWatch::start(),
        }
    }
}
