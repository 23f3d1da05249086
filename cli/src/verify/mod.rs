//! `trireme verify`: compares a model's answers with those of its own library for the same texts, each text alone and all texts
//! batched; and the answers of the batch with those of each text alone. Exit code 0: all answers are alike; 1: some differ; 2: they could not be compared.
//! `--all` does so for every model folder under a directory ([`all`]). With two models it compares these with each other ([`two`]).

mod all;
pub mod answers;
mod comparison;
mod likeness;
mod one;
mod probes;
pub mod reference;
pub mod served;
pub mod texts;
mod two;

use std::process::ExitCode;

use trireme_runtime::service;

use all::NOT_COMPARED;
pub use one::{VerifyArgs, verify};
pub use served::NoAnswer;

/// Compares and prints.
pub fn run(args: &VerifyArgs) -> ExitCode {
    let mut code = ExitCode::from(NOT_COMPARED);
    let ran = service::block_on("verify", &args.telemetry, async {
        let (text, found) = match args.all {
            true => all::verify_all(args).await?,
            false if args.names_two() => {
                let two::Compared { text, passed } = two::verify_two(args).await?;
                (text, if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
            false => {
                let found = verify(args).await?;
                (found.text, if found.passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
            }
        };
        let written = crate::output::write_out(text.as_bytes());
        code = if found == ExitCode::SUCCESS { written } else { found };
        Ok(())
    });
    if ran == ExitCode::SUCCESS { code } else { ExitCode::from(NOT_COMPARED) }
}
