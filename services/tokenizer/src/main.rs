//! The tokenizer service, on NATS.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use trireme_runtime::service::{self, ServiceArgs};
use trireme_tokenizer::TokenizerBackend;

/// Turns texts into token ids: hosts models of backend `tokenizer`
#[derive(Parser)]
#[command(name = "trireme-tokenizer", version)]
struct Cli {
    #[command(flatten)]
    args: ServiceArgs,
}

fn main() -> ExitCode {
    service::run("tokenizer", &Cli::parse().args, &[Arc::new(TokenizerBackend)])
}
