//! The ways to log in, and to encrypt a connection.

use std::fmt;
use std::path::{Path, PathBuf};

use async_nats::ConnectOptions;

use super::address::InUrl;
use crate::BusError;

/// The login of a connection.
#[derive(Clone, Debug, Default)]
pub enum NatsLogin {
    /// No login, or the one in the URL.
    #[default]
    Anonymous,
    /// A user whose password is the first line of a file.
    Password {
        /// The user's name.
        user: String,
        /// The file with the password.
        password_file: PathBuf,
    },
    /// The user in a credentials file (`.creds`).
    Credentials(PathBuf),
    /// A token, the first line of a file.
    Token(PathBuf),
    /// A user whose key is in a file: a line with its seed (`SU...`).
    Nkey(PathBuf),
}

/// Files for an encrypted connection. Without any, the URL (`tls://`) and the server decide about encryption, and the
/// system's certificate authorities are trusted.
#[derive(Clone, Debug, Default)]
pub struct NatsTls {
    /// Certificate authorities to trust in place of the system's. Encryption is required.
    pub ca: Option<PathBuf>,
    /// The client's certificate and its key. Encryption is required.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Whether the connection is encrypted before the server greets, as its `handshake_first` demands.
    pub first: bool,
}

// === impl NatsLogin ===

impl NatsLogin {
    /// Sets the login of a connection: this one, or that of the URL. Errors if both are given, or a file is not usable.
    pub(super) fn apply(&self, connect: ConnectOptions, in_url: Option<InUrl>) -> Result<ConnectOptions, BusError> {
        match (self, in_url) {
            (NatsLogin::Anonymous, None) => Ok(connect),
            (NatsLogin::Anonymous, Some(InUrl::Password { user, password })) => {
                Ok(connect.user_and_password(user, password))
            }
            (NatsLogin::Anonymous, Some(InUrl::Token(token))) => Ok(connect.token(token)),
            (login, Some(in_url)) => Err(BusError::Refused {
                action: "connecting",
                reason: format!("{login} is given, and {in_url}; expected one of them"),
            }),
            (NatsLogin::Password { user, password_file }, None) => {
                let password = first_line("the NATS password", password_file)?;
                Ok(connect.user_and_password(user.clone(), password))
            }
            (NatsLogin::Token(path), None) => Ok(connect.token(first_line("the NATS token", path)?)),
            (NatsLogin::Credentials(path), None) => {
                let text = read("NATS credentials", path)?;
                connect.credentials(&text).map_err(|error| unfit("NATS credentials", path, error))
            }
            (NatsLogin::Nkey(path), None) => {
                let text = read("the NATS key", path)?;
                let seed = text.lines().map(str::trim).find(|line| line.starts_with("SU"));
                let seed =
                    seed.ok_or_else(|| unfit("the NATS key", path, "expected a line with a user's seed (SU...)"))?;
                Ok(connect.nkey(seed.to_owned()))
            }
        }
    }
}

impl fmt::Display for NatsLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NatsLogin::Anonymous => f.write_str("a client without credentials"),
            NatsLogin::Password { user, .. } => write!(f, "user '{user}'"),
            NatsLogin::Credentials(path) | NatsLogin::Nkey(path) => write!(f, "the user of '{}'", path.display()),
            NatsLogin::Token(path) => write!(f, "the token of '{}'", path.display()),
        }
    }
}

// === impl NatsTls ===

impl NatsTls {
    /// The client reads the files itself when it connects, but its errors do not contain their names.
    pub(super) fn apply(&self, mut connect: ConnectOptions) -> Result<ConnectOptions, BusError> {
        if let Some(ca) = &self.ca {
            check_pem("the NATS certificate authority", ca, "CERTIFICATE-----")?;
            connect = connect.add_root_certificates(ca.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &self.certificate {
            check_pem("the NATS client certificate", certificate, "CERTIFICATE-----")?;
            check_pem("the NATS client key", key, "PRIVATE KEY-----")?;
            connect = connect.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        Ok(if self.first { connect.tls_first() } else { connect })
    }
}

fn check_pem(what: &'static str, path: &Path, label: &str) -> Result<(), BusError> {
    match read(what, path)?.contains(label) {
        true => Ok(()),
        false => Err(unfit(what, path, format!("expected a PEM file with a line that ends with '{label}'"))),
    }
}

fn first_line(what: &'static str, path: &Path) -> Result<String, BusError> {
    let text = read(what, path)?;
    let line = text.lines().next().filter(|line| !line.is_empty());
    line.map(str::to_owned).ok_or_else(|| unfit(what, path, "its first line is empty"))
}

fn read(what: &'static str, path: &Path) -> Result<String, BusError> {
    std::fs::read_to_string(path).map_err(|error| unfit(what, path, error))
}

fn unfit(what: &'static str, path: &Path, reason: impl fmt::Display) -> BusError {
    BusError::Refused {
        action: "connecting",
        reason: format!("{what} in '{}' cannot be used: {reason}", path.display()),
    }
}
