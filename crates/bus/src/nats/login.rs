//! The ways to log in, and to encrypt a connection.

use std::fmt;
use std::future::ready;
use std::path::{Path, PathBuf};

use async_nats::{Auth, AuthError, ConnectOptions};
use nkeys::KeyPair;

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
    /// The options of a connection with this login, or that of the URL. Files are read at each connection, so that a login can be replaced
    /// while the process runs. Errors if both are given, or a file is not usable now.
    pub(super) fn options(&self, in_url: Option<InUrl>) -> Result<ConnectOptions, BusError> {
        match (self, in_url) {
            (NatsLogin::Anonymous, None) => Ok(ConnectOptions::new()),
            (NatsLogin::Anonymous, Some(InUrl::Password { user, password })) => {
                Ok(ConnectOptions::new().user_and_password(user, password))
            }
            (NatsLogin::Anonymous, Some(InUrl::Token(token))) => Ok(ConnectOptions::new().token(token)),
            (login, Some(in_url)) => Err(BusError::Refused {
                action: "connecting",
                reason: format!("{login} is given, and {in_url}; expected one of them"),
            }),
            (login, None) => {
                login.sign(&[])?;
                let login = login.clone();
                Ok(ConnectOptions::with_auth_callback(move |nonce| ready(login.sign(&nonce).map_err(AuthError::new))))
            }
        }
    }

    /// The credentials that a connection shows to the broker, whose `nonce` a key signs. Reads the login's file.
    fn sign(&self, nonce: &[u8]) -> Result<Auth, BusError> {
        let mut auth = Auth::new();
        match self {
            NatsLogin::Anonymous => {}
            NatsLogin::Password { user, password_file } => {
                auth.username = Some(user.clone());
                auth.password = Some(first_line("the NATS password", password_file)?);
            }
            NatsLogin::Token(path) => auth.token = Some(first_line("the NATS token", path)?),
            NatsLogin::Credentials(path) => {
                let text = read("NATS credentials", path)?;
                let mut lines = text.lines().skip_while(|line| !line.contains("BEGIN NATS USER JWT")).skip(1);
                let jwt = lines.find(|line| !line.trim().is_empty());
                let jwt =
                    jwt.ok_or_else(|| unfit("NATS credentials", path, "expected a block 'BEGIN NATS USER JWT'"))?;
                auth.jwt = Some(jwt.trim().to_owned());
                auth.signature = Some(signed("NATS credentials", path, &text, nonce)?.1);
            }
            NatsLogin::Nkey(path) => {
                let (key, signature) = signed("the NATS key", path, &read("the NATS key", path)?, nonce)?;
                (auth.nkey, auth.signature) = (Some(key.public_key()), Some(signature));
            }
        }
        Ok(auth)
    }
}

/// The key of the seed in a file's text, and its signature of the nonce.
fn signed(what: &'static str, path: &Path, text: &str, nonce: &[u8]) -> Result<(KeyPair, Vec<u8>), BusError> {
    let seed = text.lines().map(str::trim).find(|line| line.starts_with("SU"));
    let seed = seed.ok_or_else(|| unfit(what, path, "expected a line with a user's seed (SU...)"))?;
    let key = KeyPair::from_seed(seed).map_err(|error| unfit(what, path, error))?;
    let signature = key.sign(nonce).map_err(|error| unfit(what, path, error))?;
    Ok((key, signature))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_a_token_and_a_key_that_signs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user.creds");
        let key = KeyPair::new_user();
        let seed = key.seed().unwrap();
        let jwt = "-----BEGIN NATS USER JWT-----\neyJ0.eyJq.c2ln\n------END NATS USER JWT------\n";
        let seed = format!("\n-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n");
        std::fs::write(&path, format!("{jwt}{seed}")).unwrap();
        let auth = NatsLogin::Credentials(path.clone()).sign(b"nonce").unwrap();
        assert_eq!((auth.jwt.as_deref(), auth.nkey), (Some("eyJ0.eyJq.c2ln"), None));
        key.verify(b"nonce", &auth.signature.unwrap()).unwrap();
        for (text, said) in [(jwt, "a user's seed (SU...)"), (&seed, "BEGIN NATS USER JWT")] {
            std::fs::write(&path, text).unwrap();
            let error = NatsLogin::Credentials(path.clone()).sign(b"").err().unwrap().to_string();
            assert!(error.contains(said) && error.contains("user.creds"), "{error}");
        }
    }
}
