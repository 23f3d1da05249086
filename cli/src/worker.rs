//! `trireme worker`: any stages of the pipeline in one process, on NATS.
//!
//! A request whose next step is hosted in the same process is handed over in memory. The stage `model` hosts reductions of its
//! models' outputs by itself; with `postprocess` beside it, it hosts all other chains, too.

use std::process::ExitCode;

use clap::Args;
use trireme_model::OnnxRuntimeArgs;
use trireme_python::{AllowPython, PythonArgs};
use trireme_runtime::service::{self, ServiceArgs};

use crate::stages::{Stage, StageOptions, backends};

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
    #[command(flatten)]
    python: PythonArgs,
}

/// Works until a signal stops the process.
pub fn run(command: &WorkerCommand) -> ExitCode {
    let mut stages = command.stages.clone();
    stages.sort_unstable();
    stages.dedup();
    let options = StageOptions {
        onnxruntime: (&command.onnxruntime).into(),
        python: command.python.options(AllowPython::Never, command.args.worker.execution_limit()),
    };
    let backends = backends(&stages, &options);
    let mut args = command.args.clone();
    if let [stage] = stages.as_slice() {
        // Its spans are those of the stage, whichever program runs it.
        args.telemetry.resource.push(("service.name".to_owned(), stage.name()));
    }
    service::run("worker", &args, &backends)
}
