//! `trireme export`: makes a model folder's missing ONNX file with optimum-onnx or torch in the user's Python, and compares the server's
//! answers with those of the model's own library. Exit code 0: the file exists and its answers are right; 1: its answers are wrong, or
//! the export failed; 2: the file exists, but the answers could not be compared.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use serde_json::{Value, json};
use trireme_model::OnnxRuntimeArgs;
use trireme_model_repository::{Export, Task, is_model_folder};
use trireme_runtime::service;
use trireme_telemetry::TelemetryArgs;

use crate::verify::{self, VerifyArgs};

/// The script that makes the file.
const SCRIPT: &str = include_str!("export.py");

/// The exit code where the file could not be compared.
const NOT_COMPARED: u8 = 2;

/// The ending of a file that is served wrong; no process takes it for an ONNX file.
const REJECTED: &str = "rejected";

/// Flags of `trireme export`.
#[derive(Args)]
pub struct ExportArgs {
    /// The model folder, with its weights as model.safetensors or pytorch_model.bin; the file is written to onnx/ in it
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// A Python that has optimum-onnx, or torch and transformers; and for the comparison the model's library
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,

    /// The lowest likeness to the library's answers that is good enough, as in `trireme verify`
    #[arg(long, value_name = "NUMBER", default_value_t = 0.9999)]
    min_cosine: f64,

    /// Do not compare the answers with those of the model's library
    #[arg(long)]
    skip_verify: bool,

    #[command(flatten)]
    onnxruntime: OnnxRuntimeArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// Exports, verifies, and prints both.
pub fn run(args: &ExportArgs) -> ExitCode {
    let mut code = ExitCode::FAILURE;
    let ran = service::block_on("export", &args.telemetry, async {
        code = export(args).await?;
        Ok(())
    });
    if ran == ExitCode::SUCCESS { code } else { ran }
}

async fn export(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let folder = &args.folder;
    ensure!(
        !folder.to_string_lossy().contains("://"),
        "trireme export writes into a folder of this machine: download {0} first (hf download ORG/NAME --local-dir FOLDER), then: \
         trireme export FOLDER",
        folder.display()
    );
    ensure!(folder.is_dir(), "there is no folder '{}'", folder.display());
    ensure!(
        is_model_folder(folder),
        "'{}' is no model folder: it has neither config.json nor modules.json",
        folder.display()
    );
    let plan = Export::of(folder)?;
    let (files, by) = make(args, &plan)?;
    for file in &files {
        let megabytes = fs::metadata(file).map_or(0.0, |found| found.len() as f64 / 1e6);
        print(&format!("wrote {} ({megabytes:.1} MB), made by {by}\n", file.display()));
    }
    if args.skip_verify {
        return Ok(ExitCode::SUCCESS);
    }
    if plan.task == Task::Generate {
        print("texts that a model generates are not compared: look at some before you serve them\n");
        return Ok(ExitCode::SUCCESS);
    }
    let compared = VerifyArgs::of_folder(folder, &args.python, args.min_cosine, &args.onnxruntime)?;
    match verify::verify(&compared).await {
        Ok((report, true)) => Ok(crate::output::write_out(report.as_bytes())),
        Ok((report, false)) => {
            print(&report);
            let kept = reject(&plan, &files)?;
            Ok(service::fail(&anyhow!("the exported model is not served: it is kept as {}", kept.display())))
        }
        Err(error) => {
            service::fail(&error.context("the exported file is there, but was not compared"));
            Ok(ExitCode::from(NOT_COMPARED))
        }
    }
}

fn print(text: &str) {
    crate::output::write_out(text.as_bytes());
}

/// Makes the files beside their place, moves them there, and returns them with the exporter's name. The graph comes last, so that no
/// process finds it without its weights.
fn make(args: &ExportArgs, plan: &Export) -> anyhow::Result<(Vec<PathBuf>, String)> {
    let work = tempfile::Builder::new().prefix(".export-").tempdir_in(&plan.folder);
    let work = work.with_context(|| format!("cannot write into {}", plan.folder.display()))?;
    let question = json!({ "folder": plan.folder, "task": plan.export_task, "output": work.path() });
    let answer = crate::python::ask(&args.python, SCRIPT, &question, "could not export the model")?;
    let answer: Value = serde_json::from_str(answer.trim()).context("the export script wrote no JSON")?;
    if let Some(reason) = answer["refused"].as_str() {
        bail!("no ONNX file was made: {reason}");
    }
    ensure!(
        work.path().join(plan.made).is_file(),
        "the export made no {}, but: {}",
        plan.made,
        names(work.path()).join(", ")
    );
    fs::create_dir_all(&plan.output).with_context(|| format!("cannot make {}", plan.output.display()))?;
    let mut made = names(work.path());
    made.sort_by_key(|name| name.ends_with(".onnx"));
    let mut files = Vec::new();
    for name in made {
        let target = plan.output.join(&name);
        fs::rename(work.path().join(&name), &target).with_context(|| format!("cannot write {}", target.display()))?;
        files.push(target);
    }
    Ok((files, answer["by"].as_str().unwrap_or("an exporter without a name").to_owned()))
}

/// Takes the graph out of the way of servers. The name of the file that is kept.
fn reject(plan: &Export, files: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let graph = files.iter().find(|file| file.file_name().is_some_and(|name| name == plan.made));
    let graph = graph.context("the exported graph is gone")?;
    let kept = PathBuf::from(format!("{}.{REJECTED}", graph.display()));
    fs::rename(graph, &kept).with_context(|| format!("cannot rename {}", graph.display()))?;
    Ok(kept)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}
