//! `trireme dead`: looks at messages that were given up, and sends them again.

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use trireme_bus::{Bus, Reply, StoredLetter, WorkMessage};
use trireme_inference::{Tensor, UnixMicros};
use trireme_runtime::service::{self, NatsArgs};

use crate::broker::{self, CONNECT_TIMEOUT_SECS};
use crate::output::write_out;
use crate::style::{age, cell, colours, harmless, table};

/// Flags of `trireme dead`.
#[derive(Args)]
pub struct DeadArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List the messages that were given up, oldest first
    List(ListArgs),
    /// Show a message: its stage, attempts, reason and tensors
    Show(ShowArgs),
    /// Send a message again, to the step that failed, under a new deadline; it is removed once its queue has it
    Replay(ReplayArgs),
}

/// Flags of `trireme dead list`.
#[derive(Args)]
#[command(mut_arg("nats_connect_timeout_secs", |flag| flag.default_value(CONNECT_TIMEOUT_SECS)))]
struct ListArgs {
    /// Only those of this model's queues
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Print a JSON object a line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    nats: NatsArgs,
}

/// Flags of `trireme dead show`.
#[derive(Args)]
#[command(mut_arg("nats_connect_timeout_secs", |flag| flag.default_value(CONNECT_TIMEOUT_SECS)))]
struct ShowArgs {
    /// Its number, from `trireme dead list`
    #[arg(value_name = "NUMBER")]
    number: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    nats: NatsArgs,
}

/// Flags of `trireme dead replay`.
#[derive(Args)]
#[command(mut_arg("nats_connect_timeout_secs", |flag| flag.default_value(CONNECT_TIMEOUT_SECS)))]
struct ReplayArgs {
    /// Its number, from `trireme dead list`
    #[arg(value_name = "NUMBER")]
    number: u64,

    /// Wait for the answer and print it; without this it goes nowhere
    #[arg(long)]
    wait: bool,

    /// Milliseconds that the request may take
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 60_000)]
    timeout_ms: u64,

    /// Keep it among the messages that were given up
    #[arg(long)]
    keep: bool,

    /// Print the answer as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    nats: NatsArgs,
}

/// Runs `trireme dead`. An error as answer also fails the process.
pub fn run(args: &DeadArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        runtime.block_on(async {
            match &args.action {
                Action::List(args) => list(args).await,
                Action::Show(args) => show(args).await,
                Action::Replay(args) => replay(args).await,
            }
        })
    });
    match outcome {
        Ok(text) => write_out(text.as_bytes()),
        Err(error) => service::fail(&error),
    }
}

async fn connect(nats: &NatsArgs) -> anyhow::Result<(String, Arc<dyn Bus>)> {
    let name = service::process_name("dead");
    let bus = broker::connect(nats, &name).await?;
    Ok((name, bus))
}

async fn list(args: &ListArgs) -> anyhow::Result<String> {
    let (_, bus) = connect(&args.nats).await?;
    let (mut last, mut json, mut lines) = (0, String::new(), Vec::new());
    while let Some(stored) = bus.dead_letter_after(last).await? {
        last = stored.number;
        let queue = stored.letter.message.queue();
        if args.model.as_ref().is_some_and(|name| queue.is_none_or(|queue| queue.name != *name)) {
            continue;
        }
        writeln!(json, "{}", describe(&stored))?;
        lines.push(vec![
            cell(stored.number),
            cell(age_of(&stored)),
            cell(stage(&stored)),
            cell(stored.letter.attempts),
            cell(stored.letter.message.job.as_deref().unwrap_or("-")),
            cell(&stored.letter.reason),
        ]);
    }
    if args.json {
        return Ok(json);
    }
    let mut text = String::new();
    table(&mut text, &[">number", ">age", "stage", ">attempts", "job", "reason"], &lines, colours());
    Ok(text)
}

async fn show(args: &ShowArgs) -> anyhow::Result<String> {
    let (_, bus) = connect(&args.nats).await?;
    let stored = find(bus.as_ref(), args.number).await?;
    if args.json {
        return Ok(format!("{}\n", describe(&stored)));
    }
    let StoredLetter { letter, .. } = &stored;
    let message = &letter.message;
    let steps: Vec<_> = message.route.remaining().iter().map(|step| step.model.to_string()).collect();
    let mut lines = vec![
        ("number", stored.number.to_string()),
        ("age", age_of(&stored)),
        ("stage", stage(&stored)),
        ("worker", letter.reason.worker.as_deref().unwrap_or("unknown").to_owned()),
        ("attempts", letter.attempts.to_string()),
        ("reason", letter.reason.to_string()),
        ("model", message.route.model().to_string()),
        ("job", message.job.clone().unwrap_or_else(|| "none".into()).to_string()),
        ("request", format!("{} (client's id '{}')", message.request_id, message.client_id)),
        ("steps", steps.join(", ")),
    ];
    lines.extend(message.tensors.iter().map(|tensor| {
        let (name, datatype, shape) = (tensor.name(), tensor.datatype(), tensor.shape());
        ("tensor", format!("{name} {datatype} {shape} ({} bytes)", tensor.data().len()))
    }));
    lines.extend(message.ledger.0.iter().map(|hop| ("done", format!("{} by {}", hop.model, hop.worker))));
    Ok(lines.iter().map(|(name, value)| format!("{name:<10}{}\n", harmless(value))).collect())
}

async fn replay(args: &ReplayArgs) -> anyhow::Result<String> {
    let (gateway, bus) = connect(&args.nats).await?;
    let stored = find(bus.as_ref(), args.number).await?;
    let timeout = Duration::from_millis(args.timeout_ms);
    let now = UnixMicros::now();
    // The request gets a new name: under its old one the broker might take it for a repetition. It is for the content that is
    // served now: people send a message again after they have mended the model.
    let message = WorkMessage {
        request_id: format!("{gateway}-{}", args.number).into(),
        route: stored.letter.message.route.clone().for_contents(|_| None),
        deadline: now.after(timeout),
        sent_at: now,
        gateway: gateway.into(),
        ..stored.letter.message
    };
    let inbox = bus.open_inbox(&message.gateway).await?;
    let mut replies = inbox.expect(&message);
    bus.publish(&message).await?;
    if !args.keep {
        bus.remove_dead_letter(args.number).await?;
    }
    if !args.wait {
        bus.close().await;
        return Ok(format!("sent again as request {}\n", message.request_id));
    }
    let waited = tokio::time::timeout(timeout, replies.next()).await;
    let reply = waited.map_err(|_| anyhow::anyhow!("no answer within {} ms", args.timeout_ms))?;
    outcome(reply, args.json)
}

/// The answer as text; an error as answer is an error of the command, and is printed as JSON, too, where that is wanted.
fn outcome(reply: Reply, as_json: bool) -> anyhow::Result<String> {
    let output = match reply.outcome {
        Ok(output) => output,
        Err(error) => {
            if as_json {
                write_out(format!("{}\n", json!({"error": error})).as_bytes());
            }
            let stage = error.stage.as_deref().unwrap_or("unknown");
            bail!("it failed again, at {stage}: {error}");
        }
    };
    if as_json {
        return Ok(format!("{}\n", json!({"outputs": shapes(&output.tensors), "ledger": reply.ledger})));
    }
    let line = |tensor: &Tensor| format!("{} {} {}\n", tensor.name(), tensor.datatype(), tensor.shape());
    Ok(output.tensors.iter().map(line).collect())
}

async fn find(bus: &dyn Bus, number: u64) -> anyhow::Result<StoredLetter> {
    let found = bus.dead_letter_after(number.saturating_sub(1)).await?;
    found
        .filter(|stored| stored.number == number)
        .with_context(|| format!("there is no dead letter of number {number}"))
}

/// The step that failed: the first of the remaining ones.
fn stage(stored: &StoredLetter) -> String {
    stored.letter.message.queue().map_or_else(|| "none".to_owned(), ToString::to_string)
}

fn describe(stored: &StoredLetter) -> Value {
    let StoredLetter { number, at, letter } = stored;
    let message = &letter.message;
    json!({
        "number": number,
        "at": at,
        "age_seconds": UnixMicros::now().since(*at).as_secs(),
        "stage": stage(stored),
        "worker": letter.reason.worker,
        "attempts": letter.attempts,
        "code": letter.reason.code,
        "reason": letter.reason.message,
        "model": message.route.model(),
        "request": message.request_id,
        "client_id": message.client_id,
        "job": message.job,
        "steps": message.route.remaining(),
        "tensors": shapes(&message.tensors),
        "ledger": message.ledger,
    })
}

fn shapes(tensors: &[Tensor]) -> Vec<Value> {
    let shape = |tensor: &Tensor| {
        json!({
            "name": tensor.name(),
            "datatype": tensor.datatype(),
            "shape": tensor.shape(),
            "bytes": tensor.data().len(),
        })
    };
    tensors.iter().map(shape).collect()
}

fn age_of(stored: &StoredLetter) -> String {
    age(UnixMicros::now().since(stored.at).as_secs_f64())
}
