//! Compares the streams that a deployment needs with the limits of its account. Makes and changes nothing.

use async_nats::jetstream::stream::StorageType;
use futures_util::TryStreamExt;
use serde::Serialize;
use trireme_inference::ModelKey;

use super::account;
use super::buckets;
use super::connect::NatsOptions;
use super::connection::Nats;
use super::errors::failure;
use super::streams::Needed;
use crate::{Bucket, Bus, BusError, QueueOptions};

/// An account, and the needs of a deployment there.
#[derive(Clone, Debug, Serialize)]
pub struct Examination {
    /// The version of the server.
    pub version: String,
    /// Bytes of the largest message.
    pub max_payload: usize,
    /// Whether the server is one of a cluster.
    pub clustered: bool,
    /// Copies of each stream.
    pub replicas: usize,
    /// The streams, in the order in which they are made.
    pub streams: Vec<NeededStream>,
    /// The account's limits.
    pub limits: Vec<Counted>,
    /// Limits that are too low for the deployment to start, and the remedy for each.
    pub faults: Vec<String>,
}

/// A stream that a deployment needs.
#[derive(Clone, Debug, Serialize)]
pub struct NeededStream {
    /// Its name.
    pub name: String,
    /// Whether it is on disk; otherwise it is in memory.
    pub on_disk: bool,
    /// Bytes that are set aside for one copy of it; `None` if there is no limit.
    pub bytes: Option<u64>,
    /// Whether it exists.
    pub exists: bool,
}

/// A limit of an account, and the amounts that count against it.
#[derive(Clone, Debug, Serialize)]
pub struct Counted {
    /// The thing counted: `streams`, `consumers`, `memory` or `storage`.
    pub what: &'static str,
    /// How much there is already.
    pub used: u64,
    /// How much more the deployment needs; of bytes, how many are set aside.
    pub more: u64,
    /// The account's limit.
    pub limit: Option<u64>,
}

// === impl Nats ===

impl Nats {
    /// Connects, and compares the needs of a deployment with these queues with the limits of the account. A queue's options name its
    /// levels; the rest comes from the deployment's settings, if it has any, otherwise from `wanted`.
    pub async fn examine(
        options: &NatsOptions,
        queues: &[(ModelKey, QueueOptions)],
        wanted: Option<usize>,
    ) -> Result<Examination, BusError> {
        const ACTION: &str = "looking at the account";
        let nats = Nats::connect(options).await?;
        let account = nats.account();
        let there: Vec<String> =
            nats.jetstream.stream_names().try_collect().await.map_err(|error| failure(ACTION, &error))?;
        let settings = match there.contains(&buckets::stream(&nats.names, Bucket::Settings)) {
            true => (&nats as &dyn Bus).find_settings().await?,
            false => None,
        };
        let usual = wanted.unwrap_or(if nats.is_clustered() { 3 } else { 1 });
        let replicas = settings.as_ref().map_or(usual, |settings| settings.replicas);
        let stores = Bucket::ALL.into_iter().map(Needed::Bucket).chain([Needed::Claims]);
        let mut configs: Vec<_> = stores
            .map(|needed| {
                let config = match needed {
                    Needed::Bucket(bucket) => buckets::config(&nats.names, bucket),
                    _ => buckets::claims(&nats.names),
                };
                (needed.share(), config)
            })
            .collect();
        configs.push((account::SMALL, nats.pulse_config()));
        for (model, options) in queues {
            let options =
                QueueOptions { levels: options.levels.clone(), ..settings.clone().unwrap_or(options.clone()) };
            let levels = options.policies();
            let streams = levels.iter().map(|(level, policy)| nats.queue_config(model, &options, *level, policy));
            configs.extend(streams.map(|config| (account::SMALL, config)));
        }
        let streams: Vec<_> = configs
            .into_iter()
            .map(|(share, config)| {
                let config = async_nats::jetstream::stream::Config { num_replicas: replicas, ..config };
                let config = account::fit(share, config, &account);
                NeededStream {
                    exists: there.contains(&config.name),
                    on_disk: config.storage == StorageType::File,
                    bytes: u64::try_from(config.max_bytes).ok().filter(|bytes| *bytes > 0),
                    name: config.name,
                }
            })
            .collect();
        let limits = account::limits(&account, replicas);
        let missing = || streams.iter().filter(|stream| !stream.exists);
        let bytes = |on_disk| {
            let each = missing().filter(|stream| stream.on_disk == on_disk).filter_map(|stream| stream.bytes);
            each.sum::<u64>().saturating_mul(replicas as u64)
        };
        let queues_missing = missing().filter(|stream| nats.names.model_of(&stream.name).is_some()).count();
        let positive = |limit: Option<i64>| limit.and_then(|limit| u64::try_from(limit).ok());
        let limits = vec![
            Counted {
                what: "streams",
                used: account.streams as u64,
                more: missing().count() as u64,
                limit: positive(limits.max_streams),
            },
            Counted {
                what: "consumers",
                used: account.consumers as u64,
                // A gateway follows four stores, and a worker one.
                more: queues_missing as u64 + 5,
                limit: positive(limits.max_consumers),
            },
            Counted {
                what: "memory",
                used: account.reserved_memory,
                more: bytes(false),
                limit: positive(limits.max_memory),
            },
            Counted {
                what: "storage",
                used: account.reserved_storage,
                more: bytes(true),
                limit: positive(limits.max_storage),
            },
        ];
        let mut faults: Vec<_> = limits.iter().filter_map(Counted::fault).collect();
        if replicas > 1 && !nats.is_clustered() {
            faults.push(format!(
                "{replicas} copies of each stream need as many brokers, and this one is alone: start a cluster, or set --queue-replicas 1"
            ));
        }
        let (version, max_payload) = (nats.client.server_info().version, nats.max_payload());
        let clustered = nats.is_clustered();
        (&nats as &dyn Bus).close().await;
        Ok(Examination { version, max_payload, clustered, replicas, streams, limits, faults })
    }
}

// === impl Counted ===

impl Counted {
    /// The fault if the limit is too low.
    fn fault(&self) -> Option<String> {
        let needed = self.used.saturating_add(self.more);
        let limit = self.limit.filter(|limit| needed > *limit)?;
        let (what, used, more) = (self.what, self.used, self.more);
        let name = match what {
            "memory" => "max_mem",
            "storage" => "max_file",
            "streams" => "max_streams",
            _ => "max_consumers",
        };
        Some(format!(
            "{what}: the account allows {limit}, {used} are in use and {more} more are needed: raise its {name} to {needed}"
        ))
    }
}
