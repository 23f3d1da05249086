//! `trireme worker`: any stages of the pipeline in one process, on NATS.
//!
//! A request whose next step is hosted in the same process is handed over in memory: with model and postprocess side by
//! side, hidden states never leave the process.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use trireme_model::{OnnxRuntimeArgs, OnnxRuntimeOptions};
use trireme_postprocess::PostprocessBackend;
use trireme_runtime::Backend;
use trireme_runtime::service::{self, ServiceArgs};
use trireme_tokenizer::TokenizerBackend;

/// Flags of `trireme worker`.
#[derive(Args)]
pub struct WorkerCommand {
    /// Stages to host: their steps follow each other without the broker
    #[arg(long, env = "TRIREME_STAGES", value_name = "STAGE", value_delimiter = ',')]
    #[arg(default_value = "model,postprocess")]
    stages: Vec<Stage>,
    #[command(flatten)]
    args: ServiceArgs,
    #[command(flatten)]
    onnxruntime: OnnxRuntimeArgs,
}

/// A stage of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// Texts to tokens.
    Tokenizer,
    /// Executes models.
    Model,
    /// Ops on what models give.
    Postprocess,
}

/// Works until told to stop.
pub fn run(command: &WorkerCommand) -> ExitCode {
    let mut backends: Vec<Arc<dyn Backend>> = Vec::new();
    let mut stages = command.stages.clone();
    stages.sort_unstable_by_key(|stage| *stage as u8);
    stages.dedup();
    for stage in stages {
        match stage {
            Stage::Tokenizer => backends.push(Arc::new(TokenizerBackend)),
            Stage::Model => backends.extend(trireme_model::backends(OnnxRuntimeOptions::from(&command.onnxruntime))),
            Stage::Postprocess => backends.push(Arc::new(PostprocessBackend)),
        }
    }
    service::run("worker", &command.args, &backends)
}
