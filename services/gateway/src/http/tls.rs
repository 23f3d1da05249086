//! TLS for the HTTP listener: a certificate chain and its key, from PEM files, read at start.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What speaks TLS 1.2 and 1.3 with this certificate. Errors name the file.
pub fn acceptor(certificate: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(|certificates| certificates.collect::<Result<Vec<_>, _>>())
        .with_context(|| format!("--https-cert '{}' cannot be read", certificate.display()))?;
    anyhow::ensure!(!chain.is_empty(), "--https-cert '{}' holds no certificate", certificate.display());
    let private =
        PrivateKeyDer::from_pem_file(key).with_context(|| format!("--https-key '{}' cannot be read", key.display()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .with_context(|| format!("--https-key '{}' does not fit --https-cert", key.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
