//! `trireme doctor`: what a deployment needs on a NATS account, beside what the account allows, before anything starts; and whether this
//! machine's ONNX Runtime is as new as it should be.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use trireme_bus::{Examination, LevelPolicy, QueueOptions};
use trireme_inference::ModelKey;
use trireme_model::{FoundLibrary, LibraryError, find_library};
use trireme_model_repository::{ModelSources, Repository};
use trireme_runtime::service::{self, NatsArgs};
use trireme_runtime::{FolderArgs, local_folder};

use crate::broker::CONNECT_TIMEOUT_SECS;
use crate::output::write_out;
use crate::style::{Style, cell, colours, paint, table};

/// Flags of `trireme doctor`.
#[derive(Args)]
#[command(mut_arg("nats_connect_timeout_secs", |flag| flag.default_value(CONNECT_TIMEOUT_SECS)))]
pub struct DoctorArgs {
    /// Model repositories and model folders that the deployment will serve; without any, what every deployment needs
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,

    /// Copies of each stream, if the deployment is new; by default three on a cluster of brokers, and one on a single broker
    #[arg(long, env = "TRIREME_QUEUE_REPLICAS", value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=5))]
    queue_replicas: Option<u64>,

    /// The ONNX Runtime library whose version is looked at; by default the one that `trireme serve` would find
    #[arg(long, env = "TRIREME_ONNXRUNTIME_LIBRARY", value_name = "FILE")]
    onnxruntime_library: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    choices: FolderArgs,
    #[command(flatten)]
    nats: NatsArgs,
}

/// Prints the needs of a deployment beside the limits of the account; exit code 1 if the account does not allow them.
pub fn run(args: &DoctorArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(examine(args))) {
        Ok((text, is_well)) => match write_out(text.as_bytes()) {
            ExitCode::SUCCESS if !is_well => ExitCode::FAILURE,
            code => code,
        },
        Err(error) => service::fail(&error),
    }
}

async fn examine(args: &DoctorArgs) -> anyhow::Result<(String, bool)> {
    let queues = queues(args).await?;
    let replicas = args.queue_replicas.map(|count| count as usize);
    let found = args.nats.examine(&service::process_name("doctor"), &queues, replicas).await?;
    let is_well = found.faults.is_empty();
    let library = find_library(args.onnxruntime_library.as_deref());
    let text = match args.json {
        true => {
            let mut all = serde_json::to_value(&found).context("writing JSON")?;
            all["onnxruntime"] = match &library {
                Ok(found) => json!({ "version": found.version, "path": found.path, "advice": found.advice() }),
                Err(error) => json!({ "error": error.to_string() }),
            };
            format!("{all:#}\n")
        }
        false => report(args, &found, colours()) + &of_library(&library, colours()),
    };
    Ok((text, is_well))
}

/// The queues of the model versions that the deployment will serve.
async fn queues(args: &DoctorArgs) -> anyhow::Result<Vec<(ModelKey, QueueOptions)>> {
    let choices = args.choices.choices()?;
    let mut folders = Vec::new();
    for model in &args.models {
        folders.push(local_folder(model, None, &choices).await?);
    }
    if folders.is_empty() {
        return Ok(Vec::new());
    }
    let faults = |faults: Vec<String>| anyhow::anyhow!(faults.join("\n"));
    let sources = ModelSources::open(folders.iter().map(|folder| (None, folder.as_path())), &choices);
    let sources = sources.map_err(|found| faults(found.iter().map(ToString::to_string).collect()))?;
    let repository = Repository::read(&sources.repositories, &[]);
    let repository = repository.map_err(|found| faults(found.iter().map(ToString::to_string).collect()))?;
    if let Some((name, broken)) = repository.broken().next() {
        bail!("model '{name}': {}", broken.fault);
    }
    let mut queues = Vec::new();
    for model in repository.models() {
        for &version in &model.versions {
            let config = model.config_of(version);
            if config.is_ensemble() {
                continue;
            }
            let levels = config.queue_levels().into_iter().map(|level| (level, LevelPolicy::default()));
            let key = ModelKey { name: model.name.as_str().into(), version };
            queues.push((key, QueueOptions { levels: levels.collect(), ..QueueOptions::default() }));
        }
    }
    Ok(queues)
}

fn report(args: &DoctorArgs, found: &Examination, colours: bool) -> String {
    let mut out = String::new();
    let kind = if found.clustered { "one of a cluster" } else { "alone" };
    let _ = writeln!(
        out,
        "nats-server {} at {}, {kind}; messages of {} at most; {} of each stream",
        found.version,
        args.nats.nats_url,
        bytes(found.max_payload as u64),
        if found.replicas == 1 { "one copy".to_owned() } else { format!("{} copies", found.replicas) }
    );
    let limits: Vec<_> = found
        .limits
        .iter()
        .map(|counted| {
            let is_bytes = ["memory", "storage"].contains(&counted.what);
            let shown = |count: u64| if is_bytes { bytes(count) } else { count.to_string() };
            let what = if is_bytes { format!("{} set aside", counted.what) } else { counted.what.to_owned() };
            let limit = counted.limit.map_or_else(|| "none".to_owned(), shown);
            vec![cell(what), cell(limit), cell(shown(counted.used)), cell(shown(counted.more))]
        })
        .collect();
    table(&mut out, &["account", ">limit", ">in use", ">needed besides"], &limits, colours);
    let streams: Vec<_> = found
        .streams
        .iter()
        .map(|stream| {
            let place = if stream.on_disk { "disk" } else { "memory" };
            let size = stream.bytes.map_or_else(|| "no limit".to_owned(), bytes);
            vec![cell(&stream.name), cell(place), cell(size), cell(if stream.exists { "there" } else { "" })]
        })
        .collect();
    table(&mut out, &["stream", "in", ">bytes", ""], &streams, colours);
    for fault in &found.faults {
        let _ = writeln!(out, "{} {fault}", paint("fault:", Style::Bad, colours));
    }
    if found.faults.is_empty() {
        let _ = writeln!(
            out,
            "{}: the account has room for this deployment. A first bulk request (`Priority: u=7`, --bulk-api-key, a batch) needs one more stream for each model \
             version. deploy/nats/permissions.py writes the permissions of users",
            paint("well", Style::Good, colours)
        );
    }
    out
}

/// The line about ONNX Runtime. A machine without it is none of the deployment's faults: only workers of ONNX models need it.
fn of_library(library: &Result<FoundLibrary, LibraryError>, colours: bool) -> String {
    let advice = |text: String| format!("{} {text}\n", paint("advice:", Style::Strong, colours));
    match library {
        Ok(found) => match found.advice() {
            Some(text) => advice(text),
            None => format!("ONNX Runtime {} at {}\n", found.version, found.path.display()),
        },
        Err(error) => advice(format!("workers of ONNX models could not run on this machine: {error}")),
    }
}

/// A number of bytes for people.
fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("kiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| count >= *size) {
        Some((unit, size)) => format!("{:.3} {unit}", count as f64 / *size as f64).replace(".000", ""),
        None => format!("{count} B"),
    }
}
