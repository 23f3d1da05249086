//! `trireme up`: all processes of a pipeline from one command, healed while it runs and gone with it.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use trireme_e2e::{
    Process, Request, basic_repository, children, golden, numbers, product, python, wait_until, workspace,
};
use trireme_testkit::assert_close;

/// How long a start, an end or a healing may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// `trireme up` over the basic repository, and the gateway's address.
struct Up {
    process: Process,
    address: SocketAddr,
    _folder: TempDir,
}

fn command(arguments: &[&str]) -> Command {
    let mut command = product("trireme");
    let nats = std::env::var_os("TRIREME_NATS_SERVER")
        .map_or_else(|| workspace().join(".tools/nats-server/nats-server"), Into::into);
    command.args(["up", "--nats-server"]).arg(nats).args(arguments).env("TRIREME_NATS_PORT", "0");
    // Neither the broker nor the ports of another deployment are for these processes.
    command.env("TRIREME_NATS_URL", "nats://127.0.0.1:1").env("TRIREME_ADMIN_ADDRESS", "127.0.0.1:1");
    command
}

impl Up {
    fn start(arguments: &[&str]) -> Up {
        Up::start_of(&basic_repository().display().to_string(), arguments)
    }

    fn start_of(repository: &str, arguments: &[&str]) -> Up {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = command(&["--model-repository", repository]);
        command.args(arguments);
        let mut process = Process::start("up", &mut command, folder.path());
        let address = wait_until("all processes are ready", LIMIT, || {
            assert!(process.exited().is_none(), "it has ended:\n{}", process.log_tail());
            let events = process.events();
            let ready = events.iter().find(|event| event["message"] == "ready")?;
            ready["http"].as_str()?.strip_prefix("http://")?.parse().ok()
        });
        Up { process, address, _folder: folder }
    }

    /// Asks for an embedding, and compares it with the one that was computed without the product.
    #[track_caller]
    fn embeds(&self) {
        let golden = golden().remove(0);
        let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden.text]}]});
        let response = Request::infer("tiny_embedding", &body).send(self.address).expect("an answer");
        assert_eq!(response.status, 200, "{}", response.text());
        assert_close(&numbers(&response.json()["outputs"][0]["data"]), &golden.embedding, 1e-5);
    }

    /// The processes that it has started whose command line has this word.
    fn running(&self, word: &str) -> Vec<Pid> {
        children(self.process.id()).into_iter().filter(|pid| words(*pid).iter().any(|found| found == word)).collect()
    }
}

/// The command line of a process.
fn words(pid: Pid) -> Vec<String> {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Whether a process is there, as more than an entry that its parent has not read.
fn lives(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

#[test]
fn a_killed_process_is_started_again_and_the_end_leaves_none() {
    let mut up = Up::start(&["--scale", "model=2,tokenizer=1"]);
    up.embeds();
    let models = up.running("model");
    assert_eq!(models.len(), 2, "{models:?}");
    assert_eq!(up.running("tokenizer").len(), 1);
    for model in &models {
        kill_process(*model, Signal::KILL).expect("a child that is there");
    }
    // Both are gone: the answer comes from one that was started again.
    up.embeds();
    let again = wait_until("two other processes", LIMIT, || {
        Some(up.running("model")).filter(|again| again.len() == 2 && again.iter().all(|pid| !models.contains(pid)))
    });
    assert_eq!(again.len(), 2);
    let told: Vec<_> = up.process.events();
    let told: Vec<_> =
        told.iter().filter(|event| event["message"] == "a process has ended and is started again").collect();
    assert_eq!(told.len(), 2, "one line for each: {told:?}");
    assert!(told.iter().all(|event| event["how"].as_str().is_some_and(|how| how.contains("signal: 9"))), "{told:?}");

    let all = children(up.process.id());
    assert_eq!(all.len(), 6, "a broker, a gateway, a tokenizer, two models, a postprocess: {all:?}");
    up.process.terminate();
    assert!(up.process.wait_exit(LIMIT).success());
    assert_eq!(all.into_iter().filter(|pid| lives(*pid)).collect::<Vec<_>>(), []);
}

#[test]
fn the_broker_is_started_again_with_its_data() {
    let data = tempfile::tempdir().expect("a temporary folder");
    let place = data.path().display().to_string();
    let up = Up::start(&["--data-dir", &place]);
    let [broker] = up.running(&format!("{place}/nats/nats.conf"))[..] else { panic!("one broker") };
    kill_process(broker, Signal::KILL).expect("a child that is there");
    wait_until("an embedding over the new broker", LIMIT, || {
        up.running(&format!("{place}/nats/nats.conf")).iter().any(|pid| *pid != broker).then_some(())
    });
    up.embeds();
    assert!(data.path().join("nats/store/jetstream").is_dir());
}

#[test]
fn stages_that_no_model_needs_are_left_out_and_python_is_not() {
    let repository = workspace().join("tests/repositories/python").display().to_string();
    let up = Up::start_of(&repository, &["--python", &python().display().to_string()]);
    assert_eq!(up.running("python").len(), 1);
    assert_eq!(children(up.process.id()).len(), 3, "a broker, a gateway, a python");
    let body = json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1, 1], "data": ["a boat"]}]});
    let response = Request::infer("upper", &body).send(up.address).expect("an answer");
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.json()["outputs"][0]["data"], json!(["A BOAT"]));
}

#[test]
fn nothing_outlives_a_process_that_is_killed() {
    let mut up = Up::start(&[]);
    let all = children(up.process.id());
    assert_eq!(all.len(), 5, "{all:?}");
    up.process.kill();
    wait_until("the others end by themselves", LIMIT, || (!all.iter().any(|pid| lives(*pid))).then_some(()));
}

#[test]
fn a_person_reads_where_what_is_and_how_to_scale_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let repository = basic_repository().display().to_string();
    let mut command = command(&["--model-repository", &repository, "--scale=postprocess=0", "--log-format=text"]);
    let mut process = Process::start("up", &mut command, folder.path());
    wait_until("it says that all is there", LIMIT, || {
        process.log().contains("Ctrl-C ends everything here.").then_some(())
    });
    let log = process.log();
    for part in [" (HTTP), 127.0.0.1:", " (broker)\n", "  nats-server    process ", "  model 1        process "] {
        assert!(log.contains(part), "expected {part:?} in:\n{log}");
    }
    let line = log.lines().find(|line| line.starts_with("  trireme model ")).expect("the command for one more");
    assert!(!log.contains("  trireme postprocess "), "a stage that is not run has no command:\n{log}");
    // The printed command works: it starts one more process of this deployment.
    let mut more = product("trireme");
    more.args(line.split_whitespace().skip(1));
    let more = Process::start("more", &mut more, folder.path());
    wait_until("the further model process is ready", LIMIT, || more.log().contains("ready worker=").then_some(()));
    process.terminate();
    assert!(process.wait_exit(LIMIT).success());
}

/// The last line of a command that cannot start.
#[track_caller]
fn refusal(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut process = Process::start("up", &mut command(arguments), folder.path());
    assert!(!process.wait_exit(LIMIT).success());
    process.last_words().pop().expect("a last line")
}

#[test]
fn a_start_that_cannot_be_says_why() {
    let repository = basic_repository().display().to_string();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("it is bound").port();
    for flag in ["--http-port", "--nats-port"] {
        let said = refusal(&[&repository, &format!("{flag}={port}")]);
        let expected = format!("error: {flag} {port}: another program listens at 127.0.0.1:{port}; stop it");
        assert!(said.starts_with(&expected), "{said}");
    }
    let said = refusal(&[]);
    assert!(said.starts_with("error: no models are named"), "{said}");
    let said = refusal(&["--model-repository", &repository, "--worker-name=one-for-all"]);
    assert!(said.starts_with("error: --worker-name names one worker"), "{said}");
    let said = refusal(&["--model-repository", &repository, "--onnxruntime-library=/nowhere/libonnxruntime.so"]);
    assert!(said.contains("model 1 ended before all processes were ready (exit status: 1)"), "{said}");
}
