//! Limits of owners over three gateways.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use trireme_e2e::{Mode, ModelFolder, Process, Request, Response, Sandbox, Setup, Stage, product, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// Requests per minute that each owner may send.
const RATE: usize = 30;

/// Time between two requests of a client to a gateway.
const PAUSE: Duration = Duration::from_millis(200);

/// Requests that a gateway may admit until it learns of the reached limit, within 250 ms and a message's way.
const UNHEARD: usize = 3;

const OWNERS: [&str; 3] = ["lone", "even", "burst"];

fn flags() -> Vec<String> {
    let keys = OWNERS.map(|owner| format!("--api-key={owner}=the-key-of-the-owner-{owner}"));
    keys.into_iter().chain([format!("--owner=*:rpm={RATE}")]).collect()
}

/// Another gateway of the same system, and where it listens.
fn gateway(sandbox: &Sandbox, models: &Path, folder: &Path, name: &str) -> (Process, SocketAddr) {
    let nats = sandbox.nats.as_ref().expect("services have a broker").url();
    let mut command = product("trireme-gateway");
    command.args(["--nats-url", &nats, "--model-repository"]).arg(models).args(flags());
    let gateway = Process::start(name, &mut command, folder);
    let address = wait_until("the gateway listens", LIMIT, || {
        let listener = gateway.events().into_iter().find(|event| event["message"] == "HTTP listener")?;
        listener["address"].as_str()?.parse().ok()
    });
    wait_until("the gateway is ready", LIMIT, || {
        (Request::get("/v2/models/slow/ready").send(address).ok()?.status == 200).then_some(())
    });
    (gateway, address)
}

fn ask(address: SocketAddr, owner: &str) -> Response {
    let body = json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]});
    let request = Request::infer("slow", &body).header("X-API-Key", &format!("the-key-of-the-owner-{owner}"));
    let answer = request.send(address).expect("an answer");
    assert!([200, 429].contains(&answer.status), "{} {}", answer.status, answer.text());
    answer
}

fn admits(address: SocketAddr, owner: &str) -> bool {
    ask(address, owner).status == 200
}

/// How many requests the gateway admits until it refuses one.
fn until_refused(address: SocketAddr, owner: &str) -> usize {
    let mut admitted = 0;
    wait_until("the gateway hears that the limit is reached", LIMIT, || {
        let admits = admits(address, owner);
        admitted += usize::from(admits);
        std::thread::sleep(PAUSE);
        (!admits).then_some(())
    });
    admitted
}

#[test]
fn a_limit_per_minute_holds_over_three_gateways() {
    let (models, folder) = (ModelFolder::new().slow("slow", 1), tempfile::tempdir().expect("a temporary folder"));
    let flags = flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let setup = Setup::new(Mode::Services).repository(models.path());
    let setup = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0);
    let sandbox = setup.gateway_arguments(&flags).start();
    let start = |name: &str| gateway(&sandbox, models.path(), folder.path(), name);
    let (second, mut third) = (start("second"), start("third"));
    let all = [sandbox.address, second.1, third.1];

    // All at one gateway: exactly as many as the limit says. The others know of them.
    let answers: Vec<Response> = (0..RATE + 10).map(|_| ask(all[0], "lone")).collect();
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), RATE);
    let more: usize = all.iter().map(|&address| until_refused(address, "lone")).sum();
    assert!(more <= 2 * UNHEARD, "{more} more than the limit at gateways that had not heard of it");
    let refused = ask(all[2], "lone");
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), Some("0"));
    assert!(
        refused.error().contains(&format!("has sent {} requests within a minute", RATE + more)),
        "{}",
        refused.text()
    );

    // At the same instant each gateway may let the limit through, and then none of them lets any.
    let (barrier, admitted) = (Barrier::new(24), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..24 {
            let (barrier, admitted) = (&barrier, &admitted);
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..4 {
                    admitted.fetch_add(usize::from(admits(all[number % 3], "burst")), Ordering::Relaxed);
                }
            });
        }
    });
    let burst = admitted.into_inner() + all.iter().map(|&address| until_refused(address, "burst")).sum::<usize>();
    assert!((RATE..=3 * RATE).contains(&burst), "{burst}");

    // Evenly at all of them: each alone would admit all that it is asked for.
    let even = all.map(|_| AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for (address, admitted) in all.into_iter().zip(&even) {
            scope.spawn(move || {
                for _ in 0..RATE - 5 {
                    admitted.fetch_add(usize::from(admits(address, "even")), Ordering::Relaxed);
                    std::thread::sleep(PAUSE);
                }
            });
        }
    });
    let [here, second_here, there] = even.map(AtomicUsize::into_inner);
    let even = here + second_here + there;
    assert!((RATE..=RATE + 3 * UNHEARD).contains(&even), "{even} of {} requests", 3 * (RATE - 5));

    // Requests that a killed gateway has admitted go on counting. A new gateway learns what the running gateways have admitted.
    third.0.kill();
    assert!(!admits(all[0], "even") && !admits(all[1], "even"));
    let (_fourth, fourth) = start("fourth");
    let left = RATE - here - second_here;
    let hears = (1..=left).any(|asked| {
        let remaining = (left - asked).to_string();
        ask(fourth, "even").header("x-ratelimit-remaining-requests") == Some(&*remaining)
    });
    assert!(hears, "{here} and {second_here} requests of the others");
}
