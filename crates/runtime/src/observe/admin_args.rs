//! Flags of the admin listener, and the health check for container runtimes.
//!
//! The health check is the same program, called a second time: it asks the admin listener. So an image needs neither a
//! shell nor an HTTP client for it.

use std::io::{Error, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::admin::{Admin, Health};
use super::statistics::Statistics;

/// How long a health check waits for the answer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// The part of an answer that a health check reads, in bytes.
const LONGEST_ANSWER: u64 = 64 << 10;

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
    pub fn listen(&self, health: &Health, statistics: &Statistics) -> anyhow::Result<()> {
        let Some(address) = self.admin_address else { return Ok(()) };
        let admin = Admin::start(address, health.clone(), statistics.clone())
            .map_err(|error| anyhow::anyhow!("--admin-address {address} cannot be listened on: {error}"))?;
        tracing::info!(address = %admin.address, "admin listener");
        Ok(())
    }

    /// The health check that `--healthcheck` runs instead of serving.
    pub fn check(&self) -> anyhow::Result<()> {
        let address = self.admin_address.context("--healthcheck asks the admin listener: give its --admin-address")?;
        let answer = ask(address).with_context(|| format!("{address} does not answer"))?;
        let body = answer.split_once("\r\n\r\n").map_or(answer.as_str(), |(_, body)| body);
        anyhow::ensure!(answer.split(' ').nth(1) == Some("200"), "{}", body.trim_end());
        Ok(())
    }
}

/// The answer to `GET /readyz`.
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
    let mut answer = String::new();
    // The answer is a line; another listener may send more.
    stream.take(LONGEST_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_check_says_what_the_listener_says() {
        let health = Health::default();
        let admin = Admin::start("0.0.0.0:0".parse().unwrap(), health.clone(), Statistics::new("test")).unwrap();
        let args = AdminArgs { admin_address: Some(admin.address), healthcheck: true };
        assert_eq!(args.check().unwrap_err().to_string(), "not ready: the process is starting");
        health.set_ready();
        args.check().unwrap();
        health.set_stopping();
        health.set_ready();
        assert_eq!(args.check().unwrap_err().to_string(), "not ready: the process is stopping");
    }

    #[test]
    fn nobody_there_is_a_failure() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let check = |admin_address| AdminArgs { admin_address, healthcheck: true }.check().unwrap_err().to_string();
        assert_eq!(check(Some(closed)), format!("{closed} does not answer"));
        assert!(check(None).starts_with("--healthcheck asks the admin listener"));
    }
}
