//! The ONNX file of a model folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow, ensure};
use serde_json::json;
use trireme_model_repository::{Export, FolderChoices, folder_name};
use trireme_runtime::service;

use super::files::{NOT_COMPARED, ask, exporter, names, print, print_files, put, reject};
use super::options::ExportArgs;
use super::purpose::plan;
use crate::verify::{self, NoAnswer, VerifyArgs};

/// The script that makes the file.
const SCRIPT: &str = include_str!("export.py");

/// Makes the file, and verifies it.
pub async fn export(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let folder = &args.folder;
    let mut choices = FolderChoices::default();
    choices.add("task", args.task.as_slice()).map_err(anyhow::Error::msg)?;
    let (plan, choices) = plan(folder, &choices.of(&folder_name(folder)))?;
    let (files, by) = make(&args.python, &plan)?;
    print_files(&files, &by);
    if args.skip_verify {
        return Ok(ExitCode::SUCCESS);
    }
    let compared = VerifyArgs::of_folder(folder, &args.python, args.min_cosine, &args.onnxruntime)?;
    let compared = compared.for_task(choices.task.map(|task| task.name().to_owned()));
    match verify::verify(&compared).await {
        Ok(found) if found.passed => Ok(crate::output::write_out(found.text.as_bytes())),
        Err(error) if error.is::<NoAnswer>() => {
            service::fail(&error);
            rejected(&files, &plan)
        }
        Ok(found) => {
            print(&found.text);
            rejected(&files, &plan)
        }
        Err(error) => {
            service::fail(&error.context("the exported file is there, but was not compared"));
            Ok(ExitCode::from(NOT_COMPARED))
        }
    }
}

/// Puts the exported graph aside.
fn rejected(files: &[PathBuf], plan: &Export) -> anyhow::Result<ExitCode> {
    let graph = files.iter().find(|file| file.file_name().is_some_and(|name| name == plan.made));
    let kept = reject(graph.context("the exported graph is gone")?)?;
    Ok(service::fail(&anyhow!(
        "the exported model is not served: it is kept as {}; serve the folder by a model.py that loads it with its own library \
         (docs/python.md)",
        kept.display()
    )))
}

/// Makes the files beside their place, moves them there, and returns them with the exporter's name.
pub fn make(python: &Path, plan: &Export) -> anyhow::Result<(Vec<PathBuf>, String)> {
    let work = tempfile::Builder::new().prefix(".export-").tempdir_in(&plan.folder);
    let work = work.with_context(|| format!("cannot write into {}", plan.folder.display()))?;
    let question = json!({ "folder": plan.folder, "task": plan.export_task, "output": work.path() });
    let answer = ask(python, SCRIPT, &question)?;
    ensure!(
        work.path().join(plan.made).is_file(),
        "the export made no {}, but: {}",
        plan.made,
        names(work.path()).join(", ")
    );
    fs::create_dir_all(&plan.output).with_context(|| format!("cannot make {}", plan.output.display()))?;
    Ok((put(work.path(), names(work.path()), &plan.output)?, exporter(&answer)))
}
