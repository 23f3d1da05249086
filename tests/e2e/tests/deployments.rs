//! Two deployments on one broker: one is upgraded while the other serves.

use std::net::SocketAddr;
use std::sync::{Mutex, RwLock};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use trireme_e2e::{ModelFolder, Process, Request, load_during, product, wait_until};
use trireme_testkit::NatsServer;

const SOON: Duration = Duration::from_secs(60);
const CONCURRENCY: usize = 16;

/// One request of so many is durable.
const DURABLE: usize = 8;

/// A gateway and a worker, and the new ones while they are upgraded.
struct Deployment<'a> {
    name: &'static str,
    /// The datatype of its model, which has the same name in both deployments.
    datatype: &'static str,
    nats: &'a NatsServer,
    models: ModelFolder,
    folder: TempDir,
    /// The gateway that clients connect to.
    address: RwLock<SocketAddr>,
    /// The durable requests: the path of each and its number.
    accepted: Mutex<Vec<(String, usize)>>,
}

// === impl Deployment ===

impl<'a> Deployment<'a> {
    fn new(name: &'static str, datatype: &'static str, nats: &'a NatsServer) -> Deployment<'a> {
        let config = format!(
            "backend: 'identity' max_batch_size: 4 instance_group [{{ count: 1 kind: KIND_CPU }}]
             input [{{ name: 'INPUT0' data_type: TYPE_{datatype} dims: [1] }}]
             output [{{ name: 'OUTPUT0' data_type: TYPE_{datatype} dims: [1] }}]
             parameters {{ key: 'execute_delay_ms' value {{ string_value: '5' }} }}"
        );
        let models = ModelFolder::new().model("shared", &config);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = RwLock::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        Deployment { name, datatype, nats, models, folder, address, accepted: Mutex::default() }
    }

    /// Starts a gateway or a worker.
    fn start(&self, binary: &str, generation: &str) -> Process {
        let mut command = product(binary);
        command.args(["--nats-url", &self.nats.url(), "--deployment", self.name]);
        command.arg("--model-repository").arg(self.models.path());
        Process::start(&format!("{}-{binary}-{generation}", self.name), &mut command, self.folder.path())
    }

    /// Waits until this gateway serves; clients connect to it from then on.
    fn use_gateway(&self, gateway: &Process) {
        let address = wait_until("the gateway listens", SOON, || {
            let events = gateway.events();
            events.iter().find(|event| event["message"] == "HTTP listener")?["address"].as_str()?.parse().ok()
        });
        let ready = Request::get("/v2/health/ready");
        wait_until("the gateway is ready", SOON, || ready.send(address).is_ok_and(|r| r.status == 200).then_some(()));
        *self.address.write().expect("no holder panics") = address;
    }

    /// Sends a request to the gateway of the moment. A client may meet the closed listener of the former one.
    fn send(&self, request: &Request) -> trireme_e2e::Response {
        loop {
            let address = *self.address.read().expect("no holder panics");
            match request.send(address) {
                Ok(answer) => return answer,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                Err(error) => panic!("{} at {address}: {error}", self.name),
            }
            assert_ne!(*self.address.read().expect("no holder panics"), address, "{}: refused", self.name);
        }
    }

    /// # Panics
    /// Unless the answer is that of this deployment's model.
    fn assert_answer(&self, answer: &Value, number: usize) {
        let output = &answer["outputs"][0];
        assert_eq!(
            (output["datatype"].as_str(), output["data"][0].as_f64()),
            (Some(self.datatype), Some(number as f64))
        );
    }

    fn ask(&self, number: usize) {
        let input = json!({"name": "INPUT0", "datatype": self.datatype, "shape": [1, 1], "data": [number]});
        let request = Request::infer("shared", &json!({"inputs": [input]}));
        if number.is_multiple_of(DURABLE) {
            let answer = self.send(&request.header("Prefer", "respond-async"));
            assert_eq!(answer.status, 202, "{}", answer.text());
            let path = format!("{}/response", answer.header("location").expect("a location"));
            self.accepted.lock().expect("no holder panics").push((path, number));
        } else {
            let answer = self.send(&request);
            assert_eq!(answer.status, 200, "{}", answer.text());
            self.assert_answer(&answer.json(), number);
        }
    }

    /// Waits for the answers of the durable requests.
    fn wait_durable(&self) {
        let accepted = std::mem::take(&mut *self.accepted.lock().expect("no holder panics"));
        assert!(!accepted.is_empty(), "{}: no durable request", self.name);
        for (path, number) in accepted {
            let request = Request::get(&path);
            let answer = wait_until("the durable request is answered", SOON, || {
                Some(self.send(&request)).filter(|answer| answer.status != 202)
            });
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            self.assert_answer(&answer.json(), number);
        }
    }
}

/// Sends SIGTERM, as an orchestrator does, and waits until the process has finished its requests.
fn stop(mut process: Process) {
    process.terminate();
    assert_eq!(process.wait_exit(SOON).code(), Some(0), "{}", process.log_tail());
}

/// `green` is upgraded three times in the order of docs/operations.md, gateways first, while both deployments are under load. All
/// requests of both are answered by their own model.
#[test]
fn one_deployment_is_upgraded_while_the_other_serves() {
    let nats = NatsServer::start();
    let (blue, green) = (Deployment::new("blue", "FP32", &nats), Deployment::new("green", "INT64", &nats));
    let start = |of: &Deployment<'_>| {
        let (gateway, worker) = (of.start("trireme-gateway", "old"), of.start("trireme-model", "old"));
        of.use_gateway(&gateway);
        (gateway, worker)
    };
    let _blue = start(&blue);
    let (mut gateway, mut worker) = start(&green);
    let outcome = load_during(
        CONCURRENCY,
        |number| [&blue, &green][number % 2].ask(number / 2),
        || {
            for upgrade in ["first", "second", "third"] {
                let new = green.start("trireme-gateway", upgrade);
                green.use_gateway(&new);
                stop(std::mem::replace(&mut gateway, new));
                let new = green.start("trireme-model", upgrade);
                wait_until("the new worker is ready", SOON, || (new.count("ready") > 0).then_some(()));
                stop(std::mem::replace(&mut worker, new));
            }
        },
    );
    outcome.assert_all_right(outcome.right);
    println!("{} requests, the slowest took {:?}", outcome.right, outcome.slowest);
    blue.wait_durable();
    green.wait_durable();
}
