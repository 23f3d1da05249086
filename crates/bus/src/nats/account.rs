//! The limits of the deployment's account, and streams that fit into them.
//!
//! A broker reserves the bytes that a stream may hold at most. So a stream with a limit gets at most a share of what its account may
//! store, and the shares of all stores leave a quarter or more to the queues.
//!
//! Not here: creating the streams (`streams`), and their configurations without limits of an account (`buckets`).

use std::time::Duration;

use async_nats::jetstream::account::{Account, Limits};
use async_nats::jetstream::{self, ErrorCode, stream};

use super::connection::Nats;
use crate::BusError;

/// Bytes of a stream on an account that demands a limit for each stream and has no limit itself.
const USUAL_BYTES: i64 = 64 << 20;

/// The least that a store is made with when the broker has less than it should hold.
const LEAST_BYTES: i64 = 1 << 20;

/// The share of a queue or a small stream: see [`fit`].
pub(super) const SMALL: i64 = 64;

/// The account's limits for streams with this number of copies.
pub(super) fn limits(account: &Account, copies: usize) -> Limits {
    account.tiers.get(&format!("R{copies}")).map_or(account.limits, |tier| tier.limits)
}

/// Adapts a stream's configuration to the limits of its account: where it is stored, and how many bytes it may hold. That is at most one of
/// `share` parts of the account's bytes, in memory or on disk.
pub(super) fn fit(share: i64, config: stream::Config, account: &Account) -> stream::Config {
    use stream::StorageType::{File, Memory};
    let limits = limits(account, config.num_replicas);
    let storage = match config.storage {
        Memory if limits.max_memory == Some(0) && limits.max_storage != Some(0) => File,
        File if limits.max_storage == Some(0) && limits.max_memory != Some(0) => Memory,
        storage => storage,
    };
    let (all, each) = match storage {
        Memory => (limits.max_memory, limits.memory_max_stream_bytes),
        File => (limits.max_storage, limits.storage_max_stream_bytes),
    };
    // 0 is no limit of a single stream, and no account has less than a byte for each.
    let each = each.filter(|each| *each > 0);
    let most = all.map(|all| (all / share).max(1)).into_iter().chain(each).min();
    let max_bytes = match config.max_bytes > 0 {
        true => most.map_or(config.max_bytes, |most| most.min(config.max_bytes)),
        false if limits.max_bytes_required => most.unwrap_or(USUAL_BYTES),
        false => config.max_bytes,
    };
    stream::Config { storage, max_bytes, ..config }
}

/// Changes a configuration that the broker has refused because of a limit of its own, which no account names, if that may help: a store
/// gets an eighth of its bytes, so that something is left for the others; what finds no memory goes on disk, and a store that finds no
/// disk into memory, as long as it is not where it was `meant` to be; a window for duplicates that is too long becomes the broker's own.
pub(super) fn refit(
    meant: &stream::Config,
    config: &stream::Config,
    refusal: &jetstream::Error,
) -> Option<stream::Config> {
    use stream::StorageType::{File, Memory};
    let is_store = config.retention != stream::RetentionPolicy::WorkQueue;
    let other = match meant.storage {
        Memory => Some(File),
        File => is_store.then_some(Memory),
    };
    let other = other.filter(|_| config.storage == meant.storage);
    match refusal.error_code() {
        ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::INSUFFICIENT_RESOURCES
            if is_store && config.max_bytes > LEAST_BYTES =>
        {
            Some(stream::Config { max_bytes: (config.max_bytes / 8).max(LEAST_BYTES), ..config.clone() })
        }
        ErrorCode::STORAGE_RESOURCES_EXCEEDED | ErrorCode::MEMORY_RESOURCES_EXCEEDED if other.is_some() => {
            let storage = other.unwrap_or(meant.storage);
            tracing::warn!(stream = meant.name, ?storage, "the broker has no room for it where it should be");
            Some(stream::Config { storage, max_bytes: meant.max_bytes, ..config.clone() })
        }
        _ if refusal.to_string().contains("duplicates window") && !config.duplicate_window.is_zero() => {
            Some(stream::Config { duplicate_window: Duration::ZERO, ..config.clone() })
        }
        _ => None,
    }
}

// === impl Nats ===

impl Nats {
    /// The account as it was last read: its limits, and the streams and bytes in use. Reading it takes a leader of the cluster, and a
    /// stream without one is replaced while there is none.
    pub(super) fn account(&self) -> Account {
        self.account.lock().clone()
    }

    /// The error of a stream or its consumer that the account has no room for; `None` if the broker has refused it for another reason.
    pub(super) async fn over_limit(&self, config: &stream::Config, refusal: &jetstream::Error) -> Option<BusError> {
        if let Ok(now) = self.jetstream.query_account().await {
            *self.account.lock() = now;
        }
        let account = self.account();
        let limits = limits(&account, config.num_replicas);
        let bytes = |limit: Option<i64>, kind: &str| {
            let limit = limit.map_or_else(|| "what the broker has".to_owned(), |limit| format!("{limit} bytes"));
            format!(
                "all {kind} that the account may reserve is in use ({limit}): raise the limit, or remove streams that nobody needs"
            )
        };
        let counted = |limit: Option<i64>, kind: &str, there: usize| {
            let limit = limit.map_or_else(|| "no more".to_owned(), |limit| limit.to_string());
            format!(
                "the account allows {limit} {kind}, has {there}, and needs one more: raise max_{kind} of the account, or serve fewer models"
            )
        };
        let reason = match refusal.error_code() {
            ErrorCode::MAXIMUM_STREAMS_LIMIT => counted(limits.max_streams, "streams", account.streams),
            ErrorCode::MAXIMUM_CONSUMERS_LIMIT => counted(limits.max_consumers, "consumers", account.consumers),
            ErrorCode::MEMORY_RESOURCES_EXCEEDED => bytes(limits.max_memory, "memory"),
            ErrorCode::STORAGE_RESOURCES_EXCEEDED => bytes(limits.max_storage, "storage"),
            ErrorCode::ACCOUNT_RESOURCES_EXCEEDED | ErrorCode::INSUFFICIENT_RESOURCES => {
                "the account's limits are reached: raise them, or serve fewer models".to_owned()
            }
            _ => return None,
        };
        Some(BusError::OverLimit { reason: format!("stream {}: {refusal}; {reason}", config.name) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::buckets;
    use super::super::streams::Needed;
    use super::super::subjects::{DeploymentName, Names};
    use super::*;
    use crate::Bucket;

    fn account(limits: Limits) -> Account {
        Account { limits, ..Account::default() }
    }

    fn unlimited() -> Limits {
        let json = serde_json::json!({
            "max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1, "max_bytes_required": false,
            "max_ack_pending": -1, "memory_max_stream_bytes": -1, "storage_max_stream_bytes": -1
        });
        serde_json::from_value(json).unwrap()
    }

    fn stores() -> Vec<(Needed<'static>, stream::Config)> {
        let names = Names::of(&DeploymentName::default());
        let buckets = Bucket::ALL.map(|bucket| (Needed::Bucket(bucket), buckets::config(&names, bucket)));
        buckets.into_iter().chain([(Needed::Claims, buckets::claims(&names))]).collect()
    }

    #[test]
    fn without_limits_nothing_changes() {
        for (needed, config) in stores() {
            assert_eq!(fit(needed.share(), config.clone(), &account(unlimited())).max_bytes, config.max_bytes);
        }
    }

    #[test]
    fn all_stores_together_leave_a_quarter_of_an_account_to_the_queues() {
        for (memory, storage) in [(512 << 20, 1 << 30), (0, 1 << 30), (512 << 20, 0)] {
            let limits = Limits {
                max_memory: Some(memory),
                max_storage: Some(storage),
                max_bytes_required: true,
                ..unlimited()
            };
            let fitted = stores().into_iter().map(|(needed, config)| fit(needed.share(), config, &account(limits)));
            let mut reserved = [0, 0];
            for config in fitted {
                assert!(config.max_bytes > 0, "{}", config.name);
                reserved[usize::from(config.storage == stream::StorageType::File)] += config.max_bytes;
            }
            assert!(
                reserved[0] <= memory * 3 / 4 && reserved[1] <= storage * 3 / 4,
                "{reserved:?} of {memory}, {storage}"
            );
        }
    }

    #[test]
    fn a_tier_has_the_limits_of_its_copies() {
        let tier = async_nats::jetstream::account::Tier {
            limits: Limits { max_storage: Some(1 << 20), ..unlimited() },
            ..Default::default()
        };
        // Without a tier for one copy, the account's own limits hold.
        let account = Account { tiers: [("R3".to_owned(), tier)].into(), ..account(unlimited()) };
        let config = stream::Config { max_bytes: 1 << 30, num_replicas: 3, ..Default::default() };
        assert_eq!(fit(8, config.clone(), &account).max_bytes, 1 << 17);
        let single = stream::Config { num_replicas: 1, ..config };
        assert_eq!(fit(8, single, &account).max_bytes, 1 << 30);
    }
}
