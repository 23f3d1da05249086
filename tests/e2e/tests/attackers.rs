//! Single hostile requests: the server's answers, and the safety of its files, settings and memory. `make siege` has many hostile
//! clients at once.

use std::fs;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use serde_json::{Value, json};
use trireme_e2e::{Mode, ModelFolder, Request, Response, Sandbox, Setup, in_one_mode, wait_until};

in_one_mode!(
    a_load_request_reaches_no_file_outside_its_model,
    a_load_request_downloads_nothing,
    other_hosts_do_not_change_the_server,
);

const EXPLICIT: [&str; 2] = ["--model-control-mode=explicit", "--load-model=*"];

fn load(sandbox: &Sandbox, model: &str, parameters: &Value) -> Response {
    let body = json!({ "parameters": parameters }).to_string();
    sandbox.send(&Request::post(&format!("/v2/repository/models/{model}/load"), body))
}

/// The model `autocomplete` with one thing more, as a request says it.
fn configured(more: &Value) -> Value {
    let mut config = json!({ "name": "autocomplete", "backend": "onnxruntime", "max_batch_size": 4 });
    if let (Some(config), Some(more)) = (config.as_object_mut(), more.as_object()) {
        config.extend(more.clone());
    }
    json!({ "config": config.to_string() })
}

fn a_load_request_reaches_no_file_outside_its_model(mode: Mode) {
    let outside = tempfile::tempdir().expect("a temporary folder");
    let secret = outside.path().join("secret");
    fs::write(&secret, "nobody's business").expect("the folder can be written");
    let models = ModelFolder::basic(&["autocomplete"]);
    let setup = Setup::new(mode).repository(models.path());
    let setup = setup.gateway_arguments(&EXPLICIT);
    let setup = if setup.is_services() { setup.worker_arguments(&EXPLICIT) } else { setup };
    let sandbox = setup.start();
    let refused = |more: Value, word: &str| {
        let answer = load(&sandbox, "autocomplete", &configured(&more));
        assert_ne!(answer.status, 200, "{more}");
        assert!(answer.error().contains(word), "{more}: {}", answer.error());
        answer.error()
    };
    let there = secret.to_str().expect("it is text");
    let parameter = |key: &str, value: &str| json!({ "parameters": { key: { "string_value": value } } });
    for key in [
        "session.optimized_model_filepath",
        "session.model_external_initializers_file_folder_path",
        "ep.context_file_path",
    ] {
        refused(parameter(key, there), &format!("'{key}' is not allowed"));
    }
    let openvino = json!([{ "name": "openvino", "parameters": { "cache_dir": there } }]);
    let accelerated =
        json!({ "optimization": { "execution_accelerators": { "cpu_execution_accelerator": openvino } } });
    refused(accelerated, "'cache_dir' is not allowed");
    let warmup = |file: &str| {
        let input = json!({ "data_type": "TYPE_FP32", "dims": [4], "input_data_file": file });
        json!({ "model_warmup": [{ "name": "w", "batch_size": 1, "inputs": { "x": input } }] })
    };
    // No answer shows whether the file exists.
    let missing = format!("{there}-that-is-not-there");
    for form in [|file: &str| json!({ "default_model_filename": file }), warmup as fn(&str) -> Value] {
        let word = "is outside the model's folder";
        assert_eq!(refused(form(there), word), refused(form(&missing), word).replace(&missing, there));
        refused(form("../../secret"), word);
    }
    let mut uploaded = configured(&parameter("session.model_external_initializers_file_folder_path", there));
    uploaded["file:1/model.onnx"] = json!("AAAA");
    assert!(load(&sandbox, "autocomplete", &uploaded).error().contains("is not allowed"));
    let mut uploaded = configured(&json!({}));
    uploaded["file:../../secret"] = json!("AAAA");
    assert!(load(&sandbox, "autocomplete", &uploaded).error().contains("is outside model directory"));

    assert_eq!(fs::read_to_string(&secret).expect("it is there"), "nobody's business");
    assert_eq!(fs::read_dir(outside.path()).expect("it is there").count(), 1, "nothing was written beside it");
    let allowed = load(&sandbox, "autocomplete", &configured(&parameter("session.set_denormal_as_zero", "1")));
    assert_eq!(allowed.status, 200, "{}", allowed.text());
}

/// Neither the name nor the configuration of a model makes the server open a connection.
fn a_load_request_downloads_nothing(mode: Mode) {
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    elsewhere.set_nonblocking(true).expect("it can be asked without waiting");
    let url = format!("http://{}/model", elsewhere.local_addr().expect("it is bound"));
    let models = ModelFolder::basic(&["autocomplete"]);
    let setup = Setup::new(mode).repository(models.path()).gateway_arguments(&EXPLICIT);
    let setup = if setup.is_services() { setup.worker_arguments(&EXPLICIT) } else { setup };
    let sandbox = setup.start();
    for name in [url.replace('/', "%2F"), "hf:%2F%2Forg%2Fname".to_owned(), "s3:%2F%2Fbucket%2Fmodel".to_owned()] {
        let answer = load(&sandbox, &name, &json!({}));
        assert!(answer.error().contains("failed to poll from model repository"), "{name}: {}", answer.text());
    }
    for more in [
        json!({ "default_model_filename": url }),
        json!({ "parameters": { "model": { "string_value": url }, "EXECUTION_ENV_PATH": { "string_value": url } } }),
        json!({ "backend": "python", "parameters": { "EXECUTION_ENV_PATH": { "string_value": url } } }),
    ] {
        // Whether it loads does not matter here.
        let _ = load(&sandbox, "autocomplete", &configured(&more));
    }
    assert!(elsewhere.accept().is_err(), "nobody connects");
}

/// This host's address for other hosts; finding it sends no packet.
fn address_for_others() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback())
}

fn other_hosts_do_not_change_the_server(mode: Mode) {
    let start = |flags: &[&str]| {
        let flags = [&["--http-address=0.0.0.0"], flags].concat();
        Setup::new(mode).gateway_arguments(&flags).start()
    };
    let paths = [
        "/v2/repository/models/simple/load",
        "/v2/repository/models/simple/unload",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/simple/trace/setting",
        "/v2/systemsharedmemory/region/r/register",
        "/v2/systemsharedmemory/unregister",
        "/v2/cudasharedmemory/unregister",
    ];
    // A page of another site, in a browser on this host.
    let sandbox = start(&[]);
    for path in paths {
        let foreign = Request::post(path, "{}").header("Sec-Fetch-Site", "cross-site");
        assert_eq!(sandbox.send(&foreign).status, 403, "{path}");
        // Such a page whose name leads to this host now.
        let rebound = ["Host: evil.example", "Origin: http://evil.example", "Sec-Fetch-Site: same-origin"];
        let request = format!("POST {path} HTTP/1.1\r\n{}\r\nContent-Length: 2\r\n\r\n{{}}", rebound.join("\r\n"));
        let mut stream = TcpStream::connect(sandbox.address).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        assert_eq!(Response::read(&mut stream).expect("it answers").status, 403, "{path}");
    }
    let Some(address) = address_for_others() else { return eprintln!("this host has no address but loopback") };
    let of = |sandbox: &Sandbox| SocketAddr::new(address, sandbox.address.port());
    let send = |sandbox: &Sandbox, request: Request| request.send(of(sandbox)).expect("it answers");

    for path in paths {
        let refused = send(&sandbox, Request::post(path, "{}"));
        assert_eq!(refused.status, 403, "{path}: {}", refused.text());
        assert!(refused.error().contains("--control-access=any") && refused.error().contains("--admin-api-key"));
        assert_ne!(sandbox.send(&Request::post(path, "{}")).status, 403, "{path}: loopback may");
    }
    for path in ["/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status", "/v2"] {
        assert_eq!(send(&sandbox, Request::get(path)).status, 200, "{path} only shows something");
    }
    assert_eq!(send(&sandbox, Request::post("/v2/repository/index", "{}")).status, 200);
    let open = start(&["--control-access=any"]);
    let keyed = start(&["--api-key=alice=secret", "--bulk-api-key=night", "--admin-api-key=admin"]);
    for path in paths {
        assert_ne!(send(&open, Request::post(path, "{}")).status, 403, "{path}");
        let with = |key: &str| Request::post(path, "{}").header("x-api-key", key);
        for key in ["secret", "night"] {
            assert_eq!(send(&keyed, with(key)).status, 403, "{path}: a client's key proves nothing");
            assert_eq!(keyed.send(&with(key)).status, 403, "{path}: nor does it on the same host");
        }
        assert_ne!(send(&keyed, with("admin")).status, 403, "{path}");
        assert_eq!(send(&keyed, Request::post(path, "{}")).status, 401, "{path}");
    }
}

/// A file in shared memory, removed with the value.
struct Object(String);

impl Object {
    fn new(bytes: usize) -> Object {
        let name = format!("trireme-attackers-{}", std::process::id());
        fs::File::create(format!("/dev/shm/{name}"))
            .and_then(|file| file.set_len(bytes as u64))
            .expect("there is room");
        Object(name)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let _ = fs::remove_file(format!("/dev/shm/{}", self.0));
    }
}

#[test]
fn tensors_in_shared_memory_count_like_those_that_travel() {
    const BYTES: usize = 8 << 20;
    let models = ModelFolder::basic(&["identity_fp32"]);
    let flags = ["--allow-client-shm=true", "--max-bytes-in-flight=4000000"];
    let sandbox = Setup::new(Mode::AllInOne).repository(models.path()).gateway_arguments(&flags).start();
    let object = Object::new(BYTES);
    let region = json!({ "key": object.0, "offset": 0, "byte_size": BYTES }).to_string();
    assert_eq!(sandbox.send(&Request::post("/v2/systemsharedmemory/region/r/register", region)).status, 200);
    let infer = |bytes: usize| {
        let place = json!({ "shared_memory_region": "r", "shared_memory_byte_size": bytes });
        let input = json!({ "name": "INPUT0", "datatype": "FP32", "shape": [1, bytes / 4], "parameters": place });
        sandbox.infer("identity_fp32", &json!({ "inputs": [input] }))
    };
    let refused = infer(BYTES);
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.error().contains("--max-bytes-in-flight"), "{}", refused.error());
    assert_eq!(infer(1 << 10).status, 200, "there is room for others");
}

/// Rows without elements cost the client nothing, but each claims a row of the answer.
#[test]
fn rows_without_elements_take_no_memory() {
    let models = ModelFolder::new().model(
        "pool",
        "backend: 'postprocess'
         input [
           { name: 'last_hidden_state' data_type: TYPE_FP32 dims: [ -1, -1, 8 ] },
           { name: 'attention_mask' data_type: TYPE_INT64 dims: [ -1, -1 ] }
         ]
         output [ { name: 'embedding' data_type: TYPE_FP32 dims: [ -1, 32 ] } ]
         parameters { key: 'ops' value { string_value: 'pool:mean+cls+max+last' } }",
    );
    let mut sandbox = Setup::new(Mode::AllInOne).repository(models.path()).start();
    let ask = |rows: u64| {
        let input = |name: &str, datatype: &str, shape: Value| json!({"name": name, "datatype": datatype, "shape": shape, "data": []});
        let hidden = input("last_hidden_state", "FP32", json!([rows, 0, 8]));
        sandbox.infer("pool", &json!({"inputs": [hidden, input("attention_mask", "INT64", json!([rows, 0]))]}))
    };
    assert_eq!(ask(3).output("embedding")["shape"], json!([3, 32]));
    let refused = ask(1 << 21);
    let expected = "model 'pool': tensor 'result of pool' of shape [2097152,32] takes 268435456 bytes, and a request may ask for \
                    134217728 at most: send fewer rows";
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.error().ends_with(expected), "{}", refused.error());
    sandbox.check_running();
}

/// Each body of some kB expands to many MiB.
#[test]
fn memory_stays_within_the_budget_whatever_bodies_expand_to() {
    const BUDGET: u64 = 128 << 20;
    // Stacks of threads and buffers of connections.
    const BESIDE: u64 = BUDGET / 4;
    let models = ModelFolder::basic(&["simple"]);
    let budget = format!("--max-bytes-in-flight={BUDGET}");
    let sandbox = Setup::new(Mode::AllInOne).repository(models.path()).gateway_arguments(&[&budget]).start();
    let bomb = |mebibytes: usize| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let piece = vec![b' '; 1 << 20];
        (0..mebibytes).for_each(|_| encoder.write_all(&piece).expect("it is memory"));
        encoder.finish().expect("it is memory")
    };
    // Numbers take more room as a tensor than their digits do.
    let numbers = |mebi: usize| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let (count, piece) = ((mebi << 20) + 1, b"1,".repeat(1 << 20));
        let head = format!(r#"{{"inputs":[{{"name":"INPUT0","datatype":"INT64","shape":[{count}],"data":["#);
        encoder.write_all(head.as_bytes()).expect("it is memory");
        (0..mebi).for_each(|_| encoder.write_all(&piece).expect("it is memory"));
        encoder.write_all(b"1]}]}").expect("it is memory");
        encoder.finish().expect("it is memory")
    };
    let bombs = [bomb(20), bomb(40), numbers(1), bomb(60), numbers(2), bomb(200)];
    let before = sandbox.gateway.resident_bytes();
    let most = std::thread::scope(|scope| {
        let senders: Vec<_> = (0..8)
            .map(|sender| {
                let (bombs, sandbox) = (&bombs, &sandbox);
                scope.spawn(move || {
                    for round in 0..3 {
                        let body = bombs[(sender + round) % bombs.len()].clone();
                        let path = "/v2/models/simple/infer";
                        let answer = Request::post(path, body).header("content-encoding", "gzip").send(sandbox.address);
                        let answer = answer.unwrap_or_else(|error| panic!("sender {sender}, round {round}: {error}"));
                        assert!([400, 500, 503].contains(&answer.status), "{}", answer.text());
                    }
                })
            })
            .collect();
        let mut most = 0;
        while senders.iter().any(|sender| !sender.is_finished()) {
            most = most.max(sandbox.gateway.resident_bytes());
            std::thread::sleep(Duration::from_millis(2));
        }
        most
    });
    let after = sandbox.gateway.resident_bytes();
    for (what, bytes) in [("at its most", most), ("afterwards", after)] {
        let more = bytes.saturating_sub(before);
        println!("{what}: {} MiB more than before, {:.2} of the budget", more >> 20, more as f64 / BUDGET as f64);
        assert!(more < BUDGET + BESIDE, "{what}: {} MiB more than before", more >> 20);
    }
    wait_until("it serves on", Duration::from_secs(60), || {
        (sandbox.get("/v2/models/simple").status == 200).then_some(())
    });
}
