//! Scale: the cost of a cluster of hundreds of workers and gateways for the broker, each gateway and each worker.
//!
//! Workers and gateways are simulated: a process of the harness hosts many of them ([`host`]), each with a connection
//! of its own to a real nats-server. One gateway is the product's own process, so that its cost can be read from the
//! operating system. Models have the backend `identity` and compute nothing: the scenes measure the cost of the
//! members' presence.
//!
//! Invariants:
//! - A scene that breaks is a finding that misses its bar; the other scenes go on.
//! - Every wait and every loop of a scene has a limit.
//! - Only [`flags`] knows the names of the product's flags.
//!
//! Not here: throughput and latency under load (`overload`, and `bench/`), faults (`chaos`).

mod broker;
mod calls;
mod client;
mod crowd;
mod deployment;
mod findings;
mod flags;
pub mod host;
mod idle;
mod joining;
mod load;
mod plan;
mod reading;
mod restart;
mod shape;
mod usage;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use findings::{Finding, Findings};
pub use plan::{Plan, Scene};
pub use shape::Size;
pub use usage::raise_descriptor_limit;

use broker::Broker;
use deployment::Deployment;
use flags::Settings;
use shape::Shape;

/// Runs the scenes of the plan. `progress` gets each finding as it is made.
pub fn run(plan: &Plan, progress: impl FnMut(&Finding) + 'static) -> Findings {
    let mut findings = Findings::new(progress);
    for size in &plan.sizes {
        let shape = size.shape();
        let shared = [Scene::Idle, Scene::Join, Scene::Read].iter().any(|scene| plan.has(*scene));
        if shared {
            guarded(&mut findings, "deployment", size.name(), |findings| on_one_broker(plan, *size, shape, findings));
        }
        if plan.has(Scene::Cluster) {
            guarded(&mut findings, "idle, three brokers", size.name(), |findings| {
                on_three_brokers(plan, *size, shape, findings);
            });
        }
    }
    findings.growth();
    if plan.has(Scene::Crowd) {
        let at = format!("{} workers", plan.crowd);
        guarded(&mut findings, "crowd", &at, |findings| crowd::run(plan, &at, findings));
    }
    if plan.has(Scene::Restart) {
        let at = format!("{} requests", plan.in_flight);
        guarded(&mut findings, "broker restart", &at, |findings| restart::run(plan, &at, findings));
    }
    findings
}

fn on_one_broker(plan: &Plan, size: Size, shape: Shape, findings: &mut Findings) {
    let mut deployment = Deployment::start(Broker::single(), shape, Settings::default(), plan.ready_limit);
    if plan.has(Scene::Idle) {
        guarded(findings, "idle", size.name(), |findings| idle::run(plan, "idle", size, &deployment, findings));
    }
    if plan.has(Scene::Read) {
        guarded(findings, "reading", size.name(), |findings| reading::run(size.name(), &deployment, findings));
    }
    if plan.has(Scene::Join) {
        guarded(findings, "joining", size.name(), |findings| {
            joining::run(plan, size.name(), &mut deployment, findings)
        });
    }
    deployment.check_running();
}

fn on_three_brokers(plan: &Plan, size: Size, shape: Shape, findings: &mut Findings) {
    let settings = Settings { replicas: plan.replicas, ..Settings::default() };
    let mut deployment = Deployment::start(Broker::cluster(plan.ready_limit), shape, settings, plan.ready_limit);
    let scene = "idle, three brokers";
    idle::run(plan, scene, size, &deployment, findings);
    deployment.check_running();
    deployment.kill();
    idle::queues_alone(plan, scene, size, &deployment, findings);
}

/// Runs a scene, or a part of one. A panic becomes a finding.
fn guarded(findings: &mut Findings, scene: &str, at: &str, part: impl FnOnce(&mut Findings)) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| part(&mut *findings))) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message");
        let first = text.lines().next().unwrap_or_default();
        findings.add(Finding::broken(scene, at, first));
    }
}
