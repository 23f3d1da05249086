//! The security of the inside: the broker as it is shipped (`deploy/nats`), with a user for each service who may do what
//! that service does, and no more.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use trireme_e2e::{Mode, Process, Sandbox, Setup, basic_repository, golden, product, python, workspace};
use trireme_testkit::{NatsServer, assert_close};

const USERS: [&str; 5] = ["gateway", "tokenizer", "model", "postprocess", "admin"];

/// Models of `tests/repositories/basic`, by the service that hosts them.
const MODELS: [&str; 15] = [
    "--tokenizer",
    "tiny_tokenizer",
    "--postprocess",
    "tiny_pool/1",
    "--model",
    "tiny_encoder",
    "autocomplete",
    "identity_a",
    "identity_b",
    "identity_c",
    "identity_bytes",
    "identity_fp32",
    "slow_identity",
    "simple",
    "simple_identity",
];

fn password(user: &str) -> String {
    format!("the {user}'s secret")
}

/// What `deploy/nats/permissions.py` writes.
fn permissions(arguments: &[&str]) -> String {
    let script = workspace().join("deploy/nats/permissions.py");
    let output = Command::new(python()).arg(script).args(arguments).output().expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the script writes text")
}

/// The shipped configuration with these users, and a folder with their passwords.
fn broker(users: &str) -> (NatsServer, tempfile::TempDir) {
    broker_in(tempfile::tempdir().expect("a temporary folder"), users, "")
}

/// The same with a folder that is there, and more configuration.
fn broker_in(folder: tempfile::TempDir, users: &str, more: &str) -> (NatsServer, tempfile::TempDir) {
    let config =
        fs::read_to_string(workspace().join("deploy/nats/nats-server.conf")).expect("the configuration is there");
    let config = config.replace("jetstream {", "jetstream {\n    store_dir: \"STORE\"") + more;
    let passwords: String =
        USERS.map(|user| format!("{}_PASSWORD: \"{}\"\n", user.to_uppercase(), password(user))).concat();
    let files = [("nats.conf", &*config), ("users.conf", users), ("secrets/passwords.conf", &*passwords)];
    for user in USERS {
        fs::write(folder.path().join(user), password(user) + "\n").expect("the folder can be written");
    }
    (NatsServer::start_with_files(&files), folder)
}

/// A connection to the broker, in NATS's own words.
struct Connection {
    stream: TcpStream,
    lines: Lines<BufReader<TcpStream>>,
}

impl Connection {
    fn open(nats: &NatsServer, user: &str) -> Connection {
        let address = nats.url();
        let mut stream = TcpStream::connect(address.trim_start_matches("nats://")).expect("the broker listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit can be set");
        let login = json!({"verbose": false, "user": user, "pass": password(user), "headers": true, "protocol": 1});
        write!(stream, "CONNECT {login}\r\n").expect("the broker reads");
        let lines = BufReader::new(stream.try_clone().expect("a socket can be shared")).lines();
        Connection { stream, lines }
    }

    /// Says `command`; the broker's complaint, if it has one.
    fn say(&mut self, command: &str) -> Result<(), String> {
        write!(self.stream, "{command}\r\nPING\r\n").expect("the broker reads");
        match self.hear(|line| line.starts_with("-ERR") || line == "PONG") {
            line if line == "PONG" => Ok(()),
            complaint => Err(complaint),
        }
    }

    /// Waits for such a line.
    fn hear(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        let line = self.lines.by_ref().map(|line| line.expect("the broker answers in time")).find(|line| wanted(line));
        line.unwrap_or_else(|| "connection closed".to_owned())
    }
}

fn say(nats: &NatsServer, user: &str, command: &str) -> Result<(), String> {
    Connection::open(nats, user).say(command)
}

fn publish(subject: &str) -> String {
    format!("PUB {subject} 0\r\n")
}

#[track_caller]
fn assert_allowed(nats: &NatsServer, user: &str, commands: &[String]) {
    for command in commands {
        assert_eq!(say(nats, user, command), Ok(()), "{user}: {command}");
    }
}

#[track_caller]
fn assert_refused(nats: &NatsServer, user: &str, commands: &[String]) {
    for command in commands {
        let answer = say(nats, user, command);
        assert!(
            answer.as_ref().is_err_and(|error| error.contains("Permissions Violation")),
            "{user}: {command}: {answer:?}"
        );
    }
}

/// One request through all stages, and nothing that the broker had to refuse a service meanwhile.
#[track_caller]
fn assert_works(sandbox: &mut Sandbox) {
    for golden in golden() {
        let text = json!({"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden.text]});
        let response = sandbox.infer("tiny_embedding", &json!({"inputs": [text]}));
        assert_close(&response.numbers("embedding"), &golden.embedding, 1e-5);
    }
    sandbox.assert_never_logged("NATS reported an error");
}

#[test]
fn the_shipped_users_are_what_the_script_writes() {
    let shipped = fs::read_to_string(workspace().join("deploy/nats/users.conf")).expect("the file is there");
    assert_eq!(shipped, permissions(&[]), "run: deploy/nats/permissions.py > deploy/nats/users.conf");
}

#[test]
fn services_do_their_work_as_users_of_their_own_and_nothing_else() {
    let (nats, passwords) = broker(&permissions(&[]));
    let mut sandbox = Setup::new(Mode::Services).passwords(passwords.path()).start_on(Some(nats));
    assert_works(&mut sandbox);
    let nats = sandbox.nats.as_ref().expect("services have a broker");

    let stream = "trireme_work_tiny_encoder_1";
    let nobodys = [
        "SUB > 1".to_owned(),
        "SUB _INBOX.> 1".to_owned(),
        "SUB _INBOX.admin.> 1".to_owned(),
        "SUB trireme.work.> 1".to_owned(),
        "SUB $JS.API.> 1".to_owned(),
        publish(&format!("$JS.API.STREAM.DELETE.{stream}")),
        publish(&format!("$JS.API.STREAM.PURGE.{stream}")),
        publish(&format!("$JS.API.STREAM.MSG.GET.{stream}")),
        publish(&format!("$JS.API.CONSUMER.DELETE.{stream}.workers")),
        publish(&format!("$JS.API.CONSUMER.CREATE.{stream}.spy")),
        publish("$JS.API.STREAM.DELETE.trireme_dead"),
        publish("$SYS.REQ.SERVER.PING"),
        publish("somewhere.else"),
    ];
    for service in ["gateway", "tokenizer", "model", "postprocess"] {
        assert_refused(nats, service, &nobodys);
    }

    let pull = publish(&format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.workers"));
    let confirm = publish(&format!("$JS.ACK.{stream}.workers.1.1.1.1.0"));
    let announce = publish("$KV.trireme_registry.tiny_encoder.1.intruder");
    let reply = publish("trireme.reply.gateway.request");
    let ask = publish("trireme.control.load");
    let cancel = publish("trireme.cancel");
    let listen = "SUB trireme.reply.> 1".to_owned();
    let gateways = [cancel.clone(), ask.clone(), listen.clone()];
    let workers = [pull, confirm, announce, reply];
    assert_allowed(nats, "gateway", &gateways);
    assert_refused(nats, "gateway", &workers);
    for worker in ["tokenizer", "model", "postprocess"] {
        assert_refused(nats, worker, &gateways);
        assert_refused(nats, worker, &["SUB _INBOX.gateway.> 1".to_owned()]);
        assert_allowed(nats, worker, &workers[..3]);
    }
    assert_allowed(nats, "admin", &gateways);
    assert_allowed(nats, "admin", &[publish("$JS.API.STREAM.NAMES"), "SUB trireme.work.> 1".to_owned()]);
    let stranger = say(nats, "stranger", "");
    assert!(stranger.as_ref().is_err_and(|error| error.contains("Authorization Violation")), "{stranger:?}");
}

#[test]
fn a_worker_answers_who_asked_it_and_nobody_else() {
    let (nats, _passwords) = broker(&permissions(&[]));
    let mut worker = Connection::open(&nats, "tokenizer");
    let answer = publish("_INBOX.gateway.question");
    assert_eq!(worker.say("SUB trireme.control.probe 1"), Ok(()));
    assert!(worker.say(&answer).is_err_and(|error| error.contains("Permissions Violation")));
    assert_eq!(say(&nats, "gateway", "PUB trireme.control.probe _INBOX.gateway.question 0\r\n"), Ok(()));
    worker.hear(|line| line.starts_with("MSG trireme.control.probe 1 _INBOX.gateway.question"));
    assert_eq!(worker.say(&answer), Ok(()));
}

#[test]
fn a_stage_whose_models_are_named_reads_no_other_queue() {
    let users = permissions(&MODELS);
    let (nats, passwords) = broker(&users);
    let mut sandbox = Setup::new(Mode::Services).passwords(passwords.path()).start_on(Some(nats));
    assert_works(&mut sandbox);
    let nats = sandbox.nats.as_ref().expect("services have a broker");
    let stages = [("tokenizer", "tiny_tokenizer"), ("model", "tiny_encoder"), ("postprocess", "tiny_pool")];
    for (user, own) in stages {
        for (_, model) in stages {
            let stream = format!("trireme_work_{model}_1");
            let commands = [
                publish(&format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.workers")),
                publish(&format!("$JS.API.STREAM.UPDATE.{stream}")),
                publish(&format!("$JS.ACK.{stream}.workers.1.9.9.9.0")),
            ];
            match model == own {
                true => assert_allowed(nats, user, &commands),
                false => assert_refused(nats, user, &commands),
            }
        }
    }
}

#[test]
fn a_wrong_password_ends_the_start_with_the_users_name() {
    let (nats, passwords) = broker(&permissions(&[]));
    let wrong = passwords.path().join("wrong");
    fs::write(&wrong, "guessed").expect("the folder can be written");
    let ends = |arguments: &[&str], file: Option<&Path>, said: &str| {
        let mut command = product("trireme-tokenizer");
        command.args(["--nats-url", &nats.url(), "--model-repository"]).arg(basic_repository()).args(arguments);
        if let Some(file) = file {
            command.arg(file);
        }
        let mut process = Process::start("refused", &mut command, passwords.path());
        let code = process.wait_exit(Duration::from_secs(20)).code();
        let words = process.last_words();
        assert!(
            code.is_some_and(|code| code != 0) && words.len() == 1 && words[0].contains(said),
            "{code:?} {words:#?}"
        );
    };
    let user = ["--nats-user", "tokenizer", "--nats-password-file"];
    ends(&user, Some(&wrong), "does not let user 'tokenizer' in");
    ends(&[], None, "does not let a client without credentials in");
    ends(&user, Some(&passwords.path().join("missing")), "missing' cannot be used: No such file or directory");
    let ca = ["--nats-tls-ca"];
    ends(&ca, Some(&wrong), "wrong' cannot be used: expected a PEM file with a line that ends with 'CERTIFICATE-----'");
}

/// An authority, and certificates from it for the broker and for a client, in `folder`.
fn certificates(folder: &Path) {
    let openssl = |arguments: &str| {
        let command = Command::new("openssl").args(arguments.split(' ')).current_dir(folder).output();
        let output = command.expect("openssl is installed");
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=authority"));
    fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n").expect("the folder can be written");
    for name in ["broker", "client"] {
        openssl(&format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        let signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names";
        openssl(&format!("x509 -req -in {name}.csr {signed} -out {name}.pem"));
    }
}

#[test]
fn services_and_broker_show_each_other_certificates() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let [ca, certificate, key] = ["ca.pem", "client.pem", "client.key"].map(file);
    let [broker_certificate, broker_key] = ["broker.pem", "broker.key"].map(file);
    let tls = format!(
        "tls {{ cert_file: \"{broker_certificate}\", key_file: \"{broker_key}\", ca_file: \"{ca}\", verify: true }}\n"
    );
    let (nats, folder) = broker_in(folder, &permissions(&[]), &tls);
    let url = nats.url();

    let all = ["--nats-tls-ca", &ca, "--nats-tls-cert", &certificate, "--nats-tls-key", &key];
    let setup = Setup::new(Mode::Services).passwords(folder.path()).gateway_arguments(&all).worker_arguments(&all);
    assert_works(&mut setup.start_on(Some(nats)));

    // The sandbox took the broker along; another one to be refused by.
    let (nats, folder) = broker_in(folder, &permissions(&[]), &tls);
    assert_ne!(nats.url(), url);
    let refused = |arguments: &[&str], said: &str| {
        let mut command = product("trireme-tokenizer");
        command.args(["--nats-url", &nats.url(), "--nats-connect-timeout-secs", "1", "--model-repository"]);
        command.arg(basic_repository()).args(["--nats-user", "tokenizer", "--nats-password-file"]);
        command.arg(folder.path().join("tokenizer")).args(arguments);
        let mut process = Process::start("refused", &mut command, folder.path());
        assert!(!process.wait_exit(Duration::from_secs(20)).success());
        let words = process.last_words();
        assert!(words.len() == 1 && words[0].contains(said), "expected {said:?} in {words:#?}");
    };
    refused(&[], "invalid peer certificate: UnknownIssuer");
    refused(&["--nats-tls-ca", &ca], "NATS at");
    let mixed = ["--nats-tls-ca", &ca, "--nats-tls-cert", &certificate, "--nats-tls-key", &certificate];
    refused(&mixed, "the NATS client key in");
}
