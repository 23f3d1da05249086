//! When the certificates of the ports expire: a metric, and a warning from two weeks before.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use trireme_runtime::TaskSet;
use trireme_server::connections::Tls;
use trireme_telemetry::metrics::{Exposition, Metric};

/// How long before its end a certificate is warned about.
const NOTICE: Duration = Duration::from_secs(14 * DAY);

/// Seconds of a day.
const DAY: u64 = 24 * 60 * 60;

/// Time between two warnings.
const PERIOD: Duration = Duration::from_secs(DAY / 2);

/// The certificates of this gateway's ports.
#[derive(Clone, Default)]
pub struct Certificates(Vec<Tls>);

// === impl Certificates ===

impl Certificates {
    /// Those of these ports.
    pub fn of(ports: impl IntoIterator<Item = Tls>) -> Certificates {
        Certificates(ports.into_iter().collect())
    }

    /// Warns now, and from time to time, of certificates that are about to expire.
    pub fn watch(self, tasks: &TaskSet) {
        if self.0.is_empty() {
            return;
        }
        tasks.spawn_until_stop("certificates", async move {
            loop {
                self.warn(SystemTime::now());
                tokio::time::sleep(PERIOD).await;
            }
        });
    }

    fn warn(&self, now: SystemTime) {
        for tls in &self.0 {
            let (flag, certificate) = (tls.certificate().flag, tls.certificate().path.display());
            match tls.expires().and_then(|expires| left(expires, now)) {
                Some(left) if left.is_zero() => {
                    tracing::error!(flag, %certificate, "the certificate has expired: clients refuse it; replace the file");
                }
                Some(left) => {
                    let days = left.as_secs() / DAY;
                    tracing::warn!(flag, %certificate, days, "the certificate expires soon; a new file is read at the next connection");
                }
                None => {}
            }
        }
    }

    /// Adds the metric.
    pub fn export(&self, out: &mut Exposition) {
        out.family(Metric::CertificateExpiry, |samples| {
            for tls in &self.0 {
                let since = tls.expires().and_then(|expires| expires.duration_since(UNIX_EPOCH).ok());
                if let Some(since) = since {
                    samples.value(&[("flag", tls.certificate().flag)], since.as_secs_f64());
                }
            }
        });
    }
}

/// The time that is left of a certificate, if that is so little that somebody should know; zero once it has expired.
fn left(expires: SystemTime, now: SystemTime) -> Option<Duration> {
    let left = expires.duration_since(now).unwrap_or_default();
    (left < NOTICE).then_some(left)
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
