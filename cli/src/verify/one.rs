//! The comparison of one model: it is served, unless a server runs already, and asked the texts alone and batched.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use serde_json::{Map, Value, json};
use trireme_model::{OnnxRuntimeArgs, TRACED};
use trireme_model_repository::{FolderChoices, ModelFolder, Task, folder_name, is_model_folder};
use trireme_runtime::{FolderArgs, local_folder, name_and_model};
use trireme_telemetry::TelemetryArgs;

use super::answers::{task_of, tasks_of};
use super::comparison::{ALONE, BATCHED, Comparison, Verified, report};
use super::reference::Library;
use super::served::{Model, NoAnswer};
use super::texts;
use crate::serve::{self, ServeArgs, Server};

/// Flags of `trireme verify`.
#[derive(Args, Clone)]
pub struct VerifyArgs {
    /// The model, which the command serves for the comparison. It is a model folder, a model repository, or an hf://, s3://, gs://,
    /// az:// or https:// URL of one; with --server the name of the model there. With NAME= in front a folder is served under that name
    #[arg(value_name = "[NAME=]MODEL")]
    pub(super) target: String,

    /// The model of the repository to verify: an ensemble that takes texts. Or a second model: then the two are compared with each other. It
    /// is a model folder or its URL, a model of a server as URL/NAME, or with --server a name there
    #[arg(value_name = "NAME|MODEL")]
    pub(super) model: Option<String>,

    /// Verify every model folder under the directory MODEL, as in Hugging Face's cache, one after the other
    #[arg(long, conflicts_with_all = ["server", "folder", "vectors", "model"])]
    pub(super) all: bool,

    /// A server that runs, to ask instead of one that is started for this; https:// in front for TLS
    #[arg(long, value_name = "URL")]
    pub(super) server: Option<String>,

    /// The model's folder, as sentence-transformers, transformers or model2vec load it; by default the model folder that is
    /// served
    #[arg(long, value_name = "DIR")]
    pub(super) folder: Option<PathBuf>,

    /// A Python that has these libraries
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: PathBuf,

    /// A file to compare with, instead of a folder: one JSON object a line with `text`, and `embedding`, `sparse`,
    /// `token_embeddings`, `scores`, `entities` or `generated_text`; `text_pair` where the model takes pairs
    #[arg(long, value_name = "FILE", conflicts_with_all = ["folder", "texts"])]
    pub(super) vectors: Option<PathBuf>,

    #[command(flatten)]
    pub(super) choices: FolderArgs,

    /// Texts to compare, one a line; without it some of all lengths and kinds
    #[arg(long, value_name = "FILE")]
    pub(super) texts: Option<PathBuf>,

    /// The lowest likeness that is good enough: a cosine, or 1 less the difference of scores
    #[arg(long, value_name = "NUMBER", default_value_t = 0.9999)]
    pub(super) min_cosine: f64,

    /// Prints the comparison of two models as JSON
    #[arg(long, requires = "model")]
    pub(super) json: bool,

    /// Writes the result of two models that are alike into the folder of the second one, as equivalent_spaces.json. A server that loads the folder
    /// then gives its answers to clients that ask for the first one's space
    #[arg(long, requires = "model")]
    pub(super) record: bool,

    /// The prompt to put before each text, by its name
    #[arg(long, value_name = "NAME")]
    pub(super) prompt_name: Option<String>,

    /// How tokens become entities
    #[arg(long, value_name = "STRATEGY", default_value = "simple", value_parser = ["none", "simple", "first", "average", "max"])]
    aggregation_strategy: String,

    /// A header of the requests to --server, such as an API key; may be given several times
    #[arg(long = "header", value_name = "NAME: VALUE")]
    pub(super) headers: Vec<String>,

    /// Seconds to wait for an answer
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub(super) timeout_secs: u64,

    #[command(flatten)]
    pub(super) onnxruntime: OnnxRuntimeArgs,
    #[command(flatten)]
    pub(super) telemetry: TelemetryArgs,
}

/// The arguments of this command, for commands that end with it.
#[derive(clap::Parser)]
struct Verify {
    #[command(flatten)]
    verify: VerifyArgs,
}

/// Compares the answers of a model.
pub async fn verify(args: &VerifyArgs) -> anyhow::Result<Verified> {
    if let Some(url) = &args.server {
        return compare(Comparing::of(args, None)?, args, url.clone()).await;
    }
    ensure!(!args.target.starts_with("http://"), "{0} is no model: trireme verify NAME --server {0}", args.target);
    let (name, target) = name_and_model(&args.target);
    let args = &VerifyArgs {
        target: target.to_owned(),
        model: name.map(str::to_owned).or_else(|| args.model.clone()),
        ..args.clone()
    };
    let served = local_folder(Path::new(target), name, &args.choices.choices()?).await?;
    let comparing = Comparing::of(args, Some(&served))?;
    let server = Server::open(&own_server(args, &served, &comparing.model)?).await?;
    let outcome = match server.load().await {
        Ok(()) => {
            let address = server.http_address().context("the server does not listen for HTTP")?;
            compare(comparing, args, format!("http://{address}")).await
        }
        // The load tried what the texts would have.
        Err(error) if format!("{error:#}").contains(TRACED) => Err(error.context(NoAnswer)),
        Err(error) => Err(error),
    };
    server.drain().await;
    outcome
}

/// The flags of a server that holds only this model, or the models of its ensemble, on free ports of this host.
fn own_server(args: &VerifyArgs, served: &Path, model: &str) -> anyhow::Result<ServeArgs> {
    let named = format!("{model}={}", served.display());
    let served = served.display().to_string();
    let words =
        if is_model_folder(Path::new(&served)) { folder_choices(args, Path::new(&served)).words() } else { Vec::new() };
    let models: &[&str] = match is_model_folder(Path::new(&served)) {
        true => &["--model", &named],
        false => &["--model-repository", &served, "--model-control-mode=explicit", "--load-model", model],
    };
    let flags: Vec<&str> = models.iter().copied().chain(words.iter().map(String::as_str)).collect();
    serve::own_server(&flags, &args.onnxruntime)
}

/// The choices for the server. They leave out the tasks if the folder has these tasks by its files.
fn folder_choices(args: &VerifyArgs, folder: &Path) -> FolderArgs {
    let mut choices = args.choices.clone();
    let asked = std::mem::take(&mut choices.task);
    let own = choices.choices().unwrap_or_else(|_| FolderChoices::default());
    let has_them = |folder: ModelFolder| {
        let own = folder.description.tasks();
        asked.iter().all(|asked| own.iter().any(|task| task.name() == asked))
    };
    if !ModelFolder::read(folder, None, &own).is_ok_and(has_them) {
        choices.task = asked;
    }
    choices
}

/// Compares on a thread of its own, because the HTTP client blocks and the server in this process has to go on.
async fn compare(comparing: Comparing, args: &VerifyArgs, url: String) -> anyhow::Result<Verified> {
    let (headers, timeout_secs) = (args.headers.clone(), args.timeout_secs);
    let blocking = move || comparing.run(&Model::new(&url, &comparing.model, headers, timeout_secs)?);
    tokio::task::spawn_blocking(blocking).await.context("comparing ended early")?
}

/// The tasks for a model whose rows hold the labels of requests, so that all labels come with their scores. reference.py has the same tasks.
const CLASSIFICATIONS: &str = r#"[{"task": "a_sentiment", "labels": ["positive", "negative", "neutral"], "multi_label": true, "cls_threshold": 0, "class_act": "softmax"},
    {"task": "topic", "labels": {"sea": "about ships", "town": "about streets"}, "multi_label": true, "cls_threshold": 0}]"#;

/// Likewise the structures and relations.
const STRUCTURES: &str = r#"{"vessel": {"fields": [{"name": "name", "dtype": "str"}, {"name": "crew", "description": "who is on it", "threshold": 0.45},
    {"name": "size", "dtype": "str", "choices": ["small", "large"]}]}, "place": {"fields": [{"name": "town"}]}}"#;
const RELATIONS: &str = r#"["lives_in", "sails_on"]"#;

/// The model, the reference, and the flags of the comparison.
struct Comparing {
    model: String,
    library: Library,
    tasks: Vec<Task>,
    texts: Option<PathBuf>,
    min_cosine: f64,
    prompt_name: Option<String>,
    aggregation: String,
}

// === impl VerifyArgs ===

impl VerifyArgs {
    /// Verifies the model folder `folder` with its library in `python`.
    pub fn of_folder(
        folder: &Path,
        python: &Path,
        min_cosine: f64,
        onnxruntime: &OnnxRuntimeArgs,
    ) -> anyhow::Result<VerifyArgs> {
        let (bar, python) = (min_cosine.to_string(), python.as_os_str());
        let flags =
            ["verify".as_ref(), folder.as_os_str(), "--min-cosine".as_ref(), bar.as_ref(), "--python".as_ref(), python];
        let Verify { verify } = clap::Parser::try_parse_from(flags)?;
        Ok(VerifyArgs { onnxruntime: onnxruntime.clone(), ..verify })
    }

    /// The same flags for one of the folders under the directory that they name.
    pub fn for_folder(&self, folder: &Path) -> VerifyArgs {
        let (target, choices) = (folder.display().to_string(), self.choices.of(&folder_name(folder)));
        VerifyArgs { target, choices, all: false, ..self.clone() }
    }

    /// The same for a folder whose task a flag says.
    pub fn for_task(mut self, task: Option<String>) -> VerifyArgs {
        self.choices.task.extend(task);
        self
    }
}

// === impl Comparing ===

impl Comparing {
    /// `served` is what this command serves, where no server runs already.
    fn of(args: &VerifyArgs, served: Option<&Path>) -> anyhow::Result<Comparing> {
        let served = served.filter(|folder| is_model_folder(folder));
        // Of a model that was downloaded the weights that the library reads are not here.
        let own = served.filter(|_| !args.target.contains("://")).map(Path::to_owned);
        let library = match (&args.vectors, args.folder.clone().or(own)) {
            (Some(file), _) => Library::File(file.clone()),
            (None, Some(folder)) => Library::Python { python: args.python.clone(), folder },
            (None, None) => {
                anyhow::bail!("there is nothing to compare with: give the model's folder by --folder, or --vectors")
            }
        };
        Ok(Comparing {
            model: match (&args.server, &args.model, served) {
                (Some(_), _, _) => args.target.clone(),
                (None, Some(model), _) => model.clone(),
                (None, None, Some(folder)) => folder_name(folder),
                (None, None, None) => anyhow::bail!("name the model of {} to verify", args.target),
            },
            library,
            tasks: args.choices.task.iter().map(|name| task_of(name)).collect::<anyhow::Result<_>>()?,
            texts: args.texts.clone(),
            min_cosine: args.min_cosine,
            prompt_name: args.prompt_name.clone(),
            aggregation: args.aggregation_strategy.clone(),
        })
    }

    fn run(&self, model: &Model) -> anyhow::Result<Verified> {
        let tasks = if self.tasks.is_empty() { tasks_of(&model.config)? } else { self.tasks.clone() };
        let texts = match &self.texts {
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                text.lines().map(str::to_owned).collect()
            }
            None => texts::built_in(),
        };
        let pairs = model.takes_pairs(tasks.contains(&Task::Rerank)).then(|| texts::pairs(&texts));
        let cases = self.library.cases(&tasks, texts, pairs, self.prompt_name.as_deref(), &self.aggregation)?;
        ensure!(!cases.is_empty(), "there are no texts to compare");
        let parameters = self.parameters(&tasks);
        let alone = model.ask(&tasks, &cases, 1, &parameters)?;
        let batched = model.ask(&tasks, &cases, model.largest_batch(cases.len()), &parameters)?;
        let mut comparisons = Vec::new();
        for ((&task, alone), batched) in tasks.iter().zip(&alone).zip(&batched) {
            comparisons.push(Comparison::of(task, ALONE, self.min_cosine, &cases, alone)?);
            comparisons.push(Comparison::of(task, BATCHED, self.min_cosine, &cases, batched)?);
            comparisons.push(Comparison::beside(task, self.min_cosine, alone, batched));
        }
        Ok(report(&self.model, &self.library.name(), self.min_cosine, &cases, &comparisons))
    }

    fn parameters(&self, tasks: &[Task]) -> Map<String, Value> {
        // The library reads a text as one row, also where the server reads long ones in windows.
        let mut parameters = Map::from_iter([("windows".to_owned(), json!(false))]);
        if let Some(name) = &self.prompt_name {
            parameters.insert("prompt_name".to_owned(), json!(name));
        }
        if tasks.contains(&Task::TokenClassify) {
            parameters.insert("aggregation_strategy".to_owned(), json!(self.aggregation));
            // For a model that finds entities of any labels; others pass it over.
            parameters.insert("labels".to_owned(), json!("person, organization, place, date"));
        }
        if tasks.contains(&Task::ZeroShot) {
            parameters.insert("classifications".to_owned(), json!(CLASSIFICATIONS));
        }
        if tasks.contains(&Task::Extract) {
            parameters.insert("structures".to_owned(), json!(STRUCTURES));
            parameters.insert("relations".to_owned(), json!(RELATIONS));
        }
        parameters
    }
}
