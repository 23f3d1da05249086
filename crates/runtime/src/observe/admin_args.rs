//! Flags of the admin listener, and the health check for container runtimes.
//!
//! The health check is the same program, called a second time: it asks the admin listener. So an image needs neither a
//! shell nor an HTTP client for it.

use std::io::{BufRead, BufReader, Error, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::admin::Admin;
use super::statistics::Statistics;

/// How long a health check waits for the answer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Flags of every process that serves.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Administration")]
pub struct AdminArgs {
    /// Address of the admin listener (/livez, /readyz, /metrics); none without it
    #[arg(long, env = "TRIREME_ADMIN_ADDRESS", value_name = "HOST:PORT")]
    pub admin_address: Option<SocketAddr>,

    /// Ask the process that listens at --admin-address whether it is ready; exit with 0 if it is
    #[arg(long)]
    pub healthcheck: bool,
}

// === impl AdminArgs ===

impl AdminArgs {
    /// Starts the admin listener if the flags ask for one. The error names the address that cannot be bound.
    pub fn listen(
        &self,
        ready: impl Fn() -> bool + Clone + Send + Sync + 'static,
        statistics: &Statistics,
    ) -> anyhow::Result<()> {
        let Some(address) = self.admin_address else { return Ok(()) };
        let admin = Admin::start(address, ready, statistics.clone())
            .map_err(|error| anyhow::anyhow!("--admin-address {address} cannot be listened on: {error}"))?;
        tracing::info!(address = %admin.address, "admin listener");
        Ok(())
    }

    /// The health check that `--healthcheck` runs instead of serving.
    pub fn check(&self) -> anyhow::Result<()> {
        let address = self.admin_address.context("--healthcheck asks the admin listener: give its --admin-address")?;
        let line = ask(address).with_context(|| format!("{address} does not answer"))?;
        anyhow::ensure!(line.split(' ').nth(1) == Some("200"), "not ready: {}", line.trim_end());
        Ok(())
    }
}

/// The first line of the answer to `GET /readyz`.
fn ask(mut address: SocketAddr) -> Result<String, Error> {
    // A listener on the unspecified address is reached at the loopback address.
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    let mut stream = TcpStream::connect_timeout(&address, CHECK_TIMEOUT)?;
    stream.set_read_timeout(Some(CHECK_TIMEOUT))?;
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn the_check_says_what_the_listener_says() {
        let ready = Arc::new(AtomicBool::new(false));
        let shown = ready.clone();
        let admin =
            Admin::start("0.0.0.0:0".parse().unwrap(), move || shown.load(Ordering::SeqCst), Statistics::new("test"))
                .unwrap();
        let args = AdminArgs { admin_address: Some(admin.address), healthcheck: true };
        assert!(args.check().unwrap_err().to_string().starts_with("not ready: HTTP/1.1 503"));
        ready.store(true, Ordering::SeqCst);
        args.check().unwrap();
    }

    #[test]
    fn nobody_there_is_a_failure() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let check = |admin_address| AdminArgs { admin_address, healthcheck: true }.check().unwrap_err().to_string();
        assert_eq!(check(Some(closed)), format!("{closed} does not answer"));
        assert!(check(None).starts_with("--healthcheck asks the admin listener"));
    }
}
