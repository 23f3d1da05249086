//! `trireme bulk`: a file of texts in, a file of vectors out, by a running server's bulk lane or by the pipeline in this process.
//!
//! Rows are in the order of the input. A run that was cut off is continued by the same command (`output`). Where the output is whole, the
//! same command tries the rows that have no vector again (`again`). A file beside the output says what both are the same of (`job`).

mod again;
mod ask;
mod errors;
mod identity;
mod input;
mod job;
mod lock;
mod output;
mod place;
mod progress;
mod rows;
#[cfg(test)]
mod tests;
mod work;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use trireme_columns::Layout;
use trireme_gateway::Chunking;
use trireme_inference::AskedSpaces;
use trireme_model::OnnxRuntimeArgs;
use trireme_model_repository::{
    Choices, LongTexts, ModelFolder, PaddingSide, Repository, Task, folder_name, is_model_folder,
};
use trireme_runtime::{FolderArgs, local_folder, service};
use trireme_telemetry::TelemetryArgs;

use crate::client::{Client, ServerArgs};
use crate::serve::{ServeArgs, Server, own_args};
use again::{Mended, Only};
use ask::{Asker, Embed, Own, Remote};
use errors::ErrorFile;
use identity::Hasher;
use input::{Columns, FileFormat, InputFile};
use job::{Job, Left, Terms};
use lock::Lock;
use output::Parts;
use place::Place;
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
// The command itself says how far it is, and the start of its server is of no interest.
#[command(mut_arg("log_level", |flag| flag.default_value("warn")))]
pub struct BulkArgs {
    /// File of texts, local or at an s3://, gs://, az:// or https:// URL. JSONL: a text in each line, as it is, as a JSON string, or as
    /// {"id": …, "text": …}. Parquet or Arrow: a text in each row
    #[arg(value_name = "IN")]
    input: String,

    /// File for the vectors, local or at an s3://, gs:// or az:// URL. The same command continues what an earlier one has begun, and
    /// tries the rows again that have no vector: OUT.errors.jsonl names them. OUT.job.json says of which model and input the file is
    #[arg(id = "out", value_name = "OUT")]
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

    /// Space of the vectors, as the header `trireme-space` tells it; several with commas between them. A model of another space ends
    /// the command. Without it the space of the first vector holds for all
    #[arg(long, value_name = "SPACE", value_parser = spaces)]
    if_space: Option<String>,

    /// Format of files whose names do not end in .jsonl, .parquet, .arrow or .feather; jsonl by default
    #[arg(long, value_name = "FORMAT")]
    format: Option<FileFormat>,

    /// Column of texts in Parquet and Arrow
    #[arg(long, value_name = "NAME", default_value = "text")]
    text_column: String,

    /// Column of ids where IN is Parquet or Arrow and OUT is JSONL; by default `id`, or the numbers of the rows if there is none
    #[arg(long, value_name = "NAME")]
    id_column: Option<String>,

    /// Gives each window of a text that is longer than the model's longest row a vector and a row of OUT. `row` is the row of IN from 1, `window` the number
    /// of the window, `start` and `end` are its characters in the text
    #[arg(long)]
    chunk: bool,

    /// Most tokens of a window, special ones included; by default the model's longest row
    #[arg(long, value_name = "COUNT", requires = "chunk", value_parser = clap::value_parser!(u64).range(1..))]
    chunk_tokens: Option<u64>,

    /// Tokens that two neighbouring windows share, at most; by default a quarter of a window
    #[arg(long, value_name = "COUNT", requires = "chunk")]
    chunk_overlap: Option<u64>,

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

/// Spaces as the header `If-Space` has them.
fn spaces(text: &str) -> Result<String, String> {
    text.parse::<AskedSpaces>().map(|_| text.to_owned()).map_err(|error| error.message)
}

// === impl BulkArgs ===

impl BulkArgs {
    /// How texts become windows, where each window gets a vector.
    fn chunking(&self) -> Option<Chunking> {
        self.chunk.then_some(Chunking { max_tokens: self.chunk_tokens, overlap: self.chunk_overlap })
    }

    /// The same as a term of a job.
    fn chunk_term(&self) -> Value {
        let term = |Chunking { max_tokens, overlap }| json!({"tokens": max_tokens, "overlap": overlap});
        self.chunking().map_or(Value::Null, term)
    }
}

/// Embeds a file. A failure says what to do.
pub fn run(args: &BulkArgs) -> ExitCode {
    service::block_on("bulk", &args.telemetry, async {
        let (run, _lock) = tokio::task::block_in_place(|| Run::open(args))?;
        let summary = match &args.server {
            Some(url) => {
                let server = ServerArgs::at(url, args.headers.clone(), args.timeout_secs);
                let (client, model) = (Client::new(&server)?, args.model.clone());
                let remote = Remote { client, model, chunking: args.chunking() };
                run.embed(&remote, SERVER, &Model::Named(&args.model))?
            }
            None => run.alone().await?,
        };
        summary.print(args)
    })
}

/// A run, before a model is asked.
struct Run<'a> {
    args: &'a BulkArgs,
    source: Place,
    target: Place,
}

/// The model that embeds.
enum Model<'a> {
    /// The model of a server, by its name there.
    Named(&'a str),
    /// The model of a model folder or of a model repository.
    Local { folder: PathBuf, name: Option<String> },
}

// === impl Model ===

impl Model<'_> {
    fn name(&self) -> Option<&str> {
        match self {
            Model::Named(name) => Some(name),
            Model::Local { name, .. } => name.as_deref(),
        }
    }

    /// The choices of the flags for a model folder, and a digest of the files.
    fn choices_and_content(&self, args: &FolderArgs) -> anyhow::Result<(Value, Option<String>)> {
        let Model::Local { folder, name } = self else { return Ok((Value::Null, None)) };
        let cannot = || format!("cannot read {}", folder.display());
        if let Some(name) = name {
            let all = args.choices()?;
            let digest = ModelFolder::read(folder, Some(name), &all)?.digest().with_context(cannot)?;
            // Accelerators give the outputs of the plain provider, and names change no vector.
            let Choices {
                precision, graph, output, task, pooling, normalize, padding_side, long_texts, accept, ..
            } = all.of(name);
            let choices = json!({
                "precision": precision.name(), "graph": graph, "output": output, "task": task.map(Task::name), "pooling": pooling, "normalize": normalize,
                "padding_side": padding_side.map(PaddingSide::name), "long_texts": long_texts.map(LongTexts::name), "accept": accept,
            });
            return Ok((choices, Some(digest)));
        }
        let mut hasher = Hasher::new();
        for model in Repository::read_what_is_there(std::slice::from_ref(folder), &[]).models() {
            for &version in &model.versions {
                // The packages of a model.py are not looked at: nothing is loaded yet.
                let digest = model.digest(version, "").with_context(cannot)?;
                hasher.add(format!("{}\n{version}\n{digest}\n", model.name).as_bytes());
            }
        }
        Ok((Value::Null, Some(hasher.finish().to_string())))
    }
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
    let flags = model.iter().chain(&choices).map(String::as_str).chain(ports);
    Ok((name, own_args(flags, &args.onnxruntime)?))
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

// === impl Run ===

impl<'a> Run<'a> {
    /// Checks the files before a model is loaded, and takes the lock of the output.
    fn open(args: &'a BulkArgs) -> anyhow::Result<(Run<'a>, Option<Lock>)> {
        let runtime = Handle::current();
        let (source, target) = (Place::of(&args.input, &runtime)?, Place::of_output(&args.output, &runtime)?);
        ensure!(!target.is_folder(), "{}: it is a folder; name a file in it", args.output);
        source.open()?;
        for own in [target.clone(), errors::place(&target)?, job::place(&target)?] {
            ensure!(!source.is_same(&own), "IN and OUT are one file ({source}): choose another OUT");
        }
        // An output that no job knows is refused before anything is written beside it.
        Left::find(&target)?;
        let lock = Lock::take(&target, &job::folder(&target)?)?;
        Ok((Run { args, source, target }, lock))
    }

    /// Embeds by the pipeline in this process, without a listener.
    async fn alone(&self) -> anyhow::Result<Summary> {
        let args = self.args;
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
                let (embedder, runtime) = (server.embedder(), Handle::current());
                let own = Own { embedder, model: name.clone(), chunking: args.chunking(), runtime };
                self.embed(&own, OWN, &Model::Local { folder, name })
            }
            Err(error) => Err(error),
        };
        server.drain().await;
        outcome
    }

    /// Embeds all rows, on a thread that may block.
    fn embed(&self, embed: &dyn Embed, sending: Sending, model: &Model<'_>) -> anyhow::Result<Summary> {
        tokio::task::block_in_place(|| self.blocking(embed, sending, model))
    }

    fn blocking(&self, embed: &dyn Embed, sending: Sending, model: &Model<'_>) -> anyhow::Result<Summary> {
        let Run { args, source, target } = self;
        let columns = Columns { text: args.text_column.clone(), id: args.id_column.clone() };
        let input = InputFile::open(source, FileFormat::of(&args.input, args.format), &columns)?;
        let format = FileFormat::of(&args.output, args.format);
        let mut asker = Asker { embed, if_space: args.if_space.clone() };
        let (probe, space) = ask::probe(&asker)?;
        // The output is of one space, also where the model changes on the way, or between two runs.
        asker.if_space = space.clone().or(asker.if_space);
        let width = probe.len();
        let (choices, content) = model.choices_and_content(&args.choices)?;
        let terms = Terms {
            format: format!("{format:?}").to_lowercase(),
            model: model.name().map(str::to_owned),
            choices,
            chunk: args.chunk_term(),
            probe: if content.is_none() { probe } else { Vec::new() },
            content,
            space,
            width,
            text_column: columns.text.clone(),
            id_column: columns.id.clone(),
            input: input.identity()?,
        };
        let (job, is_whole) = Job::open(target, Left::find(target)?, &terms)?;
        let sending = Sending {
            texts: args.texts.map_or(sending.texts, |texts| texts as usize),
            window: args.window.map_or(sending.window, |window| window as usize),
            ..sending
        };
        let errors = ErrorFile::of(target, &job.folder)?;
        let (mut output, mut rest, mut progress): (Box<dyn Output>, Box<dyn Input>, _) = if is_whole {
            ensure!(
                errors.exists()?,
                "{target} is there already, and no row lacks a vector: remove it, or choose another OUT"
            );
            let rows = errors.rows()?;
            eprintln!("{target} is whole; tries its {} rows without a vector again", rows.len());
            let progress = Progress::new(Some(rows.len() as u64), 0, Totals::default());
            let rest = Only::of(input.rest(0, &columns, true)?, rows);
            (
                Box::new(Mended::open(target.clone(), format.columns(), width, args.chunk, job)?),
                Box::new(rest),
                progress,
            )
        } else {
            let layout = match (format.columns(), &input.table) {
                (None, _) => None,
                (Some(format), None) => Some((format, Layout::of_ids(width)?)),
                (Some(format), Some(table)) => {
                    Some((format, Layout::of(table, width).with_context(|| args.input.clone())?))
                }
            };
            let layout = match layout {
                Some((format, layout)) if args.chunk => {
                    Some((format, layout.with_windows().with_context(|| args.input.clone())?))
                }
                layout => layout,
            };
            let (parts, before, totals) = Parts::open(target.clone(), layout, args.chunk, job)?;
            let rest = input.rest(before, &columns, format == FileFormat::Jsonl)?;
            (Box::new(parts), rest, Progress::new(input.rows()?, before, totals))
        };
        work::run(&asker, rest.as_mut(), output.as_mut(), sending, width, &mut progress)?;
        let found = output.finish()?;
        progress.totals.errors = found;
        progress.print(true);
        let totals = Totals { took: progress.took(), ..progress.totals };
        let most_tokens = (totals.facts.cut > 0).then(|| embed.most_tokens()).flatten();
        Ok(Summary { rows: progress.rows(), totals, most_tokens, error_file: errors.to_string() })
    }
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
