//! The gateway's outside: TLS over HTTP and gRPC, API keys, restricted APIs, forwarded headers.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};
use trireme_e2e::{
    Mode, ModelFolder, Request, Sandbox, Setup, Stage, in_one_mode, product, python, wait_until, workspace,
};

const KEY: &str = "a-key-of-this-test";

in_one_mode!(connections_are_encrypted, restricted_apis_want_their_header);

fn certificate(name: &str) -> String {
    workspace().join("tests/certificates").join(name).to_str().expect("paths of this project are text").to_owned()
}

/// Starts a server whose readiness only its own clients can ask for.
fn start(setup: Setup) -> (Sandbox, SocketAddr) {
    let mode_has_stages = setup.is_services();
    let mut sandbox = setup.start_gateway();
    if mode_has_stages {
        sandbox.start_worker(Stage::Model);
    }
    sandbox.wait_listening();
    wait_until("the model is served", std::time::Duration::from_secs(60), || {
        (sandbox.gateway.count("model is ready") > 0).then_some(())
    });
    let grpc = sandbox.grpc_address();
    (sandbox, grpc)
}

fn connections_are_encrypted(mode: Mode) {
    for mutual in [false, true] {
        let (cert, key, ca) = (certificate("server.pem"), certificate("server.key"), certificate("ca.pem"));
        let mut flags = vec!["--https-cert", &cert, "--https-key", &key, "--grpc-server-cert", &cert];
        flags.extend(["--grpc-server-key", &key, "--api-key", KEY]);
        match mutual {
            false => flags.push("--grpc-use-ssl=true"),
            true => {
                flags.extend(["--grpc-use-ssl-mutual=true", "--grpc-root-cert", &ca, "--https-root-cert", &ca]);
            }
        }
        let models = ModelFolder::basic(&["simple"]);
        let (sandbox, grpc) = start(Setup::new(mode).repository(models.path()).gateway_arguments(&flags));
        let mut command = Command::new(python());
        command.arg(workspace().join("tests/clients/tls.py")).args(["--url", &sandbox.address.to_string()]);
        command.args(["--grpc", &grpc.to_string(), "--api-key", KEY]).args(mutual.then_some("--mutual"));
        let output = command.output().expect("Python runs; `make setup` fetches it");
        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "tls.py found:\n{said}{errors}");
        if !mutual {
            tools_speak_tls(&sandbox.address.to_string(), &ca);
        }
    }
}

/// The tools that ask a server believe the authority of `--ca` and nobody else, and send their headers.
fn tools_speak_tls(address: &str, ca: &str) {
    let header = format!("X-API-Key: {KEY}");
    let quick = ["--json", "--concurrency=2", "--seconds=0.1", "--warmup-seconds=0"];
    for command in [&["status", "--json"][..], &[&["bench", "--model", "simple"][..], &quick].concat()] {
        let run = |flags: &[&str]| {
            let server = format!("https://{address}");
            let output = product("trireme").args(command).args(["--server", &server]).args(flags).output();
            output.expect("the command runs")
        };
        let right = run(&["--ca", ca, "--header", &header]);
        assert!(right.status.success(), "{command:?}: {right:?}");
        serde_json::from_slice::<Value>(&right.stdout).expect("JSON");
        for (flags, fault) in [
            (&["--ca", ca][..], "401"),
            (&["--header", &header], "certificate"),
            (&["--ca", "/nowhere.pem", "--header", &header], "--ca /nowhere.pem"),
        ] {
            let wrong = run(flags);
            let said = String::from_utf8_lossy(&wrong.stderr).to_lowercase();
            assert!(!wrong.status.success() && said.contains(fault), "{command:?} {flags:?}: {wrong:?}");
        }
    }
}

fn restricted_apis_want_their_header(mode: Mode) {
    let flags =
        ["--http-restricted-api=model-repository,metadata:admin-key=secret", "--http-header-forward-pattern=x-.*"];
    let models = ModelFolder::basic(&["simple"]);
    let (sandbox, _) = start(Setup::new(mode).repository(models.path()).gateway_arguments(&flags));
    let index = || Request::post("/v2/repository/index", "{}");
    let refused = sandbox.send(&index());
    assert_eq!(
        (refused.status, refused.error()),
        (403, "This API is restricted, expecting header 'admin-key'".to_owned())
    );
    assert_eq!(sandbox.send(&index().header("admin-key", "guess")).status, 403);
    assert_eq!(sandbox.send(&index().header("admin-key", "secret")).status, 200);
    assert_eq!(sandbox.get("/v2").status, 403);
    assert_eq!(sandbox.get("/v2/health/live").status, 200, "other categories are free");
    let zeros = [0; 16];
    let body = json!({ "inputs": [
        { "name": "INPUT0", "datatype": "INT32", "shape": [1, 16], "data": zeros },
        { "name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": zeros },
    ] });
    assert_eq!(sandbox.send(&Request::infer("simple", &body).header("x-tenant", "7")).status, 200);
}

/// The certificate that a server shows.
fn shown_at(address: SocketAddr) -> String {
    let script = "import ssl, sys; print(ssl.get_server_certificate((sys.argv[1], int(sys.argv[2]))))";
    let mut command = Command::new(python());
    command.args(["-c", script, &address.ip().to_string(), &address.port().to_string()]);
    let output = command.output().expect("Python runs; `make setup` fetches it");
    String::from_utf8_lossy(&output.stdout).split_whitespace().collect()
}

/// Both are from the same authority: a client notices nothing but that it goes on.
#[test]
fn a_renewed_certificate_is_shown_without_a_restart() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| folder.path().join(name).to_str().expect("it is text").to_owned();
    let (cert, key) = (file("cert.pem"), file("key.pem"));
    let put = |name: &str| {
        for (to, ending) in [(&key, "key"), (&cert, "pem")] {
            std::fs::copy(certificate(&format!("{name}.{ending}")), to).expect("the certificate is there");
        }
        let text = std::fs::read_to_string(&cert).expect("it was written");
        text.split_whitespace().collect::<String>()
    };
    let first = put("server");
    let mut flags = vec!["--https-cert", &cert, "--https-key", &key, "--grpc-use-ssl=true"];
    flags.extend(["--grpc-server-cert", &cert, "--grpc-server-key", &key]);
    let models = ModelFolder::basic(&["simple"]);
    let (sandbox, grpc) = start(Setup::new(Mode::AllInOne).repository(models.path()).gateway_arguments(&flags));
    for address in [sandbox.address, grpc] {
        assert_eq!(shown_at(address), first);
    }
    let renewed = put("client");
    for address in [sandbox.address, grpc] {
        wait_until("the renewed one is shown", std::time::Duration::from_secs(60), || {
            (shown_at(address) == renewed).then_some(())
        });
    }
}

/// A browser asks first whether a page of another origin may send its request.
#[test]
fn pages_of_the_named_origins_may_ask() {
    const ORIGIN: &str = "https://app.example.org";
    let preflight = |sandbox: &Sandbox, origin: &str| {
        let request = Request::new("OPTIONS", "/v1/embeddings").header("Origin", origin);
        let request = request.header("Access-Control-Request-Method", "POST");
        sandbox.send(&request.header("Access-Control-Request-Headers", "authorization,content-type"))
    };
    let start = |arguments: &[&str]| Setup::new(Mode::AllInOne).gateway_arguments(arguments).start();
    let sandbox = start(&["--cors-origin", "https://app.example.org,http://localhost:3000", "--api-key", KEY]);
    let allowed = preflight(&sandbox, ORIGIN);
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (200, Some(ORIGIN)));
    assert_eq!(allowed.header("access-control-allow-headers"), Some("authorization,content-type"));
    let body = json!({"model": "tiny_embedding", "input": "a"}).to_string();
    let ask = Request::post("/v1/embeddings", body).header("Origin", ORIGIN);
    let answer = sandbox.send(&ask.clone().header("Authorization", &format!("Bearer {KEY}")));
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some(ORIGIN)));
    assert_eq!(sandbox.send(&ask).status, 401, "a page needs a key as everybody does");
    assert_eq!(preflight(&sandbox, "https://else.example.org").header("access-control-allow-origin"), None);
    let every = start(&["--cors-origin", "*"]);
    assert_eq!(preflight(&every, "https://else.example.org").header("access-control-allow-origin"), Some("*"));
    let none = start(&[]);
    assert_eq!(preflight(&none, ORIGIN).header("access-control-allow-origin"), None);
}
