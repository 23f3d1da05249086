//! `trireme bulk`: a file of texts in, a file of vectors out, by a running server's bulk lane or by the pipeline in this process.
//!
//! Rows are in the order of the input. A run that was cut off is continued by the same command (`output`). Where the output is whole, the
//! same command tries the rows that have no vector again (`again`).

mod again;
mod ask;
mod errors;
mod input;
mod lock;
mod output;
mod place;
mod progress;
mod rows;
mod work;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use trireme_columns::Layout;
use trireme_model::OnnxRuntimeArgs;
use trireme_model_repository::{folder_name, is_model_folder};
use trireme_runtime::{FolderArgs, local_folder, service};
use trireme_telemetry::TelemetryArgs;

use crate::client::{Client, ServerArgs};
use crate::serve::{ServeArgs, Server};
use again::{Mended, Only};
use ask::{Embed, Own, Remote};
use errors::ErrorFile;
use input::{Columns, FileFormat, InputFile};
use lock::Lock;
use output::{Lines, Opened, Parts};
use place::{Place, check_writable};
use progress::Progress;
use rows::Totals;
use work::{Input, Output, Sending};

/// Texts of a request, and requests in flight, where a server embeds.
const SERVER: Sending = Sending { texts: 32, bytes: 1 << 20, window: 16 };

/// The same in one process, where a request costs little: the model's worker puts small ones of like length together.
const OWN: Sending = Sending { texts: 32, bytes: 2048, window: 64 };

/// How long a request may wait in this process, in milliseconds: no client waits for it.
const TIMEOUT_MS: &str = "--default-timeout-ms=3600000";

/// Flags of `trireme bulk`.
#[derive(Args)]
pub struct BulkArgs {
    /// File of texts, local or at an s3://, gs://, az:// or https:// URL. JSONL: a text in each line, as it is, as a JSON string, or as
    /// {"id": …, "text": …}. Parquet or Arrow: a text in each row
    #[arg(value_name = "IN")]
    input: String,

    /// File for the vectors, local or at an s3://, gs:// or az:// URL; the same command continues what an earlier one has begun, and tries
    /// the rows again that have no vector: OUT.errors.jsonl names them
    #[arg(value_name = "OUT")]
    output: String,

    /// Model that embeds: with --server its name there, otherwise a model folder or model repository, or its hf://, s3://, gs://, az:// or
    /// https:// URL
    #[arg(long, value_name = "MODEL")]
    model: String,

    /// Server that embeds; https:// in front for TLS. Without it the model runs in this process
    #[arg(long, value_name = "URL")]
    server: Option<String>,

    /// A header of the requests to --server, such as an API key; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE", requires = "server")]
    headers: Vec<String>,

    /// Seconds to wait for an answer of --server
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout_secs: u64,

    /// Format of files whose names do not end in .jsonl, .parquet, .arrow or .feather; jsonl by default
    #[arg(long, value_name = "FORMAT")]
    format: Option<FileFormat>,

    /// Column of texts in Parquet and Arrow
    #[arg(long, value_name = "NAME", default_value = "text")]
    text_column: String,

    /// Column of ids where IN is Parquet or Arrow and OUT is JSONL; by default `id`, or the numbers of the rows if there is none
    #[arg(long, value_name = "NAME")]
    id_column: Option<String>,

    /// Texts of a request; 32 at most by default
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    texts: Option<u64>,

    /// Requests in flight; by default 16 with --server and 64 without
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=1024))]
    window: Option<u64>,

    /// Prints a summary as JSON to standard output
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    choices: FolderArgs,

    #[command(flatten)]
    onnxruntime: OnnxRuntimeArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// The flags of the server in this process.
#[derive(clap::Parser)]
struct OwnServer {
    #[command(flatten)]
    serve: ServeArgs,
}

/// Embeds a file. A failure says what to do.
pub fn run(args: &BulkArgs) -> ExitCode {
    service::block_on("bulk", &args.telemetry, async {
        check_writable(&args.output)?;
        let _lock = Lock::take(&Place::of(&args.output, &Handle::current())?)?;
        let summary = match &args.server {
            Some(url) => {
                let server = ServerArgs::at(url, args.headers.clone(), args.timeout_secs);
                let remote = Remote { client: Client::new(&server)?, model: args.model.clone() };
                embed(args, &remote, SERVER)?
            }
            None => alone(args).await?,
        };
        summary.print(args)
    })
}

/// Embeds by the pipeline in this process, without a listener.
async fn alone(args: &BulkArgs) -> anyhow::Result<Summary> {
    let word = Path::new(&args.model);
    let folder = local_folder(word, None, &args.choices.choices()?).await?;
    ensure!(
        folder.is_dir(),
        "--model {0}: there is no such folder; if it is a model of a running server, name that by --server URL",
        args.model
    );
    let (name, server) = own_server(args, &folder)?;
    let server = Server::open(&server).await?;
    let outcome = match server.load().await {
        Ok(()) => {
            let own = Own { embedder: server.embedder(), model: name, runtime: Handle::current() };
            embed(args, &own, OWN)
        }
        Err(error) => Err(error),
    };
    server.drain().await;
    outcome
}

/// The model's name where the folder has only one, and the flags of a server that holds it.
fn own_server(args: &BulkArgs, folder: &Path) -> anyhow::Result<(Option<String>, ServeArgs)> {
    let name = is_model_folder(folder).then(|| folder_name(folder));
    let path = folder.display().to_string();
    let model = match &name {
        Some(name) => vec!["--model".to_owned(), format!("{name}={path}")],
        None => vec!["--model-repository".to_owned(), path],
    };
    let choices = args.choices.words();
    let ports = ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false", TIMEOUT_MS];
    let flags = ["trireme"].into_iter().chain(model.iter().chain(&choices).map(String::as_str)).chain(ports);
    let OwnServer { mut serve } = clap::Parser::try_parse_from(flags)?;
    serve.onnxruntime = args.onnxruntime.clone();
    Ok((name, serve))
}

/// The outcome of the rows.
struct Summary {
    /// Rows of the output; of those that were tried again where it was whole already.
    rows: u64,
    totals: Totals,
    /// Most tokens of a text, where texts were cut and it is known.
    most_tokens: Option<u64>,
    /// The file that names the rows without a vector.
    error_file: String,
}

/// Embeds all rows, on a thread that may block.
fn embed(args: &BulkArgs, embed: &dyn Embed, sending: Sending) -> anyhow::Result<Summary> {
    tokio::task::block_in_place(|| blocking(args, embed, sending))
}

fn blocking(args: &BulkArgs, embed: &dyn Embed, sending: Sending) -> anyhow::Result<Summary> {
    let runtime = Handle::current();
    let (source, target) = (Place::of(&args.input, &runtime)?, Place::of(&args.output, &runtime)?);
    let columns = Columns { text: args.text_column.clone(), id: args.id_column.clone() };
    let input = InputFile::open(&source, FileFormat::of(&args.input, args.format), &columns)?;
    let format = FileFormat::of(&args.output, args.format);
    let total = input.rows(&source)?;
    let width = ask::width(embed)?;
    let sending = Sending {
        texts: args.texts.map_or(sending.texts, |texts| texts as usize),
        window: args.window.map_or(sending.window, |window| window as usize),
        ..sending
    };
    let errors = ErrorFile::of(&target)?;
    let (mut output, mut rest, mut progress): (Box<dyn Output>, Box<dyn Input>, _) =
        match open(args, &input, target.clone(), format, width, total)? {
            Opened::Open(output, before, totals) => {
                let has_more = total.is_some_and(|total| before > total);
                ensure!(!has_more, "{} has {before} rows, more than {}", args.output, args.input);
                let rest = input.rest(before, &columns, format == FileFormat::Jsonl)?;
                (output, rest, Progress::new(total, before, totals))
            }
            Opened::Whole => {
                ensure!(
                    errors.exists()?,
                    "{target} is there already, and no row lacks a vector: remove it, or choose another OUT"
                );
                let rows = errors.rows()?;
                eprintln!("{target} is whole; tries its {} rows without a vector again", rows.len());
                let progress = Progress::new(Some(rows.len() as u64), 0, Totals::default());
                let rest = Only::of(input.rest(0, &columns, true)?, rows);
                (Box::new(Mended::open(target, format.columns(), width)?), Box::new(rest), progress)
            }
        };
    work::run(embed, rest.as_mut(), output.as_mut(), sending, width, &mut progress)?;
    let found = output.finish()?;
    progress.totals.errors = found;
    progress.print(true);
    let totals = Totals { took: progress.took(), ..progress.totals };
    let most_tokens = (totals.facts.cut > 0).then(|| embed.most_tokens()).flatten();
    Ok(Summary { rows: progress.rows(), totals, most_tokens, error_file: errors.to_string() })
}

/// How far the output is.
fn open(
    args: &BulkArgs,
    input: &InputFile,
    target: Place,
    format: FileFormat,
    width: usize,
    total: Option<u64>,
) -> anyhow::Result<Opened> {
    let layout = match (format.columns(), input) {
        (None, _) => None,
        (Some(format), InputFile::Lines(_)) => Some((format, Layout::of_ids(width)?)),
        (Some(format), InputFile::Table(table, _)) => {
            Some((format, Layout::of(table, width).with_context(|| args.input.clone())?))
        }
    };
    if let (None, Place::Local(path)) = (&layout, &target) {
        let (lines, before, totals) = Lines::open(path)?;
        // A file of errors is written when all rows are there.
        let is_whole = before > 0 && total == Some(before) && ErrorFile::of(&target)?.exists()?;
        return Ok(if is_whole { Opened::Whole } else { Opened::Open(Box::new(lines), before, totals) });
    }
    let job: Value = json!({
        "input": args.input.split('?').next(), "bytes": input.size(), "model": args.model, "width": width,
        "text_column": args.text_column, "id_column": args.id_column, "format": format!("{format:?}"),
    });
    Parts::open(target, layout, &job)
}

// === impl Summary ===

impl Summary {
    /// Tells it. Rows without a vector are an error.
    fn print(&self, args: &BulkArgs) -> anyhow::Result<()> {
        let Summary { rows, totals: Totals { errors, facts, took }, most_tokens, error_file } = self;
        if args.json {
            let error_file = (*errors > 0).then_some(error_file);
            let seconds = (took.as_secs_f64() * 1e3).round() / 1e3;
            let summary = json!({
                "texts": rows, "tokens": facts.tokens, "cut_texts": facts.cut, "most_tokens": most_tokens, "errors": errors,
                "seconds": seconds, "output": args.output, "error_file": error_file,
            });
            crate::output::write_out(format!("{summary}\n").as_bytes());
        } else {
            eprintln!(
                "{rows} texts, {} tokens, {} cut, {errors} errors, {:.1} s",
                facts.tokens,
                facts.cut,
                took.as_secs_f64()
            );
        }
        if facts.cut > 0 {
            let limit = most_tokens.map_or("the model takes".to_owned(), |most| format!("{most} tokens"));
            crate::output::warn(&format!(
                "{} of {rows} texts are longer than {limit} and were cut: the vectors are those of their beginnings",
                facts.cut
            ));
        }
        ensure!(
            *errors == 0,
            "{errors} of {rows} rows have no vector: {error_file} names them and the reasons; the same command tries them again"
        );
        Ok(())
    }
}
