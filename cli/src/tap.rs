//! `trireme tap`: the content of messages when workers take them in. Workers send copies; the messages stay as they are.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::Value;
use trireme_runtime::TaskSet;
use trireme_runtime::service::{self, NatsArgs};
use trireme_runtime::tap::{TapAnswer, TapFilter, TappedMessage, tap};
use trireme_telemetry::TelemetryArgs;

use crate::broker::{self, CONNECT_TIMEOUT_SECS};
use crate::output::warn;
use crate::style::{Style, colours, harmless, paint};

/// How long workers have to say that they listen.
const HEAR_LIMIT: Duration = Duration::from_secs(3);

/// Flags of `trireme tap`.
#[derive(Args)]
#[command(mut_arg("nats_connect_timeout_secs", |flag| flag.default_value(CONNECT_TIMEOUT_SECS)))]
pub struct TapArgs {
    /// A model, or tokenizer, model or postprocess for all models of such workers, or all
    #[arg(long, value_name = "STAGE", default_value = "all")]
    stage: String,

    /// Only messages of this request: the client's id for it, or ours
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,

    /// End after this many messages
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,

    /// End after this many seconds
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,

    /// Print each message as a line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    nats: NatsArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// Shows messages up to the wanted number, or until a signal ends the process.
pub fn run(args: &TapArgs) -> ExitCode {
    service::block_on("tap", &args.telemetry, async {
        let shutdown = service::shutdown_signal()?;
        let name = service::process_name("tap");
        let Some(bus) = service::or_shutdown(&shutdown, broker::connect(&args.nats, &name)).await? else {
            return Ok(());
        };
        let tasks = TaskSet::new();
        let stage = Some(args.stage.clone()).filter(|stage| stage != "all");
        let filter = TapFilter { stage, request_id: args.request_id.clone() };
        let mut answers = tap(Arc::clone(&bus), &tasks, name, filter).await?;
        let end = args.seconds.map(|seconds| tokio::time::Instant::now() + Duration::from_secs(seconds));
        let outcome = tokio::select! {
            outcome = look(args, &mut answers) => outcome,
            () = until(end) => Ok(()),
            () = shutdown.cancelled() => Ok(()),
        };
        drop(answers);
        tasks.join().await;
        bus.close().await;
        outcome
    })
}

async fn until(end: Option<tokio::time::Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

async fn look(args: &TapArgs, answers: &mut tokio::sync::mpsc::Receiver<TapAnswer>) -> anyhow::Result<()> {
    let hear = tokio::time::sleep(HEAR_LIMIT);
    tokio::pin!(hear);
    let mut listening = BTreeSet::new();
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let answer = tokio::select! {
            answer = answers.recv() => answer,
            () = &mut hear, if listening.is_empty() => {
                bail!("no worker on this bus hosts '{}', or can take one more tap", args.stage);
            }
        };
        let Some(answer) = answer else { bail!("the message bus is gone") };
        if answer.listens && listening.insert(answer.worker.clone()) {
            eprintln!("listening at {}", harmless(&answer.worker));
        }
        let shown = answer.messages.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        left -= shown as u64;
        for message in &answer.messages[..shown] {
            let line = match args.json {
                true => serde_json::to_string(message)? + "\n",
                false => show(message, &answer.worker, colours()),
            };
            if crate::output::write_out(line.as_bytes()) != ExitCode::SUCCESS {
                return Ok(());
            }
        }
        if answer.left_out > 0 {
            warn(&format!("{} had {} more messages than it shows", harmless(&answer.worker), answer.left_out));
        }
    }
    Ok(())
}

/// A message as a person reads it.
fn show(message: &TappedMessage, worker: &str, colours: bool) -> String {
    let mut out = String::new();
    let model = paint(&message.model, Style::Strong, colours);
    let id = match message.client_id.as_str() {
        "" => harmless(&message.request_id),
        id => format!("{} ({})", harmless(id), harmless(&message.request_id)),
    };
    let attempt = if message.attempt > 1 { format!(", attempt {}", message.attempt) } else { String::new() };
    let _ = writeln!(
        out,
        "{model}  request {id}, step {}{attempt}, {} ms left, at {}",
        message.step,
        message.remaining_ms,
        harmless(worker)
    );
    let _ = writeln!(out, "  route   {}", harmless(&message.route.join(" → ")));
    for tensor in &message.tensors {
        let first = tensor["first"].as_array().map(Vec::as_slice).unwrap_or_default();
        let first: Vec<_> = first.iter().map(|value| harmless(&value.to_string())).collect();
        let name = paint(tensor["name"].as_str().unwrap_or_default(), Style::Good, colours);
        let datatype = tensor["datatype"].as_str().unwrap_or_default();
        let _ = writeln!(out, "  tensor  {name}  {datatype}{}  {}", shape(&tensor["shape"]), first.join(" "));
    }
    for hop in &message.ledger {
        let compute = hop.compute_input_us + hop.compute_infer_us + hop.compute_output_us;
        let model = harmless(&hop.model);
        let _ = writeln!(
            out,
            "  done    {model}  {compute} us, after {} us of queue and {} us of transit, batch {}",
            hop.queue_us, hop.transit_us, hop.batch_size
        );
    }
    out
}

fn shape(shape: &Value) -> String {
    let dimensions = shape.as_array().into_iter().flatten().map(Value::to_string);
    format!("[{}]", dimensions.collect::<Vec<_>>().join(", "))
}
