//! How a model's process lives and dies.

use std::time::{Duration, Instant};

use super::model::{self, Model, answer, execute, python, request};
use trireme_inference::ErrorCode;
use trireme_python::AllowPython;
use trireme_runtime::{Instance, Outage};

const LIMIT: Duration = Duration::from_secs(60);

/// Does what its first text says, else tells its process's number.
const OBEDIENT: &str = "
import os, signal, sys, time
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            text = request.inputs()[0].as_numpy()[0].decode()
            if text == 'die':
                os.kill(os.getpid(), signal.SIGKILL)
            elif text == 'exit':
                os._exit(3)
            elif text == 'hang':
                time.sleep(3600)
            elif text == 'garbage':
                os.write(worker(), b'GET / HTTP/1.1\\r\\n\\r\\n')
                time.sleep(3600)
            elif text.startswith('frame '):
                header = text[6:].replace('TICKET', str(request._ticket)).encode()
                os.write(worker(), len(header).to_bytes(4, 'little') + bytes(4) + header)
            elif text == 'wait':
                while not request.is_cancelled():
                    time.sleep(0.001)
                text = 'cancelled'
            elif text.startswith('env '):
                text = os.environ.get(text[4:], 'not there')
            else:
                text = str(os.getpid())
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([text], dtype=np.object_))]))
        return responses
    def finalize(self):
        open(os.path.join(os.path.dirname(__file__), 'finalized'), 'w').close()
def worker():
    return max(int(fd) for fd in os.listdir('/proc/self/fd') if sockets(fd))
def sockets(fd):
    try:
        return os.readlink('/proc/self/fd/' + fd).startswith('socket:')
    except OSError:
        return False
";

/// Waits until the instance's process is there again.
fn wait_back(instance: &mut Instance) {
    let outage = instance.as_batch().unwrap().outage().unwrap();
    let until = Instant::now() + LIMIT;
    while let Some(reason) = Outage::clone(&outage.borrow()) {
        assert!(Instant::now() < until, "it is not there again: {reason}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_process_that_ends_takes_no_request_with_it_and_another_one_comes() {
    let model = Model::texts("", OBEDIENT);
    let mut instance = model.instance();
    let first = answer(&mut instance, &["who"]).unwrap();
    for (way, reason) in [("die", "has ended"), ("exit", "has ended"), ("garbage", "is no frame")] {
        let results = execute(&mut instance, &[request(&["who"]), request(&[way])]);
        for result in results {
            let error = result.unwrap_err();
            assert_eq!(error.code, ErrorCode::Unavailable, "{error}");
            assert!(error.message.contains(reason), "{error}");
        }
        assert!(instance.as_batch().unwrap().outage().unwrap().borrow().is_some(), "it is known at once");
        wait_back(&mut instance);
        assert_ne!(answer(&mut instance, &["who"]).unwrap(), first);
    }
}

#[test]
fn a_value_that_cannot_be_read_is_an_error_and_no_loss() {
    let model = Model::texts("", OBEDIENT);
    let mut instance = model.instance();
    let first = answer(&mut instance, &["who"]).unwrap();
    for bad in [
        r#""outputs": [{"name": 5, "datatype": "BYTES", "shape": [1], "offset": 0, "size": 4}]"#,
        r#""outputs": [{"name": "OUT", "datatype": "BYTES", "shape": [1], "offset": 0, "size": 4}]"#,
        r#""outputs": [], "parameters": {"a": NaN}"#,
        r#""error": {"code": "INTERNAL", "message": "half: \ud83d"}"#,
    ] {
        let frame = format!(r#"frame {{"type": "responses", "responses": [{{"id": TICKET, {bad}}}]}}"#);
        let error = answer(&mut instance, &[&frame]).unwrap_err();
        assert!(error.of_model && error.code == ErrorCode::Internal, "{bad}: {error:?}");
        assert_eq!(answer(&mut instance, &["who"]).unwrap(), first, "{bad}");
    }
    for without_request in [r#"{"type": "log", "message": 5}"#, r#"{"type": "metrics", "changes": [{"name": NaN}]}"#] {
        assert!(answer(&mut instance, &[&format!("frame {without_request}")]).is_ok());
    }
    assert_eq!(answer(&mut instance, &["who"]).unwrap(), first);
}

#[test]
fn one_that_dies_while_nothing_is_asked_of_it_is_noticed() {
    let model = Model::texts("", OBEDIENT);
    let mut instance = model.instance();
    let mut outage = instance.as_batch().unwrap().outage().unwrap();
    let pid: i32 = answer(&mut instance, &["who"]).unwrap()[0].parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let noticed = tokio::time::timeout(LIMIT, outage.wait_for(Option::is_some)).await.expect("it is noticed");
        assert!(noticed.unwrap().as_ref().unwrap().contains("signal: 9"));
    });
    wait_back(&mut instance);
    assert_ne!(answer(&mut instance, &["who"]).unwrap(), [pid.to_string()]);
}

#[test]
fn an_execution_past_the_limit_is_ended_with_its_process() {
    let model = Model::texts("", OBEDIENT);
    let mut instance = model.instance();
    let stop = instance.as_batch().unwrap().stop().unwrap();
    let ender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        assert!(stop.kill());
    });
    let error = answer(&mut instance, &["hang"]).unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    ender.join().unwrap();
    wait_back(&mut instance);
    answer(&mut instance, &["who"]).unwrap();
}

#[test]
fn a_model_hears_that_nobody_waits_any_more() {
    let model = Model::texts("", OBEDIENT);
    let mut instance = model.instance();
    let waiting = request(&["wait"]);
    let cancelled = waiting.cancelled.clone();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        cancelled.cancel();
    });
    let response = execute(&mut instance, &[waiting]).remove(0).unwrap();
    assert_eq!(model::texts(&response.outputs[0]), ["cancelled"]);
    canceller.join().unwrap();
}

#[test]
fn a_model_is_finalized_and_its_process_ends() {
    let model = Model::texts("instance_group [{ count: 2 kind: KIND_CPU }]", OBEDIENT);
    let mut loaded = model.load().unwrap();
    let pids: Vec<String> =
        loaded.instances.iter_mut().map(|instance| answer(instance, &["who"]).unwrap().remove(0)).collect();
    assert_ne!(pids[0], pids[1], "each instance has a process of its own");
    drop(loaded);
    assert!(model.path().join("finalized").exists());
    for pid in pids {
        assert!(!std::path::Path::new("/proc").join(pid).exists());
    }
}

#[test]
fn a_process_with_too_much_memory_is_ended_and_started_again() {
    let code = "
class TritonPythonModel:
    def execute(self, requests):
        if requests[0].inputs()[0].as_numpy()[0] == b'much':
            self.much = np.ones(1 << 28, dtype=np.uint8)
            while not requests[0].is_cancelled():
                pass
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(['little'], dtype=np.object_))])]
";
    let mut model = Model::texts("", code);
    model.options.memory_limit = Some(200 << 20);
    let mut instance = model.instance();
    assert_eq!(answer(&mut instance, &["x"]).unwrap(), ["little"]);
    let error = answer(&mut instance, &["much"]).unwrap_err();
    assert_eq!(error.code, ErrorCode::Unavailable);
    wait_back(&mut instance);
    assert_eq!(answer(&mut instance, &["x"]).unwrap(), ["little"]);
}

/// Starts a process of its own, prints much, or exits.
const BUSY: &str = "
import os, subprocess, sys
class TritonPythonModel:
    def execute(self, requests):
        text = requests[0].inputs()[0].as_numpy()[0].decode()
        if text == 'start':
            text = str(subprocess.Popen(['sleep', '3600']).pid)
        elif text == 'print':
            for _ in range(64):
                sys.stdout.write('x' * (1 << 20))
            print(flush=True)
        elif text == 'exit':
            os._exit(0)
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array([text], dtype=np.object_))])]
";

#[test]
fn processes_that_a_model_has_started_end_with_it() {
    let model = Model::texts("", BUSY);
    let mut instance = model.instance();
    let started = answer(&mut instance, &["start"]).unwrap().remove(0);
    let lives = || {
        let state = std::fs::read_to_string(format!("/proc/{started}/stat")).unwrap_or_default();
        state.rsplit_once(')').is_some_and(|(_, fields)| !fields.trim_start().starts_with('Z'))
    };
    assert!(lives());
    assert_eq!(answer(&mut instance, &["exit"]).unwrap_err().code, ErrorCode::Unavailable);
    wait_back(&mut instance);
    assert!(!lives(), "its own process is gone, too");
}

#[test]
fn much_output_holds_nothing_up() {
    let mut instance = Model::texts("", BUSY).instance();
    assert_eq!(answer(&mut instance, &["print"]).unwrap(), ["print"]);
    assert_eq!(answer(&mut instance, &["x"]).unwrap(), ["x"]);
}

#[test]
fn a_model_says_whether_it_is_ready() {
    let code = "
import os
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', r.inputs()[0].as_numpy())]) for r in requests]
    async def is_ready(self):
        folder = os.path.dirname(__file__)
        if os.path.exists(os.path.join(folder, 'broken')):
            raise RuntimeError('nothing works')
        return not os.path.exists(os.path.join(folder, 'closed'))
";
    let model = Model::texts("", code);
    let mut instance = model.instance();
    let outage = instance.as_batch().unwrap().outage().unwrap();
    assert!(outage.borrow().is_none());
    for reason in ["closed", "broken"] {
        let file = model.path().join(reason);
        std::fs::write(&file, "").unwrap();
        let until = Instant::now() + LIMIT;
        while outage.borrow().is_none() {
            assert!(Instant::now() < until, "it is noticed");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(outage.borrow().as_deref(), Some("its is_ready says that it is not ready"));
        std::fs::remove_file(&file).unwrap();
        wait_back(&mut instance);
        assert_eq!(answer(&mut instance, &["x"]).unwrap(), ["x"]);
    }
}

#[test]
fn what_is_wrong_with_a_model_is_said_when_it_is_loaded() {
    let fault = |code: &str| Model::texts("", code).fault();
    let missing = fault("import nothing_of_this_name");
    assert!(missing.contains("ModuleNotFoundError: No module named 'nothing_of_this_name'\n\nAt:\n"), "{missing}");
    assert!(missing.contains("m/1/model.py(3): <module>"), "{missing}");
    assert!(fault("x = 1").contains("defines no class TritonPythonModel"));
    let syntax = fault("class TritonPythonModel\n    pass");
    assert!(syntax.contains("SyntaxError: expected ':' (model.py, line 3)"), "{syntax}");
    let raising = "class TritonPythonModel:\n    def initialize(self, args):\n        raise pb_utils.TritonModelException('not today')\n";
    assert!(fault(raising).contains("TritonModelException: not today"));
    let dying = "import os\nprint('last words', flush=True)\nos._exit(7)\n";
    assert!(fault(dying).contains("exit status: 7); it printed: last words"), "{}", fault(dying));
    let mut slow = Model::texts("", "import time\ntime.sleep(3600)\n");
    slow.options.start_limit = Duration::from_millis(300);
    assert!(slow.fault().contains("was not loaded within 0.3 s"), "{}", slow.fault());
    let mut endless =
        Model::texts("", "class TritonPythonModel:\n    def initialize(self, args):\n        while True: pass\n");
    endless.options.start_limit = Duration::from_millis(300);
    assert!(endless.fault().contains("was not loaded within 0.3 s"), "{}", endless.fault());
    let mut nowhere = Model::texts("", OBEDIENT);
    nowhere.options.python = "/nowhere/python".into();
    assert!(nowhere.fault().contains("cannot start '/nowhere/python'"), "{}", nowhere.fault());
}

#[test]
fn a_python_without_numpy_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let mut model = Model::texts("", OBEDIENT);
    let bare = model.path().join("bare-python");
    // Without `site` there are no installed packages.
    std::fs::write(&bare, format!("#!/bin/sh\nexec '{}' -S \"$@\"\n", python().display())).unwrap();
    std::fs::set_permissions(&bare, std::fs::Permissions::from_mode(0o755)).unwrap();
    model.options.python = bare;
    let fault = model.fault();
    assert!(fault.contains("cannot import numpy, which models in Python need"), "{fault}");
    assert!(!fault.contains("Traceback"), "{fault}");
}

#[test]
fn code_runs_only_where_it_may() {
    let mut model = Model::texts("", OBEDIENT);
    model.options.allow = AllowPython::Never;
    assert!(model.fault().contains("--allow-python allows it"), "{}", model.fault());
}

#[test]
fn a_model_of_its_own_environment_sees_no_secret() {
    let environment = python().parent().and_then(|bin| bin.parent()).unwrap().to_owned();
    let config =
        format!("parameters {{ key: 'EXECUTION_ENV_PATH' value {{ string_value: '{}' }} }}", environment.display());
    let mut model = Model::texts(&config, OBEDIENT);
    model.options.python = "/nowhere/python".into();
    let mut instance = model.instance();
    let mut variable = |name: &str| answer(&mut instance, &[&format!("env {name}")]).unwrap().remove(0);
    assert_eq!(variable("VIRTUAL_ENV"), environment.to_str().unwrap());
    // Cargo's own stand for any that is not on the list.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
    assert_eq!(variable("CARGO_MANIFEST_DIR"), "not there");
}
