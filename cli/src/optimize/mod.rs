//! `trireme optimize`: a variant of a folder's ONNX file with 8-bit weights, made by ONNX Runtime's own tools in the user's Python.
//! Matrices that cost fidelity are left out until the answers hold the bar; speed is measured beside the original's in the same run, each
//! model with the provider that is chosen for it on this processor.
//! Exit code 0: a variant was written; 1: none holds the bar.
//!
//! Answers and speed are those of the served pipeline ([`stand`]); which matrices to leave out is [`search`].

mod quantizer;
mod search;
mod stand;
mod trial;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::json;
use trireme_model::{OnnxRuntimeArgs, processor};
use trireme_model_repository::{FolderChoices, ModelFolder, TemporaryFolder, is_model_folder};
use trireme_runtime::service;
use trireme_telemetry::TelemetryArgs;

use self::quantizer::Quantizer;
use self::stand::{EXACT, Stand};
use self::trial::{Bars, FILE, Measured, Trial, Variant};
use crate::style::{Style, cell, colours, paint, table};
use crate::verify::texts;

/// Flags of `trireme optimize`.
#[derive(Args)]
pub struct OptimizeArgs {
    /// The model folder; the variant is written beside its ONNX file
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// A Python that has onnxruntime and onnx
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,

    /// Texts like those that will be served, one a line, plain or as JSON objects with a `text`; some hundred are better than the 24
    /// that are built in
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,

    /// The lowest likeness to the original's answers: a cosine, 1 less the difference of scores, or the share of equal entities
    #[arg(long, value_name = "NUMBER", default_value_t = 0.99)]
    min_cosine: f64,

    /// The largest difference of the scores of equal entities
    #[arg(long, value_name = "NUMBER", default_value_t = 0.05)]
    max_score_difference: f64,

    /// The lowest speed, in texts per second of the original, of a variant that is written
    #[arg(long, value_name = "NUMBER", default_value_t = 1.0)]
    min_speedup: f64,

    /// Requests in flight while the speed is measured
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    concurrency: usize,

    /// Rounds in which the original and the variants are measured in turn
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    rounds: usize,

    /// Seconds of each measurement in a round
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0)]
    seconds: f64,

    /// Write over a variant that is there
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    onnxruntime: OnnxRuntimeArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

// === impl OptimizeArgs ===

impl OptimizeArgs {
    fn bars(&self) -> Bars {
        Bars { likeness: self.min_cosine, score_difference: self.max_score_difference, speedup: self.min_speedup }
    }
}

/// Searches, measures, writes and prints.
pub fn run(args: &OptimizeArgs) -> ExitCode {
    let mut code = ExitCode::FAILURE;
    let ran = service::block_on("optimize", &args.telemetry, async {
        let (text, written) = optimize(args).await?;
        let printed = crate::output::write_out(text.as_bytes());
        code = if written { printed } else { ExitCode::FAILURE };
        Ok(())
    });
    if ran == ExitCode::SUCCESS { code } else { ran }
}

async fn optimize(args: &OptimizeArgs) -> anyhow::Result<(String, bool)> {
    let path = &args.folder;
    ensure!(path.is_dir(), "there is no folder '{}'", path.display());
    ensure!(
        is_model_folder(path),
        "'{}' is no model folder: it has neither config.json nor an ONNX file",
        path.display()
    );
    let folder = ModelFolder::read(path, None, &FolderChoices::default())?;
    ensure!(
        !folder.description.needs_labels(),
        "'{}' is a model of spans: its requests name labels, and optimize sends texts without labels. Quantize the graph with \
         onnxruntime.quantization, and serve the file with --precision int8",
        path.display()
    );
    let graph = folder
        .description
        .graph()
        .context("the model runs without a single ONNX file: there is nothing to optimize")?;
    let graph = path.join(graph);
    let target = graph.with_file_name(FILE);
    ensure!(target != graph, "{} has 8-bit weights: optimize the folder of the original", graph.display());
    ensure!(args.force || !target.exists(), "{} is there already: remove it, or give --force", target.display());
    let texts = match &args.texts {
        Some(file) => crate::bench::requests::read_lines(Some(file))?.into_iter().map(|line| line.text).collect(),
        None => texts::built_in(),
    };
    let work = TemporaryFolder::new("optimize")?;
    let mut quantizer = Quantizer::open(&args.python, &graph, work.path())?;
    ensure!(
        !quantizer.matrices.is_empty(),
        "{} has no matrices with fixed weights: there is nothing to quantize",
        graph.display()
    );
    let (stand, server) = Stand::start(folder, &args.onnxruntime).await?;
    let searching = async {
        let (bars, work) = (args.bars(), work.path().to_owned());
        let blocking = move || {
            let found = Trial::new(&stand, texts, bars, work)?.variants(&mut quantizer)?;
            anyhow::Ok((found, stand, quantizer))
        };
        let ((variants, texts), stand, quantizer) = tokio::task::spawn_blocking(blocking).await??;
        let models: Vec<String> =
            std::iter::once(EXACT.to_owned()).chain(variants.iter().map(|variant| variant.model.clone())).collect();
        let each = Duration::from_secs_f64(args.seconds);
        let rates = stand.rates(&models, &texts, args.concurrency, args.rounds, each).await?;
        anyhow::Ok((trial::measured(variants, &rates), quantizer, texts.len()))
    };
    let searched = searching.await;
    server.drain().await;
    let (mut measured, mut quantizer, texts) = searched?;
    let chosen = measured.iter().enumerate().filter(|(_, found)| found.holds(&args.bars()));
    let chosen = chosen.max_by(|(_, a), (_, b)| a.speedup.total_cmp(&b.speedup)).map(|(index, _)| index);
    let processor = processor();
    let mut out = report(args, &graph, &measured, chosen);
    out.push_str(&format!("{}\n", scope(&processor)));
    let Some(chosen) = chosen else {
        let sentence = format!("no variant was written, by {texts} texts: {}", trial::failure(&measured, &args.bars()));
        out.push_str(&format!("{}\n", paint(&sentence, Style::Bad, colours())));
        return Ok((out, false));
    };
    let Measured { variant, speedup, .. } = measured.swap_remove(chosen);
    let figures = format!(
        "{}: {} over {texts} texts, {speedup:.2} times the texts/s on {processor}, by {}",
        variant.name,
        variant.fidelity.words(),
        quantizer.by
    );
    put(&mut quantizer, &variant, &graph, &target, &figures)?;
    let sentence = format!("wrote {} ({figures})", target.display());
    out.push_str(&format!("{}\n", paint(&sentence, Style::Good, colours())));
    out.push_str(&format!("serve it: trireme serve {} --precision int8\n", path.display()));
    Ok((out, true))
}

/// The processors for which the figures hold.
fn scope(processor: &str) -> String {
    format!(
        "texts/s on this processor, {processor}: measured, each model with the fastest provider that is installed. On other processors: not \
         measured; run optimize there"
    )
}

/// One table of the original and its variants.
fn report(args: &OptimizeArgs, graph: &Path, measured: &[Measured], chosen: Option<usize>) -> String {
    let size = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let first = measured.first();
    let mut lines = vec![vec![
        cell(format!("original, {}", graph.file_name().map_or("".into(), |name| name.to_string_lossy()))),
        cell(size(trial::bytes_beside(graph))),
        cell(first.map_or("".to_owned(), |found| format!("{:.1}", found.original))),
        cell("1.00"),
        cell(""),
        cell(""),
        cell(""),
    ]];
    lines.extend(measured.iter().enumerate().map(|(index, found)| {
        let Variant { name, fidelity, bytes, .. } = &found.variant;
        let style = if fidelity.holds(&args.bars()) { Style::Plain } else { Style::Bad };
        let last = match (fidelity.score_difference, fidelity.agreement) {
            (Some(difference), _) => format!("{difference:.4}"),
            (None, Some(share)) => format!("{:.1} %", share * 100.0),
            (None, None) => String::new(),
        };
        vec![
            (name.clone(), if chosen == Some(index) { Style::Good } else { Style::Plain }),
            cell(size(*bytes)),
            cell(format!("{:.1}", found.rate)),
            cell(format!("{:.2}", found.speedup)),
            (format!("{:.4}", fidelity.lowest), style),
            cell(format!("{:.4}", fidelity.mean)),
            cell(last),
        ]
    }));
    let mut out = String::new();
    let entities = first.is_some_and(|found| found.variant.fidelity.score_difference.is_some());
    let (lowest, last) = if entities { (">equal", ">scores off by") } else { (">lowest", ">top 10") };
    let heading = ["variant", ">size", ">texts/s", ">times", lowest, ">mean", last];
    table(&mut out, &heading, &lines, colours());
    out
}

/// Signs the variant and puts it beside the original; its graph comes last, so that no process finds it without its weights.
fn put(quantizer: &mut Quantizer, variant: &Variant, graph: &Path, target: &Path, figures: &str) -> anyhow::Result<()> {
    let origin = graph.file_name().map(|name| name.to_string_lossy().into_owned());
    let bytes = std::fs::metadata(graph)?.len().to_string();
    let made = variant.folder.join(FILE);
    let notes = json!({ "trireme.origin": origin, "trireme.origin_bytes": bytes, "trireme.figures": figures });
    quantizer.sign(&made, &notes)?;
    let place = target.parent().context("the file lies in a folder")?;
    let mut files: Vec<PathBuf> = std::fs::read_dir(&variant.folder)?.flatten().map(|entry| entry.path()).collect();
    files.sort_by_key(|file| *file == made);
    for file in files {
        let name = file.file_name().context("a file has a name")?;
        let arriving = place.join(format!(".{}.part", name.to_string_lossy()));
        std::fs::copy(&file, &arriving).with_context(|| format!("cannot write {}", arriving.display()))?;
        std::fs::rename(&arriving, place.join(name))
            .with_context(|| format!("cannot write into {}", place.display()))?;
    }
    Ok(())
}
