//! TLS for the HTTP and the gRPC listener: a certificate chain and its key, and the authorities that vouch for clients, from PEM
//! files, which [`Tls::reread`] reads again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use parking_lot::Mutex;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{CertificateError, Error, RootCertStore, ServerConfig};
use x509_cert::Certificate;
use x509_cert::der::Decode;

/// A file, and the flag that names it.
#[derive(Clone, Debug)]
pub struct Pem {
    /// The flag.
    pub flag: &'static str,
    /// The file.
    pub path: PathBuf,
}

/// The files of a TLS server.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The chain of certificates that the server shows.
    pub certificate: Pem,
    /// The key of the first of them.
    pub key: Pem,
    /// Certificates that vouch for clients, which have to show one then.
    pub roots: Option<Pem>,
}

/// Speaks TLS 1.2 and 1.3. Clones are the same.
#[derive(Clone)]
pub struct Tls(Arc<Inner>);

struct Inner {
    files: TlsFiles,
    protocols: &'static [&'static [u8]],
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    expires: Option<SystemTime>,
}

/// The fault of a certificate of X.509 version 1, which openssl makes where no extension is asked for.
const VERSION_1: &str = "is a certificate of X.509 version 1, expected version 3: issue it with a subjectAltName \
                         (openssl req -x509 -addext subjectAltName=DNS:NAME, or openssl x509 -req -extfile FILE)";

/// Why a TLS handshake with a client failed, where the reason is the client's certificate.
pub fn refused_certificate(error: &std::io::Error) -> Option<String> {
    match error.get_ref()?.downcast_ref()? {
        error if is_version_1(error) => Some(format!("it {VERSION_1}")),
        error @ Error::InvalidCertificate(_) => Some(error.to_string()),
        _ => None,
    }
}

fn is_version_1(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    matches!(other.0.downcast_ref(), Some(webpki::Error::UnsupportedCertVersion))
}

// === impl Tls ===

impl Tls {
    /// Reads the files, for a server of these application protocols (ALPN), the preferred one first. Errors name the flag and the file.
    pub fn new(files: TlsFiles, protocols: &'static [&'static [u8]]) -> anyhow::Result<Tls> {
        let (config, expires) = files.read(protocols)?;
        let current = Mutex::new(Current { config, expires });
        Ok(Tls(Arc::new(Inner { files, protocols, current })))
    }

    /// The paths of the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.0.files.all().map(|pem| pem.path.clone()).collect()
    }

    /// Reads the files now. If they cannot be used, the previous ones stay in use.
    pub fn reread(&self) -> anyhow::Result<()> {
        let Inner { files, protocols, current } = &*self.0;
        let (config, expires) = files.read(protocols)?;
        *current.lock() = Current { config, expires };
        Ok(())
    }

    /// The flag of the certificate and its file.
    pub fn certificate(&self) -> &Pem {
        &self.0.files.certificate
    }

    /// When the first of the certificates that the server shows expires. `None` where none of them says so in a way that is understood.
    pub fn expires(&self) -> Option<SystemTime> {
        self.0.current.lock().expires
    }

    /// The acceptor for the next connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.current.lock().config.clone())
    }
}

// === impl TlsFiles ===

impl TlsFiles {
    fn all(&self) -> impl Iterator<Item = &Pem> {
        [&self.certificate, &self.key].into_iter().chain(&self.roots)
    }

    fn read(&self, protocols: &[&[u8]]) -> anyhow::Result<(Arc<ServerConfig>, Option<SystemTime>)> {
        let TlsFiles { certificate, key, roots } = self;
        let provider = Arc::new(ring::default_provider());
        let chain = certificate.certificates()?;
        let expires = chain.iter().filter_map(expiry).min();
        let private = PrivateKeyDer::from_pem_file(&key.path).with_context(|| key.unreadable())?;
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let builder = match roots {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let unfit = || {
                    format!("{} '{}' holds no certificate that can vouch for clients", roots.flag, roots.path.display())
                };
                let mut store = RootCertStore::empty();
                for certificate in roots.certificates()? {
                    store.add(certificate).with_context(unfit)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(store.into(), provider).build();
                builder.with_client_cert_verifier(verifier.with_context(unfit)?)
            }
        };
        let mut config = builder.with_single_cert(chain, private).map_err(|error| match is_version_1(&error) {
            true => anyhow::anyhow!("{} '{}' {VERSION_1}", certificate.flag, certificate.path.display()),
            false => {
                let what = format!("{} '{}' does not fit {}", key.flag, key.path.display(), certificate.flag);
                anyhow::Error::new(error).context(what)
            }
        })?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok((Arc::new(config), expires))
    }
}

fn expiry(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let read = Certificate::from_der(certificate).ok()?;
    Some(UNIX_EPOCH + read.tbs_certificate.validity.not_after.to_unix_duration())
}

// === impl Pem ===

impl Pem {
    fn certificates(&self) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let read = CertificateDer::pem_file_iter(&self.path).and_then(|found| found.collect::<Result<Vec<_>, _>>());
        let found = read.with_context(|| self.unreadable())?;
        anyhow::ensure!(!found.is_empty(), "{} '{}' holds no certificate", self.flag, self.path.display());
        Ok(found)
    }

    fn unreadable(&self) -> String {
        format!("{} '{}' cannot be read", self.flag, self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::ClientConfig;
    use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};

    use super::*;

    fn shipped(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/certificates").join(name)
    }

    /// The server's certificate, its key, and the authority of both, in a folder.
    fn folder() -> (tempfile::TempDir, TlsFiles) {
        let folder = tempfile::tempdir().unwrap();
        for name in ["server.pem", "server.key", "ca.pem"] {
            fs::copy(shipped(name), folder.path().join(name)).unwrap();
        }
        let pem = |flag, name: &str| Pem { flag, path: folder.path().join(name) };
        let roots = Some(pem("--roots", "ca.pem"));
        let files = TlsFiles { certificate: pem("--cert", "server.pem"), key: pem("--key", "server.key"), roots };
        (folder, files)
    }

    #[test]
    fn files_are_read_again_unless_they_do_not_fit() {
        let (folder, files) = folder();
        let tls = Tls::new(files, &[b"h2"]).unwrap();
        let first = tls.acceptor().config().clone();
        tls.reread().unwrap();
        let second = tls.acceptor().config().clone();
        assert!(!Arc::ptr_eq(&first, &second));
        fs::write(folder.path().join("server.pem"), b"no certificate").unwrap();
        assert!(tls.reread().unwrap_err().to_string().starts_with("--cert '"));
        assert!(Arc::ptr_eq(&second, tls.acceptor().config()), "what does not fit is not used");
    }

    #[test]
    fn the_end_of_the_shown_certificate_is_known() {
        let (_folder, files) = folder();
        let expires = Tls::new(files, &[b"h2"]).unwrap().expires().unwrap();
        // As `openssl x509 -enddate` has it: Oct 28 15:39:24 2126 GMT.
        assert_eq!(expires, UNIX_EPOCH + Duration::from_secs(4_948_875_564));
    }

    #[test]
    fn a_certificate_of_version_1_is_named() {
        let pem = |flag, name: &str| Pem { flag, path: shipped(name) };
        let files =
            TlsFiles { certificate: pem("--cert", "version-1.pem"), key: pem("--key", "version-1.key"), roots: None };
        let error = Tls::new(files, &[b"h2"]).err().unwrap().to_string();
        assert!(error.starts_with("--cert '") && error.contains(" X.509 version 1, expected version 3"), "{error}");
    }

    #[tokio::test]
    async fn a_clients_certificate_of_version_1_is_named() {
        let (_folder, files) = folder();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(shipped("ca.pem")).unwrap()).unwrap();
        let own = CertificateDer::from_pem_file(shipped("version-1.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(shipped("version-1.key")).unwrap();
        // Unchecked: rustls' own client refuses the certificate, too.
        let own = CertifiedKey::new(vec![own], ring::sign::any_supported_type(&key).unwrap());
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own)));
        let (near, far) = tokio::io::duplex(1 << 16);
        let connecting = TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), near);
        let (accepted, _) = tokio::join!(Tls::new(files, &[b"h2"]).unwrap().acceptor().accept(far), connecting);
        let refused = refused_certificate(&accepted.err().unwrap()).unwrap();
        assert!(refused.contains("X.509 version 1, expected version 3"), "{refused}");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let (folder, files) = folder();
        fs::write(folder.path().join("ca.pem"), "").unwrap();
        let error = Tls::new(files.clone(), &[b"h2"]).err().unwrap().to_string();
        assert!(error.starts_with("--roots '") && error.ends_with("ca.pem' holds no certificate"), "{error}");
        let files = TlsFiles { roots: None, key: Pem { flag: "--key", path: shipped("client.key") }, ..files };
        let error = Tls::new(files.clone(), &[b"h2"]).err().unwrap().to_string();
        assert!(error.starts_with("--key '") && error.ends_with("client.key' does not fit --cert"), "{error}");
        let files = TlsFiles { certificate: Pem { flag: "--cert", path: "/no/such".into() }, ..files };
        assert_eq!(Tls::new(files, &[b"h2"]).err().unwrap().to_string(), "--cert '/no/such' cannot be read");
    }
}
