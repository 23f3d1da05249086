//! When the certificates that this process shows expire: a metric, and a warning from two weeks before.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use trireme_telemetry::metrics::{Exposition, Metric};
use x509_cert::Certificate;

/// How long before its end a certificate is warned about.
const NOTICE: Duration = Duration::from_secs(14 * DAY);

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// Time between two warnings.
pub(super) const PERIOD: Duration = Duration::from_secs(DAY / 2);

/// A certificate that this process shows to clients or to NATS.
pub struct ShownCertificate {
    /// The flag that names its file.
    pub flag: &'static str,
    /// Its file.
    pub path: PathBuf,
    /// Returns when it expires; `None` where it does not say so in a way that is understood.
    pub expires: Box<dyn Fn() -> Option<SystemTime> + Send + Sync>,
}

/// When the first of the certificates in a PEM file expires. `None` where the file cannot be read.
pub(crate) fn expiry(path: &Path) -> Option<SystemTime> {
    let chain = Certificate::load_pem_chain(&std::fs::read(path).ok()?).ok()?;
    let ends = chain.iter().map(|certificate| certificate.tbs_certificate.validity.not_after.to_unix_duration());
    ends.min().map(|end| UNIX_EPOCH + end)
}

/// Adds the metric.
pub(super) fn export(certificates: &[ShownCertificate], out: &mut Exposition) {
    out.family(Metric::CertificateExpiry, |samples| {
        for certificate in certificates {
            let since = (certificate.expires)().and_then(|expires| expires.duration_since(UNIX_EPOCH).ok());
            if let Some(since) = since {
                samples.value(&[("flag", certificate.flag)], since.as_secs_f64());
            }
        }
    });
}

/// The time that is left of a certificate, if that is so little that somebody should know; zero once it has expired.
fn left(expires: SystemTime, now: SystemTime) -> Option<Duration> {
    let left = expires.duration_since(now).unwrap_or_default();
    (left < NOTICE).then_some(left)
}

// === impl ShownCertificate ===

impl ShownCertificate {
    /// Warns if it is about to expire, or has expired.
    pub(super) fn warn(&self, now: SystemTime) {
        let (flag, certificate) = (self.flag, self.path.display());
        match (self.expires)().and_then(|expires| left(expires, now)) {
            Some(left) if left.is_zero() => {
                tracing::error!(flag, %certificate, "the certificate has expired: others refuse it; replace the file");
            }
            Some(left) => {
                let days = left.as_secs() / DAY;
                tracing::warn!(flag, %certificate, days, "the certificate expires soon; a new file is read at the next connection");
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_weeks_before_its_end_a_certificate_is_warned_about() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let ends = |days: u64| now + Duration::from_secs(days * DAY);
        assert_eq!(left(ends(14), now), None);
        assert_eq!(left(ends(13), now), Some(Duration::from_secs(13 * DAY)));
        assert_eq!(left(now - Duration::from_secs(1), now), Some(Duration::ZERO));
    }
}
