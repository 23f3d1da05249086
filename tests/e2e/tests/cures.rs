//! Commands with which nothing works, as people type them: each ends with an error that says what to write in place of it.

use std::net::TcpListener;
use std::process::Command;

use trireme_e2e::{basic_repository, product, workspace};
use trireme_testkit::NatsServer;

/// The last words of a command that has failed.
fn fails(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{command:?} ended well: {said}");
    said.lines().filter(|line| line.starts_with("error: ")).map(str::to_owned).collect::<Vec<_>>().join("\n")
}

fn gateway(url: &str, flags: &[&str]) -> String {
    let mut command = product("trireme-gateway");
    command.args(["--nats-connect-timeout-secs", "1", "--nats-url", url]).args(flags);
    fails(command.arg("--model-repository").arg(basic_repository()))
}

fn serve(flags: &[&str]) -> String {
    fails(product("trireme").arg("serve").arg("--model-repository").arg(basic_repository()).args(flags))
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("the listener has an address").port()
}

#[test]
fn each_way_to_miss_the_broker_names_its_cure() {
    let broker = NatsServer::start();
    let plain = NatsServer::start_without_jetstream();
    let jetstream = "jetstream { store_dir: \"STORE\" }\n";
    let locked = format!("{jetstream}authorization {{ user: u, password: p }}\n");
    let locked = NatsServer::start_with_files(&[("nats.conf", &locked)]);
    let certificate = |name: &str| workspace().join("tests/certificates").join(name).display().to_string();
    let (cert, key, ca) = (certificate("server.pem"), certificate("server.key"), certificate("ca.pem"));
    let tls = |more: &str| {
        let config = format!("{jetstream}tls {{ cert_file: {cert:?}, key_file: {key:?} {more} }}\n");
        NatsServer::start_with_files(&[("nats.conf", &config)])
    };
    let (encrypted, mutual) = (tls(""), tls(&format!(", ca_file: {ca:?}, verify: true")));
    let port = |server: &NatsServer| server.url().trim_start_matches("nats://").to_owned();
    let nobody = format!("nats://127.0.0.1:{}", free_port());
    let wrong = locked.url().replace("nats://", "nats://u:wrong@");
    for (url, flags, cure) in [
        ("nats://no.such.host.invalid", &[][..], "name the broker's address by --nats-url"),
        (&nobody, &[], "start the broker there (nats-server -js)"),
        (&format!("http://{}", port(&broker)), &[], "write nats://HOST"),
        (&plain.url(), &[], "start nats-server with -js"),
        (&locked.url(), &[], "--nats-user with --nats-password-file"),
        (&wrong, &[], "correct the user or its secret"),
        (&format!("tls://{}", port(&broker)), &[], "write nats:// in place of tls://"),
        (&encrypted.url(), &[], "by --nats-tls-ca"),
        (&mutual.url(), &["--nats-tls-ca", &ca], "give --nats-tls-cert and --nats-tls-key"),
        (&broker.url(), &["--nats-tls-ca", "/no/such.pem"], "'/no/such.pem' cannot be used: No such file"),
        (&broker.url(), &["--nats-user", "u"], "the following required arguments were not provided"),
    ] {
        let said = gateway(url, flags);
        assert!(said.contains(cure) && !said.contains("wrong"), "{url} {flags:?}: expected {cure:?} in: {said}");
    }
}

#[test]
fn each_way_to_miss_a_server_names_its_cure() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = taken.local_addr().expect("an address").port().to_string();
    for (flags, cure) in [
        (&["--http-address", "127.0.0.1", "--http-port", &port][..], "choose another with --http-port"),
        (&["--model-repository", "/no/such"], "--model-repository names a folder that holds model folders"),
        (&["--model-repositry", "/models"], "unexpected argument '--model-repositry'"),
        (&["--http-address", "models.example.org"], "0.0.0.0 for all"),
        (&["--api-key", "file:/no/keys"], "--api-key file:/no/keys cannot be read"),
        (&["--data-dir", "/proc/no"], "name a directory that this user may write"),
        (&["--https-cert", "/no/cert", "--https-key", "/no/key"], "--https-cert '/no/cert' cannot be read"),
        (&["/no/such/model"], "hf://org/name"),
    ] {
        let said = serve(flags);
        assert!(said.contains(cure), "{flags:?}: expected {cure:?} in: {said}");
    }
    drop(taken);
    let nobody = format!("http://127.0.0.1:{}", free_port());
    for (server, cure) in
        [(&*nobody, "`trireme serve` starts one"), ("nats://127.0.0.1:4222", "`trireme tap --nats-url` asks a broker")]
    {
        let said = fails(product("trireme").args(["status", "--server", server]));
        assert!(said.contains(cure), "{server}: expected {cure:?} in: {said}");
    }
}
