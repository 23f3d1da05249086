//! A server with the routes of the Hugging Face hub that downloads use, and with faults on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use ring::digest::{SHA256, digest};
use serde_json::json;

/// The commit that every revision of a [`HubServer`] is.
pub const HUB_COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A fault of the server in sending a file.
#[derive(Clone, Copy, Debug)]
pub enum HubFault {
    /// The connection ends after so many bytes of the body, once.
    Cut(usize),
    /// The body ends after so many bytes, as if the file had no more.
    Short(usize),
    /// Bytes are others than they should be.
    Garbled,
}

/// A hub with one repository, on a port of this host. It ends with this value.
pub struct HubServer {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    repository: String,
    files: BTreeMap<String, HubFile>,
    token: Mutex<Option<String>>,
    terse: AtomicBool,
    faults: Mutex<BTreeMap<String, HubFault>>,
    requests: Mutex<Vec<String>>,
    stopped: AtomicBool,
}

struct HubFile {
    content: Vec<u8>,
    /// Whether git holds a pointer only, so that its digest is known and a redirect leads to it.
    large: bool,
}

// === impl HubServer ===

impl HubServer {
    /// Serves `files` as the repository `org/name`. ONNX files and weights are large ones.
    pub fn start(repository: &str, files: impl IntoIterator<Item = (String, Vec<u8>)>) -> HubServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address");
        let is_large =
            |name: &str| [".onnx", ".onnx_data", ".onnx.data", ".safetensors"].iter().any(|end| name.ends_with(end));
        let file = |(name, content): (String, Vec<u8>)| (name.clone(), HubFile { content, large: is_large(&name) });
        let state = Arc::new(State {
            repository: repository.to_owned(),
            files: files.into_iter().map(file).collect(),
            token: Mutex::default(),
            terse: AtomicBool::new(false),
            faults: Mutex::default(),
            requests: Mutex::default(),
            stopped: AtomicBool::new(false),
        });
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (shared, Ok(stream)) = (shared.clone(), stream) else { continue };
                thread::spawn(move || shared.answer(stream));
            }
        });
        HubServer { address, state }
    }

    /// The value of `HF_ENDPOINT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Refuses requests without this token from now on.
    pub fn require_token(&self, token: &str) {
        *self.state.token.lock().expect("no thread panics with it") = Some(token.to_owned());
    }

    /// Leaves sizes and digests out of the list of files from now on, as mirrors of the hub do.
    pub fn be_terse(&self) {
        self.state.terse.store(true, Ordering::SeqCst);
    }

    /// Sets the fault of a file, or removes it.
    pub fn set_fault(&self, file: &str, fault: Option<HubFault>) {
        let mut faults = self.state.faults.lock().expect("no thread panics with it");
        match fault {
            Some(fault) => drop(faults.insert(file.to_owned(), fault)),
            None => drop(faults.remove(file)),
        }
    }

    /// The requests so far: method, path and range.
    pub fn requests(&self) -> Vec<String> {
        self.state.requests.lock().expect("no thread panics with it").clone()
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        // The thread that listens waits for one more connection.
        let _ = TcpStream::connect(self.address);
    }
}

/// A request without its body: none of these has one.
struct Request {
    method: String,
    path: String,
    authorization: Option<String>,
    /// The first byte that is wanted.
    from: Option<usize>,
}

impl Request {
    fn read(stream: &TcpStream) -> Option<Request> {
        let mut lines = BufReader::new(stream.take(1 << 16)).lines().map_while(Result::ok);
        let first = lines.next()?;
        let mut words = first.split(' ');
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut request = Request { method, path, authorization: None, from: None };
        for line in lines.take_while(|line| !line.is_empty()) {
            let Some((name, value)) = line.split_once(':') else { continue };
            match name.to_lowercase().as_str() {
                "authorization" => request.authorization = Some(value.trim().to_owned()),
                "range" => request.from = value.trim().strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok(),
                _ => {}
            }
        }
        Some(request)
    }
}

// === impl State ===

impl State {
    fn answer(&self, stream: TcpStream) {
        let Some(request) = Request::read(&stream) else { return };
        let range = request.from.map(|from| format!(" from {from}")).unwrap_or_default();
        let line = format!("{} {}{range}", request.method, request.path);
        self.requests.lock().expect("no thread panics with it").push(line);
        let wanted = self.token.lock().expect("no thread panics with it").clone();
        let path = request.path.split('?').next().unwrap_or_default().to_owned();
        let api = format!("/api/models/{}/revision/", self.repository);
        let resolve = format!("/{}/resolve/{HUB_COMMIT}/", self.repository);
        if let Some(name) = path.strip_prefix("/cdn/") {
            match request.authorization {
                // A client must not send the hub's token to another server.
                Some(_) => respond(&stream, &request, "400 Bad Request", &[], b""),
                None => self.send(&stream, &request, name, &[]),
            }
        } else if wanted.is_some_and(|token| request.authorization != Some(format!("Bearer {token}"))) {
            respond(&stream, &request, "401 Unauthorized", &[], b"{\"error\": \"Invalid credentials\"}");
        } else if path.starts_with(&api) {
            respond(&stream, &request, "200 OK", &[], self.list().as_bytes());
        } else if let Some(name) = path.strip_prefix(&resolve) {
            self.resolve(&stream, &request, name);
        } else {
            respond(&stream, &request, "404 Not Found", &[], b"{\"error\": \"Repository not found\"}");
        }
    }

    fn list(&self) -> String {
        let terse = self.terse.load(Ordering::SeqCst);
        let file = |(name, file): (&String, &HubFile)| match (terse, file.large) {
            (true, _) => json!({ "rfilename": name }),
            (false, true) => {
                let lfs = json!({"sha256": sha256(&file.content), "size": file.content.len(), "pointerSize": 134});
                json!({"rfilename": name, "size": file.content.len(), "blobId": git_id(&file.content), "lfs": lfs})
            }
            (false, false) => {
                json!({"rfilename": name, "size": file.content.len(), "blobId": git_id(&file.content)})
            }
        };
        let siblings: Vec<_> = self.files.iter().map(file).collect();
        json!({"id": self.repository, "sha": HUB_COMMIT, "siblings": siblings}).to_string()
    }

    fn resolve(&self, stream: &TcpStream, request: &Request, name: &str) {
        let Some(file) = self.files.get(name) else {
            return respond(stream, request, "404 Not Found", &[], b"Entry not found");
        };
        let commit = format!("X-Repo-Commit: {HUB_COMMIT}");
        if !file.large {
            return self.send(stream, request, name, &[commit, format!("ETag: \"{}\"", git_id(&file.content))]);
        }
        let digest = format!("X-Linked-ETag: \"{}\"", sha256(&file.content));
        let size = format!("X-Linked-Size: {}", file.content.len());
        // Another host, to which clients send no credentials.
        let port = stream.local_addr().map_or(0, |address| address.port());
        let location = format!("Location: http://localhost:{port}/cdn/{name}");
        respond(stream, request, "302 Found", &[commit, digest, size, location], b"");
    }

    fn send(&self, stream: &TcpStream, request: &Request, name: &str, headers: &[String]) {
        let Some(file) = self.files.get(name) else { return respond(stream, request, "404 Not Found", &[], b"") };
        let mut content = file.content.clone();
        let mut faults = self.faults.lock().expect("no thread panics with it");
        let fault = (request.method == "GET").then(|| faults.get(name).copied()).flatten();
        if let Some(HubFault::Cut(_)) = fault {
            faults.remove(name);
        }
        drop(faults);
        match fault {
            Some(HubFault::Short(length)) => content.truncate(length),
            Some(HubFault::Garbled) => content.iter_mut().for_each(|byte| *byte ^= 0x55),
            _ => {}
        }
        let total = content.len();
        let from = request.from.unwrap_or(0);
        if from > 0 && from >= total {
            return respond(stream, request, "416 Range Not Satisfiable", &[], b"");
        }
        let mut headers = headers.to_vec();
        let status = match request.from {
            Some(from) => {
                headers.push(format!("Content-Range: bytes {from}-{}/{total}", total - 1));
                "206 Partial Content"
            }
            None => "200 OK",
        };
        let body = &content[from..];
        match fault {
            Some(HubFault::Cut(after)) => {
                write(stream, request, status, &headers, body.len(), &body[..after.min(body.len())])
            }
            _ => respond(stream, request, status, &headers, body),
        }
    }
}

fn respond(stream: &TcpStream, request: &Request, status: &str, headers: &[String], body: &[u8]) {
    write(stream, request, status, headers, body.len(), body);
}

/// Announces a body of `length` bytes. A client that closes the connection early is no fault.
fn write(mut stream: &TcpStream, request: &Request, status: &str, headers: &[String], length: usize, body: &[u8]) {
    let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n");
    headers.iter().for_each(|header| head.push_str(&format!("{header}\r\n")));
    head.push_str("\r\n");
    let body = if request.method == "HEAD" { &[] } else { body };
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
}

fn sha256(content: &[u8]) -> String {
    digest(&SHA256, content).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// 40 digits that depend on the content, as those of git do.
fn git_id(content: &[u8]) -> String {
    let mut id = sha256(&[b"blob".as_slice(), content].concat());
    id.truncate(HUB_COMMIT.len());
    id
}
