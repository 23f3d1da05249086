//! The `trireme` command: `serve` runs everything in one process; each subcommand is a file here.

#[cfg(test)]
mod advice;
mod bench;
mod broker;
mod bulk;
mod client;
mod dead;
mod doctor;
mod export;
mod infer;
mod init;
mod keys;
mod optimize;
mod output;
mod python;
mod serve;
mod services;
mod settings;
mod stages;
mod status;
mod style;
mod tap;
mod up;
mod usage;
mod validate;
mod verify;
mod welcome;
mod worker;

use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Serves transformer text models behind the v2 (KServe / Triton) protocol
#[derive(Parser)]
#[command(name = "trireme", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve model folders and model repositories: gateway and all stages in this process, without a broker
    Serve(Box<serve::ServeArgs>),
    /// Host some stages in this process, on NATS: those side by side hand work over in memory
    Worker(Box<worker::WorkerCommand>),
    #[command(flatten)]
    Service(services::Service),
    /// Run the broker, a gateway and the stages as processes of this machine, start again what ends, and end them together
    Up(Box<up::UpArgs>),
    /// Run a program that ends when the process which started it does
    #[command(hide = true)]
    Tied(up::TiedArgs),
    /// Load a server of the v2 protocol and print throughput and latency
    Bench(bench::BenchArgs),
    /// Embed a file of texts, in this process or by a running server beside its live requests; started again it goes on where it was
    Bulk(Box<bulk::BulkArgs>),
    /// Look at messages that were given up, and send them again
    Dead(dead::DeadArgs),
    /// Compare what a deployment needs on a NATS account with what the account allows, before anything starts
    Doctor(Box<doctor::DoctorArgs>),
    /// Make the ONNX file of a model folder, or of a TorchScript model in a model repository, by torch in a Python, and verify it
    Export(export::ExportArgs),
    /// Ask a model: text in, answer out
    Infer(infer::InferArgs),
    /// Write the model repository that a model folder is served as, to look at and to edit
    Init(init::InitArgs),
    /// Make, list and revoke clients' keys in the file of --api-key-file, and set limits of their owners
    Keys(keys::KeysArgs),
    /// Make a variant of a model folder's ONNX file with 8-bit weights, as fast as its fidelity allows, and measure both
    Optimize(Box<optimize::OptimizeArgs>),
    /// Show how the queues of a deployment are kept, and change it
    Settings(settings::SettingsArgs),
    /// Show the running system: workers, models, queues, rates, latencies
    Status(status::StatusArgs),
    /// Show messages as workers take them in, decoded, without touching them; over NATS only
    Tap(tap::TapArgs),
    /// Show what owners of keys have used, by model, lane and time, and what that costs
    Usage(usage::UsageArgs),
    /// Find every fault of model repositories: read, load and link all models without serving them
    Validate(validate::ValidateArgs),
    /// Compare a model's answers with those of its own library: sentence-transformers, transformers or model2vec
    Verify(Box<verify::VerifyArgs>),
    /// Print the completion script of a shell; for bash: source <(trireme completions bash)
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Serve(args) => {
            let flags = matches.subcommand_matches("serve");
            let source = flags.and_then(|flags| flags.value_source("log_level"));
            serve::run(*args, source != Some(ValueSource::DefaultValue), export::with_graphs)
        }
        Command::Worker(command) => worker::run(&command),
        Command::Service(service) => service.run(),
        Command::Up(args) => match matches.subcommand_matches("up") {
            Some(flags) => up::run(&args, flags),
            None => ExitCode::FAILURE,
        },
        Command::Tied(args) => args.run(),
        Command::Bench(args) => bench::run(&args),
        Command::Bulk(args) => bulk::run(&args),
        Command::Dead(args) => dead::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Infer(args) => infer::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Keys(args) => keys::run(&args),
        Command::Optimize(args) => optimize::run(&args),
        Command::Settings(args) => settings::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Tap(args) => tap::run(&args),
        Command::Usage(args) => usage::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "trireme", &mut script);
            output::write_out(&script)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// clap finds two flags of one name, such as a command's own and a shared one, only when it builds that command.
    #[test]
    fn flags_of_each_command_have_names_of_their_own() {
        Cli::command().debug_assert();
    }
}
