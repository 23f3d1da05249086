//! A nats-server process with JetStream for one test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::quiet_port;

/// Names the binary to use instead of the project's own.
const BINARY_VARIABLE: &str = "TRIREME_NATS_SERVER";

/// Where the set-up puts the binary, from the workspace's root.
const BINARY_IN_WORKSPACE: &str = ".tools/nats-server/nats-server";

/// How long the server may take to listen. It takes milliseconds; machines that run tests can be busy.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause before a port is tried again that was taken.
const PORT_PAUSE: Duration = Duration::from_millis(50);

/// As the deployments have it.
const CONFIG: &str = "max_payload: 8MB\n";

/// Each stream reserves its `max_bytes`, so the memory limit is a number for the books that many queues of default size
/// fit into; nothing is allocated.
const JETSTREAM: &str = "jetstream { store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 64GB }\n";

/// A running nats-server on a port of its own, its files in a temporary folder. Dropped, it is killed and its files are
/// deleted.
pub struct NatsServer {
    folder: TempDir,
    binary: PathBuf,
    port: u16,
    /// `None` after [`NatsServer::kill`] or [`NatsServer::stop`].
    process: Option<Child>,
}

// === impl NatsServer ===

impl NatsServer {
    /// Starts a server and returns once it takes connections.
    ///
    /// # Panics
    /// When there is no nats-server binary, or it does not start; the text says what to do.
    pub fn start() -> NatsServer {
        NatsServer::start_with(&format!("{CONFIG}{JETSTREAM}"))
    }

    /// Starts a server that takes messages of so many bytes at most.
    ///
    /// # Panics
    /// As [`NatsServer::start`].
    pub fn start_with_max_payload(bytes: usize) -> NatsServer {
        NatsServer::start_with(&format!("max_payload: {bytes}\n{JETSTREAM}"))
    }

    /// Starts a server without JetStream, which is not enough for Trireme.
    ///
    /// # Panics
    /// As [`NatsServer::start`].
    pub fn start_without_jetstream() -> NatsServer {
        NatsServer::start_with(CONFIG)
    }

    fn start_with(config: &str) -> NatsServer {
        NatsServer::start_with_files(&[("nats.conf", config)])
    }

    /// Starts a server with the configuration `nats.conf` among `files` (path within the server's folder, content);
    /// `STORE` in one of them stands for where streams are kept.
    ///
    /// # Panics
    /// As [`NatsServer::start`].
    pub fn start_with_files(files: &[(&str, &str)]) -> NatsServer {
        NatsServer::start_in(files, None)
    }

    /// Starts a server that keeps its streams in the folder `store`.
    ///
    /// # Panics
    /// As [`NatsServer::start`].
    pub fn start_with_store(store: &Path) -> NatsServer {
        NatsServer::start_in(&[("nats.conf", &format!("{CONFIG}{JETSTREAM}"))], Some(store))
    }

    fn start_in(files: &[(&str, &str)], store: Option<&Path>) -> NatsServer {
        let folder = tempfile::Builder::new().prefix("trireme-nats-").tempdir().expect("a temporary folder");
        let store = store.map_or_else(|| folder.path().join("store"), Path::to_owned);
        fs::create_dir(folder.path().join("ports")).expect("the temporary folder can be written");
        for (name, content) in files {
            let path = folder.path().join(name);
            let parent = path.parent().expect("a file is in a folder");
            fs::create_dir_all(parent).expect("the temporary folder can be written");
            let content = content.replace("STORE", &store.display().to_string());
            fs::write(path, content).expect("the temporary folder can be written");
        }
        let mut server = NatsServer { folder, binary: binary(), port: 0, process: None };
        server.spawn(quiet_port);
        server
    }

    /// Where clients connect: `nats://127.0.0.1:<port>`. Stays the same over restarts.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The id of its process, while it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// What it has said since it was started last.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Kills the server as a crash would (SIGKILL). Memory streams are lost; file streams stay.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().expect("a child that was not waited for can be killed");
            process.wait().expect("a child can be waited for");
        }
    }

    /// Stops the server in order, as an operator would, and waits until it is gone.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let signal = format!("stop={}", process.id());
            let sent = Command::new(&self.binary).arg("--signal").arg(signal).status();
            assert!(sent.is_ok_and(|status| status.success()), "nats-server passes on a signal");
            process.wait().expect("a child can be waited for");
        }
    }

    /// Halts the server, as a host that hangs does, until [`NatsServer::resume`].
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let process = self.process_id().expect("it runs").to_string();
        let sent = Command::new("kill").args([signal, &process]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {signal} {process}");
    }

    /// Starts the server again on the same port with the same files, killing it first if it runs.
    pub fn restart(&mut self) {
        self.kill();
        let port = self.port;
        self.spawn(|| port);
    }

    /// Starts the process, again and again where the port turns out to be taken.
    fn spawn(&mut self, port: impl Fn() -> u16) {
        let give_up = Instant::now() + START_TIMEOUT;
        while let Err(said) = self.try_spawn(port(), give_up) {
            let taken = said.contains("address already in use") && Instant::now() < give_up;
            assert!(taken, "nats-server ({}) did not get ready; it says:\n{said}", self.binary.display());
            std::thread::sleep(PORT_PAUSE);
        }
    }

    /// Starts the process and waits until it listens. Otherwise gives what it said.
    fn try_spawn(&mut self, port: u16, give_up: Instant) -> Result<(), String> {
        let ports = self.folder.path().join("ports");
        for left_over in read_folder(&ports) {
            fs::remove_file(left_over).expect("the temporary folder can be written");
        }
        let log_path = self.folder.path().join("log");
        let log = fs::File::create(&log_path).expect("the temporary folder can be written");
        let started = Command::new(&self.binary)
            .args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--ports_file_dir"])
            .arg(&ports)
            .arg("--config")
            .arg(self.folder.path().join("nats.conf"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let mut process = match started {
            Ok(process) => process,
            Err(error) => panic!("{} does not start: {error}; run `make setup`", self.binary.display()),
        };
        let listening = loop {
            if let Some(port) = read_folder(&ports).iter().find_map(|file| listening_port(file)) {
                break Some(port);
            }
            if matches!(process.try_wait(), Ok(Some(_)) | Err(_)) || Instant::now() > give_up {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        self.process = Some(process);
        match listening {
            Some(port) => self.port = port,
            None => {
                self.kill();
                return Err(fs::read_to_string(&log_path).unwrap_or_default());
            }
        }
        Ok(())
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The port in a ports file, `{"nats":["nats://127.0.0.1:4222"]}` (`tls://` where it insists on that); `None` while it is
/// not complete.
fn listening_port(file: &Path) -> Option<u16> {
    let text = fs::read_to_string(file).ok()?;
    let (_, rest) = text.split_once("://127.0.0.1:")?;
    let (port, _) = rest.split_once('"')?;
    port.parse().ok()
}

fn read_folder(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the temporary folder can be read");
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The nats-server to use: the one that the environment names, the project's own, or the one on the PATH.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os(BINARY_VARIABLE) {
        let path = PathBuf::from(path);
        assert!(path.is_file(), "{BINARY_VARIABLE} is {}, which is no file", path.display());
        return path;
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let own = workspace.join(BINARY_IN_WORKSPACE);
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::iter::once(own).chain(std::env::split_paths(&on_path).map(|dir| dir.join("nats-server")));
    candidates.find(|path| path.is_file()).unwrap_or_else(|| {
        panic!("no nats-server: run `make setup`, put one on the PATH, or name one with {BINARY_VARIABLE}")
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpStream;

    use super::*;

    /// What a server says to a client first.
    fn greeting(server: &NatsServer) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", server.port))?;
        let mut start = [0; 4096];
        let length = stream.read(&mut start)?;
        Ok(String::from_utf8_lossy(&start[..length]).into_owned())
    }

    #[test]
    fn a_server_can_be_killed_stopped_and_started_again_on_its_port() {
        let mut server = NatsServer::start();
        let url = server.url();
        let info = greeting(&server).expect("a started server answers");
        assert!(info.contains("\"jetstream\":true") && info.contains("\"max_payload\":8388608"), "{info}");

        server.kill();
        assert!(greeting(&server).is_err());
        server.restart();
        assert!(greeting(&server).is_ok());
        server.stop();
        assert!(greeting(&server).is_err());
        server.restart();
        assert_eq!(server.url(), url);
        assert!(greeting(&server).is_ok());
    }

    #[test]
    fn two_servers_do_not_meet_and_clean_up_after_themselves() {
        let (one, two) = (NatsServer::start(), NatsServer::start());
        assert_ne!(one.url(), two.url());
        let (folder, port) = (one.folder.path().to_owned(), one.port);
        drop(one);
        assert!(!folder.exists());
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        assert!(greeting(&two).is_ok());
    }
}
