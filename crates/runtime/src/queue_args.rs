//! Flags about the queues of a deployment, for the process that starts it: a gateway or `trireme serve`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use trireme_bus::{Deployment, QueueOptions, STORES};

/// How queues behave, in one process and on a broker.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Queues")]
pub struct QueueArgs {
    /// Most requests in a model version's queue; one more is refused
    #[arg(long, env = "TRIREME_QUEUE_MAX_MESSAGES", value_name = "COUNT", default_value_t = QueueOptions::default().max_messages)]
    pub queue_max_messages: u64,

    /// Most bytes in a model version's queue, which a broker sets aside for it; one request more is refused; 0 is as many as
    /// there is room for, all queues together
    #[arg(long, env = "TRIREME_QUEUE_MAX_BYTES", value_name = "BYTES", default_value_t = QueueOptions::default().max_bytes)]
    pub queue_max_bytes: u64,

    /// How often a request is begun at one step before it is given up; with 1, requests that a worker held when it died are not
    /// tried again
    #[arg(long, env = "TRIREME_MAX_DELIVER", value_name = "COUNT", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub max_deliver: u32,
}

/// How the broker keeps queues. The first gateway of a deployment writes these settings and those of [`QueueArgs`] to the broker,
/// where they hold for all processes; `trireme settings` changes them.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Queues")]
pub struct BrokerArgs {
    /// Where the broker keeps queued work
    #[arg(long, env = "TRIREME_QUEUE_STORAGE", value_name = "STORAGE", default_value = "memory")]
    pub queue_storage: Storage,

    /// Copies that the brokers keep of each stream; by default three on a cluster of brokers, and one on a single broker
    #[arg(long, env = "TRIREME_QUEUE_REPLICAS", value_name = "COUNT")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=5))]
    pub queue_replicas: Option<u64>,

    /// Milliseconds after which unconfirmed work of a dead worker is given to another
    #[arg(long, env = "TRIREME_ACK_WAIT_MS", value_name = "MILLISECONDS", default_value_t = 2000)]
    #[arg(value_parser = clap::value_parser!(u64).range(50..=600_000))]
    pub ack_wait_ms: u64,

    /// Bytes that a store holds at most, which a broker sets aside for it. Stores are attempts, claims, dead, jobs, models, objects,
    /// registry, sequences and settings. By default a store has what the account's limits leave. Holds for the broker's streams from
    /// the gateway's start on
    #[arg(long, env = "TRIREME_STORE_BYTES", value_name = "STORE=BYTES", value_delimiter = ',', value_parser = store_bytes)]
    pub store_bytes: Vec<(&'static str, u64)>,
}

/// Parses the name of a store and its bytes.
fn store_bytes(text: &str) -> Result<(&'static str, u64), String> {
    let expected = || format!("expected STORE=BYTES, where STORE is one of {}", STORES.join(", "));
    let (name, bytes) = text.split_once('=').ok_or_else(expected)?;
    let store = STORES.into_iter().find(|store| *store == name).ok_or_else(expected)?;
    match bytes.parse() {
        Ok(bytes) if bytes > 0 => Ok((store, bytes)),
        _ => Err(format!("'{bytes}' is no number of bytes above 0; {}", expected())),
    }
}

/// Where the broker keeps queued work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Storage {
    /// In the broker's memory: fastest; gateways send unanswered requests again when the broker has lost them.
    Memory,
    /// On the broker's disk.
    File,
}

// === impl QueueArgs ===

impl QueueArgs {
    /// The queues of one process.
    pub fn options(&self) -> QueueOptions {
        QueueOptions {
            max_messages: self.queue_max_messages,
            max_bytes: self.queue_max_bytes,
            max_attempts: self.max_deliver,
            ..QueueOptions::default()
        }
    }

    /// The settings of a deployment over NATS.
    pub fn deployment(&self, broker: &BrokerArgs) -> Deployment {
        let queue = QueueOptions {
            ack_wait: Duration::from_millis(broker.ack_wait_ms),
            file_storage: broker.queue_storage == Storage::File,
            ..self.options()
        };
        Deployment {
            queue,
            replicas: broker.queue_replicas.map(|count| count as usize),
            store_bytes: broker.store_bytes.iter().copied().collect(),
        }
    }
}
