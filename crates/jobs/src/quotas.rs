//! How much an owner may have: bytes and number of files, batches that have not ended, requests that wait.
//!
//! Each gateway follows the store of jobs, so it knows what an owner has, and refuses more. The work that other gateways accept at
//! the same moment is not counted yet, so a quota may be exceeded by that. The work that the same gateway accepts is (`index`).

use crate::error::JobError;
use crate::record::{File, Purpose};

/// The flag of the limit of bytes, whose refusals are about size.
const BYTES: &str = "--jobs-owner-bytes";

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

/// The work and the files of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Files, those that arrive and uploads among them.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Batches that have not ended.
    pub batches: u64,
    /// Durable requests that have not ended.
    pub requests: u64,
}

// === impl Quotas ===

impl Quotas {
    /// Whether any of this has a limit.
    pub(crate) fn bound(&self, more: &Usage) -> bool {
        self.limits(&Usage::default(), more).into_iter().any(|(limit, ..)| limit.is_some())
    }

    /// An error if an owner that uses so much has no room for this.
    pub(crate) fn check(&self, used: &Usage, more: &Usage) -> Result<(), JobError> {
        for (limit, used, asked, [what, flag, remedy]) in self.limits(used, more) {
            if let Some(limit) = limit
                && used.saturating_add(asked) > limit
            {
                return Err(JobError::Quota {
                    is_size: flag == BYTES,
                    message: format!(
                        "this owner has {used} {what} and asks for {asked} more, but may have {limit} ({flag}): {remedy}"
                    ),
                });
            }
        }
        Ok(())
    }

    /// By quantity: its limit, if more of it is asked for; the used and the asked amount; its name, its flag and the remedy.
    fn limits(&self, used: &Usage, more: &Usage) -> [(Option<u64>, u64, u64, [&'static str; 3]); 4] {
        let files = ["files", "--jobs-owner-files", "delete files"];
        let bytes = ["bytes of files", BYTES, "delete files, or send fewer bytes"];
        let batches = ["batches that have not ended", "--jobs-owner-batches", "wait until one has ended"];
        let requests = ["durable requests that have not ended", "--jobs-owner-requests", "wait until some have ended"];
        [
            (self.files, used.files, more.files, files),
            (self.bytes, used.bytes, more.bytes, bytes),
            (self.batches, used.batches, more.batches, batches),
            (self.requests, used.requests, more.requests, requests),
        ]
        .map(|(limit, used, more, words)| (limit.filter(|_| more > 0), used, more, words))
    }
}

// === impl Usage ===

impl Usage {
    /// The part of a file, an upload or a part of one. The bytes of an upload are those of its parts.
    pub fn of(file: &File) -> Usage {
        let (files, bytes) = match file.purpose {
            // The file that it becomes is counted.
            Purpose::Arriving if file.file.is_some() => (0, 0),
            Purpose::Batch | Purpose::BatchOutput | Purpose::Arriving => (1, file.bytes),
            Purpose::Upload => (1, 0),
            Purpose::Part => (0, file.bytes),
            Purpose::Joined | Purpose::Deleted => (0, 0),
        };
        Usage { files, bytes, ..Usage::default() }
    }

    /// The larger of each.
    pub fn max(&self, other: &Usage) -> Usage {
        let mut larger = *self;
        larger.change(other, u64::max);
        larger
    }

    pub fn change(&mut self, other: &Usage, with: fn(u64, u64) -> u64) {
        self.files = with(self.files, other.files);
        self.bytes = with(self.bytes, other.bytes);
        self.batches = with(self.batches, other.batches);
        self.requests = with(self.requests, other.requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_both_numbers_and_the_flag() {
        let quotas = Quotas { bytes: Some(100), batches: Some(2), ..Quotas::default() };
        let used = Usage { bytes: 90, files: 7, batches: 2, requests: 1000 };
        let bytes = |bytes| Usage { bytes, files: 1, requests: 1, ..Usage::default() };
        assert!(quotas.check(&used, &bytes(10)).is_ok());
        let refusal = quotas.check(&used, &bytes(11)).unwrap_err();
        assert!(matches!(refusal, JobError::Quota { is_size: true, .. }));
        assert_eq!(
            refusal.to_string(),
            "this owner has 90 bytes of files and asks for 11 more, but may have 100 (--jobs-owner-bytes): delete files, or send fewer \
             bytes"
        );
        let refusal = quotas.check(&used, &Usage { batches: 1, ..Usage::default() }).unwrap_err();
        assert!(matches!(refusal, JobError::Quota { is_size: false, .. }));
        assert!(refusal.to_string().contains("has 2 batches that have not ended and asks for 1 more, but may have 2"));
    }
}
