//! Flags for the connection to NATS and the process's identity there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use trireme_bus::{Bus, BusError, Deployment, Nats, NatsLogin, NatsOptions, NatsTls};

/// Flags of every process that speaks over NATS.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "NATS")]
pub struct NatsArgs {
    /// NATS server, several separated by commas; tls:// insists on encryption
    #[arg(long, env = "TRIREME_NATS_URL", value_name = "URL", default_value = "nats://127.0.0.1:4222")]
    pub nats_url: String,

    /// Seconds to go on trying to reach NATS at start
    #[arg(long, env = "TRIREME_NATS_CONNECT_TIMEOUT_SECS", value_name = "SECONDS", default_value_t = 30)]
    pub nats_connect_timeout_secs: u64,

    /// User to be for NATS
    #[arg(long, env = "TRIREME_NATS_USER", value_name = "NAME", requires = "nats_password_file")]
    pub nats_user: Option<String>,

    /// File whose first line is the user's password
    #[arg(long, env = "TRIREME_NATS_PASSWORD_FILE", value_name = "FILE", requires = "nats_user")]
    pub nats_password_file: Option<PathBuf>,

    /// Credentials file (.creds) for NATS
    #[arg(long, env = "TRIREME_NATS_CREDENTIALS", value_name = "FILE", conflicts_with = "nats_user")]
    pub nats_credentials: Option<PathBuf>,

    /// Certificate authorities (PEM) that NATS's certificate has to come from; the system's by default
    #[arg(long, env = "TRIREME_NATS_TLS_CA", value_name = "FILE")]
    pub nats_tls_ca: Option<PathBuf>,

    /// Certificate (PEM) to show to NATS
    #[arg(long, env = "TRIREME_NATS_TLS_CERT", value_name = "FILE", requires = "nats_tls_key")]
    pub nats_tls_cert: Option<PathBuf>,

    /// Key (PEM) of that certificate
    #[arg(long, env = "TRIREME_NATS_TLS_KEY", value_name = "FILE", requires = "nats_tls_cert")]
    pub nats_tls_key: Option<PathBuf>,
}

// === impl NatsArgs ===

impl NatsArgs {
    /// Connects as a process of `service` called `name`. Failed attempts are logged and repeated for a limited time.
    /// Gateways create the streams that the process needs.
    pub async fn connect(&self, service: &str, name: &str) -> Result<Arc<dyn Bus>, BusError> {
        self.open(service, name, None).await
    }

    /// Connects as a gateway, which creates streams for all processes and writes the settings of a deployment that has
    /// none yet.
    pub async fn connect_gateway(&self, name: &str, deployment: Deployment) -> Result<Arc<dyn Bus>, BusError> {
        self.open("gateway", name, Some(deployment)).await
    }

    async fn open(&self, service: &str, name: &str, deployment: Option<Deployment>) -> Result<Arc<dyn Bus>, BusError> {
        let login = match (&self.nats_user, &self.nats_password_file, &self.nats_credentials) {
            (Some(user), Some(file), _) => NatsLogin::Password { user: user.clone(), password_file: file.clone() },
            (_, _, Some(file)) => NatsLogin::Credentials(file.clone()),
            _ => NatsLogin::Anonymous,
        };
        let certificate = self.nats_tls_cert.clone().zip(self.nats_tls_key.clone());
        let options = NatsOptions {
            url: self.nats_url.clone(),
            name: name.to_owned(),
            service: service.to_owned(),
            deployment,
            connect_timeout: Duration::from_secs(self.nats_connect_timeout_secs),
            login,
            tls: NatsTls { ca: self.nats_tls_ca.clone(), certificate },
        };
        let nats = Nats::connect(&options).await?;
        Ok(Arc::new(nats))
    }
}
