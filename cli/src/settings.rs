//! `trireme settings`: shows how the queues of a deployment are kept, and changes it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use trireme_runtime::service::{self, NatsArgs, Storage};

use crate::broker::{self, CONNECT_TIMEOUT_SECS};
use crate::output::write_out;

/// Flags of `trireme settings`. Without any the settings are only shown.
#[derive(Args)]
#[command(mut_arg("nats_connect_timeout_secs", |flag| flag.default_value(CONNECT_TIMEOUT_SECS)))]
pub struct SettingsArgs {
    /// Copies that the brokers keep of each stream
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=5))]
    queue_replicas: Option<u64>,

    /// Where the broker keeps queued work; existing queues stay where they are
    #[arg(long, value_name = "STORAGE")]
    queue_storage: Option<Storage>,

    /// Most requests in a model version's queue
    #[arg(long, value_name = "COUNT")]
    queue_max_messages: Option<u64>,

    /// Most bytes in a model version's queue, which the broker sets aside; 0 is as many as it has room for
    #[arg(long, value_name = "BYTES")]
    queue_max_bytes: Option<u64>,

    /// Milliseconds after which unconfirmed work of a dead worker is given to another
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(50..=600_000))]
    ack_wait_ms: Option<u64>,

    /// How often a request is begun at one step before it is given up
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100))]
    max_deliver: Option<u32>,

    #[command(flatten)]
    nats: NatsArgs,
}

/// Shows the settings, after changing them where a flag says so.
pub fn run(args: &SettingsArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(settings(args))) {
        Ok(text) => write_out(text.as_bytes()),
        Err(error) => service::fail(&error),
    }
}

async fn settings(args: &SettingsArgs) -> anyhow::Result<String> {
    let bus = broker::connect(&args.nats, &service::process_name("settings")).await?;
    let before = bus.find_settings().await?;
    let before = before.context("this broker has no settings yet: the first gateway of a deployment writes them")?;
    let mut settings = before.clone();
    settings.replicas = args.queue_replicas.map_or(settings.replicas, |count| count as usize);
    settings.file_storage = args.queue_storage.map_or(settings.file_storage, |storage| storage == Storage::File);
    settings.max_messages = args.queue_max_messages.unwrap_or(settings.max_messages);
    settings.max_bytes = args.queue_max_bytes.unwrap_or(settings.max_bytes);
    settings.ack_wait = args.ack_wait_ms.map_or(settings.ack_wait, Duration::from_millis);
    settings.max_attempts = args.max_deliver.unwrap_or(settings.max_attempts);
    if settings != before {
        bus.change_settings(&settings).await?;
    }
    bus.close().await;
    let lines = [
        ("queue-replicas", settings.replicas.to_string()),
        ("queue-storage", if settings.file_storage { "file" } else { "memory" }.to_owned()),
        ("queue-max-messages", settings.max_messages.to_string()),
        ("queue-max-bytes", settings.max_bytes.to_string()),
        ("ack-wait-ms", settings.ack_wait.as_millis().to_string()),
        ("max-deliver", settings.max_attempts.to_string()),
    ];
    let mut text: String = lines.iter().map(|(name, value)| format!("{name:<20}{value}\n")).collect();
    if settings != before {
        text.push_str("changed: stores are changed now, a queue when its workers start or load their model again\n");
    }
    Ok(text)
}
