//! `trireme init`: writes the model repository that a model folder is served as, and says where each setting comes from.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use trireme_model_repository::{
    ModelConfig, ModelFolder, Placement, TemporaryFolder, check_choices, is_model_folder, model_folders_in,
};
use trireme_runtime::{FolderArgs, local_folder, name_and_model, service};
use trireme_telemetry::TelemetryArgs;
use trireme_text::{TextTokenizer, TokenizeOptions};

use crate::style::{Style, cell, colours, paint, table};

/// Flags of `trireme init`.
#[derive(Args)]
pub struct InitArgs {
    /// The model folder, as Hugging Face and sentence-transformers write it, or its hf://, s3://, gs://, az:// or https:// URL; with
    /// NAME= in front served under that name
    #[arg(value_name = "[NAME=]MODEL")]
    folder: String,

    /// The model repository to write into; it is made where there is none
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// The name to serve the model under, the folder's by default; as NAME@2 the model becomes that version, beside those that are there
    #[arg(long, value_name = "NAME[@VERSION]")]
    name: Option<String>,

    #[command(flatten)]
    choices: FolderArgs,

    /// Copy the model's files instead of linking to them
    #[arg(long)]
    copy: bool,

    #[command(flatten)]
    telemetry: TelemetryArgs,
}

/// Writes the repository and prints the derived values.
pub fn run(args: &InitArgs) -> ExitCode {
    let mut code = ExitCode::FAILURE;
    let ran = service::block_on("init", &args.telemetry, async {
        code = crate::output::write_out(init(args).await?.as_bytes());
        Ok(())
    });
    if ran == ExitCode::SUCCESS { code } else { ran }
}

async fn init(args: &InitArgs) -> anyhow::Result<String> {
    let choices = args.choices.choices()?;
    let (own, folder) = name_and_model(&args.folder);
    ensure!(
        own.is_none() || args.name.is_none(),
        "the model has two names: leave out --name, or '{}='",
        own.unwrap_or_default()
    );
    let name = own.or(args.name.as_deref());
    let folder = &local_folder(Path::new(folder), name, &choices).await?;
    ensure!(folder.is_dir(), "there is no folder '{}'", folder.display());
    let inner: Vec<_> = model_folders_in(folder).iter().map(|folder| folder.display().to_string()).collect();
    ensure!(
        inner.is_empty(),
        "'{}' holds several model folders: name one of them: {}",
        folder.display(),
        inner.join(", ")
    );
    ensure!(
        is_model_folder(folder),
        "'{}' is no model folder: it has neither config.json, modules.json or tokenizer.json nor an ONNX file",
        folder.display()
    );
    let model = ModelFolder::read(folder, name, &choices)?;
    check_choices(&choices, std::slice::from_ref(&model))?;
    check_tokenizer(&model)?;
    let placement = if args.copy { Placement::Copy } else { Placement::Link };
    model.write(&args.directory, placement).context("the repository is not written")?;

    let mut out = String::new();
    let origin = |origin: &str| match origin.starts_with("guessed") {
        true => (origin.to_owned(), Style::Strong),
        false => (origin.to_owned(), Style::Faint),
    };
    let rows = model.description.table();
    let lines: Vec<_> =
        rows.iter().map(|row| vec![cell(&row.part), cell(row.what), cell(&row.value), origin(&row.origin)]).collect();
    table(&mut out, &["step", "setting", "value", "from"], &lines, colours());
    for warning in model.warnings() {
        out.push_str(&format!("\n{} {warning}", paint("warning:", Style::Strong, colours())));
    }
    if !model.warnings().is_empty() {
        out.push('\n');
    }
    let directory = args.directory.display();
    let models = model.description.models(&model.name, model.version);
    let steps: Vec<&str> = models.iter().skip(1).map(|model| model.name.as_str()).collect();
    let (last, steps) = steps.split_last().context("a model folder has steps")?;
    out.push_str(&format!(
        "\nwrote version {} of {directory}/{}, {} and {last}\nserve it: trireme serve {directory}\n",
        model.version,
        model.name,
        steps.join(", ")
    ));
    Ok(out)
}

/// An error where `serve` cannot load the tokenizer or its chat template; it names the files of the model folder.
fn check_tokenizer(model: &ModelFolder) -> anyhow::Result<()> {
    let trial = TemporaryFolder::new("init").context("the tokenizer cannot be tried")?;
    model.write(trial.path(), Placement::Link)?;
    for derived in model.description.models(&model.name, model.version) {
        let config = ModelConfig::parse(&derived.config, &derived.name)?;
        if config.backend == "tokenizer" {
            try_tokenizer(model, &config, &trial.path().join(&derived.name).join(model.version.to_string()))?;
        }
    }
    Ok(())
}

/// Loads the tokenizer in the folder `version`.
fn try_tokenizer(model: &ModelFolder, config: &ModelConfig, version: &Path) -> anyhow::Result<()> {
    let options = TokenizeOptions::from_parameters(&config.parameters);
    let tried = options.and_then(|options| TextTokenizer::load(version, options)).and_then(|tokenizer| {
        let alone = tokenizer.check_messages(false);
        if config.inputs.len() > 1 { alone.or_else(|_| tokenizer.check_messages(true)) } else { alone }
    });
    tried.map_err(|error| {
        let said = error.to_string().replace(&version.display().to_string(), &model.path.display().to_string());
        anyhow::anyhow!("model folder {}: its tokenizer cannot be served: {said}", model.path.display())
    })
}
