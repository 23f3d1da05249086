//! `trireme gateway`, `tokenizer`, `model`, `postprocess`, `python`: the services, each as its own program is.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use trireme_gateway::GatewayServiceArgs;
use trireme_model::OnnxRuntimeArgs;
use trireme_python::{AllowPython, PythonArgs};
use trireme_runtime::service::{self, ServiceArgs};

use crate::stages::{Stage, StageOptions, backends};

/// A service on NATS.
#[derive(Subcommand)]
pub enum Service {
    /// Service trireme-gateway: serve the v2 protocol, and send requests through the stages over NATS
    Gateway(Box<GatewayServiceArgs>),
    /// Service trireme-tokenizer: turn texts into token ids, on NATS
    Tokenizer(Box<ServiceArgs>),
    /// Service trireme-model: execute models, on NATS
    Model(Box<ModelServiceArgs>),
    /// Service trireme-postprocess: turn outputs of models into answers, on NATS
    Postprocess(Box<ServiceArgs>),
    /// Service trireme-python: run model.py files, on NATS
    Python(Box<PythonServiceArgs>),
}

/// Flags of `trireme model`.
#[derive(Args)]
pub struct ModelServiceArgs {
    #[command(flatten)]
    args: ServiceArgs,
    #[command(flatten)]
    onnxruntime: OnnxRuntimeArgs,
}

/// Flags of `trireme python`.
#[derive(Args)]
pub struct PythonServiceArgs {
    #[command(flatten)]
    args: ServiceArgs,
    #[command(flatten)]
    python: PythonArgs,
}

// === impl Service ===

impl Service {
    /// Works until a signal stops the process.
    pub fn run(&self) -> ExitCode {
        let mut options = StageOptions::default();
        let (name, stage, args) = match self {
            Service::Gateway(args) => return trireme_gateway::run(args),
            Service::Tokenizer(args) => ("tokenizer", Stage::Tokenizer, &**args),
            Service::Model(model) => {
                options.onnxruntime = (&model.onnxruntime).into();
                ("model", Stage::Model, &model.args)
            }
            Service::Postprocess(args) => ("postprocess", Stage::Postprocess, &**args),
            Service::Python(python) => {
                options.python = python.python.options(AllowPython::Never, python.args.worker.execution_limit());
                ("python", Stage::Python, &python.args)
            }
        };
        service::run(name, args, &backends(&[stage], &options))
    }
}
