//! [`Sandbox`]: the whole system as processes, in one of two [`Mode`]s.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use trireme_testkit::{NatsServer, Note, note};

use crate::{Process, Request, Response, basic_repository, product, wait_until};

/// How long the whole system may take to become ready. It usually takes about a second, but test machines can be busy.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// How the system is deployed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `trireme serve`: one process.
    AllInOne,
    /// A nats-server, the gateway and the three stage services.
    Services,
}

/// A stage service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is a service's own name")]
pub enum Stage {
    Tokenizer,
    Model,
    Postprocess,
    Python,
}

/// Options of a sandbox.
#[derive(Clone, Debug)]
pub struct Setup {
    mode: Mode,
    repository: PathBuf,
    gateway_arguments: Vec<String>,
    worker_arguments: Vec<String>,
    queue_arguments: Vec<String>,
    environment: Vec<(String, String)>,
    passwords: Option<PathBuf>,
    gateway_broker: Option<String>,
    tokenizers: usize,
    models: usize,
    postprocesses: usize,
    pythons: usize,
}

/// A running system. When it is dropped, all of its processes are killed. When a test fails, the ends of the logs are
/// printed.
pub struct Sandbox {
    setup: Setup,
    /// The gateway, or in [`Mode::AllInOne`] the one process.
    pub gateway: Process,
    /// All processes of stage services, in the order in which they were started.
    workers: Vec<(Stage, Process)>,
    /// Where the gateway listens.
    pub address: SocketAddr,
    /// The broker; `None` in [`Mode::AllInOne`].
    pub nats: Option<NatsServer>,
    folder: TempDir,
}

// === impl Stage ===

impl Stage {
    const ALL: [Stage; 4] = [Stage::Tokenizer, Stage::Model, Stage::Postprocess, Stage::Python];

    /// The service's own name.
    pub fn service(self) -> &'static str {
        self.binary().trim_start_matches("trireme-")
    }

    /// The name of the service's binary.
    pub fn binary(self) -> &'static str {
        match self {
            Stage::Tokenizer => "trireme-tokenizer",
            Stage::Model => "trireme-model",
            Stage::Postprocess => "trireme-postprocess",
            Stage::Python => "trireme-python",
        }
    }
}

// === impl Setup ===

impl Setup {
    /// The basic repository, one process of each service that it has models for.
    pub fn new(mode: Mode) -> Setup {
        Setup {
            mode,
            repository: basic_repository(),
            gateway_arguments: Vec::new(),
            worker_arguments: Vec::new(),
            queue_arguments: Vec::new(),
            environment: Vec::new(),
            passwords: None,
            gateway_broker: None,
            tokenizers: 1,
            models: 1,
            postprocesses: 1,
            pythons: 0,
        }
    }

    /// Serves this model repository.
    pub fn repository(self, path: &Path) -> Setup {
        Setup { repository: path.to_owned(), ..self }
    }

    /// Starts this many processes of a stage service, in [`Mode::Services`].
    pub fn replicas(mut self, stage: Stage, count: usize) -> Setup {
        match stage {
            Stage::Tokenizer => self.tokenizers = count,
            Stage::Model => self.models = count,
            Stage::Postprocess => self.postprocesses = count,
            Stage::Python => self.pythons = count,
        }
        self
    }

    /// Additional arguments of the gateway.
    pub fn gateway_arguments(self, arguments: &[&str]) -> Setup {
        Setup { gateway_arguments: owned(arguments), ..self }
    }

    /// Additional arguments of every process that hosts models.
    pub fn worker_arguments(self, arguments: &[&str]) -> Setup {
        Setup { worker_arguments: owned(arguments), ..self }
    }

    /// Arguments about the deployment's queues, for its gateway or for the one process.
    pub fn queue_arguments(self, arguments: &[&str]) -> Setup {
        Setup { queue_arguments: owned(arguments), ..self }
    }

    /// Environment variables of every process.
    pub fn environment(self, variables: &[(&str, &str)]) -> Setup {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Setup { environment: owned.collect(), ..self }
    }

    /// Whether the stages are separate processes.
    pub fn is_services(&self) -> bool {
        self.mode == Mode::Services
    }

    /// Makes every process a NATS user named like its service, with the password in `<folder>/<service>`.
    pub fn passwords(self, folder: &Path) -> Setup {
        Setup { passwords: Some(folder.to_owned()), ..self }
    }

    /// Makes the gateway connect to the broker at this URL, for example through a proxy; workers connect directly.
    pub fn gateway_through(self, url: String) -> Setup {
        Setup { gateway_broker: Some(url), ..self }
    }

    /// Starts all processes and waits until they are ready.
    ///
    /// # Panics
    /// When they do not become ready.
    #[track_caller]
    pub fn start(self) -> Sandbox {
        let nats = (self.mode == Mode::Services).then(NatsServer::start);
        self.start_on(nats)
    }

    /// The same with this broker.
    #[track_caller]
    pub fn start_on(self, nats: Option<NatsServer>) -> Sandbox {
        let mut sandbox = self.start_gateway_on(nats);
        if sandbox.nats.is_some() {
            for stage in Stage::ALL {
                for _ in 0..sandbox.setup.count(stage) {
                    sandbox.start_worker(stage);
                }
            }
        }
        sandbox.wait_ready();
        sandbox
    }

    /// Starts the broker and the gateway, or the one process, and nothing else. Does not wait until they are ready.
    #[track_caller]
    pub fn start_gateway(self) -> Sandbox {
        let nats = (self.mode == Mode::Services).then(NatsServer::start);
        self.start_gateway_on(nats)
    }

    /// The same with a broker that need not run: only its port has to be known.
    #[track_caller]
    pub fn start_gateway_on(self, nats: Option<NatsServer>) -> Sandbox {
        let folder = tempfile::Builder::new().prefix("trireme-e2e-").tempdir().expect("a temporary folder");
        let mut command = match &nats {
            None => product("trireme"),
            Some(_) => product("trireme-gateway"),
        };
        match &nats {
            None => command.arg("serve").args(&self.worker_arguments),
            Some(nats) => command.args(["--nats-url", &self.gateway_broker.clone().unwrap_or_else(|| nats.url())]),
        };
        command.arg("--model-repository").arg(&self.repository);
        command.args(&self.gateway_arguments).args(&self.queue_arguments);
        self.log_in(&mut command, "gateway");
        command.envs(self.environment.iter().cloned());
        let name = if nats.is_some() { "gateway" } else { "serve" };
        let gateway = Process::start(name, &mut command, folder.path());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Sandbox { setup: self, gateway, workers: Vec::new(), address, nats, folder }
    }

    fn log_in(&self, command: &mut Command, service: &str) {
        if let Some(folder) = &self.passwords {
            command.args(["--nats-user", service, "--nats-password-file"]).arg(folder.join(service));
        }
    }

    fn count(&self, stage: Stage) -> usize {
        match stage {
            Stage::Tokenizer => self.tokenizers,
            Stage::Model => self.models,
            Stage::Postprocess => self.postprocesses,
            Stage::Python => self.pythons,
        }
    }
}

// === impl Sandbox ===

impl Sandbox {
    /// Starts the system with the defaults of [`Setup::new`].
    #[track_caller]
    pub fn start(mode: Mode) -> Sandbox {
        Setup::new(mode).start()
    }

    /// Starts one more process of a stage service and returns its number within its stage, from 0. Does not wait for
    /// it.
    pub fn start_worker(&mut self, stage: Stage) -> usize {
        let url = self.nats.as_ref().expect("stages are processes of their own in Mode::Services only").url();
        let number = self.workers.iter().filter(|(of, _)| *of == stage).count();
        let mut command = product(stage.binary());
        command.args(["--nats-url", &url, "--model-repository"]).arg(&self.setup.repository);
        command.args(&self.setup.worker_arguments);
        if stage == Stage::Python {
            // The one process allows it by itself.
            command.arg("--allow-python");
        }
        self.setup.log_in(&mut command, stage.service());
        command.envs(self.setup.environment.iter().cloned());
        let name = format!("{}-{number}", stage.binary());
        self.workers.push((stage, Process::start(&name, &mut command, self.folder.path())));
        number
    }

    /// Environment variables of the processes that are started from now on, in place of the earlier ones.
    pub fn set_environment(&mut self, variables: &[(&str, &str)]) {
        self.setup = std::mem::replace(&mut self.setup, Setup::new(Mode::Services)).environment(variables);
    }

    /// The folder of the processes' logs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A process of a stage service, by its number within the stage.
    pub fn worker(&mut self, stage: Stage, number: usize) -> &mut Process {
        let mut of_stage = self.workers.iter_mut().filter(|(of, _)| *of == stage);
        &mut of_stage.nth(number).expect("a worker of this number was started").1
    }

    /// Takes a worker out of the sandbox, with the number as in [`Sandbox::worker`]; the numbers of later workers of its
    /// stage decrease by one.
    pub fn take_worker(&mut self, stage: Stage, number: usize) -> Process {
        let of_stage = self.workers.iter().enumerate().filter(|(_, (of, _))| *of == stage);
        let position = of_stage.map(|(position, _)| position).nth(number).expect("a worker of this number was started");
        self.workers.remove(position).1
    }

    /// Waits until the server reports that it is ready: every model is served, and every running worker has loaded its
    /// models.
    ///
    /// # Panics
    /// When a process ends before that, or when it takes too long.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        let began = Instant::now();
        self.wait_listening();
        wait_until("every worker is ready", READY_LIMIT, || {
            self.check_running();
            self.workers
                .iter_mut()
                .all(|(_, worker)| worker.exited().is_some() || worker.count("ready") > 0)
                .then_some(())
        });
        wait_until("the server is ready", READY_LIMIT, || {
            self.check_running();
            self.is_ready().then_some(())
        });
        note(Note::Ready(began.elapsed()));
    }

    /// Waits until the gateway listens and [`Sandbox::address`] is valid.
    #[track_caller]
    pub fn wait_listening(&mut self) {
        self.address = self.wait_listener("HTTP listener");
    }

    /// The gateway's address for gRPC.
    #[track_caller]
    pub fn grpc_address(&mut self) -> SocketAddr {
        self.wait_listener("gRPC listener")
    }

    /// Waits until the gateway has logged a listener, and returns its address.
    #[track_caller]
    fn wait_listener(&mut self, listener: &str) -> SocketAddr {
        wait_until(&format!("the gateway's {listener}"), READY_LIMIT, || {
            self.check_running();
            let events = self.gateway.events();
            let listening = events.iter().find(|event| event["message"] == listener)?;
            listening["address"].as_str()?.parse().ok()
        })
    }

    /// Every process: the gateway first, then the workers.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        std::iter::once(&self.gateway).chain(self.workers.iter().map(|(_, worker)| worker))
    }

    /// # Panics
    /// When one of the processes has logged this message.
    #[track_caller]
    pub fn assert_never_logged(&self, message: &str) {
        for process in self.processes() {
            assert_eq!(process.count(message), 0, "{}:\n{}", process.name(), process.log_tail());
        }
    }

    /// Checks that no process has failed: the system would not become ready. A process that was killed does not count.
    ///
    /// # Panics
    /// When a process has ended with an error.
    #[track_caller]
    pub fn check_running(&mut self) {
        let processes = std::iter::once(&mut self.gateway).chain(self.workers.iter_mut().map(|(_, worker)| worker));
        for process in processes {
            if let Some(code) = process.exited().and_then(|status| status.code()).filter(|code| *code != 0) {
                panic!("{} has ended with code {code}: {}", process.name(), process.last_words().join(" "));
            }
        }
    }

    /// Whether the server reports that it is ready.
    pub fn is_ready(&self) -> bool {
        Request::get("/v2/health/ready").send(self.address).is_ok_and(|response| response.status == 200)
    }

    /// The status of a model's readiness: 200 or 400.
    pub fn model_ready(&self, model: &str) -> u16 {
        self.get(&format!("/v2/models/{model}/ready")).status
    }

    /// Waits until this many requests are in the queue of a model's version 1, or delivered to its workers.
    ///
    /// # Panics
    /// When that takes too long.
    #[track_caller]
    pub fn wait_queued(&self, model: &str, count: u64) {
        wait_until(&format!("{count} requests for '{model}' are there"), READY_LIMIT, || {
            let status = self.get("/v2/trireme/status").json();
            let queue = &status["models"].as_array()?.iter().find(|found| found["name"] == model)?["queue"];
            (queue["waiting"].as_u64()? + queue["delivered"].as_u64()? == count).then_some(())
        });
    }

    /// Waits until this many requests for a model are delivered to workers.
    #[track_caller]
    pub fn wait_delivered(&self, model: &str, count: u64) {
        wait_until(&format!("{count} requests for '{model}' are with workers"), READY_LIMIT, || {
            let status = self.get("/v2/trireme/status").json();
            let queue = &status["models"].as_array()?.iter().find(|found| found["name"] == model)?["queue"];
            (queue["delivered"].as_u64()? == count).then_some(())
        });
    }

    /// Sends a request.
    ///
    /// # Panics
    /// When it is not answered.
    #[track_caller]
    pub fn send(&self, request: &Request) -> Response {
        match request.send(self.address) {
            Ok(response) => response,
            Err(error) => panic!("no answer to {request:?}: {error}"),
        }
    }

    /// `GET path`.
    #[track_caller]
    pub fn get(&self, path: &str) -> Response {
        self.send(&Request::get(path))
    }

    /// An infer request as JSON.
    #[track_caller]
    pub fn infer(&self, model: &str, body: &Value) -> Response {
        self.send(&Request::infer(model, body))
    }
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}
