//! Signals, and files that a process reads again while it runs.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Setup, Stage, children, in_every_mode, product, wait_until, workspace,
};

const LIMIT: Duration = Duration::from_secs(60);

in_every_mode!(a_hangup_reads_files_again_and_ends_nothing, keys_are_added_and_revoked_while_the_server_runs);

fn a_hangup_reads_files_again_and_ends_nothing(mode: Mode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    fs::write(path("keys"), "alice=the-first-key-of-alice\n").expect("written");
    fs::write(path("level"), "info\n").expect("written");
    for name in ["server.pem", "server.key"] {
        fs::copy(workspace().join("tests/certificates").join(name), path(name)).expect("copied");
    }
    let keys = format!("file:{}", path("keys"));
    let level = format!("file:{}", path("level"));
    let (certificate, key) = (path("server.pem"), path("server.key"));
    let flags = [
        &["--api-key", &keys, "--grpc-use-ssl", "--grpc-server-cert", &certificate, "--grpc-server-key", &key][..],
        &["--log-level", &level],
    ];
    let models = ModelFolder::basic(&["simple"]);
    let setup = Setup::new(mode).repository(models.path()).gateway_arguments(&flags.concat());
    let mut sandbox = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start();
    let status = |key: &str| {
        let asked = Request::get("/v2/models/simple/config").header("X-API-Key", key);
        sandbox.send(&asked).status
    };
    assert_eq!((status("the-first-key-of-alice"), status("the-other-key-of-alice")), (200, 401));

    fs::write(path("keys"), "alice=the-other-key-of-alice\n").expect("written");
    fs::write(path("level"), "debug\n").expect("written");
    for ignored in [Signal::USR1, Signal::USR2, Signal::HUP] {
        sandbox.gateway.signal(ignored);
    }
    wait_until("the keys are read", LIMIT, || (status("the-other-key-of-alice") == 200).then_some(()));
    assert_eq!((status("the-first-key-of-alice"), status("the-other-key-of-alice")), (401, 200));
    wait_until("the level is read", LIMIT, || {
        (sandbox.gateway.count("the log level was read again") == 1).then_some(())
    });
    let asked = Request::get("/v2/logging").header("X-API-Key", "the-other-key-of-alice");
    assert_eq!(sandbox.send(&asked).json()["log_verbose_level"], 1, "1 is debug");

    fs::write(path("keys"), "\n").expect("written");
    let refused = "cannot be read again; the last ones stay";
    wait_until("the empty file is refused", LIMIT, || (sandbox.gateway.count(refused) >= 1).then_some(()));
    assert_eq!(status("the-other-key-of-alice"), 200, "the last keys stay");

    if mode == Mode::Services {
        let worker = sandbox.worker(Stage::Model, 0);
        for ignored in [Signal::USR1, Signal::USR2, Signal::HUP] {
            worker.signal(ignored);
        }
        let heard = "SIGHUP: files that can be read again are read";
        wait_until("the worker heard it", LIMIT, || (worker.count(heard) == 1).then_some(()));
        worker.signal(Signal::QUIT);
        assert_eq!(worker.wait_exit(LIMIT).code(), Some(0), "{}", worker.log_tail());
    }
    sandbox.gateway.signal(Signal::QUIT);
    assert_eq!(sandbox.gateway.wait_exit(LIMIT).code(), Some(0), "{}", sandbox.gateway.log_tail());
}

fn keys_are_added_and_revoked_while_the_server_runs(mode: Mode) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("keys.json").to_str().expect("UTF-8").to_owned();
    let keys = |arguments: &[&str]| -> String {
        let output = product("trireme").arg("keys").args(arguments).args(["--api-key-file", &path]).output();
        let output = output.expect("trireme runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8").trim().to_owned()
    };
    let alice = keys(&["add", "alice"]);
    let models = ModelFolder::basic(&["simple"]);
    let setup = Setup::new(mode).repository(models.path()).gateway_arguments(&["--api-key-file", &path]);
    let sandbox = setup.replicas(Stage::Tokenizer, 0).replicas(Stage::Postprocess, 0).start();
    let status = |key: &str| sandbox.send(&Request::get("/v2/models/simple/config").header("X-API-Key", key)).status;
    assert_eq!((status(&alice), status("trireme_guessed")), (200, 401));

    let bob = keys(&["add", "bob", "--role", "bulk", "--expires-in", "1day"]);
    wait_until("the new key is known", LIMIT, || (status(&bob) == 200).then_some(()));
    let listed = keys(&["list"]);
    assert!(listed.contains("alice") && listed.contains("bulk") && !listed.contains(&bob), "{listed}");
    let line = listed.lines().find(|line| line.contains("alice")).expect("alice's key is listed");
    keys(&["revoke", line.split_whitespace().next().expect("an identifier")]);
    wait_until("the lost key is refused", LIMIT, || (status(&alice) == 401).then_some(()));
    keys(&["revoke", "--owner", "bob"]);
    wait_until("a file without keys admits nobody", LIMIT, || (status(&bob) == 401).then_some(()));
}

#[test]
fn signals_that_a_parent_has_blocked_are_heard() {
    let models = ModelFolder::basic(&["simple"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Python has a mask that it hands on; the shells have none.
    let blocked = "import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGHUP])
os.execv(sys.argv[1], sys.argv[1:])";
    let program = product("trireme").get_program().to_owned();
    let mut command = Command::new(trireme_e2e::python());
    command.args(["-c", blocked]).arg(program).arg("serve").arg("--model-repository").arg(models.path());
    let given = product("trireme");
    command.envs(given.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["--http-port=0", "--grpc-port=0", "--metrics-port=0", "--log-format=json"]);
    let mut process = Process::start("blocked", &mut command, folder.path());
    wait_until("it is ready", LIMIT, || (process.count("ready") == 1).then_some(()));
    process.terminate();
    assert_eq!(process.wait_exit(LIMIT).code(), Some(0));
}

/// Orphans of a container's first process are waited for, and signals reach the program behind it.
#[test]
fn the_first_process_of_a_container_waits_for_orphans() {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]);
        command
    };
    if !unshare().arg("true").status().is_ok_and(|status| status.success()) {
        return println!("not run: there are no namespaces of process ids");
    }
    let code = "
import os
import subprocess
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        # The shell ends at once, and leaves a process that ends later.
        subprocess.run(['sh', '-c', 'setsid sleep 0.2 &'])
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', request.inputs()[0].as_numpy())]) for request in requests]
";
    let config = "backend: 'python' input [{ name: 'IN' data_type: TYPE_INT32 dims: [1] }]
        output [{ name: 'OUT' data_type: TYPE_INT32 dims: [1] }]";
    let models = ModelFolder::new().model("leaves", config).file("leaves/1/model.py", code);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let given = product("trireme");
    let mut command = unshare();
    command.arg(given.get_program()).arg("serve").arg("--model-repository").arg(models.path());
    command.envs(given.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.arg("--python").arg(trireme_e2e::python());
    command.args([
        "--http-port=0",
        "--http-address=127.0.0.1",
        "--grpc-port=0",
        "--metrics-port=0",
        "--log-format=json",
    ]);
    let mut process = Process::start("first", &mut command, folder.path());
    wait_until("it is ready", LIMIT, || {
        assert!(process.exited().is_none(), "{}", process.log_tail());
        (process.count("ready") == 1).then_some(())
    });
    let events = process.events();
    let listener = events.iter().find(|event| event["message"] == "HTTP listener").expect("it listens");
    let address = listener["address"].as_str().expect("an address").parse().expect("an address");
    let body = json!({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]});
    for _ in 0..3 {
        let response = Request::infer("leaves", &body).send(address).expect("an answer");
        assert_eq!(response.status, 200, "{}", response.text());
    }
    let [first] = children(process.id())[..] else { panic!("unshare has one child") };
    let of_first = |state: char| {
        let stats = fs::read_dir("/proc").expect("it is there").filter_map(|entry| {
            let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
            let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect();
            (fields[1] == first.as_raw_nonzero().to_string() && fields[0] == state.to_string()).then_some(())
        });
        stats.count()
    };
    // The orphans sleep, end, and are gone.
    wait_until("orphans are waited for", LIMIT, || {
        (of_first('Z') == 0 && children(first.as_raw_nonzero().get() as u32).len() == 1).then_some(())
    });
    rustix::process::kill_process(first, Signal::TERM).expect("it can be signalled");
    assert_eq!(process.wait_exit(LIMIT).code(), Some(0), "{}", process.log_tail());
    assert_eq!(process.count("stopped"), 1, "{}", process.log_tail());
}
