//! Flags for the connection to NATS and the process's identity there.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};
use trireme_bus::{
    Bus, BusError, Deployment, DeploymentName, Examination, Nats, NatsLogin, NatsOptions, NatsTls, NatsUrl,
    QueueOptions,
};
use trireme_inference::ModelKey;

use crate::observe::certificates::{self, ShownCertificate};
use crate::observe::statistics::Statistics;

/// Flags of every process that speaks over NATS.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "NATS")]
pub struct NatsArgs {
    /// NATS server, several separated by commas; tls:// insists on encryption. May have a login: nats://USER:PASSWORD@HOST or
    /// nats://TOKEN@HOST, percent-encoded
    #[arg(
        long,
        env = "TRIREME_NATS_URL",
        value_name = "URL",
        default_value = "nats://127.0.0.1:4222",
        hide_env_values = true
    )]
    pub nats_url: NatsUrl,

    /// Name of this deployment, letters, digits and '-': several share a NATS account, and each sees only its own models and
    /// requests. All processes of a deployment have the same; none by default
    #[arg(long, env = "TRIREME_DEPLOYMENT", value_name = "NAME")]
    pub deployment: Option<DeploymentName>,

    /// JetStream domain of the streams, such as that of the hub of a leaf node
    #[arg(long, env = "TRIREME_NATS_JETSTREAM_DOMAIN", value_name = "DOMAIN")]
    pub nats_jetstream_domain: Option<String>,

    /// First part of inboxes in place of _INBOX, the same for all processes of a deployment
    #[arg(long, env = "TRIREME_NATS_INBOX_PREFIX", value_name = "PREFIX")]
    pub nats_inbox_prefix: Option<String>,

    /// Encrypt before NATS greets, as its setting handshake_first demands
    #[arg(long, env = "TRIREME_NATS_TLS_FIRST")]
    #[arg(value_name = "BOOL", default_value = "false", value_parser = BoolishValueParser::new(), num_args = 0..=1)]
    #[arg(default_missing_value = "true", action = ArgAction::Set)]
    pub nats_tls_first: bool,

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

    /// File whose first line is a token for NATS
    #[arg(long, env = "TRIREME_NATS_TOKEN_FILE", value_name = "FILE", conflicts_with_all = ["nats_user", "nats_credentials"])]
    pub nats_token_file: Option<PathBuf>,

    /// File with the seed of a user's key for NATS, a line that begins with SU
    #[arg(long, env = "TRIREME_NATS_NKEY", value_name = "FILE")]
    #[arg(conflicts_with_all = ["nats_user", "nats_credentials", "nats_token_file"])]
    pub nats_nkey: Option<PathBuf>,

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

    /// Has the process tell when the certificate that it shows to NATS expires. The file is read each time, as at each connection.
    pub fn tell_expiry(&self, statistics: &Statistics) {
        if let Some(path) = self.nats_tls_cert.clone() {
            let file = path.clone();
            let expires = Box::new(move || certificates::expiry(&file));
            statistics.shows(ShownCertificate { flag: "--nats-tls-cert", path, expires });
        }
    }

    /// Compares what a deployment with these queues needs with what its account allows; makes nothing. `replicas` are wanted copies of
    /// each stream.
    pub async fn examine(
        &self,
        name: &str,
        queues: &[(ModelKey, QueueOptions)],
        replicas: Option<usize>,
    ) -> Result<Examination, BusError> {
        Nats::examine(&self.options("admin", name, None), queues, replicas).await
    }

    async fn open(&self, service: &str, name: &str, deployment: Option<Deployment>) -> Result<Arc<dyn Bus>, BusError> {
        let nats = Nats::connect(&self.options(service, name, deployment)).await?;
        Ok(Arc::new(nats))
    }

    fn options(&self, service: &str, name: &str, deployment: Option<Deployment>) -> NatsOptions {
        let certificate = self.nats_tls_cert.clone().zip(self.nats_tls_key.clone());
        NatsOptions {
            url: self.nats_url.clone(),
            deployment_name: self.deployment.clone().unwrap_or_default(),
            domain: self.nats_jetstream_domain.clone(),
            inbox_prefix: self.nats_inbox_prefix.clone(),
            name: name.to_owned(),
            service: service.to_owned(),
            deployment,
            connect_timeout: Duration::from_secs(self.nats_connect_timeout_secs),
            login: self.login(),
            tls: NatsTls { ca: self.nats_tls_ca.clone(), certificate, first: self.nats_tls_first },
        }
    }

    fn login(&self) -> NatsLogin {
        if let Some((user, file)) = self.nats_user.clone().zip(self.nats_password_file.clone()) {
            return NatsLogin::Password { user, password_file: file };
        }
        let credentials = self.nats_credentials.clone().map(NatsLogin::Credentials);
        let token = || self.nats_token_file.clone().map(NatsLogin::Token);
        let nkey = || self.nats_nkey.clone().map(NatsLogin::Nkey);
        credentials.or_else(token).or_else(nkey).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use trireme_inference::UnixMicros;
    use trireme_telemetry::metrics::Exposition;

    use super::*;
    use crate::observe::statistics::export;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        nats: NatsArgs,
    }

    #[test]
    fn the_expiry_of_the_certificate_for_nats_is_told() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/certificates");
        let (certificate, key) = (format!("{folder}/client.pem"), format!("{folder}/client.key"));
        let told = |flags: &[&str]| {
            let flags = Flags::parse_from(["process"].iter().chain(flags));
            let statistics = Statistics::new("process");
            flags.nats.tell_expiry(&statistics);
            let mut out = Exposition::default();
            export::process_metrics(&statistics, &mut out);
            let line = "trireme_certificate_expiry_timestamp_seconds{flag=\"--nats-tls-cert\"} ";
            let text = out.into_text();
            text.lines().find_map(|found| found.strip_prefix(line)?.parse::<f64>().ok())
        };
        let flags = ["--nats-tls-cert", &certificate, "--nats-tls-key", &key];
        let left = told(&flags).expect("a time") - UnixMicros::now().0 as f64 / 1e6;
        assert!(left > 0.0, "the test's certificate has expired, or its end is not read: {left} s");
        assert_eq!(told(&[]), None);
        assert_eq!(told(&["--nats-tls-cert", "/no/such", "--nats-tls-key", &key]), None);
    }
}
