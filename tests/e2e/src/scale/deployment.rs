//! A broker with gateways and workers, most of them simulated.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::broker::Broker;
use super::flags::Settings;
use super::host;
use super::shape::Shape;
use crate::{ModelFolder, Process, Request, product};

/// Workers that one process hosts.
const WORKERS_PER_HOST: usize = 50;

/// Pause between two checks whether the deployment is ready; each check takes CPU time from the start itself.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Number of kinds of warnings and errors that are shown.
const KINDS_SHOWN: usize = 5;

/// In the warning of a gateway about the repository that the harness gives it.
const EMPTY: &str = "ensembles is empty";

/// How long a host may take to stop.
const EXIT_LIMIT: Duration = Duration::from_secs(90);

/// A running deployment. All of it is killed when dropped.
pub struct Deployment {
    /// The parts it was started with.
    pub shape: Shape,
    /// Processes that host workers.
    hosts: Vec<Process>,
    /// Number of workers that were started so far.
    workers: usize,
    /// The process that hosts all gateways except the first.
    gateways: Option<Process>,
    /// The gateway that has a process of its own.
    pub gateway: Process,
    /// The gateways' addresses for HTTP; the first one is that of the gateway with a process of its own.
    pub addresses: Vec<SocketAddr>,
    /// The address for gRPC of the gateway with a process of its own.
    pub grpc: SocketAddr,
    /// That gateway's address for metrics.
    pub metrics: SocketAddr,
    /// The broker.
    pub broker: Broker,
    /// Time until every gateway knew every model.
    pub ready_after: Duration,
    settings: Settings,
    ready_limit: Duration,
    repositories: Vec<ModelFolder>,
    folder: TempDir,
}

// === impl Deployment ===

impl Deployment {
    /// Starts the deployment and waits until every gateway serves every model, for `ready_limit` at most.
    ///
    /// # Panics
    /// When it takes longer, or when a process ends.
    pub fn start(broker: Broker, shape: Shape, settings: Settings, ready_limit: Duration) -> Deployment {
        let started = Instant::now();
        let folder = tempfile::Builder::new().prefix("trireme-scale-").tempdir().expect("a temporary folder");
        // A gateway without a repository warns that it knows no ensembles; one with an empty repository warns of that ([`EMPTY`]).
        let ensembles = folder.path().join("ensembles");
        fs::create_dir(&ensembles).expect("the temporary folder can be written");
        let mut flags = settings.gateway(&broker.url());
        flags.push(format!("--model-repository={}", ensembles.display()));
        let mut command = product("trireme-gateway");
        command.args(&flags);
        let mut gateway = Process::start("gateway", &mut command, folder.path());
        let metrics =
            wait(&mut gateway, "its metrics listener", ready_limit, |log| listeners(log, "metrics listener").pop());
        let mut addresses = listeners(&gateway.events(), "HTTP listener");
        let grpc = listeners(&gateway.events(), "gRPC listener").pop().expect("a gateway logs where it listens");
        let gateways = (shape.gateways > 1).then(|| {
            let mut command = product("scale");
            command.arg("host-gateways");
            command.args((1..shape.gateways).map(|number| format!("--gateway=gateway-{number}")));
            command.arg("--").args(&flags);
            start_host("gateways", &mut command, &folder, ready_limit)
        });
        addresses.extend(gateways.iter().flat_map(|host| listeners(&host.events(), "HTTP listener")));
        let repositories = shape.repositories();
        let ready_after = Duration::ZERO;
        let (hosts, workers) = (Vec::new(), 0);
        #[rustfmt::skip]
        let mut deployment = Deployment {
            shape, hosts, workers, gateways, gateway, addresses, grpc, metrics, broker, ready_after, settings, ready_limit,
            repositories, folder,
        };
        deployment.hosts = deployment.add_workers(shape.workers());
        deployment.wait_models(shape.models());
        deployment.ready_after = started.elapsed();
        deployment
    }

    /// Starts additional workers, which host the same models as the others, and waits until they are ready. Returns
    /// their processes.
    pub fn add_workers(&mut self, count: usize) -> Vec<Process> {
        let numbers: Vec<usize> = (self.workers..self.workers + count).collect();
        self.workers += count;
        let mut hosts: Vec<Process> =
            numbers.chunks(WORKERS_PER_HOST).map(|numbers| self.start_workers(numbers)).collect();
        for host in &mut hosts {
            wait_ready(host, self.ready_limit);
        }
        hosts
    }

    fn start_workers(&self, numbers: &[usize]) -> Process {
        let mut command = product("scale");
        command.arg("host-workers");
        for number in numbers {
            let repository = self.repositories[number % self.repositories.len()].path();
            command.arg(format!("--worker=worker-{number}={}", repository.display()));
        }
        command.arg("--").args(self.settings.worker(&self.broker.url()));
        Process::start(&format!("workers-from-{}", numbers[0]), &mut command, self.folder.path())
    }

    /// Stops these hosts, all at once, and waits until they have ended.
    ///
    /// # Panics
    /// When a host ends with an error, or does not end.
    pub fn stop(hosts: Vec<Process>) {
        hosts.iter().for_each(Process::terminate);
        for mut host in hosts {
            let status = host.wait_exit(EXIT_LIMIT);
            assert!(status.success(), "{} ended with {status}: {}", host.name(), host.last_words().join(" "));
        }
    }

    /// Kills every process of the product. The broker keeps its queues.
    pub fn kill(&mut self) {
        let gateways = std::iter::once(&mut self.gateway).chain(&mut self.gateways);
        gateways.chain(&mut self.hosts).for_each(Process::kill);
    }

    /// Waits until every gateway serves this many models.
    fn wait_models(&mut self, count: usize) {
        let give_up = Instant::now() + self.ready_limit;
        let index = Request::post("/v2/repository/index", "{\"ready\": true}");
        for address in self.addresses.clone() {
            loop {
                let answer =
                    index.send(address).ok().and_then(|answer| serde_json::from_slice::<Value>(&answer.body).ok());
                let known = answer.as_ref().and_then(Value::as_array).map_or(0, Vec::len);
                if known >= count {
                    break;
                }
                self.check_running();
                assert!(
                    Instant::now() < give_up,
                    "a gateway serves {known} of {count} models after the time to get ready"
                );
                std::thread::sleep(LOOK_PAUSE);
            }
        }
    }

    /// Every process of the product.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        std::iter::once(&self.gateway).chain(&self.gateways).chain(&self.hosts)
    }

    /// The process that hosts all gateways except the first, if there are any.
    pub fn gateway_host(&self) -> Option<&Process> {
        self.gateways.as_ref()
    }

    /// The processes that host workers.
    pub fn worker_hosts(&self) -> &[Process] {
        &self.hosts
    }

    /// Number of warnings and errors that all processes have logged.
    pub fn complaints(&self) -> usize {
        self.count(is_complaint)
    }

    /// Number of these events that all processes have logged.
    pub fn count(&self, is_counted: impl Fn(&Value) -> bool) -> usize {
        self.processes().map(|process| process.events().iter().filter(|event| is_counted(event)).count()).sum()
    }

    /// Prints the warnings and errors with their number, the most frequent first.
    pub fn show_complaints(&self) {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for event in self.processes().flat_map(Process::events).filter(is_complaint) {
            let field = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
            *counts.entry(format!("{} {}", field("message"), field("error"))).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts.iter().take(KINDS_SHOWN).for_each(|(text, count)| println!("  logged {count} times: {text}"));
    }

    /// The names of all models.
    pub fn models(&self) -> Vec<String> {
        (0..self.shape.models()).map(|number| self.shape.model_name(number)).collect()
    }

    /// # Panics
    /// When a process has ended.
    pub fn check_running(&mut self) {
        let gateways = std::iter::once(&mut self.gateway).chain(&mut self.gateways);
        for process in gateways.chain(&mut self.hosts) {
            if let Some(status) = process.exited() {
                panic!("{} has ended with {status}: {}", process.name(), process.last_words().join(" "));
            }
        }
    }
}

/// Whether a line of a log is a warning or an error.
fn is_complaint(event: &Value) -> bool {
    let is_expected = event["message"].as_str().is_some_and(|message| message.contains(EMPTY));
    !is_expected && event["level"].as_str().is_some_and(|level| level == "WARN" || level == "ERROR")
}

/// The addresses of the listeners with this name.
fn listeners(events: &[Value], name: &str) -> Vec<SocketAddr> {
    let of_name = events.iter().filter(|event| event["message"] == name);
    of_name.filter_map(|event| event["address"].as_str()?.parse().ok()).collect()
}

fn start_host(name: &str, command: &mut Command, folder: &TempDir, limit: Duration) -> Process {
    let mut host = Process::start(name, command, folder.path());
    wait_ready(&mut host, limit);
    host
}

fn wait_ready(host: &mut Process, limit: Duration) {
    let is_ready = |events: &[Value]| events.iter().any(|event| event["message"] == host::ALL_READY).then_some(());
    wait(host, "everything that it hosts", limit, is_ready);
}

/// Waits until `find` returns a value for the log of a process.
fn wait<T>(process: &mut Process, what: &str, limit: Duration, find: impl Fn(&[Value]) -> Option<T>) -> T {
    let give_up = Instant::now() + limit;
    loop {
        if let Some(found) = find(&process.events()) {
            return found;
        }
        if let Some(status) = process.exited() {
            panic!("{} has ended with {status}: {}", process.name(), process.last_words().join(" "));
        }
        assert!(Instant::now() < give_up, "{} was not ready in {} s: {what}", process.name(), limit.as_secs());
        std::thread::sleep(LOOK_PAUSE);
    }
}
