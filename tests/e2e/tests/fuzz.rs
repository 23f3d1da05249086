//! The short form of `make fuzz-http`: some thousand changed requests and calls, and tests that it would notice faults.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};

use trireme_e2e::{Mode, ModelFolder, Process, Sandbox, Setup, basic_repository, in_one_mode, python, workspace};

in_one_mode!(changed_requests_are_all_answered);

/// Requests over HTTP, and as many over gRPC.
const COUNT: usize = 2000;

fn fuzz(http: SocketAddr, grpc: SocketAddr, count: usize, arguments: &[String]) -> (Output, String) {
    let mut command = Command::new(python());
    command.arg(workspace().join("scripts/fuzz-server.py")).args(["--count", &count.to_string()]);
    command.args(["--http", &http.to_string(), "--grpc", &grpc.to_string()]).args(arguments);
    let output = command.output().expect("Python runs: `make setup` makes it");
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    println!("{said}");
    (output, said)
}

/// Arguments that make it watch this process.
fn watched(process: &Process) -> Vec<String> {
    ["--pid".to_owned(), process.id().to_string(), "--log".to_owned(), process.log_path().display().to_string()].into()
}

fn changed_requests_are_all_answered(mode: Mode) {
    let numbers = "data_type: TYPE_FP32 dims: [-1, -1]";
    let config = format!(
        "backend: 'identity' input [{{ name: 'INPUT0' {numbers} }}] output [{{ name: 'OUTPUT0' {numbers} }}]
         parameters {{ key: 'max_rows_per_message' value {{ string_value: '2' }} }}"
    );
    let models = ModelFolder::copy_of(&basic_repository()).model("rows", &config);
    let mut sandbox = Setup::new(mode).repository(models.path()).start();
    let grpc = sandbox.grpc_address();
    let watched: Vec<String> = sandbox.processes().flat_map(watched).collect();
    let (output, said) = fuzz(sandbox.address, grpc, COUNT, &watched);
    assert!(output.status.success() && said.contains("4000 requests in"), "{said}");
    assert!(
        said.contains("HTTP 200: ") && said.contains("gRPC OK: ") && said.contains("gRPC stream OK: "),
        "some requests are right: {said}"
    );
    sandbox.check_running();
}

/// A server that sends `answer` to the request with this number, from 0, and then closes the connection.
fn imitation(answer: impl Fn(usize) -> Option<Vec<u8>> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let mut stream = stream;
            let _ = stream.read(&mut [0; 65536]);
            if let Some(answer) = answer(number) {
                let _ = stream.write_all(&answer);
            }
        }
    });
    address
}

fn answer(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

#[test]
fn what_must_not_happen_is_noticed() {
    // Only the known-good request is sent.
    let fails = |address: SocketAddr, arguments: &[String], reason: &str| {
        let (output, said) = fuzz(address, address, 0, arguments);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("FAILED: ") && said.contains(reason), "expected '{reason}' in: {said}");
    };
    fails(imitation(|_| None), &[], "the connection ended without an answer");
    let asleep = |_| {
        std::thread::park();
        None
    };
    let impatient = ["--patience".to_owned(), "0.2".to_owned()];
    fails(imitation(asleep), &impatient, "no answer within 0.2 s");
    fails(imitation(|number| Some(answer(&(number / 2).to_string()))), &[], "the known-good request was answered with");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = folder.path().join("log");
    std::fs::write(&log, "thread 'x' panicked at y").expect("the folder can be written");
    let log = ["--log".to_owned(), log.display().to_string()];
    fails(imitation(|_| Some(answer("same"))), &log, "panicked at y");
    let gone = ["--pid".to_owned(), u32::MAX.to_string()];
    fails(imitation(|_| Some(answer("same"))), &gone, "has ended");
}

#[test]
fn memory_that_grows_is_noticed() {
    let mut sandbox = Sandbox::start(Mode::AllInOne);
    let grpc = sandbox.grpc_address();
    let mut arguments = watched(&sandbox.gateway);
    // The process does not grow, and the limit is below that.
    arguments.push("--max-growth-mib=-64".to_owned());
    let (output, said) = fuzz(sandbox.address, grpc, COUNT, &arguments);
    assert!(output.status.code() == Some(1) && said.contains("has grown by"), "{said}");
}
