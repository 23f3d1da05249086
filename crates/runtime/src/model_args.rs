//! Flags that say which models a process knows.

use std::path::PathBuf;

use clap::Args;
use trireme_model_repository::ModelSources;

/// Where models come from: flags of every process that hosts models or links them.
#[derive(Args, Clone, Debug, Default)]
pub struct ModelArgs {
    /// Model repositories in Triton's layout, and model folders as Hugging Face and sentence-transformers write them, which are
    /// served under their own names
    #[arg(value_name = "MODEL")]
    pub models: Vec<String>,

    /// A model folder and the name that it is served under; may be given several times
    #[arg(long = "model", env = "TRIREME_MODEL", value_name = "NAME=FOLDER", value_delimiter = ',')]
    #[arg(value_parser = named)]
    pub named: Vec<(String, String)>,

    /// Model repository in Triton's layout; may be given several times
    #[arg(long, alias = "model-store", env = "TRIREME_MODEL_REPOSITORY", value_name = "DIR", value_delimiter = ',')]
    pub model_repository: Vec<PathBuf>,
}

/// `NAME=FOLDER`
fn named(text: &str) -> Result<(String, String), String> {
    let expected = || format!("expected NAME=FOLDER, found '{text}'");
    let (name, folder) = text.split_once('=').ok_or_else(expected)?;
    match name.is_empty() || folder.is_empty() {
        true => Err(expected()),
        false => Ok((name.to_owned(), folder.to_owned())),
    }
}

// === impl ModelArgs ===

impl ModelArgs {
    /// Whether no model is named.
    pub fn is_empty(&self) -> bool {
        self.models.is_empty() && self.named.is_empty() && self.model_repository.is_empty()
    }

    /// The model repositories, and one that is derived from the model folders; the derived values are logged. The result has to
    /// be kept as long as models are loaded.
    pub fn open(&self) -> anyhow::Result<ModelSources> {
        let named = self.named.iter().map(|(name, folder)| (Some(name.as_str()), folder.as_str()));
        let sources = ModelSources::open(self.models.iter().map(|model| (None, model.as_str())).chain(named));
        let mut sources = sources.map_err(|faults| {
            anyhow::Error::msg(faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
        })?;
        for folder in &sources.folders {
            for line in folder.summary() {
                tracing::info!(model = folder.name, folder = %folder.path.display(), derived = line, "model folder");
            }
        }
        sources.repositories.splice(0..0, self.model_repository.iter().cloned());
        Ok(sources)
    }

    /// As [`ModelArgs::open`], for a process that has to have models.
    pub fn open_some(&self) -> anyhow::Result<ModelSources> {
        anyhow::ensure!(
            !self.is_empty(),
            "no models are named: give model folders or model repositories, as in 'serve MODEL', or --model-repository DIR"
        );
        self.open()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        models: ModelArgs,
    }

    fn parse(arguments: &[&str]) -> Result<ModelArgs, String> {
        let arguments = std::iter::once(&"serve").chain(arguments);
        Command::try_parse_from(arguments).map(|command| command.models).map_err(|error| error.to_string())
    }

    #[test]
    fn models_are_named_by_path_by_name_and_by_repository() {
        let models = parse(&["a", "b", "--model", "x=c", "--model", "y=d=e", "--model-repository", "r,s"]).unwrap();
        assert_eq!(models.models, ["a", "b"]);
        assert_eq!(models.named, [("x".to_owned(), "c".to_owned()), ("y".to_owned(), "d=e".to_owned())]);
        assert_eq!(models.model_repository, [PathBuf::from("r"), PathBuf::from("s")]);
        assert!(parse(&["--model", "c"]).unwrap_err().contains("expected NAME=FOLDER, found 'c'"));
    }

    #[test]
    fn all_that_cannot_be_served_is_said_together() {
        let models = parse(&["hf://org/name", "no/such/folder", "--model", "x=../../crates"]).unwrap();
        let error = models.open().unwrap_err().to_string();
        assert!(error.contains("'hf://org/name' is not a local folder"), "{error}");
        assert!(error.contains("there is no folder 'no/such/folder'"), "{error}");
        assert!(error.contains("'../../crates' is a model repository, whose models have names"), "{error}");
        let error = parse(&[]).unwrap().open_some().unwrap_err().to_string();
        assert!(error.starts_with("no models are named"), "{error}");
        assert!(parse(&[]).unwrap().open().unwrap().repositories.is_empty());
    }
}
