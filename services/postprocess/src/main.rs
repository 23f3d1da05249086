//! The postprocess service, on NATS.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use trireme_ops::PostprocessBackend;
use trireme_runtime::service::{self, ServiceArgs};

/// Turns outputs of models into answers (pooling, normalizing, labels, text): hosts models of backend `postprocess`
#[derive(Parser)]
#[command(name = "trireme-postprocess", version)]
struct Cli {
    #[command(flatten)]
    args: ServiceArgs,
}

fn main() -> ExitCode {
    service::run("postprocess", &Cli::parse().args, &[Arc::new(PostprocessBackend)])
}
