//! The model service, on NATS.

use std::process::ExitCode;

use clap::Parser;
use trireme_model::{OnnxRuntimeArgs, OnnxRuntimeOptions, backends};
use trireme_runtime::service::{self, ServiceArgs};

/// Executes models: hosts those of backend `onnxruntime`, `static`, `generation`, `identity` and `repeat`, and
/// reductions of their outputs (`postprocess`)
#[derive(Parser)]
#[command(name = "trireme-model", version)]
struct Cli {
    #[command(flatten)]
    args: ServiceArgs,
    #[command(flatten)]
    onnxruntime: OnnxRuntimeArgs,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    service::run("model", &cli.args, &backends(OnnxRuntimeOptions::from(&cli.onnxruntime)))
}
