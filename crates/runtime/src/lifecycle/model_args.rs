//! Flags that say which models a process knows.

use std::path::{Path, PathBuf};
use std::pin::Pin;

use clap::Args;
use trireme_model_repository::{Choices, FolderChoices, ModelSources, is_model_folder, model_folders_in, snapshot};
use trireme_model_source::{FetchError, Settings, fetch, is_remote};

use super::folder_args::FolderArgs;

/// Where models come from: flags of every process that hosts models or links them.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Models")]
pub struct ModelArgs {
    /// Model repositories in Triton's layout, and model folders as Hugging Face and sentence-transformers write them, which are served
    /// under their own names. Each is a folder, or an hf://org/name[@revision], s3://, gs://, az:// or https:// URL, which is
    /// downloaded first
    #[arg(value_name = "MODEL")]
    pub models: Vec<String>,

    /// A model folder or its URL, and the name that it is served under, with its version if that is not 1. May be given several times;
    /// all versions of a name are served. A model of the name org/name is served as name, and answers to both
    #[arg(long = "model", env = "TRIREME_MODEL", value_name = "NAME[@VERSION]=MODEL", value_delimiter = ',')]
    #[arg(value_parser = named)]
    pub named: Vec<(String, String)>,

    /// Model repository in Triton's layout, or its URL; may be given several times
    #[arg(long, alias = "model-store", env = "TRIREME_MODEL_REPOSITORY", value_name = "DIR", value_delimiter = ',')]
    pub model_repository: Vec<PathBuf>,

    // The flags about model folders. (A doc comment here would be a flag's help.)
    #[command(flatten)]
    #[allow(missing_docs, reason = "see above")]
    pub folders: FolderArgs,
}

/// `NAME=MODEL`
fn named(text: &str) -> Result<(String, String), String> {
    let expected = || format!("expected NAME=MODEL, found '{text}'");
    let (name, folder) = text.split_once('=').ok_or_else(expected)?;
    match name.is_empty() || folder.is_empty() {
        true => Err(expected()),
        false => Ok((name.to_owned(), folder.to_owned())),
    }
}

/// The parts of a word that may be `NAME=MODEL`: the name, if it has one, and the model. A path with an equals sign that is there is a path.
pub fn name_and_model(word: &str) -> (Option<&str>, &str) {
    let named =
        word.split_once('=').filter(|(name, model)| !name.contains("://") && !name.is_empty() && !model.is_empty());
    match named.filter(|_| !Path::new(word).exists()) {
        Some((name, model)) => (Some(name), model),
        None => (None, word),
    }
}

// === impl ModelArgs ===

impl ModelArgs {
    /// Whether no model is named.
    pub fn is_empty(&self) -> bool {
        self.models.is_empty() && self.named.is_empty() && self.model_repository.is_empty()
    }

    /// Whether a model comes from elsewhere, so that somebody else may have written its files.
    pub fn is_remote(&self) -> bool {
        let words = self.models.iter().chain(self.named.iter().map(|(_, model)| model)).map(String::as_str);
        words.chain(self.model_repository.iter().filter_map(|path| path.to_str())).any(is_remote)
    }

    /// The model repositories, and one that is derived from the model folders; the derived values are logged. Models that lie
    /// elsewhere are downloaded first. The result has to be kept as long as models are loaded. A folder that cannot be served is an error, or,
    /// without `exit_on_error`, a broken model beside the others.
    pub async fn open(&self, exit_on_error: bool) -> anyhow::Result<ModelSources> {
        let choices = self.folders.choices()?;
        let mut words: Vec<(Option<&str>, &Path)> = Vec::new();
        words.extend(self.models.iter().map(|model| (None, Path::new(model))));
        words.extend(self.named.iter().map(|(name, model)| (Some(name.as_str()), Path::new(model))));
        let (mut local, mut repositories, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for (name, word) in words {
            match local_folder(word, name, &choices).await {
                Ok(folder) => local.push((name, folder)),
                Err(fault) => faults.push(fault.to_string()),
            }
        }
        for word in &self.model_repository {
            match local_folder(word, None, &choices).await {
                Ok(folder) if is_model_folder(&folder) || !model_folders_in(&folder).is_empty() => {
                    tracing::info!(folder = %folder.display(), "a model folder, or several, and no model repository: served under their own names");
                    local.push((None, folder));
                }
                Ok(folder) => repositories.push(folder),
                Err(fault) => faults.push(fault.to_string()),
            }
        }
        let found = local.iter().map(|(name, folder)| (*name, folder.as_path()));
        let opened = match exit_on_error {
            true => ModelSources::open(found, &choices),
            false => ModelSources::open_what_can_be_served(found, &choices),
        };
        let mut sources = match opened {
            Ok(sources) if faults.is_empty() => sources,
            opened => {
                faults.extend(opened.err().iter().flatten().map(ToString::to_string));
                anyhow::bail!(faults.join("; "));
            }
        };
        for folder in &sources.folders {
            for line in folder.summary() {
                tracing::info!(model = folder.name, version = folder.version, folder = %folder.path.display(), derived = line, "model folder");
            }
            for warning in folder.warnings() {
                tracing::warn!(model = folder.name, version = folder.version, folder = %folder.path.display(), warning, "model folder");
            }
        }
        sources.repositories.splice(0..0, repositories);
        Ok(sources)
    }

    /// As [`ModelArgs::open`], for a process that has to have models.
    pub async fn open_some(&self, exit_on_error: bool) -> anyhow::Result<ModelSources> {
        anyhow::ensure!(
            !self.is_empty(),
            "no models are named: give model folders or model repositories, as in 'serve MODEL', or --model-repository DIR"
        );
        self.open(exit_on_error).await
    }
}

/// The folder that a word of the command line names, with the model's name where there is one. Of a model in Hugging Face's cache it
/// is the folder of its branch `main`. A model that lies elsewhere is downloaded into the cache, with the ONNX file that the choices say.
pub async fn local_folder(word: &Path, name: Option<&str>, choices: &FolderChoices) -> Result<PathBuf, FetchError> {
    folder_of(word, name, choices, false).await
}

/// As [`local_folder`], but a model folder without an ONNX file is downloaded with what one is made of.
pub async fn folder_to_export(word: &Path, name: Option<&str>, choices: &FolderChoices) -> Result<PathBuf, FetchError> {
    folder_of(word, name, choices, true).await
}

async fn folder_of(
    word: &Path,
    name: Option<&str>,
    choices: &FolderChoices,
    to_export: bool,
) -> Result<PathBuf, FetchError> {
    match word.to_str().filter(|word| is_remote(word)) {
        Some(word) => {
            // A model without a name is called as its place is: the last part of the word.
            let last = word.rsplit('/').find(|part| !part.is_empty()).unwrap_or(word);
            let name = name.unwrap_or(last).split('@').next().unwrap_or_default();
            let name = name.rsplit('/').next().unwrap_or_default();
            let choices: Choices = choices.of(name);
            let settings = Settings { choices, to_export, ..Settings::from_env() };
            let fetching: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(fetch(word, &settings));
            fetching.await
        }
        None => Ok(snapshot(word).unwrap_or_else(|| word.to_owned())),
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
    fn a_word_may_name_its_model() {
        assert_eq!(name_and_model("small@2=hf://a/b"), (Some("small@2"), "hf://a/b"));
        for word in ["folder", "https://example.org/?a=b", "=folder", "name="] {
            assert_eq!(name_and_model(word), (None, word));
        }
    }

    #[test]
    fn models_are_named_by_path_by_name_and_by_repository() {
        let models = parse(&["a", "b", "--model", "x=c", "--model", "y=d=e", "--model-repository", "r,s"]).unwrap();
        assert_eq!(models.models, ["a", "b"]);
        assert_eq!(models.named, [("x".to_owned(), "c".to_owned()), ("y".to_owned(), "d=e".to_owned())]);
        assert_eq!(models.model_repository, [PathBuf::from("r"), PathBuf::from("s")]);
        assert!(parse(&["--model", "c"]).unwrap_err().contains("expected NAME=MODEL, found 'c'"));
        assert!(!models.is_remote());
        for remote in [&["hf://a/b"][..], &["a", "--model", "x=s3://b/m"], &["--model-repository", "r,https://h/r"]] {
            assert!(parse(remote).unwrap().is_remote(), "{remote:?}");
        }
    }

    #[tokio::test]
    async fn all_that_cannot_be_served_is_said_together() {
        let models = parse(&["ftp://org/name", "no/such/folder", "--model", "x=../../crates"]).unwrap();
        let error = models.open(true).await.unwrap_err().to_string();
        assert!(error.contains("'ftp://org/name' names no model: expected hf://"), "{error}");
        assert!(error.contains("there is no folder 'no/such/folder'"), "{error}");
        assert!(error.contains("'../../crates' is a model repository, whose models have names"), "{error}");
        let error = parse(&[]).unwrap().open_some(true).await.unwrap_err().to_string();
        assert!(error.starts_with("no models are named"), "{error}");
        assert!(parse(&[]).unwrap().open(true).await.unwrap().repositories.is_empty());
    }

    #[tokio::test]
    async fn a_bad_folder_stands_beside_the_others_where_errors_do_not_end_the_process() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        let models = parse(&["--model", &format!("bad={}", folder.path().display())]).unwrap();
        let error = models.open(true).await.unwrap_err().to_string();
        let sources = models.open(false).await.unwrap();
        assert_eq!(sources.broken.iter().map(|broken| broken.name.as_str()).collect::<Vec<_>>(), ["bad"]);
        assert_eq!(sources.broken[0].fault.to_string(), error);
        assert_eq!(sources.repositories.len(), 1, "the index names it from there");
    }
}
