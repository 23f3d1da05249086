//! The gateway service: v2 HTTP in front, NATS behind.

use std::process::ExitCode;

use clap::Parser;
use trireme_gateway::GatewayServiceArgs;

/// Serves the v2 (KServe / Triton) protocol and sends requests through the stages over NATS
#[derive(Parser)]
#[command(name = "trireme-gateway", version)]
struct Cli {
    #[command(flatten)]
    args: GatewayServiceArgs,
}

fn main() -> ExitCode {
    trireme_gateway::run(&Cli::parse().args)
}
