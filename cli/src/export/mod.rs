//! `trireme export`: makes the missing ONNX file of a model folder with optimum-onnx or torch in the user's Python ([`folder`]), or that of a
//! model of backend `pytorch` in a model repository ([`torch`]), and compares the server's answers with those of the model's own library.
//! Exit code 0: the file exists and its answers are right; 1: its answers are wrong, or the export failed; 2: the file exists, but the
//! answers could not be compared. `trireme serve --export` does the first for folders that have no such file ([`cached`]).

mod cached;
mod files;
mod folder;
mod options;
mod purpose;
mod torch;

use std::process::ExitCode;

use anyhow::ensure;
use trireme_model_repository::is_model_folder;
use trireme_runtime::service;

pub use cached::with_graphs;
pub use options::ExportArgs;

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
    if torch::is_model(folder) {
        return torch::export(args).await;
    }
    ensure!(
        is_model_folder(folder),
        "'{0}' is neither a model folder, which has config.json or modules.json, nor a model of a model repository, which has config.pbtxt \
         and {0}/1/model.pt",
        folder.display()
    );
    folder::export(args).await
}
