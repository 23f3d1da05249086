//! The python service, on NATS.

use std::process::ExitCode;

use clap::Parser;
use trireme_python::{AllowPython, PythonArgs};
use trireme_runtime::service::{self, ServiceArgs};

/// Runs model.py files: hosts models of backend `python`
#[derive(Parser)]
#[command(name = "trireme-python", version)]
struct Cli {
    #[command(flatten)]
    args: ServiceArgs,
    #[command(flatten)]
    python: PythonArgs,
}

fn main() -> ExitCode {
    let Cli { args, python } = Cli::parse();
    let options = python.options(AllowPython::Never, args.worker.execution_limit());
    service::run("python", &args, &trireme_python::backends(&options))
}
