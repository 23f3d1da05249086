//! The security of the inside: the shipped broker configuration (`deploy/nats`) with a user for each service, which
//! has only the permissions that the service needs.

use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Process, Request, Response, Sandbox, Setup, Stage, basic_repository, golden, product, python,
    wait_until, workspace,
};
use trireme_testkit::{NatsServer, assert_close};

const USERS: [&str; 6] = ["gateway", "tokenizer", "model", "postprocess", "python", "admin"];

/// Models of `tests/repositories/basic`, by the services that host them.
const MODELS: [&str; 16] = [
    "--tokenizer",
    "tiny_tokenizer",
    "--postprocess",
    "tiny_pool/1",
    "--model",
    "tiny_encoder",
    "tiny_pool",
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

/// The output of `deploy/nats/permissions.py`.
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

/// The same with an existing folder and additional configuration.
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

/// A connection to the broker, with the bare NATS protocol.
struct Connection {
    stream: TcpStream,
    lines: Lines<BufReader<TcpStream>>,
}

impl Connection {
    fn open(nats: &NatsServer, user: &str) -> Connection {
        let address = nats.url();
        let mut stream = TcpStream::connect(address.trim_start_matches("nats://")).expect("the broker listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit can be set");
        let login = json!({"verbose": false, "user": user, "pass": password(user), "headers": true, "protocol": 1});
        write!(stream, "CONNECT {login}\r\n").expect("the broker reads");
        let lines = BufReader::new(stream.try_clone().expect("a socket can be shared")).lines();
        Connection { stream, lines }
    }

    /// Sends `command`; the broker's error, if there is one.
    fn say(&mut self, command: &str) -> Result<(), String> {
        write!(self.stream, "{command}\r\nPING\r\n").expect("the broker reads");
        match self.hear(|line| line.starts_with("-ERR") || line == "PONG") {
            line if line == "PONG" => Ok(()),
            complaint => Err(complaint),
        }
    }

    /// Waits for a line that `wanted` accepts.
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

/// The broker's log lines about refused commands.
fn refusals(sandbox: &Sandbox) -> Vec<String> {
    let log = sandbox.nats.as_ref().expect("services have a broker").log();
    log.lines().filter(|line| line.contains("Violation")).map(str::to_owned).collect()
}

/// Sends one request through all stages, and checks that the broker has refused no command of a service.
#[track_caller]
fn assert_works(sandbox: &mut Sandbox) {
    for golden in golden() {
        let text = json!({"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden.text]});
        let response = sandbox.infer("tiny_embedding", &json!({"inputs": [text]}));
        assert_close(&response.numbers("embedding"), &golden.embedding, 1e-5);
    }
    let text = json!({"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a bulk request"]});
    let bulk = Request::infer("tiny_embedding", &json!({"inputs": [text]})).header("Priority", "u=7");
    assert_eq!(sandbox.send(&bulk).status, 200, "all stages take from the bulk lane too");
    assert_nothing_refused(sandbox);
}

/// # Panics
/// When the broker has refused a command.
#[track_caller]
fn assert_nothing_refused(sandbox: &Sandbox) {
    assert_eq!(refusals(sandbox), [""; 0]);
    sandbox.assert_never_logged("NATS reported an error");
}

#[test]
fn the_shipped_users_are_what_the_script_writes() {
    let shipped = fs::read_to_string(workspace().join("deploy/nats/users.conf")).expect("the file is there");
    let demo = workspace().join("examples/demo").display().to_string();
    let made = permissions(&["--repository", &demo]);
    assert_eq!(shipped, made, "run: deploy/nats/permissions.py --repository examples/demo > deploy/nats/users.conf");
    // The broker has two forms of these subjects.
    let named = |kind: &str| {
        let subjects = shipped.lines().filter_map(move |line| line.trim().trim_matches('"').strip_prefix(kind));
        subjects.filter(|subject| *subject != ">").collect::<Vec<_>>()
    };
    for kind in ["$JS.ACK.", "$JS.FC."] {
        let (new, old): (Vec<_>, Vec<_>) = named(kind).into_iter().partition(|subject| subject.starts_with("*.*."));
        assert!(!old.is_empty());
        assert_eq!(new, old.iter().map(|subject| format!("*.*.{subject}")).collect::<Vec<_>>(), "{kind}");
    }
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
        publish(&format!("$JS.API.STREAM.PURGE.{stream}")),
        publish("$JS.API.STREAM.MSG.GET.trireme_dead"),
        publish("$JS.API.STREAM.MSG.GET.KV_trireme_registry"),
        publish(&format!("$JS.API.CONSUMER.DELETE.{stream}.workers")),
        publish(&format!("$JS.API.CONSUMER.CREATE.{stream}.spy")),
        publish("$JS.API.STREAM.DELETE.trireme_dead"),
        publish("$JS.API.STREAM.DELETE.KV_trireme_settings"),
        publish("$JS.API.STREAM.PURGE.trireme_dead"),
        publish("$JS.API.STREAM.MSG.DELETE.trireme_dead"),
        publish("$JS.API.STREAM.MSG.DELETE.trireme_claims"),
        publish("$JS.API.STREAM.MSG.DELETE.KV_trireme_registry"),
        publish("$SYS.REQ.SERVER.PING"),
        publish("somewhere.else"),
    ];
    for service in ["gateway", "tokenizer", "model", "postprocess", "python"] {
        assert_refused(nats, service, &nobodys);
    }

    let pull = publish(&format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.workers"));
    let confirm = publish(&format!("$JS.ACK.{stream}.workers.1.1.1.1.0"));
    let announce = publish("$KV.trireme_registry.tiny_encoder.1.intruder");
    let read_aside = publish(&format!("$JS.API.STREAM.MSG.GET.{stream}"));
    let reply = publish("trireme.reply.gateway.request");
    let ask = publish("trireme.control.load");
    let cancel = publish("trireme.control.cancel");
    let listen = "SUB trireme.reply.> 1".to_owned();
    let take_back = publish(&format!("$JS.API.STREAM.MSG.DELETE.{stream}"));
    let remove = publish("$JS.API.STREAM.DELETE.trireme_work_nobodys_1");
    let set = publish("$KV.trireme_settings.rubbish");
    let want = publish("$KV.trireme_models.nobodys");
    let states = [
        publish("trireme.sequences.simple.1.5"),
        publish("$JS.API.DIRECT.GET.trireme_sequences.trireme.sequences.simple.1.5"),
    ];
    let gateways = [cancel, ask, listen, take_back, remove, set, want].into_iter().chain(states).collect::<Vec<_>>();
    let workers = [pull, read_aside, reply, confirm];
    // Workers announce for themselves, and gateways delete entries of those that are gone.
    let both = [announce];
    let count =
        [publish("trireme.attempts.message"), publish("$JS.API.DIRECT.GET.trireme_attempts.trireme.attempts.message")];
    // A process that creates a stream decides on its subjects; one that creates a consumer decides where messages go.
    let mut make = vec![publish(&format!("$JS.API.CONSUMER.CREATE.{stream}.workers"))];
    let kept = ["trireme_attempts", "trireme_sequences", "trireme_claims", "trireme_dead"];
    let kept = kept.into_iter().chain(["KV_trireme_settings", "KV_trireme_registry", "KV_trireme_models"]);
    make.extend(
        kept.chain([stream])
            .flat_map(|name| ["CREATE", "UPDATE"].map(|verb| publish(&format!("$JS.API.STREAM.{verb}.{name}")))),
    );
    let calls = ["call", "hang_up"].map(|topic| publish(&format!("trireme.control.{topic}")));
    assert_allowed(nats, "gateway", &make);
    assert_allowed(nats, "gateway", &both);
    assert_allowed(nats, "gateway", &gateways);
    assert_refused(nats, "gateway", &workers);
    assert_refused(nats, "gateway", &count);
    for worker in ["tokenizer", "model", "postprocess"] {
        assert_refused(nats, worker, &gateways);
        assert_refused(nats, worker, &["SUB _INBOX.gateway.> 1".to_owned()]);
        assert_allowed(nats, worker, &workers);
        assert_allowed(nats, worker, &both);
        assert_allowed(nats, worker, &count);
        assert_allowed(
            nats,
            worker,
            &[publish("trireme.control.heartbeat"), "SUB trireme.control.cancel 1".to_owned()],
        );
        assert_refused(nats, worker, &make);
        assert_refused(nats, worker, &calls);
        assert_refused(nats, worker, &[publish("trireme.control.queue_refused.simple.1")]);
    }
    assert_allowed(nats, "python", &calls);
    for user in ["tokenizer", "model", "postprocess", "python"] {
        assert_refused(nats, user, &["SUB trireme.control.call 1".to_owned()]);
    }
    assert_allowed(nats, "admin", &gateways);
    assert_allowed(nats, "admin", &[publish("$JS.API.STREAM.NAMES"), "SUB trireme.work.> 1".to_owned()]);
    assert!(refusals(&sandbox).len() >= nobodys.len(), "the broker's log tells of what it refuses");
    let stranger = say(nats, "stranger", "");
    assert!(stranger.as_ref().is_err_and(|error| error.contains("Authorization Violation")), "{stranger:?}");
}

#[test]
fn a_worker_answers_who_asked_it_and_nobody_else() {
    let (nats, _passwords) = broker(&permissions(&[]));
    let mut worker = Connection::open(&nats, "tokenizer");
    let answer = publish("_INBOX.gateway.question");
    assert_eq!(worker.say("SUB trireme.control.tap 1"), Ok(()));
    assert!(worker.say(&answer).is_err_and(|error| error.contains("Permissions Violation")));
    assert_eq!(say(&nats, "gateway", "PUB trireme.control.tap _INBOX.gateway.question 0\r\n"), Ok(()));
    worker.hear(|line| line.starts_with("MSG trireme.control.tap 1 _INBOX.gateway.question"));
    assert_eq!(worker.say(&answer), Ok(()));
}

/// A tokenizer reads its own queue and writes the next one, and no other; other subjects that it uses are its own.
#[test]
fn a_stage_reaches_its_own_models_and_those_that_follow() {
    let (nats, passwords) = broker(&permissions(&["--repository", &basic_repository().display().to_string()]));
    let mut sandbox = Setup::new(Mode::Services).passwords(passwords.path()).start_on(Some(nats));
    assert_works(&mut sandbox);
    let nats = sandbox.nats.as_ref().expect("services have a broker");
    let stages = [("tokenizer", "tiny_tokenizer"), ("model", "tiny_encoder"), ("postprocess", "tiny_pool")];
    let check = |user: &str, allowed: bool, commands: &[String]| match allowed {
        true => assert_allowed(nats, user, commands),
        false => assert_refused(nats, user, commands),
    };
    assert_allowed(nats, "gateway", &[publish("$JS.API.STREAM.UPDATE.trireme_work_tiny_pool_1")]);
    assert_refused(nats, "gateway", &[publish("$JS.API.STREAM.CREATE.other")]);
    for (at, (user, own)) in stages.into_iter().enumerate() {
        for (of, (_, model)) in stages.into_iter().enumerate() {
            let hosts = model == own || (user, model) == ("model", "tiny_pool");
            let stream = format!("trireme_work_{model}_1");
            let owners = [
                publish(&format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.workers")),
                publish(&format!("$JS.ACK.{stream}.workers.1.9.9.9.0")),
                publish(&format!("$KV.trireme_registry.{model}.1.intruder")),
                publish(&format!("$JS.API.STREAM.MSG.GET.{stream}")),
                publish(&format!("trireme.dead.{model}.1.message")),
            ];
            check(user, hosts, &owners);
            check(user, of > at, &[publish(&format!("trireme.work.{model}.1.0.gateway.request"))]);
        }
        // All processes would trust an answer there; and a process that creates a consumer decides where its messages
        // go.
        let nobodys = [
            "SUB trireme.control.heartbeat 1".to_owned(),
            publish("trireme.control.cancel"),
            publish("trireme.control.announce"),
            publish("$KV.trireme_settings.deployment"),
            publish(&format!("$KV.trireme_models.{own}")),
            "SUB trireme.control.> 1".to_owned(),
            publish("$JS.API.CONSUMER.CREATE.KV_trireme_registry.spy"),
            publish("$JS.API.CONSUMER.CREATE.KV_trireme_registry"),
            publish(&format!("$JS.API.STREAM.CREATE.trireme_work_{own}_1")),
            publish(&format!("$JS.API.STREAM.UPDATE.trireme_work_{own}_1")),
            publish(&format!("$JS.API.CONSUMER.CREATE.trireme_work_{own}_1.workers")),
        ];
        assert_refused(nats, user, &nobodys);
    }
    assert_refused(nats, "tokenizer", &[publish("trireme.work.identity_fp32.1.0.gateway.request")]);
}

/// The broker's feature changes the subjects of acknowledgements.
#[test]
fn a_stage_whose_models_are_named_reads_no_other_queue() {
    let users = permissions(&MODELS);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (nats, passwords) = broker_in(folder, &users, "feature_flags { js_ack_fc_v2: true }\n");
    let mut sandbox = Setup::new(Mode::Services).passwords(passwords.path()).start_on(Some(nats));
    assert_works(&mut sandbox);
    // By claim: the body is discarded when the broker has confirmed the acknowledgement.
    assert_eq!(ask(&sandbox, "identity_fp32", &[1, 3 << 20]).numbers("OUTPUT0").len(), 3 << 20);
    assert_nothing_refused(&sandbox);
    let nats = sandbox.nats.as_ref().expect("services have a broker");
    for (model, is_own) in [("tiny_tokenizer", true), ("tiny_encoder", false)] {
        let acknowledge = [publish(&format!("$JS.ACK._.account.trireme_work_{model}_1.workers.1.9.9.9.0"))];
        match is_own {
            true => assert_allowed(nats, "tokenizer", &acknowledge),
            false => assert_refused(nats, "tokenizer", &acknowledge),
        }
    }
    let [own, other] = ["tiny_tokenizer", "tiny_encoder"]
        .map(|model| [publish(&format!("$JS.API.CONSUMER.MSG.NEXT.trireme_work_{model}_1.workers"))]);
    assert_allowed(nats, "tokenizer", &own);
    assert_refused(nats, "tokenizer", &other);
    assert_allowed(nats, "tokenizer", &[publish("trireme.work.tiny_pool.1.0.gateway.request")]);
    assert_refused(nats, "tokenizer", &[publish("trireme.work.unnamed.1.0.gateway.request")]);
}

/// The permissions follow the repository's ensembles, including ensembles within ensembles. The model service has those of
/// reductions, too.
#[test]
fn what_follows_in_an_ensemble_is_read_from_its_configuration() {
    let step = |model: &str, from: &str, to: &str| {
        format!(
            "{{ model_name: \"{model}\" model_version: -1 input_map {{ key: \"I\" value: \"{from}\" }} # {{ }}
               output_map {{ key: \"O\" value: \"{to}\" }} }}"
        )
    };
    let ensemble =
        |steps: &[String]| format!("platform: \"ensemble\" ensemble_scheduling {{ step [ {} ] }}", steps.join(", "));
    let inner = ensemble(&[step("second", "y", "z"), step("first", "x", "y")]);
    let outer = ensemble(&[step("words", "t", "x"), step("inner", "x", "z"), step("last", "z", "out")]);
    let pool = "backend: 'postprocess' parameters { key: 'ops' value { string_value: 'pool:mean, normalize' } }";
    let models = ModelFolder::new()
        .model("words", "backend: 'tokenizer'")
        .model("first", "backend: 'identity'")
        .model("second", "backend: 'identity' dynamic_batching { priority_levels: 2 default_priority_level: 1 }")
        .model("last", "backend: 'postprocess'")
        .model("pool", pool)
        .model("apart", &format!("{pool} parameters {{ key: 'beside_model' value {{ string_value: 'false' }} }}"))
        .model("inner", &inner)
        .model("outer", &outer);
    let users = permissions(&["--repository", &models.path().display().to_string()]);
    let of = |user: &str| {
        let from = users.find(&format!("user: {user},")).expect("there is such a user");
        let block = &users[from..];
        let end = block.find("subscribe:").expect("each user has both lists");
        let lines = block[..end].lines().map(|line| line.trim().trim_matches('"').to_owned());
        lines
            .filter(|line| line.starts_with("trireme.work.") || line.contains(".MSG.GET.trireme_work_"))
            .collect::<Vec<_>>()
    };
    let next = |models: &[&str]| models.iter().map(|model| format!("trireme.work.{model}.>")).collect::<Vec<_>>();
    let queues = |streams: &[&str]| {
        let read = |stream: &&str| format!("$JS.API.STREAM.MSG.GET.trireme_work_{stream}");
        streams.iter().map(read).collect::<Vec<_>>()
    };
    assert_eq!(of("tokenizer"), [next(&["first", "last", "second"]), queues(&["words_1", "words_1-10000"])].concat());
    let of_model = ["first_1", "first_1-10000", "pool_1", "pool_1-10000", "second_1-1", "second_1-2", "second_1-10000"];
    assert_eq!(of("model"), [next(&["last", "second"]), queues(&of_model)].concat());
    assert_eq!(
        of("postprocess"),
        queues(&["apart_1", "apart_1-10000", "last_1", "last_1-10000", "pool_1", "pool_1-10000"])
    );
}

#[test]
fn a_model_that_permissions_do_not_name_is_not_loaded_and_says_so() {
    let (nats, passwords) = broker(&permissions(&MODELS));
    let models = ModelFolder::copy_of(&basic_repository());
    let mut sandbox = start_explicit(&models, passwords.path(), nats, &[]);
    assert_works(&mut sandbox);
    load(&sandbox, "simple_identity", json!({}));
    assert_nothing_refused(&sandbox);

    // The gateway may not create the queue of this version, although the stage may ask for any version of its models.
    let version = json!({"config": identity("simple_identity", 3).to_string(), "file:7/note.txt": ""});
    let refused = control(&sandbox, "simple_identity", "load", version);
    assert_eq!(refused.status, 400, "{}", refused.text());
    let text = refused.error();
    assert!(text.contains("making a work queue") && text.contains("trireme_work_simple_identity_7"), "{text}");

    let brought = json!({"config": identity("fresh", 7).to_string(), "file:1/note.txt": ""});
    let refused = control(&sandbox, "fresh", "load", brought);
    assert_eq!(refused.status, 400, "{}", refused.text());
    let text = refused.error();
    assert!(text.contains("takes no work") && text.contains("trireme_registry.fresh.1"), "{text}");
    assert!(
        refusals(&sandbox).iter().all(|line| {
            line.contains("trireme_registry.fresh.1") || line.contains("trireme_work_simple_identity_7")
        }),
        "{:#?}",
        refusals(&sandbox)
    );
    assert_eq!(ask(&sandbox, "fresh", &[1, 1]).status, 404);
    let input = json!({"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [0.5]});
    assert_eq!(sandbox.infer("identity_fp32", &json!({"inputs": [input]})).status, 200, "the others serve on");
}

/// Work is pulled from its levels, and workers see which requests have waited too long.
#[test]
fn a_queue_with_a_policy_works_for_users_of_their_own() {
    let (nats, passwords) = broker(&permissions(&[&MODELS[..], &["queued/1/2"]].concat()));
    let config = "backend: 'identity' max_batch_size: 8 instance_group [{ count: 1 kind: KIND_CPU }]
         input [{ name: 'INPUT0' data_type: TYPE_FP32 dims: [-1] }]
         output [{ name: 'OUTPUT0' data_type: TYPE_FP32 dims: [-1] }]
         parameters { key: 'execute_delay_ms' value { string_value: '2000' } }
         dynamic_batching {
             priority_levels: 2 default_priority_level: 1 default_queue_policy { max_queue_size: 4 }
             priority_queue_policy { key: 2 value { default_timeout_microseconds: 300000 } }
         }";
    let models = ModelFolder::copy_of(&basic_repository()).model("queued", config);
    let sandbox = start_explicit(&models, passwords.path(), nats, &[]);
    load(&sandbox, "queued", json!({}));
    let request = |priority: u64| {
        let input = json!({"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [0.5]});
        Request::infer("queued", &json!({"parameters": {"priority": priority}, "inputs": [input]}))
    };
    let statuses = std::thread::scope(|scope| {
        let first = scope.spawn(|| sandbox.send(&request(1)).status);
        sandbox.wait_delivered("queued", 1);
        let (sandbox, request) = (&sandbox, &request);
        let others = [1, 2].map(|priority| scope.spawn(move || sandbox.send(&request(priority))));
        let [next, late] = others.map(|asked| asked.join().expect("an answer"));
        assert!(late.status == 200 || late.error().ends_with("Request timeout expired"), "{}", late.text());
        [first.join().expect("an answer"), next.status, late.status]
    });
    assert_eq!(statuses, [200, 200, 503]);
    assert_nothing_refused(&sandbox);
}

// === Everything else that services and persons do ===

/// The longest time until a change is visible.
const SOON: Duration = Duration::from_secs(30);

/// An identity model with one FP32 input of any length, in batches of up to `max_batch_size` rows, as JSON.
fn identity(name: &str, max_batch_size: u32) -> Value {
    json!({
        "name": name, "backend": "identity", "max_batch_size": max_batch_size,
        "input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
        "instance_group": [{"count": 1, "kind": "KIND_CPU"}]
    })
}

fn control(sandbox: &Sandbox, model: &str, action: &str, parameters: Value) -> Response {
    let body = json!({"parameters": parameters}).to_string();
    sandbox.send(&Request::post(&format!("/v2/repository/models/{model}/{action}"), body))
}

#[track_caller]
fn load(sandbox: &Sandbox, model: &str, parameters: Value) {
    let loaded = control(sandbox, model, "load", parameters);
    assert_eq!((loaded.status, loaded.text().as_str()), (200, ""), "{model}");
}

fn ask(sandbox: &Sandbox, model: &str, shape: &[usize]) -> Response {
    let data = vec![0.5; shape.iter().product()];
    sandbox.infer(model, &json!({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": shape, "data": data}]}))
}

fn state(sandbox: &Sandbox, model: &str) -> Value {
    let index = sandbox.send(&Request::post("/v2/repository/index", "{}")).json();
    let line = index.as_array().into_iter().flatten().find(|line| line["name"] == model);
    line.map(|line| line["state"].clone()).unwrap_or_default()
}

/// Starts services in explicit mode with users of their own, and with additional flags about the queues.
fn start_explicit(models: &ModelFolder, passwords: &Path, nats: NatsServer, more: &[&str]) -> Sandbox {
    let flags = ["--model-control-mode=explicit", "--load-model=identity_fp32", "--load-model=tiny_embedding"];
    let setup = Setup::new(Mode::Services).repository(models.path()).passwords(passwords);
    setup.gateway_arguments(&flags).worker_arguments(&flags).queue_arguments(more).start_on(Some(nats))
}

#[test]
fn models_are_controlled_by_services_with_users_of_their_own() {
    let models = ModelFolder::copy_of(&basic_repository()).slow("extra", 0).model("broken", "backend: 'nonsense'");
    let (nats, passwords) = broker(&permissions(&[]));
    let mut sandbox = start_explicit(&models, passwords.path(), nats, &[]);
    assert_works(&mut sandbox);
    assert_eq!(ask(&sandbox, "extra", &[1]).status, 404);

    load(&sandbox, "extra", json!({}));
    assert_eq!(ask(&sandbox, "extra", &[1]).numbers("OUTPUT0"), [0.5]);
    load(&sandbox, "extra", json!({"config": identity("extra", 7).to_string()}));
    assert_eq!(sandbox.get("/v2/models/extra/config").json()["max_batch_size"], 7);
    let files = json!({"config": identity("brought", 3).to_string(), "file:2/note.txt": "aGVsbG8="});
    load(&sandbox, "brought", files);
    assert_eq!(ask(&sandbox, "brought", &[1, 1]).json()["model_version"], "2");
    // Larger than a message, so it travels by claim.
    let large = json!({"config": identity("large", 5).to_string(), "file:1/note.txt": "AAAA".repeat(3 << 20)});
    load(&sandbox, "large", large);
    assert_eq!(ask(&sandbox, "large", &[5, 2]).status, 200);
    // A request that travels by claim, too.
    assert_eq!(ask(&sandbox, "large", &[1, 3 << 20]).numbers("OUTPUT0").len(), 3 << 20);

    let failed = control(&sandbox, "broken", "load", json!({}));
    assert_eq!(failed.status, 400, "{}", failed.text());
    assert!(failed.error().starts_with("load failed for model 'broken': version 1 is at UNAVAILABLE state"));
    let absent = control(&sandbox, "absent", "load", json!({}));
    assert_eq!(absent.status, 500, "{}", absent.text());

    assert_eq!(control(&sandbox, "identity_fp32", "unload", json!({})).status, 200);
    wait_until("it is unloaded", SOON, || (state(&sandbox, "identity_fp32") == "UNAVAILABLE").then_some(()));
    for model in ["extra", "brought", "large", "tiny_embedding"] {
        assert_eq!(state(&sandbox, model), "READY", "{model}");
    }

    // A process that starts later knows the models that were loaded, also from the claim, and those that were unloaded.
    sandbox.worker(Stage::Model, 0).kill();
    let number = sandbox.start_worker(Stage::Model);
    wait_until("the new worker is ready", SOON, || {
        (sandbox.worker(Stage::Model, number).count("ready") > 0).then_some(())
    });
    for (model, shape) in [("extra", &[7, 1][..]), ("brought", &[3, 1]), ("large", &[5, 1])] {
        wait_until("it serves what was loaded", SOON, || (ask(&sandbox, model, shape).status == 200).then_some(()));
    }
    assert_eq!(ask(&sandbox, "identity_fp32", &[1, 1]).status, 404, "what was unloaded stays so");

    // Log levels of all processes, and trace settings.
    let verbose = sandbox.send(&Request::post("/v2/logging", r#"{"log_verbose_level": 1}"#));
    assert_eq!((verbose.status, &verbose.json()["log_verbose_level"]), (200, &json!(1)), "{}", verbose.text());
    for stage in [Stage::Tokenizer, Stage::Model, Stage::Postprocess] {
        let number = if stage == Stage::Model { number } else { 0 };
        wait_until("each worker hears it", SOON, || {
            (sandbox.worker(stage, number).count("log levels were changed") > 0).then_some(())
        });
    }
    let settings = json!({"trace_rate": "1"}).to_string();
    for path in ["/v2/trace/setting", "/v2/models/tiny_embedding/trace/setting"] {
        let traced = sandbox.send(&Request::post(path, settings.clone()));
        assert_eq!((traced.status, &traced.json()["trace_rate"]), (200, &json!("1")), "{}", traced.text());
    }
    assert_works(&mut sandbox);
    for path in ["/v2/models/stats", "/v2/trireme/status"] {
        assert_eq!(sandbox.get(path).status, 200, "{path}");
    }
    // A process that leaves sends its last statistics.
    let mut leaving = sandbox.take_worker(Stage::Postprocess, 0);
    leaving.terminate();
    assert_eq!(leaving.wait_exit(SOON).code(), Some(0), "{}", leaving.log_tail());
    assert_nothing_refused(&sandbox);
}

/// Runs a tool for operators as the user `admin`; returns its output.
#[track_caller]
fn tool(sandbox: &Sandbox, passwords: &Path, arguments: &[&str]) -> String {
    let output = tool_command(sandbox, passwords, arguments).output().expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

fn tool_command(sandbox: &Sandbox, passwords: &Path, arguments: &[&str]) -> Command {
    let url = sandbox.nats.as_ref().expect("services have a broker").url();
    let mut command = product("trireme");
    command.args(arguments).args(["--nats-url", &url, "--nats-user", "admin", "--nats-password-file"]);
    command.arg(passwords.join("admin"));
    command
}

#[test]
fn a_persons_tools_work_as_a_user_of_its_own() {
    // An instance for each of the two requests here, so that both are executed at the same time.
    let poison = |delay_ms: u32| {
        let mut config = identity("poison", 0);
        config["instance_group"][0]["count"] = json!(2);
        config["parameters"] = json!({"execute_delay_ms": {"string_value": delay_ms.to_string()}});
        config
    };
    let models = ModelFolder::copy_of(&basic_repository());
    let (nats, passwords) = broker(&permissions(&[]));
    let mut sandbox = start_explicit(&models, passwords.path(), nats, &["--max-deliver", "1", "--ack-wait-ms", "500"]);
    let passwords = passwords.path();
    load(&sandbox, "poison", json!({"config": poison(3_600_000).to_string(), "file:1/note.txt": ""}));
    assert_eq!(tool(&sandbox, passwords, &["dead", "list", "--json"]), "");

    // Two dead letters: a small one, and one whose body is stored by claim.
    let address = sandbox.address;
    let numbers =
        |count: usize| json!([{"name": "INPUT0", "datatype": "FP32", "shape": [count], "data": vec![1; count]}]);
    let sizes = [3, 3 << 20];
    let asked = sizes.map(|count| {
        let body = json!({"inputs": numbers(count)});
        std::thread::spawn(move || Request::infer("poison", &body).send(address).expect("an answer"))
    });
    wait_until("they are with the worker", SOON, || {
        let status = sandbox.get("/v2/trireme/status").json();
        let models = status["models"].as_array().cloned().unwrap_or_default();
        let poison = models.into_iter().find(|model| model["name"] == "poison")?;
        (poison["queue"]["delivered"] == 2).then_some(())
    });
    sandbox.worker(Stage::Model, 0).kill();
    sandbox.start_worker(Stage::Model);
    for request in asked {
        let response = request.join().expect("no panic");
        assert_eq!(response.status, 500, "{}", response.text());
    }
    load(&sandbox, "poison", json!({"config": poison(0).to_string(), "file:1/note.txt": ""}));
    let lines = tool(&sandbox, passwords, &["dead", "list", "--json"]);
    let letters: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    assert_eq!(letters.len(), 2, "{lines}");
    for letter in letters {
        let number = letter["number"].to_string();
        let shown = tool(&sandbox, passwords, &["dead", "show", &number]);
        assert!(shown.contains("poison:1") && shown.contains("INPUT0 FP32"), "{shown}");
        let outcome = tool(&sandbox, passwords, &["dead", "replay", &number, "--wait", "--json"]);
        let outcome: Value = serde_json::from_str(&outcome).unwrap_or_else(|error| panic!("{error}: {outcome}"));
        assert_eq!(outcome["outputs"][0]["shape"], letter["tensors"][0]["shape"]);
    }
    assert_eq!(tool(&sandbox, passwords, &["dead", "list", "--json"]), "", "they are done with");

    let arguments = ["tap", "--json", "--stage", "tiny_encoder", "--count", "1", "--seconds", "60"];
    let mut command = tool_command(&sandbox, passwords, &arguments);
    let mut tap = command.stdout(Stdio::piped()).spawn().expect("the binary runs");
    wait_until("the tap has seen a message", SOON, || {
        assert_works(&mut sandbox);
        tap.try_wait().expect("a child can be asked")
    });
    let seen = tap.wait_with_output().expect("a child can be waited for");
    let message: Value = serde_json::from_slice(&seen.stdout).expect("a line of JSON");
    assert_eq!(message["model"], "tiny_encoder:1");

    let shown = product("trireme").args(["status", "--server", &sandbox.address.to_string()]).output();
    let shown = shown.expect("the binary runs");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("poison:1"), "{shown:?}");
    assert_nothing_refused(&sandbox);
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
        let code = process.wait_exit(Duration::from_secs(60)).code();
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

/// Creates an authority, and certificates from it for the broker and for a client, in `folder`.
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

    // The sandbox has ended its broker, so the refusals need another one.
    let (nats, folder) = broker_in(folder, &permissions(&[]), &tls);
    assert_ne!(nats.url(), url);
    let refused = |arguments: &[&str], said: &str| {
        let mut command = product("trireme-tokenizer");
        command.args(["--nats-url", &nats.url(), "--nats-connect-timeout-secs", "1", "--model-repository"]);
        command.arg(basic_repository()).args(["--nats-user", "tokenizer", "--nats-password-file"]);
        command.arg(folder.path().join("tokenizer")).args(arguments);
        let mut process = Process::start("refused", &mut command, folder.path());
        assert!(!process.wait_exit(Duration::from_secs(60)).success());
        let words = process.last_words();
        assert!(words.len() == 1 && words[0].contains(said), "expected {said:?} in {words:#?}");
    };
    refused(&[], "invalid peer certificate: UnknownIssuer");
    refused(&["--nats-tls-ca", &ca], "NATS at");
    let mixed = ["--nats-tls-ca", &ca, "--nats-tls-cert", &certificate, "--nats-tls-key", &certificate];
    refused(&mixed, "the NATS client key in");

    let first = tls.replace("verify: true", "verify: true, handshake_first: true");
    let (nats, folder) = broker_in(folder, &permissions(&[]), &first);
    let connects = |more: &[&str]| {
        let mut command = product("trireme");
        command.args([
            "settings",
            "--nats-connect-timeout-secs",
            "0",
            "--nats-url",
            &nats.url(),
            "--nats-user",
            "admin",
        ]);
        command.arg("--nats-password-file").arg(folder.path().join("admin")).args(all).args(more);
        let output = command.output().expect("the binary runs");
        // A process that has connected finds no gateway.
        !String::from_utf8_lossy(&output.stderr).contains("NATS at")
    };
    assert!(connects(&["--nats-tls-first"]) && !connects(&[]));
}

/// Where the listener of this name listens.
fn listener(process: &Process, name: &str) -> std::net::SocketAddr {
    wait_until(name, SOON, || {
        let listener = process.events().into_iter().find(|event| event["message"] == name)?;
        listener["address"].as_str()?.parse().ok()
    })
}

/// Log lines of every level, errors, answers, metrics and help.
#[test]
fn a_password_in_the_url_logs_in_and_is_printed_nowhere() {
    const SECRET: &str = "s3cr";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = "max_payload: 8MB\njetstream { store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 64GB }\nauthorization { user: a, password: \"s3cr/et\" }\n";
    let nats = NatsServer::start_with_files(&[("nats.conf", config)]);
    let with = |login: &str| nats.url().replace("nats://", &format!("nats://{login}@"));
    let url = with("a:s3cr%2Fet");
    let mut printed: Vec<(String, String)> = Vec::new();

    // A deployment that works, with the URL as a flag and as a variable.
    let mut command = product("trireme-gateway");
    command.args(["--log-level", "trace", "--nats-url", &url, "--model-repository"]).arg(basic_repository());
    let mut gateway = Process::start("gateway", &mut command, folder.path());
    let mut command = product("trireme");
    command.args(["worker", "--stages", "tokenizer,model,postprocess", "--model-repository"]).arg(basic_repository());
    command.env("TRIREME_NATS_URL", &url).env("TRIREME_LOG_LEVEL", "trace");
    let mut worker = Process::start("worker", &mut command, folder.path());
    let (http, metrics) = (listener(&gateway, "HTTP listener"), listener(&gateway, "metrics listener"));
    let ready = Request::get("/v2/models/tiny_embedding/ready");
    wait_until("the model is ready", SOON, || ready.send(http).ok().filter(|answer| answer.status == 200));
    let text = json!({"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": ["a text"]});
    let infer = Request::infer("tiny_embedding", &json!({"inputs": [text]}));
    assert_eq!(infer.send(http).expect("an answer").status, 200);
    for (path, address) in [("/v2/trireme/status", http), ("/v2", http), ("/v2/logging", http), ("/metrics", metrics)] {
        let answer = Request::get(path).send(address).expect("an answer");
        assert_eq!(answer.status, 200, "{path}");
        printed.push((path.to_owned(), answer.text()));
    }
    let mut run = |arguments: &[&str], flag: Option<&str>, variable: &str, works: bool| {
        let mut command = product(arguments[0]);
        command.args(&arguments[1..]).env("TRIREME_NATS_URL", variable).env("TRIREME_LOG_LEVEL", "trace");
        command.args(flag.iter().flat_map(|url| ["--nats-url", url]));
        let output = command.output().expect("the binary runs");
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert_eq!(output.status.success(), works, "{arguments:?} {flag:?}: {text}");
        printed.push((format!("{arguments:?} {flag:?}"), text.clone()));
        text
    };
    let services = ["trireme-gateway", "trireme-tokenizer", "trireme-model", "trireme-postprocess", "trireme-python"];
    for service in services {
        run(&[service, "--help"], None, &url, true);
    }
    for tool in [&["trireme", "dead", "list"][..], &["trireme", "settings"]] {
        run(tool, None, &url, true);
        run(&[tool, &["--help"]].concat(), None, &url, true);
    }
    // Starts that fail: a wrong password, faulty URLs, two logins, nobody there.
    let repository = basic_repository().display().to_string();
    let password_file = folder.path().join("password").display().to_string();
    fs::write(&password_file, "s3cr/et").expect("the folder can be written");
    let tokenizer = ["trireme-tokenizer", "--nats-connect-timeout-secs", "0", "--model-repository", &repository];
    for (login, said) in [
        ("a:s3cr", "does not let the user of --nats-url in"),
        ("s3cr", "does not let the token of --nats-url in"),
        ("a:s3cr/et", "is not understood"),
        ("a:1/s3cr", "goes on after the host and port"),
    ] {
        let text = run(&tokenizer, Some(&with(login)), &url, false);
        assert!(text.contains(said), "expected {said:?} in: {text}");
        run(&["trireme", "dead", "list"], None, &with(login), false);
    }
    let user = ["--nats-user", "a", "--nats-password-file", &password_file];
    let text = run(&[&tokenizer[..], &user].concat(), None, &url, false);
    assert!(text.contains("user 'a' is given, and the user of --nats-url"), "{text}");
    run(&[&tokenizer[..], &["--nats-token-file", "missing"]].concat(), None, &nats.url(), false);
    run(&tokenizer, Some("nats://a:s3cret@127.0.0.1:1"), &url, false);
    run(&["trireme-tokenizer", "--nats-ulr", &url], None, &url, false);
    run(&["trireme-tokenizer", "--nats-connect-timeout-secs", "never"], Some(&url), &url, false);

    for process in [&mut gateway, &mut worker] {
        process.terminate();
        assert_eq!(process.wait_exit(SOON).code(), Some(0), "{}", process.log_tail());
        printed.push((process.name().to_owned(), process.log()));
    }
    for (of, text) in printed {
        let shown = text.lines().find(|line| line.contains(SECRET));
        assert!(shown.is_none(), "{of} has printed: {shown:?}");
    }
}

/// A gateway and a worker of the deployment `name`, as users of its own.
struct Deployed {
    name: &'static str,
    gateway: Process,
    worker: Process,
    address: std::net::SocketAddr,
}

// === impl Deployed ===

impl Deployed {
    fn start(name: &'static str, nats: &NatsServer, passwords: &Path, models: &ModelFolder, more: &[&str]) -> Deployed {
        let service = |binary: &str, service: &str, more: &[&str]| {
            let user = format!("{name}-{service}");
            let mut command = product(binary);
            command.args(["--nats-url", &nats.url(), "--nats-user", &user, "--nats-password-file"]);
            command.arg(passwords.join(&user)).arg("--model-repository").arg(models.path()).args(more);
            command.env("TRIREME_DEPLOYMENT", name);
            Process::start(&user, &mut command, passwords)
        };
        let gateway = service("trireme-gateway", "gateway", more);
        let worker = service("trireme-model", "model", &[]);
        let address = listener(&gateway, "HTTP listener");
        Deployed { name, gateway, worker, address }
    }

    fn send(&self, request: &Request) -> Response {
        request.send(self.address).expect("the gateway answers")
    }

    fn infer(&self, datatype: &str) -> Request {
        let input = json!({"name": "INPUT0", "datatype": datatype, "shape": [1, 1], "data": [3]});
        Request::infer("shared", &json!({"inputs": [input]}))
    }

    fn status(&self) -> Value {
        self.send(&Request::get("/v2/trireme/status")).json()
    }
}

/// Both have a model of the same name and version, with different contents.
#[test]
fn two_deployments_on_one_broker_share_nothing() {
    let identity = |datatype: &str| {
        format!(
            "backend: 'identity' max_batch_size: 8 instance_group [{{ count: 1 kind: KIND_CPU }}]
             input [{{ name: 'INPUT0' data_type: TYPE_{datatype} dims: [1] }}]
             output [{{ name: 'OUTPUT0' data_type: TYPE_{datatype} dims: [1] }}]"
        )
    };
    let models = [("blue", "FP32"), ("green", "INT64")].map(|(name, datatype)| {
        ModelFolder::new().model("shared", &identity(datatype)).model(&format!("{name}_only"), &identity(datatype))
    });
    let named = |name: &str, models: &ModelFolder| format!("{name}={}", models.path().display());
    let users = permissions(&["--deployment", &named("blue", &models[0]), &named("green", &models[1])]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut passwords = String::new();
    for user in ["blue", "green"].iter().flat_map(|name| USERS.map(|user| format!("{name}-{user}"))) {
        passwords += &format!("{}_PASSWORD: \"{}\"\n", user.replace('-', "_").to_uppercase(), password(&user));
        fs::write(folder.path().join(&user), password(&user)).expect("the folder can be written");
    }
    let config = "max_payload: 8MB\njetstream { store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 64GB }\ninclude users.conf\n";
    let files = [("nats.conf", config), ("users.conf", &users), ("secrets/passwords.conf", &passwords)];
    let nats = NatsServer::start_with_files(&files);
    let flags: [&[&str]; 2] = [&["--queue-max-messages", "77"], &["--queue-max-messages", "99"]];
    let blue = Deployed::start("blue", &nats, folder.path(), &models[0], flags[0]);
    let green = Deployed::start("green", &nats, folder.path(), &models[1], flags[1]);
    let both = [(&blue, &green, "FP32"), (&green, &blue, "INT64")];
    for (one, other, datatype) in both {
        let ready = Request::get("/v2/health/ready");
        wait_until("it is ready", SOON, || (one.send(&ready).status == 200).then_some(()));
        // Answers of the other model would have another datatype, or be errors.
        for urgency in ["u=3", "u=7"].repeat(10) {
            let answer = one.send(&one.infer(datatype).header("Priority", urgency));
            assert_eq!(
                (answer.status, &answer.json()["outputs"][0]["datatype"]),
                (200, &json!(datatype)),
                "{}",
                one.name
            );
        }
        let index = one.send(&Request::post("/v2/repository/index", "{}")).text();
        assert!(
            index.contains(&format!("{}_only", one.name)) && !index.contains(&format!("{}_only", other.name)),
            "{index}"
        );
        let is_alone = |status: &Value| {
            ["gateways", "workers"]
                .iter()
                .all(|list| status[list].as_array().is_some_and(|processes| processes.len() == 1))
        };
        let status =
            wait_until("its own processes are heard, and no others", SOON, || Some(one.status()).filter(is_alone));
        assert_eq!(status["deployment"], one.name);
        // Durable work is that of one deployment.
        let later = one.send(&one.infer(datatype).header("Prefer", "respond-async"));
        let location = later.header("location").expect("a location").to_owned();
        let answered = Request::get(&format!("{location}/response"));
        wait_until("the durable request is answered", SOON, || (one.send(&answered).status == 200).then_some(()));
        assert_eq!(other.send(&Request::get(&location)).status, 404);
    }
    // Commands and settings.
    let verbose = Request::post("/v2/logging", r#"{"log_verbose_level": 1}"#);
    assert_eq!(blue.send(&verbose).status, 200);
    wait_until("the worker hears it", SOON, || (blue.worker.count("log levels were changed") > 0).then_some(()));
    assert_eq!(green.worker.count("log levels were changed"), 0);
    assert_eq!(green.send(&Request::get("/v2/logging")).json()["log_verbose_level"], 0);
    for (one, messages) in [(&blue, "77"), (&green, "99")] {
        let user = format!("{}-admin", one.name);
        let mut command = product("trireme");
        command.args(["settings", "--deployment", one.name, "--nats-url", &nats.url(), "--nats-user", &user]);
        let output = command.arg("--nats-password-file").arg(folder.path().join(&user)).output();
        let text = String::from_utf8_lossy(&output.expect("the binary runs").stdout).into_owned();
        let line = text.lines().find(|line| line.contains("queue-max-messages")).unwrap_or_default();
        assert!(line.ends_with(messages), "{text}");
    }
    let log = nats.log();
    let refusals: Vec<&str> = log.lines().filter(|line| line.contains("Violation")).collect();
    assert_eq!(refusals, [""; 0]);
    // The users of one reach nothing of the other.
    let reach = |name: &str| {
        [
            publish(&format!("trireme-{name}.work.shared.1.0.gateway.request")),
            publish(&format!("$JS.API.STREAM.INFO.KV_trireme-{name}_registry")),
            publish(&format!("trireme-{name}.control.cancel")),
            format!("SUB trireme-{name}.reply.> 1"),
            format!("SUB _INBOX.trireme-{name}.gateway.> 1"),
        ]
    };
    assert_allowed(&nats, "blue-gateway", &reach("blue"));
    assert_refused(&nats, "green-gateway", &reach("blue"));
    for Deployed { mut gateway, mut worker, .. } in [blue, green] {
        for process in [&mut worker, &mut gateway] {
            process.terminate();
            assert_eq!(process.wait_exit(SOON).code(), Some(0), "{}", process.log_tail());
        }
    }
}
