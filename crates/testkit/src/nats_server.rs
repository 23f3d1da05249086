//! A nats-server process with JetStream for one test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{Note, note, quiet_port};

/// Environment variable with the path of a binary to use instead of the project's own.
const BINARY_VARIABLE: &str = "TRIREME_NATS_SERVER";

/// The path of the project's own binary, from the workspace's root.
const BINARY_IN_WORKSPACE: &str = ".tools/nats-server/nats-server";

/// How long the server may take to listen. It takes milliseconds, but machines that run tests can be busy.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause before the next attempt to use a port that was taken.
const PORT_PAUSE: Duration = Duration::from_millis(50);

/// The `max_payload` of the deployments.
const CONFIG: &str = "max_payload: 8MB\n";

/// Each stream reserves its `max_bytes`, so the limits have room for many queues of default size. Nothing is allocated.
const JETSTREAM: &str = "jetstream { store_dir: \"STORE\", max_memory_store: 64GB, max_file_store: 64GB }\n";

/// A running nats-server on a port of its own, with its files in a temporary folder. On drop it is killed and its files
/// are deleted.
pub struct NatsServer {
    folder: TempDir,
    /// The folder of its streams.
    store: PathBuf,
    binary: PathBuf,
    ports: Ports,
    /// `None` after [`NatsServer::kill`] or [`NatsServer::stop`].
    process: Option<Child>,
}

/// The ports of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ports {
    /// For clients.
    pub client: u16,
    /// For the other servers of its cluster, if there is one.
    pub cluster: Option<u16>,
    /// For monitoring over HTTP, if it is on.
    pub monitoring: Option<u16>,
}

// === impl NatsServer ===

impl NatsServer {
    /// Starts a server and returns once it accepts connections.
    ///
    /// # Panics
    /// When there is no nats-server binary, or it does not start; the text names the remedy.
    pub fn start() -> NatsServer {
        NatsServer::start_with(&format!("{CONFIG}{JETSTREAM}"))
    }

    /// Starts a server with this `max_payload`.
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

    /// Starts a server with the configuration `nats.conf` among `files` (path within the server's folder, content).
    /// `STORE` in the files is replaced by the folder of the streams.
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

    /// The same, with the streams in the folder `store`, if one is given.
    ///
    /// # Panics
    /// As [`NatsServer::start`].
    pub fn start_in(files: &[(&str, &str)], store: Option<&Path>) -> NatsServer {
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
        let mut server = NatsServer { folder, store, binary: binary(), ports: Ports::default(), process: None };
        server.spawn(quiet_port);
        server
    }

    /// Replaces one of its files; the server reads it at its next start.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn replace(&self, name: &str, content: &str) {
        let content = content.replace("STORE", &self.store.display().to_string());
        fs::write(self.folder.path().join(name), content).expect("the temporary folder can be written");
    }

    /// The URL for clients: `nats://127.0.0.1:<port>`. Stays the same over restarts.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.ports.client)
    }

    /// Its ports since the last start.
    pub(crate) fn ports(&self) -> Ports {
        self.ports
    }

    /// The id of its process, while it runs.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// The folder of its files, which is deleted on drop.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its log since the last start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Kills the server as a crash would (SIGKILL). Memory streams are lost; file streams stay.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            note(Note::Ends(process.id()));
            process.kill().expect("a child that was not waited for can be killed");
            process.wait().expect("a child can be waited for");
        }
    }

    /// Stops the server as an operator would, and waits until it has exited.
    pub fn stop(&mut self) {
        self.end("stop");
    }

    /// Stops the server as an operator of a cluster does: it tells its clients, gives up the streams it leads, and
    /// disconnects its clients one by one. Waits until it has exited.
    pub fn retire(&mut self) {
        self.end("ldm");
    }

    fn end(&mut self, signal: &str) {
        if let Some(mut process) = self.process.take() {
            let signal = format!("{signal}={}", process.id());
            let sent = Command::new(&self.binary).arg("--signal").arg(signal).status();
            assert!(sent.is_ok_and(|status| status.success()), "nats-server passes on a signal");
            process.wait().expect("a child can be waited for");
        }
    }

    /// Whether its process exists, paused or not.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Pauses the server until [`NatsServer::resume`], like a host that hangs.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Resumes a paused server.
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
        let port = self.ports.client;
        self.spawn(|| port);
    }

    /// Like [`NatsServer::restart`], but without its files: a new machine with the same name.
    pub fn restart_empty(&mut self) {
        self.kill();
        if self.store.exists() {
            fs::remove_dir_all(&self.store).expect("the server's files can be deleted");
        }
        self.restart();
    }

    /// Starts the process; tries again while the port is taken.
    fn spawn(&mut self, port: impl Fn() -> u16) {
        let give_up = Instant::now() + START_TIMEOUT;
        while let Err(said) = self.try_spawn(port(), give_up) {
            let taken = said.contains("address already in use") && Instant::now() < give_up;
            assert!(taken, "nats-server ({}) did not get ready; it says:\n{said}", self.binary.display());
            std::thread::sleep(PORT_PAUSE);
        }
    }

    /// Starts the process and waits until it listens. The error is the server's output.
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
        note(Note::Process);
        let began = Instant::now();
        let mut process = match started {
            Ok(process) => process,
            Err(error) => panic!("{} does not start: {error}; run `make setup`", self.binary.display()),
        };
        let listening = loop {
            if let Some(ports) = read_folder(&ports).iter().find_map(|file| Ports::read(file)) {
                break Some(ports);
            }
            if matches!(process.try_wait(), Ok(Some(_)) | Err(_)) || Instant::now() > give_up {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        self.process = Some(process);
        note(Note::Ready(began.elapsed()));
        match listening {
            Some(ports) => self.ports = ports,
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

// === impl Ports ===

impl Ports {
    /// The ports in a ports file, `{"nats":["nats://127.0.0.1:4222"],"cluster":["nats://127.0.0.1:6222"]}` (`tls://` if
    /// the server requires TLS); `None` while the file is incomplete.
    fn read(file: &Path) -> Option<Ports> {
        let text = fs::read_to_string(file).ok().filter(|text| text.trim_end().ends_with('}'))?;
        let port = |listener: &str| -> Option<u16> {
            let (_, rest) = text.split_once(&format!("\"{listener}\""))?;
            let (_, rest) = rest.split_once("://127.0.0.1:")?;
            rest.split_once('"')?.0.parse().ok()
        };
        Some(Ports { client: port("nats")?, cluster: port("cluster"), monitoring: port("monitoring") })
    }
}

fn read_folder(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the temporary folder can be read");
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// The nats-server binary to use: the one in the environment variable, the project's own, or the one on the PATH.
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

    /// The first message of a server to its client.
    fn greeting(server: &NatsServer) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", server.ports.client))?;
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
        let (folder, port) = (one.folder.path().to_owned(), one.ports.client);
        drop(one);
        assert!(!folder.exists());
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
        assert!(greeting(&two).is_ok());
    }
}
