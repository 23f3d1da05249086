//! How much an owner may have: bytes and number of files, batches that have not ended, requests that wait.
//!
//! Each gateway follows the store of jobs, so it knows what an owner has, and refuses more. The work that other gateways accept at
//! the same moment is not counted yet, so a quota may be exceeded by that.

use crate::error::JobError;
use crate::index::Usage;

/// Most of each that an owner has; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Bytes of all files, of those that arrive too.
    pub bytes: Option<u64>,
    /// Files.
    pub files: Option<u64>,
    /// Batches that have not ended.
    pub batches: Option<u64>,
    /// Durable requests that have not ended.
    pub requests: Option<u64>,
}

/// An addition that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum More {
    /// Bytes of files.
    Bytes(u64),
    File,
    Batch,
    Request,
}

// === impl Quotas ===

impl Quotas {
    /// The limit of this, if there is one.
    pub(crate) fn limit(&self, more: More) -> Option<u64> {
        match more {
            More::Bytes(_) => self.bytes,
            More::File => self.files,
            More::Batch => self.batches,
            More::Request => self.requests,
        }
    }

    /// An error if an owner that uses so much has no room for this.
    pub(crate) fn check(&self, used: &Usage, more: More) -> Result<(), JobError> {
        let (used, asked, what, flag, remedy) = match more {
            More::Bytes(bytes) => {
                (used.bytes, bytes, "bytes of files", "--jobs-owner-bytes", "delete files, or send fewer bytes")
            }
            More::File => (used.files, 1, "files", "--jobs-owner-files", "delete files"),
            More::Batch => {
                (used.batches, 1, "batches that have not ended", "--jobs-owner-batches", "wait until one has ended")
            }
            More::Request => {
                let what = "durable requests that have not ended";
                (used.requests, 1, what, "--jobs-owner-requests", "wait until some have ended")
            }
        };
        match self.limit(more) {
            Some(limit) if used.saturating_add(asked) > limit => Err(JobError::Quota {
                is_size: matches!(more, More::Bytes(_)),
                message: format!(
                    "this owner has {used} {what} and asks for {asked} more, but may have {limit} ({flag}): {remedy}"
                ),
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_both_numbers_and_the_flag() {
        let quotas = Quotas { bytes: Some(100), batches: Some(2), ..Quotas::default() };
        let used = Usage { bytes: 90, files: 7, batches: 2, requests: 1000 };
        assert!(quotas.check(&used, More::Bytes(10)).is_ok());
        assert!(quotas.check(&used, More::File).is_ok() && quotas.check(&used, More::Request).is_ok());
        let refusal = quotas.check(&used, More::Bytes(11)).unwrap_err().to_string();
        assert_eq!(
            refusal,
            "this owner has 90 bytes of files and asks for 11 more, but may have 100 (--jobs-owner-bytes): delete files, or send fewer \
             bytes"
        );
        let refusal = quotas.check(&used, More::Batch).unwrap_err();
        assert!(matches!(refusal, JobError::Quota { is_size: false, .. }));
        assert!(refusal.to_string().contains("has 2 batches that have not ended and asks for 1 more, but may have 2"));
    }
}
