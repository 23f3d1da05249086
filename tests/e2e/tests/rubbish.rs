//! Malformed messages on the broker, on every subject that the system uses. No process panics, hangs or grows;
//! malformed messages are dropped with a line in the log, and answers stay right meanwhile and afterwards.
//!
//! The subjects are those seen while the system does everything that it does, and those of `docs/message-contract.md`.
//! The test does not send to the broker's own subjects (`$JS.`): there an empty message is an order, for example to
//! purge a stream or to acknowledge work.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use trireme_e2e::{
    Golden, Mode, Request, Sandbox, Setup, Stage, Wire, WireMessage, golden, product, wait_until, workspace,
};
use trireme_testkit::{NatsServer, assert_close};

/// Small, so that bodies of moderate size travel by claim.
const MAX_PAYLOAD: usize = 1 << 20;

/// How much any process may grow. The system's own queues and logs take a part of that.
const GROWTH: u64 = 80 << 20;

/// The deadline of requests in milliseconds; messages whose body is lost are kept for that long.
const DEADLINE: &str = "30000";

/// After this time all messages are dealt with: well beyond the deadlines.
const SETTLED: Duration = Duration::from_secs(120);

/// Number of malformed messages of nearly [`MAX_PAYLOAD`].
const LARGE_MESSAGES: usize = 128;

/// The subject at which each process shows that it lives.
const HEARTBEAT: &str = "trireme.control.heartbeat";

/// Subjects from the contract, or prescribed by NATS, that normal work may not use.
const OTHERS: [&str; 21] = [
    "trireme.work.nosuch.1.0",
    "trireme.work.identity_a.1.99",
    "trireme.work.x",
    "trireme.reply.nobody.nothing",
    "trireme.control.tap",
    "trireme.control.logging",
    "trireme.control.models",
    "trireme.control.statistics_told",
    HEARTBEAT,
    "trireme.control.announce",
    "trireme.control.nosuch",
    "trireme.dead.identity_a.1",
    "trireme.dead.=claim.x.0",
    "trireme.claim.x.0",
    "trireme.attempts.x",
    "trireme.control.queue_refused.identity_a.1",
    "$KV.trireme_registry.identity_a.1.nobody",
    "$KV.trireme_registry.x",
    "$KV.trireme_models.identity_a",
    "$KV.trireme_models.x",
    "$KV.trireme_models.x.y",
];

/// The prefix of headers that have a meaning for the broker: with them, copies would be dropped or expire earlier.
const BROKERS_HEADERS: &str = "Nats-";

fn text_request(golden: &Golden) -> serde_json::Value {
    json!({"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [1], "data": [golden.text]}]})
}

/// Sends one request and checks its answer against values computed without the product.
#[track_caller]
fn ask(sandbox: &Sandbox, golden: &Golden) {
    let response = sandbox.infer("tiny_embedding", &text_request(golden));
    assert_close(&response.numbers("embedding"), &golden.embedding, 1e-5);
}

/// A request that travels by claim.
#[track_caller]
fn ask_large(sandbox: &Sandbox) {
    let length = MAX_PAYLOAD / 2;
    let large = json!({"name": "INPUT0", "datatype": "FP32", "shape": [length], "data": vec![1; length]});
    assert_eq!(sandbox.infer("identity_chain", &json!({"inputs": [large]})).status, 200);
}

fn slow_request() -> Request {
    let input = json!({"name": "INPUT0", "datatype": "FP32", "shape": [2], "data": [1, 2]});
    Request::infer("slow_identity", &json!({"inputs": [input]}))
}

/// Records until `over` the last message to each subject, with its reply subject.
fn listen(mut wire: Wire, over: &AtomicBool, heartbeats: &AtomicUsize) -> BTreeMap<String, WireMessage> {
    let mut seen = BTreeMap::new();
    while !over.load(Ordering::Relaxed) {
        let Some(message) = wire.next(Duration::from_millis(100)) else { continue };
        if let Some(inbox) = message.reply.clone() {
            let unseen = WireMessage { subject: inbox.clone(), ..WireMessage::default() };
            seen.entry(inbox).or_insert(unseen);
        }
        heartbeats.fetch_add(usize::from(message.subject == HEARTBEAT), Ordering::Relaxed);
        seen.insert(message.subject.clone(), message);
    }
    // These are orders to the broker.
    seen.retain(|subject, _| !subject.starts_with("$JS."));
    seen
}

/// Does everything that the system can do once: an ensemble, a body that travels by claim, a client that leaves,
/// statistics, log levels, a worker that joins. Returns the messages that were sent meanwhile.
fn record(sandbox: &mut Sandbox, url: &str) -> BTreeMap<String, WireMessage> {
    // A subscription to everything hides from publishers that a stream is missing, so all streams are created first.
    ask_large(sandbox);
    let mut wire = Wire::open(url);
    wire.subscribe(">");
    let (over, heartbeats) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let heard = scope.spawn(|| listen(wire, &over, &heartbeats));
        let ended = Ended(&over);
        golden().iter().for_each(|golden| ask(sandbox, golden));
        ask_large(sandbox);
        // More requests than can be answered before their clients leave.
        let waiting: Vec<_> = (0..40).map(|_| slow_request().start(sandbox.address)).collect();
        std::thread::sleep(Duration::from_millis(100));
        drop(waiting);
        assert_eq!(sandbox.get("/v2/models/stats").status, 200);
        assert_eq!(sandbox.send(&Request::post("/v2/logging", r#"{"log_verbose_level": 0}"#)).status, 200);
        sandbox.start_worker(Stage::Postprocess);
        sandbox.wait_ready();
        let before = heartbeats.load(Ordering::Relaxed);
        wait_until("a heartbeat", Duration::from_secs(60), || {
            (heartbeats.load(Ordering::Relaxed) > before).then_some(())
        });
        drop(ended);
        heard.join().expect("the broker is read")
    })
}

/// Sets the flag when dropped, also when a test fails, so that the waiting thread ends.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The part that subjects have in common which contain the name of a request or claim.
fn kind(subject: &str) -> String {
    let tokens: Vec<&str> = subject.split('.').collect();
    let kept = match tokens[..] {
        ["trireme", "reply" | "claim", ..] => 2,
        ["_INBOX", ..] => 2,
        _ => tokens.len(),
    };
    tokens[..kept.min(tokens.len())].join(".")
}

/// Every subject, with a valid message to it if one was seen.
fn targets(seen: BTreeMap<String, WireMessage>) -> Vec<WireMessage> {
    let mut by_kind: BTreeMap<String, Vec<WireMessage>> = BTreeMap::new();
    for (subject, message) in seen {
        by_kind.entry(kind(&subject)).or_default().push(message);
    }
    let others = OTHERS.map(|subject| WireMessage { subject: subject.to_owned(), ..WireMessage::default() });
    // The last inboxes of each connection, of which one is open.
    let some = by_kind.into_values().flat_map(|messages| messages.into_iter().rev().take(3));
    some.chain(others).collect()
}

/// The prefixes of the subjects in the contract's table.
fn contract_subjects() -> Vec<String> {
    let page = std::fs::read_to_string(workspace().join("docs/message-contract.md")).expect("the contract is there");
    let subjects = page.lines().filter_map(|line| line.split_once("| subject `")?.1.split(['<', '`']).next());
    subjects.map(str::to_owned).collect()
}

/// Malformed bodies.
fn bodies() -> Vec<Vec<u8>> {
    const DEEP: usize = 20_000;
    let mut chance = fastrand::Rng::with_seed(7);
    let mut random = |length: usize| (0..length).map(|_| chance.u8(..)).collect::<Vec<u8>>();
    // The headers of MessagePack's maps, arrays, binary and text of 4 GiB.
    let huge = [0xdf, 0xdd, 0xc6, 0xdb].map(|mark| vec![mark, 0xff, 0xff, 0xff, 0xff]);
    let mut bodies = vec![
        Vec::new(),
        vec![0xc1],
        random(64),
        random(4096),
        vec![0x91; DEEP],
        b"\x81\xa5route".repeat(DEEP / 8),
        b"[".repeat(DEEP),
        br#"{"a":"#.repeat(DEEP / 4),
        b"{\"batch\": -1, \"worker\": 1e999999}".to_vec(),
        b"\xff\xfe{}".to_vec(),
    ];
    bodies.extend(huge.clone());
    // The same in the place of the tensors in a map of the contract.
    bodies.extend(huge.map(|huge| [b"\x81\xa7tensors".as_slice(), &huge].concat()));
    bodies
}

/// Copies of a message's headers in which a single header is wrong or missing.
fn headers(valid: &[(String, String)]) -> Vec<Vec<(String, String)>> {
    let values = ["", "x", "-1", "99999999999999999999", &"a".repeat(8192), "\u{1f6a3}"];
    let mut all = Vec::new();
    for (number, _) in valid.iter().enumerate() {
        let mut without = valid.to_vec();
        let (name, _) = without.remove(number);
        all.extend(values.map(|value| {
            let mut wrong = without.clone();
            wrong.push((name.clone(), value.to_owned()));
            wrong
        }));
        all.push(without);
    }
    // Claims of bodies that do not exist, or that are larger than any.
    let claims = [
        ("nosuch", "18446744073709551615", "4294967295"),
        ("x", "134217728", "134217728"),
        ("a.b >", "1", "1"),
        ("x", "0", "0"),
    ];
    all.extend(claims.map(|(name, bytes, parts)| {
        let claim = [("Trireme-Claim", name), ("Trireme-Claim-Bytes", bytes), ("Trireme-Claim-Parts", parts)];
        let claim = claim.map(|(name, value)| (name.to_owned(), value.to_owned()));
        valid.iter().cloned().chain(claim).collect()
    }));
    all
}

/// Malformed copies of a valid message: first with broken bodies, which no process can read, then with broken headers, which a
/// process may read in part.
fn rubbish(target: &WireMessage) -> (Vec<WireMessage>, Vec<WireMessage>) {
    let usual = target.headers.iter().filter(|(name, _)| !name.starts_with(BROKERS_HEADERS));
    let usual: Vec<_> = usual.filter(|(name, _)| !name.starts_with("Trireme-Claim")).cloned().collect();
    let to = |headers: &[(String, String)], body: &[u8]| WireMessage {
        subject: target.subject.clone(),
        headers: headers.to_vec(),
        body: body.to_vec(),
        // No process listens on this subject, but some would answer every message.
        reply: (!target.subject.starts_with("trireme.work.")).then(|| "_INBOX.rubbish.1".to_owned()),
    };
    let body = &target.body;
    let cuts = (0..16).map(|part| &body[..body.len() * part / 16]);
    let mut malformed: Vec<_> = bodies().iter().flat_map(|body| [to(&[], body), to(&usual, body)]).collect();
    malformed.extend(cuts.map(|cut| to(&usual, cut)));
    (malformed, headers(&usual).iter().map(|headers| to(headers, body)).collect())
}

/// A short text (less than 32 bytes) in MessagePack.
fn text(text: &str) -> Vec<u8> {
    [&[0xa0 | text.len() as u8], text.as_bytes()].concat()
}

/// A list with `count` copies of an entry.
fn list(count: usize, entry: &[u8]) -> Vec<u8> {
    [&[0xdd], &(count as u32).to_be_bytes()[..], &entry.repeat(count)].concat()
}

/// Work that a worker can read, for the model of a valid message, with these tensors, inputs and later steps.
fn crafted_work(model: &str, tensors: &[u8], inputs: &[u8], later: usize) -> Vec<u8> {
    let step = |inputs: &[u8]| {
        let key = [vec![0x82], text("name"), text(model), text("version"), vec![1]].concat();
        [vec![0x83], text("model"), key, text("inputs"), inputs.to_vec(), text("outputs"), vec![0x90]].concat()
    };
    let steps =
        [vec![0xdd], (1 + later as u32).to_be_bytes().to_vec(), step(inputs), step(&[0x90]).repeat(later)].concat();
    let route = [
        [vec![0x85], text("model"), text(model), text("version"), vec![1], text("ensemble"), vec![0xc3]].concat(),
        [text("step"), vec![0], text("steps"), steps].concat(),
    ];
    let rest =
        [text("parameters"), vec![0x80], text("ledger"), vec![0x90], text("id"), text(""), text("sent_at"), vec![0]];
    [vec![0x86], text("route"), route.concat(), text("tensors"), tensors.to_vec(), rest.concat()].concat()
}

/// Well-formed messages that ask for too much: first work that a worker has to refuse, then registry entries that do
/// not match their keys, and one of an unknown model.
fn crafted(targets: &[WireMessage]) -> (Vec<WireMessage>, Vec<WireMessage>) {
    // A tensor and an input take few bytes if maps are written as arrays, which libraries also read.
    let tensor = |shape: &[u8]| [&[0x94][..], &text("t"), &text("INT8"), shape, &[0xc4, 0]].concat();
    let input = [&[0x93][..], &text(""), &text("x"), &[0xc3]].concat();
    let empty = tensor(&[0x91, 0]);
    let vast = tensor(&[0x92, 0xcf, 0, 0, 0x20, 0, 0, 0, 0, 0, 0]);
    let (no_list, one_input) = (vec![0x90], list(1, &input));
    let work = targets.iter().filter(|target| target.subject.starts_with("trireme.work.") && !target.body.is_empty());
    let refused = work.flat_map(|target| {
        let model = target.subject.split('.').nth(2).expect("work is for a model");
        let headers: Vec<_> = target.headers.iter().filter(|(name, _)| name.starts_with("Trireme-")).cloned().collect();
        let headers: Vec<_> = headers.into_iter().filter(|(name, _)| !name.starts_with("Trireme-Claim")).collect();
        let bodies = [
            crafted_work(model, &list(40_000, &empty), &list(80_000, &input), 0),
            crafted_work(model, &list(1, &vast), &one_input, 0),
            crafted_work(model, &no_list, &one_input, 10_000),
        ];
        let to = move |body: Vec<u8>| WireMessage { headers: headers.clone(), body, reply: None, ..target.clone() };
        bodies.map(to)
    });
    let refused = refused.collect();

    let entry = targets.iter().find(|target| target.subject.starts_with("$KV.") && !target.body.is_empty());
    let entry = entry.expect("workers have announced themselves");
    let mut stranger: serde_json::Value = serde_json::from_slice(&entry.body).expect("entries are JSON");
    (stranger["model"]["name"], stranger["worker"]) = (json!("stranger"), json!("x"));
    let put = |key: &str, body: Vec<u8>| {
        let subject = format!("$KV.trireme_registry.{key}");
        WireMessage { subject, body, ..WireMessage::default() }
    };
    let entries = vec![
        put("stranger.1.y", entry.body.clone()),
        put("stranger.2.x", serde_json::to_vec(&stranger).expect("it is JSON")),
        put("stranger.1.x", serde_json::to_vec(&stranger).expect("it is JSON")),
    ];
    (refused, entries)
}

/// Sends all of it. Returns how many of the malformed messages, and how many of the well-formed ones, a worker has to
/// refuse.
fn inject(url: &str, targets: &[WireMessage]) -> (usize, usize) {
    let mut wire = Wire::open(url);
    let (mut sent, mut refused) = (0, 0);
    for target in targets {
        let (malformed, doubtful) = rubbish(target);
        let hosted = target.subject.starts_with("trireme.work.") && !target.body.is_empty();
        refused += if hosted { malformed.len() } else { 0 };
        sent += malformed.len() + doubtful.len();
        malformed.iter().chain(&doubtful).for_each(|message| wire.publish(message));
        wire.flush();
    }
    let (work, entries) = crafted(targets);
    for message in work.iter().chain(&entries) {
        wire.publish(message);
        wire.flush();
    }
    (sent + work.len() + entries.len(), refused + work.len())
}

/// Large messages where a process might keep their contents: more in all than [`GROWTH`]. The broker drops the connection of a
/// process that is 64 MiB behind, as one on a busy machine may be, so some messages are read before the next ones are sent.
fn flood(sandbox: &Sandbox, url: &str) {
    const AT_A_TIME: usize = 16;
    let read = |process: &trireme_e2e::Process| process.count("ignored a malformed cancellation");
    let before: Vec<usize> = sandbox.processes().map(read).collect();
    let mut wire = Wire::open(url);
    for number in 0..LARGE_MESSAGES {
        if number % AT_A_TIME == 0 {
            let has_read = |(process, &before): (_, &usize)| before == 0 || read(process) >= before + number;
            wait_until("large messages are read", SETTLED, || {
                sandbox.processes().zip(&before).all(has_read).then_some(())
            });
        }
        let mut body = format!("{number:09}").into_bytes();
        body.resize(MAX_PAYLOAD - 1024, b'a');
        wire.publish(&WireMessage { subject: "trireme.control.cancel".to_owned(), body, ..WireMessage::default() });
        wire.flush();
    }
}

/// How often any process has logged this message.
fn logged(sandbox: &Sandbox, message: &str) -> usize {
    sandbox.processes().map(|process| process.count(message)).sum()
}

fn memory(sandbox: &Sandbox) -> Vec<u64> {
    sandbox.processes().map(trireme_e2e::Process::resident_bytes).collect()
}

/// Number of messages in the queues, and of those delivered to workers.
fn queued(sandbox: &Sandbox) -> Option<f64> {
    let events = sandbox.gateway.events();
    let listening = events.iter().find(|event| event["message"] == "metrics listener")?;
    let metrics = Request::get("/metrics").send(listening["address"].as_str()?.parse().ok()?).ok()?.text();
    let waiting = |line: &&str| {
        ["trireme_queue_waiting_messages{", "trireme_queue_delivered_messages{"]
            .iter()
            .any(|name| line.starts_with(name))
    };
    metrics.lines().filter(waiting).map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

#[test]
fn rubbish_on_every_subject_is_dropped_and_work_goes_on() {
    // With this control mode, processes listen for commands about models.
    let control = ["--model-control-mode=explicit", "--load-model=*"];
    let gateway = [control[0], control[1], "--default-timeout-ms", DEADLINE];
    let setup = Setup::new(Mode::Services).gateway_arguments(&gateway).worker_arguments(&control);
    let mut sandbox = setup.start_on(Some(NatsServer::start_with_max_payload(MAX_PAYLOAD)));
    let url = sandbox.nats.as_ref().expect("services have a broker").url();
    let targets = targets(record(&mut sandbox, &url));
    let reached: Vec<&str> = targets.iter().map(|target| target.subject.as_str()).collect();
    for subject in contract_subjects() {
        assert!(
            reached.iter().any(|reached| reached.starts_with(&subject)),
            "nothing is sent to {subject}: {reached:#?}"
        );
    }
    assert!(reached.iter().any(|subject| subject.starts_with("_INBOX.")), "{reached:#?}");
    let before = memory(&sandbox);

    let over = AtomicBool::new(false);
    let (sent, refused, answered) = std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let golden = golden();
            let requests = golden.iter().cycle().take_while(|_| !over.load(Ordering::Relaxed));
            requests.map(|golden| ask(&sandbox, golden)).count()
        });
        let ended = Ended(&over);
        let (sent, refused) = inject(&url, &targets);
        flood(&sandbox, &url);
        drop(ended);
        (sent, refused, client.join().expect("every answer is right"))
    });
    wait_until("every queue is empty", SETTLED, || (queued(&sandbox) == Some(0.0)).then_some(()));
    println!("{sent} messages to {} subjects, {answered} requests answered meanwhile", targets.len());
    assert!(answered > 0);

    sandbox.check_running();
    for process in sandbox.processes() {
        for word in ["panicked", "NATS connection lost"] {
            let log = process.log();
            assert!(!log.contains(word), "{word}: {}:\n{}", process.name(), process.last_words().join("\n"));
        }
    }
    let after = memory(&sandbox);
    println!("resident bytes before {before:?}, after {after:?}");
    for ((process, before), after) in sandbox.processes().zip(&before).zip(&after) {
        assert!(after.saturating_sub(*before) < GROWTH, "{} grew from {before} to {after} bytes", process.name());
    }
    let dropped = logged(&sandbox, "refused a malformed message");
    assert!(dropped >= refused, "{dropped} of {refused} malformed messages were refused with a word about it");
    for word in [
        "a worker's reply cannot be read",
        "ignored a malformed registry entry",
        "ignored a malformed cancellation",
        "ignored a malformed command",
        "ignored a malformed change",
        "ignored a malformed heartbeat",
        "ignored statistics that cannot be read",
        "ignored log levels that cannot be read",
        "ignored a message for a tap that cannot be read",
    ] {
        assert!(logged(&sandbox, word) > 0, "nobody logged '{word}'");
    }
    golden().iter().for_each(|golden| ask(&sandbox, golden));
    let listed = product("trireme").args(["dead", "list", "--json", "--nats-url", &url]).output().expect("it runs");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
}
