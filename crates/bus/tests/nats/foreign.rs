//! Brokers that others run: their logins, and streams of theirs beside those of Trireme.

use std::fs;
use std::time::Duration;

use async_nats::jetstream::{self, stream};
use trireme_bus::fixtures::{message, model, options, take, within};
use trireme_bus::{Bus, BusError, Nats, NatsLogin, NatsOptions, Output};
use trireme_testkit::NatsServer;

use super::{at, connect, connect_stage};

const JETSTREAM: &str = "jetstream { store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 64GB }\n";

/// The key of NATS's own documentation.
const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
const PUBLIC_KEY: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

fn server_with(authorization: &str) -> NatsServer {
    NatsServer::start_with_files(&[("nats.conf", &format!("{JETSTREAM}authorization {{ {authorization} }}\n"))])
}

/// Connects with these credentials in the URL, and this login.
async fn log_in(server: &NatsServer, in_url: &str, login: NatsLogin) -> Result<(), BusError> {
    let url = server.url().replace("nats://", &format!("nats://{in_url}"));
    let options = NatsOptions { login, deployment: None, ..at(&url) };
    let connected = within("connecting", Nats::connect(&options)).await;
    connected.map(drop)
}

#[tokio::test]
async fn every_login_of_nats_is_one_here() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let password = || NatsLogin::Password { user: "a".to_owned(), password_file: file("password", "p@ss/,é\n") };
    let nkey = || NatsLogin::Nkey(file("nkey", &format!("# A comment\n{SEED}\n")));
    let token = || NatsLogin::Token(file("token", "s3cr,t\n"));
    let users = format!("users: [ {{ user: a, password: \"p@ss/,é\" }}, {{ nkey: {PUBLIC_KEY} }} ]");
    let (with_users, with_token) = (server_with(&users), server_with("token: \"s3cr,t\""));
    for (server, in_url, login) in [
        (&with_users, "a:p%40ss%2F%2C%C3%A9@", NatsLogin::Anonymous),
        (&with_users, "", password()),
        (&with_users, "", nkey()),
        (&with_token, "s3cr%2Ct@", NatsLogin::Anonymous),
        (&with_token, "", token()),
    ] {
        log_in(server, in_url, login.clone()).await.unwrap_or_else(|error| panic!("{in_url} {login}: {error}"));
    }
    // Refused by the broker, or before it is asked.
    let rubbish = || NatsLogin::Nkey(file("rubbish", "s3cret"));
    for (server, in_url, login, said) in [
        (&with_users, "a:s3cret@", NatsLogin::Anonymous, "does not let the user of --nats-url in"),
        (&with_token, "s3cret@", NatsLogin::Anonymous, "does not let the token of --nats-url in"),
        (&with_users, "a:s3cret@", password(), "user 'a' is given, and the user of --nats-url; expected one of them"),
        (&with_token, "s3cret@", token(), "is given, and the token of --nats-url; expected one of them"),
        (&with_users, "s3cret@", nkey(), "is given, and the token of --nats-url; expected one of them"),
        (&with_users, "", rubbish(), "cannot be used: expected a line with a user's seed (SU...)"),
        (&with_users, "a:1/s3cret@", NatsLogin::Anonymous, "goes on after the host and port"),
    ] {
        let error = log_in(server, in_url, login).await.unwrap_err();
        assert!(matches!(error, BusError::Refused { .. }), "{error:?}");
        let text = format!("{error} {error:?}");
        assert!(text.contains(said) && !text.contains("s3cret"), "expected {said:?} in: {text}");
    }
}

#[tokio::test]
async fn a_login_is_read_again_at_each_connection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    let other = nkeys::KeyPair::new_user();
    let password = |secret: &str| format!("users: [ {{ user: a, password: {secret:?} }} ]");
    let cases = [
        (
            NatsLogin::Password { user: "a".to_owned(), password_file: path.clone() },
            ["one".to_owned(), "two".to_owned()],
        ),
        (NatsLogin::Token(path.clone()), ["one".to_owned(), "two".to_owned()]),
        (NatsLogin::Nkey(path.clone()), [SEED.to_owned(), other.seed().unwrap()]),
    ];
    for (login, secrets) in cases {
        let allowed = |number: usize| match &login {
            NatsLogin::Password { .. } => password(&secrets[number]),
            NatsLogin::Token(_) => format!("token: {:?}", secrets[number]),
            _ => format!("users: [ {{ nkey: {} }} ]", [PUBLIC_KEY, &other.public_key()][number]),
        };
        fs::write(&path, &secrets[0]).unwrap();
        let mut server = server_with(&allowed(0));
        let options = NatsOptions { login: login.clone(), ..at(&server.url()) };
        let nats = within("connecting", Nats::connect(&options)).await.unwrap();
        let bus: &dyn Bus = &nats;
        let mut connection = bus.connection();
        let first = *connection.borrow_and_update();
        server.kill();
        within("the connection is lost", connection.wait_for(|state| *state != first)).await.unwrap();
        server.replace("nats.conf", &format!("{JETSTREAM}authorization {{ {} }}\n", allowed(1)));
        fs::write(&path, &secrets[1]).unwrap();
        server.restart();
        let up = connection.wait_for(|state| matches!(state, trireme_bus::Connection::Up(_)));
        within("connecting with the new secret", up).await.unwrap();
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("the listener has an address").port()
}

#[tokio::test]
async fn websocket_is_a_way_to_the_broker() {
    let port = free_port();
    let websocket = format!("websocket {{ host: \"127.0.0.1\", port: {port}, no_tls: true }}\n");
    let login = "authorization { token: \"s3cr,t\" }\n";
    let _server = NatsServer::start_with_files(&[("nats.conf", &format!("{JETSTREAM}{websocket}{login}"))]);
    let at = at(&format!("ws://s3cr%2Ct@127.0.0.1:{port}/behind/a/proxy"));
    let gateway = within("connecting", Nats::connect(&at)).await.unwrap();
    within("a queue", gateway.declare_queue(&model("over_websocket"), &options())).await.unwrap();
}

/// Each would be tried for half a minute.
#[tokio::test]
async fn what_waiting_does_not_mend_is_refused_at_once() {
    let no_inbox = "users: [ { user: a, password: b, permissions: { publish: \">\", subscribe: \"OURS.>\" } } ]";
    let no_jetstream = "users: [ { user: a, password: b, permissions: { publish: \"x\", subscribe: \">\" } } ]";
    let no_streams =
        "users: [ { user: a, password: b, permissions: { publish: { deny: \"$JS.API.STREAM.CREATE.>\" } } } ]";
    let rude = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let rude_url = format!("nats://{}", rude.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in rude.incoming() {
            let _ = stream.and_then(|mut stream| std::io::Write::write_all(&mut stream, b"SSH-2.0-OpenSSH_9.2\r\n"));
        }
    });
    let servers = [no_inbox, no_jetstream, no_streams].map(server_with);
    let login = |server: &NatsServer| server.url().replace("nats://", "nats://a:b@");
    let ours = |url: &str| NatsOptions { inbox_prefix: Some("OURS".to_owned()), ..at(url) };
    let domain = |url: &str| NatsOptions { domain: Some("nowhere".to_owned()), ..ours(url) };
    for (options, said) in [
        (at(&login(&servers[0])), "Permissions Violation for Subscription to \"_INBOX."),
        (at(&login(&servers[1])), "Permissions Violation for Publish to \"$JS.API.INFO\""),
        (at(&login(&servers[2])), "Permissions Violation for Publish to \"$JS.API.STREAM.CREATE.KV_trireme_settings\""),
        (at(&rude_url), "invalid server operation"),
        (domain(&login(&servers[0])), "--nats-jetstream-domain"),
        (
            NatsOptions { domain: Some("a b".to_owned()), ..at("nats://127.0.0.1:1") },
            "--nats-jetstream-domain is 'a b'",
        ),
    ] {
        let options = NatsOptions { connect_timeout: Duration::from_secs(600), ..options };
        let error = within("a refusal", Nats::connect(&options)).await.map(drop).unwrap_err();
        assert!(matches!(error, BusError::Refused { .. }), "{error:?}");
        assert!(error.to_string().to_lowercase().contains(&said.to_lowercase()), "expected {said:?} in: {error}");
    }
    within("connecting", Nats::connect(&ours(&login(&servers[0])))).await.unwrap();
}

/// A stream that another application made, or an auditor.
async fn foreign_stream(server: &NatsServer, subjects: &[&str]) {
    let jetstream = jetstream::new(async_nats::connect(server.url()).await.expect("the server was started"));
    let subjects = subjects.iter().map(|subject| subject.to_string()).collect();
    let config = stream::Config { name: "AUDIT".to_owned(), subjects, ..Default::default() };
    jetstream.create_stream(config).await.expect("a stream is made");
}

#[tokio::test]
async fn a_stream_with_our_subjects_is_named() {
    let server = NatsServer::start();
    foreign_stream(&server, &["trireme.>"]).await;
    let error = within("a refusal", Nats::connect(&at(&server.url()))).await.map(drop).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, BusError::Refused { .. }), "{error:?}");
    assert!(text.contains("subjects overlap with stream AUDIT; take 'trireme."), "{text}");
}

/// The broker acknowledges each question to its inbox, because the stream stores it.
#[tokio::test]
async fn no_acknowledgement_of_a_stream_is_an_answer() {
    let server = NatsServer::start();
    foreign_stream(&server, &["trireme.control.>", "trireme.reply.>"]).await;
    let (gateway, stage, model) = (connect(&server).await, connect_stage(&server).await, model("audited"));
    within("a queue", gateway.declare_queue(&model, &options())).await.unwrap();

    let mut questions = stage.subscribe("audited").await.unwrap();
    let mut answers = gateway.request("audited", "?".into()).await.unwrap();
    let question = within("the question", questions.recv()).await.unwrap();
    question.answer("!".into()).await.unwrap();
    assert_eq!(within("the answer", answers.recv()).await.unwrap(), "!");

    let request = message(&model, 1);
    let inbox = gateway.open_inbox(&request.gateway).await.unwrap();
    let mut replies = inbox.expect(&request);
    gateway.publish(&request).await.unwrap();
    let mut consumer = stage.pull(&model).await.unwrap();
    take(&mut consumer, "the request").await.acker.ack().await.unwrap();
    let reply = request.reply(Ok(Output::default()));
    stage.reply(reply.clone()).await.unwrap();
    assert_eq!(within("the reply", replies.next()).await.request_id, reply.request_id);
}
